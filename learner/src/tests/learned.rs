//! Weights that policies have learned, as hashes. Builds of every kind include this file, and compare with one list.

use rollmesh_core::{
    config::Config,
    hash::run_weights_hash,
    ids::{PolicyId, WeightsVersion},
    kernels::Kernels,
    policy::PolicyRegistry,
    weights::Weights,
    worker::{Registry, RolloutWorkerBuilder},
};

/// The list: runs of a worker that learns, and the hash of its weights after them.
#[derive(serde::Deserialize)]
pub(crate) struct Learned {
    pub(crate) runs: Vec<LearnedRun>,
}

/// A worker that learns from each of its samples.
#[derive(serde::Deserialize)]
pub(crate) struct LearnedRun {
    pub(crate) config: Config,
    pub(crate) updates: u32,
    pub(crate) weights_hash: String,
}

impl Learned {
    pub(crate) fn read() -> Self {
        serde_json::from_str(include_str!("../../../tests/golden/learned.json")).expect("a list of runs")
    }
}

impl LearnedRun {
    /// The hash of the weights that a worker learns with these kernels.
    pub(crate) fn learn(&self, kernels: Kernels, register: fn(&mut PolicyRegistry)) -> String {
        let mut registry = Registry::builtin();
        register(&mut registry.policies);
        let config = self.config.parse().expect("settings of a worker");
        let builder = RolloutWorkerBuilder::new(registry).config(config).kernels(kernels);
        let mut worker = builder.build().expect("a worker");
        for _ in 0..self.updates {
            let batch = worker.sample().expect("a sample");
            worker.learn_on_batch(&batch).expect("an update");
        }
        let weights = worker.weights(None).expect("weights");
        let ids: Vec<PolicyId> = weights.keys().cloned().collect();
        let weights = Weights::of_run(WeightsVersion(0), &weights).expect("weights of a run");
        run_weights_hash(&weights, &ids).expect("weights of these policies").to_string()
    }
}
