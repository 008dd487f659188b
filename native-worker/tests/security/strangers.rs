//! The resources that a hub spends on a peer without a token: next to none.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use rollmesh_core::protocol::{MAX_FRAME_BYTES, Message, RefusalCode, Role};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
};

use super::{TURN, TestHub, fresh_address, list};
use crate::support::{
    Process,
    client::{Client, Frame, hello},
    is_long, soon, until,
};

async fn call(address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((fresh_address(), 0).into()).unwrap();
    soon("a connection", socket.connect(address)).await.unwrap()
}

/// Sends bytes and reads until the hub disconnects.
async fn send_raw(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = call(address).await;
    // The hub may disconnect in the middle of it.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = soon("the end of the connection", stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_short() {
    let hub = TestHub::start().await;
    let address = hub.hub.address();
    let long = format!("GET / HTTP/1.1\r\nHost: {address}\r\nX: {}\r\n\r\n", "x".repeat(20 << 20));
    let many = format!("GET / HTTP/1.1\r\nHost: {address}\r\n{}\r\n", "X: y\r\n".repeat(1000));
    for head in [long, many] {
        let began = Instant::now();
        let answer = send_raw(address, head.as_bytes()).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
        assert!(began.elapsed() < Duration::from_secs(8));
    }
    // A peer that does not finish is not awaited.
    let began = Instant::now();
    send_raw(address, b"GET / HTTP/1.1\r\nHost: ").await;
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    for request in ["POST / HTTP/1.1", "DELETE /ws HTTP/1.1", "PUT / HTTP/1.1"] {
        let answer = send_raw(address, format!("{request}\r\nHost: {address}\r\n\r\n").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
    }
}

/// Returns frames that RFC 6455 forbids to a client.
fn forbidden_frames() -> Vec<(String, Vec<u8>)> {
    let masked = |first: u8, second: u8, payload: &[u8]| {
        let mut frame = vec![first, 0x80 | second, 0, 0, 0, 0];
        frame.extend_from_slice(payload);
        frame
    };
    let mut frames = vec![
        ("unmasked".to_owned(), vec![0x82, 1, 0]),
        ("a lone continuation".into(), masked(0x80, 1, b"x")),
        ("the middle of nothing".into(), masked(0x00, 1, b"x")),
        ("text that is no UTF-8".into(), masked(0x81, 2, &[0xff, 0xfe])),
        ("a long ping".into(), [&[0x89, 0xfe, 0, 126, 0, 0, 0, 0][..], &[0; 126]].concat()),
        ("a long close".into(), [&[0x88, 0xfe, 0, 126, 0, 0, 0, 0][..], &[0; 126]].concat()),
        ("a ping in parts".into(), masked(0x09, 1, b"x")),
        ("a close in parts".into(), masked(0x08, 2, &[3, 232])),
        ("half a status".into(), masked(0x88, 1, &[3])),
        ("a reason that is no UTF-8".into(), masked(0x88, 4, &[3, 232, 0xff, 0xfe])),
        ("a length of 2^63".into(), vec![0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("a length of 2^62".into(), vec![0x82, 0xff, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (
            "more than a frame holds".into(),
            [&[0x82, 0xff][..], &(u64::from(MAX_FRAME_BYTES) + 1).to_be_bytes(), &[0; 4]].concat(),
        ),
        ("a message within a message".into(), [masked(0x02, 1, b"x"), masked(0x82, 1, b"x")].concat()),
        ("text within bytes".into(), [masked(0x02, 1, b"x"), masked(0x81, 1, b"x")].concat()),
    ];
    frames.extend((1..8).map(|bits| (format!("reserved bits {bits}"), masked(0x82 | bits << 4, 1, b"x"))));
    let opcodes = (3..8).chain(0xb..0x10);
    frames.extend(opcodes.map(|code: u8| (format!("opcode {code}"), masked(0x80 | code, 1, b"x"))));
    let statuses = [0u16, 999, 1004, 1005, 1006, 1015, 1016, 2999];
    frames.extend(statuses.map(|status| (format!("status {status}"), masked(0x88, 2, &status.to_be_bytes()))));
    frames
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frames_against_the_rules_end_their_connection_and_nothing_else() {
    let hub = TestHub::start().await;
    let address = hub.hub.address();
    let frames = forbidden_frames();
    assert!(frames.len() >= 40, "{}", frames.len());
    let said = frames.iter().map(|(name, frame)| async move {
        let request = format!("GET /ws HTTP/1.1\r\nHost: {address}\r\n{UPGRADE}\r\n");
        let answer = send_raw(address, &[request.as_bytes(), frame].concat()).await;
        assert!(answer.starts_with("HTTP/1.1 101 "), "{name}: {answer}");
        // None of the messages is a Hello.
        assert!(!answer.contains("rollmesh "), "{name}: {answer}");
    });
    join_all(said).await;
    // One byte at a time, half a frame, and silence.
    let mut slow = call(address).await;
    slow.write_all(format!("GET /ws HTTP/1.1\r\nHost: {address}\r\n{UPGRADE}\r\n\u{2}").as_bytes()).await.unwrap();
    let began = Instant::now();
    let mut rest = Vec::new();
    let _ = soon("the end of the connection", slow.read_to_end(&mut rest)).await;
    assert!(began.elapsed() < Duration::from_secs(8));
    list(&mut hub.operator().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_frame_is_small_whatever_it_announces() {
    let hub = TestHub::start().await;
    let operator = hub.operator_token();
    for bytes in [4_097, 5_000, 60_000, 262_144] {
        let mut client = Client::connect_from(fresh_address(), hub.hub.address()).await;
        let frame = [&Message::Hello(hello(Role::Operator, operator)).encode()[..], &vec![0; bytes]].concat();
        // The hub may disconnect in the middle of it.
        let _ = client.send(Frame::Binary(frame.into())).await;
        let refused = client.refusal().await.map(|refused| refused.code);
        let is_answered = refused == Some(RefusalCode::Malformed.to_wire());
        assert!(is_answered || refused.is_none() && bytes > 60_000, "{bytes}: {refused:?}");
    }
    // Also if no more comes than the announcement.
    let address = hub.hub.address();
    let request = format!("GET /ws HTTP/1.1\r\nHost: {address}\r\n{UPGRADE}\r\n");
    let announced = [&[0x82, 0xfe][..], &4_097_u16.to_be_bytes(), &[0; 4]].concat();
    let answer = send_raw(address, &[request.as_bytes(), &announced].concat()).await;
    assert!(answer.contains("no Hello within 2 s"), "{answer}");
    // After it a dashboard may send only as much as it could need.
    let mut operator = hub.operator().await;
    let _ = operator.send(Frame::Binary(vec![0; 200_000].into())).await;
    operator.refusal().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peer_that_guesses_tokens_waits_for_each_answer() {
    let hub = TestHub::start().await;
    let from = fresh_address();
    let mut waits = Vec::new();
    for _ in 0..6 {
        let mut client = Client::connect_from(from, hub.hub.address()).await;
        let asked = Instant::now();
        client.say(&Message::Hello(hello(Role::Operator, rollmesh_core::protocol::Token::new([9; 32])))).await;
        assert!(client.refusal().await.is_some());
        waits.push(asked.elapsed());
    }
    assert!(waits[5] >= Duration::from_secs(1), "{waits:?}");
    // A peer with one is admitted immediately, from the same address too.
    let asked = Instant::now();
    Client::join_from(from, hub.hub.address(), Role::Operator, hub.operator_token()).await;
    assert!(asked.elapsed() < Duration::from_secs(1));
}

/// Opens silent and slow connections from one address, which all peers on this machine share.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_lock_out_no_peer() {
    let _turn = TURN.write().await;
    let state = tempfile::tempdir().unwrap();
    let args = ["hub", "--listen", "127.0.0.1:0", "--state-dir"].map(std::ffi::OsStr::new);
    let mut hub = Process::start(args.into_iter().chain([state.path().as_os_str()]));
    let invitation = hub.invitation().await;
    let address: SocketAddr = invitation.address.parse().unwrap();
    let token = rollmesh_core::protocol::Token::from_hex(&invitation.operator_token).unwrap();
    let mut crowd: Vec<TcpStream> =
        join_all((0..500).map(|_| async { TcpStream::connect(address).await.unwrap() })).await;
    for stream in crowd.iter_mut().take(256) {
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: ").await;
    }
    let mut times = Vec::new();
    for round in 0..40 {
        // Refused peers reconnect.
        let again = crowd.len();
        for stream in &mut crowd[round * 7 % again..][..7.min(again - round * 7 % again)] {
            *stream = TcpStream::connect(address).await.unwrap();
        }
        let began = Instant::now();
        Client::join(address, Role::Operator, token).await;
        times.push(began.elapsed());
    }
    times.sort();
    println!(
        "while 500 connections are silent, 40 operators join within {:?} (median), {:?} (p99)",
        times[20], times[39]
    );
    // The long form is for figures.
    assert!(times[39] < Duration::from_millis(if is_long() { 250 } else { 5000 }), "{times:?}");
    drop(crowd);
    let audit = state.path().join("audit.jsonl");
    until("limits are in the audit log", || std::fs::read_to_string(&audit).unwrap().contains(r#""event":"limit""#))
        .await;
}
