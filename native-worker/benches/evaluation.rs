//! The cost of evaluation alongside a run: the same run with and without, alternately, and the ratio of their speeds. Fails where that
//! is more than 5 %.
//!
//! `cargo bench -p rollmesh --bench evaluation [-- PAIRS]`; figures are in `docs/performance.md`.

use std::{
    fs,
    path::Path,
    process::{Command, ExitCode},
};

use rollmesh::train::{EvaluationConfig, RunConfig};
use serde_json::Value;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Env steps of a run: some hundred iterations.
const ENV_STEPS: u64 = 400_000;
/// As in docs/performance.md.
const INTERVAL: u64 = 5;
/// The least median ratio.
const PROMISE: f64 = 0.95;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // As a test it only checks that it runs.
    let is_test = !arguments.iter().any(|argument| argument == "--bench");
    let pairs = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(7);
    let (pairs, env_steps, interval) = if is_test { (1, 8_192, 1) } else { (pairs, ENV_STEPS, INTERVAL) };
    let (mut ratios, mut evaluations) = (Vec::new(), 0);
    for pair in 0..pairs {
        // The second run may find warm caches, or a hot processor.
        let mut speeds = [0.0; 2];
        for with in [pair % 2, 1 - pair % 2] {
            let (speed, done) = run(if with == 1 { interval } else { 0 }, env_steps);
            speeds[with] = speed;
            evaluations += done;
        }
        let [without, with] = speeds;
        println!("without {without:.0} steps/s, with {with:.0} steps/s, ratio {:.3}", with / without);
        ratios.push(with / without);
    }
    ratios.sort_by(f64::total_cmp);
    let [Some(low), Some(median), Some(high)] =
        [0, ratios.len() / 2, ratios.len().saturating_sub(1)].map(|at| ratios.get(at))
    else {
        println!("no pairs, no ratio");
        return ExitCode::FAILURE;
    };
    if evaluations == 0 {
        println!("no evaluation was done, so there is nothing to compare");
        return ExitCode::FAILURE;
    }
    let each = evaluations as f64 / ratios.len() as f64;
    println!("evaluated every {interval} iterations, {each:.1} evaluations of 20 episodes a run");
    println!(
        "median ratio {median:.3} ({low:.3} to {high:.3}) of {} pairs: costs {:.1} %",
        ratios.len(),
        100.0 * (1.0 - median)
    );
    if *median < PROMISE && !is_test {
        println!("that is more than the 5 % that are promised");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Returns the env steps per second of a run, and the number of its evaluations.
fn run(interval: u64, env_steps: u64) -> (f64, usize) {
    let dir = tempfile::tempdir().expect("a directory");
    let run_dir = dir.path().join("run");
    let EvaluationConfig { episodes, .. } = EvaluationConfig::default();
    train(&run_dir, env_steps, interval, episodes);
    let read = |name: &str| fs::read_to_string(run_dir.join(name)).expect(name);
    let summary: Value = serde_json::from_str(&read("summary.json")).expect("a summary");
    let speed = summary["env_steps"].as_f64().expect("steps") / summary["wall_s"].as_f64().expect("seconds");
    (speed, read("metrics.jsonl").matches("{\"evaluation\":").count())
}

fn train(run_dir: &Path, env_steps: u64, interval: u64, episodes: u32) {
    let RunConfig { num_workers, .. } = RunConfig::default();
    let mut rollmesh = Command::new(env!("CARGO_BIN_EXE_rollmesh"));
    rollmesh
        .args(["train", "--env", "CartPole-v1", "--seed", "1", "--json", "--no-dashboard", "--run-dir"])
        .arg(run_dir)
        .args(["--workers", &num_workers.to_string(), "--max-env-steps", &env_steps.to_string()])
        // Otherwise the run ends when it is solved.
        .args(["--stop-return", "1000000"]);
    if interval > 0 {
        rollmesh.args(["--evaluation-interval", &interval.to_string(), "--evaluation-episodes", &episodes.to_string()]);
    }
    let output = rollmesh.output().expect("a run");
    // It ends without reaching that return.
    assert!(matches!(output.status.code(), Some(0 | 3)), "{}", String::from_utf8_lossy(&output.stderr));
}
