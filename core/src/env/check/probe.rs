//! An environment under test, whose lanes are driven at random, as a sampler would drive them.

use core::ops::Range;

use super::{CheckError, CheckOptions, rows};
use crate::{
    column::{DType, RowBuffer},
    env::{AnyVectorEnv, EnvContext, EnvError, EnvSpec, EnvState, Moment, Moments, StepOut, put_rows},
    ids::{HomeIndex, SlotId},
    kernels::Kernels,
    prelude::*,
    rng::{Purpose, Streams},
    space::Space,
};

/// Lanes of a fresh environment. All random numbers depend on the seed and on the lane's own slot, episode and step, so a
/// lane's trajectory does not depend on the other lanes.
pub(super) struct LaneProbe {
    pub(super) env: Box<dyn AnyVectorEnv>,
    pub(super) actions: RowBuffer,
    obs_space: Space,
    pub(super) action_space: Space,
    obs: RowBuffer,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    truncateds: Vec<bool>,
    pub(super) moments: Vec<Moment>,
    widths: [usize; 2],
    max_episode_steps: u32,
    seed: u64,
    /// Content of the buffers before the environment writes there: zeros or ones, no flags or all.
    ones: bool,
    /// Steps so far, for messages.
    pub(super) step: u32,
}

impl LaneProbe {
    /// Makes the lanes of these slots.
    pub(super) fn new(spec: &EnvSpec, options: &CheckOptions, slots: Range<u32>) -> Result<Self, CheckError> {
        let contexts: Vec<_> =
            (slots.clone()).map(|vector_index| EnvContext::new(HomeIndex { worker_index: 1, vector_index })).collect();
        let env = spec.make(&contexts, Kernels::PORTABLE).map_err(|source| CheckError::Failed {
            during: "making",
            step: 0,
            source,
        })?;
        let lanes = contexts.len();
        if env.num_envs() != lanes {
            return Err(CheckError::Lanes { wanted: lanes, found: env.num_envs() });
        }
        let (obs_space, action_space) = (env.observation_space(), env.action_space());
        let (obs_type, action_type) = env.dtypes();
        check_space("observation", &obs_space, obs_type)?;
        check_space("action", &action_space, action_type)?;
        let widths = [obs_space.shape().elements(), action_space.shape().elements()];
        Ok(Self {
            obs: RowBuffer::zeros(obs_type, lanes * widths[0]),
            actions: RowBuffer::zeros(action_type, lanes * widths[1]),
            rewards: vec![0.0; lanes],
            terminateds: vec![false; lanes],
            truncateds: vec![false; lanes],
            moments: slots.map(|slot| Moment { slot: SlotId(slot), episode: 0, t: 0, agent: 0 }).collect(),
            max_episode_steps: spec.max_episode_steps.unwrap_or(u32::MAX),
            seed: options.seed,
            ones: false,
            step: 0,
            env,
            obs_space,
            action_space,
            widths,
        })
    }

    pub(super) fn with_ones_in_buffers(self) -> Self {
        Self { ones: true, ..self }
    }

    pub(super) fn lanes(&self) -> usize {
        self.moments.len()
    }

    fn obs_range(&self, lane: usize) -> Range<usize> {
        lane * self.widths[0]..(lane + 1) * self.widths[0]
    }

    pub(super) fn action_range(&self, lane: usize) -> Range<usize> {
        lane * self.widths[1]..(lane + 1) * self.widths[1]
    }

    /// Begins all lanes' first episode.
    pub(super) fn reset(&mut self) -> Result<(), CheckError> {
        (0..self.lanes()).try_for_each(|lane| self.reset_lane(lane))
    }

    fn reset_lane(&mut self, lane: usize) -> Result<(), CheckError> {
        let Moment { slot, episode, .. } = self.moments[lane];
        let mut rng = Streams::new(self.seed, Purpose::Reset).at(slot, episode, 0, 0);
        let range = self.obs_range(lane);
        rows::soil(self.obs.part_mut(range.clone()), self.ones);
        self.env.reset_at(lane, &mut rng, self.obs.part_mut(range)).map_err(|source| CheckError::Failed {
            during: "a reset",
            step: self.step,
            source,
        })?;
        self.check_obs(lane, "a reset")
    }

    /// Fills the actions with random ones from the space.
    pub(super) fn sample_actions(&mut self) {
        for lane in 0..self.lanes() {
            let Moment { slot, episode, t, .. } = self.moments[lane];
            let mut rng = Streams::new(self.seed, Purpose::Action).at(slot, episode, t, 0);
            let range = self.action_range(lane);
            // The space was found to fit rows of this type, and the row has its length.
            rows::sample(&self.action_space, &mut rng, self.actions.part_mut(range)).unwrap_or_default();
        }
    }

    /// Steps all lanes with the present actions, without checking the results.
    pub(super) fn step_raw(&mut self) -> Result<(), EnvError> {
        rows::soil(self.obs.all_mut(), self.ones);
        self.rewards.fill(if self.ones { 1.0 } else { 0.5 });
        self.terminateds.fill(self.ones);
        self.truncateds.fill(self.ones);
        let moments = Moments { streams: Streams::new(self.seed, Purpose::EnvStep), lanes: &self.moments, mark: None };
        let out = StepOut {
            rewards: &mut self.rewards,
            terminateds: &mut self.terminateds,
            truncateds: &mut self.truncateds,
        };
        self.env.step(self.actions.all(), moments, self.obs.all_mut(), out)
    }

    /// Steps all lanes at random and checks the results. Lanes whose episode ended are not reset.
    pub(super) fn step(&mut self, during: &'static str) -> Result<(), CheckError> {
        self.sample_actions();
        self.step_raw().map_err(|source| CheckError::Failed { during, step: self.step, source })?;
        self.check_rewards()?;
        for lane in 0..self.lanes() {
            self.moments[lane].t += 1;
            if self.terminateds[lane] {
                self.check_last_obs(lane, during)?;
            } else {
                self.check_obs(lane, during)?;
            }
        }
        self.step += 1;
        Ok(())
    }

    /// Begins the next episode of the lanes whose episode has ended.
    pub(super) fn reset_ended(&mut self) -> Result<(), CheckError> {
        for lane in 0..self.lanes() {
            let moment = &mut self.moments[lane];
            if self.terminateds[lane] || self.truncateds[lane] || moment.t >= self.max_episode_steps {
                (moment.episode, moment.t) = (moment.episode + 1, 0);
                self.reset_lane(lane)?;
            }
        }
        Ok(())
    }

    fn check_obs(&self, lane: usize, after: &'static str) -> Result<(), CheckError> {
        let row = self.obs.part(self.obs_range(lane));
        if rows::contains(&self.obs_space, row).unwrap_or(false) {
            return Ok(());
        }
        Err(self.outside(lane, after))
    }

    /// Checks the last observation, which may be out of bounds in a terminal state, as Gymnasium's CartPole shows.
    fn check_last_obs(&self, lane: usize, after: &'static str) -> Result<(), CheckError> {
        let is_box = matches!(self.obs_space, Space::Box(_));
        if is_box && rows::is_numbers(self.obs.part(self.obs_range(lane))) {
            return Ok(());
        }
        self.check_obs(lane, after)
    }

    fn outside(&self, lane: usize, after: &'static str) -> CheckError {
        let row = self.obs.part(self.obs_range(lane));
        let space = self.obs_space.to_string();
        CheckError::OutsideSpace { after, lane, step: self.step, obs: rows::describe(row), space }
    }

    /// Returns the results of a lane's last step or reset, as bits.
    fn bits(&self, lane: usize) -> (Vec<u8>, u64, bool, bool) {
        let mut obs = Vec::new();
        put_rows(&mut obs, self.obs.part(self.obs_range(lane)));
        (obs, self.rewards[lane].to_bits(), self.terminateds[lane], self.truncateds[lane])
    }

    /// Returns true if a lane's latest results equal those of another probe's lane.
    pub(super) fn agrees(&self, lane: usize, other: &Self, other_lane: usize) -> bool {
        self.bits(lane) == other.bits(other_lane)
    }

    /// Returns the array in which a lane's latest results differ from those of the same lane of another probe.
    pub(super) fn difference(&self, lane: usize, other: &Self) -> Option<&'static str> {
        let (found, others) = (self.bits(lane), other.bits(lane));
        let arrays = ["obs", "rewards", "terminateds", "truncateds"];
        let differ = [found.0 != others.0, found.1 != others.1, found.2 != others.2, found.3 != others.3];
        arrays.into_iter().zip(differ).find_map(|(array, differs)| differs.then_some(array))
    }

    /// Returns the lowest lane whose latest results differ from those of another probe.
    pub(super) fn first_difference(&self, other: &Self) -> Option<usize> {
        (0..self.lanes()).find(|&lane| !self.agrees(lane, other, lane))
    }

    pub(super) fn state(&self) -> EnvState {
        self.env.state()
    }

    pub(super) fn snapshot(&self, lane: usize) -> Result<Vec<u8>, CheckError> {
        let mut snapshot = Vec::new();
        let read = self.env.snapshot_at(lane, &mut snapshot);
        read.map_err(|source| CheckError::Failed { during: "`snapshot`", step: self.step, source })?;
        Ok(snapshot)
    }

    pub(super) fn restore(&mut self, lane: usize, snapshot: &[u8]) -> Result<(), EnvError> {
        let range = self.obs_range(lane);
        self.env.restore_at(lane, snapshot, self.obs.part_mut(range))
    }

    /// Copies the state of another probe: the environment's by snapshots.
    pub(super) fn restore_from(&mut self, other: &Self) -> Result<(), CheckError> {
        for lane in 0..self.lanes() {
            self.restore(lane, &other.snapshot(lane)?).map_err(|source| CheckError::Failed {
                during: "`restore`",
                step: other.step,
                source,
            })?;
        }
        self.moments.clone_from(&other.moments);
        self.rewards.clone_from(&other.rewards);
        self.terminateds.clone_from(&other.terminateds);
        self.truncateds.clone_from(&other.truncateds);
        self.step = other.step;
        Ok(())
    }

    /// Checks a made-up state and continues a few steps from there, up to the end of the episode. Its observation may be out
    /// of bounds if the next step ends the episode, since it may have been a terminal state.
    pub(super) fn play_on(&mut self) -> Result<(), CheckError> {
        const AFTER: &str = "`restore` accepted damaged bytes";
        const DURING: &str = "a step after `restore` accepted damaged bytes";
        self.check_last_obs(0, AFTER)?;
        let mut beyond = self.check_obs(0, AFTER).err();
        let moments = self.moments.clone();
        for _ in 0..4 {
            self.sample_actions();
            self.step_raw().map_err(|source| CheckError::Failed { during: DURING, step: self.step, source })?;
            self.check_rewards()?;
            self.moments.iter_mut().for_each(|moment| moment.t += 1);
            if self.terminateds.iter().chain(&self.truncateds).any(|&ended| ended) {
                break;
            }
            match beyond.take() {
                Some(error) => return Err(error),
                None => self.check_obs(0, DURING)?,
            }
        }
        self.moments = moments;
        Ok(())
    }

    fn check_rewards(&self) -> Result<(), CheckError> {
        match self.rewards.iter().position(|reward| !(*reward as f32).is_finite()) {
            Some(lane) => Err(CheckError::Reward { lane, step: self.step, reward: self.rewards[lane] }),
            None => Ok(()),
        }
    }
}

pub(super) fn check_space(what: &'static str, space: &Space, found: DType) -> Result<(), CheckError> {
    space.validate().map_err(|source| CheckError::BadSpace { what, source })?;
    if space.takes_rows_of(found) {
        Ok(())
    } else {
        Err(CheckError::WrongType { what, space: space.to_string(), found })
    }
}
