//! Limits on what peers may use of a hub.

/// Most concurrent peers.
pub const MAX_PEERS: usize = 4096;
/// Most bytes queued for a dashboard, or of an operator's replies; beyond them the peer has to reconnect.
pub const MAX_BACKLOG_BYTES: usize = 2 << 20;
/// Queued bytes above which a dashboard gets no state updates; once it has caught up, it gets the latest state.
pub const STATE_BACKLOG_BYTES: usize = 64 << 10;
/// Queued bytes above which nothing more is queued for an evaluator, or for a handle that asked one: the size of the largest
/// message.
pub const MAX_ASK_BACKLOG_BYTES: usize = 64 << 20;
/// Most unanswered requests from one worker to others.
pub const MAX_ASKS: usize = 256;
/// Most unanswered requests of one worker for outputs of its policies' networks: it waits for one, and has given up others.
pub const MAX_INFERS: usize = 4;
/// Most names reserved because a token that no page requested used them; browser tabs may not use reserved names.
pub(super) const MAX_RESERVED_NAMES: usize = 1_024;
