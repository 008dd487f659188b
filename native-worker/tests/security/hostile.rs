//! Hostile frames while a run trains, before and after a token was shown.
//!
//! 20,000 in the suite; a million with `ROLLMESH_LONG=1`. Goodput is env steps per second while the attack continues, divided
//! by those of the pauses in it: calm and attack take turns, so that both see the same machine. Attackers share its
//! processors with the run. Their priority is lower, so that the measurement contains their cost to the hub rather than
//! that of their own work; the processor time of both is printed. They send as much as they can, in at most 200
//! connections of 24 frames per second, each from another address: one address alone would soon have to wait.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rollmesh_core::protocol::{
    Message, Role, Token, TokenAction,
    message::{ManageTokens, NewToken},
};
use tokio::{sync::watch, time::interval};

use super::{
    TURN,
    frames::{Dice, mutated, proper},
    fresh_address, memory, peak, reset_peak,
};
use crate::support::{
    Process,
    client::{Client, Frame, hello},
    is_long, soon, until,
};

/// Connections that send at the same time.
const ATTACKERS: usize = 8;
/// Frames that are sent before the test checks whether the hub still listens.
const BURST: usize = 24;

/// Env steps, and the time that they took.
#[derive(Default)]
pub(crate) struct Throughput {
    env_steps: u64,
    seconds: f64,
}

impl Throughput {
    /// Measures for some seconds, from one update to the last one, so that nothing waits at the hub.
    pub(crate) async fn watch(&mut self, operator: &mut Client, seconds: f64) {
        // Earlier messages are outdated: the answer to this request comes after them.
        let wish = ManageTokens { request: 5, ..ManageTokens::default() };
        operator.say(&Message::ManageTokens(wish)).await;
        let is_answer = |message: &Message| matches!(message, Message::TokenRows(rows) if rows.request == 5);
        operator.wait_for(|message| is_answer(message).then_some(())).await;
        let began = update(operator).await;
        let mut last = began;
        while began.0.elapsed().as_secs_f64() < seconds {
            last = update(operator).await;
        }
        self.env_steps += last.1 - began.1;
        self.seconds += last.0.duration_since(began.0).as_secs_f64();
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.env_steps as f64 / self.seconds.max(1e-9)
    }
}

/// Waits for an update; returns its time, and the env steps that the run has learned from then.
async fn update(operator: &mut Client) -> (Instant, u64) {
    let steps = operator.wait_for(|message| match message {
        Message::RunStatus(status) if status.env_steps > 0 => Some(status.env_steps),
        _ => None,
    });
    let steps = steps.await;
    (Instant::now(), steps)
}

/// The state that attackers share.
struct Attack {
    address: SocketAddr,
    tokens: Vec<(Role, Token)>,
    sent: AtomicU64,
    connections: AtomicU64,
    /// Attackers that do not pause.
    busy: AtomicUsize,
}

/// Opens one connection after the other, while the attack lasts, until no more is wanted.
async fn attack(number: usize, attack: Arc<Attack>, mut goes_on: watch::Receiver<bool>) {
    let mut dice = Dice::new(number as u64 + 1);
    let pools: Vec<_> = attack.tokens.iter().map(|(role, _)| proper(*role)).collect();
    let mut connection_interval = interval(Duration::from_millis(40));
    for round in 0usize.. {
        if !*goes_on.borrow_and_update() {
            attack.busy.fetch_sub(1, Ordering::SeqCst);
            if goes_on.wait_for(|goes_on| *goes_on).await.is_err() {
                return;
            }
            attack.busy.fetch_add(1, Ordering::SeqCst);
        }
        connection_interval.tick().await;
        let place = dice.roll(attack.tokens.len());
        // A peer that connects after many recent failures has to wait, maybe for too long.
        let Ok(mut client) = Client::try_connect_from(fresh_address(), attack.address).await else { continue };
        attack.connections.fetch_add(1, Ordering::Relaxed);
        // Workers lose leases when they are disconnected, so there are few.
        let (role, token) = attack.tokens[place];
        let is_admitted = round % 3 > 0 && (role != Role::Worker || round % 60 == 1);
        if is_admitted {
            let introduction = Message::Hello(hello(role, token)).encode();
            let _ = client.send(Frame::Binary(introduction.into())).await;
            // Its welcome, or the refusal.
            client.receive_frame().await;
        }
        for _ in 0..BURST {
            let frame = mutated(&pools[place], &mut dice);
            if client.send(Frame::Binary(frame.into())).await.is_err() {
                break;
            }
            attack.sent.fetch_add(1, Ordering::Relaxed);
        }
        // Reads the hub's answers until it disconnects.
        let end = async { while client.receive_frame().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_millis(300), end).await;
    }
}

/// Returns a runtime whose threads have a low priority.
fn modest_threads() -> tokio::runtime::Runtime {
    let modest = || rustix::process::setpriority_process(None, 5).expect("every process may lower its priority");
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("attackers")
        .on_thread_start(modest)
        .enable_all()
        .build()
        .expect("threads")
}

/// Returns the seconds of processor time that the threads of a process with this name have taken.
fn processor_seconds(pid: u32, name: &str) -> f64 {
    let mut ticks = 0;
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten() {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let Some((before, after)) = stat.rsplit_once(')') else { continue };
        if before.ends_with(&format!("({name}")) {
            ticks += after.split_whitespace().skip(11).take(2).flat_map(str::parse::<u64>).sum::<u64>();
        }
    }
    // The kernel reports hundredths of a second here, whatever its own unit.
    ticks as f64 / 100.0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_frames_do_not_disturb_a_run() {
    let _turn = TURN.write().await;
    let frames = if is_long() { 1_000_000 } else { 20_000 };
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run").display().to_string();
    let args = ["train", "--workers", "1", "--num-envs-per-worker", "8", "--max-env-steps", "1000000000"];
    let mut run = Process::start(args.into_iter().chain(["--run-dir", &run_dir, "--hidden", "16,16"]));
    let invitation = run.invitation().await;
    let address: SocketAddr = invitation.address.parse().unwrap();
    let operator_token = Token::from_hex(&invitation.operator_token).unwrap();
    let mut operator = Client::join_from(fresh_address(), address, Role::Operator, operator_token).await;
    let mut tokens = vec![(Role::Operator, operator_token)];
    for role in [Role::Viewer, Role::Worker, Role::Client] {
        let (action, role_number) = (TokenAction::Create.to_wire(), role.to_wire());
        let wish = ManageTokens { request: 4, action, role: role_number, ..ManageTokens::default() };
        operator.say(&Message::ManageTokens(wish)).await;
        let token = operator.wait_for(|message| match message {
            Message::NewToken(NewToken { request: 4, token, .. }) => Some(*token),
            _ => None,
        });
        tokens.push((role, token.await));
    }
    let (calm_seconds, attack_seconds) = if is_long() { (5.0, 20.0) } else { (2.0, 3.0) };
    let (mut calm, mut attacked) = (Throughput::default(), Throughput::default());
    calm.watch(&mut operator, 1.0).await;
    calm = Throughput::default();
    let (began, memory_before, listener_before) =
        (Instant::now(), memory(run.pid()), processor_seconds(run.pid(), "listener"));
    reset_peak(run.pid());
    let shared = Arc::new(Attack {
        address,
        tokens,
        sent: AtomicU64::new(0),
        connections: AtomicU64::new(0),
        busy: AtomicUsize::new(ATTACKERS),
    });
    let threads = modest_threads();
    let (signal, goes_on) = watch::channel(false);
    let attackers: Vec<_> =
        (0..ATTACKERS).map(|number| threads.spawn(attack(number, shared.clone(), goes_on.clone()))).collect();
    while shared.sent.load(Ordering::Relaxed) < frames {
        calm.watch(&mut operator, calm_seconds).await;
        signal.send_replace(true);
        attacked.watch(&mut operator, attack_seconds).await;
        eprintln!(
            "{} of {frames} frames after {:.0} s, {:.1} % of the calm throughput",
            shared.sent.load(Ordering::Relaxed),
            began.elapsed().as_secs_f64(),
            100.0 * attacked.per_second() / calm.per_second(),
        );
        signal.send_replace(false);
        until("the attackers rest", || shared.busy.load(Ordering::SeqCst) == 0).await;
    }
    calm.watch(&mut operator, calm_seconds).await;
    drop(signal);
    for attacker in attackers {
        soon("the end of the attack", attacker).await.expect("nothing but refusals");
    }
    let attackers_took = processor_seconds(std::process::id(), "attackers");
    threads.shutdown_background();
    let growth = peak(run.pid()).saturating_sub(memory_before) >> 10;
    let goodput = attacked.per_second() / calm.per_second();
    println!(
        "{} hostile frames in {} connections, {:.0} s of {:.0} s under attack: memory grew by {growth} KiB; {:.0} env steps \
         per second while calm, {:.0} under attack: goodput {:.1} %; the listener took {:.1} s of a processor, \
         the attackers {attackers_took:.1} s",
        shared.sent.load(Ordering::Relaxed),
        shared.connections.load(Ordering::Relaxed),
        attacked.seconds,
        began.elapsed().as_secs_f64(),
        calm.per_second(),
        attacked.per_second(),
        100.0 * goodput,
        processor_seconds(run.pid(), "listener") - listener_before,
    );
    assert!(growth < 64 << 10, "{growth} KiB");
    // Machines have other things to do; the long form is for figures, and the short one sees a run that is held up.
    assert!(goodput > if is_long() { 0.8 } else { 0.2 }, "{goodput}");
    operator.ask(|request| Message::Stop(rollmesh_core::protocol::message::Request { request })).await;
    let finished = run.finish_with(3).await;
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
}
