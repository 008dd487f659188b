//! Many peers at the same time, of which most do nothing: 100 and 5 workers in the suite, 1,000 and 50 with `ROLLMESH_LONG=1`.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use futures_util::{SinkExt as _, StreamExt as _, future::join_all, stream};
use rollmesh::kernels::AUTO;
use rollmesh_core::{
    protocol::{
        Message, Role, Token, TokenAction,
        handshake::Identity,
        message::{ManageTokens, NewToken, Request, RunStatus},
    },
    time::Micros,
    worker::{Registry, WorkerSession, core_fingerprint},
};
use tokio::{
    net::{TcpSocket, TcpStream},
    sync::{Semaphore, oneshot},
};
use tokio_tungstenite::{
    client_async,
    tungstenite::{Bytes, Message as Frame},
};

use super::{TURN, fresh_address, hostile::Throughput, memory, peak, reset_peak};
use crate::support::{
    Process,
    client::{Client, hello},
    is_long, json, soon, until,
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

/// Opens a socket with the smallest system buffers, which is never read.
async fn slow_consumer(address: SocketAddr, token: Token) -> tokio_tungstenite::WebSocketStream<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    socket.bind((fresh_address(), 0).into()).unwrap();
    let stream = socket.connect(address).await.unwrap();
    let (mut socket, _) = soon("a socket", client_async(format!("ws://{address}/ws"), stream)).await.unwrap();
    socket.send(Frame::Binary(Message::Hello(hello(Role::Viewer, token)).encode().into())).await.unwrap();
    socket
}

/// Returns the number of files and sockets that a process has open.
fn files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// Returns the faults of the peers that have disconnected.
fn departures(audit: &std::path::Path) -> Vec<String> {
    let text = std::fs::read_to_string(audit).unwrap();
    let left = text.lines().map(json).filter(|line| line["event"] == "left");
    left.map(|line| line["fault"].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_consumers_are_disconnected_without_effect_on_others() {
    let _turn = TURN.write().await;
    let directory = tempfile::tempdir().unwrap();
    let (run, address, mut operator, viewer, _) = train(&directory.path().join("run"), "1", "8").await;
    status(&mut operator, |status| status.iteration > 0).await;
    let (mut calm, mut crowded) = (Throughput::default(), Throughput::default());
    calm.watch(&mut operator, 3.0).await;
    let (before, open) = (memory(run.pid()), files(run.pid()));
    reset_peak(run.pid());
    let began = Instant::now();
    let sockets =
        stream::iter(0..100).map(move |_| slow_consumer(address, viewer)).buffer_unordered(8).collect::<Vec<_>>();
    let sockets = tokio::spawn(sockets);
    let audit = directory.path().join("run/audit.jsonl");
    // A checkpoint may be being written.
    while !sockets.is_finished() || files(run.pid()) > open + 2 {
        crowded.watch(&mut operator, 1.0).await;
        assert!(began.elapsed() < Duration::from_secs(100), "{} of {open} files are left", files(run.pid()));
    }
    let closed_s = began.elapsed().as_secs_f64();
    assert_eq!(sockets.await.unwrap().len(), 100);
    calm.watch(&mut operator, 3.0).await;
    // The log has the time for which each of them read nothing, unless too many disconnect within a second.
    let faults = departures(&audit);
    assert!(faults.len() >= 50, "{faults:?}");
    for fault in &faults {
        let seconds = fault.strip_prefix("nothing was taken for ").and_then(|text| text.strip_suffix(" s"));
        assert!(seconds.is_some_and(|seconds| seconds.parse::<u32>().unwrap() < 10), "{fault}");
    }
    let growth = peak(run.pid()).saturating_sub(before) >> 10;
    let ratio = crowded.per_second() / calm.per_second();
    println!(
        "100 viewers that never read: closed 5 s after their buffers were full, the last one {closed_s:.1} s after the first \
         came; memory grew by {growth} KiB; training at {:.1} % of {:.0} env steps per second",
        100.0 * ratio,
        calm.per_second(),
    );
    assert!(growth < 64 << 10, "{growth} KiB");
    // The long form is for figures, and the short one sees a run that is held up.
    assert!(ratio > if is_long() { 0.9 } else { 0.2 }, "{ratio}");
    stop(run, operator).await;
}

/// Workers without faults, on a thread of their own until this is dropped. There are more of them than slots, so that
/// most have no work.
struct IdleWorkers {
    joined: Arc<AtomicUsize>,
    left: Arc<AtomicUsize>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl IdleWorkers {
    fn start(number: usize, address: SocketAddr, token: Token) -> Self {
        let (joined, left) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let (end, ended) = oneshot::channel();
        let counts = (joined.clone(), left.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let (joined, left) = (&counts.0, &counts.1);
            // Not all at the same time: a peer of a crowded hub may have to wait for too long.
            let handshakes = &Semaphore::new(16);
            let work = join_all((0..number).map(|_| idle_worker((address, token), handshakes, joined, left)));
            runtime.block_on(async {
                tokio::select! {
                    _ = work => {}
                    _ = ended => {}
                }
            });
        });
        Self { joined, left, end: Some(end), thread: Some(thread) }
    }
}

impl Drop for IdleWorkers {
    fn drop(&mut self) {
        drop(self.end.take());
        self.thread.take().map(JoinHandle::join);
    }
}

/// Joins, and works if it gets a lease.
async fn idle_worker(
    (address, token): (SocketAddr, Token),
    handshakes: &Semaphore,
    joined: &AtomicUsize,
    left: &AtomicUsize,
) {
    let began = Instant::now();
    loop {
        let mut permit = Some(handshakes.acquire().await.unwrap());
        let Ok(mut client) = Client::try_connect_from(fresh_address(), address).await else { continue };
        let identity = Identity::new(Role::Worker, token, "native", "idle", "cpu");
        let identity = Identity { core_fingerprint: core_fingerprint(AUTO), ..identity };
        let mut session = WorkerSession::new(identity, Registry::builtin(), AUTO);
        loop {
            while let Some(frame) = session.poll_frame() {
                if client.send(Frame::Binary(Bytes::from_owner(frame))).await.is_err() {
                    break;
                }
            }
            if session.has_work() {
                session.work(16, Micros(began.elapsed().as_micros() as u64));
                continue;
            }
            if session.connection().is_ready() && permit.take().is_some() {
                joined.fetch_add(1, Ordering::Relaxed);
            }
            match client.receive_frame().await {
                Some(frame) => session.handle_frame(&frame),
                // Fifty processes alongside it may leave too little time for the handshake's deadline.
                None if permit.is_some() => break,
                None => {
                    left.fetch_add(1, Ordering::Relaxed);
                    return;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_idle_workers_and_busy_ones_share_a_hub() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    let _turn = TURN.write().await;
    let directory = tempfile::tempdir().unwrap();
    let (many, workers) = if is_long() { (1000, "50") } else { (100, "5") };
    let (run, address, mut operator, _, client) = train(&directory.path().join("run"), workers, "2").await;
    let worker = create(&mut operator, Role::Worker).await;
    let before = status(&mut operator, |status| status.iteration > 0).await;
    let memory_before = memory(run.pid());
    let idle = IdleWorkers::start(many, address, worker);
    while idle.joined.load(Ordering::Relaxed) < many {
        status(&mut operator, |_| true).await;
    }
    let grown = memory(run.pid()).saturating_sub(memory_before);
    let each = grown / many as u64;
    // They stay connected, receive weights, and answer pings, while iterations go by. Others ask for answers, too.
    let seconds = if is_long() { 30 } else { 16 };
    let end = Instant::now() + Duration::from_secs(seconds);
    let ask = || async move {
        let mut client = Client::join_from(fresh_address(), address, Role::Client, client).await;
        let (mut times, mut pause) = (Vec::new(), tokio::time::interval(Duration::from_millis(250)));
        while Instant::now() < end {
            pause.tick().await;
            times.push(client.ping().await);
        }
        times
    };
    let asking: Vec<_> = (0..20).map(|_| tokio::spawn(ask())).collect();
    while Instant::now() < end {
        status(&mut operator, |_| true).await;
    }
    let mut times: Vec<Duration> = join_all(asking).await.into_iter().flat_map(Result::unwrap).collect();
    times.sort();
    let after = status(&mut operator, |_| true).await;
    println!(
        "{many} idle workers take {each} bytes each; alongside them {workers} workers make {} env steps in {} iterations in \
         {seconds} s; pings are answered within {:?} (median), {:?} (p99 of {})",
        after.env_steps - before.env_steps,
        after.iteration - before.iteration,
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        times.len(),
    );
    assert!(after.iteration > before.iteration + 2, "{before:?} {after:?}");
    assert_eq!(idle.left.load(Ordering::Relaxed), 0, "a peer was disconnected");
    // The run itself may grow by some MiB meanwhile, the more the longer the idle workers take to join.
    assert!(grown < ((many as u64 * 96) << 10) + (4 << 20), "{each} bytes");
    let open = files(run.pid());
    drop(idle);
    // A checkpoint may be being written.
    until("all have left", || files(run.pid()) + many <= open + 2).await;
    stop(run, operator).await;
}
