//! Implements independent choices between 0 and 1.

use super::{Distribution, DistributionError, Share, components};
use crate::{column::Element, math, rng::Rng};

/// Vectors of components that are 1 with probability `1 / (1 + e^-logit)`, otherwise 0. Each component of a draw uses one
/// word of the stream.
#[doc(alias("TorchBernoulli", "sigmoid"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bernoulli {
    len: usize,
}

impl Bernoulli {
    /// Creates a distribution over vectors of this length.
    ///
    /// # Errors
    /// [`DistributionError::BadSize`] for 0, or for 2^24 or more.
    pub fn new(len: usize) -> Result<Self, DistributionError> {
        components(len).map(|len| Self { len })
    }
}

impl Distribution for Bernoulli {
    type Action = u8;

    fn input_len(&self) -> usize {
        self.len
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
        let logps = inputs.iter().zip(action).map(|(logit, x)| {
            let is_one = match &mut rng {
                Some(rng) => rng.uniform_f32() < math::sigmoid(*logit),
                None => *logit > 0.0,
            };
            *x = T::from_f64(f64::from(u8::from(is_one)));
            log_probability(if is_one { *logit } else { -*logit })
        });
        Ok(logps.sum())
    }

    fn logp_of_row(&self, inputs: &[f32], action: &[u8]) -> Result<f32, DistributionError> {
        let logp = |(component, (logit, x)): (usize, (&f32, &u8))| match *x {
            0 => Ok(log_probability(-*logit)),
            1 => Ok(log_probability(*logit)),
            x => Err(DistributionError::NoSuchAction { component, action: i64::from(x), values: 2 }),
        };
        inputs.iter().zip(action).enumerate().map(logp).sum()
    }

    fn entropy_of_row(&self, inputs: &[f32]) -> f32 {
        let entropy = |logit: &f32| 0.0 - mean(*logit, |sign| log_probability(sign * logit));
        inputs.iter().map(entropy).sum()
    }

    fn kl_of_row(&self, inputs: &[f32], other: &[f32]) -> f32 {
        let share = |logit: f32| Share { p: math::sigmoid(logit), logp: log_probability(logit) };
        let kl = |(p, q): (&f32, &f32)| share(*p).divergence(share(*q)) + share(-*p).divergence(share(-*q));
        inputs.iter().zip(other).map(kl).sum::<f64>() as f32
    }
}

fn log_probability(logit: f32) -> f32 {
    0.0 - math::softplus(-logit)
}

/// Returns the mean of `f(1)` for a 1 and `f(-1)` for a 0; ignores a value with probability 0.
fn mean(logit: f32, f: impl Fn(f32) -> f32) -> f32 {
    let term = |sign: f32| {
        let p = math::sigmoid(sign * logit);
        if p == 0.0 { 0.0 } else { p * f(sign) }
    };
    term(1.0) + term(-1.0)
}
