//! Where an evaluation worker's environments and policy come from.

use core::fmt;

use crate::{
    callbacks::{CallbackError, CallbackList, WorkerInfo},
    env::{BaseEnv, EnvError, EnvSpaces},
    evaluation::{EvalWorkerError, EvaluationError, Evaluator, EvaluatorOptions},
    policy::{Policy, PolicyError},
    prelude::*,
};

type InitFn = Arc<dyn Fn() -> Result<(), CallbackError> + Send + Sync>;
type MakeEnv = Arc<dyn Fn() -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync>;
type MakeCallbacks = Arc<dyn Fn() -> Result<(CallbackList, WorkerInfo), CallbackError> + Send + Sync>;
type MakeEvaluator =
    Arc<dyn Fn(Box<dyn BaseEnv>, &EvaluatorOptions) -> Result<Evaluator, EvalWorkerError> + Send + Sync>;

/// What an evaluation worker is made of. Everything is asked for again when the worker has to be replaced.
#[derive(Clone)]
pub struct EvalMakers {
    init: InitFn,
    env: MakeEnv,
    evaluator: MakeEvaluator,
    callbacks: MakeCallbacks,
    options: EvaluatorOptions,
}

impl EvalMakers {
    /// Environments, and a policy for what [`Evaluator::policy_spaces`] says of them.
    #[must_use]
    pub fn new(
        env: impl Fn() -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync + 'static,
        policy: impl Fn(&EnvSpaces) -> Result<Box<dyn Policy>, PolicyError> + Send + Sync + 'static,
    ) -> Self {
        Self::of(env, move |env, options| {
            let in_env = |error: EvaluationError| EvalWorkerError::setup("environment", error);
            let spaces = Evaluator::policy_spaces(env.as_ref(), options).map_err(in_env)?;
            let policy = policy(&spaces).map_err(|error| EvalWorkerError::setup("policy", error))?;
            Evaluator::new(env, policy, options.clone()).map_err(in_env)
        })
    }

    /// Environments, and what evaluates policies in them.
    pub(super) fn of(
        env: impl Fn() -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync + 'static,
        evaluator: impl Fn(Box<dyn BaseEnv>, &EvaluatorOptions) -> Result<Evaluator, EvalWorkerError>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self {
            init: Arc::new(|| Ok(())),
            env: Arc::new(env),
            evaluator: Arc::new(evaluator),
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

    /// Makes environments, policy and callbacks, in this order.
    ///
    /// # Errors
    /// [`EvalWorkerError::Setup`], which names what failed.
    pub fn evaluator(&self) -> Result<Evaluator, EvalWorkerError> {
        let env = (self.env)().map_err(|error| EvalWorkerError::setup("environment", error))?;
        let evaluator = (self.evaluator)(env, &self.options)?;
        let (callbacks, info) = (self.callbacks)().map_err(|error| EvalWorkerError::setup("callbacks", error))?;
        Ok(evaluator.with_callbacks(callbacks, info))
    }
}

impl fmt::Debug for EvalMakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EvalMakers").field("options", &self.options).finish_non_exhaustive()
    }
}
