//! The estimators.

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
    /// Rows in a row with one `eps_id` are an episode. An id that comes back after another one begins an episode of its
    /// own, except for weighted importance sampling, whose means would count it twice.
    ///
    /// # Errors
    /// [`EstimateError::Batch`] for a missing column or one of another type, [`EstimateError::NotScalar`],
    /// [`EstimateError::Probability`], [`EstimateError::Value`] and [`EstimateError::Gamma`] for what is not finite,
    /// [`EstimateError::Overflow`], and for weighted importance sampling [`EstimateError::EpisodeReturns`].
    #[doc(alias = "estimate_on_single_episode")]
    pub fn per_episode(self, batch: &SampleBatch, gamma: f64) -> Result<Vec<Sample>, EstimateError> {
        let (rewards, episodes) = (rewards(batch)?, episodes(batch)?);
        if self == Self::WeightedImportanceSampling {
            check_unique(batch, &episodes)?;
        }
        self.judge(batch, &rewards, gamma, &episodes)
    }

    /// Rows as episodes of one step.
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
            Self::WeightedImportanceSampling => {
                let rho = cumulative(&ratios(batch)?, episodes);
                let means = means_by_step(&rho, episodes);
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
/// Where the largest one is beyond the range of doubles, above or below, all are multiplied by one power of two, since
/// only their proportions matter.
///
/// # Errors
/// As [`Estimator::per_episode`].
pub fn importance_weights(batch: &SampleBatch) -> Result<Vec<f64>, EstimateError> {
    let (ratios, episodes) = (ratios(batch)?, episodes(batch)?);
    let product =
        |rows: &Range<usize>| ratios[rows.clone()].iter().fold(Scaled::ONE, |product, &ratio| product * ratio);
    let products: Vec<Scaled> = episodes.iter().map(product).collect();
    let largest = largest_exponent(&products);
    let scale = if largest.abs() < 1000 { 0 } else { largest };
    Ok(products.into_iter().map(|product| product.at_scale(scale)).collect())
}

/// Sum of `gamma^t weight_t r_t` over the rows of an episode.
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

/// Product of the ratios of each row's episode up to the row.
fn cumulative(ratios: &[Scaled], episodes: &[Range<usize>]) -> Vec<Scaled> {
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

/// Mean over the episodes that reach it, for each step: summed on the scale of the largest.
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

fn largest_exponent(values: &[Scaled]) -> i64 {
    values.iter().filter(|value| !value.is_zero()).map(|value| value.exponent()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

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

    /// A log of one episode per list of `(reward, old, new)`.
    fn log_of(episodes: &[Vec<(f64, f64, f64)>]) -> SampleBatch {
        let rows: Vec<_> = episodes.iter().flatten().copied().collect();
        let ids: Vec<i64> = (0..).zip(episodes).flat_map(|(id, rows)| rows.iter().map(move |_| id)).collect();
        let column = |value: fn(&(f64, f64, f64)) -> f64| rows.iter().map(value).collect::<Vec<f64>>();
        let (rewards, old, new) = (column(|row| row.0), column(|row| row.1), column(|row| row.2));
        batch(&[("rewards", &rewards), ("action_prob", &old), ("new_action_prob", &new)], &ids)
    }

    /// `2^1100` and `2^-1100` are no doubles.
    #[test]
    fn products_over_long_episodes() {
        for (old, new) in [(0.5, 1.0), (1.0, 0.5)] {
            let long = log_of(&[vec![(1.0, old, new); 1100]]);
            let found = WeightedImportanceSampling.estimate(&long, 1.0, true).unwrap();
            assert_eq!((found.v_behavior, found.v_target), (1100.0, 1100.0));
            let twice = log_of(&[vec![(1.0, old, new); 1100], vec![(1.0, old, new); 1100]]);
            let weights = importance_weights(&twice).unwrap();
            assert_eq!(crate::estimate::effective_sample_size(&weights), 2.0);
        }
        let mut sparse = vec![(0.0, 0.5, 1.0); 1100];
        sparse[0].0 = 1.0;
        assert_eq!(ImportanceSampling.estimate(&log_of(&[sparse]), 1.0, true).unwrap().v_target, 2.0);
        // Discounts and ratios may balance.
        let balanced = log_of(&[vec![(1.0, 0.5, 1.0); 1100]]);
        assert_eq!(ImportanceSampling.estimate(&balanced, 0.5, true).unwrap().v_target, 2200.0);
        let error = ImportanceSampling.estimate(&balanced, 1.0, true).unwrap_err();
        assert_eq!(error, EstimateError::Overflow { row: 1022 });
        let unlikely = log_of(&[vec![(1.0, 1e-308, 1e10)], vec![(1.0, 0.5, 0.5)]]);
        assert_close(WeightedImportanceSampling.estimate(&unlikely, 1.0, true).unwrap().v_target, 1.0);
    }

    #[test]
    fn what_is_not_finite_is_named() {
        let log = log_of(&[vec![(1.0, 0.5, 0.5), (f64::INFINITY, 0.5, 0.5)]]);
        for split in [false, true] {
            let error = ImportanceSampling.estimate(&log, 1.0, split).unwrap_err();
            assert_eq!(error.to_string(), "'rewards' is inf at row 1; it must be finite");
        }
        let mut log = log_of(&[vec![(1.0, 0.5, 0.5)]]);
        assert!(matches!(ImportanceSampling.estimate(&log, f64::NAN, true), Err(EstimateError::Gamma(_))));
        log.insert("v_values", ColumnData::scalars(vec![f64::NAN])).unwrap();
        let error = DirectMethod.estimate(&log, 1.0, true).unwrap_err();
        assert!(matches!(error, EstimateError::Value { column: "v_values", row: 0, .. }), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        #[test]
        fn on_policy_everything_is_worth_what_it_earned(
            episodes in vec(vec((-9.0f64..9.0, 0.01f64..1.0), 1..30), 1..6),
            gamma in 0.0f64..=1.0,
        ) {
            let logged = |rows: &Vec<(f64, f64)>| rows.iter().map(|&(reward, prob)| (reward, prob, prob)).collect();
            let log = log_of(&episodes.iter().map(logged).collect::<Vec<_>>());
            for estimator in [ImportanceSampling, WeightedImportanceSampling] {
                for sample in estimator.per_episode(&log, gamma).unwrap() {
                    prop_assert!((sample.v_target - sample.v_behavior).abs() < 1e-9, "{sample:?}");
                }
            }
        }

        /// A lone episode weighs as much as the mean of all, however unlikely it is.
        #[test]
        fn weighted_one_episode_is_worth_what_it_earned(
            rows in vec((-9.0f64..9.0, 1e-12f64..1.0, 1e-12f64..1.0), 1..4000),
            gamma in 0.9f64..=1.0,
        ) {
            let sample = WeightedImportanceSampling.per_episode(&log_of(&[rows]), gamma).unwrap()[0];
            prop_assert_eq!(sample.v_target, sample.v_behavior);
        }
    }
}
