//! The outgoing side of a connection: its queue and its closing.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use hyper::body::Bytes;
use rollmesh_core::{
    hub::UploadDecoder,
    ids::LeaseId,
    protocol::{Frame, Message, Outbox, TooLarge, message::Goodbye},
};
use tokio::sync::Notify;

use crate::pulse::Pulse;

/// The actor's handle of a peer: it sends messages and closes the connection.
#[derive(Clone, Debug)]
pub(super) struct PeerLink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    outbox: Mutex<Outbox>,
    wake: Notify,
    /// Notified when the queue is empty.
    drained: Notify,
    /// Set once: the goodbye is queued, and nothing follows it.
    closing: Mutex<Option<CloseReason>>,
    /// Notified when the peer is expelled.
    expelled: Notify,
    /// Bytes received in frames, including the WebSocket overhead.
    received: AtomicU64,
    /// When a frame was last received.
    pulse: Pulse,
    /// Number of calls that the peer has not answered.
    calls: AtomicUsize,
    /// Of the worker's latest leases, oldest first.
    decoders: Mutex<VecDeque<UploadDecoder>>,
}

impl PeerLink {
    pub(super) fn new() -> Self {
        let shared = Shared {
            outbox: Mutex::default(),
            wake: Notify::new(),
            drained: Notify::new(),
            closing: Mutex::new(None),
            expelled: Notify::new(),
            received: AtomicU64::new(0),
            pulse: Pulse::new(),
            calls: AtomicUsize::new(0),
            decoders: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        // No code panics while holding the lock; even then the queue would be intact.
        self.shared.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns why the connection is about to close, if it is.
    pub(super) fn why_closing(&self) -> Option<CloseReason> {
        *self.closing()
    }

    fn closing(&self) -> MutexGuard<'_, Option<CloseReason>> {
        self.shared.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn send(&self, message: &Message) -> Result<(), TooLarge> {
        self.send_frame(Frame::new(message)?);
        Ok(())
    }

    pub(super) fn send_frame(&self, frame: Frame) {
        if self.closing().is_none() {
            self.outbox().push_frame(frame);
            self.shared.wake.notify_one();
        }
    }

    /// Adds credit: the peer accepts this many more bytes of chunks.
    pub(super) fn grant(&self, bytes: u32) {
        self.outbox().grant(bytes);
        self.shared.wake.notify_one();
    }

    /// Returns when there may be something to send, or the connection is to close.
    pub(super) async fn woken(&self) {
        self.shared.wake.notified().await;
    }

    /// Returns the next frame to send. If there is none, it returns `None` and notifies those waiting for
    /// [`drained`](Self::drained).
    pub(super) fn poll_frame(&self) -> Option<Bytes> {
        let frame = self.outbox().poll_frame();
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
    pub(super) fn note_received(&self, bytes: u64) {
        self.shared.received.fetch_add(bytes, Ordering::Relaxed);
        self.shared.pulse.beat();
    }

    /// Returns when the peer last sent a message; WebSocket pongs do not count.
    pub(super) fn pulse(&self) -> Pulse {
        self.shared.pulse.clone()
    }

    /// Counts a call; to be used before the call is sent.
    pub(super) fn note_call(&self) {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call as finished.
    pub(super) fn note_result(&self) {
        self.shared.calls.fetch_sub(1, Ordering::Relaxed);
    }

    /// True if the peer has open calls.
    pub(super) fn is_called(&self) -> bool {
        self.shared.calls.load(Ordering::Relaxed) > 0
    }

    /// Lets the task of the connection decode the uploads of a lease; to be used before the lease is sent.
    pub(super) fn note_lease(&self, decoder: UploadDecoder) {
        let mut decoders = self.decoders();
        if decoders.len() == UploadDecoder::KEPT {
            decoders.pop_front();
        }
        decoders.push_back(decoder);
    }

    /// Drops what decodes uploads, since the run has ended: leases hold the states of their slots.
    pub(super) fn forget_leases(&self) {
        self.decoders().clear();
    }

    /// Returns what decodes the uploads of one of the latest leases.
    pub(super) fn decoder(&self, lease: LeaseId) -> Option<UploadDecoder> {
        self.decoders().iter().find(|decoder| decoder.lease() == lease).cloned()
    }

    fn decoders(&self) -> MutexGuard<'_, VecDeque<UploadDecoder>> {
        // No code panics while holding the lock.
        self.shared.decoders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of queued messages.
    pub(super) fn queued_frames(&self) -> usize {
        self.outbox().queued_frames()
    }

    /// Returns the number of queued bytes.
    pub(super) fn queued_bytes(&self) -> usize {
        self.outbox().queued_bytes()
    }

    /// Returns the number of bytes received from the peer since it was admitted.
    pub(super) fn received_bytes(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// True if the queue is empty.
    pub(super) fn is_idle(&self) -> bool {
        self.outbox().queued_frames() == 0
    }

    /// Closes without a goodbye, so that the peer reconnects and gets a full snapshot.
    pub(super) fn hang_up(&self) {
        *self.outbox() = Outbox::default();
        *self.closing() = Some(CloseReason::Again);
        self.shared.wake.notify_one();
    }

    /// Expels the peer: its further messages are ignored and the queue is discarded.
    pub(super) fn expel(&self, reason: &str) {
        *self.outbox() = Outbox::default();
        self.close(CloseReason::Fault, reason);
        self.shared.expelled.notify_one();
    }

    /// Closes the connection after the queue has been sent, with a goodbye.
    pub(super) fn close(&self, why: CloseReason, reason: &str) {
        // A goodbye is far below any limit.
        let _ = self.send(&Message::Goodbye(Goodbye { reason: reason.chars().take(512).collect() }));
        *self.closing() = Some(why);
        self.shared.wake.notify_one();
    }
}

/// Why the hub closes a connection, as WebSocket status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// The connection's purpose is fulfilled.
    Done = 1000,
    /// The hub stops.
    Away = 1001,
    /// The peer broke the rules.
    Fault = 1008,
    /// The peer was too slow; it may connect again.
    Again = 1013,
}
