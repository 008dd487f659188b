//! Many lanes in one small world.

use super::Mdp;
use crate::{
    env::{EnvError, Moments, Rng, StepOut, VectorEnv},
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
    /// `num_envs` lanes, to be reset before their first step.
    #[must_use]
    pub fn new(num_envs: usize, mdp: impl Into<Arc<Mdp>>) -> Self {
        Self { mdp: mdp.into(), states: vec![0; num_envs] }
    }

    /// The world.
    #[must_use]
    pub fn mdp(&self) -> &Arc<Mdp> {
        &self.mdp
    }

    /// The state of a lane.
    #[must_use]
    pub fn state(&self, lane: usize) -> u16 {
        self.states[lane]
    }

    /// Puts a lane into a state.
    ///
    /// # Errors
    /// [`EnvError::Failed`] for a state that the world does not have.
    pub fn set_state(&mut self, lane: usize, state: u16) -> Result<(), EnvError> {
        let num_states = self.mdp.num_states();
        if u32::from(state) >= num_states {
            return Err(EnvError::Failed(format!("there is no state {state}, they are 0..{num_states}")));
        }
        self.states[lane] = state;
        Ok(())
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
        let starts = self.mdp.starts();
        let state = starts[rng.below(starts.len() as u32) as usize];
        self.states[lane] = state;
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
        let valid = 0..i64::from(self.mdp.num_actions());
        if let Some(lane) = actions.iter().position(|action| !valid.contains(action)) {
            return Err(EnvError::InvalidAction { lane, action: actions[lane].to_string() });
        }
        let is_random = self.mdp.is_random();
        let results = obs.iter_mut().zip(out.rewards).zip(out.terminateds);
        for (lane, ((state, action), ((obs, reward), terminated))) in
            self.states.iter_mut().zip(actions).zip(results).enumerate()
        {
            let place = if is_random { self.mdp.place(moments.rng(lane).uniform_f64()) } else { 0 };
            let outcome = self.mdp.outcome(*state, *action as u32, place);
            *state = outcome.state;
            *obs = i64::from(outcome.state);
            *reward = outcome.reward;
            *terminated = outcome.terminated;
        }
        out.truncateds.fill(false);
        Ok(())
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.states[lane].to_le_bytes());
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: &mut [i64]) -> Result<(), EnvError> {
        let bad = || EnvError::BadSnapshot(snapshot.len());
        let state = u16::from_le_bytes(snapshot.try_into().map_err(|_| bad())?);
        self.set_state(lane, state).map_err(|_| bad())?;
        obs.fill(i64::from(state));
        Ok(())
    }
}
