//! Workers: a sampler with its environments and policies.
//!
//! ```
//! use rollmesh_core::{
//!     batch::REWARDS,
//!     worker::{Registry, RolloutConfig, RolloutWorker, WorkerPlace},
//! };
//!
//! let config = RolloutConfig::new("MountainCar-v0").num_envs(2).single_policy("random").seed(3);
//! let mut worker = RolloutWorker::from_config(config, &Registry::builtin(), WorkerPlace::LOCAL)?;
//! let batch = worker.sample()?.as_multi_agent();
//! assert_eq!(batch.env_steps(), 2 * 200);
//! assert!(batch.single()?.get(REWARDS)?.iter().all(|reward| *reward == -1.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agent_lanes;
mod builder;
mod command;
mod data_parallel;
mod error;
mod fingerprint;
mod functions;
mod inference;
mod io;
mod lane_set;
mod lockstep;
mod place;
mod registry;
mod rollout;
mod runner;
mod session;

pub use crate::env::Unknown;
pub use crate::run::{
    BadAmount, FragmentLength, InputSource, PolicyConfig, RolloutConfig, WorkerSpec, rollout as config,
};
pub use builder::{
    AsyncSampling, Clock, HostFacts, LearningParts, MovedEnvs, MovedSampler, NeedsEpisodic, NewPolicy, PolicyClass,
    RemoteEnvSpec, RemoteEnvs, RolloutWorkerBuilder, SamplerChoice, Shell, ValidateEnv,
};
pub(crate) use command::unguarded;
pub use command::{
    CalledWorker, CommandError, CommandErrorKind, Guard, PolicyRoles, TrainedPolicies, WorkerAnswer, WorkerCommand,
    WorkerSetup,
};
pub use data_parallel::{DataParallelConfig, DataParallelError, JoinRequest, JoiningPolicy};
pub use error::{RolloutError, SetupError};
pub use fingerprint::{core_fingerprint, device_fingerprint, rollout_hash};
pub use functions::{EnvFn, NamedFn, PolicyFn, PolicyMappingFactory};
pub use inference::{InferenceServer, forward_by};
pub use place::WorkerPlace;
pub use registry::{
    BaseEnvFactory, CallbacksFactory, FileInputFactory, FileOutputFactory, InitFn, InputFactory, OutputFactory,
    QModelContext, QModelFactory, RegisteredEnv, Registry, WorkerFn,
};
pub use rollout::{
    OffPolicyEstimate, PoliciesToTrain, Retries, RolloutWorker, SampleFault, Samples, SgdOptions, TrainInfo,
    WorkerMetrics, WorkerStateError, WorkerWarning,
};
use runner::NetworkLens;
pub use runner::{Advance, RunnerError, ShowEnv, SlotRunner};
pub use session::{HostSettings, SessionCounters, WorkerSession};
