//! Environments and policies of every kind, whose hub is killed at three points, or twenty: the learner is that of a calm run.

use rollmesh_core::config::Config;
use serde_json::json;

use super::{
    kills::{killed_at, seed},
    rig::{Outcome, Rig},
};
use crate::support::{cases::CASES, is_long};

/// The cases of the short form: a filter, a recurrent policy, several agents under several policies, environments in
/// processes, whose open episodes are replayed, and whole episodes.
const SHORT: [usize; 5] = [0, 5, 8, 10, 11];

/// Returns a run of six slots.
fn rig(env: &str, settings: &str, workers: u64, iterations: u64) -> Rig {
    let usual = json!({
        "env": env, "seed": 1, "num_slots": 6, "num_envs": 3, "rollout_fragment_length": 16,
        "stop": { "env_steps": 6 * 16 * iterations },
    });
    let settings: Config = settings.parse().unwrap();
    let merged = usual.to_string().parse::<Config>().unwrap().with_at("model_config.fcnet_hiddens", json!([8]));
    Rig::of_settings(&json!(merged.merged(&settings)), workers)
}

#[tokio::test]
async fn run_of_every_kind_ends_with_same_weights_when_its_hub_is_killed() {
    let (points, iterations) = if is_long() { (20, 120) } else { (3, 40) };
    let mut state = seed();
    for (index, (env, settings)) in CASES.iter().enumerate().filter(|(index, _)| is_long() || SHORT.contains(index)) {
        let calm = rig(env, settings, 1, iterations);
        calm.begin().finish_with(0).await;
        let calm = calm.outcome();
        let updates = calm.metrics.len() as u64;
        let killed = rig(env, settings, 2, iterations);
        killed_at(&killed, points, updates, &mut state).await;
        let killed = killed.outcome();
        let all = |outcome: &Outcome| (outcome.metrics.clone(), outcome.learned());
        assert!(all(&killed) == all(&calm), "case {index}, {env}: {settings}: {killed:?} instead of {calm:?}");
    }
}
