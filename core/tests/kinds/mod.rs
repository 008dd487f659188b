//! Kinds of sampling: settings, and hashes of what is sampled under them. The tests of every place where workers sample loop
//! over one list, `tests/golden/kinds.json`.
#![allow(dead_code, reason = "every test uses a part of it")]

mod code;
mod envs;

pub(crate) use code::register;

use std::collections::BTreeSet;

use rollmesh_core::{
    batch::AnyBatch,
    config::Config,
    hash::{BatchHasher, RolloutHasher},
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion},
    lease::{FailedStep, FragmentStart, Lease, LeasedSlot, SlotSource},
    protocol::FragmentFailure,
    run::{RolloutConfig, RunConfig},
    worker::{Advance, RolloutWorker, RolloutWorkerBuilder, SlotRunner},
};
use serde_json::json;

/// All kinds.
#[derive(serde::Deserialize)]
pub(crate) struct Kinds {
    /// Those that every program can sample.
    pub(crate) samples: Vec<Kind>,
    /// Those that need threads or processes, which browsers do not have.
    pub(crate) native: Vec<Kind>,
    /// Those that need the code of [`register`].
    pub(crate) own: Vec<Kind>,
    /// Runs, whose slots share home workers.
    pub(crate) leases: Vec<LeasedKind>,
}

impl Kinds {
    pub(crate) fn read() -> Self {
        serde_json::from_str(include_str!("../../../tests/golden/kinds.json")).expect("a list of kinds")
    }

    /// Returns the kinds that a worker of a program can sample.
    pub(crate) fn in_programs(self) -> impl Iterator<Item = Kind> {
        self.samples.into_iter().chain(self.native).chain(self.own)
    }

    /// Returns the kinds that a worker in one thread can sample.
    pub(crate) fn in_one_thread(self) -> impl Iterator<Item = Kind> {
        self.samples.into_iter().chain(self.own)
    }
}

/// Settings of a worker.
#[derive(serde::Deserialize)]
pub(crate) struct Kind {
    pub(crate) config: Config,
    /// Number of batches that are hashed.
    pub(crate) samples: u64,
    /// Hash of the batches of a worker.
    pub(crate) batch_hash: String,
    /// Hash of as many fragments of each slot, under the first weights; `None` if no run supports the settings.
    pub(crate) rollout_hash: Option<String>,
    /// Hash of the weights that a run [learns](Kind::training) from the rows of these fragments.
    pub(crate) weights_hash: Option<String>,
}

impl Kind {
    pub(crate) fn rollout(&self) -> RolloutConfig {
        self.config.parse().unwrap_or_else(|error| panic!("{}: {error}", self.config))
    }

    /// Returns a run that samples under these settings and does not train.
    pub(crate) fn run(&self) -> RunConfig {
        let rollout = self.rollout();
        RunConfig { rollout: rollout.clone(), ..RunConfig::sampling("", rollout.num_envs) }
    }

    /// Returns the settings of a run that learns from rows under these settings, as a page sends them. Random policies
    /// do not learn.
    pub(crate) fn training(&self) -> Config {
        let rollout = self.rollout();
        let steps = self.samples * u64::from(self.run().fragment_length()) * u64::from(rollout.num_envs);
        let run = json!({
            "num_workers": 0, "num_slots": rollout.num_envs, "preset": "none", "evaluation": { "episodes": 0 },
            "stop": { "env_steps": steps },
        });
        let run = self.config.merged(&Config::of(&run).expect("an object"));
        let learning = rollout.policies.iter().filter(|(_, policy)| policy.policy != "random").map(|(id, _)| id);
        let learning: Vec<_> = learning.collect();
        let is_subset = learning.len() < rollout.policies.len();
        if is_subset { run.with_at("policies_to_train", json!(learning)) } else { run }
    }

    pub(crate) fn batches(&self, worker: &mut RolloutWorker) -> Vec<AnyBatch> {
        let sample = |_| worker.sample().unwrap_or_else(|error| panic!("{}: {error}", self.config));
        (0..self.samples).map(sample).collect()
    }

    /// Returns the hash of a worker's sample.
    pub(crate) fn sampled(&self, builder: RolloutWorkerBuilder) -> String {
        let mut worker =
            builder.config(self.rollout()).build().unwrap_or_else(|error| panic!("{}: {error}", self.config));
        batch_hash(&self.batches(&mut worker))
    }

    /// Returns the hash of the rows of leases; `None` if no run supports the settings.
    pub(crate) fn leased(&self, builder: RolloutWorkerBuilder) -> Option<String> {
        Some(lease_hash(SlotRunner::new(&self.run(), builder).ok()?, self.run().num_slots(), self.samples))
    }
}

/// Settings of a run.
#[derive(serde::Deserialize)]
pub(crate) struct LeasedKind {
    pub(crate) config: Config,
    pub(crate) fragments: u64,
    pub(crate) rollout_hash: String,
}

impl LeasedKind {
    /// Returns the hash of the rows of leases.
    pub(crate) fn leased(&self, builder: RolloutWorkerBuilder) -> String {
        let run = RunConfig::new("CartPole-v1").merged(&self.config).expect("settings of a run");
        lease_hash(SlotRunner::new(&run, builder).expect("a run over leases"), run.num_slots(), self.fragments)
    }
}

pub(crate) fn batch_hash(batches: &[AnyBatch]) -> String {
    let mut hasher = BatchHasher::new();
    batches.iter().for_each(|batch| hasher.add(batch).expect("batches that can be hashed"));
    hasher.finish().to_string()
}

/// Returns the hash of this number of fragments of every slot, under the first weights. A fragment that has failed is made
/// again, with a restart of its environment at that step.
fn lease_hash(mut runner: SlotRunner, num_slots: u32, fragments: u64) -> String {
    let mut hasher = RolloutHasher::new();
    let mut starts = vec![FragmentStart::default(); num_slots as usize];
    let (mut id, mut last) = (LeaseId(0), BTreeSet::new());
    for fragment in (0..fragments).map(FragmentNo) {
        let mut open: BTreeSet<SlotId> = (0..num_slots).map(SlotId).collect();
        while !open.is_empty() {
            // The runner holds the states after its last lease, which opaque environments need.
            let is_held = fragment.0 > 0 && last == open;
            let leased = |slot| match is_held {
                true => LeasedSlot::new(slot, SlotSource::Held),
                false => starts[slot.0 as usize].leased(slot),
            };
            let slots = open.iter().copied().map(leased).collect();
            (id, last) = (LeaseId(id.0 + 1), BTreeSet::new());
            runner
                .begin(Lease { id, fragment, weights_version: WeightsVersion(0), slots })
                .expect("a lease of its own");
            let mut is_done = false;
            while !is_done {
                let made = match runner.advance(u32::MAX) {
                    Advance::Working { .. } => Vec::new(),
                    Advance::Part { fragments, .. } => fragments,
                    Advance::Done { fragments, .. } => {
                        is_done = true;
                        fragments
                    }
                    Advance::Failed { failure: FragmentFailure { slot: Some(slot), episode, t, .. }, .. } => {
                        starts[slot.0 as usize].restarts.push(FailedStep { episode, t });
                        Vec::new()
                    }
                    other => panic!("{other:?}"),
                };
                for fragment in made {
                    hasher.add(&fragment).expect("rows that can be hashed");
                    open.remove(&fragment.slot);
                    last.insert(fragment.slot);
                    starts[fragment.slot.0 as usize] =
                        FragmentStart { state: Some(fragment.state), restarts: Vec::new() };
                }
            }
        }
    }
    hasher.finish().to_string()
}
