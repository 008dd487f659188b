//! Stores rows of equal shape, shared and sliceable.

use core::{fmt, ops::Range};

use super::{ColumnError, DType, Element, Recycler, RowShape, Segment, shape::clamp};
use crate::prelude::*;

/// Rows of `T`: a shared buffer and this column's range of it.
#[derive(Clone)]
pub struct ColumnData<T> {
    values: Arc<Vec<T>>,
    /// First element (not row) of this column in `values`.
    start: usize,
    rows: usize,
    shape: RowShape,
}

impl<T: Element> ColumnData<T> {
    /// Creates a column from a buffer of whole rows, without a copy.
    ///
    /// # Errors
    /// [`ColumnError::RaggedRows`] when the values do not form whole rows.
    pub fn new(values: Vec<T>, shape: RowShape) -> Result<Self, ColumnError> {
        Self::from_shared(Arc::new(values), shape)
    }

    /// Creates a column from a buffer that may be shared, without a copy.
    ///
    /// # Errors
    /// [`ColumnError::RaggedRows`] when the values do not form whole rows.
    pub fn from_shared(values: Arc<Vec<T>>, shape: RowShape) -> Result<Self, ColumnError> {
        let width = shape.elements();
        if width == 0 || !values.len().is_multiple_of(width) {
            return Err(ColumnError::RaggedRows { values: values.len(), shape });
        }
        Ok(Self { start: 0, rows: values.len() / width, shape, values })
    }

    /// Creates a column from a buffer that the caller knows to hold whole rows; ignores a remainder.
    pub(crate) fn whole_rows(values: Arc<Vec<T>>, shape: RowShape) -> Self {
        debug_assert!(values.len().is_multiple_of(shape.elements().max(1)), "ragged rows");
        Self { start: 0, rows: values.len() / shape.elements().max(1), shape, values }
    }

    /// Creates a column of one number per row, without a copy.
    #[must_use]
    pub fn scalars(values: Vec<T>) -> Self {
        Self { start: 0, rows: values.len(), shape: RowShape::SCALAR, values: Arc::new(values) }
    }

    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the shape of one row.
    #[must_use]
    pub fn shape(&self) -> RowShape {
        self.shape
    }

    /// Returns the type of the elements.
    #[must_use]
    pub const fn dtype(&self) -> DType {
        T::DTYPE
    }

    /// Returns all elements, row-major.
    #[must_use]
    pub fn values(&self) -> &[T] {
        &self.values[self.start..][..self.rows * self.shape.elements()]
    }

    /// Returns the elements of one row, if it exists.
    #[must_use]
    pub fn row(&self, row: usize) -> Option<&[T]> {
        let width = self.shape.elements();
        if row < self.rows { self.values().get(row * width..(row + 1) * width) } else { None }
    }

    /// Returns the elements for writing. Copies this column's rows first if the buffer is shared or if the column is only a
    /// part of it, so that other handles never see a write.
    pub fn values_mut(&mut self) -> &mut [T] {
        let len = self.rows * self.shape.elements();
        if len != self.values.len() || Arc::get_mut(&mut self.values).is_none() {
            *self = self.copy();
        }
        Arc::get_mut(&mut self.values).map_or(&mut [], |values| &mut values[..])
    }

    /// Returns the same rows in a new buffer.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self { values: Arc::new(self.values().to_vec()), start: 0, rows: self.rows, shape: self.shape }
    }

    /// Returns the rows in `range`, sharing the buffer. A range beyond the end stops there.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        let range = clamp(range, self.rows);
        Self {
            values: self.values.clone(),
            start: self.start + range.start * self.shape.elements(),
            rows: range.len(),
            shape: self.shape,
        }
    }

    /// Returns the buffer itself, for a producer that reuses it once all consumers have dropped it.
    #[must_use]
    pub fn shared(&self) -> &Arc<Vec<T>> {
        &self.values
    }

    /// Joins rows of one shape. Adjacent parts of one buffer share it again.
    pub(super) fn concat(parts: &[&Self]) -> Self {
        let shape = parts.first().map_or(RowShape::SCALAR, |part| part.shape);
        let follows = |pair: &[&Self]| {
            Arc::ptr_eq(&pair[0].values, &pair[1].values)
                && pair[0].start + pair[0].rows * shape.elements() == pair[1].start
        };
        if let [first, ..] = parts
            && parts.windows(2).all(follows)
        {
            return Self { rows: parts.iter().map(|part| part.rows).sum(), ..(*first).clone() };
        }
        let rows: usize = parts.iter().map(|part| part.rows).sum();
        let mut values = Vec::with_capacity(rows * shape.elements());
        for part in parts {
            values.extend_from_slice(part.values());
        }
        Self { values: Arc::new(values), start: 0, rows, shape }
    }

    /// Returns the next row for each row; for the last row of each piece, the piece's row of `lasts`. `ends` are one past
    /// these last rows, ascending. Both columns have rows of one shape.
    pub(super) fn next_rows(&self, ends: impl Iterator<Item = usize>, lasts: &Self, buffer: &mut Recycler) -> Self {
        let width = self.shape.elements();
        buffer.column(self.shape, self.rows, |values| {
            values.extend_from_slice(self.values().get(width..).unwrap_or_default());
            // Adds any next row for the last row, which the loop overwrites as the last one of its piece.
            values.resize(self.rows * width, T::default());
            for (end, last) in ends.zip(lasts.values().chunks_exact(width.max(1))) {
                if let Some(row) = end.checked_sub(1).and_then(|row| values.get_mut(row * width..end * width)) {
                    row.copy_from_slice(last);
                }
            }
        })
    }

    /// Joins along the first dimension of the rows. The parts have the same number of rows, and their shapes differ in that
    /// dimension only.
    pub(super) fn concat_lanes(parts: &[&Self], shape: RowShape) -> Self {
        let rows = parts.first().map_or(0, |part| part.rows);
        let mut values = Vec::with_capacity(rows * shape.elements());
        for row in 0..rows {
            for part in parts {
                values.extend_from_slice(part.row(row).unwrap_or_default());
            }
        }
        Self { values: Arc::new(values), start: 0, rows, shape }
    }

    /// Returns a range of the first dimension of every row, whose shape becomes `shape`.
    pub(super) fn slice_lanes(&self, lanes: Range<usize>, shape: RowShape) -> Self {
        let lane = shape.elements() / lanes.len().max(1);
        let mut values = Vec::with_capacity(self.rows * shape.elements());
        for row in self.values().chunks_exact(self.shape.elements().max(1)) {
            values.extend_from_slice(row.get(lanes.start * lane..lanes.end * lane).unwrap_or_default());
        }
        Self { values: Arc::new(values), start: 0, rows: self.rows, shape }
    }

    /// Returns these rows in this order; a row that does not exist is zero.
    pub(super) fn gather(&self, rows: &[u32]) -> Self {
        let values = self.values();
        let values = match self.shape.elements() {
            1 => rows.iter().map(|&row| values.get(row as usize).copied().unwrap_or_default()).collect(),
            2 => gather_chunks::<T, 2>(values, rows),
            3 => gather_chunks::<T, 3>(values, rows),
            4 => gather_chunks::<T, 4>(values, rows),
            8 => gather_chunks::<T, 8>(values, rows),
            width => {
                let mut gathered = Vec::with_capacity(rows.len() * width);
                for &row in rows {
                    match self.row(row as usize) {
                        Some(row) => gathered.extend_from_slice(row),
                        None => gathered.resize(gathered.len() + width, T::default()),
                    }
                }
                gathered
            }
        };
        Self { values: Arc::new(values), start: 0, rows: rows.len(), shape: self.shape }
    }

    /// Swaps pairs of rows in place, in order. Ignores pairs of rows that do not exist.
    pub(super) fn swap_rows(&mut self, pairs: impl Iterator<Item = (usize, usize)>) {
        let width = self.shape.elements();
        let values = self.values_mut();
        warm(values);
        match width {
            1 => swap_chunks::<T, 1>(values, pairs),
            2 => swap_chunks::<T, 2>(values, pairs),
            3 => swap_chunks::<T, 3>(values, pairs),
            4 => swap_chunks::<T, 4>(values, pairs),
            8 => swap_chunks::<T, 8>(values, pairs),
            width => {
                for (a, b) in pairs.map(|(a, b)| (a.min(b) * width, a.max(b) * width)) {
                    let Some((low, high)) = values.split_at_mut_checked(b) else { continue };
                    if let (Some(a), Some(b)) = (low.get_mut(a..a + width), high.get_mut(..width)) {
                        a.swap_with_slice(b);
                    }
                }
            }
        }
    }

    /// Assembles ranges of rows and zero rows, in order: `rows` in all.
    pub(super) fn assemble(&self, segments: &[Segment], rows: usize) -> Self {
        let width = self.shape.elements();
        let mut values = Vec::with_capacity(rows * width);
        for segment in segments {
            match segment {
                Segment::Rows(range) => {
                    let range = clamp(range.clone(), self.rows);
                    values.extend_from_slice(&self.values()[range.start * width..range.end * width]);
                }
                Segment::Zeros(count) => values.resize(values.len() + count * width, T::default()),
            }
        }
        Self { start: 0, rows: values.len() / width.max(1), shape: self.shape, values: Arc::new(values) }
    }
}

/// Does the same as [`ColumnData::gather`] for rows of a width known at compile time.
fn gather_chunks<T: Element, const WIDTH: usize>(values: &[T], rows: &[u32]) -> Vec<T> {
    let chunks = values.as_chunks::<WIDTH>().0;
    let zeros = [T::default(); WIDTH];
    let gathered: Vec<[T; WIDTH]> =
        rows.iter().map(|&row| chunks.get(row as usize).copied().unwrap_or(zeros)).collect();
    gathered.into_flattened()
}

/// Reads a value of every cache line in order, which the hardware prefetches, so that the random accesses that follow hit
/// the cache. Saves a third of a shuffle's time.
fn warm<T: Element>(values: &[T]) {
    let per_line = (64 / size_of::<T>()).max(1);
    core::hint::black_box(values.iter().step_by(per_line).fold(false, |any, value| any ^ (*value == T::default())));
}

/// Does the same as [`ColumnData::swap_rows`] for rows of a width known at compile time.
fn swap_chunks<T: Element, const WIDTH: usize>(values: &mut [T], pairs: impl Iterator<Item = (usize, usize)>) {
    let chunks = values.as_chunks_mut::<WIDTH>().0;
    for (a, b) in pairs {
        if a.max(b) < chunks.len() {
            chunks.swap(a, b);
        }
    }
}

impl<T: Element> PartialEq for ColumnData<T> {
    fn eq(&self, other: &Self) -> bool {
        self.shape == other.shape && self.values() == other.values()
    }
}

impl<T: Element> fmt::Debug for ColumnData<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rows of {}{}", self.rows, T::DTYPE, self.shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(n: usize) -> ColumnData<f32> {
        ColumnData::new((0..2 * n).map(|i| i as f32).collect(), RowShape::vector(2)).unwrap()
    }

    #[test]
    fn slices_share_and_writes_copy_only_their_rows() {
        let column = pairs(10);
        let mut slice = column.slice(3..5);
        assert!(Arc::ptr_eq(column.shared(), slice.shared()));
        slice.values_mut()[0] = -1.0;
        assert_eq!(slice.values(), [-1.0, 7.0, 8.0, 9.0]);
        assert_eq!(slice.shared().len(), 4);
        assert_eq!(column.row(3), Some(&[6.0, 7.0][..]));
    }

    #[test]
    fn neighbours_are_joined_without_a_copy() {
        let column = pairs(6);
        let (a, b, c) = (column.slice(1..3), column.slice(3..3), column.slice(3..6));
        let joined = ColumnData::concat(&[&a, &b, &c]);
        assert_eq!(joined, column.slice(1..6));
        assert!(Arc::ptr_eq(joined.shared(), column.shared()));
        for others in [[&c, &a], [&a, &a], [&a, &pairs(6).slice(3..6)]] {
            let joined = ColumnData::concat(&others);
            assert_eq!(joined.values(), [others[0].values(), others[1].values()].concat());
            assert!(!Arc::ptr_eq(joined.shared(), column.shared()));
        }
    }

    #[test]
    fn the_next_row_of_a_last_one_comes_from_elsewhere() {
        let (rows, lasts) = (pairs(4), ColumnData::new(vec![-1.0, -2.0, -3.0, -4.0], RowShape::vector(2)).unwrap());
        let next = rows.next_rows([1, 4].into_iter(), &lasts, &mut Recycler::default());
        assert_eq!(next.values(), [-1.0, -2.0, 4.0, 5.0, 6.0, 7.0, -3.0, -4.0]);
        assert_eq!(rows.slice(0..0).next_rows([0, 9].into_iter(), &lasts, &mut Recycler::default()).rows(), 0);
    }

    #[test]
    fn a_sole_owner_writes_in_place() {
        let mut column = pairs(3);
        let before = column.values().as_ptr();
        column.values_mut()[5] = 9.0;
        assert_eq!(column.values().as_ptr(), before);
        assert_eq!(column.row(2), Some(&[4.0, 9.0][..]));
    }

    #[test]
    fn slice_beyond_the_end_is_clipped() {
        let column = pairs(3);
        assert_eq!(column.slice(2..9).values(), [4.0, 5.0]);
        assert_eq!(column.slice(7..9).rows(), 0);
        let (start, end) = (2, 1);
        assert_eq!(column.slice(start..end).rows(), 0);
        assert_eq!((column.row(3), column.row(usize::MAX)), (None, None));
    }

    #[test]
    fn values_must_fill_complete_rows() {
        let error = ColumnData::new(vec![1i64; 5], RowShape::vector(2)).unwrap_err();
        assert_eq!(error.to_string(), "5 values do not make whole rows of shape (2)");
        assert!(ColumnData::new(vec![1i64; 5], RowShape::vector(0)).is_err());
    }

    #[test]
    fn rows_of_any_width_are_gathered() {
        for width in 1..10 {
            let values = (0..4 * width).map(i64::from).collect();
            let column = ColumnData::new(values, RowShape::vector(width)).unwrap();
            let gathered = column.gather(&[3, 0, 3]);
            let row = |row: u32| (row * width..(row + 1) * width).map(i64::from);
            assert!(gathered.values().iter().copied().eq(row(3).chain(row(0)).chain(row(3))), "width {width}");
        }
    }

    #[test]
    fn rows_of_any_width_are_swapped() {
        for width in 1..10 {
            let values = (0..4 * width).map(i64::from).collect();
            let mut column = ColumnData::new(values, RowShape::vector(width)).unwrap();
            let before = column.clone();
            column.swap_rows([(3, 0), (1, 1), (4, 0), (2, 3)].into_iter());
            assert_eq!(column, before.gather(&[3, 1, 0, 2]), "width {width}");
        }
    }

    #[test]
    fn lanes_are_joined_and_cut_within_rows() {
        let shape = RowShape::vector;
        let column = |values: &[i64], lanes| ColumnData::new(values.to_vec(), shape(lanes)).unwrap();
        let (a, b) = (column(&[0, 1, 2, 3], 2), column(&[0, 1, 2, 3, 4, 5], 3));
        let joined = ColumnData::concat_lanes(&[&a, &b], shape(5));
        assert_eq!(joined.values(), [0, 1, 0, 1, 2, 2, 3, 3, 4, 5]);
        assert_eq!(joined.slice_lanes(0..2, shape(2)), a);
        assert_eq!(joined.slice_lanes(2..5, shape(3)), b);
    }
}
