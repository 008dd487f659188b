//! Bodies that describe runs, iterations and workers for dashboards, as they are on the wire.

use serde::{Deserialize, Serialize};

use super::{Phase, token::hex};
use crate::prelude::*;

/// The state of the hub's run, for dashboards. Sent when anything in it changed, at most ten times a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunStatus {
    /// Number of the run on this hub, 0 before the first.
    pub run: u32,
    /// Wire form of [`Phase`].
    pub phase: u8,
    /// Environment of the run.
    pub env: String,
    /// Algorithm of the run.
    pub algo: String,
    /// Seed of the run.
    pub seed: u64,
    /// Slots of the run.
    pub num_slots: u32,
    /// Slots that each worker could have, see [`RunConfig::slots_per_worker`](crate::run::RunConfig::slots_per_worker).
    pub slots_per_worker: u32,
    /// Learner updates so far, and the version of the weights.
    pub iteration: u64,
    /// Env steps that the learner has used.
    pub env_steps: u64,
    /// Finished episodes.
    pub episodes: u64,
    /// Mean return of the last 100 finished episodes; NaN before the first.
    pub episode_return_mean: f32,
    /// Mean return at which the run is solved.
    pub stop_return: f32,
    /// Env steps at which the run ends.
    pub max_env_steps: u64,
    /// Wall time of the run in milliseconds, without pauses.
    pub wall_ms: u64,
    /// Env steps per second of the last iteration.
    pub steps_per_s: f32,
    /// The slot whose environment is shown.
    pub watched_slot: u32,
    /// Env steps granted; equals the sum of the next five.
    pub granted: u64,
    /// Env steps committed.
    pub committed: u64,
    /// Env steps that arrived after another worker's equal ones.
    pub superseded: u64,
    /// Env steps rejected, for any reason.
    pub rejected: u64,
    /// Env steps whose lease expired.
    pub expired: u64,
    /// Env steps of live leases.
    pub outstanding: u64,
    /// The error of a failed run, else empty.
    pub error: String,
    /// The run directory, for display; empty without one.
    pub run_dir: String,
    /// Fragments that failed so far.
    pub failures: u64,
    /// The latest failure, where it happened, and on which worker; empty before the first.
    pub last_failure: String,
    /// The condition that the run waits for while no worker can sample for it; else empty.
    pub waiting: String,
}

/// The hub's past, current and queued runs. Sent when one is queued, begins, ends or is removed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunList {
    /// Whether the hub queues further runs while one is active.
    pub may_wait: bool,
    /// By number.
    pub runs: Vec<RunRow>,
}

/// A run of a hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunRow {
    /// Its number on this hub.
    pub run: u32,
    /// Wire form of its [`Phase`]; `Idle` while it waits.
    pub phase: u8,
    /// Its place in the queue, from 1; 0 once it has begun.
    pub place: u32,
    /// Its environment.
    pub env: String,
    /// Its algorithm.
    pub algo: String,
    /// Its seed.
    pub seed: u64,
    /// Env steps that the learner has used by its end; 0 before, see [`RunStatus`].
    pub env_steps: u64,
    /// Mean return of the last 100 episodes at its end; NaN before.
    pub episode_return_mean: f32,
    /// The error of a failed run, else empty.
    pub error: String,
    /// Its run directory; empty without one, and while it waits.
    pub run_dir: String,
}

/// Begins the text of a row whose run was rolled back. The number of the run that continues it follows.
const ROLLED_BACK: &str = "it went back to before the rows of a quarantined principal, and continues as run ";

impl RunRow {
    /// Returns the row of this run once it is rolled back: another run continues it, under this number.
    #[must_use]
    pub fn rolled_back(self, next: u32) -> Self {
        Self { phase: Phase::Stopped.to_wire(), error: format!("{ROLLED_BACK}{next}"), ..self }
    }

    /// Returns the number of the run that continues this one, if it was rolled back.
    #[must_use]
    pub fn continued_by(&self) -> Option<u32> {
        self.error.strip_prefix(ROLLED_BACK)?.parse().ok()
    }
}

/// The metrics of one iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// Number of the run.
    pub run: u32,
    /// Number of the iteration, from 1.
    pub iteration: u64,
    /// Env steps that the learner has used so far.
    pub env_steps: u64,
    /// Wall time in milliseconds.
    pub wall_ms: u64,
    /// Mean return of the last 100 finished episodes.
    pub episode_return_mean: f32,
    /// Their mean length.
    pub episode_len_mean: f32,
    /// Env steps per second of this iteration.
    pub steps_per_s: f32,
    /// Clipped surrogate loss.
    pub policy_loss: f32,
    /// Value loss.
    pub vf_loss: f32,
    /// Entropy of the policy.
    pub entropy: f32,
    /// Estimated KL divergence from the policy that acted.
    pub kl: f32,
}

/// Further metrics of one iteration, by name: those of the learner, of policies and of callbacks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NamedMetrics {
    /// Number of the run.
    pub run: u32,
    /// Number of the iteration.
    pub iteration: u64,
    /// The names, joined by newlines.
    pub names: String,
    /// A value for each name.
    pub values: Vec<f32>,
}

impl NamedMetrics {
    /// Maximum number of metrics.
    pub const MAX: usize = 48;
    /// Maximum length of a name in bytes.
    pub const MAX_NAME: usize = 64;

    /// Takes the first [`MAX`](Self::MAX) metrics that have a value and a valid name.
    #[must_use]
    pub fn new(run: u32, iteration: u64, metrics: impl IntoIterator<Item = (String, f64)>) -> Self {
        let mut all = Self { run, iteration, ..Self::default() };
        let is_valid = |(name, value): &(String, f64)| {
            value.is_finite() && !name.is_empty() && name.len() <= Self::MAX_NAME && !name.contains('\n')
        };
        for (name, value) in metrics.into_iter().filter(is_valid).take(Self::MAX) {
            if !all.values.is_empty() {
                all.names.push('\n');
            }
            all.names.push_str(&name);
            all.values.push(value as f32);
        }
        all
    }

    /// Iterates over names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f32)> {
        self.names.split('\n').zip(self.values.iter().copied())
    }
}

/// The metrics of one evaluation. Missing values are NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationPoint {
    /// Number of the run.
    pub run: u32,
    /// Iterations that the weights were trained for.
    pub iteration: u64,
    /// Env steps that the weights were trained with.
    pub env_steps: u64,
    /// Episodes that ended.
    pub episodes: u32,
    /// Episodes that had begun and not ended.
    pub unfinished: u32,
    /// Mean return of the ended episodes; if there are none, of the unfinished ones so far.
    pub episode_return_mean: f32,
    /// The lowest return.
    pub episode_return_min: f32,
    /// The highest return.
    pub episode_return_max: f32,
    /// Mean length.
    pub episode_len_mean: f32,
}

/// A worker's status for dashboards. Sent when it changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerRow {
    /// The worker's id.
    pub worker: u32,
    /// `native`, `browser`, …; `thread`, `process` or `remote` for a worker of a program's group without a connection.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The device that it runs on.
    pub device: String,
    /// Wire form of [`WorkerState`](super::WorkerState).
    pub state: u8,
    /// True if this hub started it, so that it can be removed with its process.
    pub local: bool,
    /// Slots of its current lease.
    pub slots: u32,
    /// Env steps committed from it.
    pub env_steps: u64,
    /// Env steps per second over the last seconds.
    pub steps_per_s: f32,
    /// Learner updates between the weights it acts with and the newest.
    pub weights_lag: u64,
    /// The reason why it makes no rows, as text; empty while it does.
    pub reason: String,
}

/// A worker has disconnected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerGone {
    /// The worker's id.
    pub worker: u32,
}

/// The settings that a run on this hub accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSchema {
    /// Their [JSON Schema](crate::run::schema::json_schema); with `"not": {}` on a hub that executes no runs, since it belongs to a
    /// program's worker group.
    pub schema: String,
}

/// The certificate of a hub that encrypts: a peer that knows no authority for it verifies the hub by this hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HubCertificate {
    /// SHA-256 of the certificate.
    pub sha256: [u8; 32],
}

impl HubCertificate {
    /// Formats the hash as `--tls-fingerprint` reads it.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex(&self.sha256)
    }
}

/// A notice for the user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// 0 information, 1 warning, 2 error.
    pub level: u8,
    /// The text.
    pub text: String,
}
