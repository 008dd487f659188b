//! Bodies about the runs below a hub's directory of runs, as they are on the wire. A run is named by its id, the name of its
//! directory there; no path is ever accepted.

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// Names a saved run: requests its curves and settings, resumes it or deletes it, by the message's kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRunRequest {
    /// Chosen by the sender; the answer repeats it.
    pub request: u32,
    /// The run's id, as in [`SavedRunRow`].
    pub id: String,
}

/// The runs below the hub's directory of runs, the newest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedRuns {
    /// The request's number.
    pub request: u32,
    /// Number of older runs that are omitted.
    pub left_out: u32,
    /// The runs, at most [`MAX`](Self::MAX) of them.
    #[serde(with = "crate::lists::AtMost::<{ SavedRuns::MAX }>")]
    pub runs: Vec<SavedRunRow>,
}

impl SavedRuns {
    /// Maximum number of runs, so that a message is not too large.
    pub const MAX: usize = 128;
}

/// A saved run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SavedRunRow {
    /// The name of its directory.
    pub id: String,
    /// `running`, `interrupted`, `damaged`, or how it ended.
    pub state: String,
    /// Its environment.
    pub env: String,
    /// Its algorithm.
    pub algo: String,
    /// Its seed.
    pub seed: u64,
    /// Env steps that the learner has used.
    pub env_steps: u64,
    /// Mean return of the last 100 episodes; NaN without one.
    pub episode_return_mean: f32,
    /// The error of the run or of its files; else empty.
    pub error: String,
}
