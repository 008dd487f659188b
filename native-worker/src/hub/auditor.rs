//! Audits: fragments of untrusted workers recomputed on a thread of the hub, and the consequences of a failed audit.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc as std_mpsc,
    thread,
};

use rollmesh_core::{
    group::{AuditPolicy, AuditTask, Verdict},
    ids::FragmentNo,
    kernels::Kernels,
    protocol::Phase,
    run::RunConfig,
    weights::Weights,
    worker::{Registry, RolloutWorkerBuilder, SlotRunner},
};
use tokio::sync::mpsc;

use super::{actor::Actor, checkpoints::CheckpointNowError};
use crate::{
    NativeShell,
    train::{Undone, Work},
};

/// Which workers a hub does not trust, and how it audits them.
///
/// Browser tabs are not trusted, nor are workers with a token that a page requested. Local workers are trusted. Other remote
/// workers are trusted unless [`distrust_remote`](Self::distrust_remote) is set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Distrust {
    /// Which of their fragments the hub recomputes.
    pub audits: AuditPolicy,
    /// Whether to distrust all workers that are not the hub's own. Give each such worker a token of its own: if workers
    /// share the hub's own token, each principal is a single connection, and no token is revoked.
    pub distrust_remote: bool,
    /// What happens to a run after a failed audit.
    pub on_divergence: OnDivergence,
}

/// What happens to a run after an untrusted worker failed an audit and its token was revoked. A run that only samples always
/// continues, marked as tainted: its batches have been handed over and cannot be recalled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum OnDivergence {
    /// The run goes back to before the divergent worker's first unaudited fragment.
    #[default]
    RollBack,
    /// It goes on, and its summary says that it is tainted.
    Continue,
}

/// The thread that recomputes fragments. It starts with the first audit.
pub(super) struct Auditor {
    registry: Registry,
    kernels: Kernels,
    jobs: Option<std_mpsc::Sender<Job>>,
    results: (mpsc::UnboundedSender<Audited>, mpsc::UnboundedReceiver<Audited>),
}

struct Job {
    run: u32,
    config: RunConfig,
    weights: Weights,
    task: AuditTask,
}

/// Result of an audit.
pub(super) struct Audited {
    pub(super) run: u32,
    pub(super) task: AuditTask,
    pub(super) verdict: Verdict,
}

impl Auditor {
    pub(super) fn new(registry: Registry, kernels: Kernels) -> Self {
        Self { registry, kernels, jobs: None, results: mpsc::unbounded_channel() }
    }

    /// Waits for the next result.
    pub(super) async fn next(&mut self) -> Option<Audited> {
        self.results.1.recv().await
    }

    fn submit(&mut self, job: Job) {
        if self.jobs.is_none() {
            let (jobs, queue) = std_mpsc::channel();
            let (registry, kernels, results) = (self.registry.clone(), self.kernels, self.results.0.clone());
            let audit = move || audit_all(&queue, &registry, kernels, &results);
            if thread::Builder::new().name("audits".into()).spawn(audit).is_ok() {
                self.jobs = Some(jobs);
            }
        }
        // Without a thread, or after it has ended, the verdict is unknown.
        let lost = match &self.jobs {
            Some(jobs) => jobs.send(job).err().map(|error| error.0),
            None => Some(job),
        };
        if let Some(Job { run, task, .. }) = lost {
            let _ = self.results.0.send(Audited { run, task, verdict: Verdict::Unknown });
        }
    }
}

fn audit_all(
    queue: &std_mpsc::Receiver<Job>,
    registry: &Registry,
    kernels: Kernels,
    results: &mpsc::UnboundedSender<Audited>,
) {
    let mut runner: Option<(u32, SlotRunner)> = None;
    while let Ok(Job { run, config, weights, task }) = queue.recv() {
        let mut made = || -> Result<Verdict, Box<dyn Any + Send>> {
            catch_unwind(AssertUnwindSafe(|| {
                if runner.as_ref().is_none_or(|(of, _)| *of != run) {
                    let builder = RolloutWorkerBuilder::new(registry.clone())
                        .shell(Box::new(NativeShell::default()))
                        .kernels(kernels);
                    runner = SlotRunner::new(&config, builder).ok().map(|runner| (run, runner));
                }
                let Some((_, runner)) = &mut runner else { return Verdict::Unknown };
                let made = match (config.device_rows, task.actions()) {
                    (false, _) => runner.replay(task.lease(), &weights).ok(),
                    (true, Some(actions)) => runner.replay_actions(task.lease(), &weights, actions).ok(),
                    (true, None) => None,
                };
                let compare = if config.device_rows { AuditTask::verdict_of_actions } else { AuditTask::verdict };
                made.as_deref().and_then(<[_]>::first).map_or(Verdict::Unknown, |made| compare(&task, made))
            }))
        };
        // A panic in the environment proves nothing about the worker; the runner is rebuilt.
        let verdict = made().unwrap_or_else(|_| {
            runner = None;
            Verdict::Unknown
        });
        if results.send(Audited { run, task, verdict }).is_err() {
            return;
        }
    }
}

impl Actor {
    /// Recomputes a fragment of the current run.
    pub(super) fn audit_fragment(&mut self, run: u32, task: AuditTask, weights: Weights) {
        if let Some(current) = &self.hub.run {
            self.auditor.submit(Job { run, config: current.config().clone(), weights, task });
        }
    }

    /// Rolls the run back to before a batch.
    pub(super) fn roll_back(&mut self, FragmentNo(first): FragmentNo) {
        self.hub.forget_run();
        let Some(mut run) = self.hub.run.take() else { return };
        self.update = None;
        self.next_lease = run.state.group.next_lease_id();
        let (before, phase, undone) = (run.state.iteration(), run.state.phase(), run.undo(first));
        drop(run);
        let restarted = match undone {
            Ok(Undone { task, iteration, rejected }) => {
                self.hub.notice(
                    1,
                    format!("the run goes back from iteration {before} to {iteration}, before the rows of a quarantined principal"),
                );
                // This environment could be made before, so the hub does not wait for long.
                let parts = self.maker.make(task, Work::Learn);
                let started = parts.and_then(|parts| self.begin_run(None, parts)).map_err(|error| error.to_string());
                if let Some(run) = &mut self.hub.run {
                    run.state.group.count_taken_back(rejected);
                }
                started
            }
            Err(error) => Err(error),
        };
        match restarted {
            Ok(()) => self.be_again(phase),
            Err(error) => {
                self.hub.notice(2, format!("the run could not go back to before these rows, and is over: {error}"));
                self.run_is_lost();
            }
        }
    }

    /// Re-applies operators' commands (pause, stop, checkpoints) to a run that was rolled back.
    fn be_again(&mut self, phase: Phase) {
        self.askers.ask_again();
        let now = self.now();
        let now_paused =
            self.hub.run.as_mut().filter(|_| phase == Phase::Paused).map_or(Ok(()), |run| run.state.pause(now));
        debug_assert!(now_paused.is_ok(), "a run that has just begun can be paused");
        if phase == Phase::Draining {
            self.hub.drain_run();
        }
        self.save_if_due();
    }

    /// Cleans up after a run that was lost during a rollback and therefore has no summary.
    fn run_is_lost(&mut self) {
        self.done = None;
        // Commands for the lost run must not apply to the next one.
        self.hub.course.reset();
        self.turn = None;
        self.syncing.clear();
        self.refuse_checkpoints(CheckpointNowError::Ended);
        self.refresh_dashboards();
    }
}
