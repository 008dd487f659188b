//! A conformance check for environments, for users' own too.

use super::{AnyVectorEnv, EnvContext, EnvError, EnvSpec, Moment, Moments, RowsMut, RowsRef, StepOut};
use crate::{
    column::DType,
    ids::SlotId,
    kernels::Kernels,
    prelude::*,
    rng::{Purpose, Streams},
    run::HomeIndex,
    space::Space,
};

/// What an environment does wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The environment failed where it should not.
    #[error("{during}: {source}")]
    Failed {
        /// What it was doing.
        during: &'static str,
        /// The failure.
        source: EnvError,
    },
    /// It has another number of lanes than it was made for.
    #[error("made for {wanted} lanes, it has {found}")]
    Lanes {
        /// Lanes asked for.
        wanted: usize,
        /// Lanes there.
        found: usize,
    },
    /// An observation is not in the observation space.
    #[error("an observation after {0} is not in the observation space")]
    OutsideSpace(&'static str),
    /// The same reset or actions gave other results the second time.
    #[error("{0} is not deterministic: the same random numbers and actions gave other results")]
    NotDeterministic(&'static str),
    /// Going on from a snapshot gave other results than going on.
    #[error("a lane restored from its snapshot goes on differently")]
    BadRestore,
    /// Observations or actions of this element type are not checked.
    #[error("the check knows f32 observations and i64 actions, this environment has {0}")]
    Unsupported(String),
}

/// Checks lanes, spaces, determinism, and that a restored snapshot goes on with the same bits.
///
/// # Errors
/// The first [`CheckError`] found.
pub fn check_env(spec: &EnvSpec, lanes: usize) -> Result<(), CheckError> {
    let mut original = Probe::new(spec, lanes)?;
    let mut twin = Probe::new(spec, lanes)?;
    original.reset("reset", 0)?;
    twin.reset("reset", 0)?;
    if original.obs != twin.obs {
        return Err(CheckError::NotDeterministic("reset"));
    }
    let mut restored = false;
    for t in 0..300 {
        let ended = original.step(t)?;
        twin.step(t)?;
        if original.outcome() != twin.outcome() {
            return Err(if restored { CheckError::BadRestore } else { CheckError::NotDeterministic("step") });
        }
        if t % 16 == 3 && !ended {
            // A fresh instance: nothing may be kept outside the snapshot.
            twin = Probe::new(spec, lanes)?;
            twin.restore(&original)?;
            restored = true;
            if twin.obs != original.obs {
                return Err(CheckError::BadRestore);
            }
        }
        if ended {
            original.reset("reset after an episode", t)?;
            twin.reset("reset after an episode", t)?;
        }
    }
    Ok(())
}

struct Probe {
    env: Box<dyn AnyVectorEnv>,
    space: Space,
    num_actions: u32,
    obs: Vec<f32>,
    rewards: Vec<f64>,
    terminateds: Vec<bool>,
    truncateds: Vec<bool>,
}

impl Probe {
    fn new(spec: &EnvSpec, lanes: usize) -> Result<Self, CheckError> {
        let contexts: Vec<_> = (0..lanes as u32)
            .map(|vector_index| EnvContext { home: HomeIndex { worker_index: 1, vector_index } })
            .collect();
        let env = spec.make(&contexts, Kernels::PORTABLE);
        if env.num_envs() != lanes {
            return Err(CheckError::Lanes { wanted: lanes, found: env.num_envs() });
        }
        let space = env.observation_space();
        let (Space::Discrete { n }, (DType::F32, DType::I64)) = (env.action_space(), env.dtypes()) else {
            let (obs, act) = env.dtypes();
            return Err(CheckError::Unsupported(format!("{obs} observations and {act} actions")));
        };
        Ok(Self {
            obs: vec![0.0; lanes * space.shape().elements()],
            rewards: vec![0.0; lanes],
            terminateds: vec![false; lanes],
            truncateds: vec![false; lanes],
            num_actions: n,
            space,
            env,
        })
    }

    fn width(&self) -> usize {
        self.obs.len() / self.rewards.len()
    }

    fn outcome(&self) -> (&[f32], &[f64], &[bool], &[bool]) {
        (&self.obs, &self.rewards, &self.terminateds, &self.truncateds)
    }

    fn reset(&mut self, during: &'static str, episode: u32) -> Result<(), CheckError> {
        let streams = Streams::new(1, Purpose::Reset);
        let width = self.width();
        for (lane, obs) in self.obs.chunks_exact_mut(width).enumerate() {
            let mut rng = streams.at(SlotId(lane as u32), episode, 0, 0);
            self.env
                .reset_at(lane, &mut rng, RowsMut::F32(obs))
                .map_err(|source| CheckError::Failed { during, source })?;
        }
        self.check_obs(during)
    }

    /// Steps all lanes; true if an episode ended in any of them.
    fn step(&mut self, t: u32) -> Result<bool, CheckError> {
        let moments: Vec<_> =
            (0..self.rewards.len() as u32).map(|lane| Moment { slot: SlotId(lane), episode: 0, t }).collect();
        let choose = Streams::new(1, Purpose::Action);
        let actions: Vec<i64> =
            moments.iter().map(|m| i64::from(choose.at(m.slot, 0, t, 0).below(self.num_actions))).collect();
        let moments = Moments { streams: Streams::new(1, Purpose::EnvStep), lanes: &moments };
        let out = StepOut {
            rewards: &mut self.rewards,
            terminateds: &mut self.terminateds,
            truncateds: &mut self.truncateds,
        };
        self.env
            .step(RowsRef::I64(&actions), moments, RowsMut::F32(&mut self.obs), out)
            .map_err(|source| CheckError::Failed { during: "step", source })?;
        self.check_obs("a step")?;
        Ok(self.terminateds.iter().chain(&self.truncateds).any(|&flag| flag))
    }

    fn restore(&mut self, from: &Self) -> Result<(), CheckError> {
        let width = self.width();
        for (lane, obs) in self.obs.chunks_exact_mut(width).enumerate() {
            let mut snapshot = Vec::new();
            from.env.snapshot_at(lane, &mut snapshot);
            self.env
                .restore_at(lane, &snapshot, RowsMut::F32(obs))
                .map_err(|source| CheckError::Failed { during: "restore", source })?;
        }
        Ok(())
    }

    /// The observation of a terminal state may lie outside, as Gymnasium's CartPole shows.
    fn check_obs(&self, after: &'static str) -> Result<(), CheckError> {
        let rows = self.obs.chunks_exact(self.width()).zip(&self.terminateds);
        if rows.into_iter().any(|(row, ended)| !ended && !self.space.contains_floats(row)) {
            return Err(CheckError::OutsideSpace(after));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::env::{Env, Rng, Step, Vectorized};

    /// An environment that counts, and may keep a part of its state out of the snapshot.
    #[derive(Default)]
    struct Counter {
        count: u32,
        hidden: u32,
        forgetful: bool,
    }

    impl Env for Counter {
        type Obs = f32;
        type Act = i64;

        fn observation_space(&self) -> Space {
            Space::vector(&[0.0], &[1e6])
        }
        fn action_space(&self) -> Space {
            Space::Discrete { n: 3 }
        }
        fn reset(&mut self, _: &mut Rng, obs: &mut [f32]) -> Result<(), EnvError> {
            self.count = 0;
            obs[0] = self.count as f32;
            Ok(())
        }
        fn step(&mut self, action: &[i64], _: &mut Rng, obs: &mut [f32]) -> Result<Step, EnvError> {
            self.hidden += 1;
            self.count += action[0] as u32 + if self.forgetful { self.hidden } else { 0 };
            obs[0] = self.count as f32;
            Ok(Step { reward: 1.0, ..Step::default() })
        }
        fn snapshot(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.count.to_le_bytes());
        }
        fn restore(&mut self, snapshot: &[u8], obs: &mut [f32]) -> Result<(), EnvError> {
            let bytes = snapshot.try_into().map_err(|_| EnvError::BadSnapshot(snapshot.len()))?;
            self.count = u32::from_le_bytes(bytes);
            obs[0] = self.count as f32;
            Ok(())
        }
    }

    fn spec(forgetful: bool) -> EnvSpec {
        EnvSpec::new("Counter", move |contexts, _| {
            let envs = contexts.iter().map(|_| Counter { forgetful, ..Counter::default() });
            Box::new(Vectorized::new(envs.collect()))
        })
    }

    #[test]
    fn a_good_environment_passes() {
        check_env(&spec(false), 2).unwrap();
    }

    #[test]
    fn state_outside_the_snapshot_is_found() {
        assert_eq!(check_env(&spec(true), 2), Err(CheckError::BadRestore));
    }
}
