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
}

impl CalledWorker {
    /// Without a worker yet. `builder` gives what knows the names of the program, and its shell, host and clock, if there
    /// are any.
    pub fn new(builder: impl FnMut() -> RolloutWorkerBuilder + 'static) -> Self {
        Self { builder: Box::new(builder), worker: None }
    }

    /// Makes the worker; one that is there already is stopped, and this one takes its place.
    ///
    /// # Errors
    /// What is wrong with the settings. There is no worker then.
    #[doc(alias = "reset")]
    pub fn set_up(&mut self, setup: &WorkerSetup) -> Result<WorkerAnswer, CommandError> {
        self.stop();
        let builder = (self.builder)().config(setup.config.clone()).place(setup.place);
        self.worker = Some(builder.build()?);
        Ok(WorkerAnswer::Done)
    }

    /// Does what is asked.
    ///
    /// # Errors
    /// [`CommandErrorKind::NotSetUp`], and what the worker says.
    pub fn execute(&mut self, command: WorkerCommand) -> Result<WorkerAnswer, CommandError> {
        match &mut self.worker {
            Some(worker) => worker.execute(command),
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
            Some(worker) => Ok(worker.sample_within(span)?.map(WorkerAnswer::Sample)),
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
            let _ = worker.stop();
        }
    }
}

impl core::fmt::Debug for CalledWorker {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("CalledWorker").field("worker", &self.worker).finish_non_exhaustive()
    }
}
