//! Clipping of rewards.

use super::{same_rows, same_state};
use crate::{
    env::{Env, EnvError, Rng, Step},
    prelude::*,
};

/// The clipping of rewards.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RewardClip {
    /// To -1, 0 or 1: their sign, as RLlib's `clip_rewards=True`.
    Sign,
    /// To [-c, c], as RLlib's `clip_rewards=c`. The sign of c does not matter.
    Limit(f64),
}

impl RewardClip {
    /// Returns the clipped reward. NaN stays NaN.
    #[must_use]
    pub const fn apply(self, reward: f64) -> f64 {
        match self {
            Self::Sign if reward == 0.0 || reward.is_nan() => reward,
            Self::Sign => reward.signum(),
            Self::Limit(c) if reward > c.abs() => c.abs(),
            Self::Limit(c) if reward < -c.abs() => -c.abs(),
            Self::Limit(_) => reward,
        }
    }
}

/// Clips rewards.
///
/// The returns of episodes are then sums of clipped rewards, in metrics too.
#[derive(Clone, Debug)]
#[doc(alias = "ClipRewardEnv")]
pub struct ClipReward<E> {
    pub(super) env: E,
    clip: RewardClip,
}

impl<E: Env> ClipReward<E> {
    /// Wraps an environment.
    #[must_use]
    pub const fn new(env: E, clip: RewardClip) -> Self {
        Self { env, clip }
    }
}

impl<E: Env> Env for ClipReward<E> {
    same_rows!();

    fn reset(&mut self, rng: &mut Rng, obs: &mut [E::Obs]) -> Result<(), EnvError> {
        self.env.reset(rng, obs)
    }

    fn step(&mut self, action: &[E::Act], rng: &mut Rng, obs: &mut [E::Obs]) -> Result<Step, EnvError> {
        let step = self.env.step(action, rng, obs)?;
        Ok(Step { reward: self.clip.apply(step.reward), ..step })
    }

    same_state!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_and_limits() {
        let signs = [0.3, -7.0, 0.0, -0.0].map(|reward| RewardClip::Sign.apply(reward));
        assert_eq!(signs, [1.0, -1.0, 0.0, 0.0]);
        let limits = [0.3, -7.0, 1.5, f64::INFINITY].map(|reward| RewardClip::Limit(1.0).apply(reward));
        assert_eq!(limits, [0.3, -1.0, 1.0, 1.0]);
        assert_eq!(RewardClip::Limit(-2.0).apply(3.0), 2.0);
        assert!(RewardClip::Sign.apply(f64::NAN).is_nan() && RewardClip::Limit(1.0).apply(f64::NAN).is_nan());
    }
}
