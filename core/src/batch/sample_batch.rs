//! Defines an ordered set of named, typed columns of equal length.

use core::ops::Range;

use super::{
    BatchError,
    columns::{INFOS, STATE_IN, STATE_OUT, is_or_is_part_of},
    parts::total,
};
use crate::{
    column::{BytesColumn, Column, ColumnData, ColumnKey, ColumnName, Element, clamp},
    prelude::*,
};

/// Rows of experience. All columns have the same number of rows: every insertion checks this.
///
/// A clone is a shallow copy: clones and slices share buffers, and a write copies the rows of its own column first, so that
/// other batches never see it (unlike in RLlib, where a slice is a view that writes through). [`copy`](Self::copy) makes a
/// deep copy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleBatch {
    pub(super) columns: Vec<(ColumnName, Column)>,
    /// Number of rows of every column that has one row per step, padding included.
    pub(super) rows: usize,
    /// Lengths of the sequences, if there are any: all are positive.
    pub(super) seq_lens: Option<ColumnData<i32>>,
    /// At least the longest of the sequences.
    pub(super) max_seq_len: Option<usize>,
    pub(super) zero_padded: bool,
    pub(super) time_major: bool,
    pub(super) is_training: bool,
    pub(super) num_grad_updates: Option<f64>,
}

/// The meaning of a column's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// One row per step, padding included.
    Step,
    /// One row per sequence: the recurrent state at its start.
    Sequence,
}

/// Returns whether a column counts for the number of steps; `infos` and recurrent states do not.
fn counts(name: &str) -> bool {
    !is_or_is_part_of(name, INFOS) && !name.starts_with(STATE_IN) && !name.starts_with(STATE_OUT)
}

impl SampleBatch {
    /// Creates an empty batch without columns.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a batch without sequences from columns that the caller knows to have equal lengths.
    pub(crate) fn from_columns(columns: Vec<(&'static str, Column)>) -> Self {
        let rows = columns.first().map_or(0, |(_, column)| column.rows());
        debug_assert!(columns.iter().all(|(_, column)| column.rows() == rows), "columns of unequal length");
        let columns = columns.into_iter().map(|(name, column)| (name.into(), column)).collect();
        Self { columns, rows, ..Self::default() }
    }

    /// Iterates over the columns with a row per sequence.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&str, &Column)> {
        self.iter().filter(|(name, _)| self.layout(name) == Layout::Sequence)
    }

    /// Arranges the rows in sequences of these lengths, with one row of the states per sequence; the caller knows that they
    /// fit.
    pub(crate) fn in_sequences(
        mut self,
        seq_lens: ColumnData<i32>,
        states: impl Iterator<Item = (ColumnName, Column)>,
    ) -> Self {
        debug_assert_eq!(total(seq_lens.values()), self.rows, "sequences of other rows");
        self.columns.extend(states);
        self.max_seq_len = seq_lens.values().iter().max().map(|longest| longest.unsigned_abs() as usize);
        self.seq_lens = Some(seq_lens).filter(|lens| lens.rows() > 0);
        self
    }

    /// Returns the name of the first column with a number that is infinite or NaN, and its first row with one: for a
    /// recurrent state the first row of its sequence. Compressed columns are not searched.
    pub(crate) fn first_not_finite(&self) -> Option<(&str, usize)> {
        self.iter().find_map(|(name, column)| {
            let element = column.array().ok()?.first_not_finite()?;
            let row = element / column.shape().elements().max(1);
            let lens = self.seq_lens().filter(|_| self.layout(name) == Layout::Sequence);
            let first_row = |lens: &[i32]| lens.iter().take(row).map(|len| len.unsigned_abs() as usize).sum::<usize>();
            Some((name, lens.map_or(row, first_row)))
        })
    }

    /// Adds a column, or replaces the one of this name. The first column sets the number of rows.
    ///
    /// # Errors
    /// [`BatchError::LengthMismatch`] if the rows do not fit: one per step, or one per sequence for `state_in_…` of a
    /// batch with `seq_lens`; [`BatchError::DonesIsDerived`], [`BatchError::SeqLensIsAPart`]; [`BatchError::Lanes`] and
    /// [`BatchError::NotTimeMajor`] for time-major batches.
    pub fn insert(&mut self, name: impl Into<ColumnName>, column: impl Into<Column>) -> Result<(), BatchError> {
        let (name, column) = (name.into(), column.into());
        let layout = self.check(&name, &column, Some(&name))?;
        match self.columns.iter().position(|(n, _)| *n == name) {
            Some(place) => {
                if layout == Layout::Step {
                    self.rows = column.rows();
                }
                self.columns[place].1 = column;
            }
            None => self.push(name, column, layout),
        }
        Ok(())
    }

    /// Appends a checked column.
    pub(super) fn push(&mut self, name: ColumnName, column: Column, layout: Layout) {
        if layout == Layout::Step {
            self.rows = column.rows();
        }
        self.columns.push((name, column));
    }

    /// Adds a column as [`insert`](Self::insert) does, for use in a chain.
    ///
    /// # Errors
    /// The errors of [`insert`](Self::insert).
    pub fn with<T: Element>(mut self, key: ColumnKey<T>, data: ColumnData<T>) -> Result<Self, BatchError> {
        self.insert(key.name(), Column::from_typed(data))?;
        Ok(self)
    }

    /// Removes and returns a column.
    pub fn remove(&mut self, name: &str) -> Option<Column> {
        let place = self.columns.iter().position(|(n, _)| n == name)?;
        let (_, column) = self.columns.remove(place);
        // Without columns, only sequences determine the number of rows.
        self.rows = self.expected_rows(None).unwrap_or(0);
        Some(column)
    }

    /// Returns the number of steps: the sum of `seq_lens` if there are any; otherwise the rows of any column except `infos`,
    /// `state_in_…` and `state_out_…`, which do not count, and 0 without such a column. A time-major batch has T x B.
    #[must_use]
    #[doc(alias = "count")]
    pub fn len(&self) -> usize {
        if let Some(lens) = self.seq_lens() {
            return total(lens);
        }
        match self.iter().find(|(name, _)| counts(name)) {
            None => 0,
            Some((_, column)) if self.time_major => self.rows * column.lanes(),
            Some(_) => self.rows,
        }
    }

    /// Returns true without steps.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the same as [`len`](Self::len): a row of a single agent is an env step.
    #[must_use]
    pub fn env_steps(&self) -> usize {
        self.len()
    }

    /// Returns the same as [`len`](Self::len).
    #[must_use]
    pub fn agent_steps(&self) -> usize {
        self.len()
    }

    /// Iterates over names and columns in order of insertion.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Column)> {
        self.columns.iter().map(|(name, column)| (name.as_str(), column))
    }

    /// Returns a column by name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.iter().find_map(|(n, column)| (n == name).then_some(column))
    }

    /// Returns columns by name, in the order of the names.
    ///
    /// # Errors
    /// [`BatchError::MissingColumn`].
    pub fn columns(&self, names: &[&str]) -> Result<Vec<&Column>, BatchError> {
        let column = |name: &&str| self.column(name).ok_or_else(|| BatchError::MissingColumn((*name).to_string()));
        names.iter().map(column).collect()
    }

    /// Returns a column by key, with its element type.
    ///
    /// # Errors
    /// [`BatchError::MissingColumn`], or [`BatchError::Column`] for another type.
    pub fn data<T: Element>(&self, key: ColumnKey<T>) -> Result<&ColumnData<T>, BatchError> {
        let column = self.column(key.name()).ok_or_else(|| BatchError::MissingColumn(key.name().to_string()))?;
        column.typed().map_err(BatchError::of_column(key.name()))
    }

    /// Returns the values of a column by key, row-major, for writing. The number of values is fixed. Copies the rows first
    /// if they are shared.
    ///
    /// # Errors
    /// The errors of [`data`](Self::data).
    pub fn get_mut<T: Element>(&mut self, key: ColumnKey<T>) -> Result<&mut [T], BatchError> {
        let name = key.name();
        let column = self.columns.iter_mut().find_map(|(n, column)| (n.as_str() == name).then_some(column));
        let column = column.ok_or_else(|| BatchError::MissingColumn(name.to_string()))?;
        column.typed_mut().map(ColumnData::values_mut).map_err(BatchError::of_column(name))
    }

    /// Returns the values of a column by key, row-major.
    ///
    /// # Errors
    /// The errors of [`data`](Self::data).
    pub fn get<T: Element>(&self, key: ColumnKey<T>) -> Result<&[T], BatchError> {
        self.data(key).map(ColumnData::values)
    }

    /// Returns the values of a column by key, or `default` if there is no such column.
    ///
    /// # Errors
    /// [`BatchError::Column`] for another type.
    #[doc(alias = "get")]
    pub fn get_or<'a, T: Element>(&'a self, key: ColumnKey<T>, default: &'a [T]) -> Result<&'a [T], BatchError> {
        match self.column(key.name()) {
            None => Ok(default),
            Some(_) => self.get(key),
        }
    }

    /// Returns the environment's info dicts, row by row.
    ///
    /// # Errors
    /// [`BatchError::MissingColumn`], or [`BatchError::Column`] for another type.
    pub fn infos(&self) -> Result<&BytesColumn, BatchError> {
        let column = self.column(INFOS).ok_or_else(|| BatchError::MissingColumn(INFOS.to_string()))?;
        column.bytes().map_err(BatchError::of_column(INFOS))
    }

    /// Returns the lengths of the sequences, if the batch has any.
    #[must_use]
    pub fn seq_lens(&self) -> Option<&[i32]> {
        self.seq_lens.as_ref().map(ColumnData::values)
    }

    /// Returns the number of rows of a padded sequence: at least the length of the longest.
    #[must_use]
    pub fn max_seq_len(&self) -> Option<usize> {
        self.max_seq_len
    }

    /// Returns true if zeros follow each sequence up to [`max_seq_len`](Self::max_seq_len) rows.
    #[must_use]
    pub fn zero_padded(&self) -> bool {
        self.zero_padded
    }

    /// Returns true if columns have the shape (T, B, …): time steps first, then trajectories.
    #[must_use]
    pub fn time_major(&self) -> bool {
        self.time_major
    }

    /// Returns true if the batch is for training, not for inference.
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.is_training
    }

    /// Sets whether the batch is for training.
    pub fn set_training(&mut self, training: bool) {
        self.is_training = training;
    }

    /// Returns the mean number of gradient updates the policy had when it acted, over the rows; none if it is unknown.
    #[must_use]
    pub fn num_grad_updates(&self) -> Option<f64> {
        self.num_grad_updates
    }

    /// Sets how many gradient updates the policy had when it acted.
    pub fn set_num_grad_updates(&mut self, updates: Option<f64>) {
        self.num_grad_updates = updates;
    }

    /// Makes a deep copy: all rows in new buffers. A clone is a shallow copy.
    #[must_use]
    pub fn copy(&self) -> Self {
        let columns = self.columns.iter().map(|(name, column)| (name.clone(), column.copy())).collect();
        Self { columns, seq_lens: self.seq_lens.as_ref().map(ColumnData::copy), ..self.flags(self.rows) }
    }

    /// Returns the bytes of all columns and of `seq_lens`.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let columns: usize = self.columns.iter().map(|(_, column)| column.size_bytes()).sum();
        columns + self.seq_lens().map_or(0, size_of_val)
    }

    /// Compares bits: unlike with `==`, a NaN equals itself, -0.0 differs from 0.0, and the order of the columns does not
    /// matter.
    #[must_use]
    pub fn same_bits(&self, other: &Self) -> bool {
        let same = |(name, column): (&str, &Column)| other.column(name).is_some_and(|other| column.same_bits(other));
        self.rows == other.rows
            && self.seq_lens == other.seq_lens
            && self.max_seq_len == other.max_seq_len
            && (self.zero_padded, self.time_major, self.is_training)
                == (other.zero_padded, other.time_major, other.is_training)
            && self.num_grad_updates.map(f64::to_bits) == other.num_grad_updates.map(f64::to_bits)
            && self.columns.len() == other.columns.len()
            && self.iter().all(same)
    }

    /// Returns what the rows of a column of this name stand for.
    pub(super) fn layout(&self, name: &str) -> Layout {
        if self.seq_lens.is_some() && name.starts_with(STATE_IN) { Layout::Sequence } else { Layout::Step }
    }

    /// Returns a batch with the same flags and this number of rows, but neither columns nor sequences yet.
    pub(super) fn flags(&self, rows: usize) -> Self {
        Self {
            columns: Vec::new(),
            rows,
            seq_lens: None,
            max_seq_len: self.max_seq_len,
            zero_padded: self.zero_padded,
            time_major: self.time_major,
            is_training: self.is_training,
            num_grad_updates: self.num_grad_updates,
        }
    }

    /// Returns the rows in `range` of a batch without sequences, sharing all buffers.
    pub(crate) fn slice_rows(&self, range: Range<usize>) -> Self {
        let range = clamp(range, self.rows);
        let slice = |(name, column): &(ColumnName, Column)| (name.clone(), column.slice(range.clone()));
        Self { columns: self.columns.iter().map(slice).collect(), ..self.flags(range.len()) }
    }
}
