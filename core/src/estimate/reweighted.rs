//! Intervals of estimators, whose weights are those of the drawn episodes.

use core::ops::Range;

use super::{
    EstimateError, Estimator, Interval,
    confidence::{bootstrap_interval, resampled},
    episodes::{check_unique, episodes, ratios, rewards},
    estimator::cumulative,
    scaled::Scaled,
};
use crate::{batch::SampleBatch, prelude::*, rng::Streams};

impl Estimator {
    /// Interval in which the value of the new policy lies with probability `confidence`: the percentile bootstrap over
    /// episodes, as [`bootstrap_interval`] has it. Weighted estimators weigh every draw anew, since the weights of
    /// an episode depend on the others. For a bandit's log give each row an `eps_id` of its own.
    ///
    /// What a model says is taken as true, so for the direct method this is the spread of first states alone, not the
    /// model's error.
    ///
    /// # Errors
    /// As [`per_episode`](Self::per_episode) and [`bootstrap_interval`].
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
            let interval = resampled(rows.episodes.len(), confidence, resamples, streams, |drawn| rows.value(drawn))?;
            let bad = !(interval.low.is_finite() && interval.high.is_finite());
            return if bad { Err(EstimateError::Overflow { row: 0 }) } else { Ok(interval) };
        }
        let values: Vec<f64> = self.per_episode(batch, gamma)?.iter().map(|sample| sample.v_target).collect();
        bootstrap_interval(&values, confidence, resamples, streams)
    }
}

/// Weighted importance sampling of any choice of episodes.
struct Reweighted {
    episodes: Vec<Range<usize>>,
    /// Of each row, what its step weighs: `rho_t`, as a multiple of about the largest one at that step.
    weights: Vec<f64>,
    /// The same times `gamma^t r_t`.
    terms: Vec<f64>,
    /// Whether episodes that have ended count with their last weight; if not, they do not count.
    ended: bool,
    /// What a weight is a multiple of at the step before, as a multiple of what it is at each step.
    rescale: Vec<f64>,
    /// Sums of terms, of weights and of the last weights of episodes that end there, and the episodes that count.
    steps: Vec<[f64; 4]>,
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
        let steps = vec![[0.0; 4]; scales.len()];
        Ok(Self { episodes, weights, terms, ended, rescale, steps })
    }

    fn value(&mut self, drawn: &[usize]) -> f64 {
        self.steps.fill([0.0; 4]);
        for &episode in drawn {
            let rows = self.episodes[episode].clone();
            for (row, [terms, weights, _, count]) in rows.clone().zip(&mut self.steps) {
                *terms += self.terms[row];
                *weights += self.weights[row];
                *count += 1.0;
            }
            if let (Some([_, _, last, _]), Some(weight)) =
                (self.steps.get_mut(rows.len() - 1), self.weights.get(rows.end - 1))
            {
                *last += weight;
            }
        }
        let (mut kept, mut sum) = (0.0, 0.0);
        for ([terms, weights, last, count], rescale) in self.steps.iter().zip(&self.rescale) {
            // What is nothing stays nothing, however much the scale changes.
            kept = if kept == 0.0 { 0.0 } else { kept * rescale };
            let (all, count) = if self.ended { (weights + kept, drawn.len() as f64) } else { (*weights, *count) };
            if all > 0.0 {
                sum += terms * count / all;
            }
            kept += last;
        }
        sum / drawn.len() as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{batch::EPS_ID, column::ColumnData, rng::Purpose};

    const STREAMS: Streams = Streams::new(3, Purpose::Shuffle);

    /// Episodes of two steps, whose ratios go from a half to one and a half.
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
        // Of different lengths: the last row belongs to another episode.
        let mut batch = log(6, |episode| episode as f64);
        batch.insert(EPS_ID.name(), ColumnData::scalars(vec![0i64, 0, 0, 1, 2, 2, 3, 3, 4, 4, 5, 6])).unwrap();
        for estimator in Estimator::ALL.into_iter().filter(|estimator| estimator.weighs_together()) {
            let estimate = estimator.estimate(&batch, 0.9, true).unwrap();
            let value = Reweighted::new(estimator, &batch, 0.9).unwrap().value(&[0, 1, 2, 3, 4, 5, 6]);
            assert!((value - estimate.v_target).abs() < 1e-12, "{value} {estimate:?}");
        }
    }

    #[test]
    fn where_all_rewards_are_equal_weights_do_not_matter() {
        let interval = |estimator: Estimator| estimator.interval(&log(40, |_| 1.0), 1.0, 0.9, 200, &STREAMS).unwrap();
        let Interval { low, high } = interval(Estimator::WeightedImportanceSampling);
        assert!((low - 2.0).abs() < 1e-12 && (high - 2.0).abs() < 1e-12, "{low} {high}");
        let Interval { low, high } = interval(Estimator::ImportanceSampling);
        assert!(low < 1.9 && high > 2.1 && high - low < 1.5, "{low} {high}");
    }

    #[test]
    fn what_has_no_interval() {
        let interval = |batch: &SampleBatch, gamma, confidence| {
            Estimator::WeightedImportanceSampling.interval(batch, gamma, confidence, 50, &STREAMS)
        };
        assert_eq!(interval(&log(3, |_| f64::MAX), 9.0, 0.9).unwrap_err(), EstimateError::Overflow { row: 0 });
        assert_eq!(interval(&log(3, |_| 1.0), f64::INFINITY, 0.9).unwrap_err(), EstimateError::Gamma(f64::INFINITY));
        assert_eq!(interval(&log(3, |_| 1.0), 1.0, 2.0).unwrap_err(), EstimateError::Confidence(2.0));
        assert_eq!(interval(&log(0, |_| 1.0), 1.0, 0.5).unwrap_err(), EstimateError::NoSamples);
    }
}
