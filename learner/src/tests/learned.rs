//! Weights that policies have learned, as hashes. Builds of every kind include this file, and compare with one list.

use rollmesh_core::{
    config::Config,
    group::JournalEntry,
    hash::run_weights_hash,
    ids::{PolicyId, WeightsVersion},
    kernels::Kernels,
    policy::PolicyRegistry,
    run::RunConfig,
    weights::Weights,
    worker::{Registry, RolloutWorkerBuilder},
};

/// The lists: workers that learn, runs as `rollmesh train` executes them, and journals of asynchronous ones, with the hashes of
/// their weights.
#[derive(serde::Deserialize)]
pub(crate) struct Learned {
    pub(crate) runs: Vec<LearnedRun>,
    pub(crate) trains: Vec<Trained>,
    pub(crate) journals: Vec<Journalled>,
}

/// An asynchronous run with what its journal recorded: which fragments each batch had.
#[derive(serde::Deserialize)]
pub(crate) struct Journalled {
    #[serde(flatten)]
    pub(crate) trained: Trained,
    pub(crate) entries: Vec<JournalEntry>,
}

/// A run, and the hash of its last weights.
#[derive(serde::Deserialize)]
pub(crate) struct Trained {
    pub(crate) config: Config,
    pub(crate) weights_hash: String,
}

impl Trained {
    /// Returns the settings of the run.
    pub(crate) fn run(&self) -> RunConfig {
        RunConfig::new("CartPole-v1").merged(&self.config).expect("settings of a run")
    }
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
    /// Returns the hash of the weights that a worker learns with these kernels.
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
