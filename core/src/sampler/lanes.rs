//! Positions of the lanes in their slots.

use super::{Horizon, SamplerOptions, SlotState, StateError};
use crate::{
    batch::EpisodeMetrics,
    column::RowBuffer,
    env::{AnyVectorEnv, EnvError, EnvState, Moment, Moments, RowsMut, StepMark},
    ids::SlotId,
    prelude::*,
    rng::{Purpose, Streams},
};

/// A lane to open: its slot, and the state to continue from, or `None` for a new slot.
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
    /// Episode length at which an episode is truncated.
    limit: u32,
    /// Episode length at which an episode counts as terminated.
    hard_horizon: u32,
    reset: Streams,
    env_step: Streams,
    mark: Option<StepMark>,
}

/// An episode's flags after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags {
    pub(super) terminated: bool,
    pub(super) truncated: bool,
}

impl Lanes {
    /// Creates it without slots, with the time limit and the horizon of the options.
    pub(super) fn new(options: &SamplerOptions) -> Self {
        let horizon = |means| options.horizon.filter(|_| options.horizon_means == means).unwrap_or(u32::MAX);
        Self {
            moments: Vec::new(),
            returns: Vec::new(),
            limit: options.max_episode_steps.unwrap_or(u32::MAX).min(horizon(Horizon::Truncated)),
            hard_horizon: horizon(Horizon::LegacyHard),
            reset: Streams::new(options.seed, Purpose::Reset),
            env_step: Streams::new(options.seed, Purpose::EnvStep),
            mark: options.mark.clone(),
        }
    }

    /// Returns it with every lane of `env` opened: writes the first observations, row by row, as the environment returns
    /// them.
    ///
    /// # Errors
    /// Errors of the environment, for example for a state that does not fit it.
    pub(super) fn open(
        &self,
        starts: &[LaneStart],
        env: &mut dyn AnyVectorEnv,
        obs: &mut RowBuffer,
    ) -> Result<Self, EnvError> {
        let mut lanes = Self { moments: Vec::new(), returns: Vec::new(), ..self.clone() };
        let width = env.observation_space().shape().elements();
        obs.start(env.dtypes().0);
        obs.resize(starts.len() * width);
        if env.num_envs() != starts.len() || width == 0 {
            let found = env.num_envs();
            return Err(EnvError::Failed(format!(
                "made for {} lanes, it has {found}, with observations of {width} elements",
                starts.len()
            )));
        }
        for (lane, start) in starts.iter().enumerate() {
            let obs = obs.part_mut(lane * width..(lane + 1) * width);
            let (episode, t, episode_return) =
                start.state.as_ref().map_or((0, 0, 0.0), |state| (state.episode, state.t, state.episode_return));
            lanes.moments.push(Moment { slot: start.slot, episode, t, agent: 0 });
            lanes.returns.push(episode_return);
            match &start.state {
                // An episode of which only the number is known restarts, bit-identically.
                Some(state) if state.t == 0 && state.env.is_empty() => lanes.begin_episode(lane, env, obs)?,
                Some(state) => env.restore_at(lane, &state.env, obs)?,
                None => lanes.begin_episode(lane, env, obs)?,
            }
        }
        Ok(lanes)
    }

    /// Returns the number of lanes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.moments.len()
    }

    /// Returns true without lanes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.moments.is_empty()
    }

    /// Returns the moment of each lane.
    #[must_use]
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }

    /// Records that policy or environment now handle all lanes together.
    pub(super) fn mark_all(&self) {
        self.mark.iter().for_each(|mark| mark.at_all(&self.moments));
    }

    /// Returns the moments of a step that begins now.
    pub(super) fn env_moments(&self) -> Moments<'_> {
        self.mark_all();
        Moments { streams: self.env_step, lanes: &self.moments, mark: self.mark.as_ref() }
    }

    /// Counts a step of a lane and applies time limit and horizon. Both flags may be set.
    pub(super) fn advance(&mut self, lane: usize, reward: f64, terminated: bool, truncated: bool) -> Flags {
        self.returns[lane] += reward;
        let t = self.moments[lane].t.saturating_add(1);
        self.moments[lane].t = t;
        let truncated = truncated || t >= self.limit;
        Flags { terminated: terminated || (t >= self.hard_horizon && !truncated), truncated }
    }

    /// Ends a lane's episode and begins the next one, whose first observation is written to `obs`.
    pub(super) fn next_episode(
        &mut self,
        lane: usize,
        env: &mut dyn AnyVectorEnv,
        obs: RowsMut<'_>,
    ) -> Result<EpisodeMetrics, EnvError> {
        let Moment { episode, t: len, .. } = self.moments[lane];
        let metrics = EpisodeMetrics { episode, len, episode_return: self.returns[lane], ..EpisodeMetrics::default() };
        // After 2^32 episodes of a slot numbers start over, as the addresses of random numbers do.
        self.moments[lane].episode = episode.wrapping_add(1);
        self.moments[lane].t = 0;
        self.returns[lane] = 0.0;
        self.begin_episode(lane, env, obs)?;
        Ok(metrics)
    }

    fn begin_episode(&self, lane: usize, env: &mut dyn AnyVectorEnv, obs: RowsMut<'_>) -> Result<(), EnvError> {
        let Moment { slot, episode, .. } = self.moments[lane];
        self.mark.iter().for_each(|mark| mark.at(slot, episode, 0));
        env.reset_at(lane, &mut self.reset.at(slot, episode, 0, 0), obs)
    }

    /// Returns the state of a lane between two fragments, without recurrent states, from a snapshot of its environment.
    pub(super) fn state(&self, lane: usize, env: Vec<u8>) -> SlotState {
        let Moment { episode, t, .. } = self.moments[lane];
        SlotState { episode, t, episode_return: self.returns[lane], env, recurrent: Vec::new() }
    }
}

impl LaneStart {
    /// Returns the starts, but with the next episodes where open ones cannot be restored since `env` is opaque.
    pub(super) fn movable<'a>(starts: &'a [Self], env: &dyn AnyVectorEnv) -> Cow<'a, [Self]> {
        let is_open = |start: &&Self| start.state.as_ref().is_some_and(|state| state.t > 0 && state.env.is_empty());
        if starts.iter().any(|start| is_open(&start)) && env.state() == EnvState::Opaque {
            let next = |start: &Self| match &start.state {
                Some(state) if is_open(&start) => {
                    let state = SlotState { episode: state.episode.wrapping_add(1), ..SlotState::default() };
                    Self { slot: start.slot, state: Some(state) }
                }
                _ => start.clone(),
            };
            return starts.iter().map(next).collect();
        }
        Cow::Borrowed(starts)
    }

    /// Creates a start from an untrusted encoded state.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn decode(slot: SlotId, state: &[u8]) -> Result<Self, StateError> {
        Ok(Self { slot, state: Some(SlotState::decode(state)?) })
    }
}
