//! Repetition of actions over several frames.

use super::same_rows;
use crate::{
    column::Element as _,
    env::{Env, EnvError, EnvState, Rng, SnapshotReader, Step, put_rows},
    prelude::*,
    space::Space,
};

/// Repeats every action, sums the rewards, and returns the larger value of each element in the last two frames: old consoles
/// draw some things in every second frame only (Mnih et al., 2015).
///
/// An episode that ends within a step returns the maximum of its own last two frames, or its only one. A reset returns its
/// frame unchanged.
#[derive(Clone, Debug)]
#[doc(alias = "MaxAndSkipEnv")]
pub struct SkipFrames<E: Env> {
    pub(super) env: E,
    skip: u32,
    /// The frame that forms the observation together with the newest one, if `pooled`.
    other: Vec<E::Obs>,
    pooled: bool,
    space: Space,
}

impl<E: Env> SkipFrames<E> {
    /// Wraps an environment, with `skip` frames per action, at least one. DeepMind and RLlib use 4.
    #[must_use]
    pub fn new(env: E, skip: u32) -> Self {
        let space = env.observation_space();
        let other = vec![E::Obs::default(); space.shape().elements()];
        Self { env, skip: skip.max(1), other, pooled: false, space }
    }
}

fn pool<T: Copy + PartialOrd>(obs: &mut [T], other: &[T]) {
    for (x, other) in obs.iter_mut().zip(other) {
        *x = if *other > *x { *other } else { *x };
    }
}

impl<E: Env> Env for SkipFrames<E> {
    same_rows!();

    fn reset(&mut self, rng: &mut Rng, obs: &mut [E::Obs]) -> Result<(), EnvError> {
        self.pooled = false;
        self.env.reset(rng, obs)
    }

    fn step(&mut self, action: &[E::Act], rng: &mut Rng, obs: &mut [E::Obs]) -> Result<Step, EnvError> {
        let mut total = Step::default();
        let mut frames = 0;
        while frames < self.skip && !total.terminated && !total.truncated {
            // Alternates the buffers, so that the last frame is in `obs` and the one before it in `other`.
            let last_or_alike = (self.skip - frames) % 2 == 1;
            let frame = if last_or_alike { &mut *obs } else { &mut self.other[..] };
            let step = self.env.step(action, rng, frame)?;
            total = Step { reward: total.reward + step.reward, ..step };
            frames += 1;
        }
        let newest_is_other = (self.skip - frames) % 2 == 1;
        self.pooled = frames > 1;
        if self.pooled {
            pool(obs, &self.other);
        }
        if newest_is_other {
            if self.pooled {
                // The frame in `obs` is within the observation, and gives the same maximum with the newest frame.
                self.other.copy_from_slice(obs);
            } else {
                obs.copy_from_slice(&self.other);
            }
        }
        Ok(total)
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        out.push(u8::from(self.pooled));
        if self.pooled {
            put_rows(out, E::Obs::erase_rows(&self.other));
        }
        self.env.snapshot(out)
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [E::Obs]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let pooled = reader.bool()?;
        if pooled {
            reader.rows(E::Obs::erase_rows_mut(&mut self.other))?;
            if !self.space.contains_row(&self.other).unwrap_or(false) {
                return Err(reader.bad());
            }
        }
        self.env.restore(reader.rest(), obs)?;
        self.pooled = pooled;
        if pooled {
            pool(obs, &self.other);
        }
        Ok(())
    }
}
