//! A run of this process: the [loop](RunLoop) without I/O, and the parts that execute its effects: the learner's
//! thread, files and evaluations.

mod evaluation;
mod local;
mod maker;
mod making;
mod saving;
mod undo;

use std::{
    collections::{BTreeMap, BTreeSet},
    io, mem,
    sync::atomic::Ordering,
};

use rollmesh_core::{
    batch::SlotFragment,
    group::{JournalEntry, UnbalancedLedger},
    hub::{BatchWork, HubRun, Observed, RunEnd, RunFacts, RunLoop, RunLoopError, StartRefusal},
    ids::FragmentNo,
    protocol::message::EvaluationPoint,
    run::RunConfig,
    time::Micros,
};
use tokio::sync::mpsc;

#[cfg(test)]
use rollmesh_core::group::Ledger;

use super::{
    Failures, RunRequest, RunRequestError, SavedRun, Summary,
    consumer::{Consumer, Consuming, TakeRows, TakenRows},
    evaluation::{EvaluationMetrics, RunEvaluation},
    metrics::IterationMetrics,
    output::OutputPlace,
    own_sampler::Watchdog,
    read_metrics::ReadMetrics,
    recording::{LastPictures, Recording},
    row_source::RowSource,
    run_dir::RunDirError,
    saving::{ResumeError, RunFiles, Snapshot},
};
use crate::{
    envs::PythonFingerprintError,
    launch::{LaunchError, WorkerSpec},
    learner::{LearnError, Learned, LearningStartError, UpdateStats, results_before},
    lines::LineNotice,
    monitor::MonitorError,
    offline::OfflineError,
};

pub(crate) use maker::{RunMaker, RunParts};
pub(crate) use making::{Resumed, RunPlace};

/// A run to start.
#[derive(Debug)]
pub(crate) enum RunTask {
    /// A new one.
    Begin(Box<RunRequest>),
    /// One to resume from its checkpoint.
    Resume(Box<SavedRun>),
    /// Train again from before a divergent fragment.
    RollBack(Box<RunRequest>, Box<Resumed>),
}

impl RunTask {
    /// Returns the request of the run.
    pub(crate) fn request(&self) -> &RunRequest {
        match self {
            Self::Begin(request) | Self::RollBack(request, _) => request,
            Self::Resume(saved) => saved.request(),
        }
    }

    /// Returns the env steps that the run has made before.
    pub(crate) fn env_steps(&self) -> u64 {
        match self {
            Self::Begin(_) => 0,
            Self::Resume(saved) => saved.env_steps(),
            Self::RollBack(_, resumed) => resumed.saved.as_ref().map_or(0, |saved| saved.policy.env_steps),
        }
    }
}

/// The use of a run's rows.
pub(crate) enum RunWork {
    /// A learner learns from them.
    Learn,
    /// These workers sample or read them, and one of them learns.
    LearnOver(Box<dyn RowSource>),
    /// There is no learner.
    Take(Taker),
}

/// The taker of the rows of a run without a learner.
pub(crate) enum Taker {
    /// It is part of the run's checkpoints.
    Rows(Box<dyn TakeRows>),
    /// The caller. Its run cannot be resumed.
    Caller(mpsc::Sender<Vec<SlotFragment>>),
}

/// The settings of the hub's own workers in a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerTerms {
    /// Initial number of workers.
    pub(crate) num_workers: u32,
    /// Environment variables in addition to the hub's.
    pub(crate) extra_environs: BTreeMap<String, String>,
    /// Resources that each of them needs; `None` for the hub's own setting.
    pub(crate) spec: Option<WorkerSpec>,
}

/// A run in progress, or over.
pub(crate) struct Run {
    /// The decisions about it, without I/O.
    pub(crate) state: RunLoop,
    pub(crate) worker_terms: WorkerTerms,
    /// The discount of its policies, for their checkpoints.
    gamma: f64,
    /// The request: its configuration and its files.
    pub(crate) request: RunRequest,
    /// `None` once the run is over, so that the caller that takes its batches sees the end.
    consumer: Option<Consumer>,
    files: Option<RunFiles>,
    /// The end of an output of earlier processes, to which this one adds nothing.
    old_output: Option<OutputPlace>,
    /// True if only the first rows of the last batch's fragments were taken.
    is_last_batch_cut: bool,
    /// The rows that a run without a learner has handed out; `None` for one with a learner or a caller.
    taken: Option<TakenRows>,
    /// Snapshots after the iterations to which it may have to roll back.
    snapshots: BTreeMap<u64, Snapshot>,
    /// Warnings about its start for users.
    pub(crate) warnings: Vec<String>,
    /// Metrics of earlier processes for dashboards, thinned out, until the hub takes them.
    pub(crate) history: Vec<IterationMetrics>,
    /// Evaluations of earlier processes.
    pub(crate) evaluations: Vec<EvaluationPoint>,
    /// `None` if it is not evaluated, or is over.
    evaluation: Option<RunEvaluation>,
    /// The result of its latest evaluation.
    evaluated: Option<EvaluationMetrics>,
    /// Watches the run's own worker, if it samples itself.
    watchdog: Option<Watchdog>,
    /// Records the episodes of a run over leases, if it is to.
    recording: Option<Recording>,
    /// Local workers that were started in place of others and have not joined yet.
    replacing: BTreeSet<u32>,
    /// Those that have joined since the last batch.
    recreated: Vec<u32>,
    /// The reports of reading so far.
    read: ReadMetrics,
    /// An unbalanced ledger, to test its consequences.
    #[cfg(test)]
    pub(crate) false_ledger: Option<Ledger>,
}

/// An error of beginning a run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Config(#[from] RunRequestError),
    #[error("the learner's state: {0}")]
    Learner(#[from] LearnError),
    #[error(
        "the run was saved by {} and would be resumed by {}: resume it with the --data-parallel and --world-size that it began with",
        ranks(*.saved), ranks(*.now)
    )]
    Ranks { saved: Option<u32>, now: Option<u32> },
    #[error("cannot start the learner's thread: {0}")]
    Thread(#[from] io::Error),
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    #[error(transparent)]
    Resume(#[from] ResumeError),
    #[error("the output cannot be opened: {0}")]
    Output(#[from] OfflineError),
    #[error("monitor_path: {0}")]
    Monitor(#[from] MonitorError),
    #[error(transparent)]
    Learning(#[from] LearningStartError),
    #[error(transparent)]
    Loop(#[from] RunLoopError),
    #[error(transparent)]
    Launch(LaunchError),
    #[error(transparent)]
    Fingerprint(#[from] PythonFingerprintError),
    #[error("the environment was not made within {0} s (hung_worker_timeout_s)")]
    TooLate(f64),
    #[error("making the environment or the policies panicked")]
    Panicked,
    #[error(transparent)]
    Refused(#[from] StartRefusal),
    #[error("the run was removed before it began")]
    Removed,
}

fn ranks(world_size: Option<u32>) -> String {
    world_size.map_or_else(|| "one process that learns alone".into(), |ranks| format!("{ranks} ranks"))
}

impl Run {
    /// Returns the settings of the run.
    pub(crate) fn config(&self) -> &RunConfig {
        self.state.config()
    }

    /// Returns whether its rows are taken in this process.
    fn takes_rows(&self) -> bool {
        matches!(self.consumer, Some(Consumer::Rows { .. }))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.is_over()
    }

    /// Returns whether its batches were for a caller that has dropped its receiver.
    pub(crate) fn is_unwanted(&self) -> bool {
        matches!(&self.consumer, Some(Consumer::Caller(batches)) if batches.is_closed())
    }

    /// Passes a batch to its consumer, unless the run is over.
    pub(crate) fn submit(&mut self, work: BatchWork) -> Option<Consuming> {
        if let Some(recording) = &mut self.recording {
            recording.add(work.fragments(), |version| self.state.weights_of(version));
        }
        let recreated = mem::take(&mut self.recreated);
        Some(self.consumer.as_ref()?.submit(work, results_before(&self.state), recreated))
    }

    /// Records that a local worker is to replace another one.
    pub(crate) fn await_replacement(&mut self, worker: u32) {
        self.replacing.insert(worker);
    }

    /// Records, for the callbacks, that a local worker has joined, if it replaces another one.
    pub(crate) fn record_joined(&mut self, worker: u32) {
        self.recreated.extend(self.replacing.take(&worker));
    }

    /// Applies the learner's result for the batch.
    pub(crate) fn handle_update(&mut self, learned: Learned, observed: Observed, now: Micros) -> IterationMetrics {
        let Learned { weights, infos, added } = learned;
        self.state.handle_learned(weights, observed, now);
        let stats = UpdateStats::mean_of(infos.values());
        IterationMetrics {
            policies: if self.state.has_one_policy() { BTreeMap::new() } else { infos },
            custom: added,
            ..IterationMetrics::new(&self.state, stats, now)
        }
    }

    /// Counts a batch that was taken, as a whole or only the first rows of its fragments.
    pub(crate) fn handle_taken(&mut self, is_cut: bool, rows: Option<TakenRows>, now: Micros) -> IterationMetrics {
        (self.is_last_batch_cut, self.taken) = (is_cut, rows);
        self.state.handle_taken(now);
        let left = self.config().stop.env_steps.saturating_sub(self.state.env_steps());
        if (1..self.state.batch_env_steps()).contains(&left)
            && let Some(files) = &mut self.files
        {
            // Only the first rows of the next batch are taken: the run can be resumed from before it.
            files.saver.hurry();
        }
        IterationMetrics::new(&self.state, UpdateStats::default(), now)
    }

    /// Writes an entry of the journal of asynchronous decisions, if the run has files and needs it for a replay.
    pub(crate) fn add_to_journal(&mut self, entry: &JournalEntry) -> Option<LineNotice> {
        self.files.as_mut().and_then(|files| files.dir.add_to_journal(entry))
    }

    /// Writes a line of metrics, if the run has files.
    pub(crate) fn write_metrics(&mut self, metrics: &IterationMetrics) -> Vec<LineNotice> {
        self.files.as_mut().map_or_else(Vec::new, |files| files.dir.add_metrics(metrics))
    }

    /// Retries lines that could not be written.
    pub(crate) fn retry_lines(&mut self) -> Vec<LineNotice> {
        self.files.as_mut().map_or_else(Vec::new, |files| files.dir.retry())
    }

    /// Returns the reason that an episode was not recorded, once for each reason.
    pub(crate) fn poll_recording(&mut self) -> Option<String> {
        self.recording.as_mut()?.poll_fault()
    }

    /// Finishes the recording of a run that is over, if there is one.
    pub(crate) fn finish_recording(&mut self) -> Option<LastPictures> {
        self.recording.take().map(Recording::finish)
    }

    /// Returns an error if an env step was lost or counted twice.
    pub(crate) fn check_ledger(&self) -> Result<(), UnbalancedLedger> {
        #[cfg(test)]
        if let Some(ledger) = &self.false_ledger {
            return ledger.check();
        }
        self.state.check_ledger()
    }

    /// Ends the run, of which `unaudited` fragments are still being recomputed, and writes its last files. A run whose policy or
    /// summary cannot be written has failed; other files that cannot be written are named alongside the summary.
    pub(crate) fn end(&mut self, end: RunEnd, unaudited: u64, now: Micros) -> (Summary, Vec<String>) {
        let end = self.check_ledger().map_or_else(RunEnd::Unbalanced, |()| end);
        self.interrupt();
        self.record_own_failures();
        let (ended, mut faults) = self.finish_saving(now);
        self.consumer.take().into_iter().for_each(Consumer::finish);
        let evaluations = self.evaluation.take().map_or_else(Default::default, RunEvaluation::end);
        self.state.end(&end, now);
        let mut summary = Summary {
            evaluations,
            unaudited,
            failed_checkpoints: ended.as_ref().map_or(0, |ended| ended.failed_checkpoints),
            unsaved: ended.as_ref().and_then(|ended| ended.unsaved.clone()),
            lost_lines: ended.as_ref().map_or(0, |ended| ended.lost_lines),
            ..self.summary(end, now)
        };
        if let Some(ended) = ended
            && let Err(error) = ended.write(&self.policy(), self.state.group.ledger(), &summary)
        {
            let error = format!("the run's last files could not be written: {error}");
            // The error of a failed run is the reason; otherwise a run without its result files has failed.
            match summary.end.error() {
                Some(_) => faults.push(error),
                None => {
                    // A stopped or drained run may have an error, too, for example that a worker hangs.
                    let error =
                        summary.error.take().map_or_else(|| error.clone(), |earlier| format!("{earlier}; {error}"));
                    self.state.fail(error.clone());
                    summary.error = Some(error.clone());
                    summary.end = RunEnd::Failed(error);
                    // It may be the file that cannot be written.
                    faults.extend(ended.write_summary(&summary).err().map(|error| error.to_string()));
                }
            }
        }
        (summary, faults)
    }

    /// Returns the results so far of a run with this end.
    pub(crate) fn summary(&self, end: RunEnd, now: Micros) -> Summary {
        let state = &self.state;
        let causes = state.not_reproducible();
        let learned =
            || TakenRows { env_steps: state.env_steps(), episode_return_mean: state.episodes().return_mean() };
        let TakenRows { env_steps, episode_return_mean } = self.taken.unwrap_or_else(learned);
        Summary {
            env: state.config().env().into(),
            algo: state.algo().into(),
            seed: state.config().rollout.seed,
            solved: end == RunEnd::Solved,
            iterations: state.iteration(),
            env_steps,
            episode_return_mean,
            evaluation: self.evaluated.clone(),
            evaluations: self.evaluation.as_ref().map_or_else(Default::default, RunEvaluation::counts),
            read: self.read.clone(),
            wall_s: state.elapsed(now).as_secs_f64(),
            weights_hash: state.weights_hash(),
            policies: state.policy_hashes(),
            reproducible: causes.is_empty(),
            not_reproducible: causes,
            tainted: state.is_tainted(),
            unaudited: 0,
            failed_checkpoints: 0,
            unsaved: None,
            lost_lines: 0,
            moved_slots: state.group.moved_slots(),
            abandoned_episodes: state.group.ledger().abandoned_episodes,
            inferred_rows: state.inferred_rows(),
            failures: Failures::of(&state.group),
            error: end.error().or_else(|| state.error()),
            end,
        }
    }
}

impl HubRun for Run {
    fn state(&self) -> &RunLoop {
        &self.state
    }

    fn state_mut(&mut self) -> &mut RunLoop {
        &mut self.state
    }

    fn facts(&mut self, roll_back_before: Option<FragmentNo>, now: Micros) -> RunFacts {
        RunFacts {
            num_workers: self.worker_terms.num_workers,
            keeps_last_batch: self.has_files() || self.takes_rows(),
            has_ranks: self.has_ranks(),
            has_ranks_to_notify: self.has_ranks_to_notify(),
            awaits_evaluation: self.awaits_evaluation(now),
            may_be_undone: roll_back_before.is_some_and(|before| self.may_be_undone(before.0)),
            ..RunFacts::default()
        }
    }

    fn keep_for_undoing(&mut self, now: Micros) {
        self.keep_snapshot(now);
    }

    fn interrupt(&self) {
        if let Some(Consumer::Local { is_interrupted, .. }) = &self.consumer {
            is_interrupted.store(true, Ordering::Relaxed);
        }
    }

    /// Marks the run as tainted. A resuming process needs that mark, so a checkpoint is written soon.
    fn taint(&mut self) {
        self.state.taint();
        if let Some(files) = &mut self.files {
            files.saver.hurry();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rollmesh_core::{ids::LeaseId, kernels::Kernels, protocol::Phase, worker::Registry};

    use super::{super::row_source::StartReaders, *};

    /// Begins a run with a learner, without files and readers.
    pub(in super::super) fn begin(config: RunConfig) -> Run {
        let registry = crate::registry::native(Registry::builtin());
        let start_readers: StartReaders = |_, _, _| Err("there are no readers".into());
        let maker = RunMaker { registry, kernels: Kernels::PORTABLE, program: "".into(), start_readers };
        let parts = maker.make(RunTask::Begin(Box::new(config.into())), RunWork::Learn).unwrap();
        let place = RunPlace { number: 1, maker: &maker, first_lease: LeaseId(0), clock: &|| Micros(0) };
        Run::new(place, parts).unwrap()
    }

    #[test]
    fn run_with_unbalanced_ledger_fails_and_is_not_saved() {
        let config = RunConfig::new("CartPole-v1").num_workers(1).num_envs(2).fcnet_hiddens(&[4]);
        let mut run = begin(config.rollout_fragment_length(8));
        assert!(run.take_snapshot(Micros(0)).is_some());
        let ledger = Ledger { granted: 8, committed: 7, consumed: 7, ..Ledger::default() };
        run.false_ledger = Some(ledger);
        assert!(run.take_snapshot(Micros(0)).is_none());
        let (summary, _) = run.end(RunEnd::Finished, 0, Micros(0));
        let unbalanced = RunEnd::Unbalanced(UnbalancedLedger(Box::new(ledger)));
        assert_eq!((summary.end, run.state.phase()), (unbalanced, Phase::Failed));
        assert!(run.state.status(Micros(0)).error.starts_with("the ledger does not balance: of 8 granted"));
    }
}
