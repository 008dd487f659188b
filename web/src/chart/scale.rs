//! Axes: from data to pixels, and where the ticks go.

/// Maps a range of values to a range of pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    /// Values at the two ends.
    pub(crate) values: (f64, f64),
    /// Pixels at the two ends; the first may be the larger, as on a y axis.
    pub(crate) pixels: (f64, f64),
}

impl Scale {
    /// Pixel of a value.
    #[must_use]
    pub(crate) fn pixel(&self, value: f64) -> f64 {
        let (low, high) = self.values;
        self.pixels.0 + (value - low) / (high - low) * (self.pixels.1 - self.pixels.0)
    }

    /// Value at a pixel.
    #[must_use]
    pub(crate) fn value(&self, pixel: f64) -> f64 {
        let (low, high) = self.values;
        low + (pixel - self.pixels.0) / (self.pixels.1 - self.pixels.0) * (high - low)
    }
}

/// A range that holds all finite values, with a little air and never empty.
#[must_use]
pub(crate) fn range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let widen = |range: Option<(f64, f64)>, value: f64| match range {
        None => Some((value, value)),
        Some((low, high)) => Some((low.min(value), high.max(value))),
    };
    let (low, high) = values.into_iter().filter(|value| value.is_finite()).fold(None, widen)?;
    let air = match high - low {
        spread if spread > 0.0 => spread * 0.06,
        _ if low == 0.0 => 1.0,
        _ => low.abs() * 0.1,
    };
    Some((low - air, high + air))
}

/// Round values within a range, a step of 1, 2 or 5 times a power of ten apart, at most `most` of them.
#[must_use]
pub(crate) fn ticks((low, high): (f64, f64), most: usize) -> Vec<f64> {
    let step = tick_step(high - low, most);
    if !step.is_finite() || step <= 0.0 {
        return vec![];
    }
    let first = (low / step).ceil();
    let last = (high / step).floor();
    // Counting in steps, not adding them up: 0.1 + 0.2 is no tick that anybody wants to read.
    (0..=(last - first).max(0.0) as u32).map(|index| (first + f64::from(index)) * step).collect()
}

fn tick_step(spread: f64, most: usize) -> f64 {
    let least = spread / most.max(1) as f64;
    let power = 10_f64.powf(least.log10().floor());
    let nice = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    nice.into_iter().find(|step| *step >= least * (1.0 - 1e-9)).unwrap_or(power * 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_pixels_lead_to_each_other() {
        let scale = Scale { values: (-1.0, 3.0), pixels: (200.0, 0.0) };
        assert_eq!(scale.pixel(-1.0), 200.0);
        assert_eq!(scale.pixel(1.0), 100.0);
        assert_eq!(scale.value(scale.pixel(2.5)), 2.5);
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
}
