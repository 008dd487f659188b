//! A run as the hub drives it: group, consumer and measurements, without sockets.

mod evaluation;
mod leases;
mod local;
mod making;
mod report;
mod saving;
mod undo;
mod weights;

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    time::Duration,
};

use rollmesh_core::{
    batch::SlotFragment,
    env::EnvState,
    filter::{FilterError, FilterTensorError, RunFilter},
    group::{BeginError, GroupConfigError, LeaseGroup, RestoreError, SamplingMode, UnbalancedLedger},
    hash::{Hash128, run_weights_hash, weights_hash},
    ids::{LeaseId, PolicyId, WeightsVersion, WorkerId},
    lease::Lease,
    protocol::{
        Message, Phase,
        convert::FragmentLimits,
        message::{EnvTrace, EvaluationPoint, Iteration, RunStart},
    },
    run::RunConfig,
    time::Micros,
    weights::Weights,
};
use tokio::sync::mpsc;

#[cfg(test)]
use rollmesh_core::group::Ledger;

use super::{
    Failures, RunEnd, RunRequest, RunRequestError, SavedRun, Summary,
    consumer::{Consumer, Consuming, SubmitError},
    evaluation::{EvaluationMetrics, RunEvaluation},
    metrics::{Episodes, IterationMetrics, Stopwatch},
    output::OutputPlace,
    read_metrics::ReadMetrics,
    run_dir::RunDirError,
    saving::{RunFiles, Snapshot},
};
use crate::{
    launch::{LaunchError, WorkerSpec},
    learner::{ENV_STEPS, LearnError, Learned, Results, UpdateStats},
    lines::LineNews,
    offline::OfflineError,
};

pub(crate) use leases::{Upload, UploadFault};
pub(crate) use undo::{RolledBack, Undone};
pub use weights::SyncError;

/// What a run is for.
#[derive(Debug)]
pub(crate) enum Task {
    /// Learning.
    Train(Box<RunRequest>),
    /// Learning, where another process has left off.
    Resume(Box<SavedRun>),
    /// Learning, from before a lie.
    RollBack(Box<RolledBack>),
    /// Rows, for whoever holds the other end.
    Sample(Box<RunRequest>, mpsc::Sender<Vec<SlotFragment>>),
}

/// What the hub must know of a run, whatever it is for.
pub(crate) struct RunTerms {
    pub(crate) algo: String,
    /// Its discount.
    gamma: f64,
    /// Local workers that it begins with.
    pub(crate) num_workers: u32,
    /// Environment variables that they have besides the hub's.
    pub(crate) extra_environs: BTreeMap<String, String>,
    /// What each of them needs; as the hub says, if none.
    pub(crate) worker: Option<WorkerSpec>,
    /// How long a local worker may hang until it is ended; none for ever.
    pub(crate) hung_worker_timeout: Option<Micros>,
    /// The least time between two batches.
    pace: Duration,
    stop_return: Option<f64>,
    max_env_steps: u64,
    /// Time without pauses.
    max_wall: Option<Duration>,
    mode: SamplingMode,
    /// How open episodes move from one worker to another.
    env_state: EnvState,
}

/// A run in progress, or over.
pub(crate) struct Run {
    pub(crate) number: u32,
    pub(crate) terms: RunTerms,
    /// What the run is, and where its files are.
    pub(crate) request: RunRequest,
    pub(crate) group: LeaseGroup,
    pub(crate) phase: Phase,
    pub(crate) watched_slot: u32,
    limits: FragmentLimits,
    /// None once the run is over: whoever takes its batches sees that no more come.
    consumer: Option<Consumer>,
    /// What a learning run normalises observations with, if it has a filter; the statistics are among its weights, too.
    filter: Option<RunFilter>,
    weights: Weights,
    /// Ids of its policies, in order.
    policies: Vec<PolicyId>,
    /// The weights that all workers were sent, but for those that came later and were sent newer ones.
    published: WeightsVersion,
    /// Weights that were set in the middle of an iteration: they act from the next one on that has not begun.
    next_weights: Option<Weights>,
    granted: BTreeMap<LeaseId, (WorkerId, Lease)>,
    /// Iterations that have begun.
    begun: u64,
    iteration: u64,
    /// Of the batch that is being consumed, or was last.
    batch_env_steps: u64,
    env_steps: u64,
    episodes: Episodes,
    /// The learner has a batch that is not counted yet.
    is_learning: bool,
    stopwatch: Stopwatch,
    /// On the stopwatch.
    iteration_began: Duration,
    steps_per_s: f64,
    error: String,
    files: Option<RunFiles>,
    /// Where an output of earlier lives ends, to which this one adds nothing.
    old_output: Option<OutputPlace>,
    /// Weights of fragments that may still come.
    recent_weights: VecDeque<Weights>,
    /// The run after iterations to which it may have to go back.
    snapshots: BTreeMap<u64, Snapshot>,
    /// A liar's rows were learned from.
    is_tainted: bool,
    /// What people should know of its beginning.
    pub(crate) warnings: Vec<String>,
    /// What dashboards show of its earlier lives, until somebody takes it.
    pub(crate) history: Vec<Iteration>,
    /// And evaluations.
    pub(crate) evaluations: Vec<EvaluationPoint>,
    /// None if it is not evaluated, or is over.
    evaluation: Option<RunEvaluation>,
    /// What its latest evaluation has found.
    evaluated: Option<EvaluationMetrics>,
    /// Of a run whose own worker makes its batches: the next one is due.
    is_batch_due: bool,
    /// What reading has said so far.
    read: ReadMetrics,
    /// Books that are none, to see what comes of them.
    #[cfg(test)]
    pub(crate) false_books: Option<Ledger>,
}

/// A batch that is being consumed.
pub(crate) struct Submitted {
    pub(crate) update: Consuming,
    /// What the watched slot saw.
    pub(crate) trace: EnvTrace,
}

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Config(#[from] RunRequestError),
    #[error("the learner's state: {0}")]
    Learner(#[from] LearnError),
    #[error("cannot start the learner's thread: {0}")]
    Thread(#[from] io::Error),
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error("what is sampled cannot be kept: {0}")]
    Output(#[from] OfflineError),
    #[error(transparent)]
    Filter(#[from] FilterError),
    #[error("the weights that the run goes on with: {0}")]
    FilterTensors(#[from] FilterTensorError),
    #[error(transparent)]
    Group(#[from] GroupConfigError),
    #[error(transparent)]
    Launch(LaunchError),
    #[error(transparent)]
    Restore(#[from] RestoreError),
    #[error("another run is going on; stop it first")]
    Busy,
    #[error("the hub has stopped")]
    HubGone,
}

impl Run {
    /// What the run is.
    pub(crate) fn config(&self) -> &RunConfig {
        &self.request.config
    }

    pub(crate) fn is_over(&self) -> bool {
        !self.phase.is_active()
    }

    /// Time since the run began, without pauses.
    pub(crate) fn elapsed(&self) -> Duration {
        self.stopwatch.elapsed()
    }

    /// True once the first iteration has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun > 0
    }

    pub(crate) fn announcement(&self) -> Message {
        Message::RunStart(RunStart { run: self.number, config: self.config().to_wire() })
    }

    /// True if its batches were for somebody who is gone.
    pub(crate) fn is_unwanted(&self) -> bool {
        matches!(&self.consumer, Some(Consumer::Taker(batches)) if batches.is_closed())
    }

    /// Begins the next iteration. Where no weights are to come before it, the one after it, too: then workers go on with
    /// that while their uploads travel.
    pub(crate) fn begin_iteration(&mut self, now: Micros) -> Result<(), BeginError> {
        self.iteration_began = self.stopwatch.elapsed();
        if self.is_local() {
            self.begun += 1;
            self.is_batch_due = true;
            return Ok(());
        }
        if !self.has_taker() || self.group.open_iterations() == 0 {
            self.begin_one(now)?;
        }
        while self.may_begin_ahead() {
            self.begin_one(now)?;
        }
        Ok(())
    }

    fn begin_one(&mut self, now: Micros) -> Result<(), BeginError> {
        self.begun += 1;
        self.group.begin_iteration(self.weights.version(), now).map(|_| ())
    }

    fn may_begin_ahead(&self) -> bool {
        self.has_taker()
            && self.next_weights.is_none()
            && self.begun.saturating_mul(self.steps_per_iteration()) < self.terms.max_env_steps
            && self.group.may_begin(self.weights.version())
    }

    pub(super) fn has_taker(&self) -> bool {
        matches!(self.consumer, Some(Consumer::Taker(_)))
    }

    fn steps_per_iteration(&self) -> u64 {
        u64::from(self.config().num_slots()) * u64::from(self.config().fragment_length())
    }

    /// How long the next iteration has to wait for the run's pace. Where workers do not wait for it, it does not wait for
    /// people either.
    pub(crate) fn rest(&self) -> Duration {
        if !self.terms.mode.is_synchronous() {
            return Duration::ZERO;
        }
        self.terms.pace.saturating_sub(self.stopwatch.elapsed().saturating_sub(self.iteration_began))
    }

    /// The batch of the iteration, if it is complete: counted, and handed to its consumer.
    pub(crate) fn poll_update(&mut self) -> Option<Result<Submitted, SubmitError>> {
        let fragments = if self.is_local() { self.take_due()? } else { self.group.poll_batch()? };
        let consumer = self.consumer.as_ref()?;
        self.episodes.count(&fragments);
        self.batch_env_steps = fragments.iter().map(SlotFragment::env_steps).sum();
        self.is_learning = !self.has_taker();
        let trace = self.trace(&fragments);
        let results = self.results();
        let submitted = consumer.submit(fragments, self.filter.as_mut(), results);
        Some(submitted.map(|update| Submitted { update, trace }))
    }

    /// What is known of the iteration whose batch is about to be learned from.
    fn results(&self) -> Results {
        let means = [
            ("episode_return_mean", self.episodes.return_mean()),
            ("episode_len_mean", self.episodes.len_mean()),
            ("training_iteration", Some((self.iteration + 1) as f64)),
            (ENV_STEPS, Some((self.env_steps + self.batch_env_steps) as f64)),
        ];
        means.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    /// The batch has been consumed.
    pub(crate) fn count_batch(&mut self) {
        let steps = self.batch_env_steps;
        self.is_learning = false;
        self.iteration += 1;
        self.env_steps += steps;
        let took = self.stopwatch.elapsed().saturating_sub(self.iteration_began);
        self.steps_per_s = steps as f64 / took.as_secs_f64().max(1e-9);
    }

    /// The learner is done with the batch.
    pub(crate) fn handle_update(&mut self, learned: Learned) -> IterationMetrics {
        let Learned { weights, infos, added } = learned;
        self.keep_weights();
        self.weights = match &mut self.filter {
            None => weights,
            Some(filter) => {
                let weights = filter.publish(&weights);
                filter.forget_before(self.group.oldest_weights().unwrap_or_else(|| weights.version()));
                weights
            }
        };
        self.count_batch();
        let stats = UpdateStats::mean_of(infos.values());
        IterationMetrics {
            steps_per_s: self.steps_per_s,
            wall_s: self.stopwatch.elapsed().as_secs_f64(),
            policies: if self.has_one_policy() { BTreeMap::new() } else { infos },
            custom: added,
            ..IterationMetrics::new(self.iteration, self.env_steps, &self.episodes, &stats)
        }
    }

    /// Whether the default policy is the only one.
    fn has_one_policy(&self) -> bool {
        self.policies == [PolicyId::DEFAULT]
    }

    /// Writes down what decided on the batches, if the run has files and needs it to be repeated.
    pub(crate) fn write_journal(&mut self) -> Vec<LineNews> {
        let mut news = Vec::new();
        while let Some(entry) = self.group.poll_journal() {
            news.extend(self.files.as_mut().and_then(|files| files.dir.add_to_journal(&entry)));
        }
        news
    }

    /// Writes a line of metrics, if the run has files.
    pub(crate) fn write_metrics(&mut self, metrics: &IterationMetrics) -> Option<LineNews> {
        self.files.as_mut()?.dir.add_metrics(metrics)
    }

    /// Tries again to write the lines for which there was no room.
    pub(crate) fn retry_lines(&mut self) -> Vec<LineNews> {
        self.files.as_mut().map_or_else(Vec::new, |files| files.dir.retry())
    }

    /// Why the run should end now, if it should.
    pub(crate) fn end_reached(&self) -> Option<RunEnd> {
        if self.terms.stop_return.is_some_and(|target| self.has_reached(target)) {
            return Some(RunEnd::Solved);
        }
        self.is_used_up().then_some(RunEnd::Finished)
    }

    fn has_reached(&self, target: f64) -> bool {
        if self.is_judged_by_evaluations() {
            return self
                .evaluated
                .as_ref()
                .and_then(|found| found.episode_return_mean)
                .is_some_and(|mean| mean >= target);
        }
        self.episodes.have_reached(target)
    }

    /// True once all env steps or all of the time are used up.
    fn is_used_up(&self) -> bool {
        self.is_late() || self.env_steps >= self.terms.max_env_steps
    }

    fn is_late(&self) -> bool {
        self.terms.max_wall.is_some_and(|limit| self.elapsed() >= limit)
    }

    /// An error if an env step was lost or counted twice.
    pub(crate) fn check_books(&self) -> Result<(), UnbalancedLedger> {
        #[cfg(test)]
        if let Some(books) = &self.false_books {
            return books.check();
        }
        self.group.ledger().check()
    }

    pub(crate) fn pause(&mut self) -> Result<(), &'static str> {
        match self.phase {
            Phase::Running => {
                self.phase = Phase::Paused;
                self.group.pause();
                self.stopwatch.pause();
            }
            Phase::Draining => return Err("the run is draining: it ends as soon as its leases have"),
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn resume(&mut self, now: Micros) -> Result<(), &'static str> {
        match self.phase {
            Phase::Paused => {
                self.phase = Phase::Running;
                self.stopwatch.resume();
                self.group.resume(now);
            }
            Phase::Draining => return Err("the run is draining, which cannot be taken back"),
            _ => {}
        }
        Ok(())
    }

    /// Grants nothing more, and begins nothing more.
    pub(crate) fn drain(&mut self) {
        if !self.is_over() {
            self.interrupt();
            self.phase = Phase::Draining;
            self.group.pause();
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.phase == Phase::Draining
    }

    /// True once all leases of a run that drains have ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_draining() && self.group.ledger().outstanding == 0
    }

    /// The hash of all weights. A run's weights are those of its policies.
    fn weights_hash(&self) -> Hash128 {
        run_weights_hash(&self.weights, &self.policies).unwrap_or_else(|_| weights_hash(&self.weights))
    }

    /// The hash of each policy's weights, where there are several.
    fn policy_hashes(&self) -> BTreeMap<PolicyId, Hash128> {
        let weights = if self.has_one_policy() { None } else { self.weights.of_policies(&self.policies).ok() };
        weights.into_iter().flatten().map(|(id, weights)| (id, weights_hash(&weights))).collect()
    }

    /// Ends the run, of which `unaudited` fragments are still being recomputed, and writes its last files. A run whose policy or
    /// summary cannot be written has failed; other files that cannot be written are named alongside the summary.
    pub(crate) fn end(&mut self, end: RunEnd, unaudited: u64, now: Micros) -> (Summary, Vec<String>) {
        let end = self.check_books().map_or_else(RunEnd::Unbalanced, |()| end);
        self.stopwatch.pause();
        self.interrupt();
        let (ended, mut faults) = self.finish_saving();
        self.consumer = None;
        if let Some(evaluation) = self.evaluation.take() {
            evaluation.end();
        }
        self.group.stop(now);
        self.phase = match &end {
            RunEnd::Solved => Phase::Solved,
            RunEnd::Finished => Phase::Finished,
            RunEnd::Stopped | RunEnd::Drained => Phase::Stopped,
            RunEnd::Failed(_) | RunEnd::Unbalanced(_) => Phase::Failed,
        };
        self.error = end.error().unwrap_or_default();
        let causes = self.terms.causes(self.group.ledger().abandoned_episodes, self.is_tainted);
        let mut summary = Summary {
            env: self.config().env().into(),
            algo: self.terms.algo.clone(),
            seed: self.config().rollout.seed,
            solved: end == RunEnd::Solved,
            iterations: self.iteration,
            env_steps: self.env_steps,
            episode_return_mean: self.episodes.return_mean(),
            evaluation: self.evaluated.clone(),
            read: self.read.clone(),
            wall_s: self.stopwatch.elapsed().as_secs_f64(),
            weights_hash: self.weights_hash(),
            policies: self.policy_hashes(),
            reproducible: causes.is_empty(),
            not_reproducible: causes,
            tainted: self.is_tainted,
            unaudited,
            failed_checkpoints: ended.as_ref().map_or(0, |ended| ended.failed_checkpoints),
            lost_lines: ended.as_ref().map_or(0, |ended| ended.lost_lines),
            moved_slots: self.group.moved_slots(),
            failures: Failures::of(&self.group),
            error: end.error(),
            end,
        };
        if let Some(Err(error)) = ended.map(|ended| ended.write(&self.policy(), self.group.ledger(), &summary)) {
            let error = format!("the run's last files could not be written: {error}");
            // What failed before is the reason; a run that is over without its results has failed, too.
            match summary.end.error() {
                Some(_) => faults.push(error),
                None => {
                    (self.phase, self.error) = (Phase::Failed, error.clone());
                    summary.end = RunEnd::Failed(error);
                }
            }
        }
        (summary, faults)
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        group::{GroupCommand, WorkerProfile},
        kernels::Kernels,
        worker::{Advance, Registry, RolloutWorkerBuilder, SlotRunner},
    };

    use super::*;

    fn run() -> Run {
        let config = RunConfig::new("CartPole-v1").num_workers(1).num_envs(2).fcnet_hiddens(&[4]);
        let request = Box::new(config.rollout_fragment_length(8).into());
        let registry = crate::registry::native(Registry::builtin());
        Run::new(1, Task::Train(request), (&registry, Kernels::PORTABLE), LeaseId(0)).unwrap()
    }

    /// Between the first batch and its update there is neither a fragment in the making nor an iteration counted;
    /// a run that seemed not to have begun then would be begun a second time, with the first weights.
    #[test]
    fn a_run_begins_once() {
        let mut run = run();
        assert!(!run.has_begun());
        let (worker, now) = (WorkerId(1), Micros(0));
        run.group.handle_joined(worker, WorkerProfile::NATIVE, now);
        run.group.handle_answer(worker, Ok(()), now);
        run.begin_iteration(now).unwrap();
        let Some(GroupCommand::Grant { lease, .. }) = run.group.poll_command() else { panic!("no lease") };
        let mut runner = SlotRunner::new(run.config(), RolloutWorkerBuilder::new(Registry::builtin())).unwrap();
        let id = lease.id;
        runner.begin(lease).unwrap();
        let Advance::Done { fragments, .. } = runner.advance(8) else { panic!("8 steps are a fragment") };
        run.group.handle_fragments(worker, id, fragments, now);
        assert!(run.poll_update().is_some_and(|submitted| submitted.is_ok()));
        assert!(run.has_begun() && run.group.fragment().is_none());
    }

    #[test]
    fn a_run_that_lost_a_step_fails_and_is_not_saved() {
        let mut run = run();
        assert!(run.take_snapshot().is_some());
        let books = Ledger { granted: 8, committed: 7, consumed: 7, ..Ledger::default() };
        run.false_books = Some(books);
        assert!(run.take_snapshot().is_none());
        let (summary, _) = run.end(RunEnd::Finished, 0, Micros(0));
        assert_eq!((summary.end, run.phase), (RunEnd::Unbalanced(UnbalancedLedger(Box::new(books))), Phase::Failed));
        assert!(run.status().error.starts_with("the books do not balance: of 8 granted"));
    }
}
