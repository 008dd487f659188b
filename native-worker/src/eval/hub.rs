//! The way through a hub: evaluation workers that are found from other machines.
//!
//! An evaluator's connection is a thread that carries messages. What two evaluators say to each other is a stream of bytes
//! in each direction, as on a socket; how much may be on its way is limited, so nobody has to keep more than that.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, io,
    io::{Read, Write},
    path::PathBuf,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use futures_util::{SinkExt as _, StreamExt as _};
use rollmesh_core::protocol::{
    Inbox, Message, Role, Token,
    handshake::{self, Identity},
    message::{
        EVALUATOR_WINDOW, EvaluatorBytes, EvaluatorFound, EvaluatorGone, EvaluatorName, EvaluatorTaken, Goodbye,
        MAX_EVALUATOR_BYTES,
    },
};
use serde::{Deserialize, Serialize};
use tokio::{sync::mpsc as channel, time::timeout};
use tokio_tungstenite::tungstenite::Message as Frame;

use super::{
    EvalWorker, EvalWorkerError,
    names::{ANSWER, Connection, Line, check_name},
};
use crate::{
    control::{ControlError, HubUrl, Trust, token_from_env},
    net::{HubSocket, connect},
};

/// A hub pings every five seconds; after this time without a sign of it, it is taken for gone.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);
/// A hub has this long to take a goodbye.
const FAREWELL: Duration = Duration::from_secs(1);
/// Bytes that were read are granted again in portions of this size.
const GRANT: usize = EVALUATOR_WINDOW / 4;

/// A hub through which evaluation workers are found, from any machine.
///
/// ```no_run
/// use std::time::Duration;
///
/// use rollmesh::eval::{EvalHub, EvalNames, EvalSpec};
///
/// // ROLLMESH_TOKEN holds a token of an evaluator, as `rollmesh tokens create --role evaluator` makes one.
/// let hub = EvalHub::from_env("wss://hub.example:7878")?;
/// // Here …
/// EvalNames::of_user().with_hub(hub.clone()).create("judge", &EvalSpec::new("CartPole-v1"))?;
/// // … and anywhere else:
/// let mut worker = hub.find("judge")?;
/// worker.submit(None, 500, true, true)?;
/// println!("{:?}", worker.poll(Duration::from_secs(30))?.map(|found| found.reward()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct EvalHub {
    /// Where the hub is.
    pub url: HubUrl,
    /// The token of an evaluator. Never part of an address or of a command line.
    pub token: Token,
    /// Which hub to believe.
    pub trust: Trust,
}

impl EvalHub {
    /// With the token of the environment variable `ROLLMESH_TOKEN`.
    ///
    /// # Errors
    /// [`ControlError`] when the address or the token cannot be read.
    pub fn from_env(url: &str) -> Result<Self, ControlError> {
        Ok(Self { url: url.parse()?, token: token_from_env()?, trust: Trust::default() })
    }

    /// The worker that serves under a name at this hub, with nothing asked for by this handle.
    ///
    /// # Errors
    /// [`EvalWorkerError::UnknownName`], [`EvalWorkerError::BadName`], [`EvalWorkerError::Io`].
    pub fn find(&self, name: &str) -> Result<EvalWorker, EvalWorkerError> {
        check_name(name)?;
        let pipe = Arc::new(Pipe::default());
        let (answer, found) = mpsc::channel();
        let hearing = pipe.clone();
        let link = Link::open(self, name, move |heard| match heard {
            Heard::Message(Message::EvaluatorFound(found)) => {
                // It may leave right after this.
                hearing.state().peer = found.peer;
                let _ = answer.send(found.peer);
            }
            Heard::Message(Message::EvaluatorBytes(bytes)) => hearing.add(&bytes.data),
            Heard::Message(Message::EvaluatorTaken(taken)) => hearing.taken(taken.bytes),
            // There is only one that this handle has to do with; the others come and go.
            Heard::Message(Message::EvaluatorGone(gone)) if hearing.is_of(gone.peer) => {
                hearing.end("the worker has left")
            }
            Heard::Message(_) => {}
            Heard::Lost(reason) => hearing.end(&reason),
        })?;
        link.say(Message::EvaluatorName(EvaluatorName { name: name.into(), serves: false }));
        let peer = match found.recv_timeout(ANSWER) {
            Ok(0) => {
                return Err(EvalWorkerError::UnknownName {
                    name: name.into(),
                    dir: PathBuf::from(self.url.to_string()),
                });
            }
            Ok(peer) => peer,
            Err(_) => return Err(EvalWorkerError::io("the hub does not say who has that name")),
        };
        Ok(EvalWorker::connected(Connection::over(HubStream { link, peer, pipe, patience: None, read: 0 })))
    }

    /// Serves under a name from now on: `meet` gets everybody who asks for something, on a thread of its own. Returns once
    /// the name is taken; a connection that is lost is made again.
    pub(super) fn serve(
        self,
        name: &str,
        max_lines: usize,
        meet: impl Fn(HubStream) + Clone + Send + 'static,
    ) -> Result<(), EvalWorkerError> {
        let mut lost = self.serve_once(name, max_lines, meet.clone())?;
        let name = name.to_owned();
        let again = move || loop {
            // Whether with or without a word: it is over.
            let _ = lost.recv();
            for attempt in 1.. {
                let pause = rollmesh_core::protocol::reconnect_delay(attempt, getrandom::u32().unwrap_or(u32::MAX / 2));
                thread::sleep(Duration::from_micros(pause.0));
                if let Ok(next) = self.serve_once(&name, max_lines, meet.clone()) {
                    lost = next;
                    break;
                }
            }
        };
        thread::Builder::new().name("eval-hub".into()).spawn(again).map(|_| ()).map_err(EvalWorkerError::io)
    }

    fn serve_once(
        &self,
        name: &str,
        max_lines: usize,
        meet: impl Fn(HubStream) + Clone + Send + 'static,
    ) -> Result<mpsc::Receiver<()>, EvalWorkerError> {
        let (answer, found) = mpsc::channel();
        let (over, lost) = mpsc::channel();
        let mut lines: BTreeMap<u32, Arc<Pipe>> = BTreeMap::new();
        let to_hub = Link::open_with(self, name, |to_hub: &Link| {
            let to_hub = to_hub.clone();
            move |heard| match heard {
                Heard::Message(Message::EvaluatorFound(EvaluatorFound { peer, .. })) => _ = answer.send(peer),
                Heard::Message(Message::EvaluatorBytes(EvaluatorBytes { peer, data })) => {
                    if let Some(pipe) = lines.get(&peer) {
                        return pipe.add(&data);
                    }
                    if lines.len() >= max_lines {
                        return;
                    }
                    let pipe = Arc::new(Pipe::default());
                    pipe.add(&data);
                    lines.insert(peer, pipe.clone());
                    let (meet, link) = (meet.clone(), to_hub.clone());
                    let line = HubStream { link, peer, pipe, patience: None, read: 0 };
                    // Without a thread nobody answers, and the other side gives up.
                    let _ = thread::Builder::new().name("eval-handle".into()).spawn(move || meet(line));
                }
                Heard::Message(Message::EvaluatorTaken(EvaluatorTaken { peer, bytes })) => {
                    if let Some(pipe) = lines.get(&peer) {
                        pipe.taken(bytes);
                    }
                }
                Heard::Message(Message::EvaluatorGone(EvaluatorGone { peer })) => {
                    if let Some(pipe) = lines.remove(&peer) {
                        pipe.end("the other side has left");
                    }
                }
                Heard::Message(_) => {}
                Heard::Lost(reason) => {
                    lines.values().for_each(|pipe| pipe.end(&reason));
                    let _ = over.send(());
                }
            }
        })?;
        to_hub.say(Message::EvaluatorName(EvaluatorName { name: name.into(), serves: true }));
        match found.recv_timeout(ANSWER) {
            Ok(1..) => Ok(lost),
            refused => {
                // Whoever hears may speak, so it does not end by itself.
                to_hub.say(Message::Goodbye(Goodbye { reason: "it cannot serve".into() }));
                let taken = || EvalWorkerError::NameTaken(name.into());
                Err(refused.map_or_else(|_| EvalWorkerError::io("the hub does not give names"), |_| taken()))
            }
        }
    }
}

/// An [`EvalHub`], as it is told to another process on its standard input.
#[derive(Serialize, Deserialize)]
pub(super) struct HubWay {
    url: String,
    token: String,
    ca: Option<PathBuf>,
    fingerprint: Option<String>,
    allow_unencrypted: bool,
}

impl From<&EvalHub> for HubWay {
    fn from(hub: &EvalHub) -> Self {
        let EvalHub { url, token, trust: Trust { ca, fingerprint, allow_unencrypted } } = hub;
        let (url, token, fingerprint) = (url.to_string(), token.to_hex(), fingerprint.map(|print| print.to_string()));
        Self { url, token, ca: ca.clone(), fingerprint, allow_unencrypted: *allow_unencrypted }
    }
}

impl HubWay {
    /// None if it is of something else.
    pub(super) fn hub(self) -> Option<EvalHub> {
        let fingerprint = self.fingerprint.map(|print| print.parse()).transpose().ok()?;
        let trust = Trust { ca: self.ca, fingerprint, allow_unencrypted: self.allow_unencrypted };
        Some(EvalHub { url: self.url.parse().ok()?, token: Token::from_hex(&self.token).ok()?, trust })
    }
}

/// What comes of a connection.
#[allow(clippy::large_enum_variant)] // Each is handled at once.
enum Heard {
    Message(Message),
    Lost(String),
}

/// A connection to a hub. It ends when nobody can say anything by it any more, or with a goodbye.
#[derive(Clone, Debug)]
struct Link(channel::UnboundedSender<Message>);

impl Link {
    fn open(hub: &EvalHub, name: &str, hear: impl FnMut(Heard) + Send + 'static) -> Result<Self, EvalWorkerError> {
        Self::open_with(hub, name, |_| hear)
    }

    /// Connects and introduces itself. Whoever hears may also speak.
    fn open_with<H: FnMut(Heard) + Send + 'static>(
        hub: &EvalHub,
        name: &str,
        hear: impl FnOnce(&Self) -> H,
    ) -> Result<Self, EvalWorkerError> {
        let (sender, outgoing) = channel::unbounded_channel();
        let link = Self(sender);
        let hear = hear(&link);
        let (hub, name) = (hub.clone(), name.to_owned());
        let (told, is_open) = mpsc::channel();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(EvalWorkerError::io)?;
        let carry = move || {
            runtime.block_on(async {
                match timeout(ANSWER, introduce(&hub, &name)).await {
                    Ok(Ok((socket, inbox))) => {
                        let _ = told.send(Ok(()));
                        carry(socket, inbox, outgoing, hear).await;
                    }
                    Ok(Err(reason)) => _ = told.send(Err(reason)),
                    Err(_) => _ = told.send(Err("the hub does not answer".into())),
                }
            });
        };
        thread::Builder::new().name("eval-link".into()).spawn(carry).map_err(EvalWorkerError::io)?;
        match is_open.recv() {
            Ok(Ok(())) => Ok(link),
            Ok(Err(reason)) => Err(EvalWorkerError::io(reason)),
            Err(_) => Err(EvalWorkerError::io("the connection ended")),
        }
    }

    fn say(&self, message: Message) {
        // One that is over says so by itself.
        let _ = self.0.send(message);
    }
}

async fn introduce(hub: &EvalHub, name: &str) -> Result<(HubSocket, Inbox), String> {
    let mut socket = connect(hub.url.as_str(), &hub.trust).await?;
    let name = if name.len() <= handshake::MAX_TEXT_BYTES { name } else { "evaluator" };
    let identity = Identity {
        role: Role::Evaluator,
        token: hub.token,
        resume: None,
        // Only workers are asked for it.
        core_fingerprint: [0; 16],
        kind: "native".into(),
        name: name.into(),
        device: "cpu".into(),
    };
    let hello = Frame::Binary(identity.hello().encode().into());
    socket.send(hello).await.map_err(|error| error.to_string())?;
    let mut inbox = Inbox::of_peer(Role::Evaluator);
    loop {
        match socket.next().await {
            Some(Ok(Frame::Binary(frame))) => {
                if let Some(answer) = inbox.handle_frame(&frame).map_err(|error| error.to_string())? {
                    handshake::read_answer(answer).map_err(|error| error.to_string())?;
                    return Ok((socket, inbox));
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.to_string()),
            None => return Err("the hub closed the connection".into()),
        }
    }
}

/// Carries messages both ways until the connection is over, and says why.
async fn carry(
    socket: HubSocket,
    mut inbox: Inbox,
    mut outgoing: channel::UnboundedReceiver<Message>,
    mut hear: impl FnMut(Heard),
) {
    let (mut sink, mut stream) = socket.split();
    let reason = loop {
        tokio::select! {
            message = outgoing.recv() => {
                let Some(message) = message else { break "it is not needed any more".to_owned() };
                if let Err(error) = sink.send(Frame::Binary(message.encode().into())).await {
                    break error.to_string();
                }
            }
            frame = timeout(SILENCE_LIMIT, stream.next()) => match frame {
                Ok(Some(Ok(Frame::Binary(frame)))) => match inbox.handle_frame(&frame) {
                    Ok(Some(Message::Goodbye(goodbye))) => break goodbye.reason,
                    Ok(message) => message.into_iter().for_each(|message| hear(Heard::Message(message))),
                    Err(error) => break error.to_string(),
                },
                Ok(Some(Ok(Frame::Close(_))) | None) => break "the hub closed the connection".to_owned(),
                Ok(Some(Ok(_))) => {}
                Ok(Some(Err(error))) => break error.to_string(),
                Err(_) => break format!("nothing was heard from the hub for {} s", SILENCE_LIMIT.as_secs()),
            },
        }
    };
    let goodbye = Message::Goodbye(Goodbye { reason: "done".into() });
    let _ = timeout(FAREWELL, async {
        sink.send(Frame::Binary(goodbye.encode().into())).await?;
        sink.close().await
    })
    .await;
    hear(Heard::Lost(reason));
}

/// What has come from the other side and was not read, and how much it has not taken.
#[derive(Default)]
struct Pipe {
    state: Mutex<PipeState>,
    changed: Condvar,
}

#[derive(Default)]
struct PipeState {
    peer: u32,
    bytes: VecDeque<u8>,
    /// Bytes that the other side has not taken.
    on_their_way: usize,
    end: Option<String>,
}

impl Pipe {
    fn state(&self) -> MutexGuard<'_, PipeState> {
        // Nobody panics while holding it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_of(&self, peer: u32) -> bool {
        self.state().peer == peer
    }

    fn add(&self, data: &[u8]) {
        let mut state = self.state();
        if state.bytes.len() + data.len() > EVALUATOR_WINDOW {
            state.end = Some("the other side sends more than there is room for".into());
        } else {
            state.bytes.extend(data);
        }
        self.changed.notify_all();
    }

    fn taken(&self, bytes: u32) {
        let mut state = self.state();
        state.on_their_way = state.on_their_way.saturating_sub(bytes as usize);
        self.changed.notify_all();
    }

    fn end(&self, reason: &str) {
        self.state().end.get_or_insert_with(|| reason.into());
        self.changed.notify_all();
    }

    /// Waits until something is so, or there is nothing more to wait for.
    fn until(
        &self,
        patience: Option<Duration>,
        mut is_so: impl FnMut(&PipeState) -> bool,
    ) -> io::Result<MutexGuard<'_, PipeState>> {
        let deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
        let mut state = self.state();
        loop {
            if is_so(&state) {
                return Ok(state);
            }
            if let Some(reason) = &state.end {
                return Err(io::Error::new(io::ErrorKind::ConnectionAborted, reason.clone()));
            }
            state = match deadline {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}

/// Bytes to and from another evaluator.
pub(super) struct HubStream {
    link: Link,
    peer: u32,
    pipe: Arc<Pipe>,
    patience: Option<Duration>,
    /// Bytes that were read and not granted again.
    read: usize,
}

impl fmt::Debug for HubStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubStream").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Read for HubStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut state = self.pipe.until(self.patience, |state| !state.bytes.is_empty())?;
        let read = state.bytes.read(buffer)?;
        let is_empty = state.bytes.is_empty();
        drop(state);
        self.read += read;
        if is_empty || self.read >= GRANT {
            // Never more than the window.
            let bytes = u32::try_from(std::mem::take(&mut self.read)).unwrap_or(u32::MAX);
            self.link.say(Message::EvaluatorTaken(EvaluatorTaken { peer: self.peer, bytes }));
        }
        Ok(read)
    }
}

impl Write for HubStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state =
            self.pipe.until(Some(ANSWER), |state| state.end.is_none() && state.on_their_way < EVALUATOR_WINDOW)?;
        let room = (EVALUATOR_WINDOW - state.on_their_way).min(MAX_EVALUATOR_BYTES);
        let data: Vec<u8> = bytes.iter().copied().take(room).collect();
        if data.is_empty() {
            return Ok(0);
        }
        state.on_their_way += data.len();
        drop(state);
        let written = data.len();
        self.link.say(Message::EvaluatorBytes(EvaluatorBytes { peer: self.peer, data }));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Line for HubStream {
    fn set_patience(&mut self, patience: Option<Duration>) -> io::Result<()> {
        self.patience = patience;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_on_its_way_than_there_is_room_for() {
        let (sender, mut sent) = channel::unbounded_channel();
        let pipe = Arc::new(Pipe::default());
        let mut line = HubStream { link: Link(sender), peer: 3, pipe: pipe.clone(), patience: None, read: 0 };
        let all = vec![7; EVALUATOR_WINDOW];
        line.write_all(&all).unwrap();
        assert!(pipe.state().on_their_way == EVALUATOR_WINDOW);
        pipe.taken(5);
        assert_eq!(line.write(&all).unwrap(), 5);
        pipe.end("it is over");
        assert_eq!(line.write(&all).unwrap_err().to_string(), "it is over");
        let mut bytes = 0;
        while let Ok(Message::EvaluatorBytes(EvaluatorBytes { peer: 3, data })) = sent.try_recv() {
            assert!(data.len() <= MAX_EVALUATOR_BYTES);
            bytes += data.len();
        }
        assert_eq!(bytes, EVALUATOR_WINDOW + 5);
    }

    #[test]
    fn what_was_read_is_granted_again() {
        let (sender, mut sent) = channel::unbounded_channel();
        let pipe = Arc::new(Pipe::default());
        let mut line =
            HubStream { link: Link(sender), peer: 3, pipe: pipe.clone(), patience: Some(Duration::ZERO), read: 0 };
        assert_eq!(line.read(&mut [0; 4]).unwrap_err().kind(), io::ErrorKind::TimedOut);
        pipe.add(&[1, 2, 3, 4, 5]);
        let mut three = [0; 3];
        line.read_exact(&mut three).unwrap();
        assert!(three == [1, 2, 3] && sent.try_recv().is_err());
        assert_eq!(line.read(&mut [0; 4]).unwrap(), 2);
        assert_eq!(sent.try_recv(), Ok(Message::EvaluatorTaken(EvaluatorTaken { peer: 3, bytes: 5 })));
        // What came before the end is read.
        pipe.add(&[6]);
        pipe.end("it is over");
        assert_eq!(line.read(&mut [0; 4]).unwrap(), 1);
        assert_eq!(line.read(&mut [0; 4]).unwrap_err().to_string(), "it is over");
        pipe.add(&vec![0; EVALUATOR_WINDOW + 1]);
        assert!(pipe.state().bytes.is_empty());
    }
}
