//! The hub among peers that behave, misbehave, lie and vanish: real sockets, and workers as processes.
#![cfg(target_os = "linux")]

mod support;

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use rollmesh::{
    Registry,
    hub::{Hub, HubConfig},
    kernels::AUTO,
    learner::PpoConfig,
    train::{RunEnd, Summary, TrainConfig},
};
use rollmesh_core::{
    batch::{REWARDS, SlotFragment},
    column::ColumnData,
    env::EnvRegistry,
    ids::LeaseId,
    lease::Lease,
    protocol::{
        MAX_FRAME_BYTES, Message, Phase, RefusalCode, Role, Token,
        convert::{self, FragmentLimits},
        handshake::Identity,
        message::{FragmentUpload, Hello, Refused, RemoveWorker, Request, RunStatus, StartRun, Watch},
    },
    run::RunSpec,
    time::Micros,
    worker::{WorkerSession, core_fingerprint},
};
use support::{
    Process,
    client::{Client, Frame, hello},
    process::{children_of, has_ended},
    soon, until,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::{mpsc, oneshot},
};

/// A hub in this process, whose local workers are others.
struct TestHub {
    hub: Hub,
    notices: mpsc::UnboundedReceiver<String>,
    seen: Vec<String>,
    assets: tempfile::TempDir,
}

impl TestHub {
    async fn start() -> Self {
        Self::start_at("127.0.0.1:0").await
    }

    async fn start_at(listen: &str) -> Self {
        let assets = tempfile::tempdir().unwrap();
        std::fs::write(assets.path().join("secret"), "secret").unwrap();
        std::fs::create_dir(assets.path().join("page")).unwrap();
        std::fs::write(assets.path().join("page/index.html"), "<title>page</title>").unwrap();
        let config = HubConfig {
            listen: listen.parse().unwrap(),
            dashboard: true,
            assets: Some(assets.path().join("page")),
            worker_program: env!("CARGO_BIN_EXE_rollmesh").into(),
            kernels: AUTO,
        };
        let mut hub = Hub::start(config, &Registry::builtin()).await.unwrap();
        let notices = hub.take_notices().unwrap();
        Self { hub, notices, seen: Vec::new(), assets }
    }

    fn operator_token(&self) -> Token {
        let url = self.hub.dashboard_url();
        Token::from_hex(url.split_once("#token=").unwrap().1).unwrap()
    }

    async fn connect(&self) -> Client {
        Client::connect(self.hub.address()).await
    }

    async fn operator(&self) -> Client {
        Client::join(self.hub.address(), Role::Operator, self.operator_token()).await
    }

    async fn hand_made_worker(&self) -> Client {
        Client::join(self.hub.address(), Role::Worker, self.hub.worker_token()).await
    }

    fn worker(&self) -> Process {
        Process::worker(&self.hub.address().to_string(), &self.hub.worker_token().to_hex())
    }

    /// Waits until people were told something with this text.
    async fn notice(&mut self, text: &str) -> String {
        loop {
            let line = soon(text, self.notices.recv()).await.expect("the hub goes on");
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
    }

    async fn status(&self, what: &str, is_so: impl FnMut(&RunStatus) -> bool) -> RunStatus {
        soon(what, self.hub.status().wait_for(is_so)).await.unwrap().clone()
    }

    async fn train(&self, config: TrainConfig) -> oneshot::Receiver<Summary> {
        self.hub.train(config).await.unwrap()
    }
}

/// Twelve environments and a small network, as in the tests of the command line.
fn small(num_workers: u32, max_env_steps: u64) -> TrainConfig {
    TrainConfig {
        num_workers,
        num_envs_per_worker: 12 / num_workers.max(1),
        hidden: vec![16, 16],
        seed: 1,
        max_env_steps,
        ppo: PpoConfig { rollout_fragment_length: 16, ..PpoConfig::default() },
        ..TrainConfig::new("CartPole-v1")
    }
}

async fn end(summary: oneshot::Receiver<Summary>) -> Summary {
    soon("the end of the run", summary).await.expect("a summary")
}

/// What comes of 2,000 steps without anything that disturbs.
async fn undisturbed() -> String {
    let hub = TestHub::start().await;
    let summary = end(hub.train(small(1, 2_000)).await).await;
    hub.hub.shutdown().await;
    assert_eq!(summary.end, RunEnd::Finished);
    summary.weights_hash.to_string()
}

// ---- Who gets in ----

/// Sends a request as text and reads the whole answer.
async fn http(address: std::net::SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    soon("an answer", socket.read_to_end(&mut answer)).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n")
}

const UPGRADE: &str = "Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

fn assert_has_security_headers(answer: &str) {
    let answer = answer.to_lowercase();
    for header in [
        "content-security-policy: default-src 'self'; script-src 'self' 'wasm-unsafe-eval';",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cross-origin-resource-policy: same-origin",
    ] {
        assert!(answer.contains(header), "{header} in {answer}");
    }
}

#[tokio::test]
async fn foreign_pages_and_names_are_turned_away_before_anything_else() {
    let hub = TestHub::start().await;
    let address = hub.hub.address();
    let own = format!("Host: {address}\r\n");
    let foreign = [
        "Host: evil.example\r\n".to_owned(),
        format!("Host: evil.example:{}\r\n", address.port()),
        String::new(),
        format!("{own}Origin: null\r\n"),
        format!("{own}Origin: http://evil.example\r\n"),
        format!("{own}Origin: https://{address}\r\n"),
    ];
    for headers in foreign {
        for request in [get("/", &headers), format!("GET /ws HTTP/1.1\r\n{headers}{UPGRADE}\r\n")] {
            let answer = http(address, &request).await;
            assert!(answer.starts_with("HTTP/1.1 403 "), "{request}{answer}");
            assert_has_security_headers(&answer);
        }
    }
    let page = http(address, &get("/", &own)).await;
    assert!(page.starts_with("HTTP/1.1 200 ") && page.ends_with("<title>page</title>"), "{page}");
    assert_has_security_headers(&page);
}

#[tokio::test]
async fn the_page_has_nothing_above_its_directory() {
    let hub = TestHub::start().await;
    let address = hub.hub.address();
    let secret = hub.assets.path().join("secret").display().to_string();
    let paths = [
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/page/../../secret",
        "/./../secret",
        "/..\\secret",
        &secret,
        &format!("/{secret}"),
        &format!("//{secret}"),
        &format!("http://{address}/../secret"),
        "/index.html/../../secret",
        "/nothing",
    ];
    for path in paths {
        let answer = http(address, &get(path, &format!("Host: {address}\r\n"))).await;
        assert!(answer.starts_with("HTTP/1.1 404 ") || answer.starts_with("HTTP/1.1 400 "), "{path}: {answer}");
        assert!(!answer.contains("\r\n\r\nsecret"), "{path}: {answer}");
        assert!(answer.starts_with("HTTP/1.1 400 ") || answer.contains("There is no such file."), "{path}: {answer}");
    }
}

/// How the hub answers this Hello, if not with a welcome.
async fn refusal(hub: &TestHub, hello: Hello) -> Refused {
    let mut client = hub.connect().await;
    client.say(&Message::Hello(hello)).await;
    client.refusal().await.expect("a refusal")
}

#[tokio::test]
async fn whatever_is_wrong_with_a_token_the_answer_is_the_same() {
    let mut hub = TestHub::start().await;
    let (operator, worker) = (hub.operator_token(), hub.hub.worker_token());
    let wrong = [
        hello(Role::Worker, Token::new([0; 32])),
        hello(Role::Operator, Token::new([0x55; 32])),
        hello(Role::Operator, worker),
        hello(Role::Worker, operator),
        hello(Role::Viewer, worker),
        Hello { role: 0x77, ..hello(Role::Worker, worker) },
    ];
    for hello in wrong {
        let refused = refusal(&hub, hello).await;
        assert_eq!(refused.code, RefusalCode::Token.to_wire());
        assert_eq!(refused.reason, "the token is not valid for this role");
        hub.notice("a peer was refused: the token is not valid for this role").await;
    }
}

#[tokio::test]
async fn versions_and_fingerprints_are_named_on_both_sides() {
    let hub = TestHub::start().await;
    let good = hello(Role::Worker, hub.hub.worker_token());
    let refused = refusal(&hub, Hello { protocol_min: 7, protocol_max: 9, ..good.clone() }).await;
    assert_eq!(refused.code, RefusalCode::ProtocolVersion.to_wire());
    assert!(refused.reason.contains("1 to 1 here, 7 to 9 there"), "{}", refused.reason);
    let refused = refusal(&hub, Hello { core_fingerprint: [0xab; 16], ..good.clone() }).await;
    assert_eq!(refused.code, RefusalCode::Fingerprint.to_wire());
    let own: String = core_fingerprint(AUTO).iter().map(|byte| format!("{byte:02x}")).collect();
    let both = format!("{own} here, {} there", "ab".repeat(16));
    assert!(refused.reason.contains(&both), "{}", refused.reason);
}

// ---- Who stays in ----

#[tokio::test]
async fn no_peer_disturbs_a_run() {
    let expected = undisturbed().await;
    let mut hub = TestHub::start().await;
    let operator = hub.operator_token();
    let worker = hub.hub.worker_token();
    // Slow enough to go on while others misbehave.
    let run = hub.train(TrainConfig { pace: Duration::from_millis(250), ..small(2, 2_000) }).await;

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

    // The hub hangs up at the first of them; whatever else comes finds nobody.
    let mut client = Client::join(hub.hub.address(), Role::Operator, operator).await;
    while client.send(garbage()).await.is_ok() {}
    hub.notice("a dashboard was disconnected").await;

    for mut client in [hub.connect().await, hub.operator().await] {
        // The hub hangs up in the middle of it.
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

// ---- Workers ----

/// A worker that does what it should, as far as its frames are not changed on the way.
struct HandMade {
    client: Client,
    session: WorkerSession,
    spec: Option<RunSpec>,
    run: u32,
    lease: Option<Lease>,
}

impl HandMade {
    async fn join(hub: &TestHub) -> Self {
        let token = hub.hub.worker_token();
        let identity = Identity {
            role: Role::Worker,
            token,
            resume: None,
            core_fingerprint: core_fingerprint(AUTO),
            kind: "native".into(),
            name: "by-hand".into(),
            device: "cpu".into(),
        };
        let session = WorkerSession::new(identity, EnvRegistry::builtin(), AUTO);
        Self { client: hub.connect().await, session, spec: None, run: 0, lease: None }
    }

    /// Works until there is something to upload. None once the hub has hung up.
    async fn next_upload(&mut self) -> Option<FragmentUpload> {
        loop {
            while let Some(frame) = self.session.poll_frame() {
                match Message::decode(&frame).unwrap() {
                    Message::FragmentUpload(upload) => return Some(upload),
                    other => self.client.say(&other).await,
                }
            }
            if self.session.has_work() {
                self.session.work(u32::MAX, Micros(0));
                continue;
            }
            let frame = self.client.hear_frame().await?;
            match Message::decode(&frame).unwrap() {
                Message::RunStart(start) => (self.run, self.spec) = (start.run, Some(start.spec)),
                Message::LeaseGrant(grant) => {
                    self.lease = Some(convert::lease(&grant, self.spec.as_ref().unwrap()).unwrap());
                }
                _ => {}
            }
            self.session.handle_frame(&frame);
        }
    }

    /// The upload with its fragments changed.
    fn changed(&self, upload: &FragmentUpload, change: impl Fn(&mut SlotFragment)) -> FragmentUpload {
        let (spec, lease) = (self.spec.as_ref().unwrap(), self.lease.as_ref().unwrap());
        let spaces = EnvRegistry::builtin().spec(&spec.env).unwrap().spaces();
        let limits = FragmentLimits::new(spec, &spaces);
        let mut fragments = convert::slot_fragments(upload, self.run, lease, &limits).unwrap();
        fragments.iter_mut().for_each(change);
        convert::fragment_upload(self.run, LeaseId(upload.lease), &fragments).unwrap()
    }
}

#[tokio::test]
async fn a_worker_that_vanishes_with_a_lease_costs_nothing_but_time() {
    let expected = undisturbed().await;
    let mut hub = TestHub::start().await;
    let run = hub.train(small(0, 2_000)).await;
    for _ in 0..3 {
        let mut worker = hub.hand_made_worker().await;
        worker.wait_for(|message| matches!(message, Message::LeaseGrant(_)).then_some(())).await;
        drop(worker);
        hub.notice(" left: ").await;
    }
    let helper = hub.worker();
    let summary = end(run).await;
    assert_eq!((summary.end, summary.weights_hash.to_string()), (RunEnd::Finished, expected));
    hub.hub.shutdown().await;
    helper.finish_with(0).await;
}

#[tokio::test]
async fn garbage_for_a_lease_is_refused_and_done_again() {
    let expected = undisturbed().await;
    let mut hub = TestHub::start().await;
    let run = hub.train(small(0, 2_000)).await;
    let mut worker = HandMade::join(&hub).await;
    let upload = worker.next_upload().await.unwrap();

    let unknown = FragmentUpload { lease: upload.lease + 1000, ..upload.clone() };
    worker.client.say(&Message::FragmentUpload(unknown)).await;
    hub.notice("was not accepted: the lease is unknown").await;
    let empty = FragmentUpload { run: upload.run, lease: upload.lease, ..FragmentUpload::default() };
    worker.client.say(&Message::FragmentUpload(empty)).await;
    hub.notice("was not accepted: ").await;
    drop(worker);
    let helper = hub.worker();
    let summary = end(run).await;
    assert_eq!((summary.end, summary.weights_hash.to_string()), (RunEnd::Finished, expected));
    hub.hub.shutdown().await;
    helper.finish_with(0).await;
}

#[tokio::test]
async fn a_worker_that_lies_does_not_stop_the_run() {
    let hub = TestHub::start().await;
    let run = hub.train(small(0, 2_000)).await;
    let mut liar = HandMade::join(&hub).await;
    let honest = liar.next_upload().await.unwrap();
    let lie = liar.changed(&honest, |fragment| {
        let mut rewards = fragment.rows.get(REWARDS).unwrap().to_vec();
        rewards[0] = 2.0;
        fragment.rows.insert(REWARDS.name(), ColumnData::scalars(rewards)).unwrap();
    });
    assert_ne!(lie, honest);
    liar.client.say(&Message::FragmentUpload(lie)).await;
    let helper = hub.worker();
    hub.status("the first iteration", |status| status.iteration > 0).await;
    drop(liar);
    assert_eq!(end(run).await.end, RunEnd::Finished);
    hub.hub.shutdown().await;
    helper.finish_with(0).await;
}

#[tokio::test]
async fn a_worker_waits_for_its_hub_and_says_so() {
    // A port of an address that nobody else uses.
    let free = std::net::TcpListener::bind("127.0.0.2:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let token = Token::new([7; 32]);
    let mut worker = Process::worker(&address.to_string(), &token.to_hex());
    for _ in 0..2 {
        let line = worker.line("trying again in ").await;
        assert!(line.starts_with(&format!("cannot reach the hub at ws://{address}: ")), "{line}");
    }
    // This hub has other tokens: the worker has arrived when it is refused.
    let _hub = TestHub::start_at(&address.to_string()).await;
    let end = worker.finish_with(2).await;
    assert!(
        end.stderr.ends_with("error: the hub refused this worker: the token is not valid for this role"),
        "{}",
        end.stderr
    );
}

#[tokio::test]
async fn a_worker_ends_with_its_hub() {
    let mut hub = TestHub::start().await;
    let worker = hub.worker();
    hub.notice(" joined: ").await;
    hub.hub.shutdown().await;
    let end = worker.finish_with(0).await;
    assert!(end.stderr.contains("the hub is shutting down"), "{}", end.stderr);
}

// ---- Operators ----

async fn phase(operator: &mut Client, phase: Phase) -> RunStatus {
    operator
        .wait_for(|message| match message {
            Message::RunStatus(status) if status.phase == phase.to_wire() => Some(status.clone()),
            _ => None,
        })
        .await
}

#[tokio::test]
async fn an_operator_controls_a_run() {
    let hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let pause = |request| Message::Pause(Request { request });
    assert_eq!(operator.ask(pause).await, "there is no run to pause");

    let run = hub.train(small(2, 1_000_000_000)).await;
    hub.status("an iteration", |status| status.iteration > 0).await;
    assert_eq!(operator.ask(pause).await, "");
    let paused =
        hub.status("nothing outstanding", |status| status.phase == Phase::Paused.to_wire() && status.outstanding == 0);
    let paused = paused.await;
    assert_eq!(paused.granted, paused.committed + paused.superseded + paused.rejected + paused.expired);

    // Each answer comes with a fresh status behind it: commands, not time, pass here.
    for slot in [0, 11, 3] {
        assert_eq!(operator.ask(|request| Message::Watch(Watch { request, slot })).await, "");
    }
    let answer = operator.ask(|request| Message::Watch(Watch { request, slot: 12 })).await;
    assert_eq!(answer, "the run has 12 slots, there is no slot 12");
    let later = hub.status("slot 3 to be watched", |status| status.watched_slot == 3).await;
    assert_eq!(later.granted, paused.granted, "a paused run grants nothing");

    assert_eq!(operator.ask(|request| Message::Resume(Request { request })).await, "");
    hub.status("more steps", |status| status.env_steps > later.env_steps + 1_000).await;

    let answer = operator.ask(|request| Message::StartRun(start(request))).await;
    assert_eq!(answer, "another run is going on; stop it first");
    assert_eq!(operator.ask(|request| Message::Stop(Request { request })).await, "");
    assert_eq!(end(run).await.end, RunEnd::Stopped);
    let answer = operator.ask(|request| Message::Resume(Request { request })).await;
    assert_eq!(answer, "there is no run to resume");
}

fn start(request: u32) -> StartRun {
    StartRun {
        request,
        env: "CartPole-v1".into(),
        algo: "ppo".into(),
        seed: 3,
        num_workers: 1,
        num_envs_per_worker: 4,
        stop_return: f32::NAN,
        max_env_steps: 100,
    }
}

#[tokio::test]
async fn an_operator_starts_a_run() {
    let hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    for (wrong, reason) in [
        (StartRun { env: "CartPole-v9".into(), ..start(0) }, "there is no environment 'CartPole-v9'"),
        (StartRun { algo: "magic".into(), ..start(0) }, "there is no algorithm 'magic'"),
        (StartRun { max_env_steps: 0, ..start(0) }, "max_env_steps must be at least 1"),
        (StartRun { num_envs_per_worker: 0, ..start(0) }, "num_"),
        (StartRun { num_workers: u32::MAX, num_envs_per_worker: u32::MAX, ..start(0) }, "num_"),
    ] {
        let answer = operator.ask(|request| Message::StartRun(StartRun { request, ..wrong })).await;
        assert!(answer.contains(reason), "{answer}");
    }
    assert_eq!(operator.ask(|request| Message::StartRun(start(request))).await, "");
    let status = phase(&mut operator, Phase::Finished).await;
    assert_eq!((status.run, status.seed, status.num_slots), (1, 3, 4));
    assert!(status.env_steps >= 100);
    // And another one after it, with the same worker.
    assert_eq!(operator.ask(|request| Message::StartRun(start(request))).await, "");
    let again = hub.status("another run", |status| status.run == 2 && status.phase == Phase::Finished.to_wire()).await;
    assert_eq!(again.env_steps, status.env_steps);
}

#[tokio::test]
async fn an_operator_adds_and_removes_workers() {
    let mut hub = TestHub::start().await;
    let mut operator = hub.operator().await;
    let joined = |message: &Message| match message {
        Message::WorkerRow(row) => Some(row.clone()),
        _ => None,
    };
    assert_eq!(operator.ask(|request| Message::AddWorker(Request { request })).await, "");
    hub.notice(" joined: native local-1 on cpu").await;
    let row = operator.wait_for(joined).await;
    assert!(row.local);

    operator.say(&Message::WorkerTokenRequest(Request { request: 99 })).await;
    let token = operator.wait_for(|message| match message {
        Message::WorkerToken(answer) => Some((answer.request, answer.token)),
        _ => None,
    });
    let (request, token) = token.await;
    assert_eq!(request, 99);
    let guest = Process::worker(&hub.hub.address().to_string(), &token.to_hex());
    hub.notice(" joined: native worker on cpu").await;

    let run = hub.train(small(1, 1_000_000_000)).await;
    hub.status("an iteration", |status| status.iteration > 0).await;
    let answer = operator.ask(|request| Message::RemoveWorker(RemoveWorker { request, worker: 4711 })).await;
    assert_eq!(answer, "there is no worker 4711");
    let remove = |request| Message::RemoveWorker(RemoveWorker { request, worker: row.worker });
    assert_eq!(operator.ask(remove).await, "");
    hub.notice(&format!("worker {} left: ", row.worker)).await;
    let before = hub.hub.status().borrow().env_steps;
    hub.status("more steps without it", |status| status.env_steps > before + 1_000).await;

    assert_eq!(operator.ask(|request| Message::Stop(Request { request })).await, "");
    assert_eq!(end(run).await.end, RunEnd::Stopped);
    assert!(!hub.seen.iter().any(|line| line.contains("takes its place")), "{:?}", hub.seen);
    hub.hub.shutdown().await;
    guest.finish_with(0).await;
}

#[tokio::test]
async fn a_hub_that_is_shut_down_takes_its_workers_along() {
    let mut hub = TestHub::start().await;
    let run = hub.train(small(2, 1_000_000_000)).await;
    hub.notice(" joined: ").await;
    hub.notice(" joined: ").await;
    // Other tests' workers are children of this process as well.
    let ours: Vec<u32> = children_of(std::process::id())
        .into_iter()
        .filter(|pid| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&command).contains(&hub.hub.address().to_string())
        })
        .collect();
    assert_eq!(ours.len(), 2);
    hub.hub.shutdown().await;
    assert_eq!(end(run).await.end, RunEnd::Stopped);
    until("the end of its workers", || ours.iter().all(|&pid| has_ended(pid))).await;
}
