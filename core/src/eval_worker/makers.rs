//! Factories of an evaluation worker's environments and policy.

use core::fmt;

use super::engine::guarded;
use crate::{
    callbacks::{CallbackError, CallbackList, WorkerInfo},
    env::{BaseEnv, EnvError, EnvSpaces},
    evaluation::{EvalWorkerError, EvaluationError, Evaluator, EvaluatorOptions},
    policy::{Policy, PolicyError},
    prelude::*,
    worker::{Guard, unguarded},
};

type BoundInitFn = Arc<dyn Fn() -> Result<(), CallbackError> + Send + Sync>;
type MakeCallbacks = Arc<dyn Fn() -> Result<(CallbackList, WorkerInfo), CallbackError> + Send + Sync>;
type MakeEvaluator = Arc<dyn Fn(&EvaluatorOptions) -> Result<Evaluator, EvalWorkerError> + Send + Sync>;

/// The factories of an evaluation worker. All are called again when the worker is replaced.
#[derive(Clone)]
pub struct EvalMakers {
    init: BoundInitFn,
    evaluator: MakeEvaluator,
    callbacks: MakeCallbacks,
    options: EvaluatorOptions,
    guard: Guard,
}

impl EvalMakers {
    /// Creates factories of environments, and of a policy for their [`Evaluator::policy_spaces`].
    #[must_use]
    pub fn new(
        env: impl Fn() -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync + 'static,
        policy: impl Fn(&EnvSpaces) -> Result<Box<dyn Policy>, PolicyError> + Send + Sync + 'static,
    ) -> Self {
        Self::of(move |options| {
            let in_env = |error: EvaluationError| EvalWorkerError::setup("environment", error);
            let env = env().map_err(|error| in_env(error.into()))?;
            let spaces = Evaluator::policy_spaces(env.as_ref(), options).map_err(in_env)?;
            let policy = policy(&spaces).map_err(|error| EvalWorkerError::setup("policy", error))?;
            Evaluator::new(env, policy, options.clone()).map_err(in_env)
        })
    }

    /// Creates a factory of environments with the evaluator of policies in them.
    pub(super) fn of(
        evaluator: impl Fn(&EvaluatorOptions) -> Result<Evaluator, EvalWorkerError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            init: Arc::new(|| Ok(())),
            evaluator: Arc::new(evaluator),
            callbacks: Arc::new(|| Ok(Default::default())),
            options: EvaluatorOptions::default(),
            guard: unguarded,
        }
    }

    /// Sets a guard that catches panics of user code, which the core cannot do itself.
    #[must_use]
    pub fn with_guard(self, guard: Guard) -> Self {
        Self { guard, ..self }
    }

    pub(super) fn guard(&self) -> Guard {
        self.guard
    }

    /// Sets a function that runs first, before there are environments and a policy.
    #[must_use]
    #[doc(alias = "init_fn")]
    pub fn with_init(mut self, init: impl Fn() -> Result<(), CallbackError> + Send + Sync + 'static) -> Self {
        self.init = Arc::new(init);
        self
    }

    /// Sets callbacks that are called when an evaluation begins and ends; they see this worker's information.
    #[must_use]
    pub fn with_callbacks(
        mut self,
        callbacks: impl Fn() -> Result<(CallbackList, WorkerInfo), CallbackError> + Send + Sync + 'static,
    ) -> Self {
        self.callbacks = Arc::new(callbacks);
        self
    }

    /// Sets the evaluator's options.
    #[must_use]
    pub fn with_options(mut self, options: EvaluatorOptions) -> Self {
        self.options = options;
        self
    }

    /// Returns the evaluator's options.
    #[must_use]
    pub fn options(&self) -> &EvaluatorOptions {
        &self.options
    }

    /// Runs the init function.
    ///
    /// # Errors
    /// [`EvalWorkerError::Setup`].
    pub fn init(&self) -> Result<(), EvalWorkerError> {
        guarded(self.guard, "init function", || {
            (self.init)().map_err(|error| EvalWorkerError::setup("init function", error))
        })
    }

    /// Creates environments, policy and callbacks, in this order.
    ///
    /// # Errors
    /// [`EvalWorkerError::Setup`], which names what failed.
    pub fn evaluator(&self) -> Result<Evaluator, EvalWorkerError> {
        let evaluator = (self.evaluator)(&self.options)?;
        let (callbacks, info) = (self.callbacks)().map_err(|error| EvalWorkerError::setup("callbacks", error))?;
        Ok(evaluator.with_callbacks(callbacks, info))
    }
}

impl fmt::Debug for EvalMakers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EvalMakers").field("options", &self.options).finish_non_exhaustive()
    }
}
