//! Handles all parts of a batch in one call, and checks them together.

use super::{BatchError, SampleBatch, sample_batch::Layout};
use crate::{
    column::{Column, ColumnData, ColumnName, RowShape},
    prelude::*,
};

/// Everything a [`SampleBatch`] consists of. Use it to build batches with sequences, time-major batches, and batches read
/// from another source.
#[derive(Clone, Debug, Default)]
pub struct BatchParts {
    /// Names and columns, all with the same number of rows; with `seq_lens`, `state_in_…` have one row per sequence instead.
    pub columns: Vec<(ColumnName, Column)>,
    /// Length of each sequence; the rows of a sequence are contiguous. An empty column means no sequences.
    pub seq_lens: Option<ColumnData<i32>>,
    /// Number of rows of each padded sequence; none means the length of the longest.
    pub max_seq_len: Option<usize>,
    /// Each sequence is followed by zeros up to `max_seq_len` rows.
    pub zero_padded: bool,
    /// Rows are time steps, and the first dimension of a row counts trajectories: shape (T, B, …).
    pub time_major: bool,
    /// Whether the batch is for training, not for inference.
    pub is_training: bool,
    /// Mean number of gradient updates the policy had when it acted.
    pub num_grad_updates: Option<f64>,
}

impl SampleBatch {
    /// Builds a batch and checks all parts against each other.
    ///
    /// # Errors
    /// [`BatchError`] names the column or the length that does not fit.
    pub fn from_parts(parts: BatchParts) -> Result<Self, BatchError> {
        let seq_lens = parts.seq_lens.filter(|lens| lens.rows() > 0);
        let longest = seq_lens.as_ref().map(longest).transpose()?;
        if let (Some(max_seq_len), Some(longest)) = (parts.max_seq_len, longest)
            && max_seq_len < longest
        {
            return Err(BatchError::MaxSeqLen { max_seq_len, longest });
        }
        if let Some(name) = duplicate(&parts.columns) {
            return Err(BatchError::DuplicateColumn(name.to_string()));
        }
        let mut batch = Self {
            columns: Vec::with_capacity(parts.columns.len()),
            rows: 0,
            seq_lens,
            max_seq_len: parts.max_seq_len.or(longest),
            zero_padded: parts.zero_padded,
            time_major: parts.time_major,
            is_training: parts.is_training,
            num_grad_updates: parts.num_grad_updates,
        };
        for (name, column) in parts.columns {
            let layout = batch.check(&name, &column, None)?;
            batch.push(name, column, layout);
        }
        batch.counted()
    }

    /// Returns the parts of the batch.
    #[must_use]
    pub fn into_parts(self) -> BatchParts {
        BatchParts {
            columns: self.columns,
            seq_lens: self.seq_lens,
            max_seq_len: self.max_seq_len,
            zero_padded: self.zero_padded,
            time_major: self.time_major,
            is_training: self.is_training,
            num_grad_updates: self.num_grad_updates,
        }
    }

    /// Returns the number of rows that a column with one row per step must have, if it is known yet; `but` is a column that
    /// is about to be replaced.
    pub(super) fn expected_rows(&self, but: Option<&str>) -> Option<usize> {
        if let Some(lens) = self.seq_lens() {
            let padded = self.max_seq_len.unwrap_or(0);
            return Some(match (self.time_major, self.zero_padded) {
                (true, _) => padded,
                (false, true) => lens.len().saturating_mul(padded),
                (false, false) => total(lens),
            });
        }
        let others = self.iter().any(|(name, _)| Some(name) != but && self.layout(name) == Layout::Step);
        others.then_some(self.rows)
    }

    /// Returns the number of trajectories that a time-major column must have, if it is known yet.
    fn expected_lanes(&self, but: Option<&str>) -> Option<usize> {
        if let Some(lens) = &self.seq_lens {
            return Some(lens.rows());
        }
        let mut steps = self.iter().filter(|(name, _)| Some(*name) != but && self.layout(name) == Layout::Step);
        steps.next().map(|(_, column)| column.lanes())
    }

    /// Checks that a column fits, and returns its layout.
    pub(super) fn check(&self, name: &str, column: &Column, but: Option<&str>) -> Result<Layout, BatchError> {
        match name {
            "dones" => return Err(BatchError::DonesIsDerived),
            "seq_lens" => return Err(BatchError::SeqLensIsAPart),
            _ => {}
        }
        let layout = self.layout(name);
        let expected = match layout {
            Layout::Sequence => self.seq_lens.as_ref().map(ColumnData::rows),
            Layout::Step => self.expected_rows(but),
        };
        if let Some(expected) = expected.filter(|expected| *expected != column.rows()) {
            return Err(BatchError::LengthMismatch { name: name.to_string(), expected, found: column.rows() });
        }
        // Without rows there are no trajectories to check.
        if self.time_major && layout == Layout::Step && column.rows() > 0 {
            if column.lanes() == 0 || column.is_compressed() || column.dtype().is_none() {
                return Err(BatchError::NotTimeMajor { name: name.to_string(), found: format!("{column:?}") });
            }
            if let Some(expected) = self.expected_lanes(but).filter(|expected| *expected != column.lanes()) {
                return Err(BatchError::Lanes { name: name.to_string(), expected, found: column.lanes() });
            }
        }
        Ok(layout)
    }
}

/// Returns the sum of lengths that are known to be positive.
pub(super) fn total(lens: &[i32]) -> usize {
    lens.iter().fold(0usize, |sum, len| sum.saturating_add(len.unsigned_abs() as usize))
}

/// Returns the length of the longest sequence; every sequence must have rows.
fn longest(lens: &ColumnData<i32>) -> Result<usize, BatchError> {
    if lens.shape() != RowShape::SCALAR {
        let source = crate::column::ColumnError::NotScalar(lens.shape());
        return Err(BatchError::Column { name: "seq_lens".to_string(), source });
    }
    if let Some((sequence, len)) = lens.values().iter().enumerate().find(|(_, len)| **len < 1) {
        return Err(BatchError::SeqLen { sequence, len: i64::from(*len) });
    }
    Ok(lens.values().iter().max().map_or(0, |len| len.unsigned_abs() as usize))
}

fn duplicate(columns: &[(ColumnName, Column)]) -> Option<&ColumnName> {
    let mut names: Vec<&ColumnName> = columns.iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    names.windows(2).find_map(|pair| (pair[0] == pair[1]).then_some(pair[0]))
}
