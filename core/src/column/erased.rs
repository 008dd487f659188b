//! Defines a column whose element type is known at run time.

use core::ops::Range;

use super::{
    BytesColumn, BytesKind, ColumnData, ColumnError, ColumnType, CompressedColumn, DType, Element, Granularity,
    RowBuffer, RowShape, RowsMut, RowsRef, Segment, by_type,
    little_endian::{LittleEndian, append_le},
};
use crate::prelude::*;

macro_rules! column {
    ($($variant:ident($ty:ty)),+ $(,)?) => {
        /// A column whose type is known at run time.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Column {
            $(
                #[doc = concat!("Rows of `", stringify!($ty), "`.")]
                $variant(ColumnData<$ty>),
            )+
            /// Rows of any length.
            Bytes(BytesColumn),
            /// Rows of any other type, compressed.
            Compressed(CompressedColumn),
        }

        $(
            impl From<ColumnData<$ty>> for Column {
                fn from(data: ColumnData<$ty>) -> Self {
                    Self::$variant(data)
                }
            }
        )+

        impl Column {
            /// Joins columns of one array type along rows, or along lanes into rows of this shape.
            pub(super) fn join_arrays(dtype: DType, parts: &[&Self], lanes: Option<RowShape>) -> Self {
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

            /// Creates an array column from little-endian elements that form whole rows of the shape.
            ///
            /// # Errors
            /// [`ColumnError`] for elements that do not form whole rows, and for booleans other than 0 and 1.
            pub fn from_raw(dtype: DType, shape: RowShape, bytes: &[u8]) -> Result<Self, ColumnError> {
                // Combines all bits first: one pass without branches.
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
    /// Returns the number of rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        by_type!(Self, self, data => data.rows(), Self::Bytes(data) => data.rows(), Self::Compressed(data) => data.rows())
    }

    /// Returns the shape of one row; for ragged rows, a scalar's.
    #[must_use]
    pub fn shape(&self) -> RowShape {
        by_type!(Self, self, data => data.shape(), Self::Bytes(_) => RowShape::SCALAR, Self::Compressed(data) => data.shape())
    }

    /// Returns the elements of an array.
    ///
    /// # Errors
    /// [`ColumnError::Compressed`], and [`ColumnError::NoArray`] for ragged rows.
    pub fn array(&self) -> Result<RowsRef<'_>, ColumnError> {
        by_type!(
            Self,
            self,
            data => Ok(Element::erase_rows(data.values())),
            Self::Bytes(_) => Err(ColumnError::NoArray(self.column_type())),
            Self::Compressed(_) => Err(ColumnError::Compressed),
        )
    }

    /// Returns the elements of an array, to be written.
    ///
    /// # Errors
    /// As [`array`](Self::array).
    pub fn array_mut(&mut self) -> Result<RowsMut<'_>, ColumnError> {
        by_type!(
            Self,
            self,
            data => Ok(Element::erase_rows_mut(data.values_mut())),
            Self::Bytes(data) => Err(ColumnError::NoArray(ColumnType::Ragged(data.kind()))),
            Self::Compressed(_) => Err(ColumnError::Compressed),
        )
    }

    /// Returns all elements as numbers, `true` as 1; `None` for bytes and for compressed rows.
    #[must_use]
    pub fn numbers(&self) -> Option<Vec<f64>> {
        self.array().ok().map(RowsRef::cast)
    }

    /// Returns the elements of a row; `None` for bytes, for compressed rows, and if the row does not exist.
    #[must_use]
    pub fn row(&self, row: usize) -> Option<RowsRef<'_>> {
        let width = self.shape().elements();
        let first = row.checked_mul(width)?;
        self.array().ok()?.get(first..first.checked_add(width)?)
    }

    /// Returns rows of zeros; for ragged rows, empty rows or `null`.
    ///
    /// # Errors
    /// [`ColumnError::RaggedRows`] for a shape without elements.
    pub fn zeros(column_type: ColumnType, shape: RowShape, rows: usize) -> Result<Self, ColumnError> {
        match column_type {
            ColumnType::Array(dtype) => {
                RowBuffer::zeros(dtype, rows.saturating_mul(shape.elements())).into_column(shape)
            }
            ColumnType::Ragged(kind) => {
                let empty = BytesColumn::concat(&[]);
                let empty = if kind == empty.kind() { empty } else { BytesColumn::json([""; 0])? };
                Ok(empty.assemble(&[Segment::Zeros(rows)], rows).into())
            }
        }
    }

    /// Returns the content type, compressed or not.
    #[must_use]
    pub fn column_type(&self) -> ColumnType {
        by_type!(
            Self,
            self,
            data => data.dtype().into(),
            Self::Bytes(data) => ColumnType::Ragged(data.kind()),
            Self::Compressed(data) => data.column_type(),
        )
    }

    /// Returns the type of the elements, compressed or not; none for ragged rows.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        match self.column_type() {
            ColumnType::Array(dtype) => Some(dtype),
            ColumnType::Ragged(_) => None,
        }
    }

    /// Returns true if the rows must be decompressed before they can be read.
    #[must_use]
    pub fn is_compressed(&self) -> bool {
        matches!(self, Self::Compressed(_))
    }

    /// Returns the size of the rows in memory: the elements, the bytes of ragged rows and 8 for the end of each, or the
    /// compressed blocks.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        by_type!(
            Self,
            self,
            data => size_of_val(data.values()),
            Self::Bytes(data) => data.contiguous().len() + 8 * data.rows(),
            Self::Compressed(data) => data.size_bytes(),
        )
    }

    /// Returns the rows in `range`, sharing the buffer. A range beyond the end stops there.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        by_type!(
            Self,
            self,
            data => data.slice(range).into(),
            Self::Bytes(data) => data.slice(range).into(),
            Self::Compressed(data) => Self::Compressed(data.slice(range)),
        )
    }

    /// Returns the same rows in a new buffer.
    #[must_use]
    pub fn copy(&self) -> Self {
        by_type!(
            Self,
            self,
            data => data.copy().into(),
            Self::Bytes(data) => data.copy().into(),
            Self::Compressed(data) => Self::Compressed(data.copy()),
        )
    }

    /// Compares bits: unlike with `==`, a NaN equals itself and -0.0 differs from 0.0.
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

    /// Compresses the rows with LZ4; a compressed column stays as it is.
    ///
    /// # Errors
    /// [`ColumnError::LongRow`] for a row of more than 32 MiB.
    pub fn compress(&self, granularity: Granularity) -> Result<Self, ColumnError> {
        CompressedColumn::compress(self, granularity).map(Self::Compressed)
    }

    /// Decompresses the rows; an uncompressed column stays as it is.
    ///
    /// # Errors
    /// [`ColumnError::Corrupt`] for blocks from another source that do not hold what they declare.
    pub fn decompress(&self) -> Result<Self, ColumnError> {
        match self {
            Self::Compressed(data) => data.decompress(),
            _ => Ok(self.clone()),
        }
    }

    /// Appends the rows of a plain column in the layout of a compressed block.
    pub(super) fn append_raw(&self, out: &mut Vec<u8>) {
        by_type!(
            Self,
            self,
            data => append_le(out, data.values()),
            Self::Bytes(data) => data.append_to(out),
            Self::Compressed(_) => {}
        );
    }

    /// Returns the column with its element type.
    ///
    /// # Errors
    /// [`ColumnError::WrongType`] for another type, [`ColumnError::Compressed`].
    pub fn typed<T: Element>(&self) -> Result<&ColumnData<T>, ColumnError> {
        T::typed(self).ok_or_else(|| self.is_not(T::DTYPE.into()))
    }

    /// Returns the column with its element type, for writing.
    ///
    /// # Errors
    /// [`ColumnError::WrongType`] for another type, [`ColumnError::Compressed`].
    pub fn typed_mut<T: Element>(&mut self) -> Result<&mut ColumnData<T>, ColumnError> {
        let error = self.is_not(T::DTYPE.into());
        T::typed_mut(self).ok_or(error)
    }

    /// Returns the column's ragged rows.
    ///
    /// # Errors
    /// [`ColumnError::WrongType`] for another type, [`ColumnError::Compressed`].
    pub fn bytes(&self) -> Result<&BytesColumn, ColumnError> {
        if let Self::Bytes(data) = self { Ok(data) } else { Err(self.is_not(ColumnType::Ragged(BytesKind::Bytes))) }
    }

    /// Returns the column's compressed blocks, if it is compressed.
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

    /// Creates a column of a type known at compile time.
    #[must_use]
    pub fn from_typed<T: Element>(data: ColumnData<T>) -> Self {
        T::erase(data)
    }

    /// Returns type and row shape, for messages.
    pub(crate) fn describe(&self) -> String {
        match self.column_type() {
            ColumnType::Array(dtype) => format!("{dtype}{}", self.shape()),
            ColumnType::Ragged(kind) => kind.to_string(),
        }
    }
}
