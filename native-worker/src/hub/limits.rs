//! All limits on what unauthenticated peers and peers may use of the hub.

use std::time::Duration;

use rollmesh_core::{
    hub::{
        HubTokens, NoticeRate, Offences,
        limits::{
            INFER_PATIENCE, MAX_ANSWER_BACKLOG_BYTES, MAX_ASK_BACKLOG_BYTES, MAX_ASKS, MAX_BACKLOG_BYTES,
            MAX_INFER_BACKLOG_BYTES, MAX_INFER_BYTES, MAX_INFER_WAIT, MAX_INFERS, MAX_PEERS, RUN_ANSWER_PATIENCE,
            STATE_BACKLOG_BYTES,
        },
    },
    protocol::{
        DASHBOARD_FRAME_BYTES, INITIAL_CREDIT, Kind, MAX_FRAME_BYTES, PRE_AUTH_FRAME_BYTES, Role, allow,
        handshake::MAX_TEXT_BYTES,
    },
};
use serde::Serialize;

use crate::{lines::MAX_WAITING_BYTES, net::LAUNCHER_ABSENCE};

/// Deadline for a peer's Hello, counted from its connection, including TLS and the request.
pub(super) const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(2);
/// Maximum size of a request's head in bytes.
pub(super) const MAX_HEAD_BYTES: usize = 8 << 10;
/// Maximum number of headers of a request.
pub(super) const MAX_HEADERS: usize = 64;
/// Maximum number of bytes read from an unauthenticated peer after its request: a Hello and the WebSocket overhead.
pub(super) const PRE_AUTH_SOCKET_BYTES: usize = 2 * PRE_AUTH_FRAME_BYTES as usize;
/// Maximum number of unauthenticated connections, in total, …
pub(super) const MAX_PENDING: usize = 64;
/// … and from one address.
pub(super) const MAX_PENDING_PER_ADDRESS: usize = 16;
/// Maximum number of connections that wait for one of those places, or have not sent anything yet.
pub(super) const MAX_WAITING: usize = 1024;
/// After this time a silent connection loses its place to a waiting one.
pub(super) const PENDING_GRACE: Duration = Duration::from_millis(100);
/// The same for a connection that requested a file.
pub(super) const REQUEST_GRACE: Duration = Duration::from_secs(5);
/// Deadline for sending the answer to a request, however slow the reader.
pub(super) const REQUEST_DEADLINE: Duration = Duration::from_secs(60);
/// Number of failures of an address within [`FAILURE_WINDOW`] that are answered without delay.
pub(super) const FREE_FAILURES: usize = 5;
/// See [`FREE_FAILURES`].
pub(super) const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// Delay of the answer to any further failure.
pub(super) const FAILURE_DELAY: Duration = Duration::from_secs(1);
/// Credit of failures per address, for unauthenticated peers and peers that break the rules: beyond it, connections from the
/// address have to wait. It is refilled by the same number every second.
pub(super) const FAILURES_PER_S_AND_ADDRESS: u32 = 50;
/// Credit of failures of all addresses together.
pub(super) const FAILURES_PER_S: u32 = 100;
/// Maximum number of new connections per second; more wait in the system's queue.
pub(super) const MAX_CONNECTIONS_PER_S: u32 = 1000;
/// Maximum number of messages from a dashboard per second; more wait in its socket.
pub(super) const MAX_DASHBOARD_MESSAGES_PER_S: u32 = 50;
/// Send buffer of a dashboard's socket in the operating system.
pub(super) const DASHBOARD_SOCKET_BYTES: usize = 32 << 10;
/// Memory budget in bytes for messages that come in parts, over all connections, until they have been handled. Further
/// messages wait before they begin. The result of a call may be larger: it counts as three quarters of the budget.
pub(super) const MAX_PARTIAL_BYTES: usize = 256 << 20;
/// An incomplete message is dropped in favour of a waiting one if no part of it has arrived for this long.
pub(super) const PARTIAL_PATIENCE: Duration = Duration::from_secs(2);
/// It is also dropped if it has arrived slower than this rate, in bytes per second, for longer than that.
pub(super) const PARTIAL_RATE: f64 = (4 << 20) as f64;
/// Deadline for writing a frame, counted from when the system's buffers are full.
pub(super) const WRITE_DEADLINE: Duration = Duration::from_secs(5);
/// Interval between pings, …
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(5);
/// … and the silence after which a peer counts as disconnected.
pub(super) const SILENCE_LIMIT: Duration = Duration::from_secs(15);
/// Maximum size of a file of the audit log; one older file is kept.
pub(super) const MAX_AUDIT_BYTES: u64 = 16 << 20;
/// Maximum number of audit records per second and causer: unauthenticated peers, peers that break the rules, and peers of
/// each role that connect and disconnect; the rest is counted.
pub(super) const MAX_AUDIT_RECORDS: u32 = 50;

/// A limit of a hub.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limit {
    /// The limited quantity: the name of a message kind, or another name in lower case.
    pub name: String,
    /// The number.
    pub value: u64,
    /// Unit of the value.
    pub unit: &'static str,
    /// The consequence of exceeding it.
    pub beyond: &'static str,
}

/// Returns all limits that hold for every hub, whatever its configuration: those of connections, and of every kind of
/// message that a peer may send.
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
        limit("request_grace", ms(REQUEST_GRACE), "ms", "one that has requested a file may lose its place"),
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
        limit("partial_patience", ms(PARTIAL_PATIENCE), "ms", "closed if another message waits for the memory"),
        limit(
            "partial_rate",
            PARTIAL_RATE as u64,
            "bytes per second",
            "closed if another message waits for the memory",
        ),
        limit("dashboard_messages", MAX_DASHBOARD_MESSAGES_PER_S.into(), "messages per second", "more are heard later"),
        limit("dashboard_socket", DASHBOARD_SOCKET_BYTES as u64, "bytes", "more wait in the hub"),
        limit("dashboard_state", STATE_BACKLOG_BYTES as u64, "bytes", "told the latest once these were taken"),
        limit("dashboard_backlog", MAX_BACKLOG_BYTES as u64, "bytes", "the connection is closed"),
        limit("ask_backlog", MAX_ASK_BACKLOG_BYTES as u64, "bytes", "asks are refused"),
        limit("answer_backlog", MAX_ANSWER_BACKLOG_BYTES as u64, "bytes", "the handle is closed"),
        limit("asks_per_worker", MAX_ASKS as u64, "asks", "refused"),
        limit(
            "infers_per_worker",
            MAX_INFERS as u64,
            "requests for outputs of networks",
            "answered with an error, an offence",
        ),
        limit(
            "infer_bytes",
            MAX_INFER_BYTES as u64,
            "bytes of such requests, of all workers",
            "answered with an error",
        ),
        limit("infer_backlog", MAX_INFER_BACKLOG_BYTES as u64, "bytes", "no more is asked, asking workers are closed"),
        limit("infer_patience", INFER_PATIENCE.0 / 1_000, "ms without any answer", "another worker acts"),
        limit("infer_wait", MAX_INFER_WAIT.0 / 1_000, "ms", "the request is answered with an error"),
        limit(
            "run_answer_patience",
            RUN_ANSWER_PATIENCE.0 / 1_000,
            "ms without an answer",
            "the worker counts as hung",
        ),
        limit("write_deadline", ms(WRITE_DEADLINE), "ms", "closed with code 1008"),
        limit("ping_interval", ms(PING_INTERVAL), "ms", "a ping is sent"),
        limit("silence", ms(SILENCE_LIMIT), "ms", "closed"),
        limit("launcher_absence", ms(LAUNCHER_ABSENCE), "ms", "its workers are removed"),
        limit(
            "loud_notices",
            NoticeRate::MAX.into(),
            "notices per second about strangers, or comings and goings",
            "counted",
        ),
        limit("tokens", HubTokens::MAX as u64, "tokens", "no more are made"),
        limit("page_tokens", HubTokens::MAX_OF_PAGES as u64, "tokens", "the oldest is revoked"),
        limit("audit_file", MAX_AUDIT_BYTES, "bytes", "a new file is begun, one older is kept"),
        limit(
            "audit_records",
            MAX_AUDIT_RECORDS.into(),
            "records per second about strangers, peers, or a role",
            "counted",
        ),
        limit("waiting_lines", MAX_WAITING_BYTES as u64, "bytes for a file on a full disk", "lost and counted"),
        limit("offences", u64::from(Offences::MAX), "answers of a worker without a request", "closed"),
    ]
}

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::HEADER_BYTES;

    use super::*;

    #[test]
    fn partial_message_budget_holds_every_message_except_requested_results() {
        let unasked = Kind::ALL.iter().filter(|kind| !matches!(kind, Kind::CallResult | Kind::Asked));
        let largest = unasked.map(|kind| kind.body_cap()).max().unwrap() as usize;
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
