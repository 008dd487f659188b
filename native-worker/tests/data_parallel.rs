//! `rollmesh train --data-parallel`: processes that learn together, and the consequences for the others when one exits.

use std::{
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

use crate::support::{
    Process, is_long, json,
    process::{Finished, Signal},
    until,
};
use rollmesh::checkpoint::PolicyCheckpoint;
use rollmesh_core::weights::Weights;

const TOKEN: &str = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

/// Returns a port that is unused, and that no connection gets by itself.
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

/// Starts a rank of several, of which the first writes the directory `run`.
fn rank(at: &Path, port: u16, rank: u32, world_size: u32, iterations: u64) -> Process {
    let file = |name: &str| at.join(name).display().to_string();
    let (config, run, env_steps) =
        (file("half.json"), file("run"), iterations.saturating_mul(200).min(1 << 40).to_string());
    let begin = ["--config", &config, "--max-env-steps", &env_steps, "--run-dir", &run, "--checkpoint-interval", "3"];
    rank_with(port, rank, world_size, &begin)
}

/// Starts a rank of several that resume the run of the first one.
fn resumed(at: &Path, port: u16, rank: u32, world_size: u32) -> Process {
    rank_with(port, rank, world_size, &["--resume", &at.join("run").display().to_string()])
}

fn rank_with(port: u16, rank: u32, world_size: u32, args: &[&str]) -> Process {
    let (address, rank, world_size) = (format!("127.0.0.1:{port}"), rank.to_string(), world_size.to_string());
    let ranks = ["--data-parallel", &address, "--rank", &rank, "--world-size", &world_size];
    let args = ["train", "--json", "--no-dashboard"].iter().chain(&ranks).chain(args);
    Process::start_with(args, |command| _ = command.env("ROLLMESH_TOKEN", TOKEN))
}

/// Returns a number that differs from call to call.
fn any() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};

    RandomState::new().hash_one(TOKEN)
}

fn config(num_envs: u32) -> String {
    format!(
        r#"{{"env": "CartPole-v1", "num_workers": 0, "num_envs": {num_envs}, "rollout_fragment_length": 50, "train_batch_size": 200, "seed": 4,
            "policies": {{"default_policy": {{"policy": "ppo", "config": {{
                "model": {{"fcnet_hiddens": [16]}}, "lr": 0.001, "sgd_minibatch_size": 64}}}}}}}}"#
    )
}

/// Returns a directory with the settings of one process, and of a half.
fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, num_envs) in [("whole.json", 4), ("half.json", 2)] {
        std::fs::write(directory.path().join(name), config(num_envs)).unwrap();
    }
    directory
}

fn learned(run: &Path) -> Weights {
    PolicyCheckpoint::load(run).unwrap().weights
}

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

#[tokio::test]
async fn two_ranks_learn_the_weights_of_one_process_deterministically() {
    let directory = directory();
    let (mut hashes, mut last) = (Vec::new(), PathBuf::new());
    for _ in 0..2 {
        let port = port();
        // The first one comes last.
        let other = rank(directory.path(), port, 1, 2, 3);
        let first = rank(directory.path(), port, 0, 2, 3).finish_with(0).await;
        for summary in [json(&first.stdout), json(&other.finish_with(0).await.stdout)] {
            assert_eq!((&summary["iterations"], &summary["env_steps"]), (&3.into(), &600.into()));
            hashes.push(summary["weights_hash"].clone());
        }
        assert_eq!(lines(&directory.path().join("run/metrics.jsonl")), 3, "one rank alone writes");
        last = directory.path().join(format!("run-{port}"));
        std::fs::rename(directory.path().join("run"), &last).unwrap();
    }
    assert!(hashes[0].is_string());
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");

    let file = |name: &str| directory.path().join(name).display().to_string();
    let (whole, alone) = (file("whole.json"), file("alone"));
    let port = port().to_string();
    // One rank is alone, and samples by itself as well.
    let args = ["train", "--json", "--no-dashboard", "--config", &whole, "--max-env-steps", "600", "--run-dir", &alone];
    let ranks = ["--data-parallel", &format!("127.0.0.1:{port}"), "--rank", "0", "--world-size", "1"];
    let alone_there =
        Process::start_with(args.iter().chain(&ranks), |command| _ = command.env("ROLLMESH_TOKEN", TOKEN));
    assert_eq!(json(&alone_there.finish_with(0).await.stdout)["env_steps"], 600);
    let [together, alone] = [learned(&last), learned(alone.as_ref())];
    for (one, other) in together.tensors().iter().zip(alone.tensors()) {
        let apart = one.values.iter().zip(&other.values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(apart < 1e-6, "{apart} in {}", one.name);
    }
}

/// Starts the given number of ranks, and waits until they have learned in two iterations.
async fn running(at: &Path, world_size: u32) -> Vec<Process> {
    let port = port();
    let ranks = (0..world_size).map(|number| rank(at, port, number, world_size, u64::MAX)).collect();
    until("two iterations", || lines(&at.join("run/metrics.jsonl")) > 1).await;
    ranks
}

/// Waits for the end of a rank that has lost another one, within five seconds.
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
        // The directory keeps the progress, if the first rank is still running to save it.
        assert_eq!(directory.path().join("run/policy.json").exists(), victim != 0);
    }
}

#[tokio::test]
async fn suspended_rank_ends_the_others_and_itself_when_resumed() {
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
    assert_eq!(iterations, [lines(&directory.path().join("run/metrics.jsonl")).into(), iterations[0].clone()]);
    assert!(directory.path().join("run/policy.json").exists());
}

/// Kills a rank, which ends the others; all of them resume from the newest checkpoint, which holds the state of each.
#[tokio::test]
async fn ranks_resume_bit_identically_after_any_is_killed() {
    let (kills, iterations) = if is_long() { (20, 200) } else { (2, 40) };
    for filter in ["NoFilter", "MeanStdFilter"] {
        let [calm, killed] = [directory(), directory()];
        for directory in [&calm, &killed] {
            let config =
                config(2).replace("\"seed\": 4", &format!("\"seed\": 4, \"observation_filter\": \"{filter}\""));
            std::fs::write(directory.path().join("half.json"), config).unwrap();
        }
        let port_of_calm = port();
        let other = rank(calm.path(), port_of_calm, 1, 2, iterations);
        rank(calm.path(), port_of_calm, 0, 2, iterations).finish_with(0).await;
        other.finish_with(0).await;

        let at = killed.path();
        let start = || {
            let (port, has_begun) = (port(), at.join("run/config.toml").exists());
            let number =
                |number| if has_begun { resumed(at, port, number, 2) } else { rank(at, port, number, 2, iterations) };
            [number(0), number(1)]
        };
        for kill in 1..=kills {
            let [first, second] = start();
            // In the first half: the victim must not finish before it is killed.
            let target = (kill * iterations / (2 * (kills + 1))) as usize;
            until("some iterations", || lines(&at.join("run/metrics.jsonl")) >= target).await;
            // Anywhere within what follows.
            tokio::time::sleep(Duration::from_micros(any() % 20_000)).await;
            let (victim, survivor) = if kill % 2 == 0 { (first, second) } else { (second, first) };
            victim.signal(Signal::KILL);
            assert_eq!(victim.finish().await.status.code(), None);
            survivor.finish_with(1).await;
        }
        for rank in start() {
            rank.finish_with(0).await;
        }
        assert_eq!(learned(&at.join("run")), learned(&calm.path().join("run")), "{filter}");
        assert_eq!(lines(&at.join("run/metrics.jsonl")) as u64, iterations);
    }
}

#[tokio::test]
async fn ranks_that_do_not_resume_the_same_run_are_refused() {
    let directory = directory();
    let at = directory.path();
    let begun = port();
    let other = rank(at, begun, 1, 2, 3);
    rank(at, begun, 0, 2, 3).finish_with(0).await;
    other.finish_with(0).await;
    let further = ["--resume", &at.join("run").display().to_string(), "--max-env-steps", "1000"];
    let fresh = port();
    let other = rank(at, fresh, 1, 2, 5);
    let end = rank_with(fresh, 0, 2, &further).finish_with(1).await;
    let text = "rank 1 begins after 0 env steps, rank 0 after 600: resume all ranks from the same run directory";
    assert!(end.stderr.contains(text), "{}", end.stderr);
    other.finish_with(1).await;
    for now in ["3 ranks", "one process that learns alone"] {
        let resumed = match now {
            "3 ranks" => rank_with(port(), 0, 3, &further),
            _ => Process::start(["train", "--no-dashboard"].iter().chain(&further)),
        };
        let end = resumed.finish_with(1).await;
        let text = format!("the run was saved by 2 ranks and would be resumed by {now}: ");
        assert!(end.stderr.contains(&text), "{}", end.stderr);
    }
}

#[tokio::test]
async fn waiting_rank_ends_immediately() {
    let directory = directory();
    let (address, run) = (format!("127.0.0.1:{}", port()), directory.path().join("run"));
    let args =
        ["train", "--workers", "0", "--no-dashboard", "--run-dir", run.to_str().unwrap(), "--data-parallel", &address];
    let ranks = ["--rank", "0", "--world-size", "2"];
    let mut waits = Process::start_with(args.iter().chain(&ranks), |command| _ = command.env("ROLLMESH_TOKEN", TOKEN));
    waits.line(&format!("rank 0 of 2 waits at {address} until all are there")).await;
    let since = Instant::now();
    waits.signal(Signal::INT);
    waits.finish_with(3).await;
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
}

#[tokio::test]
async fn wrong_usage_is_said() {
    let all = ["--data-parallel", "127.0.0.1:1", "--rank", "0", "--world-size", "2"];
    let portless = ["--data-parallel", "127.0.0.1", "--rank", "0", "--world-size", "2"];
    let beyond = ["--data-parallel", "127.0.0.1:1", "--rank", "2", "--world-size", "2"];
    let ends = [&all[..], &["--stop-return", "9"]].concat();
    let leases = [&all[..], &["--workers", "2"]].concat();
    let cases: [(&[&str], Option<&str>, &str); 8] = [
        (&all[..4], Some(TOKEN), "--world-size <N>"),
        (&["--rank", "0"], Some(TOKEN), "--data-parallel <HOST:PORT>"),
        (&all, None, "ROLLMESH_TOKEN is not set; all ranks need the same 64 hexadecimal digits"),
        (&all, Some("x"), "ROLLMESH_TOKEN: a token has 64 hexadecimal digits"),
        (&portless, Some(TOKEN), "'127.0.0.1' is no address for ranks"),
        (&beyond, Some(TOKEN), "there is no rank 2 of 2: they count from 0"),
        (&ends, Some(TOKEN), "stop: ranks must end together"),
        (&leases, Some(TOKEN), "num_workers: every rank samples by itself"),
    ];
    for (args, token, message) in cases {
        let set_up = |command: &mut tokio::process::Command| {
            if let Some(token) = token {
                command.env("ROLLMESH_TOKEN", token);
            }
        };
        let usual = ["train", "--env", "CartPole-v1", "--no-dashboard"];
        let usual = usual.iter().chain(if args.contains(&"--workers") { &[][..] } else { &["--workers", "0"] });
        let end = Process::start_with(usual.chain(args), set_up).finish_with(2).await;
        assert!(end.stderr.contains(message), "{args:?}: {}", end.stderr);
    }
}
