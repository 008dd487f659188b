//! `rollmesh train` learns: presets, defaults and the traffic grid's file reach a mean return of the last 100 episodes
//! within a number of env steps.
//!
//! The suite runs the first goal with seed 0; `ROLLMESH_LONG=1` runs all goals with the seeds 0, 1 and 2, in release
//! mode some minutes, and prints env steps and seconds of each.
#![cfg(target_os = "linux")]

mod support;

use support::{Process, is_long, json};

/// Arguments of `rollmesh train`, mean return, and env steps within which it is reached.
const GOALS: [(&[&str], &str, &str); 5] = [
    (&["--env", "FrozenLake-v1", "--set", "env_config.is_slippery=false"], "0.95", "100000"),
    (&["--env", "Pendulum-v1"], "-250", "500000"),
    (&["--env", "Acrobot-v1"], "-100", "500000"),
    (&["--env", "StatelessCartPole-v1"], "400", "500000"),
    // More than hand-written drivers and lights: 25 cars of 2.3 and 9 lights of 0.2 make 59.
    (&["--config", TRAFFIC_GRID, "--num-slots", "8"], "62", "96000"),
];
const TRAFFIC_GRID: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/traffic_grid/traffic_grid.toml");

#[tokio::test]
async fn runs_with_presets_reach_their_goals() {
    let (goals, seeds) = if is_long() { (GOALS.len(), 3) } else { (1, 1) };
    for (args, goal, env_steps) in &GOALS[..goals] {
        for seed in (0..seeds).map(|seed| seed.to_string()) {
            let directory = tempfile::tempdir().unwrap();
            let run_dir = directory.path().join("run").display().to_string();
            let usual = ["train", "--json", "--no-dashboard", "--workers", "2", "--run-dir", &run_dir];
            let limits = ["--seed", &seed, "--stop-return", goal, "--max-env-steps", env_steps];
            // A run that misses its goal ends with 3.
            let end = Process::start(usual.iter().chain(&limits).chain(*args)).finish_with(0).await;
            let summary = json(&end.stdout);
            let [mean, steps, seconds] = ["episode_return_mean", "env_steps", "wall_s"].map(|name| &summary[name]);
            eprintln!("{args:?}, seed {seed}: {mean} after {steps} env steps and {seconds} s");
        }
    }
}
