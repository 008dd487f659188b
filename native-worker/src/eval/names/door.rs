//! Where handles of other processes come in.

use std::{
    io::{self, ErrorKind, Read},
    net::{Ipv4Addr, TcpListener},
    process::ExitCode,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rollmesh_core::{
    eval_worker::{EvalAnswer, EvalAsk, EvalConversation, FrameLimits},
    evaluation::{EvalWorkerError, check_name},
    protocol::Token,
};

use super::{
    super::{
        EvalWorker,
        connection::{ANSWER, Line},
        hub::HubWay,
        supervisor::Shared,
        wire::{receive, receive_at_most, send},
    },
    EvalNames, Founding,
    file::{Address, Name},
};
use crate::hub::random_token;

/// Handles in other processes at a time.
const MAX_CONNECTIONS: usize = 64;
/// Connections that have not shown the token, at a time; …
const MAX_STRANGERS: usize = 128;
/// … how long each has to show it, …
const GREETING: Duration = Duration::from_secs(5);
/// … and in how many bytes.
const GREETING_LIMITS: FrameLimits = FrameLimits { text: 1 << 10, bytes: 0 };
/// So much of what a handle says is read at once.
const PIECE: usize = 64 << 10;
/// After connections could not be taken, the next is waited for so long.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a worker that is shut down waits for the end of its evaluation's process.
const LAST: Duration = Duration::from_secs(5);
/// How often a worker looks whether it can still be found.
const WATCH: Duration = Duration::from_secs(2);

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
        let worker = EvalWorker::in_process_here(&founding.run)?;
        let Some(shared) = worker.shared() else {
            return Err(EvalWorkerError::setup("process", "it is no worker of its own"));
        };
        let host = Arc::new(Host { shared, worker: Mutex::new(worker), name: name.clone() });
        let hub = founding.hub.and_then(HubWay::hub);
        let is_at_hub = hub.is_some();
        if let Some(hub) = hub {
            let ending = host.clone();
            hub.serve(&founding.name, host.shared.clone(), move || ending.end())?;
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
                let full = || EvalAnswer::Trouble(EvalWorkerError::io("too many handles are connected"));
                let answer = seat.as_ref().map_or_else(full, |_| EvalAnswer::Done);
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
        receive_at_most(Hasty { line, until }, GREETING_LIMITS),
        Ok((EvalAsk::Hello { token: shown }, _)) if Token::from_hex(&shown).is_ok_and(|shown| shown == token)
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
        let mut conversation = EvalConversation::new(FrameLimits::MAX);
        // A line that fails is over as one that ends is.
        let _ = self.converse(&mut line, &mut conversation);
        if conversation.wants_shutdown() {
            self.end_evaluation();
            let _ = self.answer(&mut line, &mut conversation);
            std::process::exit(0);
        }
        self.shared.at_desk(|desk, _| conversation.end(desk));
    }

    fn converse(&self, line: &mut impl Line, conversation: &mut EvalConversation) -> io::Result<()> {
        line.set_patience(None)?;
        let mut piece = vec![0; PIECE];
        while !conversation.is_over() {
            let read = match line.read(&mut piece) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let mut rest = piece.get(..read).unwrap_or_default();
            while !rest.is_empty() {
                let heard = self.shared.at_desk(|desk, now| conversation.hear(rest, desk, now));
                rest = rest.get(heard..).unwrap_or_default();
                if conversation.wants_shutdown() {
                    return Ok(());
                }
                self.answer(line, conversation)?;
            }
        }
        Ok(())
    }

    /// Answers a question, if there was one.
    fn answer(&self, line: &mut impl Line, conversation: &mut EvalConversation) -> io::Result<()> {
        if let Some(answer) = self.shared.wait_for_answer(conversation) {
            answer.iter().try_for_each(|part| line.write_all(part))?;
            line.flush()?;
        }
        Ok(())
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
