//! An engine in a process of its own: both sides.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufReader, ErrorKind, Read as _, Write as _},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::Path,
    process::{Child, ChildStderr, Command, ExitCode, ExitStatus, Stdio},
    sync::{
        Arc, LazyLock, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::Duration,
};

use rollmesh_core::{
    eval_worker::{EvalDone, EvalMakers, EvalOrder, EvalWorkerError, Found, weights_from_bytes, weights_to_bytes},
    evaluation::{EvaluationRequest, Ticket},
    run::RunConfig,
    worker::Registry,
};
use rustix::process::{Pid, Signal, getpgrp, getpid, kill_current_process_group, kill_process_group};
use serde::{Deserialize, Serialize};

use super::{
    engine::{self, Report},
    names::WORKER_COMMAND,
    wire::{receive, send},
};
use crate::{
    envs::{last_lines, python},
    kernels,
    launch::{ConfineFlags, Confinement, Grant, Inventory, take_stdio},
};

/// The hidden command of programs that can be the process of an evaluation.
pub(crate) const ENGINE_COMMAND: &str = "eval-engine";
/// Set in such processes.
pub(super) const VARIABLE: &str = "ROLLMESH_EVAL";

/// A program that is to be the process of an evaluation, or a worker with a name, and has come to start one of its own
/// would go on so without an end.
pub(super) fn check_not_started_as_one() -> Result<(), EvalWorkerError> {
    let is_one = |command| command == ENGINE_COMMAND || command == WORKER_COMMAND;
    // The variable alone is inherited by whatever an environment starts.
    if std::env::var_os(VARIABLE).is_some() && std::env::args_os().nth(1).is_some_and(is_one) {
        let reason = "this is the process of an evaluation itself, and was to be nothing else: call \
                      rollmesh::eval::eval_process first in the program's main";
        return Err(EvalWorkerError::setup("process", reason));
    }
    Ok(())
}

/// How much of what a process says on its standard error is kept.
const LAST_WORDS: usize = 16_000;
/// How long a process that has ended is listened to, and how long one that is to end may take.
const GRACE: Duration = Duration::from_secs(1);

/// The lowest priority that there is: where all processors are busy, it gets about a hundredth of one.
const NICE: i32 = 19;

/// What this process may grant its engines.
static INVENTORY: LazyLock<Inventory> = LazyLock::new(Inventory::of_machine);

/// What an engine is and may take; the first message to its process.
#[derive(Serialize, Deserialize)]
struct Birth {
    run: RunConfig,
    confine: ConfineFlags,
}

#[derive(Serialize, Deserialize)]
enum Said {
    /// With weights as bytes, if there are others.
    Evaluate {
        ticket: Ticket,
        request: EvaluationRequest,
    },
    Cancel {
        ticket: Ticket,
    },
}

#[derive(Serialize, Deserialize)]
enum Told {
    Progress,
    Ready,
    Broken(EvalWorkerError),
    Done(Found),
}

/// The process, as its supervisor holds it. Killed when dropped, with whatever it has started.
pub(super) struct ProcessEngine {
    orders: Sender<(Said, Vec<u8>)>,
    child: Arc<Mutex<Leash>>,
    tell: Arc<dyn Fn(Result<Report, String>) + Send + Sync>,
    _grant: Grant,
}

/// A child that is killed and waited for only once.
struct Leash {
    child: Child,
    status: Option<ExitStatus>,
}

impl ProcessEngine {
    /// Starts the program. `tell` hears its reports, and its last words at the end.
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
            // Ctrl-C is for whoever supervises; and whatever the environment starts ends with it.
            .process_group(0)
            .spawn()?;
        let (Some(mut stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(io::Error::other("it has no pipes"));
        };
        let child = Arc::new(Mutex::new(Leash { child, status: None }));
        let tell: Arc<dyn Fn(Result<Report, String>) + Send + Sync> = Arc::new(tell);
        let (orders, said) = mpsc::channel::<(Said, Vec<u8>)>();
        let engine = Self { orders, child: child.clone(), tell: tell.clone(), _grant: grant };
        // A process that hangs takes nothing: only this thread waits for it, until it is killed.
        thread::Builder::new().name("eval-orders".into()).spawn(move || {
            if send(&mut stdin, &birth, &[]).is_ok() {
                let _ = said.iter().try_for_each(|(said, bytes)| send(&mut stdin, &said, &bytes));
            }
        })?;
        let words = listen(stderr)?;
        thread::Builder::new().name("eval-reports".into()).spawn(move || {
            let mut stdout = BufReader::new(stdout);
            let error = loop {
                match receive::<Told>(&mut stdout) {
                    Ok((told, bytes)) => tell(Ok(told.report(bytes))),
                    Err(error) => break error,
                }
            };
            let status = child.lock().unwrap_or_else(PoisonError::into_inner).end();
            let words = words.recv_timeout(GRACE).unwrap_or_default();
            tell(Err(farewell(&error, status, &words)));
        })?;
        Ok(engine)
    }

    pub(super) fn tell(&self, order: EvalOrder) {
        let said = match order {
            EvalOrder::Cancel(ticket) => Ok((Said::Cancel { ticket }, Vec::new())),
            EvalOrder::Evaluate { ticket, weights, request } => match weights_to_bytes(weights.as_ref()) {
                Ok(bytes) => Ok((Said::Evaluate { ticket, request }, bytes)),
                Err(error) => Err(EvalDone { ticket, result: Err(error) }),
            },
        };
        match said {
            // A process that is gone is told of another way.
            Ok(said) => drop(self.orders.send(said)),
            Err(done) => (self.tell)(Ok(Report::Done(done))),
        }
    }
}

impl Drop for ProcessEngine {
    fn drop(&mut self) {
        self.child.lock().unwrap_or_else(PoisonError::into_inner).end();
    }
}

impl Leash {
    /// Ends it, and whatever it has started, and leaves nothing behind.
    fn end(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            // One that has ended by itself says how. Before it is waited for, its number is nobody else's.
            if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = self.child.kill();
            self.status = self.child.wait().ok();
        }
        self.status
    }
}

impl Told {
    fn report(self, bytes: Vec<u8>) -> Report {
        match self {
            Self::Progress => Report::Progress,
            Self::Ready => Report::Ready,
            Self::Broken(error) => Report::Broken(error),
            Self::Done(found) => {
                let (ticket, result) = found.read(bytes);
                Report::Done(EvalDone { ticket, result })
            }
        }
    }
}

/// Keeps the end of what a process says on its standard error, and gives it at its end.
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

/// Is the process of an evaluation.
pub(crate) fn serve_engine(registry: &Registry) -> ExitCode {
    match Pipes::take().and_then(|pipes| pipes.serve(registry)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// What the process hears and says.
struct Pipes {
    said: BufReader<File>,
    told: File,
}

impl Pipes {
    fn take() -> io::Result<Self> {
        // Also in the middle of an init function that hangs, no process outlives its supervisor.
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        let (said, told) = take_stdio()?;
        Ok(Self { said: BufReader::new(said), told })
    }

    fn serve(mut self, registry: &Registry) -> io::Result<()> {
        let (Birth { run, confine }, _) = receive(&mut self.said)?;
        confine.apply().map_err(io::Error::other)?;
        if run.host.evaluator_is_nice {
            // If the system refuses, it runs with the priority that it has.
            let _ = rustix::process::nice(NICE);
        }
        let mut told = self.told;
        let makers = match EvalMakers::of_run(&run, registry, kernels::AUTO) {
            Ok(makers) => makers,
            Err(error) => return send(&mut told, &Told::Broken(error), &[]),
        };
        let (orders, heard) = mpsc::channel();
        let said = self.said;
        let hear = move || {
            let obeys = thread::Builder::new().name("eval-orders".into()).spawn(move || obey(said, orders));
            #[cfg(target_os = "linux")]
            if obeys.is_ok() {
                // The end of its orders is the end of its supervisor, too, and takes what the environment has started along.
                let _ = rustix::process::set_parent_process_death_signal(None);
            }
            #[cfg(not(target_os = "linux"))]
            drop(obeys);
        };
        engine::run(&makers, &heard, hear, |report| {
            let (message, bytes) = match report {
                Report::Progress => (Told::Progress, Vec::new()),
                Report::Ready => (Told::Ready, Vec::new()),
                Report::Broken(error) => (Told::Broken(error), Vec::new()),
                Report::Done(EvalDone { ticket, result }) => {
                    let (found, bytes) = Found::of(ticket, result);
                    (Told::Done(found), bytes)
                }
            };
            match send(&mut told, &message, &bytes) {
                // Nothing of it has been sent.
                Err(error) if error.kind() == ErrorKind::InvalidInput => {
                    let Told::Done(found) = message else { return false };
                    let error = EvalWorkerError::failed(format!("its result cannot be told: {error}"));
                    send(&mut told, &Told::Done(Found::of(found.ticket, Err(error)).0), &[]).is_ok()
                }
                sent => sent.is_ok(),
            }
        });
        told.flush()
    }
}

/// Hands orders on until there are no more. Then the process ends, also if its environment hangs.
fn obey(mut said: BufReader<File>, orders: Sender<EvalOrder>) {
    while let Ok((said, bytes)) = receive(&mut said) {
        let order = match said {
            Said::Cancel { ticket } => EvalOrder::Cancel(ticket),
            Said::Evaluate { ticket, request } => match weights_from_bytes(&bytes) {
                Ok(weights) => EvalOrder::Evaluate { ticket, weights, request },
                // Only this program writes them, and only whole.
                Err(_) => break,
            },
        };
        if orders.send(order).is_err() {
            return;
        }
    }
    drop(orders);
    thread::sleep(GRACE);
    if getpgrp() == getpid() {
        let _ = kill_current_process_group(Signal::KILL);
    }
    std::process::exit(1);
}
