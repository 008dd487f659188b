//! Options of samplers.

use crate::{
    env::StepMark,
    ids::SlotId,
    prelude::*,
    sampler::{BatchMode, CountStepsBy, Horizon, RewardClipping},
};

/// Options of a sampler. [`Lockstep`](super::Lockstep) gets the lengths of fragments and its slots as arguments, so
/// `fragment_length`, `batch_mode`, `count_steps_by`, `single_agent`, `slots` and `keeps_rows` are for
/// [`Episodic`](super::Episodic) alone.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Steps of each environment per batch, at least 1. Batches of complete episodes are one episode long: the reader joins
    /// them.
    #[doc(alias = "rollout_fragment_length")]
    pub fragment_length: u32,
    /// Whether episodes may be cut.
    pub batch_mode: BatchMode,
    /// The unit of the length.
    pub count_steps_by: CountStepsBy,
    /// Time limit: an episode is truncated after this many env steps.
    pub max_episode_steps: Option<u32>,
    /// Steps after which an episode ends, in the way of [`horizon_means`](Self::horizon_means).
    #[doc(alias = "episode_horizon")]
    pub horizon: Option<u32>,
    /// The end of an episode at the horizon.
    pub horizon_means: Horizon,
    /// Whether no recorded row has a flag, whatever ended the episode: all ends are bootstrapped.
    pub no_done_at_end: bool,
    /// The clipping of rewards in batches; [`RewardClipping::Auto`] counts as off. Metrics have the raw rewards.
    pub clip_rewards: RewardClipping,
    /// Whether actions are clipped to the space before the environment gets them. Batches have the policy's actions.
    pub clip_actions: bool,
    /// Whether actions are scaled from [-1, 1] to the space before the environment gets them; precedes clipping.
    pub normalize_actions: bool,
    /// Whether to sample actions; if false, the most likely ones are taken.
    pub explore: bool,
    /// The run's seed.
    pub seed: u64,
    /// Whether every environment has one agent: batches of the default policy alone are then single. Else every batch is a
    /// [`MultiAgentBatch`](crate::batch::MultiAgentBatch), even with one policy, since its rows are not env steps.
    pub single_agent: bool,
    /// The slot of each environment, and the number of its first episode.
    pub slots: Vec<(SlotId, u32)>,
    /// Optional columns to record.
    pub record: RecordColumns,
    /// Whether rows are kept; if false, only episodes' metrics are, batches are empty, and nothing is postprocessed.
    pub keeps_rows: bool,
    /// The record of each step's beginning, for a watchdog.
    pub mark: Option<StepMark>,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

/// Optional columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordColumns {
    /// `infos`, the environment's infos; empty where there are none.
    pub infos: bool,
    /// `action_dist_inputs`, of policies that provide them.
    pub action_dist_inputs: bool,
    /// `env_id`, the index of the environment.
    pub env_id: bool,
}

impl SamplerOptions {
    /// Returns RLlib's defaults, for environments with one agent each in these slots.
    #[must_use]
    pub fn new(slots: Vec<(SlotId, u32)>) -> Self {
        Self {
            fragment_length: 200,
            batch_mode: BatchMode::TruncateEpisodes,
            count_steps_by: CountStepsBy::EnvSteps,
            max_episode_steps: None,
            horizon: None,
            horizon_means: Horizon::Truncated,
            no_done_at_end: false,
            clip_rewards: RewardClipping::Off,
            clip_actions: false,
            normalize_actions: true,
            explore: true,
            seed: 0,
            single_agent: true,
            slots,
            record: RecordColumns::default(),
            keeps_rows: true,
            mark: None,
        }
    }

    /// Returns how an episode of this length ends, if the environment does not end it.
    pub(in crate::sampler) fn end_at(&self, length: u32) -> Option<Horizon> {
        if self.max_episode_steps.is_some_and(|limit| length >= limit) {
            return Some(Horizon::Truncated);
        }
        self.horizon.is_some_and(|horizon| length >= horizon).then_some(self.horizon_means)
    }

    /// Returns whether these numbers of steps are a fragment: with `complete_episodes` once an episode ends there.
    pub(crate) fn is_enough(&self, env_steps: usize, agent_steps: usize) -> bool {
        self.count_steps_by.of(env_steps, agent_steps) >= self.fragment_length.max(1) as usize
    }
}
