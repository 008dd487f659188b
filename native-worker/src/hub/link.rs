//! The way to a peer: what waits for it, and that it is to go.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use hyper::body::Bytes;
use rollmesh_core::protocol::{Frame, Message, Outbox, TooLarge, message::Goodbye};
use tokio::sync::Notify;

use crate::pulse::Pulse;

/// What the actor holds of a peer: a way to send, and to close.
#[derive(Clone, Debug)]
pub(super) struct PeerLink {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    outbox: Mutex<Outbox>,
    wake: Notify,
    /// Nothing waits to be sent any more.
    drained: Notify,
    /// Set once: the goodbye is queued, and nothing after it.
    closing: Mutex<Option<CloseReason>>,
    /// The peer is to be sent away at once.
    expelled: Notify,
    /// Bytes of the frames that came, with what WebSocket adds to them.
    received: AtomicU64,
    /// When one of them came.
    pulse: Pulse,
    /// Calls that the peer has not answered.
    calls: AtomicUsize,
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
        };
        Self { shared: Arc::new(shared) }
    }

    fn outbox(&self) -> MutexGuard<'_, Outbox> {
        // Nobody panics while holding it; and if so, the queue is still one.
        self.shared.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the connection is about to close, if it is.
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

    /// The peer takes so many more bytes of chunks.
    pub(super) fn grant(&self, bytes: u32) {
        self.outbox().grant(bytes);
        self.shared.wake.notify_one();
    }

    /// Returns when something may have to be sent, or the connection closed.
    pub(super) async fn woken(&self) {
        self.shared.wake.notified().await;
    }

    /// The next frame to be sent; none, and whoever waits for that is told, once nothing waits any more.
    pub(super) fn poll_frame(&self) -> Option<Bytes> {
        let frame = self.outbox().poll_frame();
        if frame.is_none() {
            self.shared.drained.notify_one();
        }
        frame
    }

    /// Returns once all that waited has been sent.
    pub(super) async fn drained(&self) {
        self.shared.drained.notified().await;
    }

    /// Returns when the peer is to be sent away at once.
    pub(super) async fn expelled(&self) {
        self.shared.expelled.notified().await;
    }

    /// A frame of so many bytes came.
    pub(super) fn note_received(&self, bytes: u64) {
        self.shared.received.fetch_add(bytes, Ordering::Relaxed);
        self.shared.pulse.beat();
    }

    /// When the peer last said something: a sign of life of its socket alone is none of it.
    pub(super) fn pulse(&self) -> Pulse {
        self.shared.pulse.clone()
    }

    /// The peer is about to be called.
    pub(super) fn note_call(&self) {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// A call of it is over.
    pub(super) fn note_result(&self) {
        self.shared.calls.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether it has something to answer.
    pub(super) fn is_called(&self) -> bool {
        self.shared.calls.load(Ordering::Relaxed) > 0
    }

    /// Messages that wait to be sent.
    pub(super) fn queued_frames(&self) -> usize {
        self.outbox().queued_frames()
    }

    /// Bytes that wait to be sent.
    pub(super) fn queued_bytes(&self) -> usize {
        self.outbox().queued_bytes()
    }

    /// Bytes that came from the peer since it was admitted.
    pub(super) fn received_bytes(&self) -> u64 {
        self.shared.received.load(Ordering::Relaxed)
    }

    /// Nothing waits to be sent.
    pub(super) fn is_idle(&self) -> bool {
        self.outbox().queued_frames() == 0
    }

    /// Closes without a goodbye, so that the peer connects again and is told everything.
    pub(super) fn hang_up(&self) {
        *self.outbox() = Outbox::default();
        *self.closing() = Some(CloseReason::Again);
        self.shared.wake.notify_one();
    }

    /// Sends the peer away at once: nothing more is heard of it, and what was queued is not sent.
    pub(super) fn expel(&self, reason: &str) {
        *self.outbox() = Outbox::default();
        self.close(CloseReason::Fault, reason);
        self.shared.expelled.notify_one();
    }

    /// Says goodbye and closes, after what is already queued.
    pub(super) fn close(&self, why: CloseReason, reason: &str) {
        // A goodbye is far below any limit.
        let _ = self.send(&Message::Goodbye(Goodbye { reason: reason.chars().take(512).collect() }));
        *self.closing() = Some(why);
        self.shared.wake.notify_one();
    }
}

/// Why the hub closes a connection, as WebSocket's status codes have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CloseReason {
    /// There is nothing more to do.
    Done = 1000,
    /// The hub ends.
    Away = 1001,
    /// The peer broke the rules.
    Fault = 1008,
    /// The peer was too slow; it may connect again.
    Again = 1013,
}
