//! What a fragment of a run must look like.

use core::ops::Range;

use crate::{
    batch::{ACTION_LOGP, ACTIONS, OBS, REWARDS, TERMINATEDS, TRUNCATEDS, VF_PREDS},
    column::{ColumnKey, DType, Element, RowShape},
    prelude::*,
    run::RunSpec,
};

/// The most bytes of a slot's state.
pub const MAX_STATE_BYTES: u32 = 64 * 1024;

/// A column that a fragment must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnLimit {
    pub(super) name: &'static str,
    pub(super) dtype: DType,
    pub(super) shape: RowShape,
    /// Integers that are allowed, the end excluded.
    pub(super) range: Option<Range<i64>>,
}

impl ColumnLimit {
    /// A column of this name, type and row shape.
    #[must_use]
    pub const fn new<T: Element>(key: ColumnKey<T>, shape: RowShape) -> Self {
        Self { name: key.name(), dtype: T::DTYPE, shape, range: None }
    }

    /// Of integers in this range, which excludes its end.
    #[must_use]
    pub fn within(self, range: Range<i64>) -> Self {
        Self { range: Some(range), ..self }
    }
}

/// What an upload must bring for each slot: exactly these columns and rows. The hub derives it from a run's spec
/// and the spaces of its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentLimits {
    pub(super) rows: u32,
    pub(super) columns: Vec<ColumnLimit>,
}

impl FragmentLimits {
    /// Fragments of a run whose observations are 32-bit floats of this shape and whose actions are `0..num_actions`.
    #[must_use]
    pub fn discrete(spec: &RunSpec, obs_shape: RowShape, num_actions: u32) -> Self {
        Self {
            rows: spec.rollout_fragment_length,
            columns: vec![
                ColumnLimit::new(OBS, obs_shape),
                ColumnLimit::new(ACTIONS, RowShape::SCALAR).within(0..i64::from(num_actions)),
                ColumnLimit::new(REWARDS, RowShape::SCALAR),
                ColumnLimit::new(TERMINATEDS, RowShape::SCALAR),
                ColumnLimit::new(TRUNCATEDS, RowShape::SCALAR),
                ColumnLimit::new(ACTION_LOGP, RowShape::SCALAR),
                ColumnLimit::new(VF_PREDS, RowShape::SCALAR),
            ],
        }
    }

    pub(super) fn column(&self, name: &str) -> Option<&ColumnLimit> {
        self.columns.iter().find(|column| column.name == name)
    }
}
