//! Implements the estimators.

use core::ops::Range;

use super::{
    Estimate, EstimateError, Sample,
    episodes::{check_unique, episodes, finite, numbers, ratios, rewards},
    scaled::Scaled,
};
use crate::{
    batch::{ACTION_PROB, SampleBatch},
    prelude::*,
};

/// A method to evaluate a policy from the actions of another one.
///
/// `ratio_t` is the probability of the logged action under the new policy divided by that under the old one, and `rho_t` is
/// the product of the ratios of an episode up to step `t`, counted from the episode's first row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimator {
    /// Per-decision importance sampling (Precup, Sutton, Singh 2000): sum of `gamma^t rho_t r_t`. Unbiased, large
    /// variance.
    #[doc(alias("is", "pdis"))]
    ImportanceSampling,
    /// Importance sampling of whole trajectories: `rho` of the last step, times the return. Unbiased, with the largest
    /// variance; RLlib does not have it.
    #[doc(alias = "trajectory_is")]
    TrajectoryImportanceSampling,
    /// Per-decision importance sampling with `rho_t / w_t`, where `w_t` is the mean of `rho_t` over the episodes that reach
    /// step `t`. Biased, small variance; RLlib's method. It ignores that a policy makes episodes longer or shorter: where
    /// every step has the same reward, as in CartPole, its estimate for every policy is the behavior policy's return.
    #[doc(alias = "wis")]
    WeightedImportanceSampling,
    /// Consistent weighted per-decision importance sampling (Thomas, Brunskill 2016): `w_t` is the mean over all episodes,
    /// where ended episodes keep their last `rho` and have no further reward. Biased, small variance, and consistent even
    /// where policies differ in the length of episodes; RLlib does not have it.
    #[doc(alias = "cwpdis")]
    ConsistentWeightedImportanceSampling,
    /// A model's value of the episode's first state. It uses no ratios and is as accurate as the model.
    #[doc(alias = "dm")]
    DirectMethod,
    /// A model corrected by importance sampling (Jiang, Li 2016): from the last step to the first,
    /// `v = V_t + ratio_t (r_t + gamma v - Q_t)`.
    #[doc(alias = "dr")]
    DoublyRobust,
}

impl Estimator {
    /// All estimators.
    pub const ALL: [Self; 6] = [
        Self::ImportanceSampling,
        Self::TrajectoryImportanceSampling,
        Self::WeightedImportanceSampling,
        Self::ConsistentWeightedImportanceSampling,
        Self::DirectMethod,
        Self::DoublyRobust,
    ];

    /// Returns its short name: RLlib's where there is one.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ImportanceSampling => "is",
            Self::TrajectoryImportanceSampling => "trajectory_is",
            Self::WeightedImportanceSampling => "wis",
            Self::ConsistentWeightedImportanceSampling => "cwpdis",
            Self::DirectMethod => "dm",
            Self::DoublyRobust => "dr",
        }
    }

    /// Returns whether it needs a model's `v_values`, see [`QModel`](super::QModel).
    #[must_use]
    pub const fn needs_model(self) -> bool {
        matches!(self, Self::DirectMethod | Self::DoublyRobust)
    }

    /// Returns whether the weight of an episode depends on the others.
    pub(super) const fn weighs_together(self) -> bool {
        matches!(self, Self::WeightedImportanceSampling | Self::ConsistentWeightedImportanceSampling)
    }

    /// Returns the divisors of importance weights, step by step.
    pub(super) fn normal(self, rho: &[Scaled], episodes: &[Range<usize>]) -> Vec<Scaled> {
        match self {
            Self::ConsistentWeightedImportanceSampling => means_with_ended(rho, episodes),
            _ => means_by_step(rho, episodes),
        }
    }

    /// Evaluates the new policy on all samples of the batch: by episodes, or, without `split_by_episode`, by independent
    /// rows (bandits: `ratio r`, `ratio r / mean ratio`, `V`, `V + ratio (r - Q)`; no discount).
    ///
    /// The columns are 32- or 64-bit floats: `rewards` and `action_prob`; for all but the direct method also
    /// `new_action_prob`; for those with a model also `v_values`, and for the doubly robust one `q_values`; `eps_id` for
    /// episodes.
    ///
    /// # Errors
    /// [`EstimateError::NoSamples`] and the errors of [`per_episode`](Self::per_episode).
    pub fn estimate(self, batch: &SampleBatch, gamma: f64, split_by_episode: bool) -> Result<Estimate, EstimateError> {
        let samples = if split_by_episode { self.per_episode(batch, gamma)? } else { self.per_row(batch)? };
        Estimate::of(&samples)
    }

    /// Returns the sample of each episode, in order.
    ///
    /// Consecutive rows with one `eps_id` are an episode. An id that recurs after another one begins a new episode; weighted
    /// importance sampling rejects it, since its means would count the episode twice.
    ///
    /// # Errors
    /// [`EstimateError::Batch`] for a missing column or one of another type, [`EstimateError::NotScalar`],
    /// [`EstimateError::Probability`], [`EstimateError::Value`] and [`EstimateError::Gamma`] for non-finite numbers,
    /// [`EstimateError::Overflow`], and for weighted estimators [`EstimateError::EpisodeReturns`].
    #[doc(alias = "estimate_on_single_episode")]
    pub fn per_episode(self, batch: &SampleBatch, gamma: f64) -> Result<Vec<Sample>, EstimateError> {
        let (rewards, episodes) = (rewards(batch)?, episodes(batch)?);
        if self.weighs_together() {
            check_unique(batch, &episodes)?;
        }
        self.judge(batch, &rewards, gamma, &episodes)
    }

    /// Returns the samples of rows, as episodes of one step.
    fn per_row(self, batch: &SampleBatch) -> Result<Vec<Sample>, EstimateError> {
        let rewards = rewards(batch)?;
        let rows: Vec<Range<usize>> = (0..rewards.len()).map(|row| row..row + 1).collect();
        self.judge(batch, &rewards, 1.0, &rows)
    }

    fn judge(
        self,
        batch: &SampleBatch,
        rewards: &[f64],
        gamma: f64,
        episodes: &[Range<usize>],
    ) -> Result<Vec<Sample>, EstimateError> {
        if !gamma.is_finite() {
            return Err(EstimateError::Gamma(gamma));
        }
        let target: Vec<f64> = match self {
            Self::ImportanceSampling => {
                let rho = cumulative(&ratios(batch)?, episodes);
                let sum = |rows: &Range<usize>| discounted(rewards, rows, gamma, |i| rho[i]);
                episodes.iter().map(sum).collect::<Result<_, _>>()?
            }
            Self::TrajectoryImportanceSampling => {
                let rho = cumulative(&ratios(batch)?, episodes);
                let sum = |rows: &Range<usize>| discounted(rewards, rows, gamma, |_| rho[rows.end - 1]);
                episodes.iter().map(sum).collect::<Result<_, _>>()?
            }
            Self::WeightedImportanceSampling | Self::ConsistentWeightedImportanceSampling => {
                let rho = cumulative(&ratios(batch)?, episodes);
                let means = self.normal(&rho, episodes);
                let weight = |i: usize, step: usize| if rho[i].is_zero() { rho[i] } else { rho[i] / means[step] };
                let sum = |rows: &Range<usize>| discounted(rewards, rows, gamma, |i| weight(i, i - rows.start));
                episodes.iter().map(sum).collect::<Result<_, _>>()?
            }
            Self::DirectMethod => {
                logged(batch)?;
                let values = finite(batch, V_VALUES)?;
                episodes.iter().map(|rows| values[rows.start]).collect()
            }
            Self::DoublyRobust => {
                let (ratios, values, q) = (ratios(batch)?, finite(batch, V_VALUES)?, finite(batch, Q_VALUES)?);
                let step = |v: f64, i: usize| {
                    let error = Scaled::new(in_range(rewards[i] + gamma * v - q[i], i)?);
                    in_range(values[i] + (ratios[i] * error).at_scale(0), i)
                };
                episodes.iter().map(|rows| rows.clone().rev().try_fold(0.0, step)).collect::<Result<_, _>>()?
            }
        };
        let behavior = episodes.iter().map(|rows| discounted(rewards, rows, gamma, |_| Scaled::ONE));
        let pair = |(v_behavior, v_target): (Result<f64, _>, f64)| Ok(Sample { v_behavior: v_behavior?, v_target });
        behavior.zip(target).map(pair).collect()
    }
}

fn in_range(value: f64, row: usize) -> Result<f64, EstimateError> {
    if value.is_finite() { Ok(value) } else { Err(EstimateError::Overflow { row }) }
}

/// Requires that the log has its action probabilities, even for estimators that do not use them: without them it is not the
/// log of a policy.
fn logged(batch: &SampleBatch) -> Result<(), EstimateError> {
    numbers(batch, ACTION_PROB.name()).map(drop)
}

/// A model's value of the observation under the new policy.
pub(crate) const V_VALUES: &str = "v_values";
/// A model's value of the observation and the logged action under the new policy.
pub(crate) const Q_VALUES: &str = "q_values";

/// Returns the weight of each episode as a whole, the product of all its ratios, for
/// [`effective_sample_size`](super::effective_sample_size).
///
/// If the largest weight is beyond the range of doubles, above or below, all weights are multiplied by one power of two,
/// since only their proportions matter.
///
/// # Errors
/// The errors of [`Estimator::per_episode`].
pub fn importance_weights(batch: &SampleBatch) -> Result<Vec<f64>, EstimateError> {
    let (ratios, episodes) = (ratios(batch)?, episodes(batch)?);
    let product =
        |rows: &Range<usize>| ratios[rows.clone()].iter().fold(Scaled::ONE, |product, &ratio| product * ratio);
    let products: Vec<Scaled> = episodes.iter().map(product).collect();
    let largest = largest_exponent(&products);
    let scale = if largest.abs() < 1000 { 0 } else { largest };
    Ok(products.into_iter().map(|product| product.at_scale(scale)).collect())
}

/// Returns the sum of `gamma^t weight_t r_t` over the rows of an episode.
fn discounted(
    rewards: &[f64],
    rows: &Range<usize>,
    gamma: f64,
    weight: impl Fn(usize) -> Scaled,
) -> Result<f64, EstimateError> {
    let (mut sum, mut discount, gamma) = (0.0, Scaled::ONE, Scaled::new(gamma));
    for row in rows.clone() {
        let term = discount * weight(row) * Scaled::new(rewards[row]);
        sum = in_range(sum + term.at_scale(0), row)?;
        discount = discount * gamma;
    }
    Ok(sum)
}

/// Returns for each row the product of its episode's ratios up to it.
pub(super) fn cumulative(ratios: &[Scaled], episodes: &[Range<usize>]) -> Vec<Scaled> {
    let mut rho = ratios.to_vec();
    for rows in episodes {
        let mut product = Scaled::ONE;
        for value in &mut rho[rows.clone()] {
            product = product * *value;
            *value = product;
        }
    }
    rho
}

/// Returns for each step the mean over the episodes that reach it, summed on the scale of the largest value.
fn means_by_step(rho: &[Scaled], episodes: &[Range<usize>]) -> Vec<Scaled> {
    let mut steps: Vec<(i64, f64, f64)> = Vec::new();
    for rows in episodes {
        steps.resize(steps.len().max(rows.len()), (i64::MIN, 0.0, 0.0));
        for ((scale, ..), value) in steps.iter_mut().zip(&rho[rows.clone()]).filter(|(_, value)| !value.is_zero()) {
            *scale = value.exponent().max(*scale);
        }
    }
    for rows in episodes {
        for ((scale, sum, count), value) in steps.iter_mut().zip(&rho[rows.clone()]) {
            *sum += value.at_scale(*scale);
            *count += 1.0;
        }
    }
    steps.into_iter().map(|(scale, sum, count)| Scaled::new(sum / count).scaled_by(scale)).collect()
}

/// Returns for each step the mean over all episodes; ended episodes count with their last value.
fn means_with_ended(rho: &[Scaled], episodes: &[Range<usize>]) -> Vec<Scaled> {
    let longest = episodes.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let (mut active, mut ended) = (vec![Scaled::ZERO; longest], vec![Scaled::ZERO; longest + 1]);
    for rows in episodes {
        for (sum, value) in active.iter_mut().zip(&rho[rows.clone()]) {
            *sum = *sum + *value;
        }
        ended[rows.len()] = ended[rows.len()] + rho[rows.end - 1];
    }
    let (mut kept, count) = (Scaled::ZERO, Scaled::new(episodes.len() as f64));
    let mean = |(sum, ended): (Scaled, Scaled)| {
        kept = kept + ended;
        (sum + kept) / count
    };
    active.into_iter().zip(ended).map(mean).collect()
}

fn largest_exponent(values: &[Scaled]) -> i64 {
    values.iter().filter(|value| !value.is_zero()).map(|value| value.exponent()).max().unwrap_or(0)
}
