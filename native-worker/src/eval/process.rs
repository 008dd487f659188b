//! An engine in a process of its own: an evaluation worker whose hub is its supervisor, connected by pipes.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fs::File,
    io::{self, BufReader, ErrorKind, Read},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::Path,
    process::{Child, ChildStderr, Command, ExitCode, ExitStatus, Stdio},
    rc::Rc,
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender, SyncSender, TryRecvError},
    },
    thread,
    time::{Duration, Instant},
};

use rollmesh_core::{
    eval_worker::{EvalDone, EvalMakers, EvalOrder, InlineEvalWorker},
    evaluation::{EvalWorkerError, Evaluates as _, Ticket},
    ids::CallId,
    protocol::{
        INITIAL_CREDIT, Inbox, Message, Outbox, PROTOCOL_MAX, Role, Token,
        handshake::Identity,
        message::{CallCancel, CallResult, Welcome},
    },
    run::RunConfig,
    worker::{CommandError, CommandErrorKind, Registry, WorkerAnswer, WorkerCommand, WorkerSession},
};
use rustix::process::{Pid, Signal, getpgrp, getpid, kill_current_process_group, kill_process_group};
use serde::{Deserialize, Serialize};

use super::{
    engine::Report,
    names::WORKER_COMMAND,
    pipe::{read_frame, read_json, write_frame, write_json},
};
use crate::{
    envs::{last_lines, python},
    kernels,
    launch::{ConfineFlags, Confinement, Grant, Inventory, take_stdio},
    registry::{acting_on, device_of},
    worker_group::catch_panics,
};

/// The hidden command that runs the process of an evaluation.
pub(crate) const ENGINE_COMMAND: &str = "eval-engine";
/// Environment variable that is set in such processes.
pub(super) const VARIABLE: &str = "ROLLMESH_EVAL";

/// Refuses to start an evaluation process from a program that was itself started as one but did not act as one: it would
/// start processes recursively.
pub(super) fn check_not_started_as_one() -> Result<(), EvalWorkerError> {
    let is_one = |command| command == ENGINE_COMMAND || command == WORKER_COMMAND;
    // The variable alone is not sufficient, since it is inherited by the environment's child processes.
    if std::env::var_os(VARIABLE).is_some() && std::env::args_os().nth(1).is_some_and(is_one) {
        let reason = "this is the process of an evaluation itself, and was to be nothing else: call \
                      rollmesh::eval::eval_process first in the program's main";
        return Err(EvalWorkerError::setup("process", reason));
    }
    Ok(())
}

/// How much of the standard error is kept, in bytes.
const LAST_WORDS: usize = 16_000;
/// How long to read from a process that has ended, and how long a process may take to end.
const GRACE: Duration = Duration::from_secs(1);

/// Maximum number of frames queued for the engine.
const QUEUED_FRAMES: usize = 16;

/// The lowest priority: when all processors are busy, it gets about a hundredth of one.
const NICE: i32 = 19;

/// The resources that this process may grant its engines.
static INVENTORY: LazyLock<Inventory> = LazyLock::new(Inventory::of_machine);

/// The call whose answer shows that the engine is ready. Evaluations use the numbers of their tickets, from 1 on.
const READY: CallId = CallId(0);

/// The engine's run and resource limits, which its process reads first.
#[derive(Serialize, Deserialize)]
struct Birth {
    run: RunConfig,
    confine: ConfineFlags,
}

/// What is sent to the process.
enum Outgoing {
    Message(Box<Message>),
    /// The process accepts this many more bytes of chunks.
    Credit(u32),
}

type Tell = Arc<dyn Fn(Result<Report, String>) + Send + Sync>;

/// The supervisor's side of the process. Dropping it kills the process and its child processes.
pub(super) struct ProcessEngine {
    outgoing: Sender<Outgoing>,
    child: Arc<Mutex<Leash>>,
    tell: Tell,
    _grant: Grant,
}

/// A child that is killed and reaped only once.
struct Leash {
    child: Child,
    status: Option<ExitStatus>,
}

impl ProcessEngine {
    /// Starts the program. `tell` gets its reports, and the end of its standard error when it exits.
    pub(super) fn start(
        program: &Path,
        run: &RunConfig,
        tell: impl Fn(Result<Report, String>) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let grant = INVENTORY.grant(&run.host.evaluator).map_err(io::Error::other)?;
        let confinement = Confinement { cpus: grant.cpus(), gpus: grant.gpus(), memory: grant.memory() };
        let birth = Birth { run: run.clone(), confine: confinement.flags() };
        let mut child = Command::new(program)
            .arg(ENGINE_COMMAND)
            .envs(&run.rollout.extra_environs)
            .env(VARIABLE, "1")
            .envs(confinement.variables())
            .envs(python::child_environs())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C must only reach the supervisor, and the environment's child processes must end with it.
            .process_group(0)
            .spawn()?;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("it has no pipes"));
        };
        let child = Arc::new(Mutex::new(Leash { child, status: None }));
        let tell: Tell = Arc::new(tell);
        let (outgoing, waiting) = mpsc::channel();
        // The welcome is sent without waiting for the Hello.
        let (protocol, credit, server) = (PROTOCOL_MAX, INITIAL_CREDIT, "supervisor".into());
        let welcome = Message::Welcome(Welcome { protocol, peer: 1, resume_id: [1; 16], credit, server });
        let ready = WorkerCommand::AssertHealthy.message(READY).map_err(io::Error::other)?;
        [welcome, ready].into_iter().for_each(|message| drop(outgoing.send(Outgoing::Message(Box::new(message)))));
        let engine = Self { outgoing: outgoing.clone(), child: child.clone(), tell: tell.clone(), _grant: grant };
        // A hung process does not read: only this thread blocks on it, until it is killed.
        thread::Builder::new().name("eval-orders".into()).spawn(move || {
            if write_json(&mut stdin, &birth).is_ok() {
                // If the process ends, the other thread reports it.
                let _ = send_all(&waiting, &mut stdin);
            }
        })?;
        let words = listen(stderr)?;
        thread::Builder::new().name("eval-reports".into()).spawn(move || {
            let error = hear(&mut BufReader::new(stdout), &outgoing, &tell);
            let status = child.lock().unwrap_or_else(PoisonError::into_inner).end();
            let words = words.recv_timeout(GRACE).unwrap_or_default();
            tell(Err(farewell(&error, status, &words)));
        })?;
        Ok(engine)
    }

    pub(super) fn tell(&self, order: EvalOrder) {
        let ticket = order.ticket();
        let message = match order {
            EvalOrder::Cancel(_) => Ok(Message::CallCancel(CallCancel { call: ticket.0 })),
            EvalOrder::Evaluate { weights, request, .. } => {
                WorkerCommand::Evaluate { weights, request }.message(CallId(ticket.0))
            }
        };
        match message {
            // If the process has ended, the other thread reports it.
            Ok(message) => drop(self.outgoing.send(Outgoing::Message(Box::new(message)))),
            Err(error) => {
                (self.tell)(Ok(Report::Done(EvalDone { ticket, result: Err(EvalWorkerError::failed(error)) })))
            }
        }
    }
}

/// Sends queued messages to the process, as far as its credit allows, until it exits.
fn send_all(waiting: &Receiver<Outgoing>, mut to: impl io::Write) -> io::Result<()> {
    let mut outbox = Outbox::default();
    for next in waiting {
        match next {
            Outgoing::Message(message) => outbox.push(&message).map_err(io::Error::other)?,
            Outgoing::Credit(bytes) => outbox.grant(bytes),
        }
        while let Some(frame) = outbox.poll_frame() {
            write_frame(&mut to, &frame)?;
        }
    }
    Ok(())
}

/// Reports the process's messages until it exits.
fn hear(from: &mut impl Read, outgoing: &Sender<Outgoing>, tell: &Tell) -> io::Error {
    let mut inbox = Inbox::of_hub();
    // If the sending thread has ended, the message is dropped.
    let say = |message| drop(outgoing.send(Outgoing::Message(Box::new(message))));
    loop {
        let invalid = |error| io::Error::new(ErrorKind::InvalidData, error);
        match read_frame(&mut *from).and_then(|frame| inbox.handle_frame(&frame).map_err(invalid)) {
            Ok(Some(Message::Hello(_))) => inbox.admit(Role::Worker),
            Ok(Some(Message::CallResult(result))) => tell(Ok(report(&result))),
            Ok(Some(Message::CallProgress(_))) => tell(Ok(Report::Progress)),
            Ok(Some(Message::Credit(credit))) => drop(outgoing.send(Outgoing::Credit(credit.bytes))),
            Ok(Some(Message::Goodbye(goodbye))) => return io::Error::new(ErrorKind::InvalidData, goodbye.reason),
            Ok(_) => {}
            Err(error) => return error,
        }
        inbox.take_credit_due().map(Message::Credit).into_iter().for_each(say);
    }
}

fn report(result: &CallResult) -> Report {
    let ticket = Ticket(result.call);
    let result = match WorkerAnswer::read(result) {
        Ok(WorkerAnswer::Done) => return Report::Ready,
        Ok(WorkerAnswer::Evaluated(outcome)) => outcome.map(Some),
        Ok(_) => Err(EvalWorkerError::failed("it answers something else")),
        Err(CommandError { kind: CommandErrorKind::Cancelled, .. }) => Ok(None),
        Err(error) => Err(EvalWorkerError::failed(error)),
    };
    match result {
        Err(error) if ticket.0 == READY.0 => Report::Broken(error),
        result => Report::Done(EvalDone { ticket, result }),
    }
}

impl Drop for ProcessEngine {
    fn drop(&mut self) {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).end();
    }
}

impl Leash {
    /// Kills the process group and reaps the process.
    fn end(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            // If it has ended by itself, its status is kept. Its process id cannot be reused before it is reaped.
            if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = self.child.kill();
            self.status = self.child.wait().ok();
        }
        self.status
    }
}

/// Keeps the last part of a process's standard error, and returns it when the process ends.
fn listen(mut stderr: ChildStderr) -> io::Result<Receiver<Vec<u8>>> {
    let (done, words) = mpsc::channel();
    thread::Builder::new().name("eval-words".into()).spawn(move || {
        let mut kept = VecDeque::new();
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = stderr.read(&mut bytes) {
            kept.extend(bytes.iter().take(read));
            let surplus = kept.len().saturating_sub(LAST_WORDS);
            kept.drain(..surplus);
        }
        let _ = done.send(kept.into());
    })?;
    Ok(words)
}

fn farewell(error: &io::Error, status: Option<ExitStatus>, words: &[u8]) -> String {
    let end = match status.map(|status| (status.code(), status.signal())) {
        // It was ended because of that.
        _ if error.kind() == ErrorKind::InvalidData => error.to_string(),
        Some((Some(code), _)) => format!("exit code {code}"),
        Some((None, Some(signal))) => format!("signal {signal}"),
        _ => error.to_string(),
    };
    let words = last_lines(words);
    if words.is_empty() { end } else { format!("{end}: {words}") }
}

/// Runs the process of an evaluation.
pub(crate) fn serve_engine(registry: &Registry) -> ExitCode {
    match Pipes::take().and_then(|pipes| pipes.serve(registry)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The process's pipes.
struct Pipes {
    heard: BufReader<File>,
    said: File,
}

impl Pipes {
    fn take() -> io::Result<Self> {
        // The process ends with its supervisor, even during an init function that hangs.
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        let (heard, said) = take_stdio()?;
        Ok(Self { heard: BufReader::new(heard), said })
    }

    fn serve(self, registry: &Registry) -> io::Result<()> {
        let Self { mut heard, said } = self;
        let Birth { run, confine } = read_json(&mut heard)?;
        confine.apply().map_err(io::Error::other)?;
        if run.host.evaluator_is_nice {
            // If the system refuses, the priority stays as it is.
            let _ = rustix::process::nice(NICE);
        }
        // The init function comes before there is any thread.
        let device = run.host.evaluator.device.clone().unwrap_or_else(|| "cpu".into());
        let acting = device_of(&run.host.evaluator).and_then(|device| acting_on(registry, device));
        let acting = acting.map_err(|error| EvalWorkerError::setup("device", error));
        let makers = acting.and_then(|registry| EvalMakers::of_run(&run, &registry, kernels::AUTO));
        let made = makers.and_then(|makers| {
            let mut worker = InlineEvalWorker::new(makers).with_guard(catch_panics);
            worker.init().map(|()| worker)
        });
        let worker = Rc::new(RefCell::new(made.unwrap_or_else(InlineEvalWorker::failing)));
        let (heard_frames, frames) = mpsc::sync_channel(QUEUED_FRAMES);
        thread::Builder::new().name("eval-orders".into()).spawn(move || read_all(heard, heard_frames))?;
        #[cfg(target_os = "linux")]
        {
            // From here on, the end of the pipe ends the process and the environment's child processes.
            let _ = rustix::process::set_parent_process_death_signal(None);
        }
        let session = WorkerSession::new(identity(&device), registry.clone(), kernels::AUTO);
        let served = serve_frames(session.with_evaluator(Box::new(worker.clone())), &frames, said);
        worker.borrow_mut().stop();
        served
    }
}

/// Executes orders until the supervisor closes the pipe. Answers are written before anything else is done, since the process
/// may crash during it.
fn serve_frames(mut session: WorkerSession, frames: &Receiver<Vec<u8>>, mut said: File) -> io::Result<()> {
    let epoch = Instant::now();
    loop {
        while let Some(frame) = session.poll_frame() {
            write_frame(&mut said, &frame)?;
        }
        let heard =
            if session.has_work() { frames.try_recv() } else { frames.recv().map_err(|_| TryRecvError::Disconnected) };
        match heard {
            Ok(frame) => session.handle_frame(&frame),
            Err(TryRecvError::Empty) => session.work(1, epoch.elapsed().into()),
            Err(TryRecvError::Disconnected) => return Ok(()),
        }
    }
}

/// A supervisor knows whom it has started.
fn identity(device: &str) -> Identity {
    Identity::new(Role::Worker, Token::new([0; 32]), "native", "evaluation", device)
}

/// Forwards the supervisor's frames until it closes the pipe. Then the process ends, even if its environment hangs.
fn read_all(mut heard: BufReader<File>, frames: SyncSender<Vec<u8>>) {
    while let Ok(frame) = read_frame(&mut heard) {
        if frames.send(frame).is_err() {
            return;
        }
    }
    drop(frames);
    thread::sleep(GRACE);
    if getpgrp() == getpid() {
        let _ = kill_current_process_group(Signal::KILL);
    }
    std::process::exit(1);
}
