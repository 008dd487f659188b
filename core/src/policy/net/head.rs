//! From the outputs of a model to an action.

use crate::{
    column::{Element, by_type},
    distribution::{ActionDistribution, DistributionError},
    env::{Moment, RowsMut},
    kernels::{DrawBuffers, Draws, Kernels},
    policy::PolicyError,
    prelude::*,
    rng::{Streams, unit_f32},
    space::{Point, Space},
};

/// Draws rows of actions, of any element type, without allocation.
#[derive(Clone, Debug)]
pub(super) struct Head {
    distribution: ActionDistribution,
    /// Buffers for many rows of a categorical distribution at a time.
    uniforms: Vec<f32>,
    buffers: DrawBuffers,
}

impl Head {
    pub(super) fn for_space(space: &Space) -> Result<Self, PolicyError> {
        let unsupported = |_: DistributionError| PolicyError::Unsupported {
            wanted: "actions of a space with a distribution".into(),
            found: space.to_string(),
        };
        let distribution = ActionDistribution::for_space(space).map_err(unsupported)?;
        Ok(Self { distribution, uniforms: Vec::new(), buffers: DrawBuffers::default() })
    }

    /// Returns the number of elements of an action.
    pub(super) fn action_len(&self) -> usize {
        self.distribution.action_len()
    }

    /// Returns how many numbers the network gives for each row.
    pub(super) fn input_len(&self) -> usize {
        self.distribution.input_len()
    }

    /// Returns the log-probability of an action that was taken elsewhere.
    pub(super) fn logp(&self, inputs: &[f32], action: &Point) -> Result<f32, PolicyError> {
        self.distribution.logp(inputs, action).map_err(|error| PolicyError::Failed(error.to_string()))
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
        let Self { distribution, uniforms, buffers } = self;
        match (distribution, actions, streams) {
            (ActionDistribution::Categorical(_), RowsMut::I64(actions), Some(streams)) => {
                uniforms.clear();
                // As `streams.at(…).uniform_f32()` would draw.
                let uniform = |m: &Moment| unit_f32(streams.block(m.slot, m.episode, m.t, m.agent)[0]);
                uniforms.extend(moments.iter().map(uniform));
                (kernels.categorical)(inputs, buffers, Draws { uniforms, actions, logp });
                Ok(())
            }
            (distribution, actions, streams) => by_type!(RowsMut, actions, actions => {
                draw_each(distribution, inputs, moments, streams, actions, logp)
            }),
        }
    }
}

fn draw_each<T: Element>(
    distribution: &ActionDistribution,
    inputs: &[f32],
    moments: &[Moment],
    streams: Option<&Streams>,
    actions: &mut [T],
    logp: &mut [f32],
) -> Result<(), DistributionError> {
    let (input_len, action_len) = (distribution.input_len().max(1), distribution.action_len().max(1));
    let rows = inputs.chunks_exact(input_len).zip(moments).zip(actions.chunks_exact_mut(action_len));
    for (((mut inputs, m), mut action), logp) in rows.zip(logp) {
        let mut rng = streams.map(|streams| streams.at(m.slot, m.episode, m.t, m.agent));
        *logp = distribution.draw_row(&mut inputs, &mut rng.as_mut(), &mut action)?;
    }
    Ok(())
}
