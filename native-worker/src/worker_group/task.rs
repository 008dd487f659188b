//! What workers can be asked: commands and names, which travel, and closures, which stay in this process.

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

/// Something that a worker can be asked, and what it answers to that.
pub trait WorkerTask {
    /// What one worker answers.
    type Answer;
    /// What is sent.
    fn into_request(self) -> Request;
    /// Reads what came back; none if it is something else.
    fn read(answer: TaskAnswer) -> Option<Self::Answer>;
}

/// Something that can be asked of each sub-environment of a worker.
pub trait EnvTask {
    /// What one environment answers.
    type Answer;
    /// What is asked of the worker.
    fn for_each_env(self) -> impl WorkerTask<Answer = Vec<Self::Answer>>;
}

/// Something that can be asked of each policy of a worker.
pub trait PolicyTask {
    /// What one policy answers.
    type Answer;
    /// What is asked of the worker, of those policies that are trained alone, or of all.
    fn for_each_policy(self, to_train: bool) -> impl WorkerTask<Answer = Vec<Self::Answer>>;
}

/// A request on its way to a worker.
#[derive(Debug)]
pub struct Request(pub(super) Kind);

pub(super) type Code = Box<dyn Fn(WorkerId, &mut RolloutWorker) -> Box<dyn Any + Send> + Send + Sync>;

pub(super) enum Kind {
    Setup(WorkerSetup),
    /// A command, and its bytes once anybody needed them: they are the same for all workers.
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

    /// Whether it can be done in this process only.
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

/// What a worker has answered to a [`WorkerTask`].
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
    /// The answer to a command; none for that of a closure.
    #[must_use]
    pub fn answer(self) -> Option<WorkerAnswer> {
        match self {
            Self::Answer(answer) => Some(answer),
            Self::Value(_) => None,
        }
    }

    /// What a closure has returned; none for anything else, and for another type.
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

/// A function that is registered by name, asked of each environment or policy.
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

/// A closure for workers of this process: see [`in_process`], [`in_env`], [`in_policy`].
#[derive(Clone, Debug)]
pub struct InProcess<F>(F);

/// A closure for each sub-environment.
#[derive(Clone, Debug)]
pub struct InEnv<F>(F);

/// A closure for each policy.
#[derive(Clone, Debug)]
pub struct InPolicy<F>(F);

/// Calls a closure with a worker of this process: the local one, or one on a thread.
pub fn in_process<R: Send + 'static>(
    f: impl Fn(&mut RolloutWorker) -> R + Send + Sync + 'static,
) -> InProcess<impl Fn(WorkerId, &mut RolloutWorker) -> R + Send + Sync + 'static> {
    InProcess(move |_: WorkerId, worker: &mut RolloutWorker| f(worker))
}

/// Calls a closure with a worker of this process and its id.
pub fn in_process_with_id<R: Send + 'static>(
    f: impl Fn(WorkerId, &mut RolloutWorker) -> R + Send + Sync + 'static,
) -> InProcess<impl Fn(WorkerId, &mut RolloutWorker) -> R + Send + Sync + 'static> {
    InProcess(f)
}

/// Calls a closure with each sub-environment of workers of this process, and what the environment was told of its place.
pub fn in_env<R: Send + 'static>(
    f: impl Fn(SubEnv<'_>, &EnvContext) -> R + Send + Sync + 'static,
) -> InEnv<impl Fn(SubEnv<'_>, &EnvContext) -> R + Send + Sync + 'static> {
    InEnv(f)
}

/// Calls a closure with each policy of workers of this process.
pub fn in_policy<R: Send + 'static>(
    f: impl Fn(&PolicyId, &mut dyn Policy) -> R + Send + Sync + 'static,
) -> InPolicy<impl Fn(&PolicyId, &mut dyn Policy) -> R + Send + Sync + 'static> {
    InPolicy(f)
}

impl<R: Send + 'static, F: Fn(WorkerId, &mut RolloutWorker) -> R + Send + Sync + 'static> WorkerTask for InProcess<F> {
    type Answer = R;

    fn into_request(self) -> Request {
        Request(Kind::Code(Box::new(move |id, worker| Box::new((self.0)(id, worker)))))
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

/// Why a closure was not called.
struct NotCalled(CommandError);

/// What the closure of a policy has returned, unless the policy could not be brought back.
struct OfPolicies<F>(F);

impl<R: Send + 'static, F> WorkerTask for OfPolicies<F>
where
    F: Fn(&mut RolloutWorker) -> Result<Vec<R>, CommandError> + Send + Sync + 'static,
{
    type Answer = Vec<R>;

    fn into_request(self) -> Request {
        Request(Kind::Code(Box::new(move |_, worker| match (self.0)(worker) {
            Ok(answers) => Box::new(answers),
            Err(error) => Box::new(NotCalled(error)),
        })))
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

/// Does what is asked of a worker of this process. What panics has failed.
pub(super) fn run(id: WorkerId, worker: &mut RolloutWorker, request: &Request) -> Result<TaskAnswer, CommandError> {
    match &request.0 {
        // Whoever makes workers has done it before.
        Kind::Setup(_) => Ok(TaskAnswer::Answer(WorkerAnswer::Done)),
        Kind::Command(command, _) => worker.execute(command.clone()).map(TaskAnswer::Answer),
        Kind::Code(code) => {
            let value = code(id, worker);
            // A closure that could not be called says so instead of its answer.
            match value.downcast::<NotCalled>() {
                Ok(error) => Err(error.0),
                Err(value) => Ok(TaskAnswer::Value(value)),
            }
        }
    }
}

/// Shares a request among those of whom it is asked.
pub(super) fn shared(task: impl WorkerTask) -> Arc<Request> {
    Arc::new(task.into_request())
}
