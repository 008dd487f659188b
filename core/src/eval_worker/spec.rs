//! What an evaluation worker is made of, in names and settings that travel.

use core::fmt::Display;

use serde::{Deserialize, Serialize};

use super::{EvalMakers, EvalWorkerError};
use crate::{
    config::Config,
    env::{BaseEnv, EnvContext, EnvError, EnvMaker, EnvStart, InProcess},
    evaluation::EvaluatorOptions,
    ids::SlotId,
    kernels::Kernels,
    policy::PolicyContext,
    prelude::*,
    rng::{Purpose, Streams},
    run::HomeIndex,
    worker::{RegisteredEnv, Registry, WorkerSpec},
};

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

/// What an evaluation worker in a process or tab of its own is made of: names of what the program has registered, and
/// settings.
///
/// ```
/// use rollmesh_core::eval_worker::EvalSpec;
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
    /// Seed of the evaluation's episodes and drawn actions; those of training are others, whatever its seed.
    pub seed: u64,
    /// Registered kind of the policy.
    pub policy: String,
    /// Its settings.
    pub policy_config: Config,
    /// Settings of DeepMind's wrappers, in which an environment with a single agent runs if it is a game, as a worker's would;
    /// none if it runs as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deepmind: Option<Config>,
    /// Failed sub-environments are made again, and their episodes counted as faulty.
    pub restart_failed_sub_environments: bool,
    /// How it plays. Without a limit of its own, the registered one of the environment counts.
    pub options: EvaluatorOptions,
    /// Environment variables of its process.
    #[doc(alias = "runtime_env")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environs: BTreeMap<String, String>,
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
            deepmind: None,
            restart_failed_sub_environments: false,
            options: EvaluatorOptions::default(),
            environs: BTreeMap::new(),
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

    /// What these names mean to a program that computes with these kernels.
    ///
    /// # Errors
    /// [`EvalWorkerError::Setup`] for a name that nobody has registered.
    pub fn makers(&self, registry: &Registry, kernels: Kernels) -> Result<EvalMakers, EvalWorkerError> {
        let unknown = |part, error: &dyn Display| EvalWorkerError::setup(part, error);
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
        let mut draws = Streams::new(self.seed, Purpose::Evaluation).at(SlotId(0), 0, 0, 0);
        let seed = (u64::from(draws.next_u32()) << 32) | u64::from(draws.next_u32());
        let (spec, known) = (self.clone(), registry.clone());
        let policy_config = self.policy_config.clone();
        let makers = EvalMakers::new(
            move || spec.make_env(&known, kernels, seed),
            move |spaces| {
                let context = PolicyContext::new(spaces.clone(), seed, kernels);
                policy.make(&context.with_config(policy_config.clone()))
            },
        );
        let makers = makers.with_options(options);
        let Some(init) = &self.init else { return Ok(makers) };
        let run = registry.init_fn(&init.name).map_err(|error| unknown("init function", &error))?.clone();
        let arguments = init.arguments.clone();
        Ok(makers.with_init(move || run(&arguments)))
    }

    fn make_env(&self, registry: &Registry, kernels: Kernels, seed: u64) -> Result<Box<dyn BaseEnv>, EnvError> {
        let context = |index| {
            let home = HomeIndex { worker_index: 0, vector_index: index };
            EnvContext::new(home).with_config(self.env_config.clone())
        };
        let contexts: Vec<EnvContext> = (0..self.num_envs).map(context).collect();
        let env = registry.env(&self.env).map_err(|error| EnvError::Failed(error.to_string()))?;
        let maker = match env {
            RegisteredEnv::SingleAgent(spec) => match (&self.deepmind, contexts.first()) {
                (Some(model), Some(context)) => EnvMaker::single_agent(&spec.preprocessed(context, model)?, kernels),
                _ => EnvMaker::single_agent(spec, kernels),
            },
            RegisteredEnv::MultiAgent(spec) => EnvMaker::multi_agent(spec),
            RegisteredEnv::Base(factory) => return factory(&contexts, kernels),
        };
        let start = |(index, context)| EnvStart { slot: SlotId(index), episode: 0, context };
        let starts = (0..).zip(contexts).map(start).collect();
        Ok(Box::new(InProcess::new(maker, starts, seed)?.restart_failed(self.restart_failed_sub_environments)))
    }
}
