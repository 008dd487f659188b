//! One lane of many as an environment of its own.

use super::{Env, EnvError, EnvState, Frame, Moment, Moments, Rng, Step, StepOut, VectorEnv};
use crate::{
    prelude::*,
    rng::{Purpose, Streams},
    space::Space,
};

/// Wraps a [`VectorEnv`] with one lane as an [`Env`], so that [`wrappers`](super::wrappers) can be applied. With more lanes
/// or none, every reset or step is an error.
///
/// A step's random numbers come from other streams than in a vector environment, so trajectories have the same distribution
/// but not the same bits.
///
/// ```
/// use rollmesh_core::env::{
///     EnvSpec, Lane, Vectorized, check_env,
///     classic::Pendulum,
///     wrappers::{ClipReward, RewardClip, TimeLimit},
/// };
///
/// let spec = EnvSpec::new("ShortPendulum-v0", |contexts, _kernels| {
///     let env = || ClipReward::new(TimeLimit::new(Lane::new(Pendulum::new(1)), 50), RewardClip::Limit(8.0));
///     Box::new(Vectorized::new(contexts.iter().map(|_| env()).collect()))
/// });
/// check_env(&spec, 2)?;
/// # Ok::<(), rollmesh_core::env::CheckError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lane<V> {
    env: V,
}

impl<V: VectorEnv> Lane<V> {
    /// Wraps an environment with one lane.
    #[must_use]
    pub const fn new(env: V) -> Self {
        Self { env }
    }

    /// Returns the environment inside.
    #[must_use]
    pub const fn env(&self) -> &V {
        &self.env
    }
}

impl<V: VectorEnv> Env for Lane<V> {
    type Obs = V::Obs;
    type Act = V::Act;

    fn observation_space(&self) -> Space {
        self.env.observation_space()
    }

    fn action_space(&self) -> Space {
        self.env.action_space()
    }

    fn reset(&mut self, rng: &mut Rng, obs: &mut [V::Obs]) -> Result<(), EnvError> {
        self.env.reset_at(0, rng, obs)
    }

    fn step(&mut self, action: &[V::Act], rng: &mut Rng, obs: &mut [V::Obs]) -> Result<Step, EnvError> {
        let seed = u64::from(rng.next_u32()) << 32 | u64::from(rng.next_u32());
        let moments =
            Moments { streams: Streams::new(seed, Purpose::EnvStep), lanes: &[Moment::default()], mark: None };
        let (mut reward, mut terminated, mut truncated) = ([0.0], [false], [false]);
        let out = StepOut { rewards: &mut reward, terminateds: &mut terminated, truncateds: &mut truncated };
        self.env.step(action, moments, obs, out)?;
        Ok(Step { reward: reward[0], terminated: terminated[0], truncated: truncated[0] })
    }

    fn render(&self, frame: &mut Frame) -> bool {
        self.env.render_at(0, frame)
    }

    fn info(&self, out: &mut Vec<u8>) -> bool {
        self.env.info_at(0, out)
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        match self.env.snapshot_at(0, out) {
            // Its recorded actions are a complete snapshot, whatever wraps it.
            EnvState::Replay => EnvState::Snapshot,
            state => state,
        }
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [V::Obs]) -> Result<(), EnvError> {
        self.env.restore_at(0, snapshot, obs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        env::{
            CheckOptions, EnvSpec, Vectorized, check_env_all,
            toy_text::{FrozenLakeMap, FrozenLakeOptions, Mdp, TabularEnv},
        },
        ids::SlotId,
    };

    fn lake() -> Mdp {
        Mdp::frozen_lake(&FrozenLakeMap::small(), FrozenLakeOptions::default())
    }

    #[test]
    fn random_steps_keep_the_rules() {
        let spec = EnvSpec::new("Lake", |contexts, _| {
            let env = || Lane::new(TabularEnv::new(1, lake()));
            Box::new(Vectorized::new(contexts.iter().map(|_| env()).collect()))
        });
        assert_eq!(check_env_all(&spec, CheckOptions { lanes: 2, steps: 100, seed: 4 }), []);
    }

    #[test]
    fn only_a_single_lane_is_one() {
        let mut rng = Streams::new(1, Purpose::Reset).at(SlotId(0), 0, 0, 0);
        let mut none = Lane::new(TabularEnv::new(0, lake()));
        assert_eq!(none.reset(&mut rng, &mut [0]), Err(EnvError::NoSuchLane { lane: 0, num_envs: 0 }));
        let mut two = Lane::new(TabularEnv::new(2, lake()));
        let error = two.step(&[0], &mut rng, &mut [0]).unwrap_err();
        assert_eq!(error.to_string(), "2 action elements are needed for the environment's lanes, the buffer has 1");
    }
}
