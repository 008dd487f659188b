//! Threads that recompute fragments of the hub's run: for audits, and to draw them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc as std_mpsc,
    thread,
};

use rollmesh_core::{
    group::{AuditTask, Verdict},
    hub::ClipJob,
    kernels::Kernels,
    protocol::message::EnvClip,
    run::RunConfig,
    weights::Weights,
    worker::{Registry, RolloutWorkerBuilder, SlotRunner},
};
use tokio::sync::mpsc;

use super::actor::Actor;
use crate::NativeShell;

/// A fragment to recompute.
pub(super) trait Recompute: Send + 'static {
    /// What comes of it.
    type Outcome: Send + 'static;

    /// Returns the number of its run.
    fn run(&self) -> u32;

    /// Recomputes it.
    fn recompute(&self, runner: &mut SlotRunner) -> Self::Outcome;

    /// Returns the outcome if it cannot be recomputed.
    fn failed(&self, reason: &str) -> Self::Outcome;
}

/// An audit.
pub(super) struct AuditJob {
    pub(super) run: u32,
    pub(super) task: AuditTask,
    weights: Weights,
    /// Whether the rows come from a device: then their actions are replayed, and the rest is compared.
    device_rows: bool,
}

impl Recompute for AuditJob {
    type Outcome = Verdict;

    fn run(&self) -> u32 {
        self.run
    }

    fn recompute(&self, runner: &mut SlotRunner) -> Verdict {
        let made = match (self.device_rows, self.task.actions()) {
            (false, _) => runner.replay(self.task.lease(), &self.weights).ok(),
            (true, Some(actions)) => runner.replay_actions(self.task.lease(), &self.weights, actions).ok(),
            (true, None) => None,
        };
        let compare = if self.device_rows { AuditTask::verdict_of_actions } else { AuditTask::verdict };
        made.as_deref().and_then(<[_]>::first).map_or(Verdict::Unknown, |made| compare(&self.task, made))
    }

    fn failed(&self, _: &str) -> Verdict {
        Verdict::Unknown
    }
}

impl Recompute for ClipJob {
    type Outcome = EnvClip;

    fn run(&self) -> u32 {
        self.run()
    }

    fn recompute(&self, runner: &mut SlotRunner) -> EnvClip {
        self.draw(runner)
    }

    fn failed(&self, reason: &str) -> EnvClip {
        self.without_pictures(reason)
    }
}

/// A thread that recomputes fragments one after the other. It starts with the first one.
pub(super) struct Recomputer<J: Recompute> {
    name: &'static str,
    registry: Registry,
    kernels: Kernels,
    jobs: Option<std_mpsc::Sender<(J, RunConfig)>>,
    results: (mpsc::UnboundedSender<(J, J::Outcome)>, mpsc::UnboundedReceiver<(J, J::Outcome)>),
}

impl<J: Recompute> Recomputer<J> {
    pub(super) fn new(name: &'static str, registry: Registry, kernels: Kernels) -> Self {
        Self { name, registry, kernels, jobs: None, results: mpsc::unbounded_channel() }
    }

    /// Waits for the next result.
    pub(super) async fn next(&mut self) -> Option<(J, J::Outcome)> {
        self.results.1.recv().await
    }

    fn submit(&mut self, job: J, config: RunConfig) {
        if self.jobs.is_none() {
            let (jobs, queue) = std_mpsc::channel();
            let (registry, kernels, results) = (self.registry.clone(), self.kernels, self.results.0.clone());
            let work = move || recompute_all(&queue, &registry, kernels, &results);
            if thread::Builder::new().name(self.name.into()).spawn(work).is_ok() {
                self.jobs = Some(jobs);
            }
        }
        let lost = match &self.jobs {
            Some(jobs) => jobs.send((job, config)).err().map(|error| error.0.0),
            None => Some(job),
        };
        if let Some(job) = lost {
            let outcome = job.failed("the hub has no thread to recompute it");
            // The receiver is a part of this value.
            let _ = self.results.0.send((job, outcome));
        }
    }
}

fn recompute_all<J: Recompute>(
    queue: &std_mpsc::Receiver<(J, RunConfig)>,
    registry: &Registry,
    kernels: Kernels,
    results: &mpsc::UnboundedSender<(J, J::Outcome)>,
) {
    let mut runner: Option<(u32, SlotRunner)> = None;
    while let Ok((job, config)) = queue.recv() {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if runner.as_ref().is_none_or(|(of, _)| *of != job.run()) {
                let builder = RolloutWorkerBuilder::new(registry.clone())
                    .shell(Box::new(NativeShell::default()))
                    .kernels(kernels);
                match SlotRunner::new(&config, builder) {
                    Ok(new) => runner = Some((job.run(), new)),
                    Err(error) => return job.failed(&error.to_string()),
                }
            }
            runner.as_mut().map_or_else(|| job.failed(""), |(_, runner)| job.recompute(runner))
        }));
        // A panic in the environment proves nothing about the worker; the runner is rebuilt.
        let outcome = outcome.unwrap_or_else(|_| {
            runner = None;
            job.failed("the environment panicked")
        });
        if results.send((job, outcome)).is_err() {
            return;
        }
    }
}

impl Actor {
    /// Recomputes a fragment of the current run.
    pub(super) fn audit_fragment(&mut self, run: u32, task: AuditTask, weights: Weights) {
        if let Some(current) = &self.hub.run {
            let config = current.config().clone();
            self.auditor.submit(AuditJob { run, task, weights, device_rows: config.device_rows }, config);
        }
    }

    /// Draws a fragment of the current run.
    pub(super) fn draw_fragment(&mut self, job: ClipJob) {
        if let Some(current) = &self.hub.run {
            self.painter.submit(job, current.config().clone());
        }
    }
}
