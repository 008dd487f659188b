//! The metrics of a run in progress.

use std::collections::BTreeMap;

use rollmesh_core::{
    config::leaves,
    episode::Spread,
    hub::RunLoop,
    ids::PolicyId,
    policy::LearnInfo,
    protocol::message::{Iteration, NamedMetrics},
    time::Micros,
};
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
    /// The return that a tenth of them are below.
    #[serde(default)]
    pub episode_return_p10: Option<f64>,
    /// The return that a tenth of them are above.
    #[serde(default)]
    pub episode_return_p90: Option<f64>,
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
            episode_return_p10: episodes.return_quantile(0.1),
            episode_return_p90: episodes.return_quantile(0.9),
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

    /// Returns a point for dashboards.
    pub(crate) fn point(&self, run: u32) -> Iteration {
        Iteration {
            run,
            iteration: self.iteration,
            env_steps: self.env_steps,
            wall_ms: (self.wall_s * 1e3) as u64,
            episode_return_mean: self.episode_return_mean.map_or(f32::NAN, |mean| mean as f32),
            episode_len_mean: self.episode_len_mean.map_or(f32::NAN, |mean| mean as f32),
            steps_per_s: self.steps_per_s as f32,
            policy_loss: self.stats.policy_loss as f32,
            vf_loss: self.stats.vf_loss as f32,
            entropy: self.stats.entropy as f32,
            kl: self.stats.kl as f32,
        }
    }

    /// Returns the metrics that a [`point`](Self::point) lacks, by name.
    pub(crate) fn named(&self, run: u32) -> NamedMetrics {
        let mut all = numbers_of(self);
        // The message holds a limited number: the learner's metrics precede those of policies and callbacks.
        all.sort_by_key(|(name, _)| name.contains('/'));
        let others = all.into_iter().filter(|(name, _)| !IN_POINT.contains(&&**name));
        NamedMetrics::new(run, self.iteration, others)
    }
}

/// The metrics that a point has.
const IN_POINT: [&str; 10] = [
    "iteration",
    "env_steps",
    "wall_s",
    "episode_return_mean",
    "episode_len_mean",
    "steps_per_s",
    "policy_loss",
    "vf_loss",
    "entropy",
    "kl",
];

/// Returns the numbers of metrics by name, those of inner objects as `outer/inner`.
pub(super) fn numbers_of(metrics: &impl Serialize) -> Vec<(String, f64)> {
    // Metrics are structs of numbers and maps with names as keys.
    let metrics = serde_json::to_value(metrics).unwrap_or_default();
    leaves(&metrics, "/").into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn metrics() -> IterationMetrics {
        let line = json!({
            "iteration": 3, "env_steps": 24, "episode_return_mean": 2.0, "episode_return_p10": 1.0, "episode_return_p90": null,
            "episode_len_mean": 5.0, "steps_per_s": 1.0, "wall_s": 1.5, "policy_loss": 0.0, "vf_loss": 0.0, "entropy": 0.0,
            "kl": 0.0, "clip_fraction": 0.25, "explained_variance": 0.0, "grad_norm": 0.5, "logp_gap": 0.0,
            "learning_rate": 0.001, "policy_reward_mean": {"a": 4.0},
            "custom_metrics": {"fuel": {"min": 1.0, "mean": 2.0, "max": 3.0}}, "custom": {"x": 9.0},
        });
        serde_json::from_value(line).expect("a line of metrics.jsonl")
    }

    #[test]
    fn named_metrics_are_what_a_point_lacks() {
        let metrics = metrics();
        assert_eq!((metrics.point(7).run, metrics.point(7).wall_ms), (7, 1_500));
        let named = metrics.named(7);
        let all: BTreeMap<&str, f32> = named.iter().collect();
        assert_eq!((named.run, named.iteration, all["episode_return_p10"], all["clip_fraction"]), (7, 3, 1.0, 0.25));
        assert_eq!((all["policy_reward_mean/a"], all["custom_metrics/fuel/mean"], all["custom/x"]), (4.0, 2.0, 9.0));
        assert!(!all.contains_key("episode_return_p90"), "it is null");
        assert!(IN_POINT.iter().all(|name| !all.contains_key(name)));
    }

    #[test]
    fn many_callback_metrics_do_not_displace_those_of_the_learner() {
        let custom = (0..100).map(|number| (format!("x{number}"), 1.0)).collect();
        let named = IterationMetrics { custom, ..metrics() }.named(7);
        let names: Vec<&str> = named.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), NamedMetrics::MAX);
        assert!(
            ["clip_fraction", "episode_return_p10", "grad_norm", "logp_gap"].iter().all(|name| names.contains(name))
        );
    }
}
