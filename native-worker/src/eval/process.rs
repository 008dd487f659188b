//! An engine in a process of its own, which answers the calls of its supervisor over pipes.

use std::{
    io::{self, BufReader, ErrorKind, Read},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Command, ExitStatus},
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        mpsc::{self, Receiver},
    },
    thread,
    time::Duration,
};

use rollmesh_core::{
    eval_worker::{EvalCommand, EvalDone, EvalMakers},
    evaluation::{EvalWorkerError, EvaluatorOptions, Ticket},
    ids::CallId,
    protocol::{
        Message,
        message::{CallCancel, CallProgress, CallResult, EnvClip},
    },
    run::RunConfig,
    worker::{CommandError, CommandErrorKind, Registry, WorkerAnswer, WorkerCommand},
};
use serde::{Deserialize, Serialize};

use super::{
    engine::{self, EngineReport},
    names::WORKER_COMMAND,
};
use crate::{
    child::{
        self, Child, ChildStreams, ConfineFlags, Confinement, LastWords, check_is_not_one, end_with_pipe, read_json,
        read_message, take_stdio, write_json, write_message,
    },
    envs::{catch_panics, python},
    kernels,
    launch::{Grant, Inventory},
    registry::{acting_on, device_of},
};

/// The hidden command that runs the process of an evaluation.
pub(crate) const ENGINE_COMMAND: &str = "eval-engine";

/// Refuses to start an evaluation process from a program that was itself started as one but did not act as one.
pub(super) fn check_not_started_as_one() -> Result<(), EvalWorkerError> {
    let checked = [ENGINE_COMMAND, WORKER_COMMAND].into_iter().try_for_each(check_is_not_one);
    checked.map_err(|reason| EvalWorkerError::setup("process", reason))
}

/// The time for reading from a process that has ended, and the time for a process to end.
const GRACE: Duration = Duration::from_secs(1);

/// The lowest priority: when all processors are busy, it gets about a hundredth of one.
const NICE: i32 = 19;

/// The resources that this process may grant its engines.
static INVENTORY: LazyLock<Inventory> = LazyLock::new(Inventory::of_machine);

/// The call whose answer shows that the engine is ready. Evaluations use the numbers of their tickets, from 1 on.
const READY: Ticket = Ticket(0);

/// The engine's run and resource limits, which its process reads first.
#[derive(Serialize, Deserialize)]
struct Birth {
    run: RunConfig,
    confine: ConfineFlags,
    pictures: Pictures,
}

/// The pictures that an engine's evaluations are to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pictures {
    /// As many as its limit of bytes admits.
    All,
    /// Not more than fit into a dashboard's clip.
    Clip,
}

impl Pictures {
    /// Maximum number of bytes of those for a clip, before they are reduced and compressed.
    const MAX_CLIP_BYTES: usize = 64 << 20;

    fn limit(self, options: EvaluatorOptions) -> EvaluatorOptions {
        match self {
            Self::All => options,
            Self::Clip => {
                EvaluatorOptions { max_frames: EnvClip::MAX_STEPS, max_frame_bytes: Self::MAX_CLIP_BYTES, ..options }
            }
        }
    }
}

/// The supervisor's side of the process. Dropping it kills the process and its child processes.
pub(super) struct EvalProcess {
    child: Arc<Mutex<Child>>,
    _grant: Grant,
}

impl EvalProcess {
    /// Starts the program. `send_report` gets its reports, and the end of its standard error when it exits.
    pub(super) fn start(
        program: &Path,
        (run, pictures): (&RunConfig, Pictures),
        commands: Receiver<EvalCommand>,
        send_report: impl Fn(Result<EngineReport, String>) -> bool + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let grant = INVENTORY.grant(&run.host.evaluator).map_err(io::Error::other)?;
        let confinement = Confinement { cpus: grant.cpus(), gpus: grant.gpus(), memory: grant.memory() };
        let birth = Birth { run: run.clone(), confine: confinement.flags(), pictures };
        let mut command = Command::new(program);
        command
            .arg(ENGINE_COMMAND)
            .envs(&run.rollout.extra_environs)
            .envs(confinement.variables())
            .envs(python::child_environs());
        let (child, ChildStreams { stdin, stdout, stderr }) = child::spawn(command)?;
        let child = Arc::new(Mutex::new(child));
        let process = Self { child: child.clone(), _grant: grant };
        // A hung process does not read: only this thread blocks on it, until it is killed.
        let refuse = send_report.clone();
        thread::Builder::new().name("eval-commands".into()).spawn(move || {
            // If the process ends, the other thread reports it.
            let _ = write_json(&stdin, &birth).and_then(|()| send_all(&commands, &stdin, refuse));
        })?;
        let words = LastWords::listen(stderr)?;
        thread::Builder::new().name("eval-reports".into()).spawn(move || {
            let error = receive(&mut BufReader::new(stdout), &send_report);
            let status = child.lock().unwrap_or_else(PoisonError::into_inner).kill();
            let words = words.recv_timeout(GRACE).unwrap_or_default();
            send_report(Err(farewell(&error, status, &words)));
        })?;
        Ok(process)
    }
}

impl Drop for EvalProcess {
    fn drop(&mut self) {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }
}

/// Sends commands to the process until it exits or there are no more.
fn send_all(
    commands: &Receiver<EvalCommand>,
    mut to: impl io::Write,
    send_report: impl Fn(Result<EngineReport, String>) -> bool,
) -> io::Result<()> {
    for command in commands {
        let (ticket, message) = match command {
            EvalCommand::Cancel(ticket) => (ticket, Ok(Message::CallCancel(CallCancel { call: ticket.0 }))),
            EvalCommand::Evaluate { ticket, weights, request } => {
                (ticket, WorkerCommand::Evaluate { weights, request }.message(CallId(ticket.0)))
            }
        };
        match message {
            Ok(message) => write_message(&mut to, &message)?,
            Err(error) => {
                _ = send_report(Ok(EngineReport::Done(EvalDone {
                    ticket,
                    result: Err(EvalWorkerError::failed(error)),
                })));
            }
        }
    }
    Ok(())
}

/// Reads a command of the supervisor.
fn command_in(message: Message) -> Option<EvalCommand> {
    match message {
        Message::CallCancel(cancel) => Some(EvalCommand::Cancel(Ticket(cancel.call))),
        Message::Call(call) => match WorkerCommand::decode(&call.body) {
            Ok(WorkerCommand::Evaluate { weights, request }) => {
                Some(EvalCommand::Evaluate { ticket: Ticket(call.call), weights, request })
            }
            Ok(_) | Err(_) => None,
        },
        _ => None,
    }
}

/// Returns the message of a report.
fn message(report: EngineReport) -> Message {
    let (ticket, result) = match report {
        EngineReport::Progress(ticket) => return Message::CallProgress(CallProgress { call: ticket.0 }),
        EngineReport::Ready => return WorkerAnswer::message(CallId(READY.0), &Ok(WorkerAnswer::Done)),
        EngineReport::Broken(error) => (READY, Err(error)),
        EngineReport::Done(EvalDone { ticket, result }) => (ticket, result),
    };
    let cancelled = || CommandError::new(CommandErrorKind::Cancelled, "the evaluation was cancelled");
    let result = result.transpose().map(|outcome| WorkerAnswer::Evaluated(Box::new(outcome))).ok_or_else(cancelled);
    WorkerAnswer::message(CallId(ticket.0), &result)
}

/// Reads the report of a result.
fn report(result: &CallResult) -> EngineReport {
    let ticket = Ticket(result.call);
    let result = match WorkerAnswer::read(result) {
        Ok(WorkerAnswer::Done) => return EngineReport::Ready,
        Ok(WorkerAnswer::Evaluated(outcome)) => outcome.map(Some),
        Ok(_) => Err(EvalWorkerError::failed("it answers something else")),
        Err(CommandError { kind: CommandErrorKind::Cancelled, .. }) => Ok(None),
        Err(error) => Err(EvalWorkerError::failed(error)),
    };
    match result {
        Err(error) if ticket == READY => EngineReport::Broken(error),
        result => EngineReport::Done(EvalDone { ticket, result }),
    }
}

/// Forwards the process's reports until it exits.
fn receive(from: &mut impl Read, send_report: &impl Fn(Result<EngineReport, String>) -> bool) -> io::Error {
    loop {
        let report = match read_message(&mut *from) {
            Ok(Message::CallResult(result)) => report(&result),
            Ok(Message::CallProgress(progress)) => EngineReport::Progress(Ticket(progress.call)),
            Ok(other) => return io::Error::new(ErrorKind::InvalidData, format!("it sends {:?}", other.kind())),
            Err(error) => return error,
        };
        send_report(Ok(report));
    }
}

fn farewell(error: &io::Error, status: Option<ExitStatus>, words: &LastWords) -> String {
    let end = match status.map(|status| (status.code(), status.signal())) {
        // It was ended because of that.
        _ if error.kind() == ErrorKind::InvalidData => error.to_string(),
        Some((Some(code), _)) => format!("exit code {code}"),
        Some((None, Some(signal))) => format!("signal {signal}"),
        _ => error.to_string(),
    };
    let words = words.to_string();
    if words.is_empty() { end } else { format!("{end}: {words}") }
}

/// Runs the process of an evaluation, until the supervisor closes the pipe.
pub(crate) fn serve_engine(registry: &Registry) -> io::Result<()> {
    let (mut heard, said) = take_stdio()?;
    let Birth { run, confine, pictures } = read_json(&mut heard)?;
    confine.apply().map_err(io::Error::other)?;
    if run.host.evaluator_is_nice {
        // If the system refuses, the priority stays as it is.
        let _ = rustix::process::nice(NICE);
    }
    // The init function comes before there is any thread.
    let acting = device_of(&run.host.evaluator).and_then(|device| acting_on(registry, device));
    let acting = acting.map_err(|error| EvalWorkerError::setup("device", error));
    let makers = acting.and_then(|registry| EvalMakers::of_run(&run, &registry, kernels::AUTO));
    let limited = |makers: EvalMakers| {
        let options = pictures.limit(makers.options().clone());
        makers.with_options(options)
    };
    let makers = makers.map(|makers| limited(makers).with_guard(catch_panics));
    let makers = makers.and_then(|makers| makers.init().map(|()| makers));
    let (commands, received) = mpsc::channel();
    // From here on, the process ends with its supervisor even if its environment hangs.
    end_with_pipe(heard.try_clone()?.into(), GRACE)?;
    thread::Builder::new().name("eval-commands".into()).spawn(move || {
        let mut heard = BufReader::new(heard);
        while let Some(command) = read_message(&mut heard).ok().and_then(command_in)
            && commands.send(command).is_ok()
        {}
    })?;
    engine::run(makers, &received, |report| write_message(&said, &message(report)).is_ok());
    Ok(())
}
