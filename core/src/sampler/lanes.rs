//! Where each lane is in its slot's life.

use super::{SlotState, StateError};
use crate::{
    batch::EpisodeMetrics,
    env::{AnyVectorEnv, EnvError, Moment, Moments, RowElement},
    ids::SlotId,
    prelude::*,
    rng::{Purpose, Streams},
};

/// A lane to be opened: its slot, and the state from which to go on, or none for a new slot.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneStart {
    /// The slot.
    pub slot: SlotId,
    /// The slot's state.
    pub state: Option<SlotState>,
}

/// Slots, episodes and steps of all lanes. Lane `i` of the environment is entry `i`.
#[derive(Clone, Debug)]
pub struct Lanes {
    moments: Vec<Moment>,
    returns: Vec<f64>,
    max_episode_steps: u32,
    reset: Streams,
    env_step: Streams,
}

/// How an episode stands after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags {
    pub(super) terminated: bool,
    pub(super) truncated: bool,
}

impl Lanes {
    /// Opens every lane of `env` and writes the first observations, row by row.
    ///
    /// # Errors
    /// The environment's own, for example for a state that is not its.
    pub(super) fn open<O: RowElement>(
        starts: &[LaneStart],
        seed: u64,
        max_episode_steps: Option<u32>,
        env: &mut dyn AnyVectorEnv,
        obs: &mut [O],
    ) -> Result<Self, EnvError> {
        let mut lanes = Self {
            moments: Vec::with_capacity(starts.len()),
            returns: Vec::with_capacity(starts.len()),
            max_episode_steps: max_episode_steps.unwrap_or(u32::MAX),
            reset: Streams::new(seed, Purpose::Reset),
            env_step: Streams::new(seed, Purpose::EnvStep),
        };
        let width = env.observation_space().shape().elements();
        if env.num_envs() != starts.len() || width == 0 {
            let found = env.num_envs();
            return Err(EnvError::Failed(format!(
                "made for {} lanes, it has {found}, with observations of {width} elements",
                starts.len()
            )));
        }
        for (lane, (start, obs)) in starts.iter().zip(obs.chunks_exact_mut(width)).enumerate() {
            let (episode, t, episode_return) =
                start.state.as_ref().map_or((0, 0, 0.0), |state| (state.episode, state.t, state.episode_return));
            lanes.moments.push(Moment { slot: start.slot, episode, t, agent: 0 });
            lanes.returns.push(episode_return);
            match &start.state {
                // An episode of which nothing is known but its number begins again: with the same bits.
                Some(state) if state.t == 0 && state.env.is_empty() => lanes.begin_episode(lane, env, obs)?,
                Some(state) => env.restore_at(lane, &state.env, O::erase_rows_mut(obs))?,
                None => lanes.begin_episode(lane, env, obs)?,
            }
        }
        Ok(lanes)
    }

    /// Number of lanes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.moments.len()
    }

    /// True without lanes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.moments.is_empty()
    }

    /// The moment of each lane.
    #[must_use]
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }

    pub(super) fn env_moments(&self) -> Moments<'_> {
        Moments { streams: self.env_step, lanes: &self.moments }
    }

    /// Counts a step of a lane and applies the time limit. Both flags may be set.
    pub(super) fn advance(&mut self, lane: usize, reward: f64, terminated: bool, truncated: bool) -> Flags {
        self.returns[lane] += reward;
        self.moments[lane].t = self.moments[lane].t.saturating_add(1);
        Flags { terminated, truncated: truncated || self.moments[lane].t >= self.max_episode_steps }
    }

    /// Closes a lane's episode and begins the next one, whose first observation goes to `obs`.
    pub(super) fn next_episode<O: RowElement>(
        &mut self,
        lane: usize,
        env: &mut dyn AnyVectorEnv,
        obs: &mut [O],
    ) -> Result<EpisodeMetrics, EnvError> {
        let Moment { episode, t: len, .. } = self.moments[lane];
        let metrics = EpisodeMetrics { episode, len, episode_return: self.returns[lane] };
        // A slot lives for 2^32 episodes; then numbers begin again, as every address of randomness would.
        self.moments[lane].episode = episode.wrapping_add(1);
        self.moments[lane].t = 0;
        self.returns[lane] = 0.0;
        self.begin_episode(lane, env, obs)?;
        Ok(metrics)
    }

    fn begin_episode<O: RowElement>(
        &self,
        lane: usize,
        env: &mut dyn AnyVectorEnv,
        obs: &mut [O],
    ) -> Result<(), EnvError> {
        let Moment { slot, episode, .. } = self.moments[lane];
        env.reset_at(lane, &mut self.reset.at(slot, episode, 0, 0), O::erase_rows_mut(obs))
    }

    /// The state of a lane between two fragments.
    #[must_use]
    pub fn state(&self, lane: usize, env: &dyn AnyVectorEnv) -> SlotState {
        let Moment { episode, t, .. } = self.moments[lane];
        let mut snapshot = Vec::new();
        env.snapshot_at(lane, &mut snapshot);
        SlotState { episode, t, episode_return: self.returns[lane], env: snapshot }
    }
}

impl LaneStart {
    /// A lane from encoded state, which may come from anybody.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn decode(slot: SlotId, state: &[u8]) -> Result<Self, StateError> {
        Ok(Self { slot, state: Some(SlotState::decode(state)?) })
    }
}
