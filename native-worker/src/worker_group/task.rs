//! Tasks for workers: commands and names, which can be sent to other processes, and closures, which cannot.

use std::{
    any::Any,
    fmt,
    sync::{Arc, OnceLock},
};

use rollmesh_core::{
    calls::CallRequest,
    config::Config,
    env::{EnvContext, SubEnv},
    ids::{PolicyId, WorkerId},
    policy::Policy,
    worker::{CommandError, NamedFn, RolloutWorker, WorkerAnswer, WorkerCommand, WorkerSetup},
};

/// A task for a worker, and the type of its answer.
pub trait WorkerTask {
    /// One worker's answer.
    type Answer;
    /// Converts the task to the request that is sent.
    fn into_request(self) -> Request;
    /// Reads the answer; `None` if it has another type.
    fn read(answer: TaskAnswer) -> Option<Self::Answer>;
}

/// A task for each sub-environment of a worker.
pub trait EnvTask {
    /// One environment's answer.
    type Answer;
    /// Converts it to a task for the worker.
    fn for_each_env(self) -> impl WorkerTask<Answer = Vec<Self::Answer>>;
}

/// A task for each policy of a worker.
pub trait PolicyTask {
    /// One policy's answer.
    type Answer;
    /// Converts it to a task for the worker, for the policies that are trained only, or for all.
    fn for_each_policy(self, to_train: bool) -> impl WorkerTask<Answer = Vec<Self::Answer>>;
}

/// A request to a worker.
#[derive(Debug)]
pub struct Request(pub(super) Kind);

pub(super) type Code =
    Box<dyn Fn(WorkerId, &mut RolloutWorker) -> Result<Box<dyn Any + Send>, CommandError> + Send + Sync>;

pub(super) enum Kind {
    Setup(WorkerSetup),
    /// A command, and its encoding once needed, which is the same for all workers.
    Command(WorkerCommand, OnceLock<Result<Vec<u8>, CommandError>>),
    Code(Code),
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setup(setup) => f.debug_tuple("Setup").field(&setup.place).finish(),
            Self::Command(command, _) => f.debug_tuple("Command").field(command).finish(),
            Self::Code(_) => f.write_str("Code"),
        }
    }
}

impl Request {
    pub(super) fn setup(setup: WorkerSetup) -> Self {
        Self(Kind::Setup(setup))
    }

    /// Returns whether it can be executed in this process only.
    pub(super) fn is_code(&self) -> bool {
        matches!(self.0, Kind::Code(_))
    }
}

impl From<WorkerCommand> for Request {
    fn from(command: WorkerCommand) -> Self {
        Self(Kind::Command(command, OnceLock::new()))
    }
}

impl CallRequest for Request {
    fn is_sample(&self) -> bool {
        matches!(&self.0, Kind::Command(command, _) if command.is_sample())
    }

    fn reports_progress(&self) -> bool {
        matches!(&self.0, Kind::Command(command, _) if command.reports_progress())
    }
}

/// A worker's answer to a [`WorkerTask`].
pub enum TaskAnswer {
    /// To a command.
    Answer(WorkerAnswer),
    /// To a closure.
    Value(Box<dyn Any + Send>),
}

impl fmt::Debug for TaskAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer(answer) => f.debug_tuple("Answer").field(answer).finish(),
            Self::Value(_) => f.write_str("Value"),
        }
    }
}

impl TaskAnswer {
    /// Returns the answer to a command; `None` for that of a closure.
    #[must_use]
    pub fn answer(self) -> Option<WorkerAnswer> {
        match self {
            Self::Answer(answer) => Some(answer),
            Self::Value(_) => None,
        }
    }

    /// Returns the value that a closure has returned; `None` for other answers and other types.
    #[must_use]
    pub fn value<R: 'static>(self) -> Option<R> {
        match self {
            Self::Answer(_) => None,
            Self::Value(value) => value.downcast().ok().map(|value| *value),
        }
    }
}

impl WorkerTask for WorkerCommand {
    type Answer = WorkerAnswer;

    fn into_request(self) -> Request {
        self.into()
    }

    fn read(answer: TaskAnswer) -> Option<WorkerAnswer> {
        answer.answer()
    }
}

/// Calls a [worker function](rollmesh_core::worker::Registry::with_worker_fn).
impl WorkerTask for NamedFn {
    type Answer = Config;

    fn into_request(self) -> Request {
        WorkerCommand::Apply(self).into()
    }

    fn read(answer: TaskAnswer) -> Option<Config> {
        match answer {
            TaskAnswer::Answer(WorkerAnswer::Value(value)) => Some(value),
            _ => None,
        }
    }
}

/// A registered function that is called with each environment or policy.
struct Named(WorkerCommand);

impl WorkerTask for Named {
    type Answer = Vec<Config>;

    fn into_request(self) -> Request {
        self.0.into()
    }

    fn read(answer: TaskAnswer) -> Option<Vec<Config>> {
        match answer {
            TaskAnswer::Answer(WorkerAnswer::Values(values)) => Some(values),
            _ => None,
        }
    }
}

/// Calls an [environment function](rollmesh_core::worker::Registry::with_env_fn).
impl EnvTask for NamedFn {
    type Answer = Config;

    fn for_each_env(self) -> impl WorkerTask<Answer = Vec<Config>> {
        Named(WorkerCommand::ForEachEnv(self))
    }
}

/// Calls a [policy function](rollmesh_core::worker::Registry::with_policy_fn).
impl PolicyTask for NamedFn {
    type Answer = Config;

    fn for_each_policy(self, to_train: bool) -> impl WorkerTask<Answer = Vec<Config>> {
        let command = if to_train { WorkerCommand::ForEachPolicyToTrain } else { WorkerCommand::ForEachPolicy };
        Named(command(self))
    }
}

/// A closure for workers in this process: see [`in_process`], [`in_env`], [`in_policy`].
#[derive(Clone, Debug)]
pub struct InProcess<F>(F);

/// A closure that is called with each sub-environment.
#[derive(Clone, Debug)]
pub struct InEnv<F>(F);

/// A closure that is called with each policy.
#[derive(Clone, Debug)]
pub struct InPolicy<F>(F);

/// Makes a task that calls a closure with a worker in this process: the local one, or one on a thread.
pub fn in_process<R: Send + 'static>(
    f: impl Fn(&mut RolloutWorker) -> R + Send + Sync + 'static,
) -> InProcess<impl Fn(WorkerId, &mut RolloutWorker) -> R + Send + Sync + 'static> {
    InProcess(move |_: WorkerId, worker: &mut RolloutWorker| f(worker))
}

/// Makes a task that calls a closure with a worker in this process and its id.
pub fn in_process_with_id<R: Send + 'static>(
    f: impl Fn(WorkerId, &mut RolloutWorker) -> R + Send + Sync + 'static,
) -> InProcess<impl Fn(WorkerId, &mut RolloutWorker) -> R + Send + Sync + 'static> {
    InProcess(f)
}

/// Makes a task that calls a closure with each sub-environment of workers in this process, and its context.
pub fn in_env<R: Send + 'static>(
    f: impl Fn(SubEnv<'_>, &EnvContext) -> R + Send + Sync + 'static,
) -> InEnv<impl Fn(SubEnv<'_>, &EnvContext) -> R + Send + Sync + 'static> {
    InEnv(f)
}

/// Makes a task that calls a closure with each policy of workers in this process.
pub fn in_policy<R: Send + 'static>(
    f: impl Fn(&PolicyId, &mut dyn Policy) -> R + Send + Sync + 'static,
) -> InPolicy<impl Fn(&PolicyId, &mut dyn Policy) -> R + Send + Sync + 'static> {
    InPolicy(f)
}

impl<R: Send + 'static, F: Fn(WorkerId, &mut RolloutWorker) -> R + Send + Sync + 'static> WorkerTask for InProcess<F> {
    type Answer = R;

    fn into_request(self) -> Request {
        Request(Kind::Code(Box::new(move |id, worker| Ok(Box::new((self.0)(id, worker))))))
    }

    fn read(answer: TaskAnswer) -> Option<R> {
        answer.value()
    }
}

impl<R: Send + 'static, F: Fn(SubEnv<'_>, &EnvContext) -> R + Send + Sync + 'static> EnvTask for InEnv<F> {
    type Answer = R;

    fn for_each_env(self) -> impl WorkerTask<Answer = Vec<R>> {
        in_process(move |worker| worker.foreach_env_with_context(|env, context| (self.0)(env, context)))
    }
}

/// Wraps a closure over policies; fails if a stashed policy cannot be restored.
struct OfPolicies<F>(F);

impl<R: Send + 'static, F> WorkerTask for OfPolicies<F>
where
    F: Fn(&mut RolloutWorker) -> Result<Vec<R>, CommandError> + Send + Sync + 'static,
{
    type Answer = Vec<R>;

    fn into_request(self) -> Request {
        Request(Kind::Code(Box::new(move |_, worker| Ok(Box::new((self.0)(worker)?)))))
    }

    fn read(answer: TaskAnswer) -> Option<Vec<R>> {
        answer.value()
    }
}

impl<R: Send + 'static, F: Fn(&PolicyId, &mut dyn Policy) -> R + Send + Sync + 'static> PolicyTask for InPolicy<F> {
    type Answer = R;

    fn for_each_policy(self, to_train: bool) -> impl WorkerTask<Answer = Vec<R>> {
        OfPolicies(move |worker: &mut RolloutWorker| {
            let ask = |id: &PolicyId, policy: &mut dyn Policy| (self.0)(id, policy);
            let answers = if to_train { worker.foreach_policy_to_train(ask) } else { worker.foreach_policy(ask) };
            answers.map_err(CommandError::from)
        })
    }
}

/// Executes a request on a worker in this process. A panic becomes an error.
pub(super) fn run(id: WorkerId, worker: &mut RolloutWorker, request: &Request) -> Result<TaskAnswer, CommandError> {
    match &request.0 {
        // The code that creates workers has done the setup already.
        Kind::Setup(_) => Ok(TaskAnswer::Answer(WorkerAnswer::Done)),
        Kind::Command(command, _) => worker.execute(command.clone()).map(TaskAnswer::Answer),
        Kind::Code(code) => code(id, worker).map(TaskAnswer::Value),
    }
}

/// Makes a request that can be shared among workers.
pub(super) fn shared(task: impl WorkerTask) -> Arc<Request> {
    Arc::new(task.into_request())
}
