//! External environments, which are not stepped: a game or a simulator drives episodes on its own threads and asks for
//! actions.
//!
//! [`ExternalEnv`] is for one agent, [`ExternalMultiAgentEnv`] for several. Drivers have clones of the handle, a worker has
//! the sampler's side from [`creator`](ExternalEnv::creator). Actions are computed while the worker samples; until then
//! drivers wait. The rows equal those of an in-process environment with the same course.
//!
//! | driver | sampler |
//! |---|---|
//! | asks for an action: waits until the worker samples, at most [300 s](ExternalMultiAgentEnv::ACTION_TIMEOUT) | `sample()` waits until drivers have provided enough turns |
//! | logs its own actions: up to 64 turns ahead | takes one turn of each lane at a time |
//! | its thread ends, or the last handle is dropped | samples the turns logged before, then `sample()` fails with the reason |
//! | [stops](ExternalEnv::stop) the environment | `sample()` fails immediately with [`EnvError::Stopped`](rollmesh_core::env::EnvError::Stopped) |
//! | gets an error that the environment was stopped | the worker is stopped or dropped |
//! | | a worker with `sample_async` whose environments are accessed, or whose state is set, waits for the batch in progress, and so for drivers |
//! | gets an error that its episode is lost | sampling failed, for example in a policy; the next `sample()` starts new episodes |
//!
//! ```
//! use rollmesh::external::{ExternalEnv, ExternalEnvError};
//! use rollmesh_core::{
//!     column::{DType, RowShape},
//!     env::EnvSpaces,
//!     space::Space,
//!     worker::{Registry, RolloutConfig, RolloutWorker, WorkerPlace},
//! };
//!
//! let spaces = EnvSpaces {
//!     observation: Space::uniform(DType::F32, RowShape::vector(1), 0.0, 1.0),
//!     observation_type: DType::F32,
//!     action: Space::Discrete { n: 2 },
//!     action_type: DType::I64,
//! };
//! let env = ExternalEnv::new(1, spaces)?;
//!
//! // The game has its own loop, here on a thread that ends with the environment.
//! env.run(|env| -> Result<(), ExternalEnvError> {
//!     loop {
//!         let episode = env.start_episode(true)?;
//!         let mut place = 0.5_f32;
//!         while (0.0..1.0).contains(&place) {
//!             let action: Vec<i64> = env.action(episode, &[place])?;
//!             place += if action == [1] { 0.125 } else { -0.125 };
//!             env.log_returns(episode, -1.0, None)?;
//!         }
//!         env.end_episode(episode, &[place])?;
//!     }
//! })?;
//!
//! // The worker samples as from any environment, and learns.
//! let registry = rollmesh::native(Registry::builtin().with_base_env("game", env.creator()));
//! let config = RolloutConfig::new("game").rollout_fragment_length(100).single_policy("ppo").fcnet_hiddens(&[8]);
//! let mut worker = RolloutWorker::from_config(config, &registry, WorkerPlace::default())?;
//! for _ in 0..2 {
//!     let batch = worker.sample()?;
//!     assert_eq!(batch.env_steps(), 100);
//!     worker.learn_on_batch(&batch)?;
//! }
//! worker.stop()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod agents;
mod base_env;
mod connection;
mod error;
mod multi_agent;
mod shared;
mod single;
mod wait;

pub use agents::{ExternalSettingsError, agents_of, episode_timeout};
pub use error::ExternalEnvError;
pub use multi_agent::ExternalMultiAgentEnv;
pub use single::ExternalEnv;
