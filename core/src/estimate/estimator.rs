//! The estimators.

use core::ops::Range;

use super::{
    Estimate, EstimateError, Sample,
    episodes::{check_unique, episodes, numbers, ratios, rewards},
};
use crate::{
    batch::{ACTION_PROB, SampleBatch},
    prelude::*,
};

/// How to judge a policy by what another one did.
///
/// With `ratio_t` the probability of the logged action under the new policy over that under the old one, and `rho_t`
/// the product of the ratios of an episode up to step `t`, which counts from the episode's first row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Estimator {
    /// Per-decision importance sampling (Precup, Sutton, Singh 2000): sum of `gamma^t rho_t r_t`. Unbiased, large
    /// variance.
    #[doc(alias = "is")]
    ImportanceSampling,
    /// The same with `rho_t / w_t`, `w_t` the mean of `rho_t` over the episodes that reach step `t`. Biased, small
    /// variance.
    #[doc(alias = "wis")]
    WeightedImportanceSampling,
    /// A model's value of the episode's first state. No ratios; as good as the model.
    #[doc(alias = "dm")]
    DirectMethod,
    /// A model corrected by importance sampling (Jiang, Li 2016): from the last step to the first,
    /// `v = V_t + ratio_t (r_t + gamma v - Q_t)`.
    #[doc(alias = "dr")]
    DoublyRobust,
}

impl Estimator {
    /// Judges the new policy by all samples of the batch: by episodes, or, without `split_by_episode`, by rows that
    /// each stand for themselves (bandits: `ratio r`, `ratio r / mean ratio`, `V`, `V + ratio (r - Q)`; no discount).
    ///
    /// Columns, 32- or 64-bit floats: `rewards` and `action_prob`; all but the direct method `new_action_prob`; those
    /// with a model `v_values`, the doubly robust one also `q_values`; `eps_id` for episodes.
    ///
    /// # Errors
    /// [`EstimateError::NoSamples`] and those of [`per_episode`](Self::per_episode).
    pub fn estimate(self, batch: &SampleBatch, gamma: f64, split_by_episode: bool) -> Result<Estimate, EstimateError> {
        let samples = if split_by_episode { self.per_episode(batch, gamma)? } else { self.per_row(batch)? };
        Estimate::of(&samples)
    }

    /// What each episode says, in order.
    ///
    /// # Errors
    /// [`EstimateError::Batch`] for a missing column or one of another type, [`EstimateError::NotScalar`],
    /// [`EstimateError::Probability`], and for weighted importance sampling [`EstimateError::EpisodeReturns`].
    #[doc(alias = "estimate_on_single_episode")]
    pub fn per_episode(self, batch: &SampleBatch, gamma: f64) -> Result<Vec<Sample>, EstimateError> {
        let rewards = rewards(batch)?;
        let episodes = episodes(batch)?;
        let behavior = episodes.iter().map(|rows| discounted(&rewards[rows.clone()], gamma, |_| 1.0));
        let target: Vec<f64> = match self {
            Self::ImportanceSampling => {
                let rho = cumulative(&ratios(batch)?, &episodes);
                let sum = |rows: &Range<usize>| discounted(&rewards[rows.clone()], gamma, |t| rho[rows.start + t]);
                episodes.iter().map(sum).collect()
            }
            Self::WeightedImportanceSampling => {
                let rho = cumulative(&ratios(batch)?, &episodes);
                check_unique(batch, &episodes)?;
                let means = means_by_step(&rho, &episodes);
                let weight = |rho: f64, mean: f64| if rho == 0.0 { 0.0 } else { rho / mean };
                let sum = |rows: &Range<usize>| {
                    discounted(&rewards[rows.clone()], gamma, |t| weight(rho[rows.start + t], means[t]))
                };
                episodes.iter().map(sum).collect()
            }
            Self::DirectMethod => {
                logged(batch)?;
                let values = numbers(batch, V_VALUES)?;
                episodes.iter().map(|rows| values[rows.start]).collect()
            }
            Self::DoublyRobust => {
                let (ratios, values, q) = (ratios(batch)?, numbers(batch, V_VALUES)?, numbers(batch, Q_VALUES)?);
                let step = |v: f64, i: usize| values[i] + ratios[i] * (rewards[i] + gamma * v - q[i]);
                episodes.iter().map(|rows| rows.clone().rev().fold(0.0, step)).collect()
            }
        };
        Ok(behavior.zip(target).map(|(v_behavior, v_target)| Sample { v_behavior, v_target }).collect())
    }

    fn per_row(self, batch: &SampleBatch) -> Result<Vec<Sample>, EstimateError> {
        let rewards = rewards(batch)?;
        let target: Vec<f64> = match self {
            Self::ImportanceSampling => rewards.iter().zip(ratios(batch)?).map(|(r, ratio)| ratio * r).collect(),
            Self::WeightedImportanceSampling => {
                let ratios = ratios(batch)?;
                let mean = super::mean(ratios.iter().copied());
                let weight = |ratio: f64| if ratio == 0.0 { 0.0 } else { ratio / mean };
                rewards.iter().zip(ratios).map(|(r, ratio)| weight(ratio) * r).collect()
            }
            Self::DirectMethod => {
                logged(batch)?;
                numbers(batch, V_VALUES)?
            }
            Self::DoublyRobust => {
                let (values, q) = (numbers(batch, V_VALUES)?, numbers(batch, Q_VALUES)?);
                let model = values.iter().zip(q).zip(ratios(batch)?);
                model.zip(&rewards).map(|(((v, q), ratio), r)| v + ratio * (r - q)).collect()
            }
        };
        let pairs = rewards.into_iter().zip(target);
        Ok(pairs.map(|(v_behavior, v_target)| Sample { v_behavior, v_target }).collect())
    }
}

/// Asks that the log says with which probabilities it came about, also of who does not use them: without, it is no
/// log of a policy.
fn logged(batch: &SampleBatch) -> Result<(), EstimateError> {
    numbers(batch, ACTION_PROB.name()).map(drop)
}

/// A model's value of the observation under the new policy.
const V_VALUES: &str = "v_values";
/// A model's value of the observation and the logged action under the new policy.
const Q_VALUES: &str = "q_values";

/// Weight of each episode as a whole: the product of all its ratios, for
/// [`effective_sample_size`](super::effective_sample_size).
///
/// # Errors
/// As [`Estimator::per_episode`].
pub fn importance_weights(batch: &SampleBatch) -> Result<Vec<f64>, EstimateError> {
    let (ratios, episodes) = (ratios(batch)?, episodes(batch)?);
    Ok(episodes.into_iter().map(|rows| ratios[rows].iter().product()).collect())
}

/// Sum of `gamma^t weight(t) r_t`.
fn discounted(rewards: &[f64], gamma: f64, weight: impl Fn(usize) -> f64) -> f64 {
    let (mut sum, mut discount) = (0.0, 1.0);
    for (t, reward) in rewards.iter().enumerate() {
        sum += discount * weight(t) * reward;
        discount *= gamma;
    }
    sum
}

/// Product of the ratios of each row's episode up to the row.
fn cumulative(ratios: &[f64], episodes: &[Range<usize>]) -> Vec<f64> {
    let mut rho = ratios.to_vec();
    for rows in episodes {
        let mut product = 1.0;
        for value in &mut rho[rows.clone()] {
            product *= *value;
            *value = product;
        }
    }
    rho
}

/// Mean over the episodes that reach it, for each step.
fn means_by_step(rho: &[f64], episodes: &[Range<usize>]) -> Vec<f64> {
    let mut sums: Vec<(f64, u32)> = Vec::new();
    for rows in episodes {
        sums.resize(sums.len().max(rows.len()), (0.0, 0));
        for (sum, value) in sums.iter_mut().zip(&rho[rows.clone()]) {
            *sum = (sum.0 + value, sum.1 + 1);
        }
    }
    sums.into_iter().map(|(sum, count)| sum / f64::from(count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::{BatchError, EPS_ID},
        column::ColumnData,
    };

    fn batch(columns: &[(&'static str, &[f64])], ids: &[i64]) -> SampleBatch {
        let mut batch = SampleBatch::new().with(EPS_ID, ColumnData::scalars(ids.to_vec())).unwrap();
        for (name, values) in columns {
            batch.insert(*name, ColumnData::scalars(values.to_vec())).unwrap();
        }
        batch
    }

    const OLD: [f64; 5] = [0.5, 0.5, 0.25, 0.8, 0.5];
    const NEW: [f64; 5] = [0.25, 0.75, 0.5, 0.4, 0.5];

    /// Two episodes with rewards 1, 2, 3 and 4, 5.
    fn logged(new: [f64; 5]) -> SampleBatch {
        let rewards = [1.0, 2.0, 3.0, 4.0, 5.0];
        batch(&[("rewards", &rewards), ("action_prob", &OLD), ("new_action_prob", &new)], &[1, 1, 1, 2, 2])
    }

    fn assert_close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "{found} {expected}");
    }

    use Estimator::{DirectMethod, DoublyRobust, ImportanceSampling, WeightedImportanceSampling};

    #[test]
    fn by_episode() {
        let found = ImportanceSampling.estimate(&logged(NEW), 1.0, true).unwrap();
        for (found, expected) in [
            (found.v_behavior, 7.5),
            (found.v_behavior_std, 1.5),
            (found.v_target, 5.5),
            (found.v_target_std, 1.0),
            (found.v_gain, 5.5 / 7.5),
            (found.v_delta, -2.0),
        ] {
            assert_close(found, expected);
        }
        let found = WeightedImportanceSampling.estimate(&logged(NEW), 1.0, true).unwrap();
        assert_close(found.v_target, 7.2);
        assert_close(found.v_target_std, 0.8);
        assert_close(found.v_gain, 0.96);
        assert_eq!(importance_weights(&logged(NEW)).unwrap(), [1.5, 0.5]);
    }

    #[test]
    fn the_same_policy_is_worth_the_same() {
        for estimator in [ImportanceSampling, WeightedImportanceSampling] {
            let found = estimator.estimate(&logged(OLD), 0.9, true).unwrap();
            assert_close(found.v_behavior, 6.865);
            assert_close(found.v_target, 6.865);
        }
    }

    #[test]
    fn rows_as_bandits() {
        for (estimator, target) in [(ImportanceSampling, 3.3), (WeightedImportanceSampling, 3.0)] {
            let found = estimator.estimate(&logged(NEW), 0.5, false).unwrap();
            assert_close(found.v_behavior, 3.0);
            assert_close(found.v_target, target);
        }
    }

    #[test]
    fn with_a_model() {
        let mut logged = logged(NEW);
        logged.insert("v_values", ColumnData::scalars(vec![1.0, 2.0, 3.0, 4.0, 5.0])).unwrap();
        logged.insert("q_values", ColumnData::scalars(vec![0.5; 5])).unwrap();
        let samples = DirectMethod.per_episode(&logged, 0.9).unwrap();
        assert_eq!([samples[0].v_target, samples[1].v_target], [1.0, 4.0]);
        assert_close(DirectMethod.estimate(&logged, 0.9, false).unwrap().v_target, 3.0);
        let samples = DoublyRobust.per_episode(&logged, 0.5).unwrap();
        // v = 5 + (5 - 0.5) = 9.5; 4 + 0.5 (4 + 4.75 - 0.5)
        assert_close(samples[1].v_target, 8.125);
        // v = 3 + 2 (2.5) = 8; 2 + 1.5 (2 + 4 - 0.5) = 10.25; 1 + 0.5 (1 + 5.125 - 0.5)
        assert_close(samples[0].v_target, 3.8125);
        // Rows: 1 + 0.5 (0.5), 2 + 1.5 (1.5), 3 + 2 (2.5), 4 + 0.5 (3.5), 5 + 4.5
        assert_close(
            DoublyRobust.estimate(&logged, 0.5, false).unwrap().v_target,
            (1.25 + 4.25 + 8.0 + 5.75 + 9.5) / 5.0,
        );
    }

    #[test]
    fn the_last_step_counts() {
        let one = batch(&[("rewards", &[3.0]), ("action_prob", &[0.5]), ("new_action_prob", &[1.0])], &[1]);
        assert_eq!(ImportanceSampling.per_episode(&one, 0.9).unwrap(), [Sample { v_behavior: 3.0, v_target: 6.0 }]);
    }

    #[test]
    fn steps_that_the_new_policy_never_reaches_count_nothing() {
        let never = logged([0.0, 0.75, 0.5, 0.0, 0.5]);
        for split in [false, true] {
            let found = WeightedImportanceSampling.estimate(&never, 1.0, split).unwrap();
            assert!(found.v_target.is_finite(), "{found:?}");
        }
        assert_eq!(WeightedImportanceSampling.estimate(&never, 1.0, true).unwrap().v_target, 0.0);
    }

    #[test]
    fn errors_name_column_and_row() {
        let bare = batch(&[("rewards", &[1.0]), ("new_action_prob", &[1.0])], &[1]);
        let error = ImportanceSampling.estimate(&bare, 0.9, true).unwrap_err();
        assert_eq!(error, EstimateError::Batch(BatchError::MissingColumn("action_prob".into())));
        let ones = [1.0; 3];
        let columns = [("rewards", &ones[..]), ("action_prob", &ones), ("new_action_prob", &ones)];
        let back = batch(&columns, &[1, 2, 1]);
        let error = WeightedImportanceSampling.estimate(&back, 0.9, true).unwrap_err();
        assert_eq!(error, EstimateError::EpisodeReturns { eps_id: 1, row: 2 });
        assert_eq!(ImportanceSampling.per_episode(&back, 0.9).unwrap().len(), 3);
        let mut impossible = back.clone();
        impossible.insert("action_prob", ColumnData::scalars(vec![1.0, 0.0, 1.0])).unwrap();
        let error = ImportanceSampling.estimate(&impossible, 0.9, true).unwrap_err();
        assert_eq!(error, EstimateError::Probability { column: "action_prob", row: 1, value: 0.0 });
        let unlogged = batch(&[("rewards", &[1.0]), ("v_values", &[1.0])], &[1]);
        let error = DirectMethod.estimate(&unlogged, 0.9, true).unwrap_err();
        assert_eq!(error, EstimateError::Batch(BatchError::MissingColumn("action_prob".into())));
        let empty = batch(&[("rewards", &[]), ("v_values", &[]), ("action_prob", &[])], &[]);
        assert_eq!(DirectMethod.estimate(&empty, 0.9, true).unwrap_err(), EstimateError::NoSamples);
    }
}
