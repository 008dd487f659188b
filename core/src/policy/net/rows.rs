//! Rows through the networks, all together.

use super::{
    forward::{Forward, Input, Output},
    given::GivenActions,
    head::Head,
    mask::ActionMask,
};
use crate::{
    kernels::Kernels,
    policy::{ActionInput, ActionOutput, PolicyError, PreviousStep},
    prelude::*,
    rng::{Purpose, Streams},
};

/// Networks, and the state for drawing their actions.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) forward: Box<dyn Forward>,
    pub(super) head: Head,
    /// Elements of all states together.
    pub(super) state_len: usize,
    /// Actions to take instead of drawing some.
    pub(super) given: Option<GivenActions>,
    kernels: Kernels,
    streams: Streams,
    /// Parameters of distributions that the caller does not request.
    dist_inputs: Vec<f32>,
    /// An encoded action.
    encoded: Vec<f32>,
}

impl Net {
    pub(super) fn new(forward: Box<dyn Forward>, head: Head, state_len: usize, seed: u64, kernels: Kernels) -> Self {
        let streams = Streams::new(seed, Purpose::Action);
        let (given, dist_inputs, encoded) = (None, Vec::new(), Vec::new());
        Self { forward, head, state_len, given, kernels, streams, dist_inputs, encoded }
    }

    /// Checks that there are states for all rows.
    pub(super) fn check_state(&self, rows: usize, state: &[f32]) -> Result<(), PolicyError> {
        PolicyError::check_buffer("state", state.len(), rows.saturating_mul(self.state_len))
    }

    /// Chooses an action for each row. All lengths have been checked.
    pub(super) fn act(
        &mut self,
        obs: &[f32],
        mask: Option<&ActionMask>,
        previous: Option<&PreviousStep>,
        input: ActionInput<'_>,
        out: ActionOutput<'_>,
    ) -> Result<(), PolicyError> {
        let ActionOutput { mut actions, logp, vf_preds: values, state, dist_inputs: wanted } = out;
        let dist_inputs = if wanted.is_empty() {
            self.dist_inputs.resize(values.len() * self.head.input_len(), 0.0);
            &mut self.dist_inputs
        } else {
            wanted
        };
        let out = Output { dist_inputs: &mut *dist_inputs, values, state: &mut *state };
        self.forward.forward(Input { obs, state: input.state }, out)?;
        if let Some(mask) = mask {
            mask.apply(dist_inputs)?;
        }
        if let Some(given) = &mut self.given {
            given.take(&self.head, dist_inputs, &mut actions, logp)?;
        } else {
            let streams = input.explore.then_some(&self.streams);
            let drawn = self.head.draw_rows(&self.kernels, dist_inputs, input.moments, streams, &mut actions, logp);
            drawn.map_err(|error| PolicyError::Failed(error.to_string()))?;
        }
        let Some(previous) = previous else { return Ok(()) };
        let len = self.head.action_len();
        for (row, state) in state.chunks_exact_mut(self.state_len.max(1)).enumerate() {
            let action = actions.as_rows().part(row * len..(row + 1) * len);
            previous.write(action, 0.0, state, &mut self.encoded)?;
        }
        Ok(())
    }

    /// Estimates the value of each row. All lengths have been checked.
    pub(super) fn estimate(&mut self, obs: &[f32], state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        self.forward.forward(Input { obs, state }, Output { dist_inputs: &mut [], values, state: &mut [] })
    }
}
