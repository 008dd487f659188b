//! What is measured of a run while it goes on.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use rollmesh_core::{
    batch::{EpisodeMetrics, SlotFragment},
    episode::Spread,
    ids::PolicyId,
    policy::LearnInfo,
};
use serde::{Deserialize, Serialize};

use crate::learner::UpdateStats;

/// Episodes that the mean return is taken over.
pub(super) const WINDOW: usize = 100;

/// The latest finished episodes.
#[derive(Debug, Default)]
pub(super) struct Episodes {
    pub(super) finished: u64,
    recent: VecDeque<EpisodeMetrics>,
}

impl Episodes {
    /// So many have finished, these at last.
    pub(super) fn of(finished: u64, recent: impl Iterator<Item = EpisodeMetrics>) -> Self {
        Self { finished, recent: recent.collect() }
    }

    /// The latest, oldest first.
    pub(super) fn recent(&self) -> impl Iterator<Item = &EpisodeMetrics> {
        self.recent.iter()
    }

    /// Counts the episodes of a batch: slot by slot, each slot's in order.
    pub(super) fn count(&mut self, fragments: &[SlotFragment]) {
        fragments.iter().flat_map(|fragment| &fragment.episodes).for_each(|episode| self.push(episode.clone()));
    }

    /// Counts an episode.
    pub(super) fn push(&mut self, episode: EpisodeMetrics) {
        self.finished += 1;
        if self.recent.len() == WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(episode);
    }

    /// Mean return of the latest episodes, none before the first.
    pub(super) fn return_mean(&self) -> Option<f64> {
        self.mean(|episode| episode.episode_return)
    }

    /// Their mean length.
    pub(super) fn len_mean(&self) -> Option<f64> {
        self.mean(|episode| f64::from(episode.len))
    }

    /// Mean rewards of the agents of each policy that has a name, and what callbacks have recorded, by name.
    fn by_name(&self) -> (BTreeMap<String, f64>, BTreeMap<String, Spread>) {
        let spreads = Spread::by_name(self.recent.iter().flat_map(|episode| &episode.custom_metrics));
        let (mut rewards, mut custom) = (BTreeMap::new(), BTreeMap::new());
        for (name, spread) in spreads {
            let Some(spread) = spread.finite() else { continue };
            match name.strip_prefix(EpisodeMetrics::POLICY_REWARD_MEAN) {
                Some(policy) => _ = rewards.insert(policy.to_owned(), spread.mean),
                None => _ = custom.insert(name, spread),
            }
        }
        (rewards, custom)
    }

    /// True once the mean return is one of a full window and at least `target`.
    pub(super) fn have_reached(&self, target: f64) -> bool {
        self.recent.len() == WINDOW && self.return_mean().is_some_and(|mean| mean >= target)
    }

    fn mean(&self, of: impl Fn(&EpisodeMetrics) -> f64) -> Option<f64> {
        (!self.recent.is_empty()).then(|| self.recent.iter().map(of).sum::<f64>() / self.recent.len() as f64)
    }
}

/// Time that a run has been running, without its pauses.
#[derive(Debug)]
pub(super) struct Stopwatch {
    elapsed: Duration,
    running_since: Option<Instant>,
}

impl Stopwatch {
    /// Started, with this time on it.
    pub(super) fn started_at(elapsed: Duration) -> Self {
        Self { elapsed, running_since: Some(Instant::now()) }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.elapsed + self.running_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    pub(super) fn pause(&mut self) {
        self.elapsed = self.elapsed();
        self.running_since = None;
    }

    pub(super) fn resume(&mut self) {
        self.running_since.get_or_insert_with(Instant::now);
    }
}

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IterationMetrics {
    /// Updates so far.
    pub iteration: u64,
    /// Env steps that were learned from so far.
    pub env_steps: u64,
    /// Mean return of the last 100 finished episodes; none before the first, as the next one.
    pub episode_return_mean: Option<f64>,
    /// Their mean length in env steps.
    pub episode_len_mean: Option<f64>,
    /// Env steps of this iteration per second.
    pub steps_per_s: f64,
    /// Seconds since the run began, without pauses.
    pub wall_s: f64,
    /// The policy's part of the loss; this and what follows are means over the update's gradient steps, and over policies.
    pub policy_loss: f64,
    /// The value network's part.
    pub vf_loss: f64,
    /// Entropy of the action distributions, in nats.
    pub entropy: f64,
    /// KL divergence of the policy from the one that acted, in nats.
    pub kl: f64,
    /// Fraction of rows whose probability ratio was clipped.
    pub clip_fraction: f64,
    /// Fraction of the variance of the value targets that the values explain.
    pub explained_variance: f64,
    /// Global norm of the gradient before it was clipped.
    pub grad_norm: f64,
    /// The greatest difference between a logged log-probability and the learner's own, for the same weights.
    pub logp_gap: f64,
    /// The optimiser's learning rate.
    pub learning_rate: f64,
    /// Versions that the weights of the batch's rows were behind the newest, on average.
    #[serde(default)]
    pub lag_mean: f64,
    /// The most versions that they were behind.
    #[serde(default)]
    pub lag_max: f64,
    /// Mean rewards of the agents of each policy, of the latest episodes, in runs with other policies than the default one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policy_reward_mean: BTreeMap<String, f64>,
    /// What each policy says of its update, in runs with other policies than the default one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub policies: BTreeMap<PolicyId, LearnInfo>,
    /// Of the latest episodes, as callbacks have recorded them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub custom_metrics: BTreeMap<String, Spread>,
    /// What callbacks have added.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub custom: BTreeMap<String, f64>,
}

impl IterationMetrics {
    pub(super) fn new(iteration: u64, env_steps: u64, episodes: &Episodes, stats: &UpdateStats) -> Self {
        let (policy_reward_mean, custom_metrics) = episodes.by_name();
        Self {
            iteration,
            env_steps,
            episode_return_mean: episodes.return_mean(),
            episode_len_mean: episodes.len_mean(),
            steps_per_s: 0.0,
            wall_s: 0.0,
            policy_loss: stats.policy_loss,
            vf_loss: stats.vf_loss,
            entropy: stats.entropy,
            kl: stats.kl,
            clip_fraction: stats.clip_fraction,
            explained_variance: stats.explained_variance,
            grad_norm: stats.grad_norm,
            logp_gap: stats.logp_gap,
            learning_rate: stats.learning_rate,
            lag_mean: stats.lag_mean,
            lag_max: stats.lag_max,
            policy_reward_mean,
            policies: BTreeMap::new(),
            custom_metrics,
            custom: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn episodes(returns: impl IntoIterator<Item = f64>) -> Episodes {
        let mut episodes = Episodes::default();
        for (i, episode_return) in returns.into_iter().enumerate() {
            episodes.push(EpisodeMetrics { episode: i as u32, len: 2, episode_return, ..EpisodeMetrics::default() });
        }
        episodes
    }

    #[test]
    fn a_target_needs_a_full_window() {
        assert_eq!(episodes([]).return_mean(), None);
        assert!(!episodes([500.0; 99]).have_reached(475.0));
        assert!(episodes([500.0; 100]).have_reached(475.0));
        let recovered = episodes(std::iter::repeat_n(0.0, 50).chain(std::iter::repeat_n(500.0, 100)));
        assert!(recovered.have_reached(500.0));
        assert!(!recovered.have_reached(500.1));
    }

    #[test]
    fn pauses_do_not_count() {
        let mut watch = Stopwatch::started_at(Duration::ZERO);
        watch.pause();
        let paused = watch.elapsed();
        watch.pause();
        assert_eq!(watch.elapsed(), paused);
        watch.resume();
        assert!(watch.elapsed() >= paused);
    }
}
