//! Receiving frames from the other ranks.

use std::net::{Shutdown, TcpStream};

use rollmesh_core::policy::AllReduceError;

use super::{
    super::frame::{Frame, FrameError},
    Links, Peer, reason, weight,
};

impl Links {
    /// Reads a peer's frames until it disconnects.
    pub(super) fn listen(&self, peer: usize, mut stream: TcpStream) {
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
                        // Rank 0 knows the error already.
                        self.state().is_reported = true;
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

    /// Queues a frame until it is taken.
    fn keep(&self, peer: usize, frame: Frame) -> Result<(), AllReduceError> {
        let mut state = self.state();
        let inbox = &mut state.inboxes[peer];
        inbox.bytes = inbox.bytes.saturating_add(weight(&frame));
        if inbox.bytes > self.max_waiting {
            let reason = format!("more than {} bytes without a request", self.max_waiting);
            return Err(AllReduceError::Protocol { rank: self.peers[peer].rank, reason });
        }
        inbox.frames.push_back(frame);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Ends the group with an error.
    pub(in super::super) fn fail(&self, error: AllReduceError) {
        self.fail_with(error, None);
    }

    /// Ends the group, after a lost peer if there is one: its socket is shut down, so that pending reads and writes
    /// end.
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
            self.notify();
        }
    }
}
