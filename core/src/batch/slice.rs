//! Slices rows, whole sequences, and rows with the sequences shortened to fit.

use core::ops::{Bound, Range, RangeBounds};

use super::{
    BatchError, SampleBatch,
    parts::total,
    sample_batch::Layout,
    sequences::{sequences_before, touched},
};
use crate::{
    column::{Column, ColumnData, ColumnName, Segment, clamp},
    prelude::*,
};

impl SampleBatch {
    /// Returns what `batch[start:stop]` is in RLlib. Positions count steps; positions beyond the end are ignored.
    ///
    /// With sequences, returns whole sequences: both ends snap down to the start of a sequence. In a time-major batch
    /// without sequences, positions are time steps. Shares all buffers, except for time-major batches with sequences.
    #[must_use]
    #[doc(alias = "__getitem__")]
    pub fn index_slice(&self, positions: impl RangeBounds<usize>) -> Self {
        let range = clamp(resolve(&positions), self.positions());
        match self.seq_lens() {
            None => self.slice_rows(range),
            Some(lens) => self.slice_sequences(sequences_before(lens, range.start)..sequences_before(lens, range.end)),
        }
    }

    /// Returns whole sequences by number, or rows if there are no sequences. Shares buffers as
    /// [`index_slice`](Self::index_slice) does.
    #[must_use]
    #[doc(alias = "enable_slicing_by_batch_id")]
    pub fn slice_sequences(&self, sequences: impl RangeBounds<usize>) -> Self {
        let Some(lens) = &self.seq_lens else { return self.slice_rows(resolve(&sequences)) };
        let range = clamp(resolve(&sequences), lens.rows());
        let lanes = self.time_major && !range.is_empty();
        let offset = |sequence: usize| match self.max_seq_len {
            Some(max_seq_len) if self.zero_padded => sequence * max_seq_len,
            _ => total(lens.values().get(..sequence).unwrap_or_default()),
        };
        let rows = if range.is_empty() || lanes { 0..0 } else { offset(range.start)..offset(range.end) };
        let slice = |(name, column): &(ColumnName, Column)| {
            let column = match self.layout(name) {
                Layout::Sequence => column.slice(range.clone()),
                // A time-major batch holds plain arrays, for which this does not fail.
                Layout::Step if lanes => column.slice_lanes(range.clone()).unwrap_or_else(|_| column.clone()),
                Layout::Step => column.slice(rows.clone()),
            };
            (name.clone(), column)
        };
        let columns = self.columns.iter().map(slice).collect();
        let rows = if lanes { self.rows } else { rows.len() };
        self.with_sequences(columns, rows, lens.slice(range))
    }

    /// Returns exactly the steps `start..end`. With sequences, the first and the last one are shortened to fit and keep the
    /// state at their start. A negative `start` prepends that number of zero rows, which belong to the first sequence. Steps
    /// beyond the end are ignored. Shares all buffers if nothing is padded.
    ///
    /// # Errors
    /// [`BatchError::TimeMajor`] for a time-major batch with sequences or a negative start; [`BatchError::Column`] if
    /// padding would make a column of more than 2 GiB.
    pub fn slice(&self, start: i64, end: usize) -> Result<Self, BatchError> {
        self.exact(start, end, None)
    }

    /// Returns a [`slice`](Self::slice) with the sequences `states`, whatever rows they had before; the last one is
    /// shortened to the rows.
    ///
    /// # Errors
    /// The errors of [`slice`](Self::slice); [`BatchError::NoSequences`]; [`BatchError::States`] if the sequences have fewer
    /// rows than requested, or if the last one would have no rows.
    pub fn slice_with_states(&self, start: i64, end: usize, states: Range<usize>) -> Result<Self, BatchError> {
        self.exact(start, end, Some(states))
    }

    fn exact(&self, start: i64, end: usize, states: Option<Range<usize>>) -> Result<Self, BatchError> {
        let padding = if start < 0 { usize::try_from(start.unsigned_abs()).unwrap_or(usize::MAX) } else { 0 };
        let first = usize::try_from(start.max(0)).unwrap_or(usize::MAX);
        let steps = clamp(first..end, self.positions());
        let rows = padding.saturating_add(steps.len());
        let mut segments = self.segments_of(steps.clone());
        if self.time_major && (padding > 0 || self.seq_lens.is_some()) {
            return Err(BatchError::TimeMajor("slice"));
        }
        if padding > 0 {
            segments.insert(0, Segment::Zeros(padding));
        }
        let Some(lens) = self.seq_lens() else {
            return match states {
                Some(_) => Err(BatchError::NoSequences("slice_with_states")),
                None => self.put_together(&segments),
            };
        };
        let (sequences, lens) = match states {
            Some(states) => (states.clone(), shortened(lens, states, rows)?),
            None => {
                let (sequences, mut lens) = touched(lens, &steps);
                // The zeros belong to the first sequence, even if none of its own steps are left.
                match lens.first_mut() {
                    Some(first) => *first = first.saturating_add(padding),
                    None if padding > 0 => return self.relaid(&segments, 0..1, &[rows]),
                    None => {}
                }
                (sequences, lens)
            }
        };
        self.relaid(&segments, sequences, &lens)
    }

    /// Returns a part of this batch with other columns, rows and sequences. If no sequence is left, the result is a batch
    /// without sequences.
    pub(super) fn with_sequences(
        &self,
        columns: Vec<(ColumnName, Column)>,
        rows: usize,
        lens: ColumnData<i32>,
    ) -> Self {
        let longest = lens.values().iter().max().map(|len| len.unsigned_abs() as usize);
        let max_seq_len = if self.zero_padded || self.time_major { self.max_seq_len } else { longest };
        let seq_lens = (lens.rows() > 0).then_some(lens);
        Self { columns, seq_lens, max_seq_len, ..self.flags(rows) }
    }
}

/// Returns the lengths of these sequences, with the last one shortened so that the sum is `rows`.
fn shortened(lens: &[i32], states: Range<usize>, rows: usize) -> Result<Vec<usize>, BatchError> {
    let mismatch = || BatchError::States { start: states.start, end: states.end, rows };
    let lens = lens.get(states.clone()).ok_or_else(mismatch)?;
    let mut lens: Vec<usize> = lens.iter().map(|len| len.unsigned_abs() as usize).collect();
    let Some((last, before)) = lens.split_last_mut() else {
        return if rows == 0 { Ok(lens) } else { Err(mismatch()) };
    };
    let before = before.iter().fold(0usize, |sum, len| sum.saturating_add(*len));
    let left = rows.checked_sub(before).filter(|left| (1..=*last).contains(left));
    *last = left.ok_or_else(mismatch)?;
    Ok(lens)
}

/// Returns a range as start and end; the maximum stands for a missing end.
fn resolve(range: &impl RangeBounds<usize>) -> Range<usize> {
    let start = match range.start_bound() {
        Bound::Included(start) => *start,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(end) => *end,
        Bound::Unbounded => usize::MAX,
    };
    start..end
}

#[cfg(test)]
mod tests {
    use super::{super::test_support::*, *};

    fn lens(batch: &SampleBatch) -> (Option<&[i32]>, Option<usize>) {
        (batch.seq_lens(), batch.max_seq_len())
    }

    #[test]
    fn rows_are_sliced_as_in_python() {
        let batch = rows(&[1, 2, 3, 2, 3, 4]);
        assert_eq!(a(&batch.index_slice(..3)), [1, 2, 3]);
        assert_eq!(a(&batch.index_slice(1..4)), [2, 3, 2]);
        assert_eq!(a(&batch.index_slice(1..)), [2, 3, 2, 3, 4]);
        assert_eq!(a(&batch.index_slice(3..=3)), [2]);
        assert_eq!(a(&batch.index_slice(4..99)), [3, 4]);
        assert_eq!(a(&batch.index_slice((Bound::Excluded(usize::MAX), Bound::Unbounded))), [0i64; 0]);
    }

    #[test]
    fn sequences_are_never_split_by_a_slice() {
        let batch = sequences(&[2, 3, 1]);
        let sliced = |range: Range<usize>| batch.index_slice(range);
        assert_eq!((a(&sliced(0..3)), s(&sliced(0..3))), (vec![1, 2], vec![1.0]));
        assert_eq!(lens(&sliced(0..3)), (Some(&[2][..]), Some(2)));
        assert_eq!((a(&sliced(0..5)), s(&sliced(0..5))), (vec![1, 2, 3, 2, 3], vec![1.0, 3.0]));
        assert_eq!(sliced(0..50), batch);
        assert_eq!((a(&sliced(2..5)), s(&sliced(2..5))), (vec![3, 2, 3], vec![3.0]));
        assert_eq!((a(&sliced(3..6)), s(&sliced(3..6))), (vec![3, 2, 3, 4], vec![3.0, 4.0]));
        // Both ends snap to the same start: no sequence is left.
        assert_eq!((a(&sliced(0..1)), s(&sliced(0..1)), lens(&sliced(0..1))), (vec![], vec![], (None, None)));
        assert_eq!(batch.slice_sequences(1..2), sliced(2..5));
    }

    #[test]
    fn padded_sequences_keep_their_padding() {
        let batch = sequences(&[2, 3, 1]).right_zero_pad(4).unwrap();
        let part = batch.index_slice(1..5);
        assert_eq!((a(&part), part.len()), (vec![1, 2, 0, 0, 3, 2, 3, 0], 5));
        assert_eq!((lens(&part), part.zero_padded()), ((Some(&[2, 3][..]), Some(4)), true));
    }

    #[test]
    fn exact_slices_shorten_sequences() {
        let batch = sequences(&[2, 3, 1]);
        for (range, values, seq_lens, states) in [
            (0..3, vec![1, 2, 3], [2, 1], [1.0, 3.0]),
            (1..4, vec![2, 3, 2], [1, 2], [1.0, 3.0]),
            (3..6, vec![2, 3, 4], [2, 1], [3.0, 4.0]),
        ] {
            let part = batch.slice(range.start, range.end as usize).unwrap();
            assert_eq!((a(&part), s(&part)), (values, states.to_vec()), "{range:?}");
            assert_eq!(lens(&part), (Some(&seq_lens[..]), Some(2)));
        }
        let padded = batch.right_zero_pad(3).unwrap().slice(1, 4).unwrap();
        assert_eq!((a(&padded), s(&padded)), (vec![2, 0, 0, 3, 2, 0], vec![1.0, 3.0]));
        assert_eq!((lens(&padded), padded.zero_padded()), ((Some(&[1, 2][..]), Some(3)), true));
    }

    #[test]
    fn a_negative_start_puts_zeros_in_front() {
        assert_eq!(a(&rows(&[1, 2, 3, 4]).slice(-2, 3).unwrap()), [0, 0, 1, 2, 3]);
        let batch = sequences(&[2, 3, 1]);
        let part = batch.slice(-1, 3).unwrap();
        assert_eq!((a(&part), s(&part), part.seq_lens()), (vec![0, 1, 2, 3], vec![1.0, 3.0], Some(&[3, 1][..])));
        let zeros = batch.slice(-2, 0).unwrap();
        assert_eq!((a(&zeros), s(&zeros), zeros.seq_lens()), (vec![0, 0], vec![1.0], Some(&[2][..])));
        let padded = batch.right_zero_pad(3).unwrap().slice(-2, 3).unwrap();
        assert_eq!((a(&padded), lens(&padded)), (vec![0, 0, 1, 2, 3, 0, 0, 0], (Some(&[4, 1][..]), Some(4))));
        for start in [i64::MIN, -(1 << 40)] {
            assert!(matches!(batch.slice(start, 3), Err(BatchError::Column { .. })));
            assert!(matches!(rows(&[1]).slice(start, 3), Err(BatchError::Column { .. })));
        }
    }

    #[test]
    fn sequences_can_be_named() {
        let batch = sequences(&[2, 3, 1]);
        let part = batch.slice_with_states(0, 3, 0..2).unwrap();
        assert_eq!((a(&part), s(&part), part.seq_lens()), (vec![1, 2, 3], vec![1.0, 3.0], Some(&[2, 1][..])));
        for states in [0..1, 0..3, 2..2, 4..5] {
            let error = batch.slice_with_states(0, 3, states.clone()).unwrap_err();
            assert_eq!(error, BatchError::States { start: states.start, end: states.end, rows: 3 });
        }
        assert_eq!(rows(&[1]).slice_with_states(0, 1, 0..1), Err(BatchError::NoSequences("slice_with_states")));
    }

    #[test]
    fn slices_share_buffers() {
        let batch = sequences(&[2, 3, 1]);
        let buffer = |batch: &SampleBatch| batch.data(A).unwrap().shared().clone();
        for part in [batch.index_slice(2..5), batch.slice(1, 4).unwrap(), batch.clone()] {
            assert!(Arc::ptr_eq(&buffer(&batch), &buffer(&part)));
        }
        assert!(!Arc::ptr_eq(&buffer(&batch), &buffer(&batch.copy())));
    }

    #[test]
    fn writing_copies_rows_that_others_hold() {
        let mut batch = rows(&[1, 2]);
        let before = batch.clone();
        batch.get_mut(A).unwrap()[1] = 7;
        assert_eq!((a(&batch), a(&before)), (vec![1, 7], vec![1, 2]));
        assert!(batch.get_mut(crate::column::ColumnKey::<f32>::new("a")).is_err());
    }
}
