//! Everything that a program registers by name: all code that a configuration or a message can refer to. Only names are
//! sent.

use super::{EnvFn, PolicyFn, PolicyMappingFactory, RolloutWorker};
use crate::{
    callbacks::{CallbackError, Callbacks, EpisodeHook, ObservationFn, PolicyMappingFn, WorkerInfo},
    config::Config,
    env::{
        BaseEnv, EnvContext, EnvError, EnvMaker, EnvRegistry, EnvSpec, MultiAgentSpec, Unknown, multi_agent::AgentRows,
    },
    episode::Episode,
    estimate::{EstimateError, QModel},
    ids::{AgentId, PolicyId},
    kernels::Kernels,
    policy::{PolicyRegistry, PolicySpec},
    prelude::*,
    rng::Rng,
    sampler::{InputReader, IoContext, NoopOutput, OutputWriter, SampleError},
};

/// Makes an environment of the user's own shape, with one sub-environment per context.
pub type BaseEnvFactory = Arc<dyn Fn(&[EnvContext], Kernels) -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync>;

/// Makes callbacks for a worker; the settings are those that all its policies share.
pub type CallbacksFactory = Arc<dyn Fn(&Config) -> Result<Box<dyn Callbacks>, CallbackError> + Send + Sync>;

/// A function of a worker, in the worker's process; arguments and result are settings, so that they can be serialised.
pub type WorkerFn = Arc<dyn Fn(&mut RolloutWorker, &Config) -> Result<Config, CallbackError> + Send + Sync>;

/// Runs first in a process that is about to evaluate, before anything else is set up.
pub type InitFn = Arc<dyn Fn(&Config) -> Result<(), CallbackError> + Send + Sync>;

/// Opens an input.
#[doc(alias = "input_creator")]
pub type InputFactory = Arc<dyn Fn(&mut IoContext) -> Result<Box<dyn InputReader>, SampleError> + Send + Sync>;

/// Opens an output.
#[doc(alias = "output_creator")]
pub type OutputFactory = Arc<dyn Fn(&mut IoContext) -> Result<Box<dyn OutputWriter>, SampleError> + Send + Sync>;

/// Opens files to read from: paths, directories and patterns.
pub type FileInputFactory =
    Arc<dyn Fn(&[String], &mut IoContext) -> Result<Box<dyn InputReader>, SampleError> + Send + Sync>;

/// Opens a directory to write to.
pub type FileOutputFactory =
    Arc<dyn Fn(&str, &mut IoContext) -> Result<Box<dyn OutputWriter>, SampleError> + Send + Sync>;

/// Context in which a Q-model is made.
#[derive(Clone, Debug, PartialEq)]
pub struct QModelContext {
    /// Elements of an observation.
    pub obs_len: usize,
    /// Number of actions.
    pub num_actions: usize,
    /// Discount factor.
    pub gamma: f64,
    /// Seed of its first weights and everything else that is random.
    pub seed: u64,
    /// Its settings.
    pub config: Config,
}

/// Makes a Q-model, for the input evaluations `dm` and `dr`.
#[doc(alias = "q_model_config")]
pub type QModelFactory = Arc<dyn Fn(&QModelContext) -> Result<Box<dyn QModel>, EstimateError> + Send + Sync>;

/// An environment of any kind, as it is registered.
#[derive(Clone)]
pub enum RegisteredEnv {
    /// With a single agent each.
    SingleAgent(EnvSpec),
    /// Several agents in each.
    MultiAgent(MultiAgentSpec),
    /// Of the user's own shape.
    Base(BaseEnvFactory),
}

impl RegisteredEnv {
    /// Returns the environments' own time limit in steps.
    #[must_use]
    pub fn max_episode_steps(&self) -> Option<u32> {
        match self {
            Self::SingleAgent(spec) => spec.max_episode_steps,
            Self::MultiAgent(spec) => spec.max_episode_steps,
            Self::Base(_) => None,
        }
    }

    pub(super) fn is_single_agent(&self) -> bool {
        matches!(self, Self::SingleAgent(_))
    }

    /// Returns what makes sub-environments one at a time.
    ///
    /// # Errors
    /// The factory of an environment of the user's own shape, which makes all of them together.
    pub(super) fn maker(&self, kernels: Kernels) -> Result<EnvMaker, &BaseEnvFactory> {
        match self {
            Self::SingleAgent(spec) => Ok(EnvMaker::single_agent(spec, kernels)),
            Self::MultiAgent(spec) => Ok(EnvMaker::multi_agent(spec)),
            Self::Base(factory) => Err(factory),
        }
    }
}

/// Everything that the command line, a configuration or a message can name. Registering a name again replaces the previous
/// entry.
///
/// ```
/// use rollmesh_core::{config::Config, ids::PolicyId, worker::Registry};
///
/// let registry = Registry::builtin()
///     .with_policy_mapping_fn("left_and_right", |agent, _episode, _worker, _rng| {
///         PolicyId::new(if agent.starts_with("left") { "left" } else { "right" })
///     })
///     .with_worker_fn("count", |worker, arguments| {
///         let factor = arguments.get::<usize>("factor")?.unwrap_or(1);
///         Ok(Config::new().with("envs", factor * worker.num_envs())?)
///     });
/// assert!(registry.worker_fn("count").is_ok());
/// let error = registry.policy_mapping_fn("left").err().map(|error| error.to_string());
/// let expected = "there is no policy mapping function 'left'; known are: agent_id, default, left_and_right, traffic";
/// assert_eq!(error.as_deref(), Some(expected));
/// ```
#[derive(Clone)]
pub struct Registry {
    /// Environments with one agent or several.
    pub envs: EnvRegistry,
    /// Kinds of policies.
    pub policies: PolicyRegistry,
    base_envs: BTreeMap<String, BaseEnvFactory>,
    callbacks: BTreeMap<String, CallbacksFactory>,
    policy_mapping_fns: BTreeMap<String, PolicyMappingFn>,
    observation_fns: BTreeMap<String, ObservationFn>,
    pub(super) policy_mapping_factories: BTreeMap<String, PolicyMappingFactory>,
    worker_fns: BTreeMap<String, WorkerFn>,
    pub(super) env_fns: BTreeMap<String, EnvFn>,
    pub(super) policy_fns: BTreeMap<String, PolicyFn>,
    init_fns: BTreeMap<String, InitFn>,
    inputs: BTreeMap<String, InputFactory>,
    outputs: BTreeMap<String, OutputFactory>,
    /// Opens inputs that are no registered names, if the program has files.
    pub file_input: Option<FileInputFactory>,
    /// Opens outputs that are no registered names, if the program has files.
    pub file_output: Option<FileOutputFactory>,
    /// Makes Q-models for the input evaluations `dm` and `dr`, if the program has them.
    pub q_model: Option<QModelFactory>,
}

impl Registry {
    /// Name of the mapping function that maps every agent to the default policy.
    pub const DEFAULT_MAPPING: &'static str = "default";

    /// Creates an empty registry.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            envs: EnvRegistry::default(),
            policies: PolicyRegistry::default(),
            base_envs: BTreeMap::new(),
            callbacks: BTreeMap::new(),
            policy_mapping_fns: BTreeMap::new(),
            observation_fns: BTreeMap::new(),
            policy_mapping_factories: BTreeMap::new(),
            worker_fns: BTreeMap::new(),
            env_fns: BTreeMap::new(),
            policy_fns: BTreeMap::new(),
            init_fns: BTreeMap::new(),
            inputs: BTreeMap::new(),
            outputs: BTreeMap::new(),
            file_input: None,
            file_output: None,
            q_model: None,
        }
    }

    /// Creates a registry with everything of this crate: its environments; the mapping functions `default` (one policy for
    /// all), `agent_id` (maps each agent to the policy of its name) and `traffic` (for the traffic grid: each car uses
    /// `car_policy1` or `car_policy2` at random, and all others are lights under `traffic_light_policy`); the input
    /// `sampler`, a worker's own environments; and the output `noop`.
    #[must_use]
    pub fn builtin() -> Self {
        let sampler = |context: &mut IoContext| {
            let missing = "the worker has no environments to sample from: name one as `env`";
            context.default_sampler_input().ok_or_else(|| SampleError::Input(missing.into()))
        };
        Self { envs: EnvRegistry::builtin(), policies: PolicyRegistry::builtin(), ..Self::empty() }
            .with_policy_mapping_fn(Self::DEFAULT_MAPPING, |_, _, _, _| PolicyId::DEFAULT)
            .with_policy_mapping_fn("agent_id", |agent, _, _, _| PolicyId::new(agent.to_string()))
            .with_policy_mapping_fn("traffic", |agent, _, _, rng| {
                PolicyId::new(match (agent.starts_with("car_"), rng.below(2)) {
                    (true, 0) => "car_policy1",
                    (true, _) => "car_policy2",
                    (false, _) => "traffic_light_policy",
                })
            })
            .with_input("sampler", sampler)
            .with_output("noop", |_| Ok(Box::new(NoopOutput)))
    }

    /// Registers an environment with one agent.
    #[must_use]
    pub fn with_env(mut self, spec: EnvSpec) -> Self {
        self.envs.register(spec);
        self
    }

    /// Registers an environment with several agents.
    #[must_use]
    pub fn with_multi_agent_env(mut self, spec: MultiAgentSpec) -> Self {
        self.envs.register_multi_agent(spec);
        self
    }

    /// Registers a class of policies.
    #[must_use]
    pub fn with_policy(mut self, spec: PolicySpec) -> Self {
        self.policies.register(spec);
        self
    }

    /// Registers an environment that implements [`BaseEnv`] itself, for example one that runs in another process.
    #[must_use]
    pub fn with_base_env(
        mut self,
        name: impl Into<String>,
        make: impl Fn(&[EnvContext], Kernels) -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync + 'static,
    ) -> Self {
        self.base_envs.insert(name.into(), Arc::new(make));
        self
    }

    /// Registers a factory of callbacks.
    #[must_use]
    pub fn with_callbacks(
        mut self,
        name: impl Into<String>,
        make: impl Fn(&Config) -> Result<Box<dyn Callbacks>, CallbackError> + Send + Sync + 'static,
    ) -> Self {
        self.callbacks.insert(name.into(), Arc::new(make));
        self
    }

    /// Registers a mapping function.
    #[must_use]
    pub fn with_policy_mapping_fn(
        mut self,
        name: impl Into<String>,
        map: impl Fn(&AgentId, &Episode, &WorkerInfo, &mut Rng) -> PolicyId + Send + Sync + 'static,
    ) -> Self {
        self.policy_mapping_fns.insert(name.into(), Arc::new(map));
        self
    }

    /// Registers a function that rewrites observations before anything else uses them.
    #[must_use]
    pub fn with_observation_fn(
        mut self,
        name: impl Into<String>,
        rewrite: impl Fn(&mut AgentRows, &mut EpisodeHook<'_>) -> Result<(), CallbackError> + Send + Sync + 'static,
    ) -> Self {
        self.observation_fns.insert(name.into(), Arc::new(rewrite));
        self
    }

    /// Registers a function of workers.
    #[must_use]
    pub fn with_worker_fn(
        mut self,
        name: impl Into<String>,
        apply: impl Fn(&mut RolloutWorker, &Config) -> Result<Config, CallbackError> + Send + Sync + 'static,
    ) -> Self {
        self.worker_fns.insert(name.into(), Arc::new(apply));
        self
    }

    /// Registers a function that runs first in the process of an evaluation.
    #[must_use]
    pub fn with_init_fn(
        mut self,
        name: impl Into<String>,
        init: impl Fn(&Config) -> Result<(), CallbackError> + Send + Sync + 'static,
    ) -> Self {
        self.init_fns.insert(name.into(), Arc::new(init));
        self
    }

    /// Registers an input.
    #[must_use]
    pub fn with_input(
        mut self,
        name: impl Into<String>,
        open: impl Fn(&mut IoContext) -> Result<Box<dyn InputReader>, SampleError> + Send + Sync + 'static,
    ) -> Self {
        self.inputs.insert(name.into(), Arc::new(open));
        self
    }

    /// Registers an output.
    #[must_use]
    pub fn with_output(
        mut self,
        name: impl Into<String>,
        open: impl Fn(&mut IoContext) -> Result<Box<dyn OutputWriter>, SampleError> + Send + Sync + 'static,
    ) -> Self {
        self.outputs.insert(name.into(), Arc::new(open));
        self
    }

    /// Returns an environment of any kind. If kinds share a name, the user's own shape takes precedence over several agents,
    /// and these over one.
    ///
    /// # Errors
    /// [`Unknown`], which lists the registered names.
    pub fn env(&self, name: &str) -> Result<RegisteredEnv, Unknown> {
        if let Some(factory) = self.base_envs.get(name) {
            return Ok(RegisteredEnv::Base(factory.clone()));
        }
        if let Some(spec) = self.envs.multi_agent(name) {
            return Ok(RegisteredEnv::MultiAgent(spec));
        }
        self.envs.spec(name).map(RegisteredEnv::SingleAgent).map_err(|_| {
            let single = self.envs.iter().map(|spec| spec.name.as_str());
            let multi = self.envs.iter_multi_agent().map(|spec| spec.name.as_str());
            let known: BTreeSet<&str> = single.chain(multi).chain(self.base_envs()).collect_ordered();
            Unknown::new("environment", name, known)
        })
    }

    /// Returns the names of the environments of the user's own shape, sorted.
    pub fn base_envs(&self) -> impl ExactSizeIterator<Item = &str> {
        self.base_envs.keys().map(String::as_str)
    }

    /// Returns a factory of callbacks.
    ///
    /// # Errors
    /// As all below: [`Unknown`], which lists the registered names.
    pub fn callbacks(&self, name: &str) -> Result<&CallbacksFactory, Unknown> {
        Unknown::find(&self.callbacks, "callback", name)
    }

    /// Returns a mapping function.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn policy_mapping_fn(&self, name: &str) -> Result<&PolicyMappingFn, Unknown> {
        self.policy_mapping_fns.get(name).ok_or_else(|| {
            let known = self.policy_mapping_fns.keys().chain(self.policy_mapping_factories.keys());
            let known: BTreeSet<&str> = known.map(String::as_str).collect_ordered();
            Unknown::new("policy mapping function", name, known)
        })
    }

    /// Returns a function that rewrites observations.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn observation_fn(&self, name: &str) -> Result<&ObservationFn, Unknown> {
        Unknown::find(&self.observation_fns, "observation function", name)
    }

    /// Returns a function of workers.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn worker_fn(&self, name: &str) -> Result<&WorkerFn, Unknown> {
        Unknown::find(&self.worker_fns, "worker function", name)
    }

    /// Returns a function that runs first in the process of an evaluation.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn init_fn(&self, name: &str) -> Result<&InitFn, Unknown> {
        Unknown::find(&self.init_fns, "init function", name)
    }

    /// Returns an input.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn input(&self, name: &str) -> Result<&InputFactory, Unknown> {
        Unknown::find(&self.inputs, "input", name)
    }

    /// Returns an output.
    ///
    /// # Errors
    /// [`Unknown`].
    pub fn output(&self, name: &str) -> Result<&OutputFactory, Unknown> {
        Unknown::find(&self.outputs, "output", name)
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::builtin()
    }
}

impl core::fmt::Debug for Registry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Registry").field("envs", &self.envs).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::SlotId,
        rng::{Purpose, Streams},
    };

    #[test]
    fn cars_drive_under_two_policies_and_lights_under_one() {
        let registry = Registry::builtin();
        let map = registry.policy_mapping_fn("traffic").unwrap();
        let streams = Streams::new(3, Purpose::Mapping);
        let (episode, worker) = (Episode::new(0, SlotId(0), 0), WorkerInfo::default());
        let mut counts = BTreeMap::<PolicyId, u32>::new();
        for agent in 0..100 {
            let car = AgentId::name(&format!("car_{agent}"));
            *counts.entry(map(&car, &episode, &worker, &mut streams.at(SlotId(0), 0, 0, agent))).or_default() += 1;
        }
        assert_eq!(counts.len(), 2);
        assert!(counts.values().all(|count| (30..=70).contains(count)), "{counts:?}");
        let light = map(&AgentId::name("light_0"), &episode, &worker, &mut streams.at(SlotId(0), 0, 0, 100));
        assert_eq!(light, PolicyId::new("traffic_light_policy"));
    }

    #[test]
    fn whatever_is_unknown_is_named_with_what_there_is() {
        let registry = Registry::empty().with_base_env("Radio-v0", |_, _| Err(EnvError::Failed("silence".into())));
        let error = registry.env("Pong").err().map(|error| error.to_string());
        assert_eq!(error.as_deref(), Some("there is no environment 'Pong'; known are: Radio-v0"));
        let error = registry.env("ALE/Pong-v5").err().map(|error| error.to_string());
        let expected =
            "there is no environment 'ALE/Pong-v5'; Gymnasium's would be gym:ALE/Pong-v5; known are: Radio-v0";
        assert_eq!(error.as_deref(), Some(expected));
        let error = registry.env("radio-v1").err().map(|error| error.to_string());
        let expected = "there is no environment 'radio-v1'; did you mean Radio-v0? known are: Radio-v0";
        assert_eq!(error.as_deref(), Some(expected));
        assert!(matches!(registry.env("Radio-v0"), Ok(RegisteredEnv::Base(_))));
        let error = registry.input(&"x".repeat(1000)).err().unwrap();
        assert_eq!((error.kind, error.name.len(), error.known.as_str()), ("input", 64, "none"));
    }

    #[test]
    fn sampling_needs_environments() {
        let registry = Registry::builtin();
        let mut context = IoContext::new(WorkerInfo::default(), Config::new(), None);
        assert!(matches!(registry.input("sampler").unwrap()(&mut context), Err(SampleError::Input(_))));
        assert!(registry.output("noop").unwrap()(&mut context).unwrap().close().is_ok());
    }
}
