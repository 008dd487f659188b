//! Metrics of an episode.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    batch::EpisodeMetrics,
    column::{LittleEndian, append_le},
    ids::{AgentId, PolicyId},
    lists::Bytes,
    prelude::*,
};

/// A finished episode, or one that was lost to a failed environment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RolloutMetrics {
    /// See [`Episode::id`](super::Episode::id).
    pub episode_id: i64,
    /// Index of the sub-environment.
    pub env: usize,
    /// Env steps.
    #[doc(alias = "episode_length")]
    pub length: u32,
    /// Sum of the raw rewards of all agents.
    #[doc(alias = "episode_reward")]
    pub episode_return: f64,
    /// Sum of the raw rewards of each agent, in order of appearance.
    pub agent_rewards: Vec<(AgentId, PolicyId, f64)>,
    /// The user's metrics.
    pub custom_metrics: BTreeMap<String, f64>,
    /// The user's lists of numbers.
    #[serde(with = "byte_strings")]
    pub hist_data: BTreeMap<String, Vec<f64>>,
    /// The user's media, such as pictures.
    #[serde(with = "byte_strings")]
    pub media: BTreeMap<String, Vec<u8>>,
    /// The reason for the loss of the episode, if it was lost. Its rows are then in no batch, and it counts in no mean.
    #[doc(alias = "episode_faulty")]
    pub faulty: Option<String>,
    /// The time that the sampler has spent so far, by phase.
    #[doc(alias = "perf_stats")]
    pub perf: SamplerPerf,
}

impl RolloutMetrics {
    /// Returns the metrics as a run over slots keeps them; an episode's id is [`Slot`](crate::ids::SlotId) << 32 | number.
    /// The rewards of policies come first, and callbacks' metrics fill up to the limit, so that the rewards, which audits
    /// compare, do not depend on what callbacks record. A callback's metric with the name of a policy's reward is omitted.
    #[must_use]
    pub fn of_slot(&self) -> EpisodeMetrics {
        let mut rewards: BTreeMap<&PolicyId, (f64, f64)> = BTreeMap::new();
        for (_, policy, reward) in self.agent_rewards.iter().filter(|(_, policy, _)| *policy != PolicyId::DEFAULT) {
            let (sum, agents) = rewards.entry(policy).or_default();
            (*sum, *agents) = (*sum + reward, *agents + 1.0);
        }
        let name = |policy: &PolicyId| format!("{}{policy}", EpisodeMetrics::POLICY_REWARD_MEAN);
        let rewards: BTreeMap<String, f64> =
            rewards.into_iter().map(|(policy, (sum, agents))| (name(policy), sum / agents)).collect_ordered();
        let mut metrics = EpisodeMetrics::that_travel(&rewards);
        let room = EpisodeMetrics::MAX_CUSTOM_METRICS.saturating_sub(metrics.len());
        let mut recorded = self.custom_metrics.clone();
        recorded.retain(|name, _| !name.starts_with(EpisodeMetrics::POLICY_REWARD_MEAN));
        metrics.extend(EpisodeMetrics::that_travel(&recorded).into_iter().take(room));
        EpisodeMetrics {
            episode: self.episode_id as u32,
            len: self.length,
            episode_return: self.episode_return,
            custom_metrics: metrics,
        }
    }
}

/// The time that a sampler spends by phase: means over its iterations, in milliseconds. All 0 without a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplerPerf {
    /// Iterations: steps of all sub-environments that were ready.
    pub iterations: u64,
    /// Waiting for environments.
    #[doc(alias = "mean_env_wait_ms")]
    pub env_wait_ms: f64,
    /// Preprocessing, filtering and recording.
    #[doc(alias = "mean_raw_obs_processing_ms")]
    pub obs_processing_ms: f64,
    /// Computing actions.
    #[doc(alias = "mean_inference_ms")]
    pub inference_ms: f64,
    /// Clipping and sending actions.
    #[doc(alias = "mean_action_processing_ms")]
    pub action_processing_ms: f64,
    /// Rendering.
    #[doc(alias = "mean_env_render_ms")]
    pub env_render_ms: f64,
}

/// Lists of numbers by name; in a binary format each is a byte string, in little-endian order.
mod byte_strings {
    use super::*;

    pub(super) fn serialize<T: LittleEndian, S: Serializer>(
        lists: &BTreeMap<String, Vec<T>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(lists.iter().map(|(name, numbers)| {
            let mut bytes = Vec::new();
            append_le(&mut bytes, numbers);
            (name, Bytes(bytes.into()))
        }))
    }

    pub(super) fn deserialize<'de, T: LittleEndian, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<String, Vec<T>>, D::Error> {
        let lists = BTreeMap::<String, &[u8]>::deserialize(deserializer)?;
        Ok(lists.into_iter().map(|(name, bytes)| (name, T::read_le(bytes))).collect_ordered())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewards_of_policies_take_precedence_over_metrics_of_callbacks() {
        let of_policy = |policy: &str| format!("{}{policy}", EpisodeMetrics::POLICY_REWARD_MEAN);
        let mut custom_metrics: BTreeMap<String, f64> = (0..70).map(|i| (format!("m{i:02}"), f64::from(i))).collect();
        custom_metrics.extend([(of_policy("car"), 9.0), (of_policy("absent"), 9.0)]);
        let reward = |agent: &str, reward| (AgentId::name(agent), PolicyId::new("car"), reward);
        let agent_rewards = vec![reward("a", 1.0), reward("b", 2.0)];
        let metrics = RolloutMetrics { custom_metrics, agent_rewards, ..RolloutMetrics::default() };
        let kept = metrics.of_slot().custom_metrics;
        assert_eq!((kept.len(), kept.get(&of_policy("car"))), (EpisodeMetrics::MAX_CUSTOM_METRICS, Some(&1.5)));
        assert!(kept.contains_key("m62") && !kept.contains_key("m63") && !kept.contains_key(&of_policy("absent")));
    }
}
