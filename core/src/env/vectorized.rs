//! Single environments side by side.

use super::{Env, EnvError, Frame, Moments, Rng, StepOut, VectorEnv, check_actions_len, check_len, check_obs_len};
use crate::{
    column::Element as _,
    prelude::*,
    space::{Scalar, Space},
};

/// Steps single environments one after the other, as a [`VectorEnv`].
///
/// Actions that are not in a discrete space, or not a number, are refused before any lane moves. Numbers beyond the
/// bounds of a box go to the environments, which may clamp them or not [accept](Env::accepts) them.
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
            // No space has points without elements, but an author can make one up.
            obs_len: envs.first().map_or(1, |env| env.observation_space().shape().elements()).max(1),
            act_len: action_space.shape().elements().max(1),
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
    /// One pass over all elements for the space, and one over the lanes for what their environments have against it:
    /// the second is nothing where [`Env::accepts`] is the default.
    fn check_actions(&self, actions: &[E::Act]) -> Result<(), EnvError> {
        let within = |low: f64, high: f64| actions.iter().position(|x| !x.within(low, high)).map(|i| i / self.act_len);
        let impossible = match &self.action_space {
            Space::Box(_) => within(f64::NEG_INFINITY, f64::INFINITY),
            space @ Space::Discrete { n } if space.takes_rows_of(E::Act::DTYPE) => within(0.0, f64::from(*n) - 1.0),
            space => actions.chunks_exact(self.act_len).position(|row| !space.contains_row(row).unwrap_or(false)),
        };
        let mut rows = self.envs.iter().zip(actions.chunks_exact(self.act_len)).take(impossible.unwrap_or(usize::MAX));
        match rows.position(|(env, action)| !env.accepts(action)).or(impossible) {
            Some(lane) => {
                let action = actions.chunks_exact(self.act_len).nth(lane).unwrap_or_default();
                Err(EnvError::InvalidAction { lane, action: format!("{action:?}") })
            }
            None => Ok(()),
        }
    }

    fn lane(&mut self, lane: usize, obs_len: usize) -> Result<&mut E, EnvError> {
        let num_envs = self.envs.len();
        let env = self.envs.get_mut(lane).ok_or(EnvError::NoSuchLane { lane, num_envs })?;
        check_obs_len(self.obs_len, obs_len)?;
        Ok(env)
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
        self.lane(lane, obs.len())?.reset(rng, obs)
    }

    fn step(
        &mut self,
        actions: &[Self::Act],
        moments: Moments<'_>,
        obs: &mut [Self::Obs],
        out: StepOut<'_>,
    ) -> Result<(), EnvError> {
        let n = self.envs.len();
        check_actions_len(n * self.act_len, actions.len())?;
        check_obs_len(n * self.obs_len, obs.len())?;
        check_len("moments", n, moments.lanes.len())?;
        out.check_len(n)?;
        self.check_actions(actions)?;
        let rows = obs.chunks_exact_mut(self.obs_len).zip(actions.chunks_exact(self.act_len));
        let flags = out.terminateds.iter_mut().zip(out.truncateds);
        let results = out.rewards.iter_mut().zip(flags);
        let lanes = self.envs.iter_mut().zip(moments.lanes);
        for (lane, ((env, moment), ((obs, action), (reward, (terminated, truncated))))) in
            lanes.zip(rows.zip(results)).enumerate()
        {
            let step = env.step(action, &mut moments.rng_at(*moment), obs).map_err(|error| match error {
                EnvError::InvalidAction { action, .. } => EnvError::InvalidAction { lane, action },
                other if n > 1 => EnvError::InLane { lane, source: Box::new(other) },
                other => other,
            })?;
            (*reward, *terminated, *truncated) = (step.reward, step.terminated, step.truncated);
        }
        Ok(())
    }

    fn render_at(&self, lane: usize, frame: &mut Frame) -> bool {
        self.envs.get(lane).is_some_and(|env| env.render(frame))
    }

    fn info_at(&self, lane: usize, out: &mut Vec<u8>) -> bool {
        self.envs.get(lane).is_some_and(|env| env.info(out))
    }

    fn snapshot_at(&self, lane: usize, out: &mut Vec<u8>) {
        if let Some(env) = self.envs.get(lane) {
            env.snapshot(out);
        }
    }

    fn restore_at(&mut self, lane: usize, snapshot: &[u8], obs: &mut [Self::Obs]) -> Result<(), EnvError> {
        self.lane(lane, obs.len())?.restore(snapshot, obs)
    }
}
