//! From the outputs of a model to an action.

use crate::{
    distribution::{
        ActionDistribution, Bernoulli, Categorical, DiagGaussian, Distribution, DistributionError, MultiCategorical,
    },
    policy::PolicyError,
    prelude::*,
    rng::Rng,
    space::{Scalar, Space},
};

/// Draws rows of actions, of any element type, without allocation.
#[derive(Clone, Debug)]
pub(super) enum Head {
    Categorical(Drawing<Categorical>),
    MultiCategorical(Drawing<MultiCategorical>),
    DiagGaussian(Drawing<DiagGaussian>),
    Bernoulli(Drawing<Bernoulli>),
}

/// A distribution, and room for one of its actions.
#[derive(Clone, Debug)]
pub(super) struct Drawing<D: Distribution> {
    distribution: D,
    action: Vec<D::Action>,
}

impl Head {
    pub(super) fn for_space(space: &Space) -> Result<Self, PolicyError> {
        let unsupported =
            |found: String| PolicyError::Unsupported { wanted: "actions of a single array".into(), found };
        match ActionDistribution::for_space(space).map_err(|error| unsupported(error.to_string()))? {
            ActionDistribution::Categorical(of) => Ok(Self::Categorical(Drawing::new(of))),
            ActionDistribution::MultiCategorical { distribution: of, .. } => {
                Ok(Self::MultiCategorical(Drawing::new(of)))
            }
            ActionDistribution::DiagGaussian { distribution: of, .. } => Ok(Self::DiagGaussian(Drawing::new(of))),
            ActionDistribution::Bernoulli(of) => Ok(Self::Bernoulli(Drawing::new(of))),
            ActionDistribution::Tuple(_) | ActionDistribution::Dict(_) => Err(unsupported(space.to_string())),
        }
    }

    pub(super) fn action_len(&self) -> usize {
        match self {
            Self::Categorical(drawing) => drawing.action.len(),
            Self::MultiCategorical(drawing) => drawing.action.len(),
            Self::DiagGaussian(drawing) => drawing.action.len(),
            Self::Bernoulli(drawing) => drawing.action.len(),
        }
    }

    pub(super) fn input_len(&self) -> usize {
        match self {
            Self::Categorical(drawing) => drawing.distribution.input_len(),
            Self::MultiCategorical(drawing) => drawing.distribution.input_len(),
            Self::DiagGaussian(drawing) => drawing.distribution.input_len(),
            Self::Bernoulli(drawing) => drawing.distribution.input_len(),
        }
    }

    /// Writes an action, drawn or, without random numbers, the one in the middle, and gives its log-probability.
    pub(super) fn draw<T: Scalar>(
        &mut self,
        inputs: &[f32],
        rng: Option<Rng>,
        action: &mut [T],
    ) -> Result<f32, DistributionError> {
        match self {
            Self::Categorical(drawing) => drawing.draw(inputs, rng, action),
            Self::MultiCategorical(drawing) => drawing.draw(inputs, rng, action),
            Self::DiagGaussian(drawing) => drawing.draw(inputs, rng, action),
            Self::Bernoulli(drawing) => drawing.draw(inputs, rng, action),
        }
    }
}

impl<D: Distribution> Drawing<D> {
    fn new(distribution: D) -> Self {
        let action = vec![D::Action::default(); distribution.action_len()];
        Self { distribution, action }
    }

    fn draw<T: Scalar>(&mut self, inputs: &[f32], rng: Option<Rng>, out: &mut [T]) -> Result<f32, DistributionError> {
        let logp = match rng {
            Some(mut rng) => self.distribution.sample(inputs, &mut rng, &mut self.action),
            None => self.distribution.deterministic(inputs, &mut self.action),
        }?;
        for (out, x) in out.iter_mut().zip(&self.action) {
            *out = T::from_f64(x.to_f64());
        }
        Ok(logp)
    }
}
