//! Rows through the networks, all together.

use super::head::Head;
use crate::{
    distribution::DistributionError,
    kernels::{
        Kernels, Networks,
        nets::{Input, Output, Room},
    },
    policy::{ActionInput, ActionOutput, PolicyError},
    prelude::*,
    rng::{Purpose, Streams},
};

/// Networks, what draws their actions, and what they need for rows.
#[derive(Clone, Debug)]
pub(super) struct Net {
    pub(super) nets: Networks,
    pub(super) head: Head,
    /// Elements of all states together.
    pub(super) state_len: usize,
    kernels: Kernels,
    streams: Streams,
    room: Room,
    /// Parameters of distributions that the caller does not want to have.
    dist_inputs: Vec<f32>,
}

impl Net {
    pub(super) fn new(nets: Networks, head: Head, seed: u64, kernels: Kernels) -> Self {
        let (streams, state_len) = (Streams::new(seed, Purpose::Action), nets.state_len());
        Self { nets, head, state_len, kernels, streams, room: Room::default(), dist_inputs: Vec::new() }
    }

    /// Checks that there are states for so many rows.
    pub(super) fn check_state(&self, rows: usize, state: &[f32]) -> Result<(), PolicyError> {
        match (rows.saturating_mul(self.state_len), state.len()) {
            (wanted, found) if wanted == found => Ok(()),
            (wanted, found) => Err(PolicyError::BufferLength { buffer: "state", wanted, found }),
        }
    }

    /// Chooses an action for each row. All lengths have been checked.
    pub(super) fn act(
        &mut self,
        obs: &[f32],
        input: ActionInput<'_>,
        out: ActionOutput<'_>,
    ) -> Result<(), DistributionError> {
        let ActionOutput { actions, logp, vf_preds: values, state, dist_inputs: wanted } = out;
        let dist_inputs = if wanted.is_empty() {
            self.dist_inputs.resize(values.len() * self.head.input_len(), 0.0);
            &mut self.dist_inputs
        } else {
            wanted
        };
        let out = Output { dist_inputs: &mut *dist_inputs, values, state };
        (self.kernels.forward)(&self.nets, Input { obs, state: input.state }, &mut self.room, out);
        let streams = input.explore.then_some(&self.streams);
        self.head.draw_rows(&self.kernels, dist_inputs, input.moments, streams, actions, logp)
    }

    /// Estimates the value of each row. All lengths have been checked.
    pub(super) fn estimate(&mut self, obs: &[f32], state: &[f32], values: &mut [f32]) {
        let out = Output { dist_inputs: &mut [], values, state: &mut [] };
        (self.kernels.forward)(&self.nets, Input { obs, state }, &mut self.room, out);
    }
}
