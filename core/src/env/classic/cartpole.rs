//! CartPole, exact to Gymnasium's: state in 64-bit floats, observations in 32.

use crate::{
    env::{EnvError, Moments, Rng, StepOut, VectorEnv},
    kernels::{CartPoleState, Kernels, cartpole},
    prelude::*,
    space::Space,
};

/// Carts with a pole to be kept upright, as structure of arrays. Reward 1 for every step, the last included.
#[derive(Clone, Debug)]
#[doc(alias = "CartPole-v1")]
pub struct CartPole {
    /// x, x_dot, theta, theta_dot of every lane.
    state: [Vec<f64>; 4],
    kernels: Kernels,
}

impl CartPole {
    /// Carts for `num_envs` lanes, to be reset before their first step.
    #[must_use]
    pub fn new(num_envs: usize, kernels: Kernels) -> Self {
        Self { state: core::array::from_fn(|_| vec![0.0; num_envs]), kernels }
    }

    /// The state of a lane: x, x_dot, theta, theta_dot.
    #[must_use]
    pub fn state(&self, lane: usize) -> [f64; 4] {
        core::array::from_fn(|i| self.state[i][lane])
    }

    /// Puts a lane into a state.
    pub fn set_state(&mut self, lane: usize, state: [f64; 4]) {
        for (values, value) in self.state.iter_mut().zip(state) {
            values[lane] = value;
        }
    }

    fn observe(&self, lane: usize, obs: &mut [f32]) {
        for (x, values) in obs.iter_mut().zip(&self.state) {
            *x = values[lane] as f32;
        }
    }
}

impl VectorEnv for CartPole {
    type Obs = f32;
    type Act = i64;

    fn num_envs(&self) -> usize {
        self.state[0].len()
    }

    fn observation_space(&self) -> Space {
        let high = [
            (cartpole::X_THRESHOLD * 2.0) as f32,
            f32::INFINITY,
            (cartpole::THETA_THRESHOLD * 2.0) as f32,
            f32::INFINITY,
        ];
        Space::vector(&high.map(|x| -x), &high)
    }

    fn action_space(&self) -> Space {
        Space::Discrete { n: 2 }
    }

    fn reset_at(&mut self, lane: usize, rng: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
        self.set_state(lane, core::array::from_fn(|_| rng.uniform_in(-0.05, 0.05)));
        self.observe(lane, obs);
        Ok(())
    }

    fn step(
        &mut self,
        actions: &[i64],
        _moments: Moments<'_>,
        obs: &mut [f32],
        out: StepOut<'_>,
    ) -> Result<(), EnvError> {
        if let Some(lane) = actions.iter().position(|action| !(0..2).contains(action)) {
            return Err(EnvError::InvalidAction { lane, action: actions[lane].to_string() });
        }
        let [x, x_dot, theta, theta_dot] = &mut self.state;
        (self.kernels.cartpole_step)(CartPoleState { x, x_dot, theta, theta_dot }, actions, obs, out.terminateds);
        out.rewards.fill(1.0);
        out.truncateds.fill(false);
        Ok(())
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) {
        for value in self.state(lane) {
            out.extend_from_slice(&value.to_le_bytes());
        }
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
        let bad = || EnvError::BadSnapshot(snapshot.len());
        let (words, []) = snapshot.as_chunks::<8>() else { return Err(bad()) };
        let state: [[u8; 8]; 4] = words.try_into().map_err(|_| bad())?;
        let state = state.map(f64::from_le_bytes);
        if !state.iter().all(|value| value.is_finite()) {
            return Err(bad());
        }
        self.set_state(lane, state);
        self.observe(lane, obs);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{EnvRegistry, check_env};

    #[test]
    fn keeps_the_contract() {
        let registry = EnvRegistry::builtin();
        check_env(registry.spec("CartPole-v1").unwrap(), 3).unwrap();
    }

    #[test]
    fn hostile_snapshots_are_refused() {
        let mut env = CartPole::new(1, Kernels::PORTABLE);
        let mut obs = [0.0; 4];
        assert_eq!(env.restore_at(0, &[0; 31], &mut obs), Err(EnvError::BadSnapshot(31)));
        assert_eq!(env.restore_at(0, &[0; 40], &mut obs), Err(EnvError::BadSnapshot(40)));
        assert_eq!(env.restore_at(0, &[0xFF; 32], &mut obs), Err(EnvError::BadSnapshot(32)));
        assert_eq!(env.restore_at(0, &[0; 32], &mut obs), Ok(()));
    }
}
