//! Evaluation workers with names: processes that outlive whoever started them, and are found again by others.
//!
//! Each has a file in a directory, which only its user can read: a port of the loopback device, and a token. Whoever has
//! the file may connect, submit, poll and shut it down. Where they are known to a hub, evaluators of the hub may.

use std::{
    fmt,
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
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
    hub::{EvalHub, HubWay},
    makers::EvalSpec,
    process::{VARIABLE, check_not_started_as_one},
    supervisor::{Polled, Shared},
    wire::{Found, Wanted, receive, receive_at_most, send},
};
use crate::hub::random_token;

/// What a program has to do that is started again as a worker.
const FIRST_IN_MAIN: &str = "call rollmesh::eval::eval_process first in the program's main";
/// The hidden command of programs that can be an evaluation worker with a name.
pub(crate) const WORKER_COMMAND: &str = "eval-worker";
/// Where the names are, unless said otherwise.
const DIR_VARIABLE: &str = "ROLLMESH_STATE_DIR";
const MAX_NAME: usize = 64;
/// Handles in other processes at a time.
const MAX_CONNECTIONS: usize = 64;
/// Connections that have not shown the token, at a time; …
const MAX_STRANGERS: usize = 128;
/// … how long each has to show it, …
const GREETING: Duration = Duration::from_secs(5);
/// … and in how many bytes.
const MAX_GREETING: u64 = 1 << 10;
/// After connections could not be taken, the next is waited for so long.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an answer may take that is none to a poll.
pub(super) const ANSWER: Duration = Duration::from_secs(10);
/// How long a process has to say that it is a worker; it may ask a hub meanwhile.
const FOUNDING: Duration = Duration::from_secs(60);
/// The most bytes of what it says.
const MAX_FOUNDING: u64 = 1 << 20;
/// How long a worker that is shut down waits for the end of its evaluation's process.
const LAST: Duration = Duration::from_secs(5);
/// A worker that closes connections may be about to end: it is looked after again for so long, …
const ENDING: Duration = Duration::from_secs(1);
/// … this often.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How often a worker looks whether it can still be found.
const WATCH: Duration = Duration::from_secs(2);
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
#[derive(Clone, Debug)]
pub struct EvalNames {
    dir: PathBuf,
    hub: Option<EvalHub>,
}

/// What a name's file says.
#[derive(Serialize, Deserialize)]
struct Address {
    port: u16,
    token: String,
    /// For people who wonder which process it is.
    pid: u32,
}

/// What the process of a worker with a name is told when it starts.
#[derive(Serialize, Deserialize)]
struct Founding {
    dir: PathBuf,
    name: String,
    spec: EvalSpec,
    hub: Option<HubWay>,
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
    /// Not so soon.
    NotYet,
    /// Nor ever: nothing was asked for.
    Nothing,
    Found(Found),
    Trouble(EvalWorkerError),
}

impl EvalNames {
    /// Names in this directory. It is made when the first worker gets a name.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), hub: None }
    }

    /// Names are those of a hub, too: workers that get one are found through the hub by whoever has a token of an
    /// evaluator, and those that are not in the directory are looked for there. A worker whose connection to the hub is
    /// lost goes on, and connects again.
    #[must_use]
    pub fn with_hub(self, hub: EvalHub) -> Self {
        Self { hub: Some(hub), ..self }
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
    /// [`EvalWorkerError::BadName`], [`EvalWorkerError::NameTaken`], [`EvalWorkerError::Setup`]; [`EvalWorkerError::Io`] if
    /// there is no such hub. What is wrong with environment and policy is told by the first poll.
    pub fn create(&self, name: &str, spec: &EvalSpec) -> Result<EvalWorker, EvalWorkerError> {
        check_name(name)?;
        check_not_started_as_one()?;
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
        let hub = self.hub.as_ref().map(HubWay::from);
        let founding = Founding { dir: self.dir.clone(), name: name.into(), spec: spec.clone(), hub };
        let (tell, told) = mpsc::channel();
        let ask = move || {
            let said = send(stdin, &founding, &[])
                .and_then(|()| receive_at_most::<Result<(), EvalWorkerError>>(stdout, MAX_FOUNDING, 0));
            // Whoever does not wait any more does not hear it.
            let _ = tell.send(said);
        };
        let told = match thread::Builder::new().name("eval-founding".into()).spawn(ask) {
            Ok(_) => told.recv_timeout(FOUNDING).unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())),
            Err(error) => Err(error),
        };
        if told.is_err() {
            // Whatever it is, it is no worker, and nobody else would end it.
            let _ = child.kill();
        }
        // Whoever starts it and stays does not leave a dead process behind.
        let _ = thread::Builder::new().name("eval-worker-end".into()).spawn(move || child.wait());
        told.map_err(|error| {
            let reason = format!("it does not say that it is a worker ({error}): {FIRST_IN_MAIN}");
            EvalWorkerError::setup("process", reason)
        })?
        .0?;
        self.find_here(name)
    }

    /// A worker that was started under this name, in this process or another one, with nothing asked for by this handle.
    ///
    /// # Errors
    /// [`EvalWorkerError::UnknownName`], [`EvalWorkerError::BadName`], [`EvalWorkerError::Io`].
    pub fn find(&self, name: &str) -> Result<EvalWorker, EvalWorkerError> {
        match (self.find_here(name), &self.hub) {
            (Err(EvalWorkerError::UnknownName { .. }), Some(hub)) => hub.find(name),
            (found, _) => found,
        }
    }

    fn find_here(&self, name: &str) -> Result<EvalWorker, EvalWorkerError> {
        check_name(name)?;
        let patience = Instant::now() + ENDING;
        loop {
            let Some(address) = self.address(name) else {
                return Err(EvalWorkerError::UnknownName { name: name.into(), dir: self.dir.clone() });
            };
            match Connection::open(&address) {
                Ok(connection) => return Ok(EvalWorker::connected(connection)),
                // One that is just ending closes its door last.
                Err(error) if is_end(&error) && Instant::now() < patience => thread::sleep(LOOK_AGAIN),
                Err(error) => return Err(EvalWorkerError::io(error)),
            }
        }
    }

    /// The names that there are, sorted.
    #[must_use]
    pub fn list(&self) -> Vec<String> {
        let files = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let name = |path: PathBuf| path.file_name()?.to_str()?.strip_suffix(".json").map(Into::into);
        let mut names: Vec<String> = files.filter_map(|file| name(file.path())).collect();
        names.retain(|name| self.address(name).is_some());
        names.sort_unstable();
        names
    }

    /// Where the worker of a name is, if there is one. What one has left that ended without a word is removed.
    fn address(&self, name: &str) -> Option<Address> {
        let file = self.dir.join(format!("{name}.json"));
        // While this one holds the lock nobody founds a worker, so what is removed is nobody's.
        if let Ok(lock) = File::open(self.dir.join(format!("{name}.lock")))
            && lock.try_lock_shared().is_ok()
        {
            let _ = fs::remove_file(file);
            return None;
        }
        read(&file)
    }
}

/// A name that this process has, until this is dropped or it ends in whatever way.
struct Name {
    file: PathBuf,
    lock: File,
}

impl Name {
    /// None if somebody else has it.
    fn take(names: &EvalNames, name: &str) -> io::Result<Option<Self>> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&names.dir)?;
        let lock = names.dir.join(format!("{name}.lock"));
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock)?;
        let patience = Instant::now() + ENDING;
        loop {
            match lock.try_lock() {
                Ok(()) => {
                    let name = Self { file: names.dir.join(format!("{name}.json")), lock };
                    // Where another one was is nobody now.
                    let _ = fs::remove_file(&name.file);
                    return Ok(Some(name));
                }
                // Whoever looks whether there is a worker holds the lock for a moment.
                Err(TryLockError::WouldBlock) if names.address(name).is_some() || Instant::now() >= patience => {
                    return Ok(None);
                }
                Err(TryLockError::WouldBlock) => thread::sleep(LOOK_AGAIN),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
    }

    /// Says where the worker is. Appears whole, in the place of what another one may have left.
    fn write(&self, address: &Address) -> io::Result<()> {
        let unfinished = self.file.with_extension(format!("{}.tmp", std::process::id()));
        let written = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).and_then(|file| {
            serde_json::to_writer(&file, address)?;
            file.sync_all()?;
            fs::rename(&unfinished, &self.file)
        });
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written
    }

    /// From now on others can have it.
    fn give_up(&self) {
        let _ = fs::remove_file(&self.file);
        let _ = self.lock.unlock();
    }
}

/// What can be part of a file's name on every system, and is no other file.
pub(super) fn check_name(name: &str) -> Result<(), EvalWorkerError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || name.starts_with('.') || !name.chars().all(is_plain) {
        return Err(EvalWorkerError::BadName(name.chars().take(MAX_NAME).collect()));
    }
    Ok(())
}

/// Whether an error says that whoever was there has gone.
fn is_end(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// None for a file of another user, or that others may read: who else could have written there is no worker of this one's.
fn read(file: &Path) -> Option<Address> {
    let file = File::open(file).ok()?;
    let about = file.metadata().ok()?;
    if about.uid() != rustix::process::geteuid().as_raw() || about.mode() & 0o077 != 0 {
        return None;
    }
    let mut text = String::new();
    file.take(4096).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Bytes in both directions.
pub(super) trait Line: Read + Write + Send + fmt::Debug {
    /// How long a read waits; none for as long as it takes.
    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()>;
}

impl Line for TcpStream {
    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()> {
        self.set_read_timeout(patience)
    }
}

/// A connection to a worker of another process.
#[derive(Debug)]
pub(super) struct Connection {
    line: Box<dyn Line>,
}

impl Connection {
    fn open(address: &Address) -> io::Result<Self> {
        let to = (Ipv4Addr::LOCALHOST, address.port).into();
        let stream = TcpStream::connect_timeout(&to, ANSWER)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(ANSWER))?;
        let mut connection = Self::over(stream);
        match connection.ask(&Ask::Hello { token: address.token.clone() }, &[], ANSWER)? {
            (Answer::Done, _) => Ok(connection),
            (Answer::Trouble(error), _) => Err(io::Error::other(error.to_string())),
            _ => Err(io::Error::other("it does not answer as an evaluation worker does")),
        }
    }

    /// By a line on which nobody is asked for a token.
    pub(super) fn over(line: impl Line + 'static) -> Self {
        Self { line: Box::new(line) }
    }

    fn ask(&mut self, ask: &Ask, bytes: &[u8], patience: Duration) -> io::Result<(Answer, Vec<u8>)> {
        self.line.set_patience(Some(patience))?;
        send(&mut self.line, ask, bytes)?;
        receive(&mut self.line)
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
    pub(super) fn poll(&mut self, timeout: Duration) -> Polled {
        let timeout = timeout.min(LONGEST_POLL);
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let failed = |error| Polled::Found(None, Err(error));
        match self.ask(&Ask::Poll { timeout_ms }, &[], timeout + ANSWER) {
            Ok((Answer::NotYet, _)) => Polled::NotYet,
            Ok((Answer::Nothing, _)) => Polled::Nothing,
            Ok((Answer::Trouble(error), _)) => failed(error),
            Ok((Answer::Found(found), bytes)) => {
                let (ticket, result) = found.read(bytes);
                let nothing = || EvalWorkerError::io("it answers something else");
                Polled::Found(Some(ticket), result.and_then(|found| found.ok_or_else(nothing)))
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
    let found = Door::open(founding);
    let said = found.as_ref().map(|_| ()).map_err(Clone::clone);
    let told = send(io::stdout().lock(), &said, &[]);
    match found {
        Ok(door) if told.is_ok() => door.serve(),
        Ok(_) | Err(_) => ExitCode::FAILURE,
    }
}

/// Where handles of other processes come in.
struct Door {
    listener: TcpListener,
    token: Token,
    host: Arc<Host>,
    is_at_hub: bool,
}

/// What all handles share.
struct Host {
    shared: Arc<Shared>,
    worker: Mutex<EvalWorker>,
    name: Arc<Name>,
}

impl Door {
    fn open(founding: Founding) -> Result<Self, EvalWorkerError> {
        check_name(&founding.name)?;
        let names = EvalNames::new(&founding.dir);
        let failed = |error: io::Error| EvalWorkerError::setup("process", error);
        let taken = || EvalWorkerError::NameTaken(founding.name.clone());
        let name = Arc::new(Name::take(&names, &founding.name).map_err(failed)?.ok_or_else(taken)?);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
        let token = random_token().map_err(|error| EvalWorkerError::setup("process", error))?;
        let port = listener.local_addr().map_err(failed)?.port();
        let worker = EvalWorker::in_process_here(&founding.spec)?;
        let Some(shared) = worker.shared() else {
            return Err(EvalWorkerError::setup("process", "it is no worker of its own"));
        };
        let host = Arc::new(Host { shared, worker: Mutex::new(worker), name: name.clone() });
        let hub = founding.hub.and_then(HubWay::hub);
        let is_at_hub = hub.is_some();
        if let Some(hub) = hub {
            let host = host.clone();
            hub.serve(&founding.name, MAX_CONNECTIONS, move |line| host.serve(line))?;
        }
        name.write(&Address { port, token: token.to_hex(), pid: std::process::id() }).map_err(failed)?;
        Ok(Self { listener, token, host, is_at_hub })
    }

    fn serve(self) -> ExitCode {
        let (strangers, handles) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        if !self.is_at_hub {
            let (host, handles) = (self.host.clone(), handles.clone());
            let watch = move || {
                while handles.load(Ordering::Relaxed) > 0 || host.name.file.exists() {
                    thread::sleep(WATCH);
                }
                // Its file was removed, and nobody could ever end it.
                host.end();
            };
            // Without a thread it stays.
            let _ = thread::Builder::new().name("eval-watch".into()).spawn(watch);
        }
        for stream in self.listener.incoming() {
            let Ok(mut stream) = stream else {
                // Too many open files, perhaps.
                thread::sleep(PAUSE);
                continue;
            };
            let Some(stranger) = Seat::take(&strangers, MAX_STRANGERS) else { continue };
            let (host, token, handles) = (self.host.clone(), self.token, handles.clone());
            let _ = thread::Builder::new().name("eval-handle".into()).spawn(move || {
                let _ = stream.set_nodelay(true);
                let _ = stream.set_write_timeout(Some(ANSWER));
                if !shows_token(&mut stream, token) {
                    return;
                }
                drop(stranger);
                let seat = Seat::take(&handles, MAX_CONNECTIONS);
                let full = || Answer::Trouble(EvalWorkerError::io("too many handles are connected"));
                let answer = seat.as_ref().map_or_else(full, |_| Answer::Done);
                if send(&mut stream, &answer, &[]).is_ok() && seat.is_some() {
                    host.serve(stream);
                }
            });
        }
        ExitCode::FAILURE
    }
}

/// One of so many that there may be at a time, until it is dropped.
struct Seat(Arc<AtomicUsize>);

impl Seat {
    fn take(count: &Arc<AtomicUsize>, max: usize) -> Option<Self> {
        // Counted first, so that it is counted down whatever comes of it.
        let seat = Self(count.clone());
        (count.fetch_add(1, Ordering::Relaxed) < max).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether whoever has connected knows the token. Takes little memory and little time from anybody who does not.
fn shows_token(line: &mut impl Line, token: Token) -> bool {
    let until = Instant::now() + GREETING;
    matches!(
        receive_at_most(Hasty { line, until }, MAX_GREETING, 0),
        Ok((Ask::Hello { token: shown }, _)) if Token::from_hex(&shown).is_ok_and(|shown| shown == token)
    )
}

/// Reads for so long and no longer, in however many pieces.
struct Hasty<'a, L> {
    line: &'a mut L,
    until: Instant,
}

impl<L: Line> Read for Hasty<'_, L> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        self.line.set_patience(Some(left))?;
        self.line.read(buffer)
    }
}

impl Host {
    /// Serves one handle that may ask until it has gone; ends the process if it wants the worker to end.
    fn serve(self: &Arc<Self>, mut line: impl Line) {
        if converse(&mut line, &self.shared).unwrap_or(false) {
            self.end_evaluation();
            // Through a hub it need not arrive: there the end is told by the hub.
            let _ = send(&mut line, &Answer::Done, &[]);
            std::process::exit(0);
        }
    }

    fn end(self: &Arc<Self>) {
        self.end_evaluation();
        std::process::exit(0);
    }

    /// Ends the evaluation's process and what that has started. One that the system does not let go of is left to it.
    fn end_evaluation(self: &Arc<Self>) {
        self.name.give_up();
        self.shared.stop();
        let (tell, told) = mpsc::channel();
        let host = self.clone();
        let end = move || {
            host.worker.lock().unwrap_or_else(PoisonError::into_inner).shutdown();
            let _ = tell.send(());
        };
        if thread::Builder::new().name("eval-end".into()).spawn(end).is_ok() {
            let _ = told.recv_timeout(LAST);
        }
    }
}

/// Serves one handle; true if it wants the worker to end.
fn converse(stream: &mut impl Line, shared: &Shared) -> io::Result<bool> {
    stream.set_patience(None)?;
    let asker = shared.asker();
    let result = loop {
        let (ask, bytes) = match receive(&mut *stream) {
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
                Polled::Nothing => (Answer::Nothing, Vec::new()),
                Polled::NotYet => (Answer::NotYet, Vec::new()),
                Polled::Found(Some(ticket), outcome) => {
                    let (found, bytes) = Found::of(ticket, outcome.map(Some));
                    (Answer::Found(found), bytes)
                }
                Polled::Found(None, Err(error)) => (Answer::Trouble(error), Vec::new()),
                Polled::Found(None, Ok(_)) => (Answer::Nothing, Vec::new()),
            },
            Ask::Shutdown => break Ok(true),
            Ask::Hello { .. } => break Ok(false),
        };
        if let Err(error) = send(&mut *stream, &answer, &bytes) {
            break Err(error);
        }
    };
    shared.forget(asker);
    result
}

impl Drop for Name {
    fn drop(&mut self) {
        self.give_up();
    }
}
