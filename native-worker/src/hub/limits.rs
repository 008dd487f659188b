//! What strangers and peers may take of the hub, in one place.

use std::time::Duration;

use rollmesh_core::protocol::{
    DASHBOARD_FRAME_BYTES, INITIAL_CREDIT, Kind, MAX_FRAME_BYTES, PRE_AUTH_FRAME_BYTES, Role, allow,
    handshake::MAX_TEXT_BYTES,
};
use serde::Serialize;

use crate::lines::MAX_WAITING_BYTES;

/// From its connection to its Hello a peer has this time, with TLS and the request.
pub(super) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(2);
/// The head of a request.
pub(super) const MAX_HEAD_BYTES: usize = 8 << 10;
/// Headers of a request.
pub(super) const MAX_HEADERS: usize = 64;
/// What the socket takes of a stranger after its request: a Hello, and what WebSocket adds.
pub(super) const PRE_AUTH_SOCKET_BYTES: usize = 2 * PRE_AUTH_FRAME_BYTES as usize;
/// Connections that have not shown a token yet, in all, …
pub(super) const MAX_PENDING: usize = 64;
/// … and from one address.
pub(super) const MAX_PENDING_PER_ADDRESS: usize = 16;
/// Connections that wait to be one of those, or have not said anything yet.
pub(super) const MAX_WAITING: usize = 1024;
/// After this time a silent connection gives its place to one that waits.
pub(super) const PENDING_GRACE: Duration = Duration::from_millis(100);
/// After this time one that asked for a file does.
pub(super) const REQUEST_GRACE: Duration = Duration::from_secs(5);
/// A request is answered within this time, however slow the reader.
pub(super) const REQUEST_DEADLINE: Duration = Duration::from_secs(60);
/// Failures of an address within [`FAILURE_WINDOW`] that are answered at once.
pub(super) const FREE_FAILURES: usize = 5;
/// See [`FREE_FAILURES`].
pub(super) const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// How long the answer to any further failure takes.
pub(super) const FAILURE_DELAY: Duration = Duration::from_secs(1);
/// Failures that strangers from one address, and peers who break the rules, may make before others of it have to wait: as
/// many again for every second.
pub(super) const FAILURES_PER_S_AND_ADDRESS: u32 = 50;
/// Failures of all addresses together.
pub(super) const FAILURES_PER_S: u32 = 100;
/// New connections per second; more wait in the system's queue.
pub(super) const MAX_CONNECTIONS_PER_S: u32 = 1000;
/// Messages of a dashboard per second; more wait in its socket.
pub(super) const MAX_DASHBOARD_MESSAGES_PER_S: u32 = 50;
/// What the system keeps of what is sent to a dashboard.
pub(super) const DASHBOARD_SOCKET_BYTES: usize = 32 << 10;
/// Notices per second about strangers and peers who break the rules, and as many about peers who come and go; the rest is
/// counted.
pub(super) const MAX_LOUD_NOTICES: u32 = 50;
/// The most peers at a time.
pub(super) const MAX_PEERS: usize = 4096;
/// What messages that come in parts take at a time, over all connections, until they have been dealt with. Others wait
/// before they begin. At least the largest message.
pub(super) const MAX_PARTIAL_BYTES: usize = 256 << 20;
/// A message that is not complete gives its room to one that waits after this time without any more of it.
pub(super) const PARTIAL_PATIENCE: Duration = Duration::from_secs(2);
/// So does one that came slower than at so many bytes per second for longer than that.
pub(super) const PARTIAL_RATE: f64 = (4 << 20) as f64;
/// What may wait for a dashboard, or a reply for an operator; beyond that it has to connect again.
pub(super) const MAX_BACKLOG_BYTES: usize = 1 << 20;
/// What may wait for a worker that evaluates, or for a handle that has asked it: of the largest message, and one more.
pub(super) const MAX_ASK_BACKLOG_BYTES: usize = 64 << 20;
/// What one worker may have asked of others, and has not been answered.
pub(super) const MAX_ASKS: usize = 256;
/// A dashboard for which this much waits is not told the state of things until it has taken that, and then the latest.
pub(super) const STATE_BACKLOG_BYTES: usize = 64 << 10;
/// A peer takes a frame within this time, counted from when the system's buffers are full.
pub(super) const WRITE_DEADLINE: Duration = Duration::from_secs(5);
/// A peer is asked for a sign of its socket this often, …
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(5);
/// … and has gone when there was none for this long.
pub(super) const SILENCE_LIMIT: Duration = Duration::from_secs(15);
/// Tokens of the hub and its files.
pub(super) const MAX_TOKENS: usize = 1024;
/// Tokens that pages may have asked for; of more, the oldest is no longer valid.
pub(super) const MAX_PAGE_TOKENS: usize = 256;
/// A file of the audit log; there is one older.
pub(super) const MAX_AUDIT_BYTES: u64 = 16 << 20;
/// Records per second of what strangers do, as many of what peers do as often as they like, and as many of peers of each
/// role who come and go; the rest is counted.
pub(super) const MAX_AUDIT_RECORDS: u32 = 50;
/// Answers of a worker to what nobody has asked it, until it is sent away; one is forgotten every second.
pub(super) const MAX_OFFENCES: u32 = 100;

/// One limit of a hub.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// What is limited: the name of a kind of message, or something else in lower case.
    pub name: String,
    /// The number.
    pub value: u64,
    /// What it counts.
    pub unit: &'static str,
    /// What happens beyond it.
    pub beyond: &'static str,
}

/// All limits that hold for every hub, whatever its configuration: those of connections, and of every kind of message that
/// somebody may send to it.
#[must_use]
pub fn limits() -> Vec<Limit> {
    let mut limits = limits_of_connections();
    let is_heard = |kind: &&Kind| **kind == Kind::Hello || Role::ALL.iter().any(|&role| allow(role, **kind));
    limits.extend(Kind::ALL.iter().filter(is_heard).map(|kind| Limit {
        name: format!("{kind:?}"),
        value: kind.body_cap().into(),
        unit: "bytes of a body",
        beyond: "closed",
    }));
    limits
}

fn limits_of_connections() -> Vec<Limit> {
    let limit = |name: &str, value, unit, beyond| Limit { name: name.into(), value, unit, beyond };
    let ms = |duration: Duration| duration.as_millis() as u64;
    vec![
        limit("handshake_deadline", ms(HANDSHAKE_DEADLINE), "ms", "the connection is closed"),
        limit("request_head", MAX_HEAD_BYTES as u64, "bytes", "answered 431, then closed"),
        limit("request_headers", MAX_HEADERS as u64, "headers", "answered 431, then closed"),
        limit("request_deadline", ms(REQUEST_DEADLINE), "ms", "the connection is closed"),
        limit("first_frame", u64::from(PRE_AUTH_FRAME_BYTES), "bytes", "refused"),
        limit("hello_text", MAX_TEXT_BYTES as u64, "printable ASCII characters", "refused"),
        limit("pending", MAX_PENDING as u64, "connections", "newer ones wait, or take the place of silent ones"),
        limit(
            "pending_per_address",
            MAX_PENDING_PER_ADDRESS as u64,
            "connections",
            "newer ones wait, or take the place of silent ones",
        ),
        limit("pending_grace", ms(PENDING_GRACE), "ms", "a silent connection may lose its place"),
        limit("waiting", MAX_WAITING as u64, "connections", "the oldest is closed"),
        limit("connections_per_s", MAX_CONNECTIONS_PER_S.into(), "connections", "newer ones wait"),
        limit("failures_per_s", FAILURES_PER_S.into(), "failures of all strangers", "newer connections wait"),
        limit(
            "failures_per_s_and_address",
            FAILURES_PER_S_AND_ADDRESS.into(),
            "failures of an address",
            "its newer connections wait",
        ),
        limit("free_failures", FREE_FAILURES as u64, "refusals per address and minute", "the answer is delayed"),
        limit("failure_delay", ms(FAILURE_DELAY), "ms", "how long it is delayed"),
        limit("peers", MAX_PEERS as u64, "peers", "refused as busy"),
        limit("dashboard_frame", u64::from(DASHBOARD_FRAME_BYTES), "bytes", "closed"),
        limit("worker_frame", u64::from(MAX_FRAME_BYTES), "bytes", "closed"),
        limit("worker_credit", u64::from(INITIAL_CREDIT), "bytes of chunks on their way", "closed"),
        limit(
            "partial_messages",
            MAX_PARTIAL_BYTES as u64,
            "bytes of messages in parts, of all peers",
            "newer ones wait",
        ),
        limit("partial_patience", ms(PARTIAL_PATIENCE), "ms", "closed if another message waits for the room"),
        limit("partial_rate", PARTIAL_RATE as u64, "bytes per second", "closed if another message waits for the room"),
        limit("dashboard_messages", MAX_DASHBOARD_MESSAGES_PER_S.into(), "messages per second", "more are heard later"),
        limit("dashboard_socket", DASHBOARD_SOCKET_BYTES as u64, "bytes", "more wait in the hub"),
        limit("dashboard_state", STATE_BACKLOG_BYTES as u64, "bytes", "told the latest once these were taken"),
        limit("dashboard_backlog", MAX_BACKLOG_BYTES as u64, "bytes", "the connection is closed"),
        limit("ask_backlog", MAX_ASK_BACKLOG_BYTES as u64, "bytes", "asks are refused, handles closed"),
        limit("asks_per_worker", MAX_ASKS as u64, "asks", "refused"),
        limit("write_deadline", ms(WRITE_DEADLINE), "ms", "closed with code 1008"),
        limit("ping_interval", ms(PING_INTERVAL), "ms", "a ping is sent"),
        limit("silence", ms(SILENCE_LIMIT), "ms", "closed"),
        limit(
            "loud_notices",
            MAX_LOUD_NOTICES.into(),
            "notices per second about strangers, or comings and goings",
            "counted",
        ),
        limit("tokens", MAX_TOKENS as u64, "tokens", "no more are made"),
        limit("page_tokens", MAX_PAGE_TOKENS as u64, "tokens", "the oldest is revoked"),
        limit("audit_file", MAX_AUDIT_BYTES, "bytes", "a new file is begun, one older is kept"),
        limit(
            "audit_records",
            MAX_AUDIT_RECORDS.into(),
            "records per second about strangers, peers, or a role",
            "counted",
        ),
        limit("waiting_lines", MAX_WAITING_BYTES as u64, "bytes for a file on a full disk", "lost and counted"),
        limit("offences", u64::from(MAX_OFFENCES), "answers of a worker that nobody asked for", "closed"),
    ]
}

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::HEADER_BYTES;

    use super::*;

    #[test]
    fn there_is_room_for_the_largest_message() {
        let largest = Kind::ALL.iter().map(|kind| kind.body_cap()).max().unwrap() as usize;
        assert!(largest + HEADER_BYTES <= MAX_PARTIAL_BYTES);
    }

    #[test]
    fn limits_have_names_of_their_own_and_are_not_zero() {
        let limits = limits();
        for (i, limit) in limits.iter().enumerate() {
            assert!(limit.value > 0, "{}", limit.name);
            assert!(limits[..i].iter().all(|other| other.name != limit.name), "{}", limit.name);
        }
    }
}
