//! Computes mean and variance of rows, one row at a time.

use super::{FilterError, FilterFloat};
use crate::{column::RowShape, math, prelude::*};

/// Count, mean and variance of every element of the rows so far.
///
/// Rows are pushed by Welford's method ("Note on a method for calculating corrected sums of squares and products", 1962),
/// and two statistics are merged by that of Chan, Golub and LeVeque ("Updating formulae and a pairwise algorithm for
/// computing sample variances", 1979). The merge order changes only the rounding of the last digits.
#[derive(Clone, Debug, PartialEq)]
pub struct RunningStat {
    shape: RowShape,
    n: u64,
    mean: Vec<f64>,
    /// Sums of squared deviations from the mean.
    m2: Vec<f64>,
}

impl RunningStat {
    /// Maximum number of elements of a row.
    pub const MAX_ELEMENTS: usize = 1 << 22;
    /// Maximum number of rows: the limit up to which a 64-bit float counts exactly.
    pub const MAX_ROWS: u64 = 1 << 53;
    /// Maximum magnitude of a value: squares and sums of squares of such values are still finite.
    pub const MAX_VALUE: f64 = 1e100;
    /// Mean square of the largest values, with a margin for rounding. Merging never exceeds it.
    const MAX_MEAN_SQUARE: f64 = 1.01e200;

    /// Creates statistics without rows.
    ///
    /// # Errors
    /// [`FilterError::BadShape`] without elements, or with more than [`MAX_ELEMENTS`](Self::MAX_ELEMENTS).
    pub fn new(shape: RowShape) -> Result<Self, FilterError> {
        let elements = shape.elements();
        if elements == 0 || elements > Self::MAX_ELEMENTS {
            return Err(FilterError::BadShape(shape));
        }
        Ok(Self { shape, n: 0, mean: vec![0.0; elements], m2: vec![0.0; elements] })
    }

    /// Creates statistics from another source; returns `None` if no rows could have produced them.
    pub(super) fn from_parts(shape: RowShape, n: u64, mean: Vec<f64>, m2: Vec<f64>) -> Option<Self> {
        let stat = Self { shape, n, mean, m2 };
        let elements = shape.elements();
        let shaped = (1..=Self::MAX_ELEMENTS).contains(&elements)
            && (stat.mean.len(), stat.m2.len()) == (elements, elements)
            && n <= Self::MAX_ROWS;
        let possible = |(&mean, &m2): (&f64, &f64)| match n {
            0 => mean == 0.0 && m2 == 0.0,
            1 => m2 == 0.0 && mean * mean <= Self::MAX_MEAN_SQUARE,
            _ => m2 >= 0.0 && m2 / n as f64 + mean * mean <= Self::MAX_MEAN_SQUARE,
        };
        (shaped && stat.mean.iter().zip(&stat.m2).all(possible)).then_some(stat)
    }

    /// Returns the shape of a row.
    #[must_use]
    pub fn shape(&self) -> RowShape {
        self.shape
    }

    /// Returns the number of rows so far.
    #[must_use]
    pub fn n(&self) -> u64 {
        self.n
    }

    /// Returns the mean of every element; 0 without rows.
    #[must_use]
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// Returns the sum of the squared deviations from the mean, for every element.
    #[must_use]
    #[doc(alias = "S")]
    pub fn m2(&self) -> &[f64] {
        &self.m2
    }

    /// Returns the variance of every element: the sample variance from two rows on, and the square of the mean before, as in
    /// RLlib.
    pub fn var(&self) -> impl ExactSizeIterator<Item = f64> {
        let (n, divisor) = (self.n, self.n.saturating_sub(1) as f64);
        self.mean.iter().zip(&self.m2).map(move |(mean, m2)| if n > 1 { m2 / divisor } else { mean * mean })
    }

    /// Returns the standard deviation of every element: the square root of [`var`](Self::var).
    pub fn std(&self) -> impl ExactSizeIterator<Item = f64> {
        self.var().map(math::sqrt_f64)
    }

    /// Adds one row.
    ///
    /// # Errors
    /// [`FilterError`] for a row of another length or with a value that is not finite. On an error, the statistics stay as
    /// they are.
    pub fn push<T: FilterFloat>(&mut self, row: &[T]) -> Result<(), FilterError> {
        let rows = self.check_rows(row)?;
        if rows != 1 {
            return Err(self.mismatch(format!("{rows} rows")));
        }
        self.check_count(1)?;
        self.push_checked(row);
        Ok(())
    }

    /// Adds the rows of other statistics.
    ///
    /// # Errors
    /// [`FilterError::ShapeMismatch`], [`FilterError::TooManyRows`]. On an error, the statistics stay as they are.
    #[doc(alias = "update")]
    pub fn merge(&mut self, other: &Self) -> Result<(), FilterError> {
        self.check_shape(other)?;
        self.check_count(other.n)?;
        if other.n == 0 {
            return Ok(());
        }
        if self.n == 0 {
            self.copy_from(other);
            return Ok(());
        }
        let (left, right) = (self.n as f64, other.n as f64);
        self.n += other.n;
        let n = self.n as f64;
        let theirs = other.mean.iter().zip(&other.m2);
        for ((mean, m2), (their_mean, their_m2)) in self.mean.iter_mut().zip(&mut self.m2).zip(theirs) {
            let delta = their_mean - *mean;
            *m2 = *m2 + their_m2 + delta * delta / n * (left * right);
            *mean = (left * *mean + right * their_mean) / n;
        }
        Ok(())
    }

    /// Removes all rows.
    pub fn reset(&mut self) {
        self.n = 0;
        self.mean.fill(0.0);
        self.m2.fill(0.0);
    }

    /// Returns the size of the statistics in memory.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        size_of_val(&*self.mean) + size_of_val(&*self.m2)
    }

    /// Copies statistics of the same shape, without allocation.
    pub(super) fn copy_from(&mut self, other: &Self) {
        self.n = other.n;
        self.mean.clone_from(&other.mean);
        self.m2.clone_from(&other.m2);
    }

    /// Adds a checked row.
    #[inline]
    pub(super) fn push_checked<T: FilterFloat>(&mut self, row: &[T]) {
        self.n += 1;
        let n = self.n as f64;
        let share = (n - 1.0) / n;
        for ((mean, m2), &x) in self.mean.iter_mut().zip(&mut self.m2).zip(row) {
            let delta = x.into() - *mean;
            *mean += delta / n;
            *m2 += delta * delta * share;
        }
    }

    /// Returns the number of rows that the values form, if all of them may be pushed.
    #[inline]
    pub(super) fn check_rows<T: FilterFloat>(&self, values: &[T]) -> Result<usize, FilterError> {
        let elements = self.mean.len();
        if !values.len().is_multiple_of(elements) {
            return Err(self.mismatch(format!("{} values", values.len())));
        }
        // Has no branch per value, so that it costs almost nothing.
        let usable = |x: &T| (*x).into().abs() <= Self::MAX_VALUE;
        if !values.iter().fold(true, |all, x| all & usable(x))
            && let Some(at) = values.iter().position(|x| !usable(x))
        {
            let value = format!("{:?}", values[at].into());
            return Err(FilterError::NotFinite { row: at / elements, element: at % elements, value });
        }
        Ok(values.len() / elements)
    }

    pub(super) fn check_count(&self, more: u64) -> Result<(), FilterError> {
        if more > Self::MAX_ROWS - self.n { Err(FilterError::TooManyRows) } else { Ok(()) }
    }

    pub(super) fn check_shape(&self, other: &Self) -> Result<(), FilterError> {
        if self.shape == other.shape { Ok(()) } else { Err(self.mismatch(format!("statistics of {}", other.shape))) }
    }

    pub(super) fn mismatch(&self, found: String) -> FilterError {
        FilterError::ShapeMismatch { expected: self.shape, found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalar(values: &[f64]) -> RunningStat {
        let mut stat = RunningStat::new(RowShape::SCALAR).unwrap();
        values.iter().for_each(|x| stat.push(&[*x]).unwrap());
        stat
    }

    fn summary(stat: &RunningStat) -> (u64, f64, f64) {
        (stat.n(), stat.mean()[0], stat.var().next().unwrap())
    }

    #[test]
    fn variance_of_one_row_is_the_square_of_the_mean() {
        assert_eq!(summary(&scalar(&[])), (0, 0.0, 0.0));
        assert_eq!(summary(&scalar(&[3.0])), (1, 3.0, 9.0));
        assert_eq!(summary(&scalar(&[1.0, 2.0, 3.0, 4.0, 10.0])), (5, 4.0, 12.5));
    }

    #[test]
    fn merging_is_pushing_one_after_the_other() {
        let mut stat = scalar(&[1.0, 2.0, 3.0]);
        stat.merge(&scalar(&[10.0, 20.0])).unwrap();
        let (n, mean, var) = summary(&stat);
        assert!(n == 5 && (mean - 7.2).abs() < 1e-12 && (var - 63.7).abs() < 1e-12, "{mean} {var}");
        let mut none = scalar(&[]);
        none.merge(&scalar(&[])).unwrap();
        assert_eq!(none.n(), 0);
        // Merging with empty statistics rounds nothing.
        none.merge(&stat).unwrap();
        stat.merge(&scalar(&[])).unwrap();
        assert_eq!(none, stat);
    }

    #[test]
    fn rows_that_do_not_fit_change_nothing() {
        let mut stat = RunningStat::new(RowShape::vector(2)).unwrap();
        stat.push(&[1.0, 2.0]).unwrap();
        let before = stat.clone();
        let error = |stat: &mut RunningStat, row: &[f64]| stat.push(row).unwrap_err().to_string();
        assert_eq!(error(&mut stat, &[1.0; 3]), "rows of shape (2) are wanted, not 3 values");
        assert_eq!(error(&mut stat, &[1.0; 4]), "rows of shape (2) are wanted, not 2 rows");
        assert_eq!(error(&mut stat, &[]), "rows of shape (2) are wanted, not 0 rows");
        let nan = error(&mut stat, &[1.0, f64::NAN]);
        assert_eq!(nan, "row 0 holds NaN at element 1; observations must be finite and at most 1e100 in magnitude");
        assert!(stat.push(&[f64::NEG_INFINITY, 0.0]).is_err() && stat.push(&[0.0, 1e101]).is_err());
        assert!(stat.push(&[f32::INFINITY, 0.0]).is_err() && stat.push(&[f32::NAN, 0.0]).is_err());
        let other = scalar(&[1.0]);
        let error = stat.merge(&other).unwrap_err();
        assert_eq!(error.to_string(), "rows of shape (2) are wanted, not statistics of ()");
        assert_eq!(stat, before);
    }

    #[test]
    fn sizes_are_bounded() {
        for shape in [RowShape::vector(0), RowShape::vector((1 << 22) + 1)] {
            assert_eq!(RunningStat::new(shape), Err(FilterError::BadShape(shape)));
        }
        let full = |n| RunningStat::from_parts(RowShape::SCALAR, n, vec![1.0], vec![0.0]);
        let mut stat = full(RunningStat::MAX_ROWS).unwrap();
        assert_eq!(stat.push(&[1.0]), Err(FilterError::TooManyRows));
        assert_eq!(stat.merge(&scalar(&[1.0])), Err(FilterError::TooManyRows));
        assert_eq!(full(RunningStat::MAX_ROWS + 1), None);
    }

    #[test]
    fn the_largest_values_stay_finite() {
        let mut stat = scalar(&[1e100, -1e100, 1e100]);
        for _ in 0..40 {
            let other = stat.clone();
            stat.merge(&other).unwrap();
        }
        assert!(stat.std().all(f64::is_finite));
        let again = RunningStat::from_parts(stat.shape, stat.n, stat.mean.clone(), stat.m2.clone());
        assert_eq!(again, Some(stat));
    }
}
