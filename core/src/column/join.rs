//! Builds new columns from others: joined, reordered, padded.

use core::ops::Range;

use super::{BytesColumn, Column, ColumnError, CompressedColumn, DType, Recycler, by_type};
use crate::prelude::*;

/// Maximum size of a padded column in bytes: more indicates a wrong length, not a real batch.
const MAX_PADDED: usize = 1 << 31;

/// A part of an assembled column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Rows of the column.
    Rows(Range<usize>),
    /// This number of zero rows; for ragged rows, empty ones or `null`.
    Zeros(usize),
}

impl Segment {
    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Rows(range) => range.len(),
            Self::Zeros(rows) => *rows,
        }
    }
}

impl Column {
    /// Joins columns of one type and row shape, in order. The blocks of compressed columns are appended.
    ///
    /// # Errors
    /// [`ColumnError::Mismatch`] when type or row shape differ, [`ColumnError::MixedCompression`].
    pub fn concat(parts: &[&Self]) -> Result<Option<Self>, ColumnError> {
        let Some(first) = parts.first() else { return Ok(None) };
        let (column_type, shape, compressed) = (first.column_type(), first.shape(), first.is_compressed());
        let same = |p: &Self| p.column_type() == column_type && p.shape() == shape;
        if let Some(other) = parts.iter().find(|p| !same(p) || p.is_compressed() != compressed) {
            return Err(if same(other) {
                ColumnError::MixedCompression
            } else {
                ColumnError::Mismatch { left: first.describe(), right: other.describe() }
            });
        }
        Ok(Some(match first {
            Self::Bytes(_) => {
                BytesColumn::concat(&parts.iter().filter_map(|p| p.bytes().ok()).collect::<Vec<_>>()).into()
            }
            Self::Compressed(first) => {
                let parts: Vec<_> = parts.iter().filter_map(|p| p.compressed()).collect();
                Self::Compressed(CompressedColumn::concat(&parts).unwrap_or_else(|| first.clone()))
            }
            _ => Self::join_arrays(first.dtype().unwrap_or(DType::U8), parts, None),
        }))
    }

    /// Returns the next row for each row of an array; for the last row of each piece, the piece's row of `lasts`. `ends` are
    /// one past these last rows, ascending.
    ///
    /// # Errors
    /// [`ColumnError::Mismatch`] when type or row shape differ, [`ColumnError::NoArray`], [`ColumnError::Compressed`].
    pub(crate) fn next_rows(
        &self,
        ends: impl Iterator<Item = usize>,
        lasts: &Self,
        buffer: &mut Recycler,
    ) -> Result<Self, ColumnError> {
        if self.array_dtype()? != lasts.array_dtype()? || self.shape() != lasts.shape() {
            return Err(ColumnError::Mismatch { left: self.describe(), right: lasts.describe() });
        }
        Ok(by_type!(
            Self,
            self,
            data => data.next_rows(ends, lasts.typed()?, buffer).into(),
            Self::Bytes(_) | Self::Compressed(_) => self.clone(),
        ))
    }

    /// Joins arrays along the first dimension of their rows.
    ///
    /// # Errors
    /// [`ColumnError::Mismatch`] when type, number of rows or another dimension differ.
    pub(crate) fn concat_lanes(parts: &[&Self]) -> Result<Option<Self>, ColumnError> {
        let Some(first) = parts.first() else { return Ok(None) };
        let dtype = first.array_dtype()?;
        let mut lanes = 0usize;
        for part in parts {
            let dims = part.shape();
            let alike = first.shape().with_first(part.lanes()) == Ok(dims) && part.rows() == first.rows();
            if part.array_dtype()? != dtype || !alike {
                let describe = |column: &Self| format!("{} x {}", column.rows(), column.describe());
                return Err(ColumnError::Mismatch { left: describe(first), right: describe(part) });
            }
            lanes = lanes.saturating_add(part.lanes());
        }
        Ok(Some(Self::join_arrays(dtype, parts, Some(first.shape().with_first(lanes)?))))
    }

    /// Returns a range of the first dimension of every row of an array.
    pub(crate) fn slice_lanes(&self, lanes: Range<usize>) -> Result<Self, ColumnError> {
        self.array()?;
        let shape = self.shape().with_first(lanes.len())?;
        Ok(by_type!(
            Self,
            self,
            data => data.slice_lanes(lanes, shape).into(),
            Self::Bytes(_) | Self::Compressed(_) => self.clone(),
        ))
    }

    /// Returns the size of the first dimension of a row; 0 for a scalar.
    pub(crate) fn lanes(&self) -> usize {
        self.shape().dims().first().map_or(0, |&lanes| lanes as usize)
    }

    fn array_dtype(&self) -> Result<DType, ColumnError> {
        self.array().map(|elements| elements.dtype())
    }

    /// Returns these rows in this order; a row may occur more than once. Compressed rows stay compressed.
    ///
    /// # Errors
    /// [`ColumnError::NoRow`], or [`ColumnError::Corrupt`] for damaged compressed rows.
    pub fn gather(&self, rows: &[u32]) -> Result<Self, ColumnError> {
        let last = rows.iter().copied().max().map(|row| row as usize);
        if let Some(row) = last.filter(|row| *row >= self.rows()) {
            return Err(ColumnError::NoRow(row));
        }
        self.gather_rows(rows)
    }

    /// Returns the [`gather`](Self::gather)ed rows, which are known to exist.
    pub(crate) fn gather_rows(&self, rows: &[u32]) -> Result<Self, ColumnError> {
        Ok(by_type!(
            Self,
            self,
            data => data.gather(rows).into(),
            Self::Bytes(data) => data.gather(rows).into(),
            Self::Compressed(data) => Self::Compressed(data.gather(rows)?),
        ))
    }

    /// Returns true for plain arrays.
    pub(crate) fn is_array(&self) -> bool {
        !matches!(self, Self::Bytes(_) | Self::Compressed(_))
    }

    /// Swaps pairs of rows of arrays in place, in order. Leaves ragged and compressed rows unchanged.
    pub(crate) fn swap_rows(&mut self, pairs: impl Iterator<Item = (usize, usize)>) {
        by_type!(Self, self, data => data.swap_rows(pairs), Self::Bytes(_) | Self::Compressed(_) => {});
    }

    /// Assembles rows and zeros.
    ///
    /// # Errors
    /// [`ColumnError::TooLarge`] if the result would have more than 2 GiB.
    pub(crate) fn assemble(&self, segments: &[Segment]) -> Result<Self, ColumnError> {
        let rows = segments.iter().try_fold(0usize, |sum, segment| sum.checked_add(segment.rows()));
        let row_bytes = self.shape().elements().saturating_mul(self.dtype().map_or(16, DType::size));
        let bytes = rows.map_or(usize::MAX, |rows| rows.saturating_mul(row_bytes));
        let padded = segments.iter().any(|segment| matches!(segment, Segment::Zeros(_)));
        let rows = rows.filter(|_| !padded || bytes <= MAX_PADDED).ok_or(ColumnError::TooLarge)?;
        Ok(by_type!(
            Self,
            self,
            data => data.assemble(segments, rows).into(),
            Self::Bytes(data) => data.assemble(segments, rows).into(),
            Self::Compressed(data) => Self::Compressed(data.assemble(segments)?),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::{ColumnData, Granularity, RowShape};

    fn columns() -> Vec<Column> {
        let shape = RowShape::vector(2);
        let column = |n: usize| (0..2 * n).map(|i| i % 3 == 0).collect();
        vec![
            ColumnData::new((0..12).map(|i| i as f32).collect(), shape).unwrap().into(),
            ColumnData::scalars((0..6).map(f64::from).collect()).into(),
            ColumnData::scalars((0..6).collect::<Vec<i32>>()).into(),
            ColumnData::scalars((0..6).collect::<Vec<i64>>()).into(),
            ColumnData::scalars((0..6).collect::<Vec<u8>>()).into(),
            ColumnData::new(column(6), shape).unwrap().into(),
            BytesColumn::json(["{}", "1", r#"{"a":[1,2,3]}"#, "null", "[]", "2"]).unwrap().into(),
            BytesColumn::bytes([&b"a"[..], b"", b"ccc", b"d", b"ee", b"\xff"]).unwrap().into(),
        ]
    }

    #[test]
    fn joining_checks_type_and_shape() {
        let shape = RowShape::vector(2);
        let pairs = |n: usize| Column::from(ColumnData::new(vec![1.0f32; 2 * n], shape).unwrap());
        let (a, b) = (pairs(2), pairs(1));
        assert_eq!(Column::concat(&[&a, &b]).unwrap().unwrap().rows(), 3);
        let c = Column::from(ColumnData::scalars(vec![1.0f64]));
        let error = Column::concat(&[&a, &c]).unwrap_err();
        assert_eq!(error.to_string(), "cannot join rows float32(2) with rows float64()");
        let compressed = b.compress(Granularity::Bulk).unwrap();
        assert_eq!(Column::concat(&[&a, &compressed]), Err(ColumnError::MixedCompression));
    }

    #[test]
    fn compressed_columns_do_what_plain_ones_do() {
        for column in columns() {
            for granularity in [Granularity::Bulk, Granularity::Rows] {
                let compressed = column.compress(granularity).unwrap();
                let plain = |column: Result<Column, ColumnError>| column.unwrap().decompress().unwrap();
                assert_eq!(compressed.column_type(), column.column_type());
                assert_eq!((compressed.rows(), compressed.shape()), (column.rows(), column.shape()));
                assert_eq!(plain(Ok(compressed.clone())), column);
                assert_eq!(plain(Ok(compressed.slice(1..4))), column.slice(1..4));
                assert_eq!(plain(Ok(compressed.slice(1..6).slice(2..9).copy())), column.slice(3..6));
                let joined = Column::concat(&[&compressed.slice(4..6), &compressed, &compressed.slice(0..1)]);
                let expected = Column::concat(&[&column.slice(4..6), &column, &column.slice(0..1)]).unwrap().unwrap();
                let joined = joined.unwrap().unwrap();
                assert_eq!(plain(Ok(joined.clone())), expected);
                assert_eq!(plain(Ok(joined.slice(1..3))), expected.slice(1..3));
                assert_eq!(plain(compressed.slice(1..5).gather(&[3, 0, 3])), column.gather(&[4, 1, 4]).unwrap());
                assert_eq!(compressed.gather(&[6]), Err(ColumnError::NoRow(6)));
                let segments = [Segment::Zeros(2), Segment::Rows(1..3), Segment::Zeros(1), Segment::Rows(5..6)];
                assert_eq!(plain(compressed.assemble(&segments)), column.assemble(&segments).unwrap());
                assert_eq!(compressed.typed::<f32>(), Err(ColumnError::Compressed));
            }
        }
    }

    #[test]
    fn compression_pays_and_keeps_blocks() {
        let column = Column::from(ColumnData::scalars(vec![7i64; 1000]));
        let bulk = column.compress(Granularity::Bulk).unwrap();
        assert!(bulk.size_bytes() < 100 && column.size_bytes() == 8000);
        assert_eq!(format!("{bulk:?}"), "Compressed(1000 rows of int64() in 1 compressed blocks)");
        let rows = column.compress(Granularity::Rows).unwrap();
        assert_eq!(rows.slice(10..20).size_bytes(), rows.size_bytes() / 100);
        assert_eq!(rows.compress(Granularity::Bulk).unwrap(), rows);
    }

    #[test]
    fn padding_stops_before_it_fills_the_machine() {
        for column in columns() {
            for zeros in [1 << 31, usize::MAX] {
                let segments = [Segment::Zeros(zeros), Segment::Rows(0..1)];
                assert_eq!(column.assemble(&segments), Err(ColumnError::TooLarge), "{column:?}");
            }
        }
    }

    #[test]
    fn bit_comparison_distinguishes_zeros_and_nans() {
        let column = |value: f32| Column::from(ColumnData::scalars(vec![value]));
        assert!(column(f32::NAN).same_bits(&column(f32::NAN)) && column(f32::NAN) != column(f32::NAN));
        assert!(!column(0.0).same_bits(&column(-0.0)) && column(0.0) == column(-0.0));
    }
}
