//! Sending frames to the other ranks.

use std::{
    io::{self, Write as _},
    net::{Shutdown, TcpStream},
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rollmesh_core::policy::AllReduceError;

use super::{
    super::{HEARTBEAT, frame::Frame},
    Links, reason,
};

/// Time limit for sending the goodbye when leaving.
const FAREWELL: Duration = Duration::from_millis(500);

impl Links {
    /// Sends a frame to a peer.
    ///
    /// # Errors
    /// The error that ended the group, or the loss of the peer.
    pub(in super::super) fn send(&self, peer: usize, frame: &Frame) -> Result<(), AllReduceError> {
        self.write(peer, |to| frame.write(to))
    }

    /// Sends an encoded frame.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(in super::super) fn send_bytes(&self, peer: usize, frame: &[u8]) -> Result<(), AllReduceError> {
        self.write(peer, |to| to.write_all(frame))
    }

    fn write(&self, peer: usize, write: impl FnOnce(&mut TcpStream) -> io::Result<()>) -> Result<(), AllReduceError> {
        let to = &self.peers[peer];
        let written = write(&mut to.writer.lock().unwrap_or_else(PoisonError::into_inner));
        written.map_err(|error| {
            // A reason that the peer sent before is more precise than the write error.
            let (state, _) = self
                .changed
                .wait_timeout_while(self.state(), FAREWELL, |state| state.over.is_none())
                .unwrap_or_else(PoisonError::into_inner);
            let lost = || AllReduceError::Lost { rank: to.rank, reason: reason(&error) };
            state.over.clone().unwrap_or_else(lost)
        })
    }

    /// Leaves the group, and waits for the threads.
    pub(in super::super) fn leave(&self, threads: Vec<JoinHandle<()>>) {
        self.state().leaves = true;
        self.changed.notify_all();
        self.leaving.notify_all();
        let deadline = Instant::now() + FAREWELL;
        for peer in &self.peers {
            if let Some(mut writer) = lock_until(&peer.writer, deadline) {
                // A peer that has disconnected need not be notified.
                let _ = writer.set_write_timeout(Some(FAREWELL));
                let _ = Frame::Leave.write(&mut *writer);
            }
            // Unblocks its threads.
            let _ = peer.stream.shutdown(Shutdown::Both);
        }
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// Notifies all peers, once, that the group has ended.
    pub(super) fn notify(&self) {
        let mut state = self.state();
        let Some(error) = state.over.clone().filter(|_| !state.is_reported && !state.leaves) else { return };
        state.is_reported = true;
        drop(state);
        let error = match error {
            AllReduceError::TooLarge { .. } => AllReduceError::GaveUp { rank: self.rank, reason: error.to_string() },
            other => other,
        };
        let over = Frame::Over(error);
        for peer in &self.peers {
            // Errors are ignored: a peer may have disconnected.
            let _ = over.write(&mut *peer.writer.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Sends heartbeats until this rank leaves or the connection fails.
    pub(super) fn beat(&self, peer: usize) {
        loop {
            let state = self.state();
            let waited = self.leaving.wait_timeout_while(state, HEARTBEAT, |state| !state.leaves);
            if waited.unwrap_or_else(PoisonError::into_inner).0.leaves {
                return;
            }
            let mut writer = self.peers[peer].writer.lock().unwrap_or_else(PoisonError::into_inner);
            if Frame::Alive.write(&mut *writer).is_err() {
                // The reading thread finds the reason.
                return;
            }
        }
    }
}

/// Locks the mutex, unless another thread holds it until the deadline.
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
