//! The outgoing side of a connection: its queue and its closing.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use rollmesh_core::{
    hub::{CloseReason, PeerConnection, UploadDecoder},
    ids::LeaseId,
    protocol::{FrameBytes, Message, MessageFrame, Outbox, message::Goodbye},
};
use tokio::sync::Notify;

use crate::pulse::Pulse;

/// The actor's handle of a peer: it sends messages and closes the connection.
#[derive(Clone, Debug, Default)]
pub(super) struct PeerLink {
    shared: Arc<SharedLink>,
}

#[derive(Debug, Default)]
struct SharedLink {
    state: Mutex<LinkState>,
    wake: Notify,
    /// Notified when the queue is empty.
    drained: Notify,
    /// Notified when the peer is expelled.
    expelled: Notify,
    /// Bytes received in frames, including the WebSocket overhead.
    received: AtomicU64,
    /// The time at which a frame was last received.
    pulse: Pulse,
    /// Number of calls that the peer has not answered.
    calls: AtomicUsize,
}

#[derive(Debug, Default)]
struct LinkState {
    outbox: Outbox,
    /// Set once: the goodbye is queued, and nothing follows it.
    closing: Option<CloseReason>,
    /// Of the worker's latest leases, oldest first.
    decoders: VecDeque<UploadDecoder>,
}

impl PeerLink {
    fn state(&self) -> MutexGuard<'_, LinkState> {
        // No code panics while holding the lock; even then the queue would be intact.
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the reason that the connection is about to close, if it is.
    pub(super) fn why_closing(&self) -> Option<CloseReason> {
        self.state().closing
    }

    /// Adds credit: the peer accepts this many more bytes of chunks.
    pub(super) fn grant(&self, bytes: u32) {
        self.state().outbox.grant(bytes);
        self.shared.wake.notify_one();
    }

    /// Returns when there may be something to send, or the connection is to close.
    pub(super) async fn woken(&self) {
        self.shared.wake.notified().await;
    }

    /// Returns the next frame to send. If there is none, it returns `None` and notifies those waiting for
    /// [`drained`](Self::drained).
    pub(super) fn poll_frame(&self) -> Option<FrameBytes> {
        let frame = self.state().outbox.poll_frame();
        if frame.is_none() {
            self.shared.drained.notify_one();
        }
        frame
    }

    /// Returns once the queue has been sent.
    pub(super) async fn drained(&self) {
        self.shared.drained.notified().await;
    }

    /// Returns when the peer is expelled.
    pub(super) async fn expelled(&self) {
        self.shared.expelled.notified().await;
    }

    /// Records a received frame of this many bytes.
    pub(super) fn record_received(&self, bytes: u64) {
        self.shared.received.fetch_add(bytes, Ordering::Relaxed);
        self.shared.pulse.beat();
    }

    /// Returns when the peer last sent a message; WebSocket pongs do not count.
    pub(super) fn pulse(&self) -> Pulse {
        self.shared.pulse.clone()
    }

    /// Returns whether the peer has open calls.
    pub(super) fn is_called(&self) -> bool {
        self.shared.calls.load(Ordering::Relaxed) > 0
    }

    /// Returns the decoder for the uploads of one of the latest leases.
    pub(super) fn decoder(&self, lease: LeaseId) -> Option<UploadDecoder> {
        self.state().decoders.iter().find(|decoder| decoder.lease() == lease).cloned()
    }

    /// Returns the number of queued messages.
    pub(super) fn queued_frames(&self) -> usize {
        self.state().outbox.queued_frames()
    }

    /// Returns the number of bytes received from the peer since it was admitted.
    pub(super) fn received_bytes(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }
}

impl PeerConnection for PeerLink {
    fn send_frame(&self, frame: MessageFrame) {
        let mut state = self.state();
        if state.closing.is_none() {
            state.outbox.push_frame(frame);
            self.shared.wake.notify_one();
        }
    }

    fn queued_bytes(&self) -> usize {
        self.state().outbox.queued_bytes()
    }

    fn close(&self, why: CloseReason, reason: &str) {
        // A goodbye is far below any limit.
        let _ = self.send(&Message::Goodbye(Goodbye { reason: reason.chars().take(512).collect() }));
        self.state().closing = Some(why);
        self.shared.wake.notify_one();
    }

    fn expel(&self, reason: &str) {
        self.state().outbox = Outbox::default();
        self.close(CloseReason::Fault, reason);
        self.shared.expelled.notify_one();
    }

    fn hang_up(&self) {
        let mut state = self.state();
        (state.outbox, state.closing) = (Outbox::default(), Some(CloseReason::Again));
        self.shared.wake.notify_one();
    }

    fn set_open_calls(&self, calls: usize) {
        self.shared.calls.store(calls, Ordering::Relaxed);
    }

    fn record_lease(&self, decoder: UploadDecoder) {
        let decoders = &mut self.state().decoders;
        if decoders.len() == UploadDecoder::KEPT {
            decoders.pop_front();
        }
        decoders.push_back(decoder);
    }

    fn forget_leases(&self) {
        self.state().decoders.clear();
    }
}
