//! What samplers are told.

use crate::{
    ids::SlotId,
    prelude::*,
    sampler::{BatchMode, CountStepsBy, Horizon, RewardClipping},
};

/// Settings of a sampler. [`Lockstep`](super::Lockstep) cuts fragments as it is asked to and is given its slots when it
/// is made, so `fragment_length`, `batch_mode`, `count_steps_by`, `single_agent`, `slots` and `keeps_rows` are for
/// [`Episodic`](super::Episodic) alone.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOptions {
    /// Steps of each environment per batch; at least 1. Batches of complete episodes are one episode long: who reads them
    /// joins them.
    #[doc(alias = "rollout_fragment_length")]
    pub fragment_length: u32,
    /// Whether episodes may be cut.
    pub batch_mode: BatchMode,
    /// What the length counts.
    pub count_steps_by: CountStepsBy,
    /// Time limit: an episode is truncated after so many env steps.
    pub max_episode_steps: Option<u32>,
    /// Steps after which an episode is cut, in the way that [`horizon_means`](Self::horizon_means) says.
    #[doc(alias = "episode_horizon")]
    pub horizon: Option<u32>,
    /// What it means that an episode reaches the horizon.
    pub horizon_means: Horizon,
    /// Neither flag of any recorded row is set, whatever ended the episode: all ends are bootstrapped.
    pub no_done_at_end: bool,
    /// How rewards are clipped in batches; [`RewardClipping::Auto`] counts as off. Metrics have the raw ones.
    pub clip_rewards: RewardClipping,
    /// Whether actions are clipped to the space before they are taken. Batches have them as the policy chose them.
    pub clip_actions: bool,
    /// Whether actions are stretched from [-1, 1] to the space before they are taken; goes before clipping.
    pub normalize_actions: bool,
    /// False for the most likely actions instead of drawn ones.
    pub explore: bool,
    /// The run's seed.
    pub seed: u64,
    /// Every environment has one agent: batches of the default policy alone are given out single. Else every batch is a
    /// [`MultiAgentBatch`](crate::batch::MultiAgentBatch), also of one policy, whose rows are not env steps.
    pub single_agent: bool,
    /// The slot of each environment, and the number of its first episode.
    pub slots: Vec<(SlotId, u32)>,
    /// Columns that not every batch has.
    pub record: RecordColumns,
    /// False if only episodes count, not their rows: batches are then empty, and nothing is postprocessed.
    pub keeps_rows: bool,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

/// Columns that are recorded if they are wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordColumns {
    /// `infos`, what the environment told besides; empty where it told nothing.
    pub infos: bool,
    /// `action_dist_inputs`, of policies that can tell.
    pub action_dist_inputs: bool,
    /// `env_id`, the index of the environment.
    pub env_id: bool,
}

impl SamplerOptions {
    /// RLlib's defaults, for environments with one agent each in these slots.
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
        }
    }

    /// How an episode of this length ends, if it does not end by itself.
    pub(in crate::sampler) fn end_at(&self, length: u32) -> Option<Horizon> {
        if self.max_episode_steps.is_some_and(|limit| length >= limit) {
            return Some(Horizon::Truncated);
        }
        self.horizon.is_some_and(|horizon| length >= horizon).then_some(self.horizon_means)
    }

    /// Whether so many env and agent steps are a fragment: in `complete_episodes` once an episode ends there.
    pub(crate) fn is_enough(&self, env_steps: usize, agent_steps: usize) -> bool {
        self.count_steps_by.of(env_steps, agent_steps) >= self.fragment_length.max(1) as usize
    }
}
