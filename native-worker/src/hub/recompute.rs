//! Threads that recompute fragments of the hub's run: for audits, and to draw them.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc as std_mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
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

/// The deadline for drawing a fragment.
const DRAWING_DEADLINE: Duration = Duration::from_secs(60);
/// Threads that may hang before no other one is started.
const MAX_HUNG: usize = 2;

/// A fragment to recompute.
pub(super) trait Recompute: Send + 'static {
    /// The result of recomputing it.
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
    /// True if the rows come from a device: then their actions are replayed, and the rest is compared.
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
    worker: Option<Worker<J>>,
    /// Threads that have missed their deadline. Their results are ignored.
    hung: Vec<JoinHandle<()>>,
    results: Results<J>,
}

/// The ends of a thread's results.
type Results<J> = (mpsc::UnboundedSender<Done<J>>, mpsc::UnboundedReceiver<Done<J>>);
type Done<J> = (J, <J as Recompute>::Outcome);

/// The thread and its queue.
struct Worker<J> {
    thread: JoinHandle<()>,
    jobs: std_mpsc::Sender<(J, RunConfig)>,
}

impl<J: Recompute> Recomputer<J> {
    pub(super) fn new(name: &'static str, registry: Registry, kernels: Kernels) -> Self {
        Self { name, registry, kernels, worker: None, hung: Vec::new(), results: mpsc::unbounded_channel() }
    }

    /// Waits for the next result.
    pub(super) async fn next(&mut self) -> Option<(J, J::Outcome)> {
        self.results.1.recv().await
    }

    fn submit(&mut self, job: J, config: RunConfig) {
        self.hung.retain(|thread| !thread.is_finished());
        if self.hung.len() >= MAX_HUNG {
            return self.refuse(job, "recomputing other fragments of it hangs");
        }
        if self.worker.is_none() {
            self.worker = self.start();
        }
        let lost = match &self.worker {
            Some(worker) => worker.jobs.send((job, config)).err().map(|error| error.0.0),
            None => Some(job),
        };
        if let Some(job) = lost {
            self.refuse(job, "the hub has no thread to recompute it");
        }
    }

    fn start(&self) -> Option<Worker<J>> {
        let (jobs, queue) = std_mpsc::channel();
        let (registry, kernels, results) = (self.registry.clone(), self.kernels, self.results.0.clone());
        let work = move || recompute_all(&queue, &registry, kernels, &results);
        let thread = thread::Builder::new().name(self.name.into()).spawn(work).ok()?;
        Some(Worker { thread, jobs })
    }

    /// Reports a job as failed.
    fn refuse(&self, job: J, reason: &str) {
        let outcome = job.failed(reason);
        // The receiver is a part of this value.
        let _ = self.results.0.send((job, outcome));
    }

    /// Abandons a thread that hangs with this job, whose failure is the next result. The next job starts another one.
    fn abandon(&mut self, job: J, reason: &str) {
        self.hung.extend(self.worker.take().map(|worker| worker.thread));
        self.results = mpsc::unbounded_channel();
        self.refuse(job, reason);
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
            self.drawing = Some((job.clone(), Instant::now() + DRAWING_DEADLINE));
            self.painter.submit(job, current.config().clone());
        }
    }

    /// Handles the pictures of a fragment.
    pub(super) fn handle_drawn(&mut self, clip: EnvClip) {
        self.drawing = None;
        self.hub.handle_clip(clip);
    }

    /// Abandons a drawing that has missed its deadline.
    pub(super) fn end_hung_drawing(&mut self) {
        let is_over = |(_, deadline): &mut (ClipJob, Instant)| Instant::now() >= *deadline;
        if let Some((job, _)) = self.drawing.take_if(is_over) {
            self.painter.abandon(job, "its environment has not been drawn within a minute: does `render` hang?");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job that is recomputed once the test drops the sender.
    struct Gated {
        number: u32,
        gate: std_mpsc::Receiver<()>,
    }

    impl Recompute for Gated {
        type Outcome = Result<u32, String>;

        fn run(&self) -> u32 {
            1
        }

        fn recompute(&self, _: &mut SlotRunner) -> Self::Outcome {
            assert!(self.gate.recv().is_err());
            Ok(self.number)
        }

        fn failed(&self, reason: &str) -> Self::Outcome {
            Err(reason.into())
        }
    }

    async fn outcome(painter: &mut Recomputer<Gated>) -> Result<u32, String> {
        painter.next().await.expect("the channel stays open").1
    }

    #[tokio::test]
    async fn hung_thread_is_replaced_and_its_late_result_ignored() {
        let mut painter = Recomputer::new("test", Registry::builtin(), Kernels::PORTABLE);
        let config = || RunConfig::sampling("CartPole-v1", 1);
        let job = |number| {
            let (open, gate) = std_mpsc::channel();
            (open, Gated { number, gate })
        };
        let abandon = |painter: &mut Recomputer<Gated>, number| painter.abandon(job(number).1, "it hangs");
        let (first_gate, first) = job(1);
        painter.submit(first, config());
        abandon(&mut painter, 1);
        assert_eq!(outcome(&mut painter).await, Err("it hangs".into()));
        let (gate, second) = job(2);
        painter.submit(second, config());
        drop(gate);
        assert_eq!(outcome(&mut painter).await, Ok(2));

        // After some, no other thread is started until one has ended.
        let (third_gate, third) = job(3);
        painter.submit(third, config());
        abandon(&mut painter, 3);
        assert!(outcome(&mut painter).await.is_err());
        painter.submit(job(4).1, config());
        assert!(outcome(&mut painter).await.is_err_and(|reason| reason.contains("hangs")));
        drop((first_gate, third_gate));
        while !painter.hung.iter().all(JoinHandle::is_finished) {
            thread::yield_now();
        }
        painter.submit(job(5).1, config());
        assert_eq!(outcome(&mut painter).await, Ok(5));
    }
}
