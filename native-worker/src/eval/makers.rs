//! Where an evaluation worker's environments and policy come from: closures, or names that travel.

use std::{fmt, sync::Arc};

use rollmesh_core::{
    callbacks::CallbackError,
    config::Config,
    env::{BaseEnv, EnvContext, EnvError, EnvMaker, EnvSpaces, EnvStart, InProcess},
    evaluation::{Evaluator, EvaluatorOptions},
    ids::SlotId,
    policy::{Policy, PolicyContext, PolicyError},
    run::HomeIndex,
    worker::{RegisteredEnv, Registry, WorkerPlace},
};
use serde::{Deserialize, Serialize};

use super::EvalWorkerError;
use crate::{checkpoint::PolicyCheckpoint, kernels, launch::WorkerSpec};

type InitFn = Arc<dyn Fn() -> Result<(), CallbackError> + Send + Sync>;
type MakeEnv = Arc<dyn Fn() -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync>;
type MakePolicy = Arc<dyn Fn(&EnvSpaces) -> Result<Box<dyn Policy>, PolicyError> + Send + Sync>;

/// What an evaluation worker in a thread is made of. Everything is asked for again when the worker has to be replaced.
#[derive(Clone)]
pub struct EvalMakers {
    init: InitFn,
    env: MakeEnv,
    policy: MakePolicy,
    options: EvaluatorOptions,
}

impl EvalMakers {
    /// Environments, and a policy for what [`Evaluator::policy_spaces`] says of them.
    #[must_use]
    pub fn new(
        env: impl Fn() -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync + 'static,
        policy: impl Fn(&EnvSpaces) -> Result<Box<dyn Policy>, PolicyError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            init: Arc::new(|| Ok(())),
            env: Arc::new(env),
            policy: Arc::new(policy),
            options: EvaluatorOptions::default(),
        }
    }

    /// Runs something first, before there are environments and a policy.
    #[must_use]
    #[doc(alias = "init_fn")]
    pub fn with_init(mut self, init: impl Fn() -> Result<(), CallbackError> + Send + Sync + 'static) -> Self {
        self.init = Arc::new(init);
        self
    }

    /// Sets how it plays.
    #[must_use]
    pub fn with_options(mut self, options: EvaluatorOptions) -> Self {
        self.options = options;
        self
    }

    /// How it plays.
    #[must_use]
    pub fn options(&self) -> &EvaluatorOptions {
        &self.options
    }

    pub(super) fn init(&self) -> Result<(), EvalWorkerError> {
        (self.init)().map_err(|error| EvalWorkerError::setup("init function", error))
    }

    pub(super) fn evaluator(&self) -> Result<Evaluator, EvalWorkerError> {
        let env = (self.env)().map_err(|error| EvalWorkerError::setup("environment", error))?;
        let spaces = Evaluator::policy_spaces(env.as_ref(), &self.options)
            .map_err(|error| EvalWorkerError::setup("environment", error))?;
        let policy = (self.policy)(&spaces).map_err(|error| EvalWorkerError::setup("policy", error))?;
        Evaluator::new(env, policy, self.options.clone()).map_err(|error| EvalWorkerError::setup("policy", error))
    }
}

impl fmt::Debug for EvalMakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EvalMakers").field("options", &self.options).finish_non_exhaustive()
    }
}

/// A registered function that runs first in an evaluation worker's process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitSpec {
    /// Its name, see [`Registry::with_init_fn`].
    pub name: String,
    /// What it is told.
    #[serde(default)]
    pub arguments: Config,
}

/// What an evaluation worker in a process of its own is made of: names of what the program has registered, and settings.
///
/// ```
/// use rollmesh::eval::EvalSpec;
///
/// let spec = EvalSpec { num_envs: 4, seed: 7, ..EvalSpec::new("CartPole-v1") };
/// assert_eq!(serde_json::from_str::<EvalSpec>(&serde_json::to_string(&spec)?)?, spec);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvalSpec {
    /// What runs first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init: Option<InitSpec>,
    /// Registered name of the environment.
    pub env: String,
    /// Its settings.
    pub env_config: Config,
    /// Sub-environments.
    pub num_envs: u32,
    /// Seed of the evaluation's episodes and drawn actions; those of training with the same seed are others.
    pub seed: u64,
    /// Registered kind of the policy.
    pub policy: String,
    /// Its settings.
    pub policy_config: Config,
    /// Failed sub-environments are made again, and their episodes counted as faulty.
    pub restart_failed_sub_environments: bool,
    /// How it plays. Without a limit of its own, the registered one of the environment counts.
    pub options: EvaluatorOptions,
    /// What its process needs of the machine, and is held to.
    #[doc(alias = "num_gpus")]
    #[serde(skip_serializing_if = "WorkerSpec::is_default")]
    pub worker: WorkerSpec,
    /// Runs with a lower priority than other programs.
    pub is_nice: bool,
    /// The longest time without any progress, also while it begins.
    pub timeout_ms: u64,
}

impl Default for EvalSpec {
    fn default() -> Self {
        Self {
            init: None,
            env: String::new(),
            env_config: Config::new(),
            num_envs: 1,
            seed: 0,
            policy: "net".into(),
            policy_config: Config::new(),
            restart_failed_sub_environments: false,
            options: EvaluatorOptions::default(),
            worker: WorkerSpec::default(),
            is_nice: false,
            timeout_ms: 60_000,
        }
    }
}

impl EvalSpec {
    /// The most sub-environments.
    pub const MAX_ENVS: u32 = 4096;

    /// One environment, and a net with the usual settings.
    #[must_use]
    pub fn new(env: impl Into<String>) -> Self {
        Self { env: env.into(), ..Self::default() }
    }

    /// The environment and the model of a policy in a checkpoint. Its weights are given with each evaluation.
    #[must_use]
    pub fn of_checkpoint(checkpoint: &PolicyCheckpoint) -> Self {
        let spec = &checkpoint.spec;
        let model = serde_json::json!({ "model": checkpoint.model });
        // A model's settings are an object, and so is this.
        let policy_config = Config::of(&model).unwrap_or_default();
        Self { env_config: spec.env_config.clone(), seed: spec.seed, policy_config, ..Self::new(spec.env.clone()) }
    }

    /// What these names mean to a program.
    ///
    /// # Errors
    /// [`EvalWorkerError::Setup`] for a name that nobody has registered.
    pub fn makers(&self, registry: &Registry) -> Result<EvalMakers, EvalWorkerError> {
        let unknown = |part, error: &dyn fmt::Display| EvalWorkerError::setup(part, error);
        if self.num_envs == 0 || self.num_envs > Self::MAX_ENVS {
            let reason = format!("num_envs must be between 1 and {}, not {}", Self::MAX_ENVS, self.num_envs);
            return Err(EvalWorkerError::setup("environment", reason));
        }
        let mut options = self.options.clone();
        let limit = match registry.env(&self.env).map_err(|error| unknown("environment", &error))? {
            RegisteredEnv::SingleAgent(spec) => spec.max_episode_steps,
            RegisteredEnv::MultiAgent(spec) => spec.max_episode_steps,
            RegisteredEnv::Base(_) => None,
        };
        options.max_episode_steps = options.max_episode_steps.or(limit);
        let policy = registry.policies.spec(&self.policy).map_err(|error| unknown("policy", &error))?.clone();
        let seed = WorkerPlace { in_evaluation: true, ..WorkerPlace::LOCAL }.seed(self.seed);
        let (spec, known) = (self.clone(), registry.clone());
        let policy_config = self.policy_config.clone();
        let makers = EvalMakers::new(
            move || spec.make_env(&known, seed),
            move |spaces| {
                let context = PolicyContext::new(spaces.clone(), seed, kernels::AUTO);
                policy.make(&context.with_config(policy_config.clone()))
            },
        );
        let makers = makers.with_options(options);
        let Some(init) = &self.init else { return Ok(makers) };
        let run = registry.init_fn(&init.name).map_err(|error| unknown("init function", &error))?.clone();
        let arguments = init.arguments.clone();
        Ok(makers.with_init(move || run(&arguments)))
    }

    fn make_env(&self, registry: &Registry, seed: u64) -> Result<Box<dyn BaseEnv>, EnvError> {
        let context = |index| {
            let home = HomeIndex { worker_index: 0, vector_index: index };
            EnvContext::new(home).with_config(self.env_config.clone())
        };
        let contexts: Vec<EnvContext> = (0..self.num_envs).map(context).collect();
        let env = registry.env(&self.env).map_err(|error| EnvError::Failed(error.to_string()))?;
        let maker = match env {
            RegisteredEnv::SingleAgent(spec) => EnvMaker::single_agent(spec, kernels::AUTO),
            RegisteredEnv::MultiAgent(spec) => EnvMaker::multi_agent(spec),
            RegisteredEnv::Base(factory) => return factory(&contexts, kernels::AUTO),
        };
        let start = |(index, context)| EnvStart { slot: SlotId(index), episode: 0, context };
        let starts = (0..).zip(contexts).map(start).collect();
        Ok(Box::new(InProcess::new(maker, starts, seed)?.restart_failed(self.restart_failed_sub_environments)))
    }
}
