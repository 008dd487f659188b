//! What a fragment of a run must look like.

use core::ops::Range;

use crate::{
    batch::{ACTION_LOGP, ACTIONS, INFOS, OBS, REWARDS, TERMINATEDS, TRUNCATEDS, VF_PREDS},
    column::{BytesKind, ColumnKey, ColumnType, DType, Element, RowShape},
    env::EnvSpaces,
    prelude::*,
    protocol::{Kind, TooLarge},
    run::RunSpec,
    space::Space,
};

/// A column that a fragment must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ColumnLimit {
    pub(super) name: &'static str,
    pub(super) column_type: ColumnType,
    pub(super) shape: RowShape,
    /// Integers that are allowed, the end excluded.
    pub(super) range: Option<Range<i64>>,
    /// The longest ragged row; arrays have none.
    pub(super) max_row_bytes: u32,
}

impl ColumnLimit {
    fn scalar<T: Element>(key: ColumnKey<T>) -> Self {
        let column_type = T::DTYPE.into();
        Self { name: key.name(), column_type, shape: RowShape::SCALAR, range: None, max_row_bytes: 0 }
    }

    fn of_space(name: &'static str, dtype: DType, space: &Space) -> Self {
        let range = match space {
            Space::Discrete { n } => Some(0..i64::from(*n)),
            // Bounds of boxes are not checked: final observations lie outside of them.
            _ => None,
        };
        Self { name, column_type: dtype.into(), shape: space.shape(), range, max_row_bytes: 0 }
    }

    /// The most that a row costs on the way, if integers travel as single bytes.
    fn row_bytes(&self) -> u64 {
        match self.column_type {
            ColumnType::Array(DType::I64) => self.shape.elements() as u64,
            ColumnType::Array(dtype) => (self.shape.elements() as u64).saturating_mul(dtype.size() as u64),
            ColumnType::Ragged(_) => 4 + u64::from(self.max_row_bytes),
        }
    }
}

/// What an upload must bring for each slot: exactly these columns and rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FragmentLimits {
    pub(super) rows: u32,
    pub(super) columns: Vec<ColumnLimit>,
}

/// A slot's entries in the tables, and its state without the environment's snapshot, with some room for that.
const SLOT_BYTES: u64 = 256;

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

    /// The same with `infos`: a JSON document of at most so many bytes per row.
    #[must_use]
    pub fn with_infos(mut self, max_row_bytes: u32) -> Self {
        let column_type = ColumnType::Ragged(BytesKind::Json);
        self.columns.push(ColumnLimit {
            name: INFOS,
            column_type,
            shape: RowShape::SCALAR,
            range: None,
            max_row_bytes,
        });
        self
    }

    /// Whether what this many slots bring fits into one upload, if an episode ends in every fourth row and states
    /// are small. An upload that turns out larger is refused by its worker with a reason.
    ///
    /// # Errors
    /// [`TooLarge`] if they cannot: the lease must have fewer slots, or the run shorter fragments.
    pub fn check_lease_of(&self, slots: usize) -> Result<(), TooLarge> {
        let kind = Kind::FragmentUpload;
        let row_bytes = self.columns.iter().map(ColumnLimit::row_bytes).fold(0, u64::saturating_add);
        let obs_bytes = self
            .column(OBS.name())
            .map_or(0, |obs| (obs.shape.elements() as u64).saturating_mul(obs.column_type.element_size() as u64));
        // End and reason of a cut, its bootstrap value, the return of its episode, and the observation.
        let cut_bytes = obs_bytes.saturating_add(5 + 1 + 4 + 8);
        let cuts = u64::from(self.rows).div_ceil(4) + 1;
        let rows_and_cuts =
            row_bytes.saturating_mul(u64::from(self.rows)).saturating_add(cut_bytes.saturating_mul(cuts));
        let slot_bytes = rows_and_cuts.saturating_add(SLOT_BYTES);
        let bytes = slot_bytes.saturating_mul(slots as u64);
        if bytes <= u64::from(kind.body_cap()) { Ok(()) } else { Err(TooLarge { kind, bytes }) }
    }

    pub(super) fn column(&self, name: &str) -> Option<&ColumnLimit> {
        self.columns.iter().find(|column| column.name == name)
    }
}
