//! An engine in a process of its own: an evaluation worker whose hub is its supervisor, connected by pipes.

use std::{
    cell::RefCell,
    fs::File,
    io::{self, BufReader, ErrorKind, Read},
    os::unix::process::ExitStatusExt as _,
    path::Path,
    process::{Command, ExitStatus},
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
use serde::{Deserialize, Serialize};

use super::{engine::Report, names::WORKER_COMMAND};
use crate::{
    child::{
        self, Child, ConfineFlags, Confinement, LastWords, Pipes, check_is_not_one, end_with_pipe, read_frame,
        read_json, take_stdio, write_frame, write_json,
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
    child: Arc<Mutex<Child>>,
    tell: Tell,
    _grant: Grant,
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
        let mut command = Command::new(program);
        command
            .arg(ENGINE_COMMAND)
            .envs(&run.rollout.extra_environs)
            .envs(confinement.variables())
            .envs(python::child_environs());
        let (child, Pipes { mut stdin, stdout, stderr }) = child::spawn(command)?;
        let child = Arc::new(Mutex::new(child));
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
        let words = LastWords::listen(stderr)?;
        thread::Builder::new().name("eval-reports".into()).spawn(move || {
            let error = hear(&mut BufReader::new(stdout), &outgoing, &tell);
            let status = child.lock().unwrap_or_else(PoisonError::into_inner).kill();
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
        self.child.lock().unwrap_or_else(PoisonError::into_inner).kill();
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

/// Runs the process of an evaluation.
pub(crate) fn serve_engine(registry: &Registry) -> io::Result<()> {
    let (mut heard, said) = take_stdio()?;
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
    // From here on, the process ends with its supervisor even if its environment hangs.
    end_with_pipe(heard.try_clone()?.into(), GRACE)?;
    thread::Builder::new().name("eval-orders".into()).spawn(move || read_all(BufReader::new(heard), &heard_frames))?;
    let session = WorkerSession::new(identity(&device), registry.clone(), kernels::AUTO);
    let served = serve_frames(session.with_evaluator(Box::new(worker.clone())), &frames, said);
    worker.borrow_mut().stop();
    served
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

/// Forwards the supervisor's frames until it closes the pipe.
fn read_all(mut heard: BufReader<File>, frames: &SyncSender<Vec<u8>>) {
    while let Ok(frame) = read_frame(&mut heard) {
        if frames.send(frame).is_err() {
            return;
        }
    }
}
