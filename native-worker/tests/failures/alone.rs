//! Runs without leases: `sample` without workers, and `train` with a worker of its own.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    commands::any_step,
    faulty::{EPISODE, SLOT, STEP},
    runs::{AT_ONCE, Rig, assert_failed, run},
};
use crate::support::{self, process::Finished};

type Ended = (Finished, Duration);

/// Trains with a run's own worker: a hub cannot recompute episodes with `device_rows` to record them.
async fn train(rig: &Rig, config: &Value, more: &[&str]) -> Ended {
    let recorded = format!("monitor_path={}", rig.path("episodes").display());
    rig.train(0, config, &[&["--set", "device_rows=true", "--set", &recorded], more].concat()).await
}

/// The way in which a worker samples.
#[derive(Clone, Copy, Debug)]
enum How {
    /// All environments are lanes of one.
    Lanes,
    /// Each environment by itself.
    Recorded,
    /// On a thread of its own.
    Ahead,
}

/// Samples in the program's process.
async fn sample(rig: &Rig, how: How, config: &Value, more: &[&str]) -> Ended {
    let (config, episodes) = (config.to_string(), rig.path("samples").display().to_string());
    let args = ["sample", "--json", "--env", "Faulty-v0", "--env-config", &config, "--num-envs", "4"];
    let args = [&args[..], &["--rollout-fragment-length", "16", "--env-steps", "640"], more].concat();
    let how: &[&str] = match how {
        How::Lanes => &[],
        How::Recorded => &["--monitor-path", &episodes],
        How::Ahead => &["--set", "sample_async=true"],
    };
    run(&[&args[..], how].concat()).await
}

fn succeeded((finished, _): Ended) -> Value {
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    support::json(&finished.stdout)
}

/// Returns the text by which messages name a step of the slot.
fn place(step: u32) -> String {
    format!("Faulty-v0, slot {SLOT}, episode {}, step {}: ", step / EPISODE, step % EPISODE)
}

fn assert_one_failure(failures: &Value) {
    assert_eq!(failures["count"], 1, "{failures}");
    let latest = &failures["latest"][0];
    let found = ["slot", "episode", "t"].map(|name| &latest[name]);
    assert_eq!(found, [&json!(SLOT), &json!(STEP / EPISODE), &json!(STEP % EPISODE)], "{failures}");
}

pub(crate) async fn transient_failure_leaves_no_trace_without_leases() {
    let calm = Rig::new();
    assert_eq!(train(&calm, &json!({}), &[]).await.0.status.code(), Some(0));
    assert!(calm.summary().get("failures").is_none());
    let calm = calm.summary()["weights_hash"].clone();
    for fault in ["error", "panic", "nan"] {
        let rig = Rig::new();
        let (finished, _) = train(&rig, &json!({ "kind": fault, "once": rig.path("once") }), &[]).await;
        assert_eq!(finished.status.code(), Some(0), "{fault}: {}", finished.stderr);
        assert!(finished.stderr.contains("a fragment failed on worker 0: slot 1, "), "{}", finished.stderr);
        assert_eq!(rig.summary()["weights_hash"], calm, "{fault}");
        assert_one_failure(&rig.summary()["failures"]);
        rig.check_ledger();
    }
    for (how, hash) in [(How::Lanes, "rollout_hash"), (How::Recorded, "batch_hash"), (How::Ahead, "batch_hash")] {
        let calm = succeeded(sample(&Rig::new(), how, &json!({}), &[]).await);
        for fault in ["error", "panic", "nan"] {
            let rig = Rig::new();
            let config = json!({ "kind": fault, "once": rig.path("once") });
            let summary = succeeded(sample(&rig, how, &config, &[]).await);
            for name in [hash, "env_steps", "episodes", "episode_return_mean"] {
                assert_eq!(summary[name], calm[name], "{how:?}, {fault}: {summary}");
            }
            assert_one_failure(&summary["failures"]);
        }
    }
}

/// Samples by agent steps, so that a sample leaves fragments of the same round for the next one.
pub(crate) async fn retry_keeps_fragments_that_wait_for_the_next_sample() {
    let args = "sample --json --env FaultyPair-v0 --num-envs 10 --rollout-fragment-length 5 --env-steps 640";
    let counted = ["--set", "count_steps_by=agent_steps"];
    for how in [&counted[..], &[&counted[..], &["--set", "sample_async=true"]].concat()] {
        let mut calm = None;
        for fault in ["none", "error", "panic"] {
            let rig = Rig::new();
            let config = json!({ "kind": fault, "once": rig.path("once") }).to_string();
            let args: Vec<&str> = args.split(' ').chain(["--env-config", &config]).chain(how.iter().copied()).collect();
            let summary = succeeded(run(&args).await);
            let calm = calm.get_or_insert_with(|| summary.clone());
            for name in ["batch_hash", "env_steps", "episodes", "episode_return_mean"] {
                assert_eq!(summary[name], calm[name], "{how:?}, {fault}: {summary}");
            }
            if fault != "none" {
                assert_one_failure(&summary["failures"]);
            }
        }
    }
}

/// Checks that the open episodes of opaque environments and of those in processes are abandoned.
pub(crate) async fn failure_of_episodes_that_cannot_be_restored_is_retried_and_counted() {
    // Each poll waits for all of them, so that the one that fails gets as far.
    let in_processes = ["--set", "remote_worker_envs=true", "--set", "remote_env_batch_wait_ms=10000"];
    let cases: [(How, bool, &[&str]); 3] =
        [(How::Lanes, true, &[]), (How::Recorded, true, &[]), (How::Lanes, false, &in_processes)];
    for (how, opaque, more) in cases {
        for fault in ["error", "panic"] {
            let rig = Rig::new();
            let config = json!({ "kind": fault, "once": rig.path("once"), "opaque": opaque });
            let summary = succeeded(sample(&rig, how, &config, more).await);
            assert_eq!(summary["failures"]["count"], 1, "{how:?}, {more:?}, {fault}: {summary}");
            let abandoned = summary["abandoned_episodes"].as_u64();
            assert!(abandoned.is_some_and(|episodes| (1..=4).contains(&episodes)), "{how:?}, {more:?}: {summary}");
        }
        let rig = Rig::new();
        let config = json!({ "kind": "error", "every": 1, "once": "/", "opaque": opaque });
        assert_failed(&sample(&rig, how, &config, more).await, &["Faulty-v0, ", "have failed in a row"], AT_ONCE);
    }
    let rig = Rig::new();
    let (finished, _) = train(&rig, &json!({ "kind": "error", "once": rig.path("once"), "opaque": true }), &[]).await;
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    assert_one_failure(&rig.summary()["failures"]);
    let causes = rig.summary()["not_reproducible"].to_string();
    assert!(causes.contains("open episodes were given up"), "{causes}");
    rig.check_ledger();
}

/// Lets one step in a thousand fail, in any slot, each time with another message.
pub(crate) async fn frequent_transient_failures_without_leases_end_neither_run_nor_sample() {
    let calm = Rig::new();
    train(&calm, &json!({}), &["--set", "train_batch_size=320"]).await;
    let (rig, config) = (Rig::new(), json!({ "kind": "error", "every": 1_000, "once": "/" }));
    let (finished, _) = train(&rig, &config, &["--set", "train_batch_size=320"]).await;
    assert_eq!(finished.status.code(), Some(0), "{}", finished.stderr);
    assert_eq!(rig.summary()["weights_hash"], calm.summary()["weights_hash"]);
    let calm = succeeded(sample(&rig, How::Lanes, &json!({}), &[]).await);
    assert_eq!(succeeded(sample(&rig, How::Lanes, &config, &[]).await)["rollout_hash"], calm["rollout_hash"]);
}

pub(crate) async fn failures_in_a_row_end_a_run_without_leases() {
    let (again, five) = ("it failed again in the same way", "5 attempts at this fragment have failed in a row");
    for (config, text, count) in
        [(json!({ "kind": "error" }), again, 2), (json!({ "kind": "error", "every": 1, "once": "/" }), five, 5)]
    {
        let rig = Rig::new();
        assert_failed(&train(&rig, &config, &[]).await, &["Faulty-v0, slot ", text, "fix the environment"], AT_ONCE);
        assert_eq!(rig.summary()["failures"]["count"], count, "{}", rig.summary());
        rig.check_ledger();
        for how in [How::Lanes, How::Recorded, How::Ahead] {
            assert_failed(&sample(&rig, how, &config, &[]).await, &["Faulty-v0, slot ", text], AT_ONCE);
        }
    }
}

pub(crate) async fn step_that_hangs_without_leases_ends_run_with_its_place() {
    for step in [STEP, any_step()] {
        let (rig, config) = (Rig::new(), json!({ "kind": "hang", "step": step }));
        let (place, deadline) = (place(step), ["--hung-worker-timeout", "1"]);
        let texts = [&*place, "no progress for 1000.000 ms"];
        let within = Duration::from_secs(1 + 5);
        let ended = train(&rig, &config, &deadline).await;
        assert_failed(&ended, &texts, within);
        rig.check_ledger();
        assert_eq!(rig.summary()["failures"]["latest"][0]["kind"], "hang", "{}", rig.summary());
        for how in [How::Lanes, How::Recorded, How::Ahead] {
            assert_failed(&sample(&rig, how, &config, &deadline).await, &texts, within);
        }
    }
}

pub(crate) async fn failing_policy_and_callback_end_every_run() {
    for (policy, message) in [("failing", "the policy failed: no idea"), ("panicking", "panicked: no clue")] {
        for workers in ["0", "2"] {
            let ended =
                sample(&Rig::new(), How::Lanes, &json!({}), &["--policy", policy, "--num-workers", workers]).await;
            let at = if workers == "0" { "slots that were stepped together" } else { "slot 1, episode 2, step 5" };
            assert_failed(&ended, &["Faulty-v0, ", at, message, "it failed again in the same way"], AT_ONCE);
        }
    }
    for (name, message) in [("failing", "on_episode_step failed: no paper"), ("panicking", "panicked: no ink")] {
        let texts = ["Faulty-v0, slot 1, episode 2, step 5: ", message, "it failed again in the same way"];
        let rig = Rig::new();
        assert_failed(&train(&rig, &json!({}), &["--callbacks", name]).await, &texts, AT_ONCE);
        rig.check_ledger();
        let callbacks = format!("callbacks=[\"{name}\"]");
        for workers in ["0", "2"] {
            let ended = sample(&rig, How::Lanes, &json!({}), &["--set", &callbacks, "--num-workers", workers]).await;
            assert_failed(&ended, &texts, AT_ONCE);
        }
    }
}
