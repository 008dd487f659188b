//! An engine in a process of its own: both sides.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, BufReader, Read as _, Write as _},
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

use rollmesh_core::{evaluation::Ticket, worker::Registry};
use rustix::{
    io::fcntl_dupfd_cloexec,
    process::{Pid, Signal, getpgrp, getpid, kill_current_process_group, kill_process_group},
    stdio::{dup2_stdin, dup2_stdout},
};
use serde::{Deserialize, Serialize};

use super::{
    EvalWorkerError,
    engine::{self, Order, Report},
    makers::EvalSpec,
    wire::{Found, Wanted, receive, send},
};
use crate::{
    envs::last_lines,
    launch::{ConfineFlags, Confinement, Grant, Inventory},
};

/// The hidden command of programs that can be the process of an evaluation.
pub(crate) const ENGINE_COMMAND: &str = "eval-engine";
/// Set in such processes.
pub(super) const VARIABLE: &str = "ROLLMESH_EVAL";
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
    spec: EvalSpec,
    confine: ConfineFlags,
}

#[derive(Serialize, Deserialize)]
enum Said {
    Evaluate { ticket: Ticket, wanted: Wanted },
    Cancel { ticket: Ticket },
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
        spec: &EvalSpec,
        tell: impl Fn(Result<Report, String>) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let grant = INVENTORY.grant(&spec.worker).map_err(io::Error::other)?;
        let confinement = Confinement { cpus: grant.cpus(), gpus: grant.gpus(), memory: grant.memory() };
        let birth = Birth { spec: spec.clone(), confine: confinement.flags() };
        let mut child = Command::new(program)
            .arg(ENGINE_COMMAND)
            .env(VARIABLE, "1")
            .envs(confinement.variables())
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

    pub(super) fn tell(&self, order: Order) {
        let said = match order {
            Order::Cancel(ticket) => Ok((Said::Cancel { ticket }, Vec::new())),
            Order::Evaluate { ticket, weights, request } => Wanted::of(request, weights.as_ref())
                .map(|(wanted, bytes)| (Said::Evaluate { ticket, wanted }, bytes))
                .map_err(|error| Report::Done(ticket, Err(error))),
        };
        match said {
            // A process that is gone is told of another way.
            Ok(said) => drop(self.orders.send(said)),
            Err(report) => (self.tell)(Ok(report)),
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
            // One that is about to end by itself says how. Before it is waited for, its number is nobody else's.
            let ended = self.child.try_wait().ok().flatten();
            if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
                let _ = kill_process_group(pid, Signal::KILL);
            }
            let _ = self.child.kill();
            self.status = ended.or_else(|| self.child.wait().ok());
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
                Report::Done(ticket, result)
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

/// What the process hears and says. The environment gets neither.
struct Pipes {
    said: BufReader<File>,
    told: File,
}

impl Pipes {
    fn take() -> io::Result<Self> {
        // Also in the middle of an init function that hangs, no process outlives its supervisor.
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // Above the three that every program knows, and closed in programs that the environment starts.
        let said = fcntl_dupfd_cloexec(io::stdin(), 3)?;
        let told = fcntl_dupfd_cloexec(io::stdout(), 3)?;
        dup2_stdin(File::open("/dev/null")?)?;
        dup2_stdout(io::stderr())?;
        Ok(Self { said: BufReader::new(File::from(said)), told: File::from(told) })
    }

    fn serve(mut self, registry: &Registry) -> io::Result<()> {
        let (Birth { spec, confine }, _) = receive(&mut self.said)?;
        confine.apply().map_err(io::Error::other)?;
        if spec.is_nice {
            // Who may not be nice is so as it is.
            let _ = rustix::process::nice(NICE);
        }
        let mut told = self.told;
        let makers = match spec.makers(registry) {
            Ok(makers) => makers,
            Err(error) => return send(&mut told, &Told::Broken(error), &[]),
        };
        let (orders, heard) = mpsc::channel();
        let said = self.said;
        let hear = move || _ = thread::Builder::new().name("eval-orders".into()).spawn(move || obey(said, orders));
        engine::run(&makers, &heard, hear, |report| {
            let (message, bytes) = match report {
                Report::Progress => (Told::Progress, Vec::new()),
                Report::Ready => (Told::Ready, Vec::new()),
                Report::Broken(error) => (Told::Broken(error), Vec::new()),
                Report::Done(ticket, result) => {
                    let (found, bytes) = Found::of(ticket, result);
                    (Told::Done(found), bytes)
                }
            };
            send(&mut told, &message, &bytes).is_ok()
        });
        told.flush()
    }
}

/// Hands orders on until there are no more. Then the process ends, also if its environment hangs.
fn obey(mut said: BufReader<File>, orders: Sender<Order>) {
    while let Ok((said, bytes)) = receive(&mut said) {
        let order = match said {
            Said::Cancel { ticket } => Order::Cancel(ticket),
            Said::Evaluate { ticket, wanted } => match wanted.weights(&bytes) {
                Ok(weights) => Order::Evaluate { ticket, weights, request: wanted.request },
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
