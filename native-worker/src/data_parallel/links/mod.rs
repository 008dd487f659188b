//! The connections of a rank: peers, received frames, and the end of the group.

mod listen;
mod speak;

use std::{
    collections::VecDeque,
    io,
    net::TcpStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use rollmesh_core::policy::AllReduceError;

use super::{SILENCE, frame::Frame};

/// State shared by all threads of a rank.
pub(super) struct Links {
    rank: u32,
    /// Maximum number of queued bytes per rank.
    max_waiting: usize,
    peers: Vec<Peer>,
    state: Mutex<LinksState>,
    /// Notified when a frame has arrived, or the group has ended.
    changed: Condvar,
    /// Notified when the rank leaves.
    leaving: Condvar,
}

struct Peer {
    rank: u32,
    stream: TcpStream,
    writer: Mutex<TcpStream>,
}

struct LinksState {
    inboxes: Vec<Inbox>,
    /// The error that ended the group; the first one is kept.
    over: Option<AllReduceError>,
    /// Other ranks are notified of an end only between calls: a call that all ranks have made has its result on all of them.
    in_call: bool,
    is_reported: bool,
    leaves: bool,
}

#[derive(Default)]
struct Inbox {
    frames: VecDeque<Frame>,
    bytes: usize,
}

impl Links {
    /// Takes over connections and starts their threads, which are returned as well.
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
        let state = Mutex::new(LinksState { inboxes, over: None, in_call: false, is_reported: false, leaves: false });
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
    /// The error that ended the group.
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

    /// Ends a call. An error ends the group.
    pub(super) fn end<R>(&self, result: Result<R, AllReduceError>) -> Result<R, AllReduceError> {
        let mut state = self.state();
        state.in_call = false;
        if let Err(error) = &result {
            state.over.get_or_insert_with(|| error.clone());
        }
        let is_over = state.over.is_some();
        drop(state);
        if is_over {
            self.notify();
        }
        result
    }

    /// Waits for a peer's next frame, which is [`Frame::Begin`] or [`Frame::Data`].
    ///
    /// # Errors
    /// The error that ended the group, if the frame has not arrived before.
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

    fn state(&self) -> MutexGuard<'_, LinksState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the memory of a queued frame in bytes.
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
