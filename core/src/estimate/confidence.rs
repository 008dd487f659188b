//! Computes confidence intervals of estimates.

use super::{EstimateError, mean};
use crate::{ids::SlotId, math, prelude::*, rng::Streams};

/// The bounds between which a mean lies with a given confidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// Draws per stream, with room for rejected ones.
const DRAWS: usize = 1 << 16;

/// A statistic of samples, and its standard error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Studied {
    pub(super) value: f64,
    pub(super) std_error: f64,
}

impl Studied {
    /// Returns the difference from another one in units of its own standard error. The result is infinite if the standard
    /// error is 0; the bound that depends on it is then the percentile bootstrap's.
    fn errors_from(&self, other: &Self) -> f64 {
        /// Sums of equal numbers differ by rounding: any difference below this fraction of them counts as rounding.
        const ROUNDING: f64 = 1e-12;
        let difference = self.value - other.value;
        let rounding = ROUNDING * self.value.abs().max(other.value.abs());
        if difference.abs() <= rounding {
            0.0
        } else if self.std_error <= rounding {
            difference.signum() * f64::INFINITY
        } else {
            difference / self.std_error
        }
    }
}

/// Returns the interval that contains the mean of the sampled distribution with probability `confidence`, by the bootstrap-t
/// (Efron, Tibshirani 1993, chapter 12; for means of skewed samples the usual method with the best coverage, Hesterberg
/// 2015). It draws `resamples` times as many samples with replacement, divides the difference between a draw's mean and the
/// samples' mean by the draw's standard error, and takes the quantiles of these ratios.
///
/// Where too many draws have no spread, as with few samples or with rewards that are nearly always 0, a bound is that of the
/// percentile bootstrap, which needs no spread. A single sample has no known spread: both bounds are its value.
///
/// `values` are one number per episode, such as `v_target`. The same streams give the same interval; 1,000 resamples
/// are usual.
///
/// # Errors
/// [`EstimateError::NoSamples`] without values or resamples, [`EstimateError::Confidence`] unless it is between 0 and 1,
/// [`EstimateError::NotFinite`] for a value that is NaN or infinite.
pub fn bootstrap_interval(
    values: &[f64],
    confidence: f64,
    resamples: u32,
    streams: &Streams,
) -> Result<Interval, EstimateError> {
    all_finite(values)?;
    let n = values.len() as f64;
    bootstrap_t(values.len(), confidence, resamples, streams, |counts| {
        let sum = |of: &dyn Fn(f64) -> f64| {
            values.iter().zip(counts).map(|(value, count)| f64::from(*count) * of(*value)).sum::<f64>()
        };
        let value = sum(&|value| value) / n;
        Studied { value, std_error: math::sqrt_f64(sum(&|x| (x - value) * (x - value))) / n }
    })
}

/// Returns the same interval for any statistic of `count` samples; `study` gets the number of times each sample was drawn.
pub(super) fn bootstrap_t(
    count: usize,
    confidence: f64,
    resamples: u32,
    streams: &Streams,
    mut statistic: impl FnMut(&[u32]) -> Studied,
) -> Result<Interval, EstimateError> {
    check_confidence(confidence)?;
    let below = u32::try_from(count).unwrap_or(u32::MAX);
    let mut counts = vec![1; count];
    let all = statistic(&counts);
    let (mut values, mut errors) = (Vec::new(), Vec::new());
    for resample in 0..if count == 0 { 0 } else { resamples } {
        let mut rng = streams.at(SlotId(0), 0, resample, 0);
        counts.fill(0);
        for draw in 0..count {
            if draw > 0 && draw.is_multiple_of(DRAWS) {
                rng = streams.at(SlotId((draw / DRAWS) as u32), 0, resample, 0);
            }
            counts[rng.below(below) as usize] += 1;
        }
        let drawn = statistic(&counts);
        values.push(drawn.value);
        errors.push(drawn.errors_from(&all));
    }
    let ((least, most), (low, high)) = (quantiles(values, confidence)?, quantiles(errors, confidence)?);
    let end = |errors: f64, percentile: f64| {
        let end = all.value - errors * all.std_error;
        if end.is_finite() { end } else { percentile }
    };
    let (low, high) = (end(high, least), end(low, most));
    Ok(Interval { low, high: high.max(low) })
}

/// Returns the bounds of the values without two equal tails.
fn quantiles(mut values: Vec<f64>, confidence: f64) -> Result<(f64, f64), EstimateError> {
    values.sort_unstable_by(f64::total_cmp);
    let tail = (1.0 - confidence) / 2.0;
    // Truncation is intended: the order statistic below the quantile, and its mirror image.
    let below = ((tail * values.len() as f64) as usize).min(values.len().saturating_sub(1) / 2);
    let above = values.len().saturating_sub(below + 1);
    Ok((*values.get(below).ok_or(EstimateError::NoSamples)?, *values.get(above).ok_or(EstimateError::NoSamples)?))
}

/// Returns an interval around an estimate from the estimates of refits: models trained again on as many episodes drawn with
/// replacement. The interval is symmetric: the standard deviation of the refits times Student's quantile. It covers the
/// variance that a model has from its sample of episodes (for fitted Q evaluation: Hao, Ji, Duan, Lu, Szepesvari, Wang:
/// "Bootstrapping fitted Q-evaluation for off-policy inference", 2021), but not the bias of the model.
///
/// # Errors
/// [`EstimateError::TooFewRefits`] below [`MIN_REFITS`], [`EstimateError::Confidence`] unless it is between 0 and 1,
/// [`EstimateError::NotFinite`].
pub fn refit_interval(estimate: f64, refits: &[f64], confidence: f64) -> Result<Interval, EstimateError> {
    check_confidence(confidence)?;
    all_finite(&[estimate])?;
    all_finite(refits)?;
    if refits.len() < MIN_REFITS {
        return Err(EstimateError::TooFewRefits(refits.len()));
    }
    let center = mean(refits.iter().copied());
    let squares: f64 = refits.iter().map(|x| (x - center) * (x - center)).sum();
    let freedom = refits.len() - 1;
    // Uses the next lower even number, whose distribution is a polynomial: the interval is a little wider.
    let reach = student_quantile(confidence, freedom - freedom % 2) * math::sqrt_f64(squares / freedom as f64);
    Ok(Interval { low: estimate - reach, high: estimate + reach })
}

/// Minimum number of refits for a standard deviation with enough degrees of freedom.
pub const MIN_REFITS: usize = 3;

/// Returns the number of standard errors that Student's distribution stays within with probability `confidence`, for an even
/// number of degrees of freedom, by bisection of the finite series (Abramowitz, Stegun 1964, 26.7.4).
fn student_quantile(confidence: f64, freedom: usize) -> f64 {
    let freedom_f64 = freedom as f64;
    let within = |sine: f64| {
        let cosine_squared = 1.0 - sine * sine;
        let terms = (1..freedom / 2).scan(1.0, |term, k| {
            *term *= cosine_squared * (2 * k - 1) as f64 / (2 * k) as f64;
            Some(*term)
        });
        sine * (1.0 + terms.sum::<f64>())
    };
    // Bisects the sine of the angle whose tangent is t over the root of the degrees of freedom.
    let (mut low, mut high) = (0.0f64, 1.0f64);
    for _ in 0..f64::MANTISSA_DIGITS {
        let middle = 0.5 * (low + high);
        *(if within(middle) < confidence { &mut low } else { &mut high }) = middle;
    }
    low * math::sqrt_f64(freedom_f64 / (1.0 - low * low))
}

fn check_confidence(confidence: f64) -> Result<(), EstimateError> {
    if confidence > 0.0 && confidence < 1.0 { Ok(()) } else { Err(EstimateError::Confidence(confidence)) }
}

fn all_finite(values: &[f64]) -> Result<(), EstimateError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(EstimateError::NotFinite { index }),
        None => Ok(()),
    }
}

/// Returns the number of equally weighted samples with the same variance (Kish 1965): `(sum w)^2 / sum w^2`, 0 if all
/// weights are 0.
#[must_use]
pub fn effective_sample_size(weights: &[f64]) -> f64 {
    let largest = weights.iter().fold(0.0f64, |largest, w| largest.max(w.abs()));
    if largest == 0.0 {
        return 0.0;
    }
    // Squares of large or small weights exceed the range of doubles.
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
        // The standard deviation of a value is 2.87; the interval extends 1.64 of them on both sides of the mean, divided by
        // the root of the number of samples.
        assert!((few.high - few.low - 2.1).abs() < 0.4, "{few:?}");
        assert!((many.high - many.low - 0.21).abs() < 0.04, "{many:?}");
        assert_eq!(many, bootstrap_interval(&values(2000), 0.9, 400, &STREAMS).unwrap());
    }

    /// Checks the interval of samples with rare large values: the upper bound is farther from the mean than the lower one,
    /// and farther than the percentile bootstrap's, whose draws never exceed the samples.
    #[test]
    fn intervals_of_skewed_samples_lean_to_where_the_rare_ones_are() {
        let mut values = vec![0.0; 95];
        values.extend([8.0, 16.0, 24.0, 32.0, 40.0]);
        let Interval { low, high } = bootstrap_interval(&values, 0.95, 2_000, &STREAMS).unwrap();
        // The mean is 1.2 with a standard error of 0.58.
        assert!((0.2..0.6).contains(&low) && (3.0..4.5).contains(&high), "{low} {high}");
    }

    #[test]
    fn draws_without_spread_leave_an_end_to_percentiles() {
        // More than a tenth of the draws contain neither of the two different values.
        let mut values = vec![0.0; 198];
        values.extend([1.0; 2]);
        let Interval { low, high } = bootstrap_interval(&values, 0.95, 2_000, &STREAMS).unwrap();
        assert!(low > 0.0 && low < 0.005 && (high - 0.025).abs() < 1e-9, "{low} {high}");
        // Draws whose values differ only by rounding have no spread either.
        let mut values = vec![0.1; 198];
        values.extend([1.1; 2]);
        let Interval { low, high } = bootstrap_interval(&values, 0.95, 2_000, &STREAMS).unwrap();
        assert!(low > 0.1 && low < 0.105 && (high - 0.125).abs() < 1e-9, "{low} {high}");
        let same = bootstrap_interval(&[0.1; 50], 0.95, 200, &STREAMS).unwrap();
        assert!((same.low - 0.1).abs() < 1e-12 && (same.high - 0.1).abs() < 1e-12, "{same:?}");
        // Squares beyond the range of doubles count as no spread either.
        let Interval { low, high } = bootstrap_interval(&[1e200, 3e200], 0.9, 200, &STREAMS).unwrap();
        assert_eq!((low, high), (1e200, 3e200));
    }

    #[test]
    fn a_lone_sample_is_all_there_is() {
        let interval = bootstrap_interval(&[2.5], 0.95, 1, &STREAMS).unwrap();
        assert_eq!(interval, Interval { low: 2.5, high: 2.5 });
    }

    #[test]
    fn bootstrap_refuses_samples_without_interval() {
        let of = |values: &[f64], confidence, resamples| bootstrap_interval(values, confidence, resamples, &STREAMS);
        assert_eq!(of(&[], 0.9, 10).unwrap_err(), EstimateError::NoSamples);
        assert_eq!(of(&[1.0], 0.9, 0).unwrap_err(), EstimateError::NoSamples);
        assert_eq!(of(&[1.0], 1.0, 10).unwrap_err(), EstimateError::Confidence(1.0));
        assert!(matches!(of(&[1.0], f64::NAN, 10), Err(EstimateError::Confidence(_))));
        assert_eq!(of(&[1.0, f64::NAN], 0.9, 10).unwrap_err(), EstimateError::NotFinite { index: 1 });
        // Tails of one half each must not cross.
        assert!(of(&[1.0, 2.0, 4.0], 1e-17, 8).is_ok_and(|interval| interval.low <= interval.high));
    }

    #[test]
    fn intervals_of_refits_follow_from_their_spread() {
        // Quantiles from published tables.
        for (freedom, quantile) in [(2, 4.302_653), (4, 2.776_445), (18, 2.100_922), (100, 1.983_972)] {
            assert!((student_quantile(0.95, freedom) - quantile).abs() < 1e-6, "{freedom}");
        }
        assert!((student_quantile(0.5, 2) - 0.816_497).abs() < 1e-6);
        // Three values with standard deviation 1.
        let Interval { low, high } = refit_interval(10.0, &[6.0, 7.0, 8.0], 0.95).unwrap();
        assert!((low - (10.0 - 4.302_653)).abs() < 1e-6 && (high - (10.0 + 4.302_653)).abs() < 1e-6, "{low} {high}");
        assert_eq!(refit_interval(1.0, &[1.0, 2.0], 0.95).unwrap_err(), EstimateError::TooFewRefits(2));
        assert_eq!(refit_interval(1.0, &[1.0; 3], 95.0).unwrap_err(), EstimateError::Confidence(95.0));
        assert_eq!(refit_interval(1.0, &[1.0, f64::NAN, 2.0], 0.9).unwrap_err(), EstimateError::NotFinite { index: 1 });
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
