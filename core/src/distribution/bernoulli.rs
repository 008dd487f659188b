//! Implements independent choices between 0 and 1.

use super::{Distribution, DistributionError, Share, check_actions, check_inputs, components};
use crate::{math, rng::Rng};

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

    fn check(&self, inputs: &[f32], action: &[u8]) -> Result<(), DistributionError> {
        check_inputs(self.len, inputs)?;
        check_actions(self.len, action.len())
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

    fn sample(&self, inputs: &[f32], rng: &mut Rng, action: &mut [u8]) -> Result<f32, DistributionError> {
        self.check(inputs, action)?;
        for (logit, x) in inputs.iter().zip(action.iter_mut()) {
            *x = u8::from(rng.uniform_f32() < math::sigmoid(*logit));
        }
        self.logp(inputs, action)
    }

    /// A component is 1 when 1 is more probable than 0.
    fn deterministic(&self, inputs: &[f32], action: &mut [u8]) -> Result<f32, DistributionError> {
        self.check(inputs, action)?;
        for (logit, x) in inputs.iter().zip(action.iter_mut()) {
            *x = u8::from(*logit > 0.0);
        }
        self.logp(inputs, action)
    }

    fn logp(&self, inputs: &[f32], action: &[u8]) -> Result<f32, DistributionError> {
        self.check(inputs, action)?;
        let logp = |(component, (logit, x)): (usize, (&f32, &u8))| match *x {
            0 => Ok(log_probability(-*logit)),
            1 => Ok(log_probability(*logit)),
            x => Err(DistributionError::NoSuchAction { component, action: i64::from(x), values: 2 }),
        };
        inputs.iter().zip(action).enumerate().map(logp).sum()
    }

    fn entropy(&self, inputs: &[f32]) -> Result<f32, DistributionError> {
        check_inputs(self.len, inputs)?;
        let entropy = |logit: &f32| 0.0 - mean(*logit, |sign| log_probability(sign * logit));
        Ok(inputs.iter().map(entropy).sum())
    }

    fn kl(&self, inputs: &[f32], other: &[f32]) -> Result<f32, DistributionError> {
        check_inputs(self.len, inputs)?;
        check_inputs(self.len, other)?;
        let share = |logit: f32| Share { p: math::sigmoid(logit), logp: log_probability(logit) };
        let kl = |(p, q): (&f32, &f32)| share(*p).divergence(share(*q)) + share(-*p).divergence(share(-*q));
        Ok(inputs.iter().zip(other).map(kl).sum::<f64>() as f32)
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
