//! How far estimates can be trusted.

use super::{EstimateError, mean};
use crate::{ids::SlotId, prelude::*, rng::Streams};

/// Two ends between which a mean lies with some confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Draws that one stream serves, with room for those that are rejected.
const DRAWS: usize = 1 << 16;

/// Interval in which the mean of what the samples stand for lies with probability `confidence`, by the percentile
/// bootstrap (Efron 1979): the means of `resamples` draws of as many samples with replacement.
///
/// `values` are one number per episode, such as `v_target`. The same streams give the same interval; 1,000 resamples
/// are usual.
///
/// # Errors
/// [`EstimateError::NoSamples`] without values or resamples, [`EstimateError::Confidence`] unless it is between 0 and
/// 1, [`EstimateError::NotFinite`] for a value that is no number or infinite.
pub fn bootstrap_interval(
    values: &[f64],
    confidence: f64,
    resamples: u32,
    streams: &Streams,
) -> Result<Interval, EstimateError> {
    if let Some(index) = values.iter().position(|value| !value.is_finite()) {
        return Err(EstimateError::NotFinite { index });
    }
    resampled(values.len(), confidence, resamples, streams, |drawn| mean(drawn.iter().map(|&index| values[index])))
}

/// The same of any statistic of `count` samples; it is told which ones were drawn, all of them below `count`.
pub(super) fn resampled(
    count: usize,
    confidence: f64,
    resamples: u32,
    streams: &Streams,
    mut statistic: impl FnMut(&[usize]) -> f64,
) -> Result<Interval, EstimateError> {
    if !(confidence > 0.0 && confidence < 1.0) {
        return Err(EstimateError::Confidence(confidence));
    }
    let below = u32::try_from(count).unwrap_or(u32::MAX);
    let (mut found, mut drawn) = (Vec::new(), Vec::with_capacity(count));
    for resample in 0..if count == 0 { 0 } else { resamples } {
        let mut rng = streams.at(SlotId(0), 0, resample, 0);
        drawn.clear();
        drawn.extend((0..count).map(|draw| {
            if draw > 0 && draw.is_multiple_of(DRAWS) {
                rng = streams.at(SlotId((draw / DRAWS) as u32), 0, resample, 0);
            }
            rng.below(below) as usize
        }));
        found.push(statistic(&drawn));
    }
    found.sort_unstable_by(f64::total_cmp);
    let tail = (1.0 - confidence) / 2.0;
    // Truncation is meant: the order statistic below the quantile, and its mirror image.
    let below = ((tail * found.len() as f64) as usize).min(found.len().saturating_sub(1) / 2);
    let above = found.len().saturating_sub(below + 1);
    match (found.get(below), found.get(above)) {
        (Some(&low), Some(&high)) => Ok(Interval { low, high }),
        _ => Err(EstimateError::NoSamples),
    }
}

/// How many equally weighted samples would be as good as these (Kish 1965): `(sum w)^2 / sum w^2`, 0 if all weigh
/// nothing.
#[must_use]
pub fn effective_sample_size(weights: &[f64]) -> f64 {
    let largest = weights.iter().fold(0.0f64, |largest, w| largest.max(w.abs()));
    if largest == 0.0 {
        return 0.0;
    }
    // Squares of large or small weights are no doubles.
    let weights = weights.iter().map(|w| w / largest);
    let (sum, squares) = weights.fold((0.0, 0.0), |(sum, squares), w| (sum + w, squares + w * w));
    sum * sum / squares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Purpose;

    const STREAMS: Streams = Streams::new(5, Purpose::Shuffle);

    #[test]
    fn intervals_surround_the_mean_and_shrink_with_samples() {
        let values = |n: usize| (0..n).map(|i| (i % 10) as f64).collect::<Vec<_>>();
        let few = bootstrap_interval(&values(20), 0.9, 400, &STREAMS).unwrap();
        let many = bootstrap_interval(&values(2000), 0.9, 400, &STREAMS).unwrap();
        for interval in [few, many] {
            assert!(interval.low < 4.5 && 4.5 < interval.high, "{interval:?}");
        }
        // The standard deviation of a value is 2.87; 1.64 of them on both sides of the mean, over the root of the
        // number.
        assert!((few.high - few.low - 2.1).abs() < 0.4, "{few:?}");
        assert!((many.high - many.low - 0.21).abs() < 0.04, "{many:?}");
        assert_eq!(many, bootstrap_interval(&values(2000), 0.9, 400, &STREAMS).unwrap());
    }

    #[test]
    fn a_lone_sample_is_all_there_is() {
        let interval = bootstrap_interval(&[2.5], 0.95, 1, &STREAMS).unwrap();
        assert_eq!(interval, Interval { low: 2.5, high: 2.5 });
    }

    #[test]
    fn what_has_no_interval() {
        let of = |values: &[f64], confidence, resamples| bootstrap_interval(values, confidence, resamples, &STREAMS);
        assert_eq!(of(&[], 0.9, 10).unwrap_err(), EstimateError::NoSamples);
        assert_eq!(of(&[1.0], 0.9, 0).unwrap_err(), EstimateError::NoSamples);
        assert_eq!(of(&[1.0], 1.0, 10).unwrap_err(), EstimateError::Confidence(1.0));
        assert!(matches!(of(&[1.0], f64::NAN, 10), Err(EstimateError::Confidence(_))));
        assert_eq!(of(&[1.0, f64::NAN], 0.9, 10).unwrap_err(), EstimateError::NotFinite { index: 1 });
        // Tails of one half each must not cross over.
        assert!(of(&[1.0, 2.0, 4.0], 1e-17, 8).is_ok_and(|interval| interval.low <= interval.high));
    }

    #[test]
    fn effective_sizes() {
        assert_eq!(effective_sample_size(&[2.0; 5]), 5.0);
        assert_eq!(effective_sample_size(&[1.0, 0.0, 0.0]), 1.0);
        assert_eq!(effective_sample_size(&[0.0; 3]), 0.0);
        assert_eq!(effective_sample_size(&[]), 0.0);
        for scale in [1e-320, 1e-170, 1e170, f64::MAX] {
            assert_eq!(effective_sample_size(&[scale; 4]), 4.0);
        }
    }
}
