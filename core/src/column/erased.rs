//! A column whose element type is known at run time.

use core::ops::Range;

use super::{
    BytesColumn, BytesKind, ColumnData, ColumnError, ColumnType, CompressedColumn, DType, Element, Granularity,
    RowShape,
    dtype::sealed,
    little_endian::{LittleEndian, append_le},
};
use crate::prelude::*;

/// The most bytes that padding may make of a column: more is a mistake in a length, not a batch.
const MAX_PADDED: usize = 1 << 31;

/// A part of a column that is put together anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Rows of the column.
    Rows(Range<usize>),
    /// So many rows of zeros; empty ones, or `null`, where rows are ragged.
    Zeros(usize),
}

impl Segment {
    /// How many rows they are.
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Rows(range) => range.len(),
            Self::Zeros(rows) => *rows,
        }
    }
}

/// One expression for all array types, one for ragged and one for compressed rows.
macro_rules! by_type {
    ($column:expr, $data:ident => $array:expr, $bytes:ident => $ragged:expr, $blocks:ident => $compressed:expr $(,)?) => {
        match $column {
            Column::F32($data) => $array,
            Column::F64($data) => $array,
            Column::I32($data) => $array,
            Column::I64($data) => $array,
            Column::U8($data) => $array,
            Column::Bool($data) => $array,
            Column::Bytes($bytes) => $ragged,
            Column::Compressed($blocks) => $compressed,
        }
    };
}

macro_rules! column {
    ($($variant:ident($ty:ty)),+ $(,)?) => {
        /// A column whose type is known at run time.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs)]
        pub enum Column {
            $($variant(ColumnData<$ty>),)+
            /// Rows of any length.
            Bytes(BytesColumn),
            /// Rows of any of the other types, compressed.
            Compressed(CompressedColumn),
        }

        $(
            impl Element for $ty {
                const DTYPE: DType = DType::$variant;
            }

            impl sealed::Erase for $ty {
                fn erase(data: ColumnData<Self>) -> Column {
                    Column::$variant(data)
                }
                fn typed(column: &Column) -> Option<&ColumnData<Self>> {
                    if let Column::$variant(data) = column { Some(data) } else { None }
                }
                fn typed_mut(column: &mut Column) -> Option<&mut ColumnData<Self>> {
                    if let Column::$variant(data) = column { Some(data) } else { None }
                }
            }

            impl From<ColumnData<$ty>> for Column {
                fn from(data: ColumnData<$ty>) -> Self {
                    Self::$variant(data)
                }
            }
        )+

        impl Column {
            /// Joins columns of one array type along rows, or along lanes into rows of this shape.
            fn join_arrays(dtype: DType, parts: &[&Self], lanes: Option<RowShape>) -> Self {
                match dtype {
                    $(DType::$variant => {
                        let parts: Vec<_> = parts.iter().filter_map(|part| part.typed::<$ty>().ok()).collect();
                        Self::$variant(match lanes {
                            None => ColumnData::concat(&parts),
                            Some(shape) => ColumnData::concat_lanes(&parts, shape),
                        })
                    })+
                }
            }

            /// An array column of little-endian elements, as many as whole rows of the shape need.
            pub(crate) fn from_raw(dtype: DType, shape: RowShape, bytes: &[u8]) -> Result<Self, ColumnError> {
                // All bits together first: that is one pass without branches.
                if dtype == DType::Bool
                    && bytes.iter().fold(0, |all, byte| all | byte) > 1
                    && let Some(byte) = bytes.iter().find(|byte| **byte > 1)
                {
                    return Err(ColumnError::NotBool(*byte));
                }
                match dtype {
                    $(DType::$variant => ColumnData::<$ty>::new(LittleEndian::read_le(bytes), shape).map(Self::$variant),)+
                }
            }

            /// Rows of zeros; empty ones, or `null`, where rows are ragged.
            pub(crate) fn zeros(column_type: ColumnType, shape: RowShape, rows: usize) -> Result<Self, ColumnError> {
                match column_type {
                    $(ColumnType::Array(DType::$variant) => {
                        let values: Vec<$ty> = vec![<$ty>::default(); rows.saturating_mul(shape.elements())];
                        ColumnData::new(values, shape).map(Self::$variant)
                    })+
                    ColumnType::Ragged(kind) => {
                        let empty = BytesColumn::concat(&[]);
                        let empty = if kind == empty.kind() { empty } else { BytesColumn::json([""; 0])? };
                        Ok(empty.assemble(&[Segment::Zeros(rows)], rows).into())
                    }
                }
            }
        }
    };
}

column!(F32(f32), F64(f64), I32(i32), I64(i64), U8(u8), Bool(bool));

impl From<BytesColumn> for Column {
    fn from(data: BytesColumn) -> Self {
        Self::Bytes(data)
    }
}

impl Column {
    /// Number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        by_type!(self, data => data.rows(), data => data.rows(), data => data.rows())
    }

    /// Shape of one row; that of a scalar where rows are ragged.
    #[must_use]
    pub fn shape(&self) -> RowShape {
        by_type!(self, data => data.shape(), _data => RowShape::SCALAR, data => data.shape())
    }

    /// What the column holds, compressed or not.
    #[must_use]
    pub fn column_type(&self) -> ColumnType {
        match self {
            Self::F32(_) => DType::F32.into(),
            Self::F64(_) => DType::F64.into(),
            Self::I32(_) => DType::I32.into(),
            Self::I64(_) => DType::I64.into(),
            Self::U8(_) => DType::U8.into(),
            Self::Bool(_) => DType::Bool.into(),
            Self::Bytes(data) => ColumnType::Ragged(data.kind()),
            Self::Compressed(data) => data.column_type(),
        }
    }

    /// Type of the elements, compressed or not; none where rows are ragged.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        match self.column_type() {
            ColumnType::Array(dtype) => Some(dtype),
            ColumnType::Ragged(_) => None,
        }
    }

    /// True if the rows must be decompressed before they can be read.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        matches!(self, Self::Compressed(_))
    }

    /// Bytes of the rows as they are held: elements, the bytes of ragged rows and 8 for where each of them ends, or
    /// compressed blocks.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        by_type!(
            self,
            data => size_of_val(data.values()),
            data => data.contiguous().len() + 8 * data.rows(),
            data => data.size_bytes(),
        )
    }

    /// The rows in `range`, sharing the buffer. A range that reaches beyond the end stops there.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        by_type!(
            self,
            data => data.slice(range).into(),
            data => data.slice(range).into(),
            data => Self::Compressed(data.slice(range)),
        )
    }

    /// The same rows in a buffer of their own.
    #[must_use]
    pub fn copy(&self) -> Self {
        by_type!(self, data => data.copy().into(), data => data.copy().into(), data => Self::Compressed(data.copy()))
    }

    /// Equality of bits: unlike with `==`, a NaN equals itself and -0.0 differs from 0.0.
    #[must_use]
    pub fn same_bits(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::F32(a), Self::F32(b)) => {
                let (a_bits, b_bits) = (a.values().iter().map(|x| x.to_bits()), b.values().iter().map(|x| x.to_bits()));
                a.shape() == b.shape() && a_bits.eq(b_bits)
            }
            (Self::F64(a), Self::F64(b)) => {
                let (a_bits, b_bits) = (a.values().iter().map(|x| x.to_bits()), b.values().iter().map(|x| x.to_bits()));
                a.shape() == b.shape() && a_bits.eq(b_bits)
            }
            _ => self == other,
        }
    }

    /// Joins columns of one type and row shape, in order. Compressed ones append their blocks.
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

    /// A range of the first dimension of every row of an array.
    pub(crate) fn slice_lanes(&self, lanes: Range<usize>) -> Result<Self, ColumnError> {
        let shape = self.shape().with_first(lanes.len())?;
        Ok(by_type!(
            self,
            data => data.slice_lanes(lanes, shape).into(),
            _data => return Err(ColumnError::NoArray(self.column_type())),
            _data => return Err(ColumnError::Compressed),
        ))
    }

    /// Size of the first dimension of a row; 0 for a scalar.
    pub(crate) fn lanes(&self) -> usize {
        self.shape().dims().first().map_or(0, |&lanes| lanes as usize)
    }

    fn array_dtype(&self) -> Result<DType, ColumnError> {
        if self.is_compressed() {
            return Err(ColumnError::Compressed);
        }
        self.dtype().ok_or_else(|| ColumnError::NoArray(self.column_type()))
    }

    /// These rows in this order; a row may be taken more than once. Compressed rows stay compressed.
    ///
    /// # Errors
    /// [`ColumnError::NoRow`], or [`ColumnError::Corrupt`] for compressed rows that came from elsewhere.
    pub fn gather(&self, rows: &[u32]) -> Result<Self, ColumnError> {
        let last = rows.iter().copied().max().map(|row| row as usize);
        if let Some(row) = last.filter(|row| *row >= self.rows()) {
            return Err(ColumnError::NoRow(row));
        }
        self.gather_rows(rows)
    }

    /// [`gather`](Self::gather) of rows that are known to be there.
    pub(crate) fn gather_rows(&self, rows: &[u32]) -> Result<Self, ColumnError> {
        Ok(by_type!(
            self,
            data => data.gather(rows).into(),
            data => data.gather(rows).into(),
            data => Self::Compressed(data.gather(rows)?),
        ))
    }

    /// Puts rows and zeros together.
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
            self,
            data => data.assemble(segments, rows).into(),
            data => data.assemble(segments, rows).into(),
            data => Self::Compressed(data.assemble(segments)?),
        ))
    }

    /// The rows compressed with LZ4; a column that is compressed already stays as it is.
    ///
    /// # Errors
    /// [`ColumnError::LongRow`] for a row of more than 32 MiB.
    pub fn compress(&self, granularity: Granularity) -> Result<Self, ColumnError> {
        CompressedColumn::compress(self, granularity).map(Self::Compressed)
    }

    /// The plain rows; a column that is not compressed stays as it is.
    ///
    /// # Errors
    /// [`ColumnError::Corrupt`] for blocks that came from elsewhere and do not hold what they say.
    pub fn decompress(&self) -> Result<Self, ColumnError> {
        match self {
            Self::Compressed(data) => data.decompress(),
            _ => Ok(self.clone()),
        }
    }

    /// Appends the rows of a plain column as they stand in a compressed block.
    pub(super) fn append_raw(&self, out: &mut Vec<u8>) {
        by_type!(self, data => append_le(out, data.values()), data => data.append_to(out), _data => ());
    }

    /// The column with its element type.
    ///
    /// # Errors
    /// [`ColumnError::WrongType`] when it holds something else, [`ColumnError::Compressed`].
    pub fn typed<T: Element>(&self) -> Result<&ColumnData<T>, ColumnError> {
        T::typed(self).ok_or_else(|| self.is_not(T::DTYPE.into()))
    }

    /// The column with its element type, for writing.
    ///
    /// # Errors
    /// [`ColumnError::WrongType`] when it holds something else, [`ColumnError::Compressed`].
    pub fn typed_mut<T: Element>(&mut self) -> Result<&mut ColumnData<T>, ColumnError> {
        let error = self.is_not(T::DTYPE.into());
        T::typed_mut(self).ok_or(error)
    }

    /// The column with its ragged rows.
    ///
    /// # Errors
    /// [`ColumnError::WrongType`] when it holds something else, [`ColumnError::Compressed`].
    pub fn bytes(&self) -> Result<&BytesColumn, ColumnError> {
        if let Self::Bytes(data) = self { Ok(data) } else { Err(self.is_not(ColumnType::Ragged(BytesKind::Bytes))) }
    }

    /// The column with its blocks.
    #[must_use]
    pub fn compressed(&self) -> Option<&CompressedColumn> {
        if let Self::Compressed(data) = self { Some(data) } else { None }
    }

    fn is_not(&self, wanted: ColumnType) -> ColumnError {
        if self.is_compressed() {
            return ColumnError::Compressed;
        }
        ColumnError::WrongType { wanted, found: self.column_type() }
    }

    /// Makes a column of a type that is known at compile time.
    #[must_use]
    pub fn from_typed<T: Element>(data: ColumnData<T>) -> Self {
        T::erase(data)
    }

    /// Type and row shape, for messages.
    pub(crate) fn describe(&self) -> String {
        match self.column_type() {
            ColumnType::Array(dtype) => format!("{dtype}{}", self.shape()),
            ColumnType::Ragged(kind) => kind.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn bits_tell_zeros_and_nans_apart() {
        let column = |value: f32| Column::from(ColumnData::scalars(vec![value]));
        assert!(column(f32::NAN).same_bits(&column(f32::NAN)) && column(f32::NAN) != column(f32::NAN));
        assert!(!column(0.0).same_bits(&column(-0.0)) && column(0.0) == column(-0.0));
    }
}
