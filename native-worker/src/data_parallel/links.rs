//! The connections of a rank while it learns: who is there, what has come, and whether the group is over.

use std::{
    collections::VecDeque,
    io::{self, Write as _},
    net::{Shutdown, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rollmesh_core::policy::AllReduceError;

use super::{
    HEARTBEAT, SILENCE,
    frame::{Frame, FrameError},
};

/// How long a rank that leaves tries to say so.
const FAREWELL: Duration = Duration::from_millis(500);

/// What all threads of a rank share.
pub(super) struct Links {
    rank: u32,
    /// The most bytes that may wait to be taken, of one rank.
    max_waiting: usize,
    peers: Vec<Peer>,
    state: Mutex<State>,
    /// Something has come, or the group is over.
    changed: Condvar,
    /// The rank leaves.
    leaving: Condvar,
}

struct Peer {
    rank: u32,
    stream: TcpStream,
    writer: Mutex<TcpStream>,
}

struct State {
    inboxes: Vec<Inbox>,
    /// Why the group is over; the first reason stays.
    over: Option<AllReduceError>,
    /// Others are told only between calls: what a call that all ranks have made gives, is given to all.
    in_call: bool,
    told: bool,
    leaves: bool,
}

#[derive(Default)]
struct Inbox {
    frames: VecDeque<Frame>,
    bytes: usize,
}

impl Links {
    /// Takes over connections, and listens to them from now on. Gives the threads, too.
    pub(super) fn open(
        rank: u32,
        streams: Vec<TcpStream>,
        max_waiting: usize,
    ) -> io::Result<(Arc<Self>, Vec<JoinHandle<()>>)> {
        let ranks = if rank == 0 { 1.. } else { 0.. };
        let mut peers = Vec::new();
        for (rank, stream) in ranks.zip(streams) {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(SILENCE))?;
            stream.set_write_timeout(Some(SILENCE))?;
            peers.push(Peer { rank, writer: Mutex::new(stream.try_clone()?), stream });
        }
        let inboxes = peers.iter().map(|_| Inbox::default()).collect();
        let state = Mutex::new(State { inboxes, over: None, in_call: false, told: false, leaves: false });
        let (changed, leaving) = (Condvar::new(), Condvar::new());
        let links = Arc::new(Self { rank, max_waiting, peers, state, changed, leaving });
        let mut threads = Vec::new();
        for i in 0..links.peers.len() {
            let (reader, beater) = (links.clone(), links.clone());
            let stream = links.peers[i].stream.try_clone()?;
            let started = thread::Builder::new().name("rank reader".into()).spawn(move || reader.listen(i, stream));
            let started = started.and_then(|thread| {
                threads.push(thread);
                thread::Builder::new().name("rank heartbeat".into()).spawn(move || beater.beat(i))
            });
            match started {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    links.leave(threads);
                    return Err(error);
                }
            }
        }
        Ok((links, threads))
    }

    pub(super) fn peers(&self) -> usize {
        self.peers.len()
    }

    pub(super) fn rank_of(&self, peer: usize) -> u32 {
        self.peers[peer].rank
    }

    /// Begins a call.
    ///
    /// # Errors
    /// Why the group is over.
    pub(super) fn begin(&self) -> Result<(), AllReduceError> {
        let mut state = self.state();
        match &state.over {
            Some(error) => Err(error.clone()),
            None => {
                state.in_call = true;
                Ok(())
            }
        }
    }

    /// Ends a call. After an error the group is over.
    pub(super) fn end<R>(&self, result: Result<R, AllReduceError>) -> Result<R, AllReduceError> {
        let mut state = self.state();
        state.in_call = false;
        if let Err(error) = &result {
            state.over.get_or_insert_with(|| error.clone());
        }
        let is_over = state.over.is_some();
        drop(state);
        if is_over {
            self.tell();
        }
        result
    }

    /// The next frame of a peer, which is [`Frame::Begin`] or [`Frame::Data`].
    ///
    /// # Errors
    /// Why the group is over, if the frame has not come before.
    pub(super) fn next(&self, peer: usize) -> Result<Frame, AllReduceError> {
        let mut state = self.state();
        loop {
            let inbox = &mut state.inboxes[peer];
            if let Some(frame) = inbox.frames.pop_front() {
                inbox.bytes = inbox.bytes.saturating_sub(weight(&frame));
                return Ok(frame);
            }
            if let Some(error) = &state.over {
                return Err(error.clone());
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sends a frame to a peer.
    ///
    /// # Errors
    /// Why the group is over, or that the peer is lost.
    pub(super) fn send(&self, peer: usize, frame: &Frame) -> Result<(), AllReduceError> {
        self.write(peer, |to| frame.write(to))
    }

    /// Sends a frame that is bytes already.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(super) fn send_bytes(&self, peer: usize, frame: &[u8]) -> Result<(), AllReduceError> {
        self.write(peer, |to| to.write_all(frame))
    }

    fn write(&self, peer: usize, write: impl FnOnce(&mut TcpStream) -> io::Result<()>) -> Result<(), AllReduceError> {
        let to = &self.peers[peer];
        let written = write(&mut to.writer.lock().unwrap_or_else(PoisonError::into_inner));
        written.map_err(|error| {
            // Its last words say more, if it had any.
            let (state, _) = self
                .changed
                .wait_timeout_while(self.state(), FAREWELL, |state| state.over.is_none())
                .unwrap_or_else(PoisonError::into_inner);
            let lost = || AllReduceError::Lost { rank: to.rank, reason: reason(&error) };
            state.over.clone().unwrap_or_else(lost)
        })
    }

    /// The group is over.
    pub(super) fn fail(&self, error: AllReduceError) {
        self.fail_with(error, None);
    }

    /// The same, and nobody waits for a peer any more, not even to write.
    fn fail_with(&self, error: AllReduceError, lost: Option<&Peer>) {
        let mut state = self.state();
        state.over.get_or_insert(error);
        let wait = state.in_call;
        drop(state);
        if let Some(lost) = lost {
            // It may be closed already.
            let _ = lost.stream.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
        if !wait {
            self.tell();
        }
    }

    /// Leaves, and waits for the threads.
    pub(super) fn leave(&self, threads: Vec<JoinHandle<()>>) {
        self.state().leaves = true;
        self.changed.notify_all();
        self.leaving.notify_all();
        let deadline = Instant::now() + FAREWELL;
        for peer in &self.peers {
            if let Some(mut writer) = lock_until(&peer.writer, deadline) {
                // Whoever does not listen any more need not know.
                let _ = writer.set_write_timeout(Some(FAREWELL));
                let _ = Frame::Leave.write(&mut *writer);
            }
            // Ends what its threads wait for.
            let _ = peer.stream.shutdown(Shutdown::Both);
        }
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells all others, once, that the group is over.
    fn tell(&self) {
        let mut state = self.state();
        let Some(error) = state.over.clone().filter(|_| !state.told && !state.leaves) else { return };
        state.told = true;
        drop(state);
        let error = match error {
            AllReduceError::TooLarge { .. } => AllReduceError::GaveUp { rank: self.rank, reason: error.to_string() },
            other => other,
        };
        let over = Frame::Over(error);
        for peer in &self.peers {
            // One that is gone cannot be told.
            let _ = over.write(&mut *peer.writer.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Reads what a peer sends until it is gone.
    fn listen(&self, peer: usize, mut stream: TcpStream) {
        let rank = self.peers[peer].rank;
        loop {
            let error = match Frame::read(&mut stream) {
                Ok(Frame::Alive) => continue,
                Ok(frame @ (Frame::Begin(_) | Frame::Data(_))) => match self.keep(peer, frame) {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                Ok(Frame::Over(error)) => {
                    if self.rank != 0 {
                        // Rank 0 knows it.
                        self.state().told = true;
                    }
                    self.fail(error);
                    continue;
                }
                Ok(Frame::Leave) => AllReduceError::Left { rank },
                Ok(Frame::Welcome | Frame::Refused(_)) => {
                    AllReduceError::Protocol { rank, reason: "a frame out of place".into() }
                }
                Err(FrameError::Bad(what)) => AllReduceError::Protocol { rank, reason: what.into() },
                Err(FrameError::Io(error)) => AllReduceError::Lost { rank, reason: reason(&error) },
            };
            if self.state().leaves {
                return;
            }
            let is_lost = !matches!(error, AllReduceError::Left { .. });
            self.fail_with(error, Some(&self.peers[peer]).filter(|_| is_lost));
            return;
        }
    }

    /// Lets a frame wait until it is taken.
    fn keep(&self, peer: usize, frame: Frame) -> Result<(), AllReduceError> {
        let mut state = self.state();
        let inbox = &mut state.inboxes[peer];
        inbox.bytes = inbox.bytes.saturating_add(weight(&frame));
        if inbox.bytes > self.max_waiting {
            let reason = format!("more than {} bytes that nobody has asked for", self.max_waiting);
            return Err(AllReduceError::Protocol { rank: self.peers[peer].rank, reason });
        }
        inbox.frames.push_back(frame);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Says now and then that this rank is there, until it leaves or nobody hears it.
    fn beat(&self, peer: usize) {
        loop {
            let state = self.state();
            let waited = self.leaving.wait_timeout_while(state, HEARTBEAT, |state| !state.leaves);
            if waited.unwrap_or_else(PoisonError::into_inner).0.leaves {
                return;
            }
            let mut writer = self.peers[peer].writer.lock().unwrap_or_else(PoisonError::into_inner);
            if Frame::Alive.write(&mut *writer).is_err() {
                // Whoever reads notices why.
                return;
            }
        }
    }
}

/// Bytes that a frame occupies while it waits.
fn weight(frame: &Frame) -> usize {
    if let Frame::Data(data) = frame { data.len() + size_of::<Frame>() } else { 2 * size_of::<Frame>() }
}

fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            format!("nothing has come from it for {} s, so it hangs or cannot be reached", SILENCE.as_secs())
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            "its connection was closed, so its process has ended".into()
        }
        _ => error.to_string(),
    }
}

/// Locks, unless somebody keeps it until then.
fn lock_until<T>(mutex: &Mutex<T>, deadline: Instant) -> Option<MutexGuard<'_, T>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(1)),
        }
    }
}
