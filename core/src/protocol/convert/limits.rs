//! What a fragment of a run must look like.

use core::ops::Range;

use crate::{
    batch::{ACTION_LOGP, ACTIONS, OBS, REWARDS, TERMINATEDS, TRUNCATEDS, VF_PREDS},
    column::{ColumnKey, DType, Element, RowShape},
    env::EnvSpaces,
    prelude::*,
    run::RunSpec,
    space::Space,
};

/// A column that a fragment must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ColumnLimit {
    pub(super) name: &'static str,
    pub(super) dtype: DType,
    pub(super) shape: RowShape,
    /// Integers that are allowed, the end excluded.
    pub(super) range: Option<Range<i64>>,
}

impl ColumnLimit {
    fn scalar<T: Element>(key: ColumnKey<T>) -> Self {
        Self { name: key.name(), dtype: T::DTYPE, shape: RowShape::SCALAR, range: None }
    }

    fn of_space(name: &'static str, dtype: DType, space: &Space) -> Self {
        let range = match space {
            Space::Discrete { n } => Some(0..i64::from(*n)),
            // Bounds of boxes are not checked: final observations lie outside of them.
            Space::Box { .. } => None,
        };
        Self { name, dtype, shape: space.shape(), range }
    }
}

/// What an upload must bring for each slot: exactly these columns and rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentLimits {
    pub(super) rows: u32,
    pub(super) columns: Vec<ColumnLimit>,
}

impl FragmentLimits {
    /// The limits of a run on an environment with these spaces.
    #[must_use]
    pub fn new(run: &RunSpec, spaces: &EnvSpaces) -> Self {
        Self {
            rows: run.rollout_fragment_length,
            columns: vec![
                ColumnLimit::of_space(OBS.name(), spaces.observation_type, &spaces.observation),
                ColumnLimit::of_space(ACTIONS.name(), spaces.action_type, &spaces.action),
                ColumnLimit::scalar(REWARDS),
                ColumnLimit::scalar(TERMINATEDS),
                ColumnLimit::scalar(TRUNCATEDS),
                ColumnLimit::scalar(ACTION_LOGP),
                ColumnLimit::scalar(VF_PREDS),
            ],
        }
    }

    pub(super) fn column(&self, name: &str) -> Option<&ColumnLimit> {
        self.columns.iter().find(|column| column.name == name)
    }
}
