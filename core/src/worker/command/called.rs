//! A worker that is set up and driven by calls.

use super::{CommandError, CommandErrorKind, WorkerAnswer, WorkerCommand, WorkerSetup};
use crate::{
    prelude::*,
    time::Micros,
    worker::{RolloutWorker, RolloutWorkerBuilder},
};

/// Holds a [`RolloutWorker`] that a call sets up and later calls use: in a session, or on a thread.
///
/// ```
/// use rollmesh_core::worker::{
///     CalledWorker, Registry, RolloutConfig, RolloutWorkerBuilder, WorkerAnswer, WorkerCommand, WorkerPlace, WorkerSetup,
/// };
///
/// let mut called = CalledWorker::new(|| RolloutWorkerBuilder::new(Registry::builtin()));
/// let config = RolloutConfig::new("CartPole-v1").rollout_fragment_length(50);
/// called.set_up(&WorkerSetup { config, place: WorkerPlace::remote(1, 2) })?;
/// match called.execute(WorkerCommand::Sample)? {
///     WorkerAnswer::Sample(batch) => assert_eq!(batch.env_steps(), 50),
///     other => panic!("{other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CalledWorker {
    builder: Box<dyn FnMut() -> RolloutWorkerBuilder>,
    worker: Option<RolloutWorker>,
    guard: Guard,
}

/// Runs a closure that may panic, and returns the panic's message if it does, which the core cannot do itself.
pub type Guard = fn(&mut dyn FnMut()) -> Result<(), String>;

/// Runs `work` without catching panics.
pub(crate) fn unguarded(work: &mut dyn FnMut()) -> Result<(), String> {
    work();
    Ok(())
}

impl CalledWorker {
    /// Time span in which a sample is made before its progress is reported.
    pub const SAMPLE_SPAN: Micros = Micros::from_millis(20);

    /// Creates the holder without a worker. `builder` returns builders with the names of the program, and its shell, host
    /// and clock, if there are any.
    pub fn new(builder: impl FnMut() -> RolloutWorkerBuilder + 'static) -> Self {
        Self { builder: Box::new(builder), worker: None, guard: unguarded }
    }

    /// Returns a new builder.
    pub(in crate::worker) fn builder(&mut self) -> RolloutWorkerBuilder {
        (self.builder)()
    }

    /// Sets a guard that turns panics of user code into [`CommandErrorKind::Panicked`].
    pub fn set_guard(&mut self, guard: Guard) {
        self.guard = guard;
    }

    /// Creates the worker, after stopping an existing one, which it replaces.
    ///
    /// # Errors
    /// Returns what is wrong with the settings. There is no worker then.
    #[doc(alias = "reset")]
    pub fn set_up(&mut self, setup: &WorkerSetup) -> Result<WorkerAnswer, CommandError> {
        self.stop();
        let Self { builder, worker, guard } = self;
        guarded(*guard, || {
            *worker = Some(builder().config(setup.config.clone()).place(setup.place).build()?);
            Ok(WorkerAnswer::Done)
        })
    }

    /// Executes a command.
    ///
    /// # Errors
    /// [`CommandErrorKind::NotSetUp`], and the worker's errors.
    pub fn execute(&mut self, command: WorkerCommand) -> Result<WorkerAnswer, CommandError> {
        match &mut self.worker {
            Some(worker) => {
                let mut command = Some(command);
                guarded(self.guard, || worker.execute(command.take().unwrap_or(WorkerCommand::Ping)))
            }
            // A ping is answered without a worker, too, and there is nothing to stop.
            None if command == WorkerCommand::Ping => Ok(WorkerAnswer::Pong),
            None if command == WorkerCommand::Stop => Ok(WorkerAnswer::Done),
            None => Err(CommandError::new(
                CommandErrorKind::NotSetUp,
                "no worker is set up here, or it could not be: send its settings first",
            )),
        }
    }

    /// Returns a sample, as the command does, if it can be completed within a span on the worker's clock. If it returns
    /// `None`, the next call continues the sample; see [`RolloutWorker::sample_within`].
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn sample_within(&mut self, span: Micros) -> Result<Option<WorkerAnswer>, CommandError> {
        match &mut self.worker {
            Some(worker) => guarded(self.guard, || Ok(worker.sample_within(span)?.map(WorkerAnswer::Sample))),
            None => self.execute(WorkerCommand::Sample).map(Some),
        }
    }

    /// Returns the worker, if one is set up.
    pub fn worker_mut(&mut self) -> Option<&mut RolloutWorker> {
        self.worker.as_mut()
    }

    /// Stops the worker and drops it.
    pub fn stop(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            // It is dropped even if stopping fails.
            let _ = guarded::<_, CommandError>(self.guard, || Ok(worker.stop()?));
        }
    }
}

/// The message of a panic.
pub(in crate::worker) struct PanicWords(pub(in crate::worker) String);

impl From<PanicWords> for CommandError {
    fn from(PanicWords(words): PanicWords) -> Self {
        Self::new(CommandErrorKind::Panicked, words)
    }
}

/// Runs a closure under a guard: a panic becomes an error.
pub(in crate::worker) fn guarded<T, E: From<PanicWords>>(
    guard: Guard,
    mut work: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let mut result = None;
    guard(&mut || result = Some(work())).map_err(PanicWords)?;
    result.unwrap_or_else(|| Err(PanicWords("it was not done".into()).into()))
}

impl core::fmt::Debug for CalledWorker {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CalledWorker").field("worker", &self.worker).finish_non_exhaustive()
    }
}
