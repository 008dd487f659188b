//! From the outputs of a model to an action.

use crate::{
    by_type,
    column::Element,
    distribution::{
        ActionDistribution, Bernoulli, Categorical, DiagGaussian, Distribution, DistributionError, MultiCategorical,
    },
    env::{Moment, RowsMut},
    kernels::{DrawRoom, Draws, Kernels},
    policy::PolicyError,
    prelude::*,
    rng::{Rng, Streams, unit_f32},
    space::Space,
};

/// Draws rows of actions, of any element type, without allocation.
#[derive(Clone, Debug)]
pub(super) enum Head {
    Categorical(Drawing<Categorical>, Many),
    MultiCategorical(Drawing<MultiCategorical>),
    DiagGaussian(Drawing<DiagGaussian>),
    Bernoulli(Drawing<Bernoulli>),
    /// The parts of a tuple or a dict, which draw in order.
    Joined(Vec<Self>),
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
        let unsupported = |error: DistributionError| PolicyError::Unsupported {
            wanted: "actions to choose from".into(),
            found: error.to_string(),
        };
        Ok(Self::of(ActionDistribution::for_space(space).map_err(unsupported)?))
    }

    fn of(distribution: ActionDistribution) -> Self {
        match distribution {
            ActionDistribution::Categorical(of) => Self::Categorical(Drawing::new(of), Many::default()),
            ActionDistribution::MultiCategorical { distribution: of, .. } => Self::MultiCategorical(Drawing::new(of)),
            ActionDistribution::DiagGaussian { distribution: of, .. } => Self::DiagGaussian(Drawing::new(of)),
            ActionDistribution::Bernoulli(of) => Self::Bernoulli(Drawing::new(of)),
            ActionDistribution::Tuple(parts) => Self::Joined(parts.into_iter().map(Self::of).collect()),
            ActionDistribution::Dict(parts) => Self::Joined(parts.into_values().map(Self::of).collect()),
        }
    }

    pub(super) fn action_len(&self) -> usize {
        match self {
            Self::Categorical(drawing, _) => drawing.action.len(),
            Self::MultiCategorical(drawing) => drawing.action.len(),
            Self::DiagGaussian(drawing) => drawing.action.len(),
            Self::Bernoulli(drawing) => drawing.action.len(),
            Self::Joined(parts) => parts.iter().map(Self::action_len).sum(),
        }
    }

    pub(super) fn input_len(&self) -> usize {
        match self {
            Self::Categorical(drawing, _) => drawing.distribution.input_len(),
            Self::MultiCategorical(drawing) => drawing.distribution.input_len(),
            Self::DiagGaussian(drawing) => drawing.distribution.input_len(),
            Self::Bernoulli(drawing) => drawing.distribution.input_len(),
            Self::Joined(parts) => parts.iter().map(Self::input_len).sum(),
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
        actions: &mut RowsMut<'_>,
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
            (head, actions, streams) => {
                by_type!(RowsMut, actions, actions => head.draw_each(inputs, moments, streams, actions, logp))
            }
        }
    }

    fn draw_each<T: Element>(
        &mut self,
        inputs: &[f32],
        moments: &[Moment],
        streams: Option<&Streams>,
        actions: &mut [T],
        logp: &mut [f32],
    ) -> Result<(), DistributionError> {
        let (input_len, action_len) = (self.input_len().max(1), self.action_len().max(1));
        let rows = inputs.chunks_exact(input_len).zip(moments).zip(actions.chunks_exact_mut(action_len));
        for (((inputs, m), action), logp) in rows.zip(logp) {
            let mut rng = streams.map(|streams| streams.at(m.slot, m.episode, m.t, m.agent));
            *logp = self.draw(inputs, rng.as_mut(), action)?;
        }
        Ok(())
    }

    /// Writes one action, and returns its log-probability.
    fn draw<T: Element>(
        &mut self,
        inputs: &[f32],
        mut rng: Option<&mut Rng>,
        action: &mut [T],
    ) -> Result<f32, DistributionError> {
        match self {
            Self::Categorical(drawing, _) => drawing.draw(inputs, rng, action),
            Self::MultiCategorical(drawing) => drawing.draw(inputs, rng, action),
            Self::DiagGaussian(drawing) => drawing.draw(inputs, rng, action),
            Self::Bernoulli(drawing) => drawing.draw(inputs, rng, action),
            Self::Joined(parts) => {
                let (mut inputs, mut action, mut logp) = (inputs, action, 0.0);
                for part in parts {
                    let own_inputs = inputs.split_off(..part.input_len()).unwrap_or_default();
                    let own_action = action.split_off_mut(..part.action_len()).unwrap_or_default();
                    logp += part.draw(own_inputs, rng.as_deref_mut(), own_action)?;
                }
                Ok(logp)
            }
        }
    }
}

impl<D: Distribution> Drawing<D> {
    fn new(distribution: D) -> Self {
        let action = vec![D::Action::default(); distribution.action_len()];
        Self { distribution, action }
    }

    fn draw<T: Element>(
        &mut self,
        inputs: &[f32],
        rng: Option<&mut Rng>,
        out: &mut [T],
    ) -> Result<f32, DistributionError> {
        let Self { distribution, action } = self;
        let logp = match rng {
            Some(rng) => distribution.sample(inputs, rng, action),
            None => distribution.deterministic(inputs, action),
        }?;
        for (out, x) in out.iter_mut().zip(action.iter()) {
            *out = T::from_f64(x.to_f64());
        }
        Ok(logp)
    }
}
