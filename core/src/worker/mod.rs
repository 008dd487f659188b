//! Workers: a sampler, its environments and its policies put together.

mod fingerprint;
mod lane_set;
mod rollout;
mod runner;
mod session;

pub use fingerprint::{core_fingerprint, rollout_hash};
pub use rollout::{PolicyKind, RolloutConfig, RolloutError, RolloutWorker};
pub use runner::{Advance, RunnerError, SlotRunner};
pub use session::{SessionCounters, SessionState, WorkerSession};
