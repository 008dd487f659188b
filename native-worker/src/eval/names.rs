//! Evaluation workers with names: processes that outlive whoever started them, and are found again by others.
//!
//! Each has a file in a directory, which only its user can read: a port of the loopback device, and a token. Whoever has
//! the file may connect, submit, poll and shut it down.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, ErrorKind, Read as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rollmesh_core::{
    evaluation::{Earlier, EvaluationRequest, Ticket},
    protocol::Token,
    weights::Weights,
};
use serde::{Deserialize, Serialize};

use super::{
    EvalWorker, EvalWorkerError,
    makers::EvalSpec,
    process::VARIABLE,
    supervisor::{Outcome, Shared},
    wire::{Found, Wanted, receive, send},
};
use crate::hub::random_token;

/// The hidden command of programs that can be an evaluation worker with a name.
pub(crate) const WORKER_COMMAND: &str = "eval-worker";
/// Where the names are, unless said otherwise.
const DIR_VARIABLE: &str = "ROLLMESH_STATE_DIR";
const MAX_NAME: usize = 64;
/// Handles in other processes at a time.
const MAX_CONNECTIONS: usize = 64;
/// How long an answer may take that is none to a poll.
const ANSWER: Duration = Duration::from_secs(10);
/// A worker that closes connections may be about to end: it is looked after again for so long, …
const ENDING: Duration = Duration::from_secs(1);
/// … this often.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// The longest time that a poll waits at the worker; a longer one asks again.
const LONGEST_POLL: Duration = Duration::from_secs(10);

/// A directory with the names of evaluation workers.
///
/// ```
/// use rollmesh::eval::EvalNames;
///
/// # let dir = std::env::temp_dir().join(format!("rollmesh-names-doc-{}", std::process::id()));
/// let names = EvalNames::new(&dir);
/// let error = names.find("nobody").unwrap_err().to_string();
/// assert!(error.starts_with("there is no evaluation worker 'nobody' in "));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvalNames {
    dir: PathBuf,
}

/// What a name's file says.
#[derive(Serialize, Deserialize)]
struct Address {
    port: u16,
    token: String,
    pid: u32,
}

/// What the process of a worker with a name is told when it starts.
#[derive(Serialize, Deserialize)]
struct Founding {
    dir: PathBuf,
    name: String,
    spec: EvalSpec,
}

#[derive(Serialize, Deserialize)]
enum Ask {
    Hello { token: String },
    Submit { wanted: Wanted, earlier: Earlier },
    Poll { timeout_ms: u64 },
    Shutdown,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    Done,
    Ticket(Ticket),
    Nothing,
    Found(Found),
    Trouble(EvalWorkerError),
}

impl EvalNames {
    /// Names in this directory. It is made when the first worker gets a name.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The user's own: `eval` in what `ROLLMESH_STATE_DIR` says, else in `rollmesh` where the system keeps such things.
    #[must_use]
    pub fn of_user() -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let state = || set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
        let dir = set(DIR_VARIABLE).or_else(|| state().map(|state| state.join("rollmesh")));
        Self::new(dir.unwrap_or_else(|| std::env::temp_dir().join("rollmesh")).join("eval"))
    }

    /// Starts a worker under a name, in a process that goes on when this one ends: this program again, which begins with
    /// [`main_with`](crate::main_with) or [`eval_process`](super::eval_process).
    ///
    /// # Errors
    /// [`EvalWorkerError::BadName`], [`EvalWorkerError::NameTaken`], [`EvalWorkerError::Setup`]. What is wrong with
    /// environment and policy is told by the first poll.
    pub fn create(&self, name: &str, spec: &EvalSpec) -> Result<EvalWorker, EvalWorkerError> {
        self.file(name)?;
        let failed = |error: io::Error| EvalWorkerError::setup("process", error);
        let mut child = Command::new(std::env::current_exe().map_err(failed)?)
            .arg(WORKER_COMMAND)
            .env(VARIABLE, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(EvalWorkerError::setup("process", "it has no pipes"));
        };
        let founding = Founding { dir: self.dir.clone(), name: name.into(), spec: spec.clone() };
        let told = send(stdin, &founding, &[]).and_then(|()| receive::<Result<(), EvalWorkerError>>(stdout));
        // Whoever starts it and stays does not leave a dead process behind.
        let _ = thread::Builder::new().name("eval-worker-end".into()).spawn(move || child.wait());
        told.map_err(failed)?.0?;
        self.find(name)
    }

    /// A worker that was started under this name, in this process or another one, with nothing asked for by this handle.
    ///
    /// # Errors
    /// [`EvalWorkerError::UnknownName`], [`EvalWorkerError::BadName`], [`EvalWorkerError::Io`].
    pub fn find(&self, name: &str) -> Result<EvalWorker, EvalWorkerError> {
        let file = self.file(name)?;
        let unknown = || EvalWorkerError::UnknownName { name: name.into(), dir: self.dir.clone() };
        let address = read(&file).ok_or_else(unknown)?;
        let patience = Instant::now() + ENDING;
        loop {
            match Connection::open(&address) {
                Ok(connection) => return Ok(EvalWorker::connected(connection)),
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                    // It did not end by itself, or its file would be gone.
                    let _ = fs::remove_file(file);
                    return Err(unknown());
                }
                // One that is just ending closes its door last.
                Err(error) if is_end(&error) && Instant::now() < patience => thread::sleep(LOOK_AGAIN),
                Err(error) => return Err(EvalWorkerError::io(error)),
            }
        }
    }

    /// The names that there are, sorted; also of workers that are gone and have not said so.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let name = |path: PathBuf| path.file_name()?.to_str()?.strip_suffix(".json").map(Into::into);
        let mut names: Vec<String> = files.filter_map(|file| name(file.path())).collect();
        names.sort_unstable();
        names
    }

    fn file(&self, name: &str) -> Result<PathBuf, EvalWorkerError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if name.is_empty() || name.len() > MAX_NAME || name.starts_with('.') || !name.chars().all(is_plain) {
            return Err(EvalWorkerError::BadName(name.chars().take(MAX_NAME).collect()));
        }
        Ok(self.dir.join(format!("{name}.json")))
    }
}

/// Whether an error says that whoever was there has gone.
fn is_end(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

fn read(file: &Path) -> Option<Address> {
    let mut text = String::new();
    File::open(file).ok()?.take(4096).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// A connection to a worker of another process.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
}

impl Connection {
    fn open(address: &Address) -> io::Result<Self> {
        let to = (Ipv4Addr::LOCALHOST, address.port).into();
        let stream = TcpStream::connect_timeout(&to, ANSWER)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(ANSWER))?;
        let mut connection = Self { stream };
        match connection.ask(&Ask::Hello { token: address.token.clone() }, &[], ANSWER)? {
            (Answer::Done, _) => Ok(connection),
            _ => Err(io::Error::other("it does not answer as an evaluation worker does")),
        }
    }

    fn ask(&mut self, ask: &Ask, bytes: &[u8], patience: Duration) -> io::Result<(Answer, Vec<u8>)> {
        self.stream.set_read_timeout(Some(patience))?;
        send(&self.stream, ask, bytes)?;
        receive(&self.stream)
    }

    pub(super) fn submit(
        &mut self,
        weights: Option<&Weights>,
        request: EvaluationRequest,
        earlier: Earlier,
    ) -> Result<Ticket, EvalWorkerError> {
        let (wanted, bytes) = Wanted::of(request, weights)?;
        match self.ask(&Ask::Submit { wanted, earlier }, &bytes, ANSWER).map_err(EvalWorkerError::io)? {
            (Answer::Ticket(ticket), _) => Ok(ticket),
            (Answer::Trouble(error), _) => Err(error),
            _ => Err(EvalWorkerError::io("it answers something else")),
        }
    }

    /// Waits at most so long, and no longer than [`LONGEST_POLL`].
    pub(super) fn poll(&mut self, timeout: Duration) -> Option<(Option<Ticket>, Outcome)> {
        let timeout = timeout.min(LONGEST_POLL);
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let failed = |error| Some((None, Err(error)));
        match self.ask(&Ask::Poll { timeout_ms }, &[], timeout + ANSWER) {
            Ok((Answer::Nothing, _)) => None,
            Ok((Answer::Trouble(error), _)) => failed(error),
            Ok((Answer::Found(found), bytes)) => {
                let (ticket, result) = found.read(bytes);
                let nothing = || EvalWorkerError::io("it answers something else");
                Some((Some(ticket), result.and_then(|found| found.ok_or_else(nothing))))
            }
            Ok(_) => failed(EvalWorkerError::io("it answers something else")),
            Err(error) => failed(EvalWorkerError::io(error)),
        }
    }

    pub(super) fn shutdown(&mut self) {
        // One that does not hear is gone already.
        let _ = self.ask(&Ask::Shutdown, &[], ANSWER);
    }
}

/// Is an evaluation worker with a name.
pub(crate) fn serve_worker() -> ExitCode {
    let Ok((founding, _)) = receive::<Founding>(io::stdin().lock()) else { return ExitCode::FAILURE };
    // No terminal that closes ends it.
    let _ = rustix::process::setsid();
    let found = Door::open(&founding);
    let said = found.as_ref().map(|_| ()).map_err(Clone::clone);
    let told = send(io::stdout().lock(), &said, &[]);
    match found {
        Ok(door) if told.is_ok() => door.serve(),
        Ok(_) | Err(_) => ExitCode::FAILURE,
    }
}

/// Where handles of other processes come in. Its file goes with it.
struct Door {
    listener: TcpListener,
    token: Token,
    file: PathBuf,
    worker: EvalWorker,
}

impl Door {
    fn open(founding: &Founding) -> Result<Self, EvalWorkerError> {
        let names = EvalNames::new(&founding.dir);
        let file = names.file(&founding.name)?;
        let failed = |error: io::Error| EvalWorkerError::setup("process", error);
        if names.find(&founding.name).is_ok() {
            return Err(EvalWorkerError::NameTaken(founding.name.clone()));
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&names.dir).map_err(failed)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let token = random_token().map_err(|error| EvalWorkerError::setup("process", error))?;
        let port = listener.local_addr().map_err(failed)?.port();
        let address = Address { port, token: token.to_hex(), pid: std::process::id() };
        // Appears whole, and only where there is none: of two that want the name one gets it.
        let unfinished = file.with_extension(format!("{}.tmp", std::process::id()));
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&unfinished)
            .and_then(|file| Ok(serde_json::to_writer(file, &address)?))
            .and_then(|()| fs::hard_link(&unfinished, &file));
        let _ = fs::remove_file(&unfinished);
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                return Err(EvalWorkerError::NameTaken(founding.name.clone()));
            }
            Err(error) => return Err(failed(error)),
        }
        let worker = EvalWorker::in_process(&founding.spec);
        if worker.is_err() {
            let _ = fs::remove_file(&file);
        }
        Ok(Self { listener, token, file, worker: worker? })
    }

    fn serve(self) -> ExitCode {
        let Some(shared) = self.worker.shared() else { return ExitCode::FAILURE };
        let count = Arc::new(AtomicUsize::new(0));
        for stream in self.listener.incoming() {
            let Ok(stream) = stream else { continue };
            if count.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
                count.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let (shared, token, file, count) = (shared.clone(), self.token, self.file.clone(), count.clone());
            let _ = thread::Builder::new().name("eval-handle".into()).spawn(move || {
                let is_over = converse(&stream, &shared, token).unwrap_or(false);
                count.fetch_sub(1, Ordering::Relaxed);
                if is_over {
                    let _ = fs::remove_file(file);
                    shared.stop();
                    let _ = send(&stream, &Answer::Done, &[]);
                    // With it the engine's process ends: its requests do.
                    std::process::exit(0);
                }
            });
        }
        ExitCode::FAILURE
    }
}

/// Serves one handle; true if it wants the worker to end.
fn converse(stream: &TcpStream, shared: &Shared, token: Token) -> io::Result<bool> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(ANSWER))?;
    stream.set_read_timeout(Some(ANSWER))?;
    match receive(stream)? {
        (Ask::Hello { token: shown }, _) if Token::from_hex(&shown).is_ok_and(|shown| shown == token) => {}
        _ => return Ok(false),
    }
    send(stream, &Answer::Done, &[])?;
    stream.set_read_timeout(None)?;
    let asker = shared.asker();
    let result = loop {
        let (ask, bytes) = match receive(stream) {
            Ok(asked) => asked,
            Err(_) => break Ok(false),
        };
        let (answer, bytes) = match ask {
            Ask::Submit { wanted, earlier } => {
                let weights = wanted.weights(&bytes);
                let ticket = weights.and_then(|weights| shared.submit(asker, weights, wanted.request, earlier));
                (ticket.map_or_else(Answer::Trouble, Answer::Ticket), Vec::new())
            }
            Ask::Poll { timeout_ms } => match shared.poll(asker, Duration::from_millis(timeout_ms).min(LONGEST_POLL)) {
                None => (Answer::Nothing, Vec::new()),
                Some((Some(ticket), outcome)) => {
                    let (found, bytes) = Found::of(ticket, outcome.map(Some));
                    (Answer::Found(found), bytes)
                }
                Some((None, Err(error))) => (Answer::Trouble(error), Vec::new()),
                Some((None, Ok(_))) => (Answer::Nothing, Vec::new()),
            },
            Ask::Shutdown => break Ok(true),
            Ask::Hello { .. } => break Ok(false),
        };
        if let Err(error) = send(stream, &answer, &bytes) {
            break Err(error);
        }
    };
    shared.forget(asker);
    result
}
