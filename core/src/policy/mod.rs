//! Policies: batches of observations in, actions with log-probabilities and value estimates out.
//!
//! A policy computes into the caller's buffers and draws nothing by itself: the randomness of a row's action is
//! addressed by the row's [`Moment`]. So a row's action does not depend on which other rows are in its batch.

mod init;
mod map;
mod mlp;
mod random;

pub use init::init_weights;
pub use map::{PolicyId, PolicyMap, PolicyMapError};
pub use mlp::{MlpPolicy, MlpPolicySpec};
pub use random::RandomPolicy;

use crate::{
    env::{Moment, RowsMut, RowsRef},
    prelude::*,
    weights::{Weights, WeightsError},
};

/// Observations to act on.
#[derive(Clone, Copy, Debug)]
pub struct ActionInput<'a> {
    /// Observations, row-major.
    pub obs: RowsRef<'a>,
    /// The moment of each row.
    pub moments: &'a [Moment],
}

/// Where actions go, one row or entry per observation.
#[derive(Debug)]
pub struct ActionOutput<'a> {
    /// Chosen actions.
    pub actions: RowsMut<'a>,
    /// Their log-probabilities.
    pub logp: &'a mut [f32],
    /// Value estimates of the observations.
    pub vf_preds: &'a mut [f32],
}

/// Why a policy could not act.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The policy does not take these observations or give these actions.
    #[error("the policy takes {wanted}, not {found}")]
    Unsupported {
        /// What it takes.
        wanted: String,
        /// What it was given.
        found: String,
    },
    /// These weights are not the policy's.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

/// Something that acts.
pub trait Policy {
    /// Chooses an action for every observation.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for rows of another type.
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError>;

    /// Estimates the value of every observation, with the same bits as
    /// [`compute_actions`](Self::compute_actions) would.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for rows of another type.
    fn compute_values(&mut self, obs: RowsRef<'_>, values: &mut [f32]) -> Result<(), PolicyError>;

    /// What the policy acts with.
    fn weights(&self) -> &Weights;

    /// Acts with other weights from now on. On an error the old ones stay.
    ///
    /// # Errors
    /// [`PolicyError::Weights`] when they do not fit.
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError>;
}
