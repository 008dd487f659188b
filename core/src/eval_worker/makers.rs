//! Where an evaluation worker's environments and policy come from.

use core::fmt;

use super::EvalWorkerError;
use crate::{
    callbacks::{CallbackError, CallbackList, WorkerInfo},
    env::{BaseEnv, EnvError, EnvSpaces},
    evaluation::{EvalPolicies, Evaluator, EvaluatorOptions},
    policy::{Policy, PolicyError},
    prelude::*,
};

type InitFn = Arc<dyn Fn() -> Result<(), CallbackError> + Send + Sync>;
type MakeEnv = Arc<dyn Fn() -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync>;
type MakeCallbacks = Arc<dyn Fn() -> Result<(CallbackList, WorkerInfo), CallbackError> + Send + Sync>;
type MakePolicies = Arc<dyn Fn(&dyn BaseEnv, &EvaluatorOptions) -> Result<EvalPolicies, EvalWorkerError> + Send + Sync>;

/// What an evaluation worker is made of. Everything is asked for again when the worker has to be replaced.
#[derive(Clone)]
pub struct EvalMakers {
    init: InitFn,
    env: MakeEnv,
    policies: MakePolicies,
    callbacks: MakeCallbacks,
    options: EvaluatorOptions,
}

impl EvalMakers {
    /// Environments, and one policy for all agents, made for what [`Evaluator::policy_spaces`] says of them.
    #[must_use]
    pub fn new(
        env: impl Fn() -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync + 'static,
        policy: impl Fn(&EnvSpaces) -> Result<Box<dyn Policy>, PolicyError> + Send + Sync + 'static,
    ) -> Self {
        Self::of_policies(env, move |env, options| {
            let setup = |error| EvalWorkerError::setup("environment", error);
            let spaces = Evaluator::common_spaces(env).map_err(setup)?;
            let acting = Evaluator::policy_spaces(env, options).map_err(setup)?;
            let policy = policy(&acting).map_err(|error| EvalWorkerError::setup("policy", error))?;
            Ok(EvalPolicies::single(spaces, policy))
        })
    }

    /// Environments, and the policies that act in them.
    #[must_use]
    pub fn of_policies(
        env: impl Fn() -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync + 'static,
        policies: impl Fn(&dyn BaseEnv, &EvaluatorOptions) -> Result<EvalPolicies, EvalWorkerError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            init: Arc::new(|| Ok(())),
            env: Arc::new(env),
            policies: Arc::new(policies),
            callbacks: Arc::new(|| Ok(Default::default())),
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

    /// Calls hooks when an evaluation begins and ends; they are told of this worker.
    #[must_use]
    pub fn with_callbacks(
        mut self,
        callbacks: impl Fn() -> Result<(CallbackList, WorkerInfo), CallbackError> + Send + Sync + 'static,
    ) -> Self {
        self.callbacks = Arc::new(callbacks);
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

    /// Runs what comes first.
    ///
    /// # Errors
    /// [`EvalWorkerError::Setup`].
    pub fn init(&self) -> Result<(), EvalWorkerError> {
        (self.init)().map_err(|error| EvalWorkerError::setup("init function", error))
    }

    /// Makes environments, policies and callbacks, in this order.
    ///
    /// # Errors
    /// [`EvalWorkerError::Setup`], which names what failed.
    pub fn evaluator(&self) -> Result<Evaluator, EvalWorkerError> {
        let env = (self.env)().map_err(|error| EvalWorkerError::setup("environment", error))?;
        let policies = (self.policies)(env.as_ref(), &self.options)?;
        let (callbacks, info) = (self.callbacks)().map_err(|error| EvalWorkerError::setup("callbacks", error))?;
        let evaluator = Evaluator::of_policies(env, policies, self.options.clone());
        Ok(evaluator.map_err(|error| EvalWorkerError::setup("policy", error))?.with_callbacks(callbacks, info))
    }
}

impl fmt::Debug for EvalMakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EvalMakers").field("options", &self.options).finish_non_exhaustive()
    }
}
