//! Peers that break rules are disconnected, without an effect on the others.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rollmesh::train::{RunEnd, RunRequest};
use rollmesh_core::protocol::{
    MAX_FRAME_BYTES, Message, RefusalCode, Role,
    message::{FragmentUpload, Request},
};

use super::{TestHub, end, small, undisturbed};
use crate::support::client::{Client, Frame};

#[tokio::test]
async fn no_peer_disturbs_a_run() {
    let expected = undisturbed().await;
    let mut hub = TestHub::start().await;
    let operator = hub.operator_token();
    let worker = hub.hub.worker_token();
    // Slow enough to continue while others misbehave.
    let run = hub.train(RunRequest { throttle: Duration::from_millis(250), ..small(2, 2_000) }).await;

    let garbage = || Frame::Binary(vec![0xA5; 1000].into());
    let first_frames = [
        (garbage(), "not with \"RM\": this is no rollmesh peer"),
        (Frame::Text("hello".into()), "the first message must be a Hello, in a binary frame"),
        (Frame::Binary(Message::Pause(Request { request: 1 }).encode().into()), "not Pause of 9"),
        (Frame::Binary([&b"RM\x01\0\x01\0\0\0"[..], &[0; 5000]].concat().into()), "at most 4096 bytes"),
    ];
    for (frame, reason) in first_frames {
        let mut client = hub.connect().await;
        client.send(frame).await.unwrap();
        let refused = client.refusal().await.expect("a refusal");
        assert_eq!(refused.code, RefusalCode::Malformed.to_wire());
        assert!(refused.reason.contains(reason), "{}", refused.reason);
        hub.notice(reason).await;
    }

    let later_frames = [
        (Role::Worker, worker, garbage(), "this is no rollmesh peer"),
        (Role::Operator, operator, garbage(), "this is no rollmesh peer"),
        (Role::Operator, operator, Frame::Text("pause".into()), "text frames have no place here"),
        (
            Role::Worker,
            worker,
            Frame::Binary(Message::Stop(Request { request: 1 }).encode().into()),
            "a peer with role Worker may not send Stop",
        ),
        (
            Role::Operator,
            operator,
            Frame::Binary(Message::FragmentUpload(FragmentUpload::default()).encode().into()),
            "a peer with role Operator may not send FragmentUpload",
        ),
    ];
    for (role, token, frame, reason) in later_frames {
        let mut client = Client::join(hub.hub.address(), role, token).await;
        client.send(frame).await.unwrap();
        client.refusal().await;
        hub.notice(reason).await;
    }

    // The hub disconnects at the first of them; later frames are not read.
    let mut client = Client::join(hub.hub.address(), Role::Operator, operator).await;
    while client.send(garbage()).await.is_ok() {}
    hub.notice("a dashboard was disconnected").await;

    for mut client in [hub.connect().await, hub.operator().await] {
        // The hub disconnects in the middle of it.
        let _ = client.send(Frame::Binary(vec![0; MAX_FRAME_BYTES as usize + 1].into())).await;
        client.refusal().await;
        hub.notice("too long").await;
    }

    let summary = end(run).await;
    assert_eq!((summary.end, summary.weights_hash.to_string()), (RunEnd::Finished, expected));
}

#[tokio::test]
async fn silent_peers_are_sent_away() {
    let mut hub = TestHub::start().await;
    let began = Instant::now();
    let silent = join_all((0..3).map(|_| hub.connect())).await;
    for client in silent {
        assert_eq!(client.refusal().await.expect("a refusal").reason, "no Hello within 2 s");
        hub.notice("no Hello within 2 s").await;
    }
    assert!(began.elapsed() >= Duration::from_secs(2));
    hub.operator().await;
}
