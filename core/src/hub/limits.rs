//! Limits on what peers may use of a hub.

use crate::{protocol::Kind, time::Micros};

/// Most concurrent peers.
pub const MAX_PEERS: usize = 4096;
/// Most bytes queued for a dashboard, or of an operator's replies; beyond them the peer has to reconnect.
pub const MAX_BACKLOG_BYTES: usize = 2 << 20;
/// Queued bytes above which a dashboard gets no state updates; once it has caught up, it gets the latest state.
pub const STATE_BACKLOG_BYTES: usize = 64 << 10;
/// Queued bytes above which nothing more is queued for an evaluator: the size of the largest request.
pub const MAX_ASK_BACKLOG_BYTES: usize = 64 << 20;
/// Queued bytes above which a handle that takes no answers is disconnected: the size of the largest one.
pub const MAX_ANSWER_BACKLOG_BYTES: usize = Kind::Asked.body_cap() as usize;
/// Most unanswered requests from one worker to others.
pub const MAX_ASKS: usize = 256;
/// Most unanswered requests of one worker for outputs of its policies' networks: it waits for one, and has given up others.
pub const MAX_INFERS: usize = 4;
/// Most bytes of unanswered requests for outputs, of all workers together.
pub const MAX_INFER_BYTES: usize = 128 << 20;
/// Queued bytes above which a worker that acts for others gets no more requests, and one that asks is disconnected: weights
/// that are being sent, newer ones, and as much again.
pub const MAX_INFER_BACKLOG_BYTES: usize = 3 * MAX_ASK_BACKLOG_BYTES;
/// A worker that acts for others and answers nothing for this long loses its requests to another one, until it answers
/// again. Doubles each time, up to 8 times. Shorter than the time without progress after which a lease expires.
pub const INFER_PATIENCE: Micros = Micros::from_secs(2);
/// A request that was not answered for this long is answered with an error.
pub const MAX_INFER_WAIT: Micros = Micros::from_secs(15);
/// Time for a worker to answer the announcement of a run; afterwards it counts as hung.
pub const RUN_ANSWER_PATIENCE: Micros = Micros::from_secs(60);
/// Most names reserved because a token that no page requested used them; browser tabs may not use reserved names.
pub(super) const MAX_RESERVED_NAMES: usize = 1_024;
