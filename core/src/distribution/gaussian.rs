//! Implements independent normal distributions.

use super::{Distribution, DistributionError, components};
use crate::{column::Element, math, rng::Rng};

/// Vectors whose components are independently normal. Inputs are all means, then the logarithms of all standard deviations.
/// Each component of a draw uses four words of the stream.
///
/// Actions are unbounded; see [`action`](crate::action) for transforms into a bounded space.
#[doc(alias = "TorchDiagGaussian")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiagGaussian {
    len: usize,
}

impl DiagGaussian {
    /// Creates a distribution over vectors of this length.
    ///
    /// # Errors
    /// [`DistributionError::BadSize`] for 0, or for 2^24 or more.
    pub fn new(len: usize) -> Result<Self, DistributionError> {
        components(len).map(|len| Self { len })
    }
}

impl Distribution for DiagGaussian {
    type Action = f32;

    fn input_len(&self) -> usize {
        2 * self.len
    }

    fn action_len(&self) -> usize {
        self.len
    }

    fn draw_row<T: Element>(
        &self,
        inputs: &[f32],
        mut rng: Option<&mut Rng>,
        action: &mut [T],
    ) -> Result<f32, DistributionError> {
        let logps = Normal::all(inputs).zip(action).map(|(normal, out)| {
            let x = normal.draw(rng.as_deref_mut());
            *out = T::from_f64(x.into());
            normal.logp(x)
        });
        Ok(logps.sum())
    }

    fn logp_of_row(&self, inputs: &[f32], action: &[f32]) -> Result<f32, DistributionError> {
        Ok(Normal::all(inputs).zip(action).map(|(normal, x)| normal.logp(*x)).sum())
    }

    fn entropy_of_row(&self, inputs: &[f32]) -> f32 {
        let half = 0.5 + HALF_LOG_TAU;
        Normal::all(inputs).map(|normal| normal.log_std + half).sum()
    }

    fn kl_of_row(&self, inputs: &[f32], other: &[f32]) -> f32 {
        Normal::all(inputs).zip(Normal::all(other)).map(|(p, q)| p.kl(&q)).sum()
    }
}

/// log(2 pi) / 2.
const HALF_LOG_TAU: f32 = 0.918_938_5;

/// One component.
struct Normal {
    mean: f32,
    log_std: f32,
}

impl Normal {
    /// Iterates over the components of a row of inputs.
    fn all(inputs: &[f32]) -> impl Iterator<Item = Self> + '_ {
        let (means, log_stds) = inputs.split_at(inputs.len() / 2);
        means.iter().zip(log_stds).map(|(mean, log_std)| Self { mean: *mean, log_std: *log_std })
    }

    /// Draws a value with random numbers, or returns the mean without.
    fn draw(&self, rng: Option<&mut Rng>) -> f32 {
        rng.map_or(self.mean, |rng| self.mean + math::exp(self.log_std) * rng.normal() as f32)
    }

    /// Returns the distance from the mean in standard deviations; 0 at the mean itself, even if the deviation is close to 0.
    fn deviations(&self, x: f32) -> f32 {
        let distance = x - self.mean;
        if distance == 0.0 { 0.0 } else { distance * math::exp(-self.log_std) }
    }

    fn logp(&self, x: f32) -> f32 {
        let z = self.deviations(x);
        -0.5 * (z * z) - self.log_std - HALF_LOG_TAU
    }

    fn kl(&self, other: &Self) -> f32 {
        // (s^2 + z^2 - 1) / 2 - log s, where s is the ratio of the deviations.
        let log_ratio = f64::from(self.log_std) - f64::from(other.log_std);
        let z = f64::from(other.deviations(self.mean));
        (0.5 * (math::exp_beyond_tangent(2.0 * log_ratio) + z * z)) as f32
    }
}
