//! Hostile frames while a run trains, before and after a token was shown.
//!
//! 20,000 in the suite; a million with `ROLLMESH_LONG=1`.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rollmesh_core::protocol::{
    Message, Role, Token, TokenAction,
    message::{ManageTokens, NewToken},
};
use tokio::time::{interval, sleep};

use super::{
    TURN,
    frames::{Dice, mutated, proper},
    fresh_address, memory,
    support::{
        Process,
        client::{Client, Frame, hello},
        is_long, soon,
    },
};

/// Connections that speak at once.
const ATTACKERS: usize = 8;
/// Frames that are sent before anybody looks whether the hub still listens.
const BURST: usize = 24;

/// Env steps that the run has learned from, as an operator is told.
async fn env_steps(operator: &mut Client) -> u64 {
    // What was said before is old: the answer to this comes after it, with the state of the run in front.
    let mut steps = 0;
    operator.say(&Message::ManageTokens(ManageTokens { request: 5, action: 0, ..ManageTokens::default() })).await;
    operator
        .wait_for(|message| match message {
            Message::RunStatus(status) => {
                steps = status.env_steps;
                None
            }
            Message::TokenRows(_) => Some(()),
            _ => None,
        })
        .await;
    steps
}

/// Env steps per second over some seconds.
async fn speed(operator: &mut Client, seconds: u64) -> f64 {
    let mut last = 0;
    while last == 0 {
        last = env_steps(operator).await;
    }
    let (first, began) = (last, Instant::now());
    while began.elapsed() < Duration::from_secs(seconds) {
        // Taken as it comes, so that nothing waits at the hub.
        if let Ok(Some(Message::RunStatus(status))) =
            tokio::time::timeout(Duration::from_millis(200), operator.hear()).await
        {
            last = status.env_steps;
        }
    }
    (last - first) as f64 / began.elapsed().as_secs_f64()
}

/// One connection after the other, until enough frames were sent.
async fn attack(number: usize, address: SocketAddr, tokens: Arc<[(Role, Token)]>, sent: Arc<AtomicU64>, frames: u64) {
    let mut dice = Dice::new(number as u64 + 1);
    let pools: Vec<_> = tokens.iter().map(|(role, _)| proper(*role)).collect();
    // Slow enough to leave the processors to the run: the attack is not about them.
    let mut pace = interval(Duration::from_millis(if is_long() { 40 } else { 30 }));
    for round in 0usize.. {
        if sent.load(Ordering::Relaxed) >= frames {
            return;
        }
        pace.tick().await;
        let place = dice.roll(tokens.len());
        // On a busy machine the handshake's deadline may come first.
        let Ok(mut client) = Client::try_connect_from(fresh_address(), address).await else { continue };
        // Workers take leases along when they are sent away, so there are few.
        let (role, token) = tokens[place];
        let is_admitted = round % 3 > 0 && (role != Role::Worker || round % 60 == 1);
        if is_admitted {
            let introduction = Message::Hello(hello(role, token)).encode();
            let _ = client.send(Frame::Binary(introduction.into())).await;
            // Its welcome, or why not.
            client.hear_frame().await;
        }
        for _ in 0..BURST {
            let frame = mutated(&pools[place], &mut dice);
            if client.send(Frame::Binary(frame.into())).await.is_err() {
                break;
            }
            sent.fetch_add(1, Ordering::Relaxed);
        }
        // Hears what the hub has to say to that, and its end.
        let end = async { while client.hear_frame().await.is_some() {} };
        let _ = tokio::time::timeout(Duration::from_millis(300), end).await;
    }
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
    let seconds = if is_long() { 20 } else { 4 };
    let before = speed(&mut operator, seconds).await;
    let rss_before = memory(run.pid());

    let (tokens, sent): (Arc<[_]>, _) = (tokens.into(), Arc::new(AtomicU64::new(0)));
    let began = Instant::now();
    let attackers: Vec<_> = (0..ATTACKERS)
        .map(|number| tokio::spawn(attack(number, address, tokens.clone(), sent.clone(), frames)))
        .collect();
    let (mut during, mut rss_most) = (Vec::new(), rss_before);
    while attackers.iter().any(|attacker| !attacker.is_finished()) {
        during.push(speed(&mut operator, 2).await);
        rss_most = rss_most.max(memory(run.pid()));
    }
    for attacker in attackers {
        soon("the end of the attack", attacker).await.expect("nothing but refusals");
    }
    let took = began.elapsed();
    let during = during.iter().sum::<f64>() / during.len() as f64;
    // The system's buffers are empty again.
    sleep(Duration::from_millis(100)).await;
    let after = speed(&mut operator, seconds).await;
    let growth = rss_most.saturating_sub(rss_before) >> 10;
    let calm = before.min(after).max(1.0);
    println!(
        "{} hostile frames in {:.0} s: memory grew by {growth} KiB; {before:.0} env steps per second before, {during:.0} \
         meanwhile ({:.0} %), {after:.0} after",
        sent.load(Ordering::Relaxed),
        took.as_secs_f64(),
        100.0 * during / calm,
    );
    assert!(growth < 64 << 10, "{growth} KiB");
    // Machines have other things to do; the long form is for figures.
    assert!(during > if is_long() { 0.8 } else { 0.2 } * calm, "{before} {during} {after}");
    operator.ask(|request| Message::Stop(rollmesh_core::protocol::message::Request { request })).await;
    let finished = run.finish_with(3).await;
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
}
