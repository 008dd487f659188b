//! Normalises observations.

use super::{FilterError, RunningStat};
use crate::prelude::*;

/// Added to the standard deviation to avoid a division by zero.
const EPSILON: f64 = 1e-6;

/// Floats that a filter accepts and returns. It computes in 64 bits.
pub trait FilterFloat: Copy + Into<f64> {
    /// Returns the nearest finite value of this type.
    fn from_f64(value: f64) -> Self;
}

impl FilterFloat for f32 {
    #[inline]
    fn from_f64(value: f64) -> Self {
        // Some 64-bit values have no 32-bit value near them. Values are never NaN.
        value.clamp(f64::from(Self::MIN), f64::from(Self::MAX)) as Self
    }
}

impl FilterFloat for f64 {
    #[inline]
    fn from_f64(value: f64) -> Self {
        value.clamp(Self::MIN, Self::MAX)
    }
}

/// The settings by which a filter with statistics normalises a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanStdConfig {
    /// Subtract the mean.
    pub demean: bool,
    /// Divide by the standard deviation.
    pub destd: bool,
    /// Clamp the result to this magnitude; none for no clipping.
    pub clip: Option<f64>,
}

impl MeanStdConfig {
    /// Mean, standard deviation, no clipping: RLlib's configuration for `observation_filter="MeanStdFilter"`.
    pub const UNCLIPPED: Self = Self { demean: true, destd: true, clip: None };

    pub(super) fn check(self) -> Result<Self, FilterError> {
        match self.clip {
            Some(clip) if clip.is_nan() || clip < 0.0 => Err(FilterError::BadClip(clip.to_string())),
            _ => Ok(self),
        }
    }

    /// Normalises whole rows in place: `(x - mean) / (std + 1e-6)`, clamped. `denominators` are those of
    /// [`denominators`], and values are finite.
    pub(super) fn apply<T: FilterFloat>(self, mean: &[f64], denominators: &[f64], rows: &mut [T]) {
        // Infinite limits leave finite values unchanged.
        let clip = self.clip.unwrap_or(f64::INFINITY);
        for row in rows.chunks_exact_mut(mean.len().max(1)) {
            for ((x, mean), denominator) in row.iter_mut().zip(mean).zip(denominators) {
                let wide: f64 = (*x).into();
                let centred = if self.demean { wide - mean } else { wide };
                let scaled = if self.destd { centred / denominator } else { centred };
                *x = T::from_f64(scaled.max(-clip).min(clip));
            }
        }
    }
}

/// The defaults of RLlib's constructor: mean, standard deviation, clipping at 10.
impl Default for MeanStdConfig {
    fn default() -> Self {
        Self { clip: Some(10.0), ..Self::UNCLIPPED }
    }
}

/// Computes the divisors of rows: the standard deviation plus [`EPSILON`].
pub(super) fn denominators(stat: &RunningStat, out: &mut Vec<f64>) {
    out.clear();
    out.extend(stat.std().map(|std| std + EPSILON));
}
