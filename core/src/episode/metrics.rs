//! What remains of an episode.

use crate::{
    ids::{AgentId, PolicyId},
    prelude::*,
};

/// A finished episode, or one that was lost to a failed environment.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Numbers of the user's.
    pub custom_metrics: BTreeMap<String, f64>,
    /// Lists of numbers of the user's.
    pub hist_data: BTreeMap<String, Vec<f64>>,
    /// Pictures and the like of the user's.
    pub media: BTreeMap<String, Vec<u8>>,
    /// Why the episode was lost, if it was. Its rows are then nowhere, and it counts in no mean.
    #[doc(alias = "episode_faulty")]
    pub faulty: Option<String>,
    /// Where the sampler's time has gone until now.
    #[doc(alias = "perf_stats")]
    pub perf: SamplerPerf,
}

/// Where a sampler's time goes: means over its iterations, in milliseconds. All 0 without a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplerPerf {
    /// Iterations: steps of all sub-environments that were ready.
    pub iterations: u64,
    /// Waiting for environments.
    #[doc(alias = "mean_env_wait_ms")]
    pub env_wait_ms: f64,
    /// Preprocessing, filtering and recording.
    #[doc(alias = "mean_raw_obs_processing_ms")]
    pub obs_processing_ms: f64,
    /// Policies.
    #[doc(alias = "mean_inference_ms")]
    pub inference_ms: f64,
    /// Clipping and sending actions.
    #[doc(alias = "mean_action_processing_ms")]
    pub action_processing_ms: f64,
    /// Drawing pictures.
    #[doc(alias = "mean_env_render_ms")]
    pub env_render_ms: f64,
}
