//! One data column of one agent, growing step by step.

use serde::{Deserialize, Serialize};

use super::{
    Shift, ViewError,
    rows::{Buffer, Row, Values, buffer_of},
    sequences::in_front,
};
use crate::{
    column::{Column, DType, RowShape},
    prelude::*,
};

/// What is known of a data column: some rows from before the fragment, then the fragment's.
///
/// Rows are addressed relative to the fragment's first step, so the one at 0 stands at `history` in the buffer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Series {
    pub(super) name: String,
    shape: RowShape,
    rows: Buffer,
    /// Rows in front that belong to earlier fragments of the trajectory.
    history: usize,
    /// How many of them the views can reach.
    keep: usize,
    /// The row that stands before the first step of the trajectory.
    fill: Buffer,
    /// Observations have a row more than there are steps: that of the step to come.
    pub(super) is_obs: bool,
}

impl Series {
    /// An empty series. Before the trajectory's start stands `fill`, or zeros.
    pub(super) fn new(name: &str, like: Row<'_>, fill: Option<Row<'_>>, keep: usize) -> Self {
        let mut before = Buffer::like(like.values);
        match fill {
            Some(row) => before.push(row.values),
            None => before.push_zeros(like.shape.elements()),
        }
        let rows = Buffer::like(like.values);
        Self { name: name.to_string(), shape: like.shape, rows, history: 0, keep, fill: before, is_obs: is_obs(name) }
    }

    /// Whether a series from elsewhere is one between two fragments of which views reach `keep` rows back.
    pub(super) fn is_sound(&self, keep: Option<usize>) -> bool {
        let (width, rows, fill) = (self.shape.elements(), self.rows.values(), self.fill.values());
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
        [&self.rows, &self.fill].iter().all(|buffer| match buffer.values() {
            Values::F32(values) => values.iter().all(|value| value.is_finite()),
            Values::F64(values) => values.iter().all(|value| value.is_finite()),
            _ => true,
        })
    }

    pub(super) fn check(&self, row: &Row<'_>) -> Result<(), ViewError> {
        let dtype = self.rows.values().dtype();
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
    pub(super) fn push(&mut self, row: &Row<'_>) {
        self.rows.push(row.values);
    }

    /// Goes back to the start of a trajectory.
    pub(super) fn restart(&mut self) {
        self.drop_rows(usize::MAX);
        self.history = 0;
    }

    /// Sets the row that stands before the first step.
    pub(super) fn set_fill(&mut self, row: &Row<'_>) {
        self.fill.drop_front(usize::MAX);
        self.fill.push(row.values);
    }

    /// Makes what has been collected the past of what follows, and forgets what no view can reach.
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
        self.rows.values().len() / self.shape.elements().max(1)
    }

    /// The rows at the offsets of `shift` from each of the steps 0, `every`, 2 `every`, … below `steps`.
    pub(super) fn view(&self, shift: &Shift, every: usize, steps: usize) -> Option<Column> {
        let rows = steps.div_ceil(every.max(1));
        let (mut out, shape) = self.room(shift, rows)?;
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

    /// One row: those at the offsets of `shift` from the step to come, the `steps`-th. At that step itself stands
    /// `coming`, if it is known.
    pub(super) fn view_ahead(&self, shift: &Shift, steps: usize, coming: Option<Row<'_>>) -> Option<Column> {
        let (mut out, shape) = self.room(shift, 1)?;
        for offset in shift.offsets() {
            match coming.filter(|_| offset == 0) {
                Some(row) => out.push(row.values),
                None => self.copy(steps as i64 + i64::from(offset), 1, &mut out),
            }
        }
        out.into_column(shape).ok()
    }

    fn room(&self, shift: &Shift, rows: usize) -> Option<(Buffer, RowShape)> {
        let shape = window(shift, self.shape)?;
        let mut out = Buffer::like(self.rows.values());
        out.try_reserve(rows.checked_mul(shape.elements())?).then_some((out, shape))
    }

    /// Copies consecutive rows: fill before the trajectory, zeros behind what is known.
    fn copy(&self, from: i64, rows: usize, out: &mut Buffer) {
        let (width, known) = (self.shape.elements(), self.len());
        let from = from + self.history as i64;
        let place = |position: i64| usize::try_from(position).unwrap_or(0).min(known);
        let (start, end) = (place(from), place(from + rows as i64));
        let before = rows.min(usize::try_from(-from).unwrap_or(0));
        for _ in 0..before {
            out.push(self.fill.values());
        }
        if let Some(found) = self.rows.values().get(start * width..end * width) {
            out.push(found);
        }
        out.push_zeros((rows - before - (end - start)) * width);
    }
}

/// A column of `rows` view rows, every element of which is this number.
pub(super) fn constant(value: i64, shift: &Shift, rows: usize) -> Option<Column> {
    let shape = window(shift, RowShape::SCALAR)?;
    let elements = rows.checked_mul(shape.elements())?;
    let row = Row::from(&value);
    let mut out = Buffer::like(row.values);
    if !out.try_reserve(elements) {
        return None;
    }
    for _ in 0..elements {
        out.push(row.values);
    }
    out.into_column(shape).ok()
}

/// One view row of zeros.
pub(super) fn zeros(dtype: DType, shape: RowShape, shift: &Shift) -> Option<Column> {
    let shape = window(shift, shape)?;
    let mut out = buffer_of(dtype)?;
    if !out.try_reserve(shape.elements()) {
        return None;
    }
    out.push_zeros(shape.elements());
    out.into_column(shape).ok()
}

/// Shape of a view's row: several offsets make a dimension of their own.
pub(super) fn window(shift: &Shift, shape: RowShape) -> Option<RowShape> {
    if shift.len() == 1 { Some(shape) } else { in_front(shift.len(), shape) }
}

/// Observations, or a part of nested ones.
pub(super) fn is_obs(name: &str) -> bool {
    suffix(name, "obs").is_some()
}

/// What follows the name of a column in that of itself (nothing) or of one of its parts (a dot and the part's name).
pub(super) fn suffix<'a>(name: &'a str, column: &str) -> Option<&'a str> {
    name.strip_prefix(column).filter(|rest| rest.is_empty() || rest.starts_with('.'))
}
