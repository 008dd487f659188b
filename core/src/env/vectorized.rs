//! Single environments side by side.

use super::{Env, EnvError, Moments, Rng, StepOut, VectorEnv};
use crate::{prelude::*, space::Space};

/// Steps single environments one after the other, as a [`VectorEnv`].
#[derive(Clone, Debug)]
#[doc(alias = "SyncVectorEnv")]
pub struct Vectorized<E> {
    envs: Vec<E>,
    obs_len: usize,
    act_len: usize,
}

impl<E: Env> Vectorized<E> {
    /// Puts environments of one kind side by side. An empty list makes a vector without lanes.
    #[must_use]
    pub fn new(envs: Vec<E>) -> Self {
        let len = |space: fn(&E) -> Space| envs.first().map_or(1, |env| space(env).shape().elements());
        Self { obs_len: len(E::observation_space), act_len: len(E::action_space), envs }
    }
}

impl<E: Env> VectorEnv for Vectorized<E> {
    type Obs = E::Obs;
    type Act = E::Act;

    fn num_envs(&self) -> usize {
        self.envs.len()
    }

    fn observation_space(&self) -> Space {
        self.envs.first().map_or(Space::Discrete { n: 0 }, E::observation_space)
    }

    fn action_space(&self) -> Space {
        self.envs.first().map_or(Space::Discrete { n: 0 }, E::action_space)
    }

    fn reset_at(&mut self, lane: usize, rng: &mut Rng, obs: &mut [Self::Obs]) -> Result<(), EnvError> {
        self.envs[lane].reset(rng, obs)
    }

    fn step(
        &mut self,
        actions: &[Self::Act],
        moments: Moments<'_>,
        obs: &mut [Self::Obs],
        out: StepOut<'_>,
    ) -> Result<(), EnvError> {
        let rows = obs.chunks_exact_mut(self.obs_len).zip(actions.chunks_exact(self.act_len));
        for (lane, (env, (obs, action))) in self.envs.iter_mut().zip(rows).enumerate() {
            let step = env.step(action, &mut moments.rng(lane), obs).map_err(|error| match error {
                EnvError::InvalidAction { action, .. } => EnvError::InvalidAction { lane, action },
                other => other,
            })?;
            out.rewards[lane] = step.reward;
            out.terminateds[lane] = step.terminated;
            out.truncateds[lane] = step.truncated;
        }
        Ok(())
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) {
        self.envs[lane].snapshot(out);
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: &mut [Self::Obs]) -> Result<(), EnvError> {
        self.envs[lane].restore(snapshot, obs)
    }
}
