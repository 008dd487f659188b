//! The metrics of a run in progress.

use std::collections::BTreeMap;

use rollmesh_core::{episode::Spread, hub::RunLoop, ids::PolicyId, policy::LearnInfo, time::Micros};
use serde::{Deserialize, Serialize};

use crate::learner::UpdateStats;

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IterationMetrics {
    /// Number of updates so far.
    pub iteration: u64,
    /// Env steps that were learned from so far.
    pub env_steps: u64,
    /// Mean return of the last 100 finished episodes; `None` before the first, as for the next one.
    pub episode_return_mean: Option<f64>,
    /// Their mean length in env steps.
    pub episode_len_mean: Option<f64>,
    /// Env steps of this iteration per second.
    pub steps_per_s: f64,
    /// Seconds since the run began, without pauses.
    pub wall_s: f64,
    /// The update, as means over its policies.
    #[serde(flatten)]
    pub stats: UpdateStats,
    /// Mean rewards of the agents of each policy, of the latest episodes, in runs with other policies than the default one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policy_reward_mean: BTreeMap<String, f64>,
    /// Each policy's statistics of its update, in runs with other policies than the default one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policies: BTreeMap<PolicyId, LearnInfo>,
    /// Metrics of the latest episodes, as recorded by callbacks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub custom_metrics: BTreeMap<String, Spread>,
    /// Values added by callbacks.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub custom: BTreeMap<String, f64>,
}

impl IterationMetrics {
    /// Returns the metrics of a run's latest iteration and update.
    pub(super) fn new(run: &RunLoop, stats: UpdateStats, now: Micros) -> Self {
        let episodes = run.episodes();
        let (policy_reward_mean, custom_metrics) = episodes.by_name();
        Self {
            iteration: run.iteration(),
            env_steps: run.env_steps(),
            episode_return_mean: episodes.return_mean(),
            episode_len_mean: episodes.len_mean(),
            steps_per_s: run.steps_per_s(),
            wall_s: run.elapsed(now).as_secs_f64(),
            stats,
            policy_reward_mean,
            policies: BTreeMap::new(),
            custom_metrics,
            custom: BTreeMap::new(),
        }
    }
}
