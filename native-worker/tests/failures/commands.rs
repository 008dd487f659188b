//! Messages about environments that fail, in every command, at a fixed and at a random step, in one slot or in all.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    faulty::{EPISODE, SLOT, STEP},
    runs::{AT_ONCE, Rig, assert_failed, run},
};
use crate::support::{
    self, Process, is_long,
    process::{Finished, Signal},
    until,
};

/// The kind of a failure, and a part of its message to the user.
const FAULTS: [(&str, &str); 6] = [
    ("error", "the environment failed: no fuel"),
    ("panic", "the environment failed: panicked: no brakes"),
    ("nan", "the observation "),
    ("infinite", "the reward "),
    ("outside", "is not in"),
    ("length", "the observation "),
];

fn env(fault: &str) -> &'static str {
    if fault == "length" { "FaultyPair-v0" } else { "Faulty-v0" }
}

/// Returns a step that differs from call to call. It is no episode's last one, whose observation may be out of bounds.
pub(crate) fn any_step() -> u32 {
    use std::hash::{BuildHasher as _, RandomState};

    let random = (RandomState::new().hash_one(STEP) % 54) as u32;
    let step = random / (EPISODE - 1) * EPISODE + random % (EPISODE - 1);
    println!("step {step}");
    step
}

pub(crate) async fn every_command_says_what_failed_and_where() {
    let cases = [(false, false), (true, true), (false, true), (true, false)];
    for (is_random, all) in cases.into_iter().take(if is_long() { 4 } else { 2 }) {
        for (fault, message) in FAULTS {
            let step = if is_random { any_step() } else { STEP };
            let config = json!({ "kind": fault, "step": step, "all": all });
            // The environment of several agents counts the steps of an episode.
            let episode = if fault == "length" { 0 } else { step / EPISODE };
            let slot = if all { "slot ".to_owned() } else { format!("slot {SLOT}, ") };
            let place = format!("episode {episode}, step {}: ", step % EPISODE);
            for workers in [0, 2] {
                let rig = Rig::new();
                let ended = rig.train(workers, &config, &["--env", env(fault)]).await;
                assert_failed(&ended, &[env(fault), &slot, &place, message], AT_ONCE);
                rig.check_ledger();
                let (workers, config) = (workers.to_string(), config.to_string());
                let sample = ["sample", "--env", env(fault), "--env-config", &config, "--num-workers", &workers];
                let ended = run(&[&sample[..], &["--num-envs", "4", "--env-steps", "4000"]].concat()).await;
                assert_failed(&ended, &[env(fault), &slot, &place, message], AT_ONCE);
            }
            let ended = evaluate(fault, &json!({ "kind": fault, "step": step, "all": true }), "20").await;
            assert_failed(&ended, &[message], AT_ONCE);
        }
    }
}

/// Lets one in 200 steps fail, in any slot, or one step in one slot once; the summary has the failures.
pub(crate) async fn transient_failures_leave_no_trace_in_samples() {
    let sample = async |config: Value| {
        let config = config.to_string();
        let args = ["sample", "--json", "--num-workers", "2", "--env", "Faulty-v0", "--env-config", &config];
        let args = [&args[..], &["--num-envs", "4", "--rollout-fragment-length", "16", "--env-steps", "640"]].concat();
        let (finished, _) = run(&args).await;
        assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
        support::json(&finished.stdout)
    };
    let calm = sample(json!({})).await;
    assert!(calm.get("failures").is_none() && calm["reproducible"] == true, "{calm}");
    let frequent = sample(json!({ "kind": "error", "every": 200, "once": "/" })).await;
    assert_eq!((&frequent["rollout_hash"], &frequent["reproducible"]), (&calm["rollout_hash"], &json!(true)));
    for fault in ["error", "panic", "nan", "abort"] {
        let rig = Rig::new();
        let once = rig.path("once");
        let found = sample(json!({ "kind": fault, "once": once })).await;
        assert_eq!((&found["rollout_hash"], &found["reproducible"]), (&calm["rollout_hash"], &json!(true)), "{fault}");
        assert!(once.exists(), "{fault} has not happened");
    }
    let opaque = sample(json!({ "opaque": true })).await;
    assert!(opaque["reproducible"] == false && opaque["not_reproducible"][0].is_string(), "{opaque}");
}

pub(crate) async fn ledger_of_sample_balances_after_failures() {
    let fails = json!({ "kind": "error" });
    for (config, code) in [(json!({ "kind": "error", "every": 200, "once": "/" }), 0), (fails, 1)] {
        for workers in ["0", "2"] {
            let (rig, config) = (Rig::new(), config.to_string());
            let run_dir = rig.path("run").display().to_string();
            let args = ["sample", "--json", "--run-dir", &run_dir, "--num-workers", workers, "--num-envs", "4"];
            let args = [&args[..], &["--env", "Faulty-v0", "--env-config", &config, "--env-steps", "4000"]].concat();
            let (finished, _) = run(&[&args[..], &["--rollout-fragment-length", "16"]].concat()).await;
            assert_eq!(finished.status.code(), Some(code), "{}", finished.stderr);
            rig.check_ledger();
            let failures = &rig.summary()["failures"];
            assert!(failures["count"].as_u64() > Some(1), "{failures}");
            // Slots that fail together are sampled again one by one, and one that then succeeds costs no lease.
            assert!(code == 0 || rig.ledger().expired.refused > 0, "{:?}", rig.ledger());
            if code == 0 {
                let printed = support::json(&finished.stdout);
                assert_eq!((&printed["failures"], &printed["reproducible"]), (failures, &json!(true)));
            }
        }
    }
}

/// Trains, and evaluates with an environment that fails from then on.
async fn evaluate(fault: &str, config: &Value, timeout: &str) -> (Finished, Duration) {
    let (rig, mut config) = (Rig::new(), config.clone());
    let armed = rig.path("armed");
    config["armed"] = json!(armed);
    let (finished, _) = rig.train(0, &config, &["--env", env(fault), "--max-env-steps", "64"]).await;
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    std::fs::write(armed, "").unwrap();
    let run_dir = rig.path("run").display().to_string();
    run(&["evaluate", "--checkpoint", &run_dir, "--timeout", timeout]).await
}

pub(crate) async fn evaluation_that_hangs_ends_after_its_timeout() {
    let ended = evaluate("hang", &json!({ "kind": "hang", "all": true }), "1").await;
    assert_failed(&ended, &["the evaluation was given up: nothing has moved for 1000 ms"], Duration::from_secs(1 + 5));
}

pub(crate) async fn environment_without_picture_is_reported_once() {
    let rig = Rig::new();
    let flags = ["--evaluation-interval", "1", "--evaluation-episodes", "1", "--evaluation-render"];
    let args = rig.args(0, &json!({}), &[&flags[..], &["--max-env-steps", "1000000"]].concat());
    let mut training = Process::start_program(std::env::current_exe().unwrap(), args, |_| {});
    training.line("the environment has no picture: leave evaluation.render out").await;
    let evaluations = || std::fs::read_to_string(rig.path("run/metrics.jsonl")).unwrap().matches("evaluation").count();
    let before = evaluations();
    until("further evaluations", || evaluations() > before + 1).await;
    training.signal(Signal::INT);
    let end = training.finish_with(3).await;
    assert_eq!(end.stderr.matches("no picture").count(), 1, "{}", end.stderr);
    assert!(!rig.path("run/gifs").exists());
}
