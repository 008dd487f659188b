//! Views of trajectories: which rows of which columns a model gets at a step, and sequences for recurrent ones.
//!
//! A [`ViewRequirement`] names a data column and a [`Shift`]: the row of step `i` holds the data of steps `i + shift`. An
//! [`AgentCollector`] collects one agent's steps and builds the views, row by row for the policy and per fragment for the
//! learner, so that both get the same values. [`chop_into_sequences`] splits joined rows for recurrent policies.
//!
//! ```
//! use rollmesh_core::{
//!     column::ColumnKey,
//!     view::{AgentCollector, ViewRow, Shift, TrajectoryStart, ViewRequirement, ViewRequirements},
//! };
//!
//! let views = ViewRequirements::from([
//!     ("stack".to_string(), ViewRequirement::shifted("obs", "-2:0".parse()?)),
//!     ("prev_actions".to_string(), ViewRequirement::shifted("actions", Shift::single(-1)?)),
//! ]);
//! let mut agent = AgentCollector::new(views);
//! let start = TrajectoryStart { eps_id: 7, agent_index: 0, env_id: 0, t: 0 };
//! agent.add_init_obs(start, &[("obs", ViewRow::from(&10.0f32))])?;
//! for (action, obs) in [(1i64, 11.0f32), (2, 12.0)] {
//!     agent.add_action_reward_next_obs(&[("actions", ViewRow::from(&action)), ("new_obs", ViewRow::from(&obs))])?;
//! }
//! let stack = ColumnKey::<f32>::new("stack");
//! assert_eq!(agent.build_for_inference()?.get(stack)?, [10.0, 11.0, 12.0]);
//! let fragment = agent.build_for_training(0)?;
//! assert_eq!(fragment.batch.get(stack)?, [10.0, 10.0, 10.0, 10.0, 10.0, 11.0]);
//! assert_eq!(fragment.batch.get(ColumnKey::<i64>::new("prev_actions"))?, [0, 1]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The sampler decides when a fragment ends, and [`postprocess`](crate::postprocess) derives further columns; this module
//! does neither.

mod build;
mod collector;
#[cfg(test)]
mod collector_tests;
mod requirement;
mod rows;
mod sequences;
mod series;
mod shift;
mod single_step;
#[cfg(test)]
mod single_step_tests;

pub(crate) use collector::CollectorState;
pub use collector::{AgentCollector, TrajectoryStart};
pub use requirement::{ViewRequirement, ViewRequirements, drop_unused_for_training};
pub use rows::ViewRow;
pub use sequences::{SequenceError, SequenceIds, Sequences, add_time_dimension, chop_into_sequences, sequence_lengths};
pub use shift::{Shift, ShiftError};
pub use single_step::{StepIndex, single_step_input};

use crate::{
    batch::{BatchError, SampleBatch},
    column::{Column, ColumnName},
    prelude::*,
};

/// The views of one fragment of one agent's trajectory.
#[derive(Clone, Debug, PartialEq)]
pub struct FragmentViews {
    /// Views with a row per step. For recurrent policies, they are split into sequences, and include the `state_in_…` with a
    /// row per sequence.
    pub batch: SampleBatch,
    /// Views with fewer rows than there are steps, by name.
    pub repeated: Vec<(ColumnName, Column)>,
}

impl FragmentViews {
    /// Iterates over all views, those of the batch first.
    pub fn columns(&self) -> impl Iterator<Item = (&str, &Column)> {
        self.batch.iter().chain(self.repeated.iter().map(|(name, column)| (name.as_str(), column)))
    }
}

/// The reason why steps could not be collected or viewed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// A view cannot be a column of a batch.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A step was added before the first observation.
    #[error("the trajectory has no observation yet; call add_init_obs first")]
    NoInitialObs,
    /// A trajectory began before the last one was built.
    #[error("{steps} steps wait to be built; call build_for_training or forget_steps first")]
    Unbuilt {
        /// Steps since the last fragment.
        steps: usize,
    },
    /// The first observation has other columns.
    #[error("column '{name}' is not part of the first observation; its columns are 'obs' or 'obs.…'")]
    NotObs {
        /// The column.
        name: String,
    },
    /// A viewed column is missing.
    #[error("column '{name}' is viewed and was given before, but not now")]
    MissingColumn {
        /// The column.
        name: String,
    },
    /// A viewed column first appeared after the first step.
    #[error("column '{name}' is viewed and was not given with the trajectory's first step")]
    Unexpected {
        /// The column.
        name: String,
    },
    /// A row has another type or shape than earlier rows.
    #[error("column '{name}' has rows {expected}, not {found}")]
    Mismatch {
        /// The column.
        name: String,
        /// Type and shape of the earlier rows.
        expected: String,
        /// Type and shape of this row.
        found: String,
    },
    /// An initial state is not one row of numbers.
    #[error("initial state {index} is not a column of one row of numbers")]
    InitialState {
        /// Index of the state.
        index: usize,
    },
    /// A view for the policy includes later steps.
    #[error("view '{view}' reaches {offset} steps into the future; set its used_for_compute_actions to false")]
    Future {
        /// The view.
        view: String,
        /// Its last offset.
        offset: i32,
    },
    /// The row layout of a column is unknown.
    #[error("view '{view}' needs column '{data_col}', of which nothing is known yet; give the view a space")]
    UnknownLayout {
        /// The view.
        view: String,
        /// The data column.
        data_col: String,
    },
    /// The row does not exist.
    #[error("there is no row {row} in a batch of {steps}")]
    NoSuchStep {
        /// The row.
        row: usize,
        /// Rows of the batch.
        steps: usize,
    },
    /// A view reaches back to a step that is in no column of the batch.
    #[error(
        "view '{view}' needs '{data_col}' of {before} steps before the one asked for, which the batch does not hold; \
         call build_for_inference of the collector, or add a view of those steps"
    )]
    NotInBatch {
        /// The view.
        view: String,
        /// The data column.
        data_col: String,
        /// The number of steps before the requested step.
        before: u32,
    },
    /// Rows without elements cannot be collected.
    #[error("column '{name}' has rows without elements, which cannot be collected; leave it out")]
    EmptyRows {
        /// The column.
        name: String,
    },
    /// The views need too much memory, or more dimensions than rows can have.
    #[error("view '{view}' of {steps} steps is too large; use fewer offsets")]
    TooLarge {
        /// The view.
        view: String,
        /// Steps of the fragment.
        steps: usize,
    },
}
