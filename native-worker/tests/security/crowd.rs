//! Many peers at once, of which most do nothing.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use futures_util::{SinkExt as _, StreamExt as _, future::join_all, stream};
use rollmesh_core::protocol::{
    Message, Role, Token, TokenAction,
    message::{ManageTokens, NewToken, Request, RunStatus},
};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::{client_async, tungstenite::Message as Frame};

use super::{
    TURN, fresh_address, memory,
    support::{
        Process,
        client::{Client, hello},
        soon, until,
    },
};

async fn train(run_dir: &std::path::Path, workers: &str, envs: &str) -> (Process, SocketAddr, Client, Token, Token) {
    let run_dir = run_dir.display().to_string();
    let args = ["train", "--workers", workers, "--num-envs-per-worker", envs, "--max-env-steps", "1000000000"];
    let mut run = Process::start(args.into_iter().chain(["--run-dir", &run_dir, "--hidden", "16,16"]));
    let invitation = run.invitation().await;
    let address = invitation.address.parse().unwrap();
    let token = Token::from_hex(&invitation.operator_token).unwrap();
    let mut operator = Client::join_from(fresh_address(), address, Role::Operator, token).await;
    let viewer = create(&mut operator, Role::Viewer).await;
    let client = create(&mut operator, Role::Client).await;
    (run, address, operator, viewer, client)
}

async fn create(operator: &mut Client, role: Role) -> Token {
    let (action, role) = (TokenAction::Create.to_wire(), role.to_wire());
    operator.say(&Message::ManageTokens(ManageTokens { request: 4, action, role, ..ManageTokens::default() })).await;
    let token = operator.wait_for(|message| match message {
        Message::NewToken(NewToken { request: 4, token, .. }) => Some(*token),
        _ => None,
    });
    token.await
}

async fn status(operator: &mut Client, is_so: impl Fn(&RunStatus) -> bool) -> RunStatus {
    operator
        .wait_for(|message| match message {
            Message::RunStatus(status) if is_so(status) => Some(status.clone()),
            _ => None,
        })
        .await
}

async fn stop(run: Process, mut operator: Client) {
    assert_eq!(operator.ask(|request| Message::Stop(Request { request })).await, "");
    run.finish_with(3).await;
}

/// A socket whose system buffers are as small as can be, and that nobody reads.
async fn deaf(address: SocketAddr, token: Token) -> tokio_tungstenite::WebSocketStream<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    socket.bind((fresh_address(), 0).into()).unwrap();
    let stream = socket.connect(address).await.unwrap();
    let (mut socket, _) = soon("a socket", client_async(format!("ws://{address}/ws"), stream)).await.unwrap();
    socket.send(Frame::Binary(Message::Hello(hello(Role::Viewer, token)).encode().into())).await.unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_that_never_read_are_sent_away_and_nobody_notices() {
    let _turn = TURN.write().await;
    let directory = tempfile::tempdir().unwrap();
    let (run, address, mut operator, viewer, _) = train(&directory.path().join("run"), "1", "8").await;
    status(&mut operator, |status| status.iteration > 0).await;
    let before = memory(run.pid());
    let began = Instant::now();
    let sockets = stream::iter(0..100).map(move |_| deaf(address, viewer)).buffer_unordered(8).collect::<Vec<_>>();
    let sockets = tokio::spawn(sockets);
    let (mut most, mut first, mut last) = (before, None, 0);
    let audit = directory.path().join("run/audit.jsonl");
    let gone = || std::fs::read_to_string(&audit).unwrap().matches(r#""event":"left""#).count();
    let mut longest = Duration::ZERO;
    while gone() < 100 {
        let asked = Instant::now();
        let now = status(&mut operator, |_| true).await;
        longest = longest.max(asked.elapsed());
        first.get_or_insert(now.env_steps);
        last = now.env_steps;
        most = most.max(memory(run.pid()));
        assert!(began.elapsed() < Duration::from_secs(100), "{} of them are still there", 100 - gone());
    }
    assert_eq!(sockets.await.unwrap().len(), 100);
    let growth = most.saturating_sub(before) >> 10;
    println!(
        "100 viewers that never read: gone after {:.1} s; memory grew by {growth} KiB; {} env steps meanwhile; the operator \
         waited for news for {longest:?} at most",
        began.elapsed().as_secs_f64(),
        last - first.unwrap_or(0),
    );
    assert!(growth < 64 << 10, "{growth} KiB");
    assert!(last > first.unwrap_or(0), "training goes on");
    stop(run, operator).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_idle_peers_and_fifty_workers_share_a_hub() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let _turn = TURN.write().await;
    let directory = tempfile::tempdir().unwrap();
    let (run, address, mut operator, _, idle) = train(&directory.path().join("run"), "50", "2").await;
    let before = status(&mut operator, |status| status.iteration > 0).await;
    let memory_before = memory(run.pid());
    let join = move |_| async move {
        loop {
            let Ok(mut client) = Client::try_connect_from(fresh_address(), address).await else { continue };
            let introduction = Message::Hello(hello(Role::Client, idle)).encode();
            if client.send(Frame::Binary(introduction.into())).await.is_err() {
                continue;
            }
            // Fifty processes beside it may leave too little time for the handshake's deadline.
            if let Some(Message::Welcome(_)) = client.hear().await {
                return client;
            }
        }
    };
    let idle = tokio::spawn(stream::iter(0..1000).map(join).buffer_unordered(16).collect::<Vec<_>>());
    while !idle.is_finished() {
        status(&mut operator, |_| true).await;
    }
    let idle = idle.await.unwrap();
    let each = memory(run.pid()).saturating_sub(memory_before) / idle.len() as u64;
    // They stay, and answer pings, while iterations go by.
    let mut tasks = Vec::new();
    for mut client in idle {
        tasks.push(tokio::spawn(async move { client.hear_frame().await }));
    }
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(17) {
        status(&mut operator, |_| true).await;
    }
    let after = status(&mut operator, |_| true).await;
    println!(
        "1,000 idle peers take {each} bytes each; 50 workers make {} env steps in {} iterations beside them",
        after.env_steps - before.env_steps,
        after.iteration - before.iteration
    );
    assert!(after.iteration > before.iteration + 2, "{before:?} {after:?}");
    assert!(tasks.iter().all(|task| !task.is_finished()), "somebody was sent away");
    assert!(each < 64 << 10, "{each} bytes");
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    join_all(tasks).await;
    let audit = directory.path().join("run/audit.jsonl");
    until("all have left", || {
        std::fs::read_to_string(&audit).unwrap().matches(r#""event":"left","peer""#).count() >= 1000
    })
    .await;
    stop(run, operator).await;
}
