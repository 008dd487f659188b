//! Implements normal distributions squashed between bounds.

use super::{Distribution, DistributionError, components, gaussian::Normal};
use crate::{
    column::{DType, Element},
    math,
    prelude::*,
    rng::Rng,
    space::Space,
};

/// Vectors whose components are `low + (tanh(x) + 1) (high - low) / 2` of independently normal `x` (Haarnoja et al.:
/// "Soft actor-critic", 2018, appendix C).
///
/// Inputs are all means of `x`, then the logarithms of all its standard deviations, which are clamped to [-5, 2]. Each
/// component of a draw uses four words of the stream.
///
/// The log-probability of a draw is exact however close to a bound the action is. Near a bound, `x` cannot be recovered from
/// the action alone: [`logp`](Distribution::logp) moves actions away from the bounds by a millionth of half the span. The
/// entropy has no closed form.
#[doc(alias = "TorchSquashedGaussian")]
#[derive(Clone, Debug, PartialEq)]
pub struct SquashedGaussian {
    bounds: Vec<SquashInterval>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct SquashInterval {
    low: f32,
    high: f32,
    /// Logarithm of half the span.
    log_half: f32,
}

/// Range of the logarithm of the standard deviation.
const LOG_STD: (f32, f32) = (-5.0, 2.0);

/// Maximum absolute value of a hyperbolic tangent before it is inverted.
const NEAREST: f32 = 1.0 - 1e-6;

impl SquashedGaussian {
    /// Creates a distribution between these bounds, which must be finite and not equal.
    ///
    /// # Errors
    /// [`DistributionError::BadBounds`]; [`DistributionError::BadSize`] for no components or unequal numbers of bounds.
    pub fn new(low: &[f32], high: &[f32]) -> Result<Self, DistributionError> {
        components(low.len())?;
        if low.len() != high.len() {
            return Err(DistributionError::BadSize);
        }
        let interval = |(component, (low, high)): (usize, (&f32, &f32))| {
            let (low, high) = (*low, *high);
            if low < high && low.is_finite() && high.is_finite() {
                Ok(SquashInterval::new(low, high))
            } else {
                Err(DistributionError::BadBounds { component, low, high })
            }
        };
        let bounds = low.iter().zip(high).enumerate().map(interval).collect::<Result<_, _>>()?;
        Ok(Self { bounds })
    }

    /// Creates a distribution between the bounds of a box of 32-bit floats.
    ///
    /// # Errors
    /// [`DistributionError::Unsupported`] for other spaces; otherwise the errors of [`new`](Self::new).
    pub fn for_space(space: &Space) -> Result<Self, DistributionError> {
        match space {
            Space::Box(space) if space.dtype() == DType::F32 => {
                let (low, high): (Vec<_>, Vec<_>) = space.bounds().map(|(low, high)| (low as f32, high as f32)).unzip();
                Self::new(&low, &high)
            }
            _ => Err(DistributionError::Unsupported(space.to_string())),
        }
    }

    fn components<'a>(&'a self, inputs: &'a [f32]) -> impl Iterator<Item = (Normal, &'a SquashInterval)> {
        let clamp = |normal: Normal| Normal { log_std: normal.log_std.clamp(LOG_STD.0, LOG_STD.1), ..normal };
        Normal::all(inputs).map(clamp).zip(&self.bounds)
    }
}

impl Distribution for SquashedGaussian {
    type Action = f32;

    fn input_len(&self) -> usize {
        2 * self.bounds.len()
    }

    fn action_len(&self) -> usize {
        self.bounds.len()
    }

    fn draw_row<T: Element>(
        &self,
        inputs: &[f32],
        mut rng: Option<&mut Rng>,
        action: &mut [T],
    ) -> Result<f32, DistributionError> {
        let logps = self.components(inputs).zip(action).map(|((normal, interval), action)| {
            let x = normal.draw(rng.as_deref_mut());
            *action = T::from_f64(interval.squash(x).into());
            normal.logp(x) - interval.log_slope(x)
        });
        Ok(logps.sum())
    }

    fn logp_of_row(&self, inputs: &[f32], action: &[f32]) -> Result<f32, DistributionError> {
        let logps = self.components(inputs).zip(action).map(|((normal, interval), action)| {
            let x = interval.unsquash(*action);
            normal.logp(x) - interval.log_slope(x)
        });
        Ok(logps.sum())
    }

    fn entropy_of_row(&self, _inputs: &[f32]) -> Result<f32, DistributionError> {
        Err(DistributionError::NoClosedForm("the entropy of a squashed Gaussian"))
    }

    /// Returns the divergence of the normal distributions: squashing both in the same way does not change it.
    fn kl_of_row(&self, inputs: &[f32], other: &[f32]) -> f32 {
        self.components(inputs).zip(self.components(other)).map(|((p, _), (q, _))| p.kl(&q)).sum()
    }
}

impl SquashInterval {
    fn new(low: f32, high: f32) -> Self {
        let half = 0.5 * (f64::from(high) - f64::from(low));
        Self { low, high, log_half: math::log_f64(half) as f32 }
    }

    /// Returns the span, which may exceed the range of 32-bit floats.
    fn span(&self) -> f64 {
        f64::from(self.high) - f64::from(self.low)
    }

    fn squash(&self, x: f32) -> f32 {
        let share = (f64::from(math::tanh(x)) + 1.0) * 0.5;
        let y = (f64::from(self.low) + share * self.span()) as f32;
        if y > self.high { self.high } else { y }
    }

    fn unsquash(&self, action: f32) -> f32 {
        let y = (f64::from(action) - f64::from(self.low)) / self.span() * 2.0 - 1.0;
        math::atanh((y as f32).clamp(-NEAREST, NEAREST))
    }

    /// Returns the logarithm of the slope of [`squash`](Self::squash) at `x`.
    ///
    /// `log(1 - tanh(x)^2) = 2 (log 2 - x - log(1 + e^-2x))`, written for |x| so that nothing cancels or overflows.
    fn log_slope(&self, x: f32) -> f32 {
        let x = x.abs();
        let log_tanh = 2.0 * (core::f32::consts::LN_2 - x - math::log1p(math::exp(-2.0 * x)));
        log_tanh + self.log_half
    }
}
