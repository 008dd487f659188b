//! Calls of the hub, which are done one after the other.

use super::is_report_due;
use crate::{
    ids::CallId,
    prelude::*,
    protocol::message,
    time::Micros,
    worker::{
        CalledWorker, CommandError, CommandErrorKind, Guard, RolloutWorkerBuilder, WorkerAnswer, WorkerCommand,
        WorkerSetup,
    },
};

/// Calls that may wait: more than a hub has open per worker.
const MAX_WAITING: usize = 2_048;
/// Bytes of the calls that may wait: a few of the largest.
const MAX_WAITING_BYTES: usize = 256 << 20;

/// The calls of a session, and the worker that they are for.
pub(super) struct Calls {
    worker: CalledWorker,
    /// Whether settings may name files, folders and environment variables of this machine.
    takes_host_settings: bool,
    waiting: VecDeque<(CallId, Task)>,
    bytes: usize,
    /// When it was last told that a call is worked on.
    reported: Micros,
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

/// What a part of a call has come to.
pub(super) enum Advanced {
    /// There is more to do. Not worth a message each time.
    Working,
    /// There is more to do, which the hub is to hear.
    Report(CallId),
    Done(Done),
}

/// What a call has brought.
pub(super) type Done = (CallId, Result<WorkerAnswer, CommandError>);

impl Calls {
    /// What knows the names of the program, with its shell, clock and kernels.
    pub(super) fn builder(&mut self) -> RolloutWorkerBuilder {
        self.worker.builder()
    }

    pub(super) fn new(worker: CalledWorker) -> Self {
        Self { worker, takes_host_settings: false, waiting: VecDeque::new(), bytes: 0, reported: Micros(0) }
    }

    pub(super) fn take_host_settings(&mut self) {
        self.takes_host_settings = true;
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

    /// Does the first call, or a part of it. None if there is none.
    pub(super) fn advance(&mut self, now: Micros) -> Option<Advanced> {
        let (call, task) = self.waiting.pop_front()?;
        self.bytes = self.bytes.saturating_sub(task.bytes());
        let command = match task {
            Task::SetUp(setup) => {
                return Some(Advanced::Done((call, self.made(&setup))));
            }
            Task::Command(body) => WorkerCommand::decode(&body),
            Task::Sample => Ok(WorkerCommand::Sample),
        };
        let result = match command {
            Ok(WorkerCommand::Sample) => match self.worker.sample_within(CalledWorker::SAMPLE_SPAN).transpose() {
                Some(sampled) => sampled,
                None => {
                    self.waiting.push_front((call, Task::Sample));
                    return Some(self.got_on(call, now));
                }
            },
            Ok(command) => self.worker.execute(command),
            Err(error) => Err(error),
        };
        Some(Advanced::Done((call, result)))
    }

    fn made(&mut self, setup: &message::WorkerSetup) -> Result<WorkerAnswer, CommandError> {
        let setup = WorkerSetup::read(setup)?;
        if !self.takes_host_settings {
            setup.refuse_host_settings()?;
        }
        self.worker.set_up(&setup)
    }

    /// A part of a sample was made, which takes a round of the environments at least.
    fn got_on(&mut self, call: CallId, now: Micros) -> Advanced {
        if !is_report_due(self.reported, now) {
            return Advanced::Working;
        }
        self.reported = now;
        Advanced::Report(call)
    }

    /// Forgets all calls, and stops the worker.
    pub(super) fn stop(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
        self.worker.stop();
    }
}
