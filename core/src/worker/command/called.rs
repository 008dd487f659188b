//! A worker that is set up and asked by calls.

use super::{CommandError, CommandErrorKind, WorkerAnswer, WorkerCommand, WorkerSetup};
use crate::{
    prelude::*,
    time::Micros,
    worker::{RolloutWorker, RolloutWorkerBuilder},
};

/// Where a [`RolloutWorker`] is made when a call says so, and asked by those that follow: in a session, or on a thread.
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

/// Runs something that may panic, and gives the words of the panic, if it does: what the core cannot do by itself.
pub type Guard = fn(&mut dyn FnMut()) -> Result<(), String>;

/// Nobody catches panics.
pub(crate) fn unguarded(work: &mut dyn FnMut()) -> Result<(), String> {
    work();
    Ok(())
}

impl CalledWorker {
    /// How long a sample is made at a time where others want to hear that it gets on.
    pub const SAMPLE_SPAN: Micros = Micros::from_millis(20);

    /// Without a worker yet. `builder` gives what knows the names of the program, and its shell, host and clock, if there
    /// are any.
    pub fn new(builder: impl FnMut() -> RolloutWorkerBuilder + 'static) -> Self {
        Self { builder: Box::new(builder), worker: None, guard: unguarded }
    }

    /// What workers are made of.
    pub(in crate::worker) fn builder(&mut self) -> RolloutWorkerBuilder {
        (self.builder)()
    }

    /// Sets a guard, so that user code that panics has failed: [`CommandErrorKind::Panicked`].
    pub fn set_guard(&mut self, guard: Guard) {
        self.guard = guard;
    }

    /// Makes the worker; one that is there already is stopped, and this one takes its place.
    ///
    /// # Errors
    /// What is wrong with the settings. There is no worker then.
    #[doc(alias = "reset")]
    pub fn set_up(&mut self, setup: &WorkerSetup) -> Result<WorkerAnswer, CommandError> {
        self.stop();
        let Self { builder, worker, guard } = self;
        guarded(*guard, || {
            *worker = Some(builder().config(setup.config.clone()).place(setup.place).build()?);
            Ok(WorkerAnswer::Done)
        })
    }

    /// Does what is asked.
    ///
    /// # Errors
    /// [`CommandErrorKind::NotSetUp`], and what the worker says.
    pub fn execute(&mut self, command: WorkerCommand) -> Result<WorkerAnswer, CommandError> {
        match &mut self.worker {
            Some(worker) => {
                let mut command = Some(command);
                guarded(self.guard, || worker.execute(command.take().unwrap_or(WorkerCommand::Ping)))
            }
            // Whoever is there can say so, and there is nothing to be stopped.
            None if command == WorkerCommand::Ping => Ok(WorkerAnswer::Pong),
            None if command == WorkerCommand::Stop => Ok(WorkerAnswer::Done),
            None => Err(CommandError::new(
                CommandErrorKind::NotSetUp,
                "no worker is set up here, or it could not be: send its settings first",
            )),
        }
    }

    /// A sample, as the command gives one, if it can be made within a span on the worker's clock. With none, the next call
    /// goes on with it; see [`RolloutWorker::sample_within`].
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    pub fn sample_within(&mut self, span: Micros) -> Result<Option<WorkerAnswer>, CommandError> {
        match &mut self.worker {
            Some(worker) => guarded(self.guard, || Ok(worker.sample_within(span)?.map(WorkerAnswer::Sample))),
            None => self.execute(WorkerCommand::Sample).map(Some),
        }
    }

    /// The worker, if one is set up.
    pub fn worker_mut(&mut self) -> Option<&mut RolloutWorker> {
        self.worker.as_mut()
    }

    /// Stops the worker, and forgets it.
    pub fn stop(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            // It is forgotten in any case.
            let _ = guarded::<_, CommandError>(self.guard, || Ok(worker.stop()?));
        }
    }
}

/// The words of a panic.
pub(in crate::worker) struct PanicWords(pub(in crate::worker) String);

impl From<PanicWords> for CommandError {
    fn from(PanicWords(words): PanicWords) -> Self {
        Self::new(CommandErrorKind::Panicked, words)
    }
}

/// What panics has failed.
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
