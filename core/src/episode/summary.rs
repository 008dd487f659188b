//! Summary statistics of episodes.

use serde::{Deserialize, Serialize};

use super::RolloutMetrics;
use crate::{ids::PolicyId, prelude::*};

/// Minimum, maximum and mean of some numbers; NaN if there are none.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The minimum.
    pub min: f64,
    /// The mean.
    pub mean: f64,
    /// The maximum.
    pub max: f64,
}

impl Spread {
    /// Computes the statistics of some numbers; NaN is ignored.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let (mut n, mut sum, mut min, mut max) = (0u64, 0.0, f64::INFINITY, f64::NEG_INFINITY);
        for value in values.into_iter().filter(|value| !value.is_nan()) {
            (n, sum, min, max) = (n + 1, sum + value, min.min(value), max.max(value));
        }
        if n == 0 {
            Self { min: f64::NAN, mean: f64::NAN, max: f64::NAN }
        } else {
            Self { min, mean: sum / n as f64, max }
        }
    }

    /// Returns the same unless a number is NaN or infinite, which JSON cannot represent.
    #[must_use]
    pub fn finite(self) -> Option<Self> {
        [self.min, self.mean, self.max].iter().all(|number| number.is_finite()).then_some(self)
    }

    /// Computes the statistics of the numbers of each name.
    #[must_use]
    pub fn by_name<'a>(values: impl IntoIterator<Item = (&'a String, &'a f64)>) -> BTreeMap<String, Self> {
        let mut named: BTreeMap<&String, Vec<f64>> = BTreeMap::new();
        for (name, value) in values {
            named.entry(name).or_default().push(*value);
        }
        named.into_iter().map(|(name, values)| (name.clone(), Self::of(values))).collect_ordered()
    }
}

/// Summary of a set of episodes.
#[derive(Clone, Debug, PartialEq)]
#[doc(alias = "summarize_episodes")]
pub struct EpisodeSummary {
    /// Statistics of the returns.
    pub episode_return: Spread,
    /// Statistics of the lengths.
    pub length: Spread,
    /// Statistics of the rewards of the agents under each policy; the default policy of a single agent is not listed.
    pub policy_reward: BTreeMap<PolicyId, Spread>,
    /// Statistics of the user's metrics.
    pub custom_metrics: BTreeMap<String, Spread>,
    /// The user's lists, joined.
    pub hist_data: BTreeMap<String, Vec<f64>>,
    /// Number of episodes that ended.
    pub episodes: usize,
    /// Number of episodes that were lost to failures; they count nowhere else.
    #[doc(alias = "num_faulty_episodes")]
    pub faulty_episodes: usize,
}

impl EpisodeSummary {
    /// Summarises episodes.
    #[must_use]
    pub fn of(episodes: &[RolloutMetrics]) -> Self {
        let whole = || episodes.iter().filter(|episode| episode.faulty.is_none());
        let mut by_policy: BTreeMap<PolicyId, Vec<f64>> = BTreeMap::new();
        let mut hist_data: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for episode in whole() {
            for (_, policy, reward) in
                episode.agent_rewards.iter().filter(|(_, policy, _)| *policy != PolicyId::DEFAULT)
            {
                by_policy.entry(policy.clone()).or_default().push(*reward);
            }
            for (name, values) in &episode.hist_data {
                hist_data.entry(name.clone()).or_default().extend(values);
            }
        }
        Self {
            episode_return: Spread::of(whole().map(|episode| episode.episode_return)),
            length: Spread::of(whole().map(|episode| f64::from(episode.length))),
            policy_reward: by_policy.into_iter().map(|(id, values)| (id, Spread::of(values))).collect_ordered(),
            custom_metrics: Spread::by_name(whole().flat_map(|episode| &episode.custom_metrics)),
            hist_data,
            episodes: whole().count(),
            faulty_episodes: episodes.len() - whole().count(),
        }
    }
}
