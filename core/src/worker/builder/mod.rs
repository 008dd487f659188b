//! Set-up of a worker: by registered names, by closures and objects, or by both.

mod assign;
mod capability;
mod check;
mod deepmind;
mod envs;
mod input;
mod lease;
mod make;
mod policies;
mod remote;
mod sampler;
mod set;
mod shell;
#[cfg(test)]
mod tests;
mod workshop;

pub use crate::env::ValidateEnv;
pub use capability::NeedsEpisodic;
pub use policies::{NewPolicy, PolicyClass};
pub use remote::RemoteEnvSpec;
pub use shell::{AsyncSampling, HostFacts, MovedEnvs, MovedSampler, RemoteEnvs, Shell};

pub(super) use input::Opened;
pub use lease::LearningParts;
pub(super) use lease::{LeaseHost, LeaseParts};
pub(super) use workshop::{Recipe, Workshop};

use super::{RegisteredEnv, Registry, RolloutConfig, SetupError, WorkerPlace, rollout::PoliciesToTrain};
use crate::{
    callbacks::{Callbacks, ObservationFn, PolicyMappingFn},
    env::StepMark,
    estimate::QModel,
    ids::PolicyId,
    kernels::Kernels,
    policy::ForwardFactory,
    prelude::*,
    sampler::{InputReader, IoContext, OutputWriter, SampleError},
    time::Micros,
};

/// The current time on the caller's clock.
pub type Clock = Arc<dyn Fn() -> Micros + Send + Sync>;

type InputCreator = Box<dyn FnOnce(&mut IoContext) -> Result<Box<dyn InputReader>, SampleError> + Send>;
type OutputCreator = Box<dyn FnOnce(&mut IoContext) -> Result<Box<dyn OutputWriter>, SampleError> + Send>;

/// The sampler of a worker's batches. Both samplers make the same batches from what both can sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SamplerChoice {
    /// The lockstep sampler if it can sample this, else the episodic one.
    #[default]
    Auto,
    /// All environments step together: single agents in fragments of equal length. Anything else is
    /// [`SetupError::NeedsEpisodic`].
    Lockstep,
    /// Every episode is built separately: samples everything.
    Episodic,
}

/// Sets up a [`RolloutWorker`](super::RolloutWorker). Arguments that are passed here take precedence over the
/// configuration.
///
/// ```
/// use rollmesh_core::{
///     config::Config,
///     env::EnvSpec,
///     ids::PolicyId,
///     policy::RandomPolicy,
///     worker::{NewPolicy, Registry, RolloutConfig, RolloutWorker},
/// };
///
/// let lake = Registry::builtin().envs.spec("FrozenLake-v1")?;
/// let mut worker = RolloutWorker::builder()
///     .config(RolloutConfig { num_envs: 2, ..RolloutConfig::default() }.rollout_fragment_length(50))
///     .env_spec(lake)
///     .validate_env(|_env, context| {
///         assert!(context.home.vector_index < 2);
///         Ok(())
///     })
///     .policy(PolicyId::DEFAULT, NewPolicy::object(Box::new(RandomPolicy::new(4, 1))))
///     .build()?;
/// assert_eq!(worker.sample()?.env_steps(), 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub struct RolloutWorkerBuilder {
    config: RolloutConfig,
    registry: Registry,
    place: WorkerPlace,
    kernels: Kernels,
    clock: Clock,
    mark: StepMark,
    env: Option<RegisteredEnv>,
    validate_env: Option<ValidateEnv>,
    policies: BTreeMap<PolicyId, NewPolicy>,
    policy_mapping_fn: Option<PolicyMappingFn>,
    policies_to_train: Option<PoliciesToTrain>,
    observation_fn: Option<ObservationFn>,
    callbacks: Vec<Box<dyn Callbacks>>,
    input: Option<InputCreator>,
    output: Option<OutputCreator>,
    q_model: Option<Box<dyn QModel>>,
    sampler: SamplerChoice,
    shell: Option<Box<dyn Shell>>,
    host: Option<Box<dyn HostFacts>>,
    /// Lets policies act by a worker that acts for others, in runs with such workers.
    inference: Option<ForwardFactory>,
}

impl RolloutWorkerBuilder {
    /// Creates a builder with the names of a registry.
    pub fn new(registry: Registry) -> Self {
        Self {
            config: RolloutConfig::default(),
            registry,
            place: WorkerPlace::LOCAL,
            kernels: Kernels::PORTABLE,
            clock: Arc::new(|| Micros(0)),
            mark: StepMark::default(),
            env: None,
            validate_env: None,
            policies: BTreeMap::new(),
            policy_mapping_fn: None,
            policies_to_train: None,
            observation_fn: None,
            callbacks: Vec::new(),
            input: None,
            output: None,
            q_model: None,
            sampler: SamplerChoice::Auto,
            shell: None,
            host: None,
            inference: None,
        }
    }
}

impl core::fmt::Debug for RolloutWorkerBuilder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RolloutWorkerBuilder")
            .field("config", &self.config)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}

/// Returns an error for settings that this program cannot apply.
fn conflict(what: &'static str) -> SetupError {
    SetupError::Conflict(what)
}
