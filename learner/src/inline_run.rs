//! A run in one thread: its leases, the worker that samples their rows, and its learner. No hub, no sockets, no files.

use std::collections::VecDeque;

use rollmesh_core::{
    group::{BeginError, GroupCommand, JournalEntry, JournalError, WorkerProfile},
    hub::{BatchWork, RunEnd, RunLoop, RunLoopConfig, RunLoopError, TrainBatchError, TrainRows},
    ids::{LeaseId, WorkerId},
    kernels::Kernels,
    protocol::{
        FragmentFailure,
        message::{Iteration, NamedMetrics},
    },
    run::RunConfig,
    time::Micros,
    weights::Weights,
    worker::{Advance, Registry, RolloutWorkerBuilder, RunnerError, SetupError, SlotRunner},
};

use super::{
    algorithm::algorithm,
    error::LearnError,
    learners::Learners,
    learning_start::{AlgorithmSettingsError, LearningStart, LearningStartError, results_before, written_out},
    policy::register_learning_policies,
    policy_file::{PolicyFile, gamma_of},
    stats::UpdateStats,
};

/// The only worker.
const WORKER: WorkerId = WorkerId(1);

/// A run that the caller drives with [`work`](Self::work). In synchronous mode its weights are those of the same settings under
/// a hub, with any number of workers. It runs no evaluations and writes no files.
///
/// ```
/// use rollmesh_core::{kernels::Kernels, run::RunConfig, time::Micros, worker::Registry};
/// use rollmesh_learner::{InlineRun, InlineWork};
///
/// let config = RunConfig::new("CartPole-v1").rollout_fragment_length(32).stop_after(1_000);
/// let mut run = InlineRun::new(1, config, &Registry::builtin(), Kernels::PORTABLE, Micros(0))?;
/// while run.work(16, Micros(0))? != InlineWork::Over {}
/// println!("{} after {} env steps", run.state().weights_hash(), run.state().env_steps());
/// # Ok::<(), rollmesh_learner::InlineRunError>(())
/// ```
pub struct InlineRun {
    learning: Learning,
    runner: SlotRunner,
    /// True for a run that ends with the last batch of the journal that it replays.
    replays: bool,
    /// Earlier weights that fragments of the journal are still to be sampled with, oldest first.
    past: VecDeque<Weights>,
}

/// The result of a call of [`InlineRun::work`].
#[derive(Clone, Debug, PartialEq)]
pub enum InlineWork {
    /// Some env steps.
    Sampled,
    /// An update, with its metrics.
    Learned(Box<Iteration>),
    /// Nothing: the run is paused.
    Paused,
    /// Nothing: the run is over.
    Over,
}

/// An error that keeps a run from beginning or continuing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InlineRunError {
    /// Another run of the hub is in progress.
    #[error("a run is in progress; stop it first")]
    Busy,
    /// A setting of its algorithm.
    #[error(transparent)]
    Config(#[from] AlgorithmSettingsError),
    /// Its algorithm learns from logged experience alone, and it reads none.
    #[error("{0} learns from logged experience, and this run samples: choose another algorithm")]
    Offline(&'static str),
    /// Its environment or its policy cannot be made.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// Its learner.
    #[error(transparent)]
    Start(#[from] LearningStartError),
    /// Its number of slots or its sampling mode.
    #[error(transparent)]
    Loop(#[from] RunLoopError),
    /// The journal is not one of such a run.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// An iteration cannot begin.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// A lease that cannot be run here.
    #[error(transparent)]
    Lease(#[from] RunnerError),
    /// The workers with which it is to begin.
    #[error("{0}")]
    Workers(String),
    /// The user's environment, policy or callbacks failed again and again.
    #[error("{text}")]
    Failed {
        /// The place of the failure, and advice.
        text: String,
        /// The last failure.
        failure: Box<FragmentFailure>,
    },
    /// The rows cannot be joined to a train batch.
    #[error(transparent)]
    Batch(#[from] TrainBatchError),
    /// An update failed.
    #[error(transparent)]
    Learn(#[from] LearnError),
}

impl InlineRun {
    /// Creates a run, and begins its first iteration. The registry needs no policies that learn.
    ///
    /// # Errors
    /// [`InlineRunError`] names the problem.
    pub fn new(
        number: u32,
        config: RunConfig,
        registry: &Registry,
        kernels: Kernels,
        now: Micros,
    ) -> Result<Self, InlineRunError> {
        let mut run = Self::prepared(number, config, registry, kernels, now)?;
        run.learning.state.begin_iteration(now)?;
        Ok(run)
    }

    /// Creates a run that replays the journal of an asynchronous run of the same settings: it learns from the same
    /// batches, so its weights are the same, too. It ends with the last batch of the journal, regardless of its
    /// settings.
    ///
    /// # Errors
    /// Those of [`new`](Self::new), and [`InlineRunError::Journal`].
    pub fn replaying(
        number: u32,
        config: RunConfig,
        registry: &Registry,
        kernels: Kernels,
        journal: impl IntoIterator<Item = JournalEntry>,
    ) -> Result<Self, InlineRunError> {
        let now = Micros(0);
        let mut run = Self::prepared(number, config, registry, kernels, now)?;
        run.learning.state.group.replay(journal)?;
        run.replays = true;
        run.learning.state.begin_iteration(now)?;
        if !run.learning.state.group.replays_batches() {
            run.learning.end(RunEnd::Drained, now);
        }
        Ok(run)
    }

    /// Creates a run whose worker has joined.
    fn prepared(
        number: u32,
        config: RunConfig,
        registry: &Registry,
        kernels: Kernels,
        now: Micros,
    ) -> Result<Self, InlineRunError> {
        let (mut learning, builder) = Learning::new((number, LeaseId(0)), config, registry, kernels, now)?;
        let state = &mut learning.state;
        state.group.handle_joined(WORKER, WorkerProfile { progress_timeout: Micros(u64::MAX) }, now);
        state.group.handle_answer(WORKER, Ok(()), now);
        let mut runner = SlotRunner::new(state.config(), builder)?;
        runner.set_weights(state.acting_weights())?;
        Ok(Self { learning, runner, replays: false, past: VecDeque::new() })
    }

    /// Returns the loop of the run, which has its progress.
    #[must_use]
    pub fn state(&self) -> &RunLoop {
        &self.learning.state
    }

    /// Returns the loop of the run, to pause, resume or drain it, or to watch another slot.
    pub fn state_mut(&mut self) -> &mut RunLoop {
        &mut self.learning.state
    }

    /// Describes the policy as it is now, as `rollmesh train` writes it next to the weights.
    #[must_use]
    pub fn policy_file(&self) -> PolicyFile {
        self.learning.policy_file()
    }

    /// Steps all slots in progress up to `max_vector_steps` times, or learns from a batch that is complete.
    ///
    /// # Errors
    /// [`InlineRunError`]; the run has failed then and is over.
    pub fn work(&mut self, max_vector_steps: u32, now: Micros) -> Result<InlineWork, InlineRunError> {
        let worked = self.try_work(max_vector_steps, now);
        if let Err(error) = &worked {
            self.learning.state.end(&RunEnd::Failed(error.to_string()), now);
        }
        worked
    }

    fn try_work(&mut self, max_vector_steps: u32, now: Micros) -> Result<InlineWork, InlineRunError> {
        if self.learning.state.is_over() {
            return Ok(InlineWork::Over);
        }
        let batch = self.learning.state.poll_batch();
        // Before the batch is learned from: leases that were granted when it was taken need the weights from before the
        // update.
        self.handle_commands(now)?;
        // The journal is not kept in a file.
        while self.learning.state.group.poll_journal().is_some() {}
        if let Some(work) = batch {
            return self.learn(work?, now);
        }
        let mut advance = self.runner.advance(max_vector_steps);
        while let Advance::Failed { lease, failure, .. } = advance {
            self.learning.state.group.handle_failed(WORKER, lease, failure, now);
            let state = &self.learning.state;
            if let (Some(text), Some(fatal)) = (state.fatal_failure(), state.group.fatal_failure()) {
                return Err(InlineRunError::Failed { text, failure: Box::new(fatal.failure.clone()) });
            }
            // A lease whose last fragment has failed is over for the group, which grants the next one: it ends here, too.
            advance = self.runner.advance(0);
            if matches!(advance, Advance::Idle) {
                return Ok(InlineWork::Sampled);
            }
        }
        match advance {
            Advance::Idle if self.learning.state.is_drained() => {
                let end = self.learning.state.end_reached(now).unwrap_or(RunEnd::Drained);
                self.learning.end(end, now);
                return Ok(InlineWork::Over);
            }
            Advance::Idle => return Ok(InlineWork::Paused),
            Advance::Working { lease, env_steps } => {
                self.learning.state.group.handle_progress(WORKER, lease, env_steps, now)
            }
            Advance::Part { lease, fragments, .. } | Advance::Done { lease, fragments } => {
                if !fragments.is_empty() {
                    self.learning.state.group.handle_fragments(WORKER, lease, fragments, now);
                }
            }
            Advance::Failed { .. } => {}
        }
        Ok(InlineWork::Sampled)
    }

    fn handle_commands(&mut self, now: Micros) -> Result<(), InlineRunError> {
        while let Some(command) = self.learning.state.group.poll_command() {
            match command {
                GroupCommand::Grant { lease, .. } => {
                    if self.runner.weights_version() != lease.weights_version {
                        let newest = self.learning.state.acting_weights();
                        let mut known = self.past.iter().chain([newest]);
                        let wanted = known.find(|weights| weights.version() == lease.weights_version);
                        self.runner.set_weights(wanted.unwrap_or(newest))?;
                    }
                    self.runner.begin(lease)?;
                }
                GroupCommand::Revoke { lease, .. } => {
                    if self.runner.lease() == Some(lease) {
                        self.runner.abandon();
                    }
                    self.learning.state.group.handle_refused(WORKER, lease, "revoked", now);
                }
                GroupCommand::Dismiss { .. } => {}
            }
        }
        Ok(())
    }

    fn learn(&mut self, work: BatchWork, now: Micros) -> Result<InlineWork, InlineRunError> {
        let BatchWork::Learn(rows) = work else { return Ok(InlineWork::Paused) };
        self.keep_weights();
        let (point, _) = self.learning.learn(rows, now)?;
        let is_replaying = self.replays && self.learning.state.group.replays_batches();
        match self.learning.state.end_reached(now).filter(|_| !is_replaying) {
            Some(end) => self.learning.end(end, now),
            None if self.learning.state.is_draining() || self.replays && !is_replaying => {
                self.learning.end(RunEnd::Drained, now)
            }
            None => self.learning.state.begin_iteration(now)?,
        }
        Ok(InlineWork::Learned(Box::new(point)))
    }

    /// Keeps the weights that are about to be replaced, if the journal still wants them.
    fn keep_weights(&mut self) {
        let oldest = self.learning.state.group.oldest_replayed_weights();
        if oldest.is_some() {
            self.past.push_back(self.learning.state.acting_weights().clone());
        }
        self.past.retain(|weights| oldest.is_some_and(|oldest| weights.version() >= oldest));
    }
}

/// The loop of a run in one process, and its learner.
pub(super) struct Learning {
    pub(super) state: RunLoop,
    learners: Learners,
    gamma: f64,
}

impl Learning {
    /// Creates a run whose leases begin with the number `first_lease`, and the builder of its workers.
    pub(super) fn new(
        (number, first_lease): (u32, LeaseId),
        config: RunConfig,
        registry: &Registry,
        kernels: Kernels,
        now: Micros,
    ) -> Result<(Self, RolloutWorkerBuilder), InlineRunError> {
        // The run has one process, which may be a browser's, and writes no files.
        config.refuse_host_settings().map_err(SetupError::from)?;
        let config = written_out(config)?;
        let policies = config.worker_config().policies;
        let mut known = policies.values().filter_map(|policy| algorithm(&policy.policy));
        if let Some(spec) = known.find(|spec| spec.is_offline) {
            return Err(InlineRunError::Offline(spec.name));
        }
        let mut registry = registry.clone();
        register_learning_policies(&mut registry.policies);
        let builder = || RolloutWorkerBuilder::new(registry.clone()).kernels(kernels);
        let start = LearningStart::new(&config, builder().learning_parts(&config)?, None)?;
        let LearningStart { learners, config: start, postprocessing } = start;
        let state = RunLoop::new(RunLoopConfig { number, first_lease, ..start }, now)?;
        Ok((Self { state, learners, gamma: gamma_of(postprocessing) }, builder()))
    }

    /// Describes the policy as it is now.
    pub(super) fn policy_file(&self) -> PolicyFile {
        PolicyFile::of_run(&self.state, self.gamma)
    }

    /// Learns from a batch. Returns the metrics of the iteration, those with names apart.
    pub(super) fn learn(&mut self, rows: TrainRows, now: Micros) -> Result<(Iteration, NamedMetrics), InlineRunError> {
        let (batch, observed) = rows.join()?;
        let learned = self.learners.learn(batch, results_before(&self.state))?;
        self.state.handle_learned(learned.weights, observed, now);
        let point = point(&self.state, &UpdateStats::mean_of(learned.infos.values()), now);
        let episodes = self.state.episodes();
        let quantiles = [("episode_return_p10", 0.1), ("episode_return_p90", 0.9)];
        let named =
            quantiles.into_iter().filter_map(|(name, part)| Some((name.into(), episodes.return_quantile(part)?)));
        Ok((point, NamedMetrics::new(self.state.number(), self.state.iteration(), named)))
    }

    /// Ends the run; with a ledger that does not balance it has failed.
    pub(super) fn end(&mut self, end: RunEnd, now: Micros) {
        let end = self.state.check_ledger().map_or_else(RunEnd::Unbalanced, |()| end);
        self.state.end(&end, now);
    }
}

/// Returns the metrics of a run's latest update.
fn point(state: &RunLoop, stats: &UpdateStats, now: Micros) -> Iteration {
    let mean = |mean: Option<f64>| mean.map_or(f32::NAN, |mean| mean as f32);
    Iteration {
        run: state.number(),
        iteration: state.iteration(),
        env_steps: state.env_steps(),
        wall_ms: state.elapsed(now).0 / 1_000,
        episode_return_mean: mean(state.episodes().return_mean()),
        episode_len_mean: mean(state.episodes().len_mean()),
        steps_per_s: state.steps_per_s() as f32,
        policy_loss: stats.policy_loss as f32,
        vf_loss: stats.vf_loss as f32,
        entropy: stats.entropy as f32,
        kl: stats.kl as f32,
    }
}
