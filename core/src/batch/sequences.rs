//! Maps steps and sequences to rows and padding.

use core::ops::Range;

use super::{BatchError, SampleBatch, parts::total, sample_batch::Layout};
use crate::{
    column::{Column, ColumnData, ColumnError, ColumnName, Segment},
    prelude::*,
};

impl SampleBatch {
    /// Returns the number of positions that slices count: steps, or time steps of a time-major batch without sequences.
    pub(super) fn positions(&self) -> usize {
        self.seq_lens().map_or(self.rows, total)
    }

    /// Returns the rows of these steps, without padding.
    pub(super) fn segments_of(&self, steps: Range<usize>) -> Vec<Segment> {
        let (Some(lens), Some(max_seq_len), true) = (self.seq_lens(), self.max_seq_len, self.zero_padded) else {
            return vec![Segment::Rows(steps)];
        };
        let mut segments = Vec::new();
        let mut first_step = 0usize;
        for (sequence, len) in lens.iter().enumerate() {
            let end_step = first_step.saturating_add(len.unsigned_abs() as usize);
            let (from, to) = (steps.start.max(first_step), steps.end.min(end_step));
            if from < to {
                let row = sequence * max_seq_len;
                segments.push(Segment::Rows(row + from - first_step..row + to - first_step));
            }
            first_step = end_step;
        }
        segments
    }

    /// Assembles the columns of steps from these segments. Shares the buffers if there is only one range of rows.
    fn step_columns(&self, segments: &[Segment], sequences: &Range<usize>) -> Result<NamedColumns, BatchError> {
        let column = |(name, column): &(ColumnName, Column)| {
            let column = match (self.layout(name), segments) {
                (Layout::Sequence, _) => column.slice(sequences.clone()),
                (Layout::Step, [Segment::Rows(range)]) => column.slice(range.clone()),
                (Layout::Step, _) => column.assemble(segments).map_err(BatchError::of_column(name))?,
            };
            Ok((name.clone(), column))
        };
        self.columns.iter().map(column).collect()
    }

    /// Assembles these rows and zeros, of a batch without sequences.
    pub(super) fn put_together(&self, segments: &[Segment]) -> Result<Self, BatchError> {
        let columns = self.step_columns(segments, &(0..0))?;
        let rows = columns.first().map_or(0, |(_, column)| column.rows());
        Ok(Self { columns, ..self.flags(rows) })
    }

    /// Assembles these steps and zeros, split into sequences of these lengths with the states of the named sequences, and
    /// padded if the batch is.
    pub(super) fn relaid(
        &self,
        segments: &[Segment],
        sequences: Range<usize>,
        lens: &[usize],
    ) -> Result<Self, BatchError> {
        let seq_lens: Result<Vec<i32>, _> = lens.iter().map(|len| i32::try_from(*len)).collect();
        let seq_lens = seq_lens.map_err(|_| too_large())?;
        let longest = lens.iter().copied().max().unwrap_or(0);
        let max_seq_len = self.max_seq_len.filter(|_| self.zero_padded).map(|max_seq_len| max_seq_len.max(longest));
        let columns = match max_seq_len {
            Some(max_seq_len) => self.step_columns(&padded(segments, lens, max_seq_len), &sequences)?,
            None => self.step_columns(segments, &sequences)?,
        };
        let step = columns.iter().find(|(name, _)| self.layout(name) == Layout::Step);
        let rows = step.map_or(0, |(_, column)| column.rows());
        let relaid = self.with_sequences(columns, rows, ColumnData::scalars(seq_lens));
        Self { max_seq_len: max_seq_len.or(relaid.max_seq_len), ..relaid }.counted()
    }

    /// Sets the number of rows from the sequences where no column does.
    ///
    /// # Errors
    /// [`BatchError::Column`] if the number of padded rows would overflow.
    pub(super) fn counted(mut self) -> Result<Self, BatchError> {
        if let (Some(lens), Some(max_seq_len), true) = (&self.seq_lens, self.max_seq_len, self.zero_padded)
            && lens.rows().checked_mul(max_seq_len).is_none()
        {
            return Err(too_large());
        }
        self.rows = self.expected_rows(None).unwrap_or(0);
        Ok(self)
    }

    /// Pads each sequence with zeros to `max_seq_len` rows. Steps, states and lengths stay the same. A padded batch is
    /// padded anew.
    ///
    /// # Errors
    /// [`BatchError::NoSequences`]; [`BatchError::MaxSeqLen`] if a sequence has more rows; [`BatchError::TimeMajor`];
    /// [`BatchError::Column`] if padding would make a column of more than 2 GiB.
    pub fn right_zero_pad(&self, max_seq_len: usize) -> Result<Self, BatchError> {
        let lens = self.seq_lens().ok_or(BatchError::NoSequences("right_zero_pad"))?;
        if self.time_major {
            return Err(BatchError::TimeMajor("right_zero_pad"));
        }
        let lens: Vec<usize> = lens.iter().map(|len| len.unsigned_abs() as usize).collect();
        let longest = lens.iter().copied().max().unwrap_or(0);
        if max_seq_len < longest {
            return Err(BatchError::MaxSeqLen { max_seq_len, longest });
        }
        let segments = self.segments_of(0..self.positions());
        let columns = self.step_columns(&padded(&segments, &lens, max_seq_len), &(0..lens.len()))?;
        let seq_lens = self.seq_lens.clone();
        let padded = Self { columns, seq_lens, max_seq_len: Some(max_seq_len), zero_padded: true, ..self.flags(0) };
        padded.counted()
    }
}

fn too_large() -> BatchError {
    BatchError::Column { name: "seq_lens".to_string(), source: ColumnError::TooLarge }
}

type NamedColumns = Vec<(ColumnName, Column)>;

/// Returns how many sequences end at or before a position.
pub(super) fn sequences_before(lens: &[i32], position: usize) -> usize {
    let ends = lens.iter().scan(0usize, |end, len| {
        *end = end.saturating_add(len.unsigned_abs() as usize);
        Some(*end)
    });
    ends.take_while(|end| *end <= position).count()
}

/// Returns the sequences that have steps in a range, and how many steps each has there.
pub(super) fn touched(lens: &[i32], steps: &Range<usize>) -> (Range<usize>, Vec<usize>) {
    let mut first_step = 0usize;
    let mut kept = Vec::new();
    let mut first = 0;
    for (sequence, len) in lens.iter().enumerate() {
        let end_step = first_step.saturating_add(len.unsigned_abs() as usize);
        let (from, to) = (steps.start.max(first_step), steps.end.min(end_step));
        if from < to {
            if kept.is_empty() {
                first = sequence;
            }
            kept.push(to - from);
        }
        first_step = end_step;
    }
    (first..first + kept.len(), kept)
}

/// Splits segments into sequences and appends zeros to each.
fn padded(segments: &[Segment], lens: &[usize], max_seq_len: usize) -> Vec<Segment> {
    let mut rest = segments.iter().cloned();
    let mut segment = None;
    let mut padded = Vec::with_capacity(2 * lens.len());
    for &len in lens {
        let mut wanted = len;
        while wanted > 0 {
            let Some(next) = segment.take().or_else(|| rest.next()) else { break };
            let (taken, left) = cut(next, wanted);
            wanted -= taken.rows();
            padded.push(taken);
            segment = left;
        }
        padded.push(Segment::Zeros(max_seq_len - len));
    }
    padded
}

/// Splits a segment after at most this number of rows; the second part is `None` if no rows remain.
fn cut(segment: Segment, rows: usize) -> (Segment, Option<Segment>) {
    if segment.rows() <= rows {
        return (segment, None);
    }
    match segment {
        Segment::Rows(range) => {
            let middle = range.start + rows;
            (Segment::Rows(range.start..middle), Some(Segment::Rows(middle..range.end)))
        }
        Segment::Zeros(zeros) => (Segment::Zeros(rows), Some(Segment::Zeros(zeros - rows))),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_support::*, *};

    #[test]
    fn state_that_is_not_finite_is_at_first_row_of_its_sequence() {
        let mut batch = sequences(&[2, 1]);
        assert_eq!(batch.first_not_finite(), None);
        batch.insert("state_in_0", crate::column::ColumnData::scalars(vec![1.0_f32, f32::NAN])).unwrap();
        assert_eq!(batch.first_not_finite(), Some(("state_in_0", 2)));
    }

    #[test]
    fn sequences_are_padded_and_states_are_not() {
        let batch = sequences(&[2, 3, 1]).right_zero_pad(4).unwrap();
        assert_eq!(a(&batch), [1, 2, 0, 0, 3, 2, 3, 0, 4, 0, 0, 0]);
        assert_eq!((s(&batch), batch.len(), batch.max_seq_len()), (vec![1.0, 3.0, 4.0], 6, Some(4)));
        assert_eq!(batch.seq_lens(), Some(&[2, 3, 1][..]));
        assert_eq!(batch.right_zero_pad(3).unwrap(), sequences(&[2, 3, 1]).right_zero_pad(3).unwrap());
    }

    #[test]
    fn padding_needs_sequences_and_sufficient_length() {
        assert_eq!(rows(&[1, 2]).right_zero_pad(4), Err(BatchError::NoSequences("right_zero_pad")));
        let batch = sequences(&[2, 3, 1]);
        assert_eq!(batch.right_zero_pad(2), Err(BatchError::MaxSeqLen { max_seq_len: 2, longest: 3 }));
        assert!(matches!(batch.right_zero_pad(usize::MAX), Err(BatchError::Column { .. })));
    }

    #[test]
    fn nested_columns_are_padded_alike() {
        let parts = BatchParts {
            columns: vec![("a".into(), ints(&[1, 2, 3])), ("b.c".into(), ints(&[4, 5, 6]))],
            seq_lens: Some(ColumnData::scalars(vec![1, 2])),
            ..BatchParts::default()
        };
        let batch = SampleBatch::from_parts(parts).unwrap();
        assert_eq!((batch.len(), batch.size_bytes()), (3, 24 + 24 + 8));
        let padded = batch.right_zero_pad(5).unwrap();
        assert_eq!(a(&padded), [1, 0, 0, 0, 0, 2, 3, 0, 0, 0]);
        assert_eq!(padded.column("b.c"), Some(&ints(&[4, 0, 0, 0, 0, 5, 6, 0, 0, 0])));
    }
}
