//! Calls of the hub, which are executed sequentially.

use super::is_report_due;
use crate::{
    ids::CallId,
    prelude::*,
    protocol::message,
    time::Micros,
    worker::{
        CalledWorker, CommandError, CommandErrorKind, Guard, RolloutConfig, RolloutWorkerBuilder, WorkerAnswer,
        WorkerCommand, WorkerSetup,
    },
};

/// Most queued calls: more than a hub has open per worker.
const MAX_WAITING: usize = 2_048;
/// Most bytes of queued calls: a few of the largest.
const MAX_WAITING_BYTES: usize = 256 << 20;

/// The calls of a session, and the worker that executes them.
pub(super) struct Calls {
    worker: CalledWorker,
    host_settings: HostSettings,
    env_memory_mb: Option<u32>,
    waiting: VecDeque<(CallId, Task)>,
    bytes: usize,
    /// When progress of a call was last reported.
    reported: Micros,
}

/// The treatment of settings that belong to the worker's machine: files, directories and environment variables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HostSettings {
    /// They are refused by name.
    #[default]
    Refused,
    /// Outputs are names of directories below this one; other settings are refused.
    Below(String),
    /// They are taken as they are: the hub is the process that started the worker.
    Taken,
}

/// The content of a call.
enum Task {
    SetUp(message::WorkerSetup),
    /// A command that is not decoded yet.
    Command(Vec<u8>),
    /// A sample in progress.
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

/// The result of executing a part of a call.
pub(super) enum Advanced {
    /// There is more to do, without a report.
    Working,
    /// There is more to do, and progress is to be reported to the hub.
    Report(CallId),
    Done(CallOutcome),
}

/// The result of a call.
pub(super) type CallOutcome = (CallId, Result<WorkerAnswer, CommandError>);

impl Calls {
    /// Returns a new builder with the names of the program, its shell, clock and kernels.
    pub(super) fn builder(&mut self) -> RolloutWorkerBuilder {
        self.worker.builder()
    }

    pub(super) fn new(worker: CalledWorker) -> Self {
        let (waiting, reported) = (VecDeque::new(), Micros(0));
        Self { worker, host_settings: HostSettings::Refused, env_memory_mb: None, waiting, bytes: 0, reported }
    }

    pub(super) fn set_env_memory(&mut self, mb: Option<u32>) {
        self.env_memory_mb = mb;
    }

    /// Puts this machine's limit into settings from the wire, which have none.
    pub(super) fn limit_memory(&self, config: &mut RolloutConfig) {
        config.remote_env_memory_mb = self.env_memory_mb.unwrap_or(config.remote_env_memory_mb);
    }

    pub(super) fn set_host_settings(&mut self, host_settings: HostSettings) {
        self.host_settings = host_settings;
    }

    pub(super) fn set_guard(&mut self, guard: Guard) {
        self.worker.set_guard(guard);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn set_up(&mut self, setup: message::WorkerSetup) -> Option<CallOutcome> {
        self.wait(CallId(setup.call), Task::SetUp(setup))
    }

    pub(super) fn call(&mut self, call: message::Call) -> Option<CallOutcome> {
        self.wait(CallId(call.call), Task::Command(call.body))
    }

    /// Queues a call; returns an error as its result if the queue is full.
    fn wait(&mut self, call: CallId, task: Task) -> Option<CallOutcome> {
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

    /// Executes the first call, or a part of it. `None` if there is none.
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
        let mut setup = WorkerSetup::read(setup)?;
        match &self.host_settings {
            HostSettings::Refused => setup.refuse_host_settings()?,
            HostSettings::Below(root) => setup.place_outputs(root)?,
            HostSettings::Taken => return self.worker.set_up(&setup),
        }
        self.limit_memory(&mut setup.config);
        self.worker.set_up(&setup)
    }

    /// Returns the progress to report after a part of a sample, if a report is due. A part takes a round of the
    /// environments at least.
    fn got_on(&mut self, call: CallId, now: Micros) -> Advanced {
        if !is_report_due(self.reported, now) {
            return Advanced::Working;
        }
        self.reported = now;
        Advanced::Report(call)
    }

    /// Drops all calls, and stops the worker.
    pub(super) fn stop(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
        self.worker.stop();
    }
}
