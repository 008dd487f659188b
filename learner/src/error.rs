//! The errors of the learner.

use rollmesh_core::{
    batch::BatchError,
    callbacks::CallbackError,
    policy::{AllReduceError, PolicyError},
    postprocess::PostprocessError,
    weights::Weights,
    worker::RolloutError,
};

use super::{algorithm::ConfigError, model::ModelError};

/// An error of creating the learner or of learning from a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LearnError {
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The initial weights are no model, or the trained model no weights.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The learner does not support the spaces, or the observations are not of the space.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A column is missing or of another type.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// Rows of older weights lack a column that V-trace needs.
    #[error("rows of older weights cannot be corrected: {0}")]
    Stale(#[from] PostprocessError),
    /// The workers that sample or read for the learner have failed.
    #[error("{0}")]
    Rows(String),
    /// There is nothing to learn from.
    #[error("the train batch is empty")]
    EmptyBatch,
    /// Rows of another length than the model's.
    #[error("a row of '{column}' has {found} numbers, the model wants {wanted}")]
    Width {
        /// The column.
        column: String,
        /// Numbers in a row of the batch.
        found: usize,
        /// Numbers that the model expects.
        wanted: usize,
    },
    /// An action that the model does not have.
    #[error("action {action} is not one of the model's, {first} to {last}")]
    Action {
        /// The action in the batch.
        action: f64,
        /// The model's first.
        first: i64,
        /// The model's last.
        last: i64,
    },
    /// An action that cannot have been chosen.
    #[error(
        "row {row}: the action_mask of its observation forbids its action {action} (component {component}): leave the row \
         out, or correct its mask"
    )]
    ForbiddenAction {
        /// The step's number in the batch.
        row: usize,
        /// The index of the action's component, from 0.
        component: usize,
        /// The action in the batch.
        action: i64,
    },
    /// Training has diverged. The learner cannot be used any more.
    #[error(
        "training diverged: {reason}; try a smaller lr or grad_clip (the weights of version {} are the last good ones)",
        last_good.version()
    )]
    Diverged {
        /// The event that ended training.
        reason: &'static str,
        /// The weights before the update that failed.
        last_good: Weights,
    },
    /// Loss or gradient of the batch are not finite, so there is no gradient to return. Nothing has changed.
    #[error("the loss or its gradient is not finite: does the batch hold infinite or undefined values?")]
    NotFinite,
    /// Bytes that are not the learner's.
    #[error("this is no state of a learner with {params} parameters: {reason}")]
    State {
        /// Numbers that this learner trains.
        params: usize,
        /// The problem.
        reason: &'static str,
    },
    /// The user's code failed.
    #[error(transparent)]
    Callback(#[from] CallbackError),
    /// The worker that samples or reads the rows has failed.
    #[error(transparent)]
    Worker(Box<RolloutError>),
    /// The ranks that learn together have not agreed.
    #[error(transparent)]
    AllReduce(#[from] AllReduceError),
    /// All ranks together have more rows than there are numbers for them.
    #[error("the ranks have 4294967296 rows or more to learn from in one update; let them learn more often")]
    TooManyRows,
    /// The device failed.
    #[error("device: {0}")]
    Device(#[from] candle_core::Error),
    /// A bug: the learner's thread panicked.
    #[error("the learner panicked: {0}")]
    Panicked(String),
    /// The learner's thread ended after an earlier panic.
    #[error("the learner has ended because it panicked")]
    Gone,
}

impl From<RolloutError> for LearnError {
    fn from(error: RolloutError) -> Self {
        Self::Worker(Box::new(error))
    }
}
