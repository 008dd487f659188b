//! Calls of the hub, which are done one after the other.

use crate::{
    ids::CallId,
    prelude::*,
    protocol::message,
    time::Micros,
    worker::{CalledWorker, CommandError, CommandErrorKind, Guard, WorkerAnswer, WorkerCommand, WorkerSetup},
};

/// Calls that may wait: more than a hub has open per worker.
const MAX_WAITING: usize = 2_048;
/// Bytes of the calls that may wait: a few of the largest.
const MAX_WAITING_BYTES: usize = 256 << 20;
/// How long a sample is made at a time. Between two spans the session hears messages.
const SAMPLE_SPAN: Micros = Micros::from_millis(20);

/// The calls of a session, and the worker that they are for.
pub(super) struct Calls {
    worker: CalledWorker,
    waiting: VecDeque<(CallId, Task)>,
    bytes: usize,
}

/// What is to be done.
enum Task {
    SetUp(message::WorkerSetup),
    /// Not read yet.
    Command(Vec<u8>),
    /// A sample that has begun.
    Sample,
}

impl Task {
    fn bytes(&self) -> usize {
        match self {
            Self::SetUp(setup) => setup.config.len(),
            Self::Command(body) => body.len(),
            Self::Sample => 0,
        }
    }
}

/// What a call has brought.
pub(super) type Done = (CallId, Result<WorkerAnswer, CommandError>);

impl Calls {
    pub(super) fn new(worker: CalledWorker) -> Self {
        Self { worker, waiting: VecDeque::new(), bytes: 0 }
    }

    pub(super) fn set_guard(&mut self, guard: Guard) {
        self.worker.set_guard(guard);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn set_up(&mut self, setup: message::WorkerSetup) -> Option<Done> {
        self.wait(CallId(setup.call), Task::SetUp(setup))
    }

    pub(super) fn call(&mut self, call: message::Call) -> Option<Done> {
        self.wait(CallId(call.call), Task::Command(call.body))
    }

    /// Lets a call wait for its turn; its end if there is no room for it.
    fn wait(&mut self, call: CallId, task: Task) -> Option<Done> {
        let bytes = self.bytes.saturating_add(task.bytes());
        if self.waiting.len() == MAX_WAITING || bytes > MAX_WAITING_BYTES {
            let waiting = self.waiting.len();
            let why = format!("{waiting} calls of {} bytes wait already", self.bytes);
            return Some((call, Err(CommandError::new(CommandErrorKind::Busy, why))));
        }
        self.bytes = bytes;
        self.waiting.push_back((call, task));
        None
    }

    /// Does the first call, or a part of it. What it has brought, if it is done.
    pub(super) fn advance(&mut self) -> Option<Done> {
        let (call, task) = self.waiting.pop_front()?;
        self.bytes = self.bytes.saturating_sub(task.bytes());
        let command = match task {
            Task::SetUp(setup) => {
                let made = WorkerSetup::read(&setup).and_then(|setup| self.worker.set_up(&setup));
                return Some((call, made));
            }
            Task::Command(body) => WorkerCommand::decode(&body),
            Task::Sample => Ok(WorkerCommand::Sample),
        };
        let result = match command {
            Ok(WorkerCommand::Sample) => match self.worker.sample_within(SAMPLE_SPAN).transpose() {
                Some(sampled) => sampled,
                None => {
                    self.waiting.push_front((call, Task::Sample));
                    return None;
                }
            },
            Ok(command) => self.worker.execute(command),
            Err(error) => Err(error),
        };
        Some((call, result))
    }

    /// Forgets all calls, and stops the worker.
    pub(super) fn stop(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
        self.worker.stop();
    }
}
