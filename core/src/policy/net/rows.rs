//! Rows through a model, one after the other.

use core::ops::Range;

use super::{
    head::Head,
    model::{Model, Scratch},
};
use crate::{
    distribution::DistributionError,
    policy::{ActionInput, ActionOutput, PolicyError},
    rng::{Purpose, Streams},
    space::Scalar,
};

/// A model, what draws its actions, and what it needs for a row.
#[derive(Clone, Debug)]
pub(super) struct Net {
    pub(super) model: Model,
    pub(super) head: Head,
    obs_len: usize,
    /// Elements of all states together.
    pub(super) state_len: usize,
    streams: Streams,
    scratch: Scratch,
}

impl Net {
    pub(super) fn new(model: Model, head: Head, obs_len: usize, state_len: usize, seed: u64) -> Self {
        let streams = Streams::new(seed, Purpose::Action);
        Self { model, head, obs_len, state_len, streams, scratch: Scratch::default() }
    }

    /// Checks that there are states for so many rows.
    pub(super) fn check_state(&self, rows: usize, state: &[f32]) -> Result<(), PolicyError> {
        match (rows.saturating_mul(self.state_len), state.len()) {
            (wanted, found) if wanted == found => Ok(()),
            (wanted, found) => Err(PolicyError::BufferLength { buffer: "state", wanted, found }),
        }
    }

    /// Chooses an action for each row. All lengths have been checked.
    pub(super) fn act<T: Scalar>(
        &mut self,
        obs: &[f32],
        input: ActionInput<'_>,
        actions: &mut [T],
        out: ActionOutput<'_>,
    ) -> Result<(), DistributionError> {
        let Self { model, head, streams, scratch, .. } = self;
        let actions = actions.chunks_exact_mut(head.action_len().max(1));
        let outputs = actions.zip(out.logp).zip(out.vf_preds);
        for (i, (((action, logp), vf_pred), m)) in outputs.zip(input.moments).enumerate() {
            let obs = row(obs, i, self.obs_len);
            model.remember(obs, row(input.state, i, self.state_len), scratch);
            if let Some(state) = row_mut(out.state, i, self.state_len) {
                state.copy_from_slice(&scratch.state);
            }
            *vf_pred = model.value(obs, scratch);
            let dist_inputs = model.dist_inputs(obs, scratch);
            if let Some(wanted) = row_mut(out.dist_inputs, i, dist_inputs.len()) {
                wanted.copy_from_slice(dist_inputs);
            }
            let rng = input.explore.then(|| streams.at(m.slot, m.episode, m.t, m.agent));
            *logp = head.draw(dist_inputs, rng, action)?;
        }
        Ok(())
    }

    /// Estimates the value of each row. All lengths have been checked.
    pub(super) fn estimate(&mut self, obs: &[f32], state: &[f32], values: &mut [f32]) {
        for (i, value) in values.iter_mut().enumerate() {
            let obs = row(obs, i, self.obs_len);
            self.model.remember(obs, row(state, i, self.state_len), &mut self.scratch);
            *value = self.model.value(obs, &mut self.scratch);
        }
    }
}

/// The part of a row-major buffer that belongs to a row; nothing of a buffer that was left empty.
fn row(buffer: &[f32], i: usize, len: usize) -> &[f32] {
    range(i, len).and_then(|range| buffer.get(range)).unwrap_or(&[])
}

fn row_mut(buffer: &mut [f32], i: usize, len: usize) -> Option<&mut [f32]> {
    range(i, len).and_then(|range| buffer.get_mut(range))
}

fn range(i: usize, len: usize) -> Option<Range<usize>> {
    let start = i.checked_mul(len)?;
    Some(start..start.checked_add(len)?)
}
