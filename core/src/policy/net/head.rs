//! From the outputs of a model to an action.

use crate::{
    distribution::{
        ActionDistribution, Bernoulli, Categorical, DiagGaussian, Distribution, DistributionError, MultiCategorical,
    },
    env::{Moment, RowsMut},
    kernels::{DrawRoom, Draws, Kernels},
    policy::PolicyError,
    prelude::*,
    rng::{Streams, unit_f32},
    space::{Scalar, Space},
};

/// Draws rows of actions, of any element type, without allocation.
#[derive(Clone, Debug)]
pub(super) enum Head {
    Categorical(Drawing<Categorical>, Many),
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

/// What the kernel of a [`Categorical`] needs besides.
#[derive(Clone, Debug, Default)]
pub(super) struct Many {
    uniforms: Vec<f32>,
    room: DrawRoom,
}

impl Head {
    pub(super) fn for_space(space: &Space) -> Result<Self, PolicyError> {
        let unsupported =
            |found: String| PolicyError::Unsupported { wanted: "actions of a single array".into(), found };
        match ActionDistribution::for_space(space).map_err(|error| unsupported(error.to_string()))? {
            ActionDistribution::Categorical(of) => Ok(Self::Categorical(Drawing::new(of), Many::default())),
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
            Self::Categorical(drawing, _) => drawing.action.len(),
            Self::MultiCategorical(drawing) => drawing.action.len(),
            Self::DiagGaussian(drawing) => drawing.action.len(),
            Self::Bernoulli(drawing) => drawing.action.len(),
        }
    }

    pub(super) fn input_len(&self) -> usize {
        match self {
            Self::Categorical(drawing, _) => drawing.distribution.input_len(),
            Self::MultiCategorical(drawing) => drawing.distribution.input_len(),
            Self::DiagGaussian(drawing) => drawing.distribution.input_len(),
            Self::Bernoulli(drawing) => drawing.distribution.input_len(),
        }
    }

    /// Writes an action for each row, drawn or, without random numbers, the one in the middle, and its log-probability.
    /// All lengths have been checked.
    pub(super) fn draw_rows(
        &mut self,
        kernels: &Kernels,
        inputs: &[f32],
        moments: &[Moment],
        streams: Option<&Streams>,
        actions: RowsMut<'_>,
        logp: &mut [f32],
    ) -> Result<(), DistributionError> {
        match (self, actions, streams) {
            (Self::Categorical(_, Many { uniforms, room }), RowsMut::I64(actions), Some(streams)) => {
                uniforms.clear();
                let uniform = |m: &Moment| unit_f32(streams.block(m.slot, m.episode, m.t, m.agent)[0]);
                uniforms.extend(moments.iter().map(uniform));
                (kernels.categorical)(inputs, room, Draws { uniforms, actions, logp });
                Ok(())
            }
            (head, RowsMut::F32(actions), streams) => head.draw_each(inputs, moments, streams, actions, logp),
            (head, RowsMut::F64(actions), streams) => head.draw_each(inputs, moments, streams, actions, logp),
            (head, RowsMut::I32(actions), streams) => head.draw_each(inputs, moments, streams, actions, logp),
            (head, RowsMut::I64(actions), streams) => head.draw_each(inputs, moments, streams, actions, logp),
            (head, RowsMut::U8(actions), streams) => head.draw_each(inputs, moments, streams, actions, logp),
            (head, RowsMut::Bool(actions), streams) => head.draw_each(inputs, moments, streams, actions, logp),
        }
    }

    fn draw_each<T: Scalar>(
        &mut self,
        inputs: &[f32],
        moments: &[Moment],
        streams: Option<&Streams>,
        actions: &mut [T],
        logp: &mut [f32],
    ) -> Result<(), DistributionError> {
        match self {
            Self::Categorical(drawing, _) => drawing.draw_each(inputs, moments, streams, actions, logp),
            Self::MultiCategorical(drawing) => drawing.draw_each(inputs, moments, streams, actions, logp),
            Self::DiagGaussian(drawing) => drawing.draw_each(inputs, moments, streams, actions, logp),
            Self::Bernoulli(drawing) => drawing.draw_each(inputs, moments, streams, actions, logp),
        }
    }
}

impl<D: Distribution> Drawing<D> {
    fn new(distribution: D) -> Self {
        let action = vec![D::Action::default(); distribution.action_len()];
        Self { distribution, action }
    }

    fn draw_each<T: Scalar>(
        &mut self,
        inputs: &[f32],
        moments: &[Moment],
        streams: Option<&Streams>,
        actions: &mut [T],
        logp: &mut [f32],
    ) -> Result<(), DistributionError> {
        let Self { distribution, action } = self;
        let inputs = inputs.chunks_exact(distribution.input_len().max(1));
        let rows = inputs.zip(moments).zip(actions.chunks_exact_mut(action.len().max(1)));
        for (((inputs, m), out), logp) in rows.zip(logp) {
            *logp = match streams {
                Some(streams) => distribution.sample(inputs, &mut streams.at(m.slot, m.episode, m.t, m.agent), action),
                None => distribution.deterministic(inputs, action),
            }?;
            for (out, x) in out.iter_mut().zip(action.iter()) {
                *out = T::from_f64(x.to_f64());
            }
        }
        Ok(())
    }
}
