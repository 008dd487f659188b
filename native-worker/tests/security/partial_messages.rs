//! Workers that send most of a large message and then nothing: 24 of them in the suite, 64 with `ROLLMESH_LONG=1`.

use std::net::SocketAddr;

use rollmesh::hub::limits;
use rollmesh_core::protocol::{
    CHUNK_BYTES, INITIAL_CREDIT, Message, Role, Token, TokenAction,
    message::{Chunk, CompressedUpload, Credit, FragmentUpload, ManageTokens, NewToken, Request},
};

use super::{TURN, TestHub, fresh_address, memory, peak, reset_peak};
use crate::support::{Process, client::Client, is_long, json, soon};

const MIB: u32 = 1 << 20;
const TOTAL: u32 = 32 * MIB;
const SENT: u32 = 31 * MIB;

/// Announces a message, sends as much of it as the hub reads, and waits until the hub disconnects.
async fn send_partial_message(address: SocketAddr, token: Token) {
    let mut client = Client::join_from(fresh_address(), address, Role::Worker, token).await;
    let head = Message::FragmentUpload(FragmentUpload::default()).encode();
    let mut credit = INITIAL_CREDIT;
    let mut offset = 0;
    while offset < SENT {
        while credit < CHUNK_BYTES {
            let Some(message) = client.receive().await else { return };
            if let Message::Credit(Credit { bytes }) = message {
                credit += bytes;
            }
        }
        let mut data = vec![7; CHUNK_BYTES as usize];
        if offset == 0 {
            data[..head.len()].copy_from_slice(&head);
        }
        client.send_if_connected(&Message::Chunk(Chunk { stream: 0, total: TOTAL, offset, data })).await;
        (offset, credit) = (offset + CHUNK_BYTES, credit - CHUNK_BYTES);
    }
    while client.receive_frame().await.is_some() {}
}

/// Checks connections of which each takes an eighth of the memory with a message in parts, and then needs more for a
/// compressed one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_do_not_wait_for_each_others_memory_for_ever() {
    let hub = TestHub::start().await;
    let bound = limits().into_iter().find(|limit| limit.name == "partial_messages").unwrap().value;
    let mut clients = Vec::new();
    for _ in 0..bound / u64::from(TOTAL) {
        let token = hub.hub.worker_token();
        clients.push(Client::join_from(fresh_address(), hub.hub.address(), Role::Worker, token).await);
    }
    let mut data = vec![7; CHUNK_BYTES as usize];
    let head = Message::FragmentUpload(FragmentUpload::default()).encode();
    data[..head.len()].copy_from_slice(&head);
    for client in &mut clients {
        client.say(&Message::Chunk(Chunk { stream: 0, total: TOTAL, offset: 0, data: data.clone() })).await;
    }
    for client in &mut clients {
        client
            .send_if_connected(&Message::CompressedUpload(CompressedUpload { bytes: 100, block: vec![0; 100] }))
            .await;
    }
    for client in &mut clients {
        while client.receive().await.is_some() {}
    }
    // A block claims more bytes than it can have: that is refused before memory is reserved.
    let mut claimant =
        Client::join_from(fresh_address(), hub.hub.address(), Role::Worker, hub.hub.worker_token()).await;
    claimant.say(&Message::CompressedUpload(CompressedUpload { bytes: u32::MAX, block: Vec::new() })).await;
    let goodbye = claimant.wait_for(|message| match message {
        Message::Goodbye(goodbye) => Some(goodbye.reason.clone()),
        _ => None,
    });
    assert_eq!(goodbye.await, "a compressed upload of 0 bytes claims to have 4294967295");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn incomplete_messages_stay_within_the_memory_budget() {
    let _turn = TURN.write().await;
    let bound = limits().into_iter().find(|limit| limit.name == "partial_messages").unwrap().value;
    // The run's own memory is added, and the memory that the allocator has not yet returned.
    let most = bound + bound / 2;
    let senders = if is_long() { 64 } else { 24 };
    assert!(u64::from(SENT) * senders > most, "without a bound there would be more");
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let run_flag = run_dir.display().to_string();
    // Its uploads come in parts, too.
    let args = ["train", "--workers", "1", "--num-envs-per-worker", "8", "--rollout-fragment-length", "1250"];
    let learner = r#"{"num_epochs": 1, "minibatch_size": 10000}"#;
    let more = ["--max-env-steps", "1000000000", "--hidden", "8", "--policy-config", learner, "--run-dir", &run_flag];
    let mut run = Process::start_with(args.into_iter().chain(more), |command| {
        // Freed memory must not be counted for longer than necessary.
        command.env("MIMALLOC_PURGE_DELAY", "0");
    });
    let invitation = run.invitation().await;
    let address: SocketAddr = invitation.address.parse().unwrap();
    let operator_token = Token::from_hex(&invitation.operator_token).unwrap();
    let mut operator = Client::join_from(fresh_address(), address, Role::Operator, operator_token).await;
    let (action, role) = (TokenAction::Create.to_wire(), Role::Worker.to_wire());
    operator.say(&Message::ManageTokens(ManageTokens { request: 4, action, role, ..ManageTokens::default() })).await;
    let token = operator.wait_for(|message| match message {
        Message::NewToken(NewToken { request: 4, token, .. }) => Some(*token),
        _ => None,
    });
    let token = token.await;
    let iterations = async |operator: &mut Client, wanted: u64| {
        operator
            .wait_for(|message| match message {
                Message::RunStatus(status) if status.iteration >= wanted => Some(status.iteration),
                _ => None,
            })
            .await
    };
    let begun = iterations(&mut operator, 1).await;
    let before = memory(run.pid());
    reset_peak(run.pid());
    let sending: Vec<_> = (0..senders).map(|_| tokio::spawn(send_partial_message(address, token))).collect();
    let sent_away = || {
        let audit = std::fs::read_to_string(run_dir.join("audit.jsonl")).unwrap();
        let faults = audit.lines().map(json).filter_map(|line| line["fault"].as_str().map(str::to_owned));
        faults.filter(|fault| fault.ends_with("and others wait for its budget")).count() as u64
    };
    let full = soon("the first ones are dropped in favour of the others", async {
        while sent_away() + bound / u64::from(TOTAL) < senders {
            iterations(&mut operator, 0).await;
        }
        iterations(&mut operator, 0).await
    });
    let full = full.await;
    // However many stay: the run continues, and its uploads are accepted.
    let after = iterations(&mut operator, full + 3).await;
    let growth = peak(run.pid()).saturating_sub(before);
    println!(
        "{senders} workers sent {} of 32 MiB: the hub grew by {} MiB, {} of them were sent away; {} iterations meanwhile",
        SENT / MIB,
        growth >> 20,
        sent_away(),
        after - begun,
    );
    assert!(growth < most, "{growth} bytes");
    sending.iter().for_each(tokio::task::JoinHandle::abort);
    operator.ask(|request| Message::Stop(Request { request })).await;
    soon("the end", run.finish_with(3)).await;
}
