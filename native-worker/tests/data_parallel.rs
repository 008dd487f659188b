//! `rollmesh learn --data-parallel`: processes that learn together, and what happens to the others when one is gone.
#![cfg(target_os = "linux")]

mod support;

use std::{
    net::{Ipv4Addr, TcpListener},
    path::Path,
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use rollmesh::{NativeWorker as _, Registry, native};
use rollmesh_core::{
    ids::PolicyId,
    weights::Weights,
    worker::{RolloutConfig, RolloutWorker, RolloutWorkerBuilder},
};
use support::{
    Process, json,
    process::{Finished, Signal},
    until,
};

const TOKEN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// A port that nobody has, and that no connection gets by itself.
fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 100) as u16 * 100;
    loop {
        let port = 20_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// A rank of several, of which the first writes `curve.csv` and `state`.
fn rank(at: &Path, port: u16, rank: u32, world_size: u32, iterations: u64) -> Process {
    let file = |name: &str| at.join(name).display().to_string();
    let (address, rank, world_size) = (format!("127.0.0.1:{port}"), rank.to_string(), world_size.to_string());
    let (config, curve, state, iterations) =
        (file("half.json"), file("curve.csv"), file("state"), iterations.to_string());
    let args = ["learn", "--json", "--config", &config, "--iterations", &iterations, "--csv", &curve, "--save", &state];
    let ranks = ["--data-parallel", &address, "--rank", &rank, "--world-size", &world_size];
    Process::start_with(args.iter().chain(&ranks), |command| _ = command.env("ROLLMESH_TOKEN", TOKEN))
}

fn config(num_envs: u32) -> RolloutConfig {
    let text = format!(
        r#"{{"env": "CartPole-v1", "num_envs": {num_envs}, "rollout_fragment_length": 50, "train_batch_size": 200, "seed": 4,
            "policies": {{"default_policy": {{"policy": "ppo", "config": {{
                "model": {{"fcnet_hiddens": [16]}}, "lr": 0.001, "sgd_minibatch_size": 64}}}}}}}}"#
    );
    serde_json::from_str(&text).unwrap()
}

/// A directory with the settings of one process, and of a half.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, num_envs) in [("whole.json", 4), ("half.json", 2)] {
        let settings = serde_json::to_string(&config(num_envs)).unwrap();
        std::fs::write(directory.path().join(name), settings).unwrap();
    }
    directory
}

fn saved(state: &Path, num_envs: u32) -> Weights {
    let registry = native(Registry::builtin());
    let mut worker: RolloutWorker =
        RolloutWorkerBuilder::new(registry).config(config(num_envs)).native().build().unwrap();
    worker.restore(&std::fs::read(state).unwrap()).unwrap();
    worker.weights(None).unwrap()[&PolicyId::DEFAULT].clone()
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[tokio::test]
async fn two_ranks_learn_what_one_process_does_and_always_the_same() {
    let directory = directory();
    let mut hashes = Vec::new();
    for _ in 0..2 {
        let port = port();
        // The first one comes last.
        let other = rank(directory.path(), port, 1, 2, 3);
        let first = rank(directory.path(), port, 0, 2, 3).finish_with(0).await;
        let summaries = [json(&first.stdout), json(&other.finish_with(0).await.stdout)];
        for (rank, summary) in summaries.iter().enumerate() {
            assert_eq!((&summary["rank"], &summary["world_size"]), (&rank.into(), &2.into()));
            assert_eq!((&summary["iterations"], &summary["env_steps"]), (&3.into(), &600.into()));
            assert_eq!(summary["learner"], summaries[0]["learner"]);
            hashes.push(summary["weights_hash"].clone());
        }
        assert_eq!(lines(&directory.path().join("curve.csv")), 4, "one rank alone writes");
    }
    assert!(hashes[0]["default_policy"].is_string());
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");

    let file = |name: &str| directory.path().join(name).display().to_string();
    let (whole, alone) = (file("whole.json"), file("alone"));
    let args = ["learn", "--json", "--config", &whole, "--iterations", "3", "--save", &alone];
    let summary = json(&Process::start(args).finish_with(0).await.stdout);
    assert_eq!((&summary["env_steps"], &summary["rank"]), (&600.into(), &serde_json::Value::Null));
    let [together, alone] = [saved(&directory.path().join("state"), 2), saved(alone.as_ref(), 4)];
    for (one, other) in together.tensors().iter().zip(alone.tensors()) {
        let apart = one.values.iter().zip(&other.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-6, "{apart} in {}", one.name);
    }
}

/// So many ranks that have learned a little.
async fn running(at: &Path, world_size: u32) -> Vec<Process> {
    let port = port();
    let ranks = (0..world_size).map(|number| rank(at, port, number, world_size, u64::MAX)).collect();
    until("two iterations", || lines(&at.join("curve.csv")) > 2).await;
    ranks
}

/// The end of a rank that has lost another one, within five seconds.
async fn lost(process: Process, rank: u32, since: Instant) -> Finished {
    let end = process.finish_with(1).await;
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    assert!(end.stderr.contains(&format!("error: rank {rank} is lost: ")), "{}", end.stderr);
    end
}

#[tokio::test]
async fn a_killed_rank_ends_the_others() {
    for victim in 0..3 {
        let directory = directory();
        let mut ranks = running(directory.path(), 3).await;
        let killed = ranks.remove(victim);
        killed.signal(Signal::KILL);
        let since = Instant::now();
        for other in ranks {
            lost(other, victim as u32, since).await;
        }
        // What was learned is kept, where there is a first rank to keep it.
        assert_eq!(directory.path().join("state").exists(), victim != 0);
    }
}

#[tokio::test]
async fn a_stopped_rank_ends_the_others_and_itself_when_it_goes_on() {
    for victim in 0..2 {
        let directory = directory();
        let mut ranks = running(directory.path(), 2).await;
        let stopped = ranks.remove(victim);
        stopped.signal(Signal::STOP);
        let since = Instant::now();
        for other in ranks {
            let end = lost(other, victim as u32, since).await;
            assert!(end.stderr.contains("nothing has come from it for 3 s"), "{}", end.stderr);
        }
        stopped.signal(Signal::CONT);
        let end = stopped.finish_with(1).await;
        assert!(end.stderr.contains("error: rank "), "{}", end.stderr);
    }
}

#[tokio::test]
async fn an_interruption_of_one_ends_all_and_keeps_what_was_learned() {
    let directory = directory();
    let ranks = running(directory.path(), 2).await;
    ranks[1].signal(Signal::INT);
    let mut iterations = Vec::new();
    for rank in ranks {
        iterations.push(json(&rank.finish_with(3).await.stdout)["iterations"].clone());
    }
    assert_eq!(iterations, [(lines(&directory.path().join("curve.csv")) - 1).into(), iterations[0].clone()]);
    assert!(directory.path().join("state").exists());
}

#[tokio::test]
async fn a_rank_that_is_ended_while_it_waits_leaves_nothing() {
    let directory = directory();
    let (address, state) = (format!("127.0.0.1:{}", port()), directory.path().join("state"));
    let args = ["learn", "--save", state.to_str().unwrap(), "--data-parallel", &address];
    let ranks = ["--rank", "0", "--world-size", "2"];
    let mut waits = Process::start_with(args.iter().chain(&ranks), |command| _ = command.env("ROLLMESH_TOKEN", TOKEN));
    waits.line(&format!("rank 0 of 2 waits at {address} until all are there")).await;
    waits.signal(Signal::TERM);
    assert_eq!(waits.finish().await.status.code(), None, "ended by the signal");
    let mut left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["half.json", "whole.json"]);
}

#[tokio::test]
async fn wrong_usage_is_said() {
    let all = ["--data-parallel", "127.0.0.1:1", "--rank", "0", "--world-size", "2"];
    let open = ["--data-parallel", "0.0.0.0:1", "--rank", "0", "--world-size", "2"];
    let beyond = ["--data-parallel", "127.0.0.1:1", "--rank", "2", "--world-size", "2"];
    let net = [&all[..], &["--policy", "net"]].concat();
    let cases: [(&[&str], Option<&str>, &str); 7] = [
        (&all[..4], Some(TOKEN), "--world-size <N>"),
        (&["--rank", "0"], Some(TOKEN), "--data-parallel <HOST:PORT>"),
        (&all, None, "ROLLMESH_TOKEN is not set; all ranks need the same 64 hexadecimal digits"),
        (&all, Some("x"), "ROLLMESH_TOKEN: a token has 64 hexadecimal digits"),
        (&open, Some(TOKEN), "0.0.0.0:1 can be reached from other machines, and ranks do not speak TLS"),
        (&beyond, Some(TOKEN), "there is no rank 2 of 2: they count from 0"),
        (&net, Some(TOKEN), "policy 'default_policy': this policy cannot learn together with other ranks"),
    ];
    for (args, token, message) in cases {
        let set_up = |command: &mut tokio::process::Command| {
            if let Some(token) = token {
                command.env("ROLLMESH_TOKEN", token);
            }
        };
        let end = Process::start_with(["learn"].iter().chain(args), set_up).finish_with(2).await;
        assert!(end.stderr.contains(message), "{args:?}: {}", end.stderr);
    }
}
