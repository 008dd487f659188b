//! Workers: a sampler, its environments and its policies put together.
//!
//! ```
//! use rollmesh_core::{
//!     batch::REWARDS,
//!     env::EnvRegistry,
//!     kernels::Kernels,
//!     worker::{PolicyKind, RolloutConfig, RolloutWorker},
//! };
//!
//! let config = RolloutConfig::new("MountainCar-v0").num_envs(2).policy(PolicyKind::Random).seed(3);
//! let mut worker = RolloutWorker::new(config, &EnvRegistry::builtin(), Kernels::PORTABLE)?;
//! let batch = worker.sample()?;
//! assert_eq!(batch.len(), 2 * 200);
//! assert!(batch.get(REWARDS)?.iter().all(|reward| *reward == -1.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod config;
mod fingerprint;
mod lane_set;
mod registry;
mod rollout;
mod runner;
mod session;

pub use fingerprint::{core_fingerprint, rollout_hash};
pub use registry::{
    BaseEnvFactory, CallbacksFactory, InputFactory, OutputFactory, RegisteredEnv, Registry, Unknown, WorkerFn,
};
pub use rollout::{PolicyKind, RolloutConfig, RolloutError, RolloutWorker};
pub use runner::{Advance, RunnerError, SlotRunner};
pub use session::{SessionCounters, SessionState, WorkerSession};
