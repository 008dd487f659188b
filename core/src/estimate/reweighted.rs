//! Computes intervals of weighted estimators, with the weights of each draw.

use core::ops::Range;

use super::{
    EstimateError, Estimator, Interval,
    confidence::{Studied, bootstrap_interval, bootstrap_t},
    episodes::{check_unique, episodes, ratios, rewards},
    estimator::cumulative,
    scaled::Scaled,
};
use crate::{batch::SampleBatch, math, prelude::*, rng::Streams};

impl Estimator {
    /// Returns the interval that contains the value of the new policy with probability `confidence`: the bootstrap-t over
    /// episodes, as in [`bootstrap_interval`]. Weighted estimators recompute the weights of every draw, since the weights of
    /// an episode depend on the others; their standard error is that of the episodes' influences (the infinitesimal
    /// jackknife: Jaeckel 1972). For a bandit's log, give each row its own `eps_id`.
    ///
    /// A model's values count as exact. The interval of the direct method is therefore the spread of first states alone, and
    /// that of the doubly robust one is a little too narrow if the model was trained on the same episodes.
    /// [`refit_interval`] covers the model's variance.
    ///
    /// [`refit_interval`]: super::refit_interval
    ///
    /// # Errors
    /// The errors of [`per_episode`](Self::per_episode) and [`bootstrap_interval`].
    pub fn interval(
        self,
        batch: &SampleBatch,
        gamma: f64,
        confidence: f64,
        resamples: u32,
        streams: &Streams,
    ) -> Result<Interval, EstimateError> {
        if self.weighs_together() {
            let mut rows = Reweighted::new(self, batch, gamma)?;
            let interval =
                bootstrap_t(rows.episodes.len(), confidence, resamples, streams, |counts| rows.study(counts))?;
            let bad = !(interval.low.is_finite() && interval.high.is_finite());
            return if bad { Err(EstimateError::Overflow { row: 0 }) } else { Ok(interval) };
        }
        let values: Vec<f64> = self.per_episode(batch, gamma)?.iter().map(|sample| sample.v_target).collect();
        bootstrap_interval(&values, confidence, resamples, streams)
    }
}

/// Weighted importance sampling of any selection of episodes.
struct Reweighted {
    episodes: Vec<Range<usize>>,
    /// The weight of each row's step: `rho_t`, relative to approximately the largest one at that step.
    weights: Vec<f64>,
    /// The weight times `gamma^t r_t`.
    terms: Vec<f64>,
    /// Whether ended episodes count with their last weight; otherwise they do not count.
    ended: bool,
    /// The unit of the weights of the previous step, divided by the unit of this step.
    rescale: Vec<f64>,
    /// The steps of the selected episodes.
    steps: Vec<ReweightedStep>,
}

/// Sums over the episodes at a step.
#[derive(Clone, Copy, Default)]
struct ReweightedStep {
    /// Sum of their terms.
    terms: f64,
    /// Sum of their weights.
    weights: f64,
    /// Sum of the weights of the episodes for which it is the last step.
    last: f64,
    /// Number of episodes that reach it.
    count: f64,
    /// Derivatives of the sum over steps by a term, a weight, the presence of an episode, and a weight kept from the
    /// previous step.
    slopes: [f64; 4],
}

impl Reweighted {
    fn new(estimator: Estimator, batch: &SampleBatch, gamma: f64) -> Result<Self, EstimateError> {
        if !gamma.is_finite() {
            return Err(EstimateError::Gamma(gamma));
        }
        let (rewards, episodes) = (rewards(batch)?, episodes(batch)?);
        check_unique(batch, &episodes)?;
        let rho = cumulative(&ratios(batch)?, &episodes);
        let scales = estimator.normal(&rho, &episodes);
        let (mut weights, mut terms) = (Vec::with_capacity(rho.len()), Vec::with_capacity(rho.len()));
        for rows in &episodes {
            let mut discount = Scaled::ONE;
            for (row, scale) in rows.clone().zip(&scales) {
                let weight = rho[row].at_scale(scale.exponent());
                weights.push(weight);
                terms.push((discount * Scaled::new(weight) * Scaled::new(rewards[row])).at_scale(0));
                discount = discount * Scaled::new(gamma);
            }
        }
        let exponents = || scales.iter().map(|scale| scale.exponent());
        let before = core::iter::once(0).chain(exponents());
        let rescale =
            before.zip(exponents()).map(|(before, here)| Scaled::ONE.scaled_by(before).at_scale(here)).collect();
        let ended = estimator == Estimator::ConsistentWeightedImportanceSampling;
        let steps = vec![ReweightedStep::default(); scales.len()];
        Ok(Self { episodes, weights, terms, ended, rescale, steps })
    }

    /// Returns the estimate and its standard error, where each episode counts this number of times.
    fn study(&mut self, counts: &[u32]) -> Studied {
        self.sum_up(counts);
        let n = counts.iter().map(|count| f64::from(*count)).sum::<f64>();
        let value = self.weigh(n) / n;
        let squares = |(rows, count): (&Range<usize>, &u32)| {
            let influence = if *count == 0 { 0.0 } else { self.influence(rows, value) };
            f64::from(*count) * influence * influence
        };
        let squares: f64 = self.episodes.iter().zip(counts).map(squares).sum();
        Studied { value, std_error: math::sqrt_f64(squares) / n }
    }

    fn sum_up(&mut self, counts: &[u32]) {
        self.steps.fill(ReweightedStep::default());
        for (rows, count) in self.episodes.iter().zip(counts).filter(|(_, count)| **count > 0) {
            let times = f64::from(*count);
            for (row, step) in rows.clone().zip(&mut self.steps) {
                step.terms += times * self.terms[row];
                step.weights += times * self.weights[row];
                step.count += times;
            }
            if let (Some(step), Some(weight)) = (self.steps.get_mut(rows.len() - 1), self.weights.get(rows.end - 1)) {
                step.last += times * weight;
            }
        }
    }

    /// Returns the sum over steps of `n` episodes, and computes its derivatives.
    fn weigh(&mut self, n: f64) -> f64 {
        let (mut kept, mut sum) = (0.0, 0.0);
        for (step, rescale) in self.steps.iter_mut().zip(&self.rescale) {
            // A zero stays zero, however much the scale changes.
            kept = if kept == 0.0 { 0.0 } else { kept * rescale };
            let (all, count) = if self.ended { (step.weights + kept, n) } else { (step.weights, step.count) };
            if all > 0.0 {
                let (mean, share) = (step.terms / all, count / all);
                sum += mean * count;
                // Where ended episodes count, the presence of an episode changes nothing.
                step.slopes = [share, -mean * share, if self.ended { 0.0 } else { mean }, 0.0];
            }
            kept += step.last;
        }
        if self.ended {
            let mut later = 0.0;
            for (step, rescale) in self.steps.iter_mut().zip(&self.rescale).rev() {
                let [_, weight, _, kept] = &mut step.slopes;
                later += *weight;
                later = if later == 0.0 { 0.0 } else { later * rescale };
                *kept = later;
            }
        }
        sum
    }

    /// Returns the change of the estimate by an episode, times the number of episodes. The sum over all counted episodes is
    /// 0.
    fn influence(&self, rows: &Range<usize>, value: f64) -> f64 {
        let moved = rows.clone().zip(&self.steps).map(|(row, step)| {
            let [term, weight, there, _] = step.slopes;
            self.terms[row] * term + self.weights[row] * weight + there
        });
        let moved: f64 = moved.sum();
        if !self.ended {
            return moved - value;
        }
        let last = self.weights.get(rows.end.wrapping_sub(1)).copied().unwrap_or(0.0);
        let kept = self.steps.get(rows.len()).map_or(0.0, |step| step.slopes[3]);
        if last == 0.0 { moved } else { moved + last * kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{batch::EPS_ID, column::ColumnData, rng::Purpose};

    const STREAMS: Streams = Streams::new(3, Purpose::Shuffle);

    /// Returns episodes of two steps, whose ratios range from a half to one and a half.
    fn log(episodes: i64, reward: impl Fn(i64) -> f64) -> SampleBatch {
        let rows = || (0..episodes).flat_map(|episode| [episode; 2]);
        let column = |value: &dyn Fn(i64) -> f64| ColumnData::scalars(rows().map(value).collect::<Vec<_>>());
        let mut batch = SampleBatch::new().with(EPS_ID, ColumnData::scalars(rows().collect())).unwrap();
        for (name, values) in [
            ("rewards", column(&reward)),
            ("action_prob", column(&|_| 0.5)),
            ("new_action_prob", column(&|episode| if episode % 2 == 0 { 0.25 } else { 0.75 })),
        ] {
            batch.insert(name, values).unwrap();
        }
        batch
    }

    #[test]
    fn all_episodes_once_are_the_estimate() {
        // Different lengths: the last row belongs to another episode.
        let mut batch = log(6, |episode| episode as f64);
        batch.insert(EPS_ID.name(), ColumnData::scalars(vec![0i64, 0, 0, 1, 2, 2, 3, 3, 4, 4, 5, 6])).unwrap();
        for estimator in Estimator::ALL.into_iter().filter(|estimator| estimator.weighs_together()) {
            let estimate = estimator.estimate(&batch, 0.9, true).unwrap();
            let value = Reweighted::new(estimator, &batch, 0.9).unwrap().study(&[1; 7]).value;
            assert!((value - estimate.v_target).abs() < 1e-12, "{value} {estimate:?}");
        }
    }

    /// Checks that a small increase of an episode's weight changes the estimate by its influence.
    #[test]
    fn influences_are_slopes() {
        let mut batch = log(6, |episode| episode as f64);
        batch.insert(EPS_ID.name(), ColumnData::scalars(vec![0i64, 0, 0, 1, 2, 2, 3, 3, 4, 4, 5, 6])).unwrap();
        for estimator in Estimator::ALL.into_iter().filter(|estimator| estimator.weighs_together()) {
            let mut rows = Reweighted::new(estimator, &batch, 0.9).unwrap();
            let times = 1_000_000;
            for episode in 0..7 {
                let mut more = [times; 7];
                more[episode] += 1;
                let value = rows.study(&[times; 7]).value;
                let influence = rows.influence(&rows.episodes[episode].clone(), value);
                let moved = (rows.study(&more).value - value) * f64::from(7 * times);
                assert!((moved - influence).abs() < 1e-3, "{estimator:?} {episode}: {moved} {influence}");
            }
        }
    }

    #[test]
    fn equal_rewards_make_importance_weights_irrelevant() {
        let interval = |estimator: Estimator| estimator.interval(&log(40, |_| 1.0), 1.0, 0.9, 200, &STREAMS).unwrap();
        let Interval { low, high } = interval(Estimator::WeightedImportanceSampling);
        assert!((low - 2.0).abs() < 1e-12 && (high - 2.0).abs() < 1e-12, "{low} {high}");
        let Interval { low, high } = interval(Estimator::ImportanceSampling);
        assert!(low < 1.9 && high > 2.1 && high - low < 1.5, "{low} {high}");
    }

    #[test]
    fn weighted_estimates_without_interval_are_refused() {
        let interval = |batch: &SampleBatch, gamma, confidence| {
            Estimator::WeightedImportanceSampling.interval(batch, gamma, confidence, 50, &STREAMS)
        };
        assert_eq!(interval(&log(3, |_| f64::MAX), 9.0, 0.9).unwrap_err(), EstimateError::Overflow { row: 0 });
        assert_eq!(interval(&log(3, |_| 1.0), f64::INFINITY, 0.9).unwrap_err(), EstimateError::Gamma(f64::INFINITY));
        assert_eq!(interval(&log(3, |_| 1.0), 1.0, 2.0).unwrap_err(), EstimateError::Confidence(2.0));
        assert_eq!(interval(&log(0, |_| 1.0), 1.0, 0.5).unwrap_err(), EstimateError::NoSamples);
    }
}
