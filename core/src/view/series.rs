//! Stores one data column of one agent, step by step.

use serde::{Deserialize, Serialize};

use super::{Shift, ViewError, rows::ViewRow, sequences::in_front};
use crate::{
    column::{Column, DType, RowBuffer, RowShape},
    prelude::*,
};

/// The known rows of a data column: some from before the fragment, then the fragment's.
///
/// Rows are addressed relative to the fragment's first step, so row 0 is at index `history` of the buffer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Series {
    pub(super) name: String,
    shape: RowShape,
    rows: RowBuffer,
    /// Number of rows in front that belong to earlier fragments of the trajectory.
    history: usize,
    /// The number of those that the views can reach.
    keep: usize,
    /// The row that stands for steps before the trajectory.
    fill: RowBuffer,
    /// Observations have one more row than there are steps: that of the next step.
    pub(super) is_obs: bool,
}

impl Series {
    /// Creates an empty series. `fill`, or zeros, stand for steps before the trajectory.
    pub(super) fn new(name: &str, like: ViewRow<'_>, fill: Option<ViewRow<'_>>, keep: usize) -> Self {
        let mut before = RowBuffer::new(like.dtype());
        match fill {
            Some(row) => _ = before.push(row.values),
            None => before.push_zeros(like.shape.elements()),
        }
        let rows = RowBuffer::new(like.dtype());
        Self { name: name.to_string(), shape: like.shape, rows, history: 0, keep, fill: before, is_obs: is_obs(name) }
    }

    /// Returns whether a decoded series is valid between two fragments, where views reach `keep` rows back.
    pub(super) fn is_sound(&self, keep: Option<usize>) -> bool {
        let (width, rows, fill) = (self.shape.elements(), self.rows.all(), self.fill.all());
        width > 0
            && rows.dtype() == fill.dtype()
            && fill.len() == width
            && Some(self.keep) == keep
            && self.history <= self.keep
            && self.is_obs == is_obs(&self.name)
            && self.history.checked_add(usize::from(self.is_obs)).and_then(|rows| rows.checked_mul(width))
                == Some(rows.len())
    }

    pub(super) fn is_finite(&self) -> bool {
        [&self.rows, &self.fill].iter().all(|buffer| buffer.all().first_not_finite().is_none())
    }

    pub(super) fn check(&self, row: &ViewRow<'_>) -> Result<(), ViewError> {
        let dtype = self.rows.all().dtype();
        if row.dtype() == dtype && row.shape == self.shape {
            return Ok(());
        }
        Err(ViewError::Mismatch {
            name: self.name.clone(),
            expected: format!("{dtype}{}", self.shape),
            found: format!("{}{}", row.dtype(), row.shape),
        })
    }

    /// Appends a row that passed [`check`](Self::check).
    pub(super) fn push(&mut self, row: &ViewRow<'_>) {
        self.rows.push(row.values);
    }

    /// Resets to the start of a trajectory.
    pub(super) fn restart(&mut self) {
        self.drop_rows(usize::MAX);
        self.history = 0;
    }

    /// Sets the row that stands for steps before the trajectory.
    pub(super) fn set_fill(&mut self, row: &ViewRow<'_>) {
        self.fill.drop_front(usize::MAX);
        self.fill.push(row.values);
    }

    /// Makes the collected rows the history of the next fragment, and drops those that no view can reach.
    pub(super) fn begin_fragment(&mut self) {
        let past = self.len().saturating_sub(usize::from(self.is_obs));
        self.history = past.min(self.keep);
        self.drop_rows(past - self.history);
    }

    fn drop_rows(&mut self, rows: usize) {
        self.rows.drop_front(rows.saturating_mul(self.shape.elements()));
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.rows.capacity() + self.fill.capacity()
    }

    fn len(&self) -> usize {
        self.rows.all().len() / self.shape.elements().max(1)
    }

    /// Returns the rows at the offsets of `shift` from each of the steps 0, `every`, 2 `every`, … below `steps`.
    pub(super) fn view(&self, shift: &Shift, every: usize, steps: usize) -> Option<Column> {
        let rows = steps.div_ceil(every.max(1));
        let (mut out, shape) = self.reserve(shift, rows)?;
        if shift.len() == 1 && every == 1 {
            self.copy(i64::from(shift.latest()), rows, &mut out);
        } else {
            for row in 0..rows {
                for offset in shift.offsets() {
                    self.copy((row * every) as i64 + i64::from(offset), 1, &mut out);
                }
            }
        }
        out.into_column(shape).ok()
    }

    /// Returns one row: those at the offsets of `shift` from the next step, the `steps`-th. `coming` is the value at that
    /// step itself, if it is known.
    pub(super) fn view_ahead(&self, shift: &Shift, steps: usize, coming: Option<ViewRow<'_>>) -> Option<Column> {
        let (mut out, shape) = self.reserve(shift, 1)?;
        for offset in shift.offsets() {
            match coming.filter(|_| offset == 0) {
                Some(row) => _ = out.push(row.values),
                None => self.copy(steps as i64 + i64::from(offset), 1, &mut out),
            }
        }
        out.into_column(shape).ok()
    }

    fn reserve(&self, shift: &Shift, rows: usize) -> Option<(RowBuffer, RowShape)> {
        let shape = window(shift, self.shape)?;
        let mut out = RowBuffer::new(self.rows.all().dtype());
        out.try_reserve(rows.checked_mul(shape.elements())?).then_some((out, shape))
    }

    /// Copies consecutive rows: fill before the trajectory, zeros after the known rows.
    fn copy(&self, from: i64, rows: usize, out: &mut RowBuffer) {
        let (width, known) = (self.shape.elements(), self.len());
        let from = from + self.history as i64;
        let place = |position: i64| usize::try_from(position).unwrap_or(0).min(known);
        let (start, end) = (place(from), place(from + rows as i64));
        let before = rows.min(usize::try_from(-from).unwrap_or(0));
        for _ in 0..before {
            out.push(self.fill.all());
        }
        if let Some(found) = self.rows.all().get(start * width..end * width) {
            out.push(found);
        }
        out.push_zeros((rows - before - (end - start)) * width);
    }
}

/// Returns a column of `rows` view rows in which every element is this number.
pub(super) fn constant(value: i64, shift: &Shift, rows: usize) -> Option<Column> {
    let shape = window(shift, RowShape::SCALAR)?;
    let elements = rows.checked_mul(shape.elements())?;
    let row = ViewRow::from(&value);
    let mut out = RowBuffer::new(row.dtype());
    if !out.try_reserve(elements) {
        return None;
    }
    for _ in 0..elements {
        out.push(row.values);
    }
    out.into_column(shape).ok()
}

/// Returns one view row of zeros.
pub(super) fn zeros(dtype: DType, shape: RowShape, shift: &Shift) -> Option<Column> {
    let shape = window(shift, shape)?;
    let mut out = RowBuffer::new(dtype);
    if !out.try_reserve(shape.elements()) {
        return None;
    }
    out.push_zeros(shape.elements());
    out.into_column(shape).ok()
}

/// Returns the shape of a view's row: several offsets add a dimension.
pub(super) fn window(shift: &Shift, shape: RowShape) -> Option<RowShape> {
    if shift.len() == 1 { Some(shape) } else { in_front(shift.len(), shape) }
}

/// Returns true for observations and parts of nested ones.
pub(super) fn is_obs(name: &str) -> bool {
    suffix(name, "obs").is_some()
}

/// Returns the suffix after the name of a column: empty for itself, or a dot and the name for one of its parts.
pub(super) fn suffix<'a>(name: &'a str, column: &str) -> Option<&'a str> {
    name.strip_prefix(column).filter(|rest| rest.is_empty() || rest.starts_with('.'))
}
