//! Workers on threads of this process.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, mpsc},
    thread,
    time::Instant,
};

use rollmesh_core::{
    ids::{CallId, WorkerId},
    worker::{CalledWorker, CommandError, CommandErrorKind, RolloutWorkerBuilder, WorkerCommand},
};

use super::{
    GroupNotification,
    task::{self, Kind, Request, TaskAnswer},
};
use crate::{
    envs::{catch_panics, words},
    pulse::Pulse,
};

/// Makes worker builders with the program's registered names and the group's closures.
pub(super) type Factory = Arc<dyn Fn() -> RolloutWorkerBuilder + Send + Sync>;

/// The link to a worker on a thread. Dropping it ends the thread after its current call.
#[derive(Debug)]
pub(super) struct ThreadLink {
    calls: mpsc::Sender<(CallId, Arc<Request>)>,
    pulse: Pulse,
}

impl ThreadLink {
    /// Starts a thread. Its answers contain this generation, so that those of an abandoned thread can be recognised.
    pub(super) fn start(
        id: WorkerId,
        generation: u64,
        factory: Factory,
        notifications: mpsc::Sender<GroupNotification>,
    ) -> io::Result<Self> {
        let (calls, inbox) = mpsc::channel();
        // Environments need not be `Send`: everything is created on the thread that uses it.
        let pulse = Pulse::default();
        let felt = pulse.clone();
        let serve = move || serve(id, generation, &factory, &inbox, &notifications, &felt);
        thread::Builder::new().name(format!("worker-{id}")).spawn(serve)?;
        Ok(Self { calls, pulse })
    }

    /// Returns when the worker last made progress with a sample.
    pub(super) fn last_progress(&self) -> Instant {
        self.pulse.last()
    }

    /// Returns false if the thread has ended.
    pub(super) fn send(&self, call: CallId, request: Arc<Request>) -> bool {
        self.calls.send((call, request)).is_ok()
    }
}

fn serve(
    id: WorkerId,
    generation: u64,
    factory: &Factory,
    inbox: &mpsc::Receiver<(CallId, Arc<Request>)>,
    notifications: &mpsc::Sender<GroupNotification>,
    pulse: &Pulse,
) {
    let factory = factory.clone();
    let mut called = CalledWorker::new(move || factory());
    called.set_guard(catch_panics);
    while let Ok((call, request)) = inbox.recv() {
        let result = answer(id, &mut called, &request, pulse);
        if notifications.send(GroupNotification::Answer { worker: id, generation, call, result }).is_err() {
            break;
        }
    }
    called.stop();
}

fn answer(
    id: WorkerId,
    called: &mut CalledWorker,
    request: &Request,
    pulse: &Pulse,
) -> Result<TaskAnswer, CommandError> {
    match &request.0 {
        Kind::Command(WorkerCommand::Sample, _) => loop {
            if let Some(sample) = called.sample_within(CalledWorker::SAMPLE_SPAN)? {
                return Ok(TaskAnswer::Answer(sample));
            }
            pulse.beat();
        },
        Kind::Setup(setup) => called.set_up(setup).map(TaskAnswer::Answer),
        Kind::Command(command, _) => called.execute(command.clone()).map(TaskAnswer::Answer),
        Kind::Code(_) => match called.worker_mut() {
            Some(worker) => guarded(|| task::run(id, worker, request)),
            None => Err(CommandError::new(CommandErrorKind::NotSetUp, "no worker is set up here")),
        },
    }
}

/// Converts a panic to an error.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, CommandError>) -> Result<T, CommandError> {
    // A panic leaves the worker in no worse state than an error would.
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|panic| Err(CommandError::new(CommandErrorKind::Panicked, words(&*panic))))
}
