//! The inputs and outputs of a policy.

use super::PolicyError;
use crate::{
    column::Column,
    env::{Moment, RowsMut, RowsRef},
    prelude::*,
};

/// Observations to act on.
#[derive(Clone, Copy, Debug)]
pub struct ActionInput<'a> {
    /// Observations, row-major, filtered and preprocessed.
    pub obs: RowsRef<'a>,
    /// The moment of each row.
    pub moments: &'a [Moment],
    /// Recurrent states, row-major: [`Policy::state_lens`](super::Policy::state_lens) elements a row, one state after
    /// the other. Empty for policies without.
    pub state: &'a [f32],
    /// False for the most likely actions instead of drawn ones.
    pub explore: bool,
}

impl<'a> ActionInput<'a> {
    /// Creates the input for a policy without recurrent state, with exploration.
    #[must_use]
    pub fn new(obs: RowsRef<'a>, moments: &'a [Moment]) -> Self {
        Self { obs, moments, state: &[], explore: true }
    }
}

/// Actions that were taken elsewhere, for audits of rows that a policy on a device acted in.
#[derive(Clone, Debug, PartialEq)]
pub struct TakenActions {
    /// The actions, a row per observation.
    pub actions: Column,
    /// The log-probabilities that the policy reported for them.
    pub logp: Vec<f32>,
}

/// The buffers for actions, one row or entry per observation.
#[derive(Debug)]
pub struct ActionOutput<'a> {
    /// Chosen actions.
    pub actions: RowsMut<'a>,
    /// Their log-probabilities.
    pub logp: &'a mut [f32],
    /// Value estimates of the observations.
    pub vf_preds: &'a mut [f32],
    /// Recurrent states after the step, as in [`ActionInput::state`], if the caller wants them; empty if not.
    pub state: &'a mut [f32],
    /// Parameters of the distributions that the actions come from, row-major, if the caller wants them; empty if not.
    /// See [`Policy::dist_inputs_len`](super::Policy::dist_inputs_len).
    pub dist_inputs: &'a mut [f32],
}

impl<'a> ActionOutput<'a> {
    /// Creates outputs without recurrent states and distributions.
    #[must_use]
    pub fn new(actions: RowsMut<'a>, logp: &'a mut [f32], vf_preds: &'a mut [f32]) -> Self {
        Self { actions, logp, vf_preds, state: &mut [], dist_inputs: &mut [] }
    }

    /// Checks that the buffers take that many rows, with that many elements in an action.
    ///
    /// # Errors
    /// [`PolicyError::BufferLength`].
    pub fn check(&self, rows: usize, action_len: usize) -> Result<(), PolicyError> {
        let elements = rows.saturating_mul(action_len);
        let buffers = [
            ("actions", elements, self.actions.len()),
            ("logp", rows, self.logp.len()),
            ("vf_preds", rows, self.vf_preds.len()),
        ];
        match buffers.into_iter().find(|(_, wanted, found)| wanted != found) {
            Some((buffer, wanted, found)) => Err(PolicyError::BufferLength { buffer, wanted, found }),
            None => Ok(()),
        }
    }

    /// Checks that the buffers which a caller may leave empty take that many rows, with that many elements of states and
    /// of parameters.
    ///
    /// # Errors
    /// [`PolicyError::BufferLength`].
    pub fn check_optional(&self, rows: usize, state_len: usize, dist_inputs_len: usize) -> Result<(), PolicyError> {
        let buffers = [
            ("state", rows.saturating_mul(state_len), self.state.len()),
            ("dist_inputs", rows.saturating_mul(dist_inputs_len), self.dist_inputs.len()),
        ];
        match buffers.into_iter().find(|(_, wanted, found)| *found != 0 && wanted != found) {
            Some((buffer, wanted, found)) => Err(PolicyError::BufferLength { buffer, wanted, found }),
            None => Ok(()),
        }
    }
}
