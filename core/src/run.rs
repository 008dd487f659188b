//! What a run is: the part of its configuration that every worker must know.

use serde::{Deserialize, Serialize};

use crate::{ids::SlotId, prelude::*};

/// The meaning of a run. Two runs with equal specs and equal weights have equal rows, whatever works on them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSpec {
    /// Registered name of the environment, for example `CartPole-v1`.
    pub env: String,
    /// Seed of every random stream of the run.
    pub seed: u64,
    /// Slots of the run, fixed for its life.
    pub num_slots: u32,
    /// Slots that share one home worker: slot `s` has worker index `s / num_envs_per_worker + 1`
    /// and vector index `s % num_envs_per_worker`, wherever it runs.
    pub num_envs_per_worker: u32,
    /// Env steps of a slot per fragment.
    pub rollout_fragment_length: u32,
    /// Widths of the hidden layers of the policy and of the value network.
    pub hidden: Vec<u32>,
}

/// The identity that an environment of a slot sees, wherever the slot runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HomeIndex {
    /// Index of the home worker, from 1.
    pub worker_index: u32,
    /// Index within the home worker.
    pub vector_index: u32,
}

impl RunSpec {
    /// Indices of a slot's home.
    #[must_use]
    pub fn home(&self, slot: SlotId) -> HomeIndex {
        let per_worker = self.num_envs_per_worker.max(1);
        HomeIndex { worker_index: slot.0 / per_worker + 1, vector_index: slot.0 % per_worker }
    }
}
