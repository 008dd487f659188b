//! Samples random points.

use super::{BoxSpace, Point, PointError, Space};
use crate::{
    column::{DType, Element, RowBuffer, by_type},
    math,
    prelude::*,
    rng::Rng,
};

impl Space {
    /// Returns a random point, distributed as in Gymnasium's `sample`: see [`sample_row`](Self::sample_row). Points of
    /// discrete spaces are [`Point::I64`], those of multi-binary ones [`Point::U8`]. Parts draw in order, those of a dict
    /// sorted by name.
    #[must_use]
    pub fn sample(&self, rng: &mut Rng) -> Point {
        match self {
            Self::Box(space) => self.sample_array(space.dtype(), rng),
            Self::Discrete { .. } | Self::MultiDiscrete { .. } => self.sample_array(DType::I64, rng),
            Self::MultiBinary { .. } => self.sample_array(DType::U8, rng),
            Self::Tuple(parts) => Point::Tuple(parts.iter().map(|part| part.sample(rng)).collect()),
            Self::Dict(parts) => {
                Point::Dict(parts.iter().map(|(name, part)| (name.clone(), part.sample(rng))).collect_ordered())
            }
        }
    }

    /// Fills a row with a random one, component by component: uniform between two bounds (for integers, including both);
    /// with a single bound, at an exponentially distributed distance with mean 1 from it; otherwise normally distributed.
    /// Integers are rounded down.
    ///
    /// Uses one word of the stream for an integer of at most 2^32 values, two for other components with at least one bound,
    /// and four for a normal one.
    ///
    /// # Errors
    /// [`PointError::WrongType`] as for [`contains_row`](Self::contains_row), [`PointError::WrongLength`].
    pub fn sample_row<T: Element>(&self, rng: &mut Rng, row: &mut [T]) -> Result<(), PointError> {
        self.check_type(T::DTYPE)?;
        let wanted = self.shape().elements();
        if row.len() != wanted {
            return Err(PointError::WrongLength { space: self.to_string(), wanted: wanted as u64, found: row.len() });
        }
        self.fill(rng, row);
        Ok(())
    }

    fn sample_array(&self, dtype: DType, rng: &mut Rng) -> Point {
        let mut values = RowBuffer::zeros(dtype, self.shape().elements());
        by_type!(RowBuffer, &mut values, values => self.fill(rng, values));
        values.into()
    }

    fn fill<T: Element>(&self, rng: &mut Rng, row: &mut [T]) {
        let below = |rng: &mut Rng, n| T::from_f64(f64::from(rng.below(n)));
        match self {
            Self::Box(space) => fill_box(space, rng, row),
            Self::Discrete { n } => row.iter_mut().for_each(|x| *x = below(rng, *n)),
            Self::MultiDiscrete { nvec } => row.iter_mut().zip(nvec).for_each(|(x, n)| *x = below(rng, *n)),
            Self::MultiBinary { .. } => row.iter_mut().for_each(|x| *x = below(rng, 2)),
            Self::Tuple(parts) => fill_parts(parts.iter(), rng, row),
            Self::Dict(parts) => fill_parts(parts.values(), rng, row),
        }
    }
}

fn fill_parts<'a, T: Element>(parts: impl Iterator<Item = &'a Space>, rng: &mut Rng, mut row: &mut [T]) {
    for part in parts {
        let Some(own) = row.split_off_mut(..part.shape().elements()) else { return };
        part.fill(rng, own);
    }
}

fn fill_box<T: Element>(space: &BoxSpace, rng: &mut Rng, row: &mut [T]) {
    let whole = !space.dtype().is_float();
    for (x, (low, high)) in row.iter_mut().zip(space.bounds()) {
        let sample = match (low.is_finite(), high.is_finite()) {
            (true, true) if whole => integer(rng, low, high),
            (true, true) => uniform(rng, low, high),
            (true, false) => low + rng.exponential(),
            (false, true) => high - rng.exponential(),
            (false, false) => rng.normal(),
        };
        *x = T::from_f64(if whole { math::floor_f64(sample) } else { sample });
    }
}

fn uniform(rng: &mut Rng, low: f64, high: f64) -> f64 {
    let u = rng.uniform_f64();
    let span = high - low;
    let x = if span.is_finite() { low + span * u } else { low * (1.0 - u) + high * u };
    // Rounding may exceed the bound.
    if x > high { high } else { x }
}

/// Draws an integer. Bounds are integers of at most 54 bits, so the arithmetic is exact.
fn integer(rng: &mut Rng, low: f64, high: f64) -> f64 {
    let values = ((high - low) as u64).saturating_add(1);
    low + match u32::try_from(values) {
        Ok(n) => f64::from(rng.below(n)),
        Err(_) if values == 1 << 32 => f64::from(rng.next_u32()),
        Err(_) => rng.below_u64(values) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        column::RowShape,
        ids::SlotId,
        rng::{Purpose, Streams},
    };

    fn rng(slot: u32) -> Rng {
        Streams::new(5, Purpose::Reset).at(SlotId(slot), 0, 0, 0)
    }

    fn draws(low: f64, high: f64, n: u32) -> Vec<f64> {
        let space = Space::uniform(DType::F64, RowShape::vector(n), low, high);
        let mut row = vec![0.0; n as usize];
        space.sample_row(&mut rng(0), &mut row).unwrap();
        assert!(space.contains_row(&row).unwrap());
        row
    }

    fn mean(xs: &[f64]) -> f64 {
        xs.iter().sum::<f64>() / xs.len() as f64
    }

    #[test]
    fn floats_are_distributed_as_gymnasiums() {
        let n = 20_000;
        assert!((mean(&draws(-1.0, 3.0, n)) - 1.0).abs() < 0.03);
        assert!((mean(&draws(2.0, f64::INFINITY, n)) - 3.0).abs() < 0.03);
        assert!((mean(&draws(f64::NEG_INFINITY, 2.0, n)) - 1.0).abs() < 0.03);
        let normal = draws(f64::NEG_INFINITY, f64::INFINITY, n);
        assert!(mean(&normal).abs() < 0.03);
        assert!((mean(&normal.iter().map(|x| x * x).collect::<Vec<_>>()) - 1.0).abs() < 0.05);
        // Spans that overflow.
        assert!(draws(f64::MIN, f64::MAX, 100).iter().all(|x| x.is_finite()));
    }

    #[test]
    fn integers_reach_both_ends() {
        let space = Space::uniform(DType::I32, RowShape::vector(7000), -3.0, 3.0);
        let Point::I32(row) = space.sample(&mut rng(1)) else { panic!("not int32") };
        let counts = (-3..=3).map(|i| row.iter().filter(|x| **x == i).count());
        assert!(counts.into_iter().all(|n| n.abs_diff(1000) < 150));
        let wide = Space::uniform(DType::I64, RowShape::vector(100), -9_007_199_254_740_992.0, 9_007_199_254_740_992.0);
        assert!(wide.contains(&wide.sample(&mut rng(2))));
        let whole = Space::uniform(DType::I64, RowShape::SCALAR, 0.0, f64::from(u32::MAX));
        assert!(whole.contains(&whole.sample(&mut rng(2))));
        let open = Space::uniform(DType::I64, RowShape::vector(2000), f64::NEG_INFINITY, f64::INFINITY);
        let Point::I64(row) = open.sample(&mut rng(3)) else { panic!("not int64") };
        // Rounded down, so the mean is half a step below zero.
        let mean = row.iter().sum::<i64>() as f64 / 2000.0;
        assert!((mean + 0.5).abs() < 0.1, "{mean}");
    }

    #[test]
    fn buffers_must_fit() {
        let space = Space::Discrete { n: 3 };
        let error = space.sample_row(&mut rng(0), &mut [0i64; 2]).unwrap_err();
        assert_eq!(error.to_string(), "Discrete(3) needs 1 elements, here are 2");
        assert!(space.sample_row(&mut rng(0), &mut [0.0f32]).is_err());
    }
}
