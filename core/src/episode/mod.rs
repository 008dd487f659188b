//! Episodes in progress, and the metrics of finished ones.
//!
//! ```
//! use rollmesh_core::{
//!     episode::Episode,
//!     ids::{AgentId, PolicyId, SlotId},
//! };
//!
//! let mut episode = Episode::new(0, SlotId(0), 7);
//! let car = AgentId::name("car_1");
//! episode.enter(&car, PolicyId::new("car_policy1"));
//! episode.add_step();
//! episode.add_reward(&car, 2.5);
//! episode.custom_metrics.insert("crashes".into(), 1.0);
//! let metrics = episode.metrics();
//! assert_eq!((metrics.length, metrics.episode_return), (1, 2.5));
//! assert_eq!(metrics.agent_rewards[0].2, 2.5);
//! ```

mod global_vars;
mod losses;
mod metrics;
mod summary;

pub use global_vars::GlobalVars;
pub use losses::{Losses, Quarantined};
pub use metrics::{RolloutMetrics, SamplerPerf};
pub use summary::{EpisodeSummary, Spread};

use serde::{Deserialize, Serialize};

use crate::{
    batch::{AnyBatch, SampleBatch},
    ids::{AgentId, PolicyId, SlotId, eps_id},
    prelude::*,
};

/// An episode of one sub-environment: its agents, their policies, and the sums so far.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[doc(alias("EpisodeV2", "MultiAgentEpisode"))]
pub struct Episode {
    #[serde(skip)]
    env: usize,
    slot: SlotId,
    number: u32,
    length: u32,
    total_reward: f64,
    agents: Vec<AgentRecord>,
    #[serde(skip)]
    extra_batches: Vec<AnyBatch>,
    /// The user's metrics, which become part of the episode's metrics.
    pub custom_metrics: BTreeMap<String, f64>,
    /// The user's lists of numbers, which are joined over episodes.
    pub hist_data: BTreeMap<String, Vec<f64>>,
    /// The user's media, such as pictures, as opaque bytes; they become part of the metrics.
    pub media: BTreeMap<String, Vec<u8>>,
    /// The user's data during the episode.
    pub user_data: BTreeMap<String, Vec<u8>>,
}

/// An agent that has appeared in an episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// The agent.
    pub agent: AgentId,
    /// Its policy, until the episode ends.
    pub policy: PolicyId,
    /// Sum of its raw rewards.
    pub reward: f64,
}

/// The trajectory of another agent of the episode, passed to a policy's postprocessing.
#[derive(Clone, Copy, Debug)]
pub struct OtherAgent<'a> {
    /// The agent.
    pub agent: &'a AgentId,
    /// Its policy.
    pub policy: &'a PolicyId,
    /// Its rows.
    pub trajectory: &'a SampleBatch,
}

impl Episode {
    /// Creates an episode.
    #[must_use]
    pub fn new(env: usize, slot: SlotId, number: u32) -> Self {
        Self { env, slot, number, ..Self::default() }
    }

    /// Returns the same episode in sub-environment `env`.
    pub(crate) fn moved_to(self, env: usize) -> Self {
        Self { env, ..self }
    }

    /// Returns the id, which is unique within a run.
    #[doc(alias("episode_id", "eps_id"))]
    #[must_use]
    pub fn id(&self) -> i64 {
        eps_id(self.slot, self.number)
    }

    /// Returns the index of the sub-environment.
    #[must_use]
    pub fn env(&self) -> usize {
        self.env
    }

    /// Returns the slot of the sub-environment.
    #[must_use]
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// Returns the number of the episode in its slot, from 0.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the env steps so far.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Returns the sum of the raw rewards of all agents so far.
    #[must_use]
    pub fn total_reward(&self) -> f64 {
        self.total_reward
    }

    /// Returns the agents in order of appearance: the position is `agent_index`.
    #[must_use]
    pub fn agents(&self) -> &[AgentRecord] {
        &self.agents
    }

    /// Returns the number of an agent, in order of appearance.
    #[must_use]
    pub fn agent_index(&self, agent: &AgentId) -> Option<usize> {
        self.agents.iter().position(|record| record.agent == *agent)
    }

    /// Returns an agent's policy, if the agent has appeared.
    #[must_use]
    pub fn policy_for(&self, agent: &AgentId) -> Option<&PolicyId> {
        self.agents.iter().find(|record| record.agent == *agent).map(|record| &record.policy)
    }

    /// Adds an agent, under a policy that it keeps until the episode ends. Returns its number.
    pub fn enter(&mut self, agent: &AgentId, policy: PolicyId) -> usize {
        match self.agent_index(agent) {
            Some(index) => index,
            None => {
                self.agents.push(AgentRecord { agent: agent.clone(), policy, reward: 0.0 });
                self.agents.len() - 1
            }
        }
    }

    /// Assigns another policy to an agent, since its own was removed.
    pub(crate) fn remap(&mut self, agent_index: usize, policy: PolicyId) {
        if let Some(record) = self.agents.get_mut(agent_index) {
            record.policy = policy;
        }
    }

    /// Adds rows that no env step made, for example a model's imagined ones. They join the next sample.
    pub fn add_extra_batch(&mut self, batch: impl Into<AnyBatch>) {
        self.extra_batches.push(batch.into());
    }

    /// Removes and returns the added rows.
    pub(crate) fn take_extra_batches(&mut self) -> impl Iterator<Item = AnyBatch> {
        self.extra_batches.drain(..)
    }

    /// Counts an env step.
    pub fn add_step(&mut self) {
        self.length = self.length.saturating_add(1);
    }

    /// Counts a raw reward; for an agent that has not appeared, only in the episode's sum.
    pub fn add_reward(&mut self, agent: &AgentId, reward: f64) {
        self.total_reward += reward;
        if let Some(record) = self.agents.iter_mut().find(|record| record.agent == *agent) {
            record.reward += reward;
        }
    }

    /// Returns the episode's metrics.
    #[must_use]
    pub fn metrics(&self) -> RolloutMetrics {
        RolloutMetrics {
            episode_id: self.id(),
            env: self.env,
            length: self.length,
            episode_return: self.total_reward,
            agent_rewards: self.agents.iter().map(|a| (a.agent.clone(), a.policy.clone(), a.reward)).collect(),
            custom_metrics: self.custom_metrics.clone(),
            hist_data: self.hist_data.clone(),
            media: self.media.clone(),
            faulty: None,
            perf: SamplerPerf::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_keep_their_numbers_and_policies() {
        let mut episode = Episode::new(2, SlotId(5), 3);
        let (a, b) = (AgentId::name("a"), AgentId::name("b"));
        assert_eq!((episode.enter(&b, PolicyId::new("p")), episode.enter(&a, PolicyId::new("q"))), (0, 1));
        assert_eq!(episode.enter(&b, PolicyId::new("other")), 0);
        assert_eq!(episode.policy_for(&b), Some(&PolicyId::new("p")));
        episode.add_reward(&a, 1.5);
        episode.add_reward(&AgentId::name("unknown"), 1.0);
        let metrics = episode.metrics();
        assert_eq!((metrics.env, metrics.episode_id, metrics.episode_return), (2, 5 << 32 | 3, 2.5));
        let rewards: Vec<f64> = metrics.agent_rewards.iter().map(|(_, _, reward)| *reward).collect();
        assert_eq!(rewards, [0.0, 1.5]);
    }

    #[test]
    fn extra_batches_are_given_out_once() {
        let mut episode = Episode::new(0, SlotId(0), 0);
        episode.add_extra_batch(SampleBatch::new());
        assert_eq!(episode.take_extra_batches().count(), 1);
        assert_eq!(episode.take_extra_batches().count(), 0);
    }
}
