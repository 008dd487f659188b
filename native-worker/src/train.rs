//! Training runs: [`Algorithm`], a run as an object in a program, and the types that describe a run and its results.

use std::{
    io,
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

use rollmesh_core::evaluation::{Earlier, Evaluation, EvaluationRequest};
use tokio::runtime::Runtime;

use crate::{
    Registry,
    checkpoint::{PolicyCheckpoint, PolicyCheckpointError},
    eval::{EvalWorker, EvalWorkerError, makers_of_episodes},
    hub::{CheckpointNowError, Hub, HubConfig, HubError, PendingSummary, RunStopper, StartRunError},
    native,
    runs::{RunTask, RunWork},
    worker_group::WorkerGroup,
};

pub use crate::runs::{
    Difference, Differences, EvaluationConfig, EvaluationCounts, EvaluationMetrics, Failures, FragmentFailed,
    IterationMetrics, MAX_LOCAL_WORKERS, ReadMetrics, ResumeError, RunConfig, RunEnd, RunRequest, RunRequestError,
    SavedRun, StopConfig, Summary, SyncError,
};

/// A training run that a program executes iteration by iteration: the same code as `rollmesh train`, with bit-identical
/// results.
///
/// The rows come from this process with [`num_workers`](RunConfig::num_workers) 0, otherwise from worker processes of this
/// program; also from remote workers that join its [hub](Self::workers), and from files with an `input`. Between two steps
/// workers wait; in the asynchronous mode they sample ahead, up to a batch.
///
/// ```
/// use rollmesh::{Registry, train::{Algorithm, RunConfig}};
///
/// let run = RunConfig::new("CartPole-v1").num_workers(0).num_envs(4).seed(7);
/// let mut algorithm = Algorithm::new(run, &Registry::builtin())?;
/// for _ in 0..3 {
///     let metrics = algorithm.step()?.expect("the run has more env steps");
///     println!("{}: {:?}", metrics.iteration, metrics.episode_return_mean);
/// }
/// let policy = algorithm.policy()?;
/// assert_eq!(policy.iteration, 3);
/// let summary = algorithm.stop()?;
/// assert_eq!(summary.weights_hash, policy.weights_hash());
/// # Ok::<(), rollmesh::train::AlgorithmError>(())
/// ```
pub struct Algorithm {
    runtime: Runtime,
    hub: Hub,
    registry: Registry,
    run: RunConfig,
    run_dir: Option<PathBuf>,
    summary: PendingSummary,
    /// The summary, once the run is over and it has been received.
    ended: Option<Summary>,
}

/// An error of starting or continuing an algorithm.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AlgorithmError {
    /// The event loop could not be created, or the current executable is unknown.
    #[error("the algorithm cannot begin: {0}")]
    Io(#[from] io::Error),
    /// Its hub cannot start.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The run cannot start.
    #[error(transparent)]
    Start(#[from] StartRunError),
    /// There is no run to resume.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The run failed; the text says why.
    #[error("{0}")]
    Failed(String),
    /// No checkpoint could be written.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointNowError),
    /// Its policies could not be evaluated.
    #[error(transparent)]
    Evaluation(#[from] EvalWorkerError),
    /// The policies of a run that is over cannot be read from its directory.
    #[error(transparent)]
    Policy(#[from] PolicyCheckpointError),
    /// The run is over, and has no directory.
    #[error("the run is over, and has no directory with its policies")]
    Over,
}

impl Algorithm {
    /// Starts a run, on a hub that listens on the loopback interface and has no page. With a
    /// [`run_dir`](RunRequest::run_dir) it writes the files of `rollmesh train`.
    ///
    /// Local workers run the current executable, which must begin with [`main_with`](crate::main_with).
    ///
    /// # Errors
    /// [`AlgorithmError`], which says what to change.
    pub fn new(request: impl Into<RunRequest>, registry: &Registry) -> Result<Self, AlgorithmError> {
        Self::on(HubConfig::local()?, request, registry)
    }

    /// Works like [`new`](Self::new), on a hub with this configuration: for remote workers, a page, or another worker
    /// program.
    ///
    /// # Errors
    /// As there.
    pub fn on(hub: HubConfig, request: impl Into<RunRequest>, registry: &Registry) -> Result<Self, AlgorithmError> {
        let request = request.into();
        Self::start(hub, registry, RunTask::Begin(Box::new(request)), RunWork::Learn)
    }

    /// Starts a run over the workers of a group, wherever they are: threads, processes, or remote workers. Each iteration is
    /// RLlib's `synchronous_parallel_sample`, an update of the group's local worker, and `sync_weights`, with at least
    /// [`train_batch_size`](rollmesh_core::worker::RolloutConfig::train_batch_size) env steps. Environment and policies are
    /// the group's, and the policies' kinds must be able to learn; of `request` only stop conditions, evaluation, files and
    /// checkpoints are used. The same seed and number of workers give bit-identical results, unless a worker is lost: its
    /// successor begins other episodes, and the summary says so.
    ///
    /// ```
    /// use rollmesh::{Registry, train::{Algorithm, RunConfig}, worker_group::WorkerGroup};
    /// use rollmesh_core::worker::RolloutConfig;
    ///
    /// let config = RolloutConfig::new("CartPole-v1").rollout_fragment_length(50).single_policy("ppo");
    /// let group = WorkerGroup::builder(RolloutConfig { train_batch_size: 200, ..config }).num_workers(2).build()?;
    /// let mut algorithm = Algorithm::over(group, RunConfig::default(), &Registry::builtin())?;
    /// assert_eq!(algorithm.step()?.expect("the run has more env steps").env_steps, 200);
    /// algorithm.stop()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn over(
        group: WorkerGroup,
        request: impl Into<RunRequest>,
        registry: &Registry,
    ) -> Result<Self, AlgorithmError> {
        let request = request_over(&group, request.into());
        let work = RunWork::LearnOver(Box::new(group));
        Self::start(HubConfig::local()?, registry, RunTask::Begin(Box::new(request)), work)
    }

    /// Resumes a run [over a group](Self::over) in its directory, with a group of the same settings and number of workers,
    /// all of which have joined.
    ///
    /// # Errors
    /// As [`restore`](Self::restore).
    pub fn restore_over(
        group: WorkerGroup,
        run_dir: impl Into<PathBuf>,
        registry: &Registry,
    ) -> Result<Self, AlgorithmError> {
        let saved = SavedRun::load(run_dir)?;
        let request = request_over(&group, saved.request().clone());
        let saved = saved.with_request(request)?;
        let work = RunWork::LearnOver(Box::new(group));
        Self::start(HubConfig::local()?, registry, RunTask::Resume(Box::new(saved)), work)
    }

    /// Resumes the run in a directory bit-identically: one that [`save`](Self::save) or `rollmesh train` has written.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    #[doc(alias = "from_checkpoint")]
    pub fn restore(run_dir: impl Into<PathBuf>, registry: &Registry) -> Result<Self, AlgorithmError> {
        let saved = SavedRun::load(run_dir)?;
        Self::start(HubConfig::local()?, registry, RunTask::Resume(Box::new(saved)), RunWork::Learn)
    }

    fn start(config: HubConfig, registry: &Registry, task: RunTask, work: RunWork) -> Result<Self, AlgorithmError> {
        let (run, run_dir) = (task.request().config.clone(), task.request().run_dir.clone());
        let registry = native(registry.clone());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (hub, summary) = runtime.block_on(async {
            let hub = Hub::start(config, &registry).await?;
            let summary = hub.start_run(task, work, true).await?;
            Ok::<_, AlgorithmError>((hub, summary))
        })?;
        Ok(Self { runtime, hub, registry, run, run_dir, summary, ended: None })
    }

    /// Executes one iteration: a batch of every slot, or of the input, and an update. Returns `None` once the run has
    /// reached one of its stop conditions.
    ///
    /// # Errors
    /// [`AlgorithmError::Failed`] if the run has failed.
    #[doc(alias("train", "training_step"))]
    pub fn step(&mut self) -> Result<Option<IterationMetrics>, AlgorithmError> {
        if let Some(metrics) = self.runtime.block_on(self.hub.step()) {
            return Ok(Some(metrics));
        }
        let ended = self.ended()?;
        ended.end.error().map_or(Ok(None), |error| Err(AlgorithmError::Failed(error)))
    }

    /// Waits for the summary of a run that has reached its end: then its files are complete.
    fn ended(&mut self) -> Result<&Summary, AlgorithmError> {
        if self.ended.is_none() && !self.summary.is_terminated() {
            self.ended = self.runtime.block_on(&mut self.summary).ok();
        }
        self.ended.as_ref().ok_or_else(|| AlgorithmError::Failed("the hub has lost the run".into()))
    }

    /// Writes a checkpoint into the run's directory, and waits until it is on disk; a run that is over has written its last
    /// one, or, if it ended in the middle of an update, the one before. [`restore`](Self::restore), `rollmesh train --resume` and `rollmesh evaluate` take the directory.
    ///
    /// # Errors
    /// [`AlgorithmError::Checkpoint`], also for a run without a directory, and for one that is over and could not write its
    /// last checkpoint; [`AlgorithmError::Failed`] for a run that has failed: its directory has its last checkpoint.
    #[doc(alias = "save_checkpoint")]
    pub fn save(&mut self) -> Result<&Path, AlgorithmError> {
        match self.runtime.block_on(self.hub.checkpoint()) {
            Err(CheckpointNowError::NoRun | CheckpointNowError::Ended) => {
                let ended = self.ended()?;
                if let Some(error) = ended.end.error() {
                    return Err(AlgorithmError::Failed(error));
                }
                if let Some(error) = &ended.unsaved {
                    return Err(CheckpointNowError::Failed(error.clone()).into());
                }
            }
            saved => _ = saved?,
        }
        self.run_dir.as_deref().ok_or(AlgorithmError::Checkpoint(CheckpointNowError::NoDirectory))
    }

    /// Returns the current policies, to act with or for their weights; those of a run that is over from its directory.
    ///
    /// # Errors
    /// [`AlgorithmError::Over`] for a run that is over and has no directory, [`AlgorithmError::Policy`] if its files cannot be
    /// read.
    #[doc(alias("get_policy", "get_weights"))]
    pub fn policy(&mut self) -> Result<PolicyCheckpoint, AlgorithmError> {
        if let Some(policy) = self.runtime.block_on(self.hub.policy()) {
            return Ok(policy);
        }
        self.ended()?;
        Ok(PolicyCheckpoint::load(self.run_dir.as_deref().ok_or(AlgorithmError::Over)?)?)
    }

    /// Returns the latest result of the run's own evaluations, which are made alongside the iterations as the settings
    /// [`evaluation`](RunConfig::evaluation) say; `None` before the first, and once the run is over: its summary has it then.
    #[must_use]
    pub fn evaluated(&self) -> Option<EvaluationMetrics> {
        self.runtime.block_on(self.hub.evaluation())
    }

    /// Plays this many episodes with the most likely actions, in separate environments, and returns their returns and lengths.
    ///
    /// # Errors
    /// [`AlgorithmError::Evaluation`] if the environment fails, or as [`policy`](Self::policy).
    pub fn evaluate(&mut self, episodes: NonZeroU32) -> Result<Evaluation, AlgorithmError> {
        let weights = self.policy()?.weights;
        let (makers, steps) = makers_of_episodes(&self.run, &self.registry, episodes)?;
        let timeout = Duration::from_secs(self.run.evaluation.timeout_s.get().into());
        let mut worker = EvalWorker::in_thread_with(makers, timeout)?;
        let request = EvaluationRequest::of_episodes(episodes, steps);
        worker.submit_request(Some(&weights), request, Earlier::Cancel)?;
        Ok(worker.poll(Duration::MAX)?.ok_or(EvalWorkerError::Stopped)?)
    }

    /// Returns the hub: its addresses and tokens admit other workers, its status is that of the run.
    #[must_use]
    #[doc(alias("env_runner_group", "worker_set"))]
    pub fn workers(&self) -> &Hub {
        &self.hub
    }

    /// Returns a handle that ends the run from another thread, also while a method of this waits for an environment
    /// that hangs: that method returns as for a run that is over, and [`stop`](Self::stop) ends the workers.
    #[must_use]
    pub fn stopper(&self) -> RunStopper {
        self.hub.stopper(self.runtime.handle().clone())
    }

    /// Ends the run, its workers and its hub. The results are in its directory, if it has one.
    ///
    /// # Errors
    /// [`AlgorithmError::Failed`] if the run has failed.
    pub fn stop(self) -> Result<Summary, AlgorithmError> {
        let Self { runtime, hub, mut summary, ended, .. } = self;
        let ended = runtime.block_on(async {
            hub.stop_run().await;
            let ended = match ended {
                Some(ended) => Some(ended),
                None if summary.is_terminated() => None,
                None => (&mut summary).await.ok(),
            };
            hub.shutdown().await;
            ended
        });
        let ended = ended.ok_or(AlgorithmError::Over)?;
        match ended.end.error() {
            Some(error) => Err(AlgorithmError::Failed(error)),
            None => Ok(ended),
        }
    }
}

/// Returns the request with the settings that the group decides.
fn request_over(group: &WorkerGroup, mut request: RunRequest) -> RunRequest {
    request.config.rollout = group.config().clone();
    request.config.num_workers = u32::try_from(group.num_remote_workers()).unwrap_or(u32::MAX);
    request
}
