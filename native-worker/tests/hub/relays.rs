//! Workers that get weights from a relay, and reach the hub through it.

use rollmesh::{
    hub::{Distrust, OnDivergence, SecurityConfig},
    train::{RunEnd, RunRequest},
};
use rollmesh_core::{
    env::EnvRegistry,
    protocol::{
        Message, RefusalCode, Role, Token, TokenAction,
        message::{Hello, ManageTokens, NewToken, WeightsNotice, WeightsRequest},
    },
    run::WeightsDtype,
};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::{
    TestHub,
    divergent::{upload_until_quarantined, watchful},
    end,
    hand_made::HandMade,
    small, undisturbed,
};
use crate::support::{
    Process,
    client::{Client, hello},
    soon,
};

async fn token_of(hub: &TestHub, role: Role) -> Token {
    let mut operator = hub.operator().await;
    let (action, role) = (TokenAction::Create.to_wire(), role.to_wire());
    operator.say(&Message::ManageTokens(ManageTokens { request: 77, action, role, token: 0, seconds: 0 })).await;
    let token = operator.wait_for(|message| match message {
        Message::NewToken(NewToken { request: 77, token, .. }) => Some(*token),
        _ => None,
    });
    token.await
}

/// Starts a relay of a hub; returns it with its address.
async fn relay_of(hub: &TestHub, upstream: Option<&str>) -> (Process, String) {
    let token = token_of(hub, Role::Relay).await.to_hex();
    let url = hub.hub.worker_url();
    let mut args = vec!["relay", "--hub", &url, "--listen", "127.0.0.1:0"];
    args.extend(upstream.into_iter().flat_map(|upstream| ["--relay", upstream]));
    let mut relay = Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", token));
    let line = relay.line("relaying at ").await;
    relay.line("connected to the hub").await;
    (relay, format!("ws://{}", line.trim_start_matches("relaying at ")))
}

fn worker_at(hub: &TestHub, relay: &str, name: &str) -> Process {
    let url = hub.hub.worker_url();
    let token = hub.hub.worker_token().to_hex();
    let args = ["worker", "--hub", &url, "--relay", relay, "--name", name];
    Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", token))
}

/// Opens a connection to a hub that a relay forwards, as a worker does.
async fn connect_through(relay: &str, hub: &TestHub) -> Client {
    let mut stream = TcpStream::connect(relay.trim_start_matches("ws://")).await.unwrap();
    stream.write_all(b"RMH\x01").await.unwrap();
    Client::over(stream, hub.hub.address()).await.unwrap()
}

/// Returns the weights of a run with one worker that is connected to the hub itself.
async fn weights_without_relay(request: RunRequest) -> String {
    let hub = TestHub::start().await;
    let run = hub.train(request).await;
    let worker = hub.worker();
    let summary = end(run).await;
    drop(worker);
    summary.weights_hash.to_string()
}

/// Returns a run that only workers from elsewhere sample.
fn remote(max_env_steps: u64) -> RunRequest {
    let mut request = small(1, max_env_steps);
    (request.config.num_workers, request.config.num_slots, request.remote_only) = (0, Some(12), true);
    request
}

/// Joins a hub as a worker that gets weights from a relay.
async fn leaf_of(hub: &TestHub) -> Client {
    let mut leaf = hub.connect().await;
    let by_relay = 4;
    let hello = Hello { capabilities: by_relay, ..hello(Role::Worker, hub.hub.worker_token()) };
    leaf.say(&Message::Hello(hello)).await;
    leaf
}

/// Waits for the notice of the newest weights; the hub sends no weights before.
async fn notice_of(leaf: &mut Client) -> WeightsNotice {
    let notice = leaf.wait_for(|message| match message {
        Message::WeightsNotice(notice) => Some(*notice),
        Message::WeightsUpdate(_) => panic!("the relay has them"),
        _ => None,
    });
    notice.await
}

/// Requests the message of a notice from a relay.
async fn fetch(relay: &str, notice: &WeightsNotice) -> Vec<u8> {
    let fetched = async {
        let mut stream = TcpStream::connect(relay.trim_start_matches("ws://")).await?;
        stream.write_all(b"RMW\x01").await?;
        stream.write_all(&notice.hash).await?;
        let mut message = vec![0; stream.read_u32().await? as usize];
        stream.read_exact(&mut message).await?;
        std::io::Result::Ok(message)
    };
    soon("the weights", fetched).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_through_relays_make_the_same_run_and_outlive_them() {
    let hub = TestHub::start().await;
    let (first, first_url) = relay_of(&hub, None).await;
    let (second, second_url) = relay_of(&hub, Some(&first_url)).await;
    let mut leaf = leaf_of(&hub).await;
    let run = hub.train(remote(6_000)).await;
    let notice = notice_of(&mut leaf).await;
    let message = fetch(&second_url, &notice).await;
    assert_eq!((message.len(), Sha256::digest(&message)[..] == notice.hash), (notice.bytes as usize, true));
    drop(leaf);
    let workers = ["a", "b"].map(|name| worker_at(&hub, &second_url, name));
    hub.status("the run has begun", |status| status.iteration >= 5).await;
    // Their connections break with the relay; they reconnect directly, and the hub sends the weights.
    drop(second);
    let then = hub.hub.status().current().iteration;
    hub.status("the run continues", |status| status.iteration > then + 5).await;
    drop(first);
    let summary = end(run).await;
    assert_eq!(summary.end, RunEnd::Finished);
    drop(workers);
    assert_eq!(summary.weights_hash.to_string(), weights_without_relay(remote(6_000)).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn divergent_worker_behind_a_relay_is_quarantined_and_its_siblings_continue() {
    let request = || super::saved_often(remote(12_000));
    let SecurityConfig { distrust, .. } = watchful(1.0, OnDivergence::RollBack);
    let distrust = Distrust { distrust_remote: true, ..distrust };
    let mut hub = TestHub::start_watchful(SecurityConfig { distrust, ..SecurityConfig::default() }).await;
    let (relay, relay_url) = relay_of(&hub, None).await;
    let run = hub.train(request()).await;
    let siblings = ["a", "b"].map(|name| worker_at(&hub, &relay_url, name));
    hub.status("the siblings' first rows", |status| status.iteration >= 1).await;

    let (token, client) = (token_of(&hub, Role::Worker).await, connect_through(&relay_url, &hub).await);
    let divergent = HandMade::join_over(client, token, "native", EnvRegistry::builtin());
    upload_until_quarantined(divergent, 1).await;
    // The run is rolled back, unless a sibling has committed the same fragment first.
    hub.notice("a fragment of its principal failed an audit").await;
    let mut again = connect_through(&relay_url, &hub).await;
    again.say(&Message::Hello(hello(Role::Worker, token))).await;
    assert!(again.refusal().await.is_some(), "its token was revoked");

    let summary = end(run).await;
    assert_eq!((summary.end, summary.tainted), (RunEnd::Finished, false));
    hub.hub.shutdown().await;
    for sibling in siblings {
        let said = sibling.finish_with(0).await.stderr;
        assert!(!said.contains("trying again"), "it has never lost its connection: {said}");
    }
    drop(relay);
    assert_eq!(summary.weights_hash.to_string(), weights_without_relay(request()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hub_sends_a_worker_behind_a_relay_hashes_and_weights_on_request() {
    let hub = TestHub::start().await;
    let mut leaf = leaf_of(&hub).await;
    let run = hub.train(remote(2_000)).await;
    let notice = notice_of(&mut leaf).await;
    leaf.say(&Message::WeightsRequest(WeightsRequest { run: notice.run })).await;
    let update = leaf.wait_for(|message| match message {
        update @ Message::WeightsUpdate(_) => Some(update.encode()),
        _ => None,
    });
    let update = update.await;
    assert_eq!((update.len(), <[u8; 32]>::from(Sha256::digest(&update))), (notice.bytes as usize, notice.hash));
    drop(run);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_needs_a_relays_token() {
    let hub = TestHub::start().await;
    let url = hub.hub.worker_url();
    let token = hub.hub.worker_token().to_hex();
    let relay = Process::start_with(["relay", "--hub", &url, "--listen", "127.0.0.1:0"], |command| {
        _ = command.env("ROLLMESH_TOKEN", token);
    });
    let end = relay.finish_with(2).await;
    assert!(end.stderr.contains("`rollmesh tokens create --role relay` makes one"), "{}", end.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_with_a_relays_token_is_refused_and_a_program_is_not() {
    let hub = TestHub::start().await;
    let (address, token) = (hub.hub.address(), token_of(&hub, Role::Relay).await);
    let mut page = Client::connect_as_page(address).await;
    page.say(&Message::Hello(hello(Role::Relay, token))).await;
    let refused = page.refusal().await.expect("a refusal");
    assert_eq!(refused.code, RefusalCode::Token.to_wire());
    // The same page may watch, and a program may have the weights.
    let watching = Client::connect_as_page(address).await;
    let _viewer = watching.introduced(Role::Viewer, token_of(&hub, Role::Viewer).await).await;
    let _relay = Client::join(address, Role::Relay, token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn halved_weights_make_one_run_for_any_workers() {
    let halved = |num_workers| {
        let mut request = small(num_workers, 2_000);
        request.config.num_slots = Some(12);
        request.config.weights_dtype = WeightsDtype::Float16;
        request
    };
    let mut hashes = Vec::new();
    for num_workers in [1, 2] {
        let hub = TestHub::start().await;
        let summary = end(hub.train(halved(num_workers)).await).await;
        assert_eq!(summary.end, RunEnd::Finished);
        hashes.push(summary.weights_hash.to_string());
    }
    assert_eq!(hashes[0], hashes[1]);
    assert_ne!(hashes[0], undisturbed().await, "the rows are those of rounded weights");
}
