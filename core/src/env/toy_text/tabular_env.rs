//! Vector environments of tabular decision processes.

use super::Mdp;
use crate::{
    env::{
        EnvError, EnvState, Frame, Moments, Rng, SnapshotReader, StepOut, VectorEnv, check_actions_len, check_len,
        check_obs_len,
    },
    prelude::*,
    space::Space,
};

/// Steps an [`Mdp`] in many lanes that share its table. Observations are states.
#[derive(Clone, Debug)]
pub struct TabularEnv {
    mdp: Arc<Mdp>,
    /// Always below the number of states.
    states: Vec<u16>,
}

impl TabularEnv {
    /// Creates `num_envs` lanes, which must be reset before their first step.
    #[must_use]
    pub fn new(num_envs: usize, mdp: impl Into<Arc<Mdp>>) -> Self {
        Self { mdp: mdp.into(), states: vec![0; num_envs] }
    }

    /// Returns the table.
    #[must_use]
    pub fn mdp(&self) -> &Arc<Mdp> {
        &self.mdp
    }

    /// Returns the state of a lane; `None` if there is no such lane.
    #[must_use]
    pub fn state(&self, lane: usize) -> Option<u16> {
        self.states.get(lane).copied()
    }

    /// Sets the state of a lane.
    ///
    /// # Errors
    /// [`EnvError::Failed`] for a state that does not exist, [`EnvError::NoSuchLane`].
    pub fn set_state(&mut self, lane: usize, state: u16) -> Result<(), EnvError> {
        let num_states = self.mdp.num_states();
        if u32::from(state) >= num_states {
            return Err(EnvError::Failed(format!("there is no state {state}, they are 0..{num_states}")));
        }
        *self.lane(lane)? = state;
        Ok(())
    }

    fn lane(&mut self, lane: usize) -> Result<&mut u16, EnvError> {
        let num_envs = self.states.len();
        self.states.get_mut(lane).ok_or(EnvError::NoSuchLane { lane, num_envs })
    }
}

impl VectorEnv for TabularEnv {
    type Obs = i64;
    type Act = i64;

    fn num_envs(&self) -> usize {
        self.states.len()
    }

    fn observation_space(&self) -> Space {
        Space::Discrete { n: self.mdp.num_states() }
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: self.mdp.num_actions() }
    }

    fn reset_at(&mut self, lane: usize, rng: &mut Rng, obs: &mut [i64]) -> Result<(), EnvError> {
        check_obs_len(1, obs.len())?;
        let starts = self.mdp.starts();
        let state = starts[rng.below(starts.len() as u32) as usize];
        *self.lane(lane)? = state;
        obs.fill(i64::from(state));
        Ok(())
    }

    fn step(
        &mut self,
        actions: &[i64],
        moments: Moments<'_>,
        obs: &mut [i64],
        out: StepOut<'_>,
    ) -> Result<(), EnvError> {
        let n = self.states.len();
        check_actions_len(n, actions.len())?;
        check_obs_len(n, obs.len())?;
        check_len("moments", n, moments.lanes.len())?;
        out.check_len(n)?;
        let valid = 0..i64::from(self.mdp.num_actions());
        if let Some(lane) = actions.iter().position(|action| !valid.contains(action)) {
            return Err(EnvError::InvalidAction { lane, action: actions[lane].to_string() });
        }
        let is_random = self.mdp.is_random();
        let results = obs.iter_mut().zip(out.rewards).zip(out.terminateds);
        for (lane, ((state, action), ((obs, reward), terminated))) in
            self.states.iter_mut().zip(actions).zip(results).enumerate()
        {
            let place = if is_random { self.mdp.place(moments.rng(lane)?.uniform_f64()) } else { 0 };
            let outcome = self.mdp.outcome(*state, *action as u32, place);
            *state = outcome.state;
            *obs = i64::from(outcome.state);
            *reward = outcome.reward;
            *terminated = outcome.terminated;
        }
        out.truncateds.fill(false);
        Ok(())
    }

    fn render_at(&self, lane: usize, frame: &mut Frame) -> bool {
        self.state(lane).is_some_and(|state| self.mdp.render(state, frame))
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) -> EnvState {
        out.extend(self.state(lane).into_iter().flat_map(u16::to_le_bytes));
        EnvState::Snapshot
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: &mut [i64]) -> Result<(), EnvError> {
        check_obs_len(1, obs.len())?;
        let mut reader = SnapshotReader::new(snapshot);
        let state = reader.u16()?;
        if u32::from(state) >= self.mdp.num_states() {
            return Err(reader.bad());
        }
        reader.finish()?;
        *self.lane(lane)? = state;
        obs.fill(i64::from(state));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        env::{
            Moment,
            toy_text::{FrozenLakeMap, FrozenLakeOptions},
        },
        ids::SlotId,
        rng::{Purpose, Streams},
    };

    /// Takes one step in all lanes, as step `t` of episode 0; returns the states after it, or the error.
    fn step(env: &mut TabularEnv, actions: &[i64], t: u32) -> Result<Vec<i64>, EnvError> {
        let lanes = env.num_envs();
        let moments: Vec<_> =
            (0..lanes as u32).map(|slot| Moment { slot: SlotId(slot), episode: 0, t, agent: 0 }).collect();
        let moments = Moments { streams: Streams::new(5, Purpose::EnvStep), lanes: &moments, mark: None };
        let (mut obs, mut rewards) = (vec![0; lanes], vec![0.0; lanes]);
        let (mut terminateds, mut truncateds) = (vec![false; lanes], vec![true; lanes]);
        let out = StepOut { rewards: &mut rewards, terminateds: &mut terminateds, truncateds: &mut truncateds };
        env.step(actions, moments, &mut obs, out)?;
        assert!(truncateds.iter().all(|flag| !flag));
        Ok(obs)
    }

    #[test]
    fn slippery_ice_slips_as_often_as_it_should() {
        let options = FrozenLakeOptions { success_rate: 0.5, ..FrozenLakeOptions::default() };
        let mut env = TabularEnv::new(1000, Mdp::frozen_lake(&FrozenLakeMap::small(), options));
        let mut counts = [0i32; 16];
        for t in 0..20 {
            // To the right from the second cell of the third row: or down, or up into a hole.
            (0..1000).for_each(|lane| env.set_state(lane, 9).unwrap());
            step(&mut env, &[2; 1000], t).unwrap().into_iter().for_each(|state| counts[state as usize] += 1);
        }
        let [up, right, down] = [counts[5], counts[10], counts[13]];
        assert_eq!(up + right + down, 20_000);
        for (count, expected) in [(up, 5_000), (right, 10_000), (down, 5_000)] {
            assert!(count.abs_diff(expected) < 300, "{counts:?}");
        }
    }

    #[test]
    fn refused_actions_move_no_lane() {
        let mut env = TabularEnv::new(2, Mdp::cliff_walking());
        env.set_state(0, 36).unwrap();
        for action in [4, -1, i64::MIN, i64::MAX] {
            let expected = EnvError::InvalidAction { lane: 1, action: action.to_string() };
            assert_eq!(step(&mut env, &[0, action], 0), Err(expected));
        }
        assert_eq!((env.state(0), env.state(1), env.state(2)), (Some(36), Some(0), None));
    }

    #[test]
    fn states_that_do_not_exist_are_refused() {
        let mut env = TabularEnv::new(1, Mdp::taxi());
        let mut obs = [0];
        assert_eq!(env.restore_at(0, &499u16.to_le_bytes(), &mut obs), Ok(()));
        assert_eq!((env.state(0), obs), (Some(499), [499]));
        assert_eq!(env.restore_at(0, &500u16.to_le_bytes(), &mut obs), Err(EnvError::BadSnapshot(2)));
        assert_eq!(env.restore_at(0, &[0], &mut obs), Err(EnvError::BadSnapshot(1)));
        assert_eq!(env.restore_at(0, &[0; 3], &mut obs), Err(EnvError::BadSnapshot(3)));
        assert_eq!(env.set_state(0, 500), Err(EnvError::Failed("there is no state 500, they are 0..500".into())));
        assert_eq!(env.state(0), Some(499));
    }

    #[test]
    fn episodes_begin_where_they_should() {
        let streams = Streams::new(1, Purpose::Reset);
        let mut env = TabularEnv::new(1, Mdp::taxi());
        let (mut obs, mut met) = ([0], vec![0; 500]);
        for episode in 0..3_000 {
            env.reset_at(0, &mut streams.at(SlotId(0), episode, 0, 0), &mut obs).unwrap();
            met[obs[0] as usize] += 1;
        }
        // With the passenger neither in the taxi nor at the destination: 25 cells, 4 places, 3 destinations.
        assert_eq!(env.mdp().starts().len(), 300);
        for (state, count) in met.iter().enumerate() {
            let (passenger, destination) = (state / 4 % 5, state % 4);
            assert!(*count == 0 || passenger < 4 && passenger != destination, "{state}");
        }
        assert!(met.iter().filter(|count| **count > 0).count() > 290);
    }
}
