//! Single environments side by side.

use super::{Env, EnvError, Moments, Rng, StepOut, VectorEnv};
use crate::{
    prelude::*,
    space::{Scalar, Space},
};

/// Steps single environments one after the other, as a [`VectorEnv`].
///
/// Actions that are not in a discrete space, or not a number, are refused before any lane moves. Numbers beyond the
/// bounds of a box go to the environment, which may clamp them.
#[derive(Clone, Debug)]
#[doc(alias = "SyncVectorEnv")]
pub struct Vectorized<E> {
    envs: Vec<E>,
    action_space: Space,
    obs_len: usize,
    act_len: usize,
}

impl<E: Env> Vectorized<E> {
    /// Puts environments of one kind side by side. An empty list makes a vector without lanes.
    #[must_use]
    pub fn new(envs: Vec<E>) -> Self {
        let action_space = envs.first().map_or(Space::Discrete { n: 0 }, E::action_space);
        Self {
            obs_len: envs.first().map_or(1, |env| env.observation_space().shape().elements()),
            act_len: action_space.shape().elements(),
            action_space,
            envs,
        }
    }

    /// The environments, lane by lane.
    #[must_use]
    pub fn envs(&self) -> &[E] {
        &self.envs
    }
}

impl<E: Env<Act: Scalar>> Vectorized<E> {
    fn accepts(&self, action: &[E::Act]) -> bool {
        match &self.action_space {
            Space::Box(_) => action.iter().all(|x| x.within(f64::NEG_INFINITY, f64::INFINITY)),
            space => space.contains_row(action).unwrap_or(false),
        }
    }
}

impl<E: Env<Act: Scalar>> VectorEnv for Vectorized<E> {
    type Obs = E::Obs;
    type Act = E::Act;

    fn num_envs(&self) -> usize {
        self.envs.len()
    }

    fn observation_space(&self) -> Space {
        self.envs.first().map_or(Space::Discrete { n: 0 }, E::observation_space)
    }

    fn action_space(&self) -> Space {
        self.action_space.clone()
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
        if let Some(lane) = actions.chunks_exact(self.act_len).position(|action| !self.accepts(action)) {
            let action = actions.chunks_exact(self.act_len).nth(lane);
            return Err(EnvError::InvalidAction { lane, action: format!("{:?}", action.unwrap_or_default()) });
        }
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
