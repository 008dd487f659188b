//! Scaling of rewards.

use super::same_rows;
use crate::{
    env::{Env, EnvError, EnvState, Rng, SnapshotReader, Step},
    math,
    prelude::*,
};

/// Divides rewards by the standard deviation of their discounted sum, as Gymnasium's wrapper of the same name
/// (Engstrom et al.: "Implementation matters in deep policy gradients", 2020, section on reward scaling).
///
/// The discounted sum continues over truncated episodes and restarts at the reward of a terminal step. Its statistics begin
/// with mean 0 and variance 1, with the weight of 1/10,000 of a step. They are the lane's own, continue across episodes, and
/// are part of the snapshot. [`freeze`](Self::freeze) stops their updates.
#[derive(Clone, Debug)]
pub struct NormalizeReward<E> {
    pub(super) env: E,
    gamma: f64,
    epsilon: f64,
    stats: Stats,
    frozen: bool,
}

/// Larger numbers in snapshots are rejected, since their squares would soon overflow.
const MAX: f64 = 1e100;

/// Running statistics of the discounted sum.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stats {
    sum: f64,
    mean: f64,
    variance: f64,
    count: f64,
}

impl Stats {
    const START: Self = Self { sum: 0.0, mean: 0.0, variance: 1.0, count: 1e-4 };

    /// Adds a reward (Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances",
    /// 1979, for a second part of one value).
    fn push(&mut self, reward: f64, gamma: f64, terminated: bool) {
        self.sum = self.sum * gamma * if terminated { 0.0 } else { 1.0 } + reward;
        let delta = self.sum - self.mean;
        let count = self.count + 1.0;
        let squares = self.variance * self.count + delta * delta * self.count / count;
        self.mean += delta / count;
        self.variance = squares / count;
        self.count = count;
    }
}

impl<E: Env> NormalizeReward<E> {
    /// Wraps an environment, with the discount `gamma`. `epsilon` is added to the variance. Gymnasium's defaults are 0.99
    /// and 1e-8. A discount is clamped to 0 to 1; an `epsilon` below 0 becomes 0, and so does NaN.
    #[must_use]
    pub const fn new(env: E, gamma: f64, epsilon: f64) -> Self {
        let gamma = if gamma > 0.0 { gamma.min(1.0) } else { 0.0 };
        let epsilon = if epsilon > 0.0 && epsilon.is_finite() { epsilon } else { 0.0 };
        Self { env, gamma, epsilon, stats: Stats::START, frozen: false }
    }

    /// Freezes the statistics, for evaluation, or resumes their updates.
    pub const fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    /// Divides a reward by the deviation, unless that is 0.
    fn normalize(&self, reward: f64) -> f64 {
        let deviation = math::sqrt_f64(self.stats.variance + self.epsilon);
        if deviation > 0.0 { reward / deviation } else { reward }
    }
}

impl<E: Env> Env for NormalizeReward<E> {
    same_rows!();

    fn reset(&mut self, rng: &mut Rng, obs: &mut [E::Obs]) -> Result<(), EnvError> {
        self.env.reset(rng, obs)
    }

    fn step(&mut self, action: &[E::Act], rng: &mut Rng, obs: &mut [E::Obs]) -> Result<Step, EnvError> {
        let step = self.env.step(action, rng, obs)?;
        if !self.frozen {
            self.stats.push(step.reward, self.gamma, step.terminated);
        }
        Ok(Step { reward: self.normalize(step.reward), ..step })
    }

    fn snapshot(&self, out: &mut Vec<u8>) -> EnvState {
        let Stats { sum, mean, variance, count } = self.stats;
        out.extend([sum, mean, variance, count].iter().flat_map(|value| value.to_le_bytes()));
        self.env.snapshot(out).across_episodes()
    }

    fn restore(&mut self, snapshot: &[u8], obs: &mut [E::Obs]) -> Result<(), EnvError> {
        let mut reader = SnapshotReader::new(snapshot);
        let mut finite = || reader.finite();
        let stats = Stats { sum: finite()?, mean: finite()?, variance: finite()?, count: finite()? };
        let Stats { sum, mean, variance, count } = stats;
        let possible = sum.abs() < MAX && mean.abs() < MAX && (0.0..MAX * MAX).contains(&variance);
        if !possible || !(Stats::START.count..MAX).contains(&count) {
            return Err(reader.bad());
        }
        self.env.restore(reader.rest(), obs)?;
        self.stats = stats;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gymnasium's formulas, evaluated with NumPy.
    #[test]
    fn known_answers() {
        let mut stats = Stats::START;
        let rewards = [(1.0, false), (-2.0, false), (0.5, true), (3.0, false), (0.0, false)];
        let normalised = rewards.map(|(reward, terminated)| {
            stats.push(reward, 0.99, terminated);
            reward / math::sqrt_f64(stats.variance + 1e-8)
        });
        for (got, want) in normalised.iter().zip(KNOWN) {
            assert!((got - want).abs() < 1e-12 * want.abs().max(1.0), "{normalised:?}");
        }
    }

    const KNOWN: [f64; 5] = [70.71421321062337, -1.9900502339422828, 0.5851928617264023, 1.8503185604541212, 0.0];
}
