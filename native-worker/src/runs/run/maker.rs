//! The parts of a run that may take long to make, or hang: its environment, its policies, its own workers.

use std::{path::PathBuf, thread};

use rollmesh_core::{env::EnvState, ids::SlotId, kernels::Kernels, run::ReplayMismatch, worker::Registry};
use tokio::sync::oneshot;

use super::{
    super::{RunRequest, RunRequestError, local::LocalWorker, request::Prepared, row_source::StartReaders},
    Resumed, RunTask, RunWork, StartError, Taker,
};
use crate::envs::{is_deterministic, with_fingerprint};

/// The components from which runs are made on this machine.
#[derive(Clone, Debug)]
pub(crate) struct RunMaker {
    pub(crate) registry: Registry,
    pub(crate) kernels: Kernels,
    /// The program of the run's processes.
    pub(crate) program: PathBuf,
    pub(crate) start_readers: StartReaders,
}

/// The parts of a run that can begin.
pub(crate) struct RunParts {
    /// With all settings written out.
    pub(super) request: RunRequest,
    pub(super) prepared: Prepared,
    /// `None` for a run with a learner.
    pub(super) taker: Option<Taker>,
    /// `None` for a new run.
    pub(super) resumed: Option<Resumed>,
}

impl RunParts {
    /// Returns the iteration after which the run continues; 0 is its beginning.
    pub(crate) fn iteration(&self) -> u64 {
        let saved = self.resumed.as_ref().and_then(|resumed| resumed.saved.as_ref());
        saved.map_or(0, |saved| saved.policy.iteration)
    }
}

impl RunMaker {
    /// Makes the parts of a run on a thread of its own, which also determines them and is never joined: a constructor
    /// that hangs ends with the process.
    pub(crate) async fn make_on_thread(
        self,
        task: impl FnOnce() -> Result<RunTask, StartError> + Send + 'static,
        work: RunWork,
    ) -> Result<RunParts, StartError> {
        let (done, made) = oneshot::channel();
        let make = move || drop(done.send(task().and_then(|task| self.make(task, work))));
        thread::Builder::new().name("run-parts".into()).spawn(make)?;
        made.await.unwrap_or(Err(StartError::Panicked))
    }

    /// Makes the parts of a run: with the workers of a group, or those of its settings.
    ///
    /// # Errors
    /// All errors in its settings.
    pub(crate) fn make(&self, task: RunTask, work: RunWork) -> Result<RunParts, StartError> {
        let (request, resumed) = match task {
            RunTask::Begin(request) => (*request, None),
            RunTask::Resume(saved) => Resumed::of(*saved).map(|(request, resumed)| (request, Some(resumed)))?,
            RunTask::RollBack(request, resumed) => (*request, Some(*resumed)),
        };
        if let Some(resumed) = &resumed {
            resumed.check_ranks(&request)?;
        }
        let mut request = request.written_out()?;
        let (mut prepared, taker) = match work {
            RunWork::Learn => (self.prepare_learning(&request)?, None),
            RunWork::LearnOver(rows) => (Prepared::Local(Box::new(LocalWorker::new(rows, None)?), None), None),
            RunWork::Take(taker) => {
                let parts = request.prepare_leased(&self.registry, self.kernels)?;
                (Prepared::Leased(Box::new(parts)), Some(taker))
            }
        };
        // Workers on other machines must compute the same bits, unless the run may abandon episodes that they cannot
        // replay.
        if resumed.is_none() && request.config.replay_mismatch == ReplayMismatch::Fail {
            let context = request.config.env_context(SlotId(0));
            if let Some(env_config) = with_fingerprint(request.config.env(), &context)? {
                if let (Prepared::Leased(parts), false) = (&mut prepared, is_deterministic(&env_config)) {
                    // Its workers come to the same result.
                    parts.env_state = EnvState::Opaque;
                }
                request.config.rollout.env_config = env_config;
            }
        }
        Ok(RunParts { request, prepared, taker, resumed })
    }

    fn prepare_learning(&self, request: &RunRequest) -> Result<Prepared, StartError> {
        // If workers read, one in this process finds all errors in the settings first.
        let prepared = request.prepare(&self.registry, self.kernels)?;
        match prepared {
            Prepared::Local(alone, notice) if request.config.reads_input() && request.config.num_workers > 0 => {
                let registry = request.known(&self.registry)?;
                let readers = (self.start_readers)(&request.config, registry, &self.program);
                let mut worker = LocalWorker::new(readers.map_err(RunRequestError::Group)?, None)?;
                worker.can_be_resumed = alone.can_be_resumed;
                Ok(Prepared::Local(Box::new(worker), notice))
            }
            prepared => Ok(prepared),
        }
    }
}
