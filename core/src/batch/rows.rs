//! Accesses a batch row by row.

use super::{BatchError, SampleBatch, sample_batch::Layout};
use crate::column::{Column, ColumnError, RowsRef};

/// The elements of one column in one row, row-major.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowValue<'a> {
    /// Elements of an array.
    Array(RowsRef<'a>),
    /// A byte string, or a JSON document.
    Bytes(&'a [u8]),
}

/// One step of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    batch: &'a SampleBatch,
    /// Index of the row, padding included.
    row: usize,
    sequence: usize,
}

impl SampleBatch {
    /// Iterates over the steps, without padding. The state of a step is the state at the start of its sequence. The rows of
    /// a time-major batch are its time steps.
    ///
    /// # Errors
    /// [`BatchError::Column`] for a compressed column; [`BatchError::TimeMajor`] for a time-major batch with sequences,
    /// where a row has one state per sequence.
    pub fn rows(&self) -> Result<impl ExactSizeIterator<Item = Row<'_>>, BatchError> {
        if let Some((name, _)) = self.iter().find(|(_, column)| column.is_compressed()) {
            return Err(BatchError::of_column(name)(ColumnError::Compressed));
        }
        if self.time_major && self.seq_lens.is_some() {
            return Err(BatchError::TimeMajor("rows"));
        }
        let lens = self.seq_lens().unwrap_or_default();
        let max_seq_len = self.max_seq_len.filter(|_| self.zero_padded);
        let (mut sequence, mut step) = (0, 0);
        // Without columns, the lengths of sequences do not count as rows.
        let has_steps = self.iter().any(|(name, _)| self.layout(name) == Layout::Step);
        let rows = match (has_steps, self.time_major) {
            (false, _) => 0,
            (true, true) => self.rows,
            (true, false) => self.positions(),
        };
        Ok((0..rows).map(move |row| {
            if lens.get(sequence).is_some_and(|len| step == len.unsigned_abs() as usize) {
                (sequence, step) = (sequence + 1, 0);
            }
            let place = max_seq_len.filter(|_| !lens.is_empty()).map_or(row, |padded| sequence * padded + step);
            step += 1;
            Row { batch: self, row: place, sequence }
        }))
    }
}

impl<'a> Row<'a> {
    /// Iterates over names and values in order of the columns.
    pub fn iter(self) -> impl Iterator<Item = (&'a str, RowValue<'a>)> {
        self.batch.iter().filter_map(move |(name, column)| Some((name, self.value(name, column)?)))
    }

    /// Returns the value of a column by name.
    #[must_use]
    pub fn get(self, name: &str) -> Option<RowValue<'a>> {
        self.value(name, self.batch.column(name)?)
    }

    /// Returns the row's length as a sequence, which is 1, if the batch has sequences.
    #[must_use]
    pub fn seq_lens(self) -> Option<i32> {
        self.batch.seq_lens.as_ref().map(|_| 1)
    }

    fn value(self, name: &str, column: &'a Column) -> Option<RowValue<'a>> {
        let row = match self.batch.layout(name) {
            Layout::Step => self.row,
            Layout::Sequence => self.sequence,
        };
        match column {
            Column::Bytes(data) => data.row(row).map(RowValue::Bytes),
            array => array.row(row).map(RowValue::Array),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_support::*, *};
    use crate::{
        column::{BytesColumn, ColumnData, Granularity},
        prelude::*,
    };

    fn i64s(values: &[i64]) -> RowValue<'_> {
        RowValue::Array(RowsRef::I64(values))
    }

    #[test]
    fn every_row_has_all_columns() {
        let mut batch = rows(&[1, 2]).with(B, ColumnData::scalars(vec![4, 5])).unwrap();
        batch.insert("infos", BytesColumn::json(["{}", "7"]).unwrap()).unwrap();
        let rows: Vec<Row<'_>> = batch.rows().unwrap().collect();
        let second: Vec<_> = rows[1].iter().collect();
        let infos = ("infos", RowValue::Bytes(b"7"));
        assert_eq!(second, [("a", i64s(&[2])), ("b", i64s(&[5])), infos]);
        assert_eq!((rows[0].get("b"), rows[0].get("c")), (Some(i64s(&[4])), None));
        assert_eq!(rows[0].seq_lens(), None);
        batch.compress_columns(Granularity::Rows, &["a"]).unwrap();
        assert!(batch.rows().is_err());
    }

    #[test]
    fn rows_of_sequences_are_sequences_of_one() {
        let batch = sequences(&[2, 3, 1]);
        for batch in [batch.right_zero_pad(4).unwrap(), batch] {
            let rows: Vec<_> = batch.rows().unwrap().collect();
            assert!(rows.iter().all(|row| row.seq_lens() == Some(1)));
            let values: Vec<_> = rows.iter().map(|row| (row.get("a"), row.get("state_in_0"))).collect();
            let pair =
                |a: &'static [i64; 1], s: &'static [f64; 1]| (Some(i64s(a)), Some(RowValue::Array(RowsRef::F64(s))));
            let (first, second) = ([pair(&[1], &[1.0]), pair(&[2], &[1.0])], [pair(&[3], &[3.0]), pair(&[2], &[3.0])]);
            assert_eq!(values, [&first[..], &second[..], &[pair(&[3], &[3.0]), pair(&[4], &[4.0])]].concat());
        }
    }

    #[test]
    fn time_steps_of_several_sequences_are_no_rows() {
        let parts = BatchParts {
            columns: vec![(
                "a".into(),
                ColumnData::new(vec![1i64, 2, 3, 4], crate::column::RowShape::vector(2)).unwrap().into(),
            )],
            seq_lens: Some(ColumnData::scalars(vec![2, 2])),
            time_major: true,
            ..BatchParts::default()
        };
        let batch = SampleBatch::from_parts(parts).unwrap();
        assert_eq!(batch.rows().err(), Some(BatchError::TimeMajor("rows")));
    }
}
