//! Axes: the mapping from data to pixels, and the ticks.

/// The least number of values that a line needs for the first ones to count as outliers.
const FEWEST_TO_FENCE: usize = 8;
/// A fence without outliers.
const EVERYTHING: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);

/// A mapping from a range of values to a range of pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    /// Values at the two ends.
    pub(crate) values: (f64, f64),
    /// Pixels at the two ends; the first may be the larger, as on a y axis.
    pub(crate) pixels: (f64, f64),
    /// True if equal ratios have equal lengths; then values are positive.
    pub(crate) is_log: bool,
}

impl Scale {
    /// Returns the pixel of a value.
    #[must_use]
    pub(crate) fn pixel(&self, value: f64) -> f64 {
        let (low, high) = (self.forth(self.values.0), self.forth(self.values.1));
        self.pixels.0 + (self.forth(value) - low) / (high - low) * (self.pixels.1 - self.pixels.0)
    }

    /// Returns the value at a pixel.
    #[must_use]
    pub(crate) fn value(&self, pixel: f64) -> f64 {
        let (low, high) = (self.forth(self.values.0), self.forth(self.values.1));
        let place = low + self.fraction(pixel) * (high - low);
        if self.is_log { place.exp() } else { place }
    }

    /// Returns the fraction of the length up to a pixel.
    #[must_use]
    pub(crate) fn fraction(&self, pixel: f64) -> f64 {
        (pixel - self.pixels.0) / (self.pixels.1 - self.pixels.0)
    }

    fn forth(&self, value: f64) -> f64 {
        if self.is_log { value.ln() } else { value }
    }

    /// Returns round values within the range, at most about `most` of them.
    #[must_use]
    pub(crate) fn ticks(&self, most: usize) -> Vec<f64> {
        let (low, high) = self.values;
        if self.is_log && high / low >= 10.0 { log_ticks(low, high, most) } else { ticks((low, high), most) }
    }
}

/// Returns a range that holds the finite values, with a margin and never empty; `None` without a finite value. A few
/// outliers at each end are left out: they would flatten the rest.
#[must_use]
pub(crate) fn range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
    let fence = fence(&mut values);
    let (low, high) = ends(values, fence)?;
    let air = match high - low {
        spread if spread > 0.0 => spread * 0.06,
        _ if low == 0.0 => 1.0,
        _ => low.abs() * 0.1,
    };
    Some((low - air, high + air))
}

/// Returns the finite values of a line except outliers in its first tenth, such as the first losses of a run: values
/// that are further from all later ones than twice the spread of these. A steady fall or rise is kept.
#[must_use]
pub(crate) fn without_first_outliers(mut values: Vec<f64>) -> Vec<f64> {
    values.retain(|value| value.is_finite());
    if values.len() < FEWEST_TO_FENCE {
        return values;
    }
    let mut later = values.split_off(values.len().div_ceil(10));
    let fenced = fence(&mut later);
    let Some((mut low, mut high)) = ends(later.iter().copied(), fenced) else { return later };
    for value in values.into_iter().rev() {
        let reached = reached(low, high);
        if (reached.0..=reached.1).contains(&value) {
            (low, high) = (low.min(value), high.max(value));
            later.push(value);
        }
    }
    later
}

/// Returns the least and the greatest value within a fence.
fn ends(values: impl IntoIterator<Item = f64>, fence: (f64, f64)) -> Option<(f64, f64)> {
    let within = values.into_iter().filter(|value| (fence.0..=fence.1).contains(value));
    within.map(|value| (value, value)).reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)))
}

/// Returns the range outside which values are outliers: those further from the middle nine tenths than twice their
/// spread. Fewer than 20 values have none.
fn fence(values: &mut [f64]) -> (f64, f64) {
    let Some(last) = values.len().checked_sub(1) else { return EVERYTHING };
    let rank = values.len() / 20;
    let low = *values.select_nth_unstable_by(rank, f64::total_cmp).1;
    let high = *values.select_nth_unstable_by(last - rank, f64::total_cmp).1;
    reached(low, high)
}

/// Returns a range, widened by twice its spread at each end; `EVERYTHING` if the spread is zero.
fn reached(low: f64, high: f64) -> (f64, f64) {
    let reach = 2.0 * (high - low);
    if reach > 0.0 { (low - reach, high + reach) } else { EVERYTHING }
}

/// Returns round values within a range, a step of 1, 2 or 5 times a power of ten apart, at most `most` of them.
#[must_use]
pub(crate) fn ticks((low, high): (f64, f64), most: usize) -> Vec<f64> {
    let step = tick_step(high - low, most);
    if !step.is_finite() || step <= 0.0 {
        return vec![];
    }
    let first = (low / step).ceil();
    let last = (high / step).floor();
    // Steps are counted, not added up: 0.1 + 0.2 is no round number.
    (0..=(last - first).max(0.0) as u32).map(|index| (first + f64::from(index)) * step).collect()
}

fn tick_step(spread: f64, most: usize) -> f64 {
    let least = spread / most.max(1) as f64;
    let power = 10_f64.powf(least.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    nice.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(power * 10.0)
}

/// Returns powers of ten, and with enough space their double and fivefold.
fn log_ticks(low: f64, high: f64, most: usize) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().floor() as i32);
    let decades = (last - first + 1) as usize;
    let factors: &[f64] = if decades * 3 <= most { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let powers = (first..=last).step_by(decades.div_ceil(most.max(1)));
    let all = powers.flat_map(|power| factors.iter().map(move |factor| factor * 10_f64.powi(power)));
    all.filter(|value| (low..=high).contains(value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_pixels_lead_to_each_other() {
        let scale = Scale { values: (-1.0, 3.0), pixels: (200.0, 0.0), is_log: false };
        assert_eq!(scale.pixel(-1.0), 200.0);
        assert_eq!(scale.pixel(1.0), 100.0);
        assert_eq!(scale.value(scale.pixel(2.5)), 2.5);
        let scale = Scale { values: (1.0, 100.0), pixels: (0.0, 200.0), is_log: true };
        assert_eq!((scale.pixel(10.0), scale.fraction(50.0)), (100.0, 0.25));
        assert!((scale.value(100.0) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks((0.0, 500.0), 5), [0.0, 100.0, 200.0, 300.0, 400.0, 500.0]);
        assert_eq!(ticks((3.0, 97.0), 4), [50.0]);
        assert_eq!(ticks((0.0, 0.07), 4), [0.0, 0.02, 0.04, 0.06]);
        assert_eq!(ticks((-0.4, 0.7), 5), [0.0, 0.5]);
        for most in 2..9 {
            for high in [0.003, 1.0, 7.3, 99.0, 123_456.0] {
                assert!(ticks((0.0, high), most).len() <= most + 1, "0..{high} with {most}");
            }
        }
    }

    #[test]
    fn ticks_of_a_logarithmic_axis_are_powers_of_ten_or_between_them() {
        let ticks = |values, most| Scale { values, pixels: (0.0, 1.0), is_log: true }.ticks(most);
        assert_eq!(ticks((0.5, 2_000.0), 5), [1.0, 10.0, 100.0, 1_000.0]);
        assert_eq!(ticks((3.0, 60.0), 6), [5.0, 10.0, 20.0, 50.0]);
        assert_eq!(ticks((3.0, 9.0), 3), [4.0, 6.0, 8.0], "less than a decade");
        assert!(ticks((1e-9, 1e9), 4).len() <= 5);
    }

    #[test]
    fn no_ticks_for_an_empty_or_broken_range() {
        assert_eq!(ticks((1.0, 1.0), 5), [] as [f64; 0]);
        assert_eq!(ticks((0.0, f64::NAN), 5), [] as [f64; 0]);
    }

    #[test]
    fn a_range_holds_its_values_and_is_never_empty() {
        assert_eq!(range([f64::NAN]), None);
        let (low, high) = range([2.0, f64::NAN, 4.0]).expect("values");
        assert!(low < 2.0 && high > 4.0);
        assert_eq!(range([0.0]), Some((-1.0, 1.0)));
        assert_eq!(range([5.0]), Some((4.5, 5.5)));
    }

    #[test]
    fn first_outliers_do_not_flatten_later_values() {
        for (count, outliers) in [(8, 1), (19, 1), (20, 2), (40, 3), (40, 4), (100, 2), (100, 10)] {
            let line = |scale: f64| -> Vec<f64> {
                (0..count)
                    .map(|i| if i < outliers { scale * f64::from(1_000_000 >> i) } else { f64::from(i % 10) })
                    .collect()
            };
            for (low, high) in [1.0, -1.0].map(|scale| range(without_first_outliers(line(scale))).expect("values")) {
                assert!(low > -20.0 && high < 20.0, "{outliers} of {count}: {low}..{high}");
            }
        }
        let inner: Vec<f64> = [5.0, 1e6, 5.0].into_iter().chain((0..27).map(|i| f64::from(i % 10))).collect();
        assert_eq!(without_first_outliers(inner).len(), 29, "those before an outlier stay");
    }

    #[test]
    fn steady_rises_falls_and_few_values_are_shown_in_full() {
        let kept = |values: Vec<f64>| without_first_outliers(values.clone()).len() == values.len();
        assert!(kept((0..100).map(f64::from).collect()), "a rise");
        assert!(kept((0..100).map(|i| 100.0 * 0.8_f64.powi(i)).collect()), "a loss that falls");
        assert!(kept(vec![1e6, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]), "too few values");
        assert!(kept((0..30).map(|i| if i == 0 { 7.0 } else { 0.0 }).collect()), "all others are equal");
        assert!(without_first_outliers(vec![f64::NAN; 9]).is_empty());
        let (low, high) = range((0..100).map(f64::from)).expect("values");
        assert!(low < 0.0 && high > 99.0);
        let spike = range((0..100).map(|i| if i == 50 { 7.0 } else { 0.0 })).expect("values");
        assert!(spike.1 > 7.0, "values that are all equal otherwise hide nothing");
    }
}
