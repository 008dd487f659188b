//! Defines the types of elements and of columns.

use core::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::{BytesKind, ColumnData, RowsMut, RowsRef, little_endian::LittleEndian};
use crate::prelude::*;

/// Type of the elements of an array column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float.
    F32,
    /// 64-bit float.
    F64,
    /// 32-bit signed integer.
    I32,
    /// 64-bit signed integer.
    I64,
    /// Byte, for images.
    U8,
    /// Boolean, one byte.
    Bool,
}

impl DType {
    /// Every type.
    pub(crate) const ALL: [Self; 6] = [Self::F32, Self::F64, Self::I32, Self::I64, Self::U8, Self::Bool];

    /// Returns the type with this NumPy name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Returns NumPy's name of the type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F64 => "float64",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::U8 => "uint8",
            Self::Bool => "bool",
        }
    }

    /// Returns true for floats, false for integers and booleans.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }

    /// Returns the bytes of one element.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::U8 | Self::Bool => 1,
        }
    }
}

/// Serialises the name.
impl Serialize for DType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for DType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::by_name(&name).ok_or_else(|| D::Error::custom(format_args!("'{name}' is no element type")))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The content of a column, compressed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// Rows of equal shape with elements of one type.
    Array(DType),
    /// Rows of any length.
    Ragged(BytesKind),
}

impl ColumnType {
    /// Returns the bytes of one element; for ragged rows, of a row's length.
    pub(crate) const fn element_size(self) -> usize {
        match self {
            Self::Array(dtype) => dtype.size(),
            Self::Ragged(_) => 4,
        }
    }
}

impl From<DType> for ColumnType {
    fn from(dtype: DType) -> Self {
        Self::Array(dtype)
    }
}

impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Array(dtype) => dtype.fmt(f),
            Self::Ragged(kind) => kind.fmt(f),
        }
    }
}

/// A type that columns can hold. Sealed: the types are those of [`DType`].
pub trait Element:
    Copy + Default + PartialEq + PartialOrd + fmt::Debug + Send + Sync + 'static + LittleEndian + sealed::Erase
{
    /// The type's tag.
    const DTYPE: DType;

    /// Returns the element as a number; rounds integers beyond 2^53, and converts true to 1.
    fn to_f64(self) -> f64;

    /// Returns the nearest element towards zero: truncates fractions, clamps numbers out of range, and converts NaN to an
    /// integer 0. Any number except 0 is true.
    fn from_f64(x: f64) -> Self;

    /// Returns true between the bounds, exactly. The bounds are exact in this type, or infinite.
    fn within(self, low: f64, high: f64) -> bool;

    /// Returns the rows, if they have this type.
    fn rows(rows: RowsRef<'_>) -> Option<&[Self]>;

    /// Returns the rows mutably, if they have this type.
    fn rows_mut(rows: RowsMut<'_>) -> Option<&mut [Self]>;

    /// Erases the type of rows.
    fn erase_rows(values: &[Self]) -> RowsRef<'_>;

    /// Erases the type of mutable rows.
    fn erase_rows_mut(values: &mut [Self]) -> RowsMut<'_>;
}

pub(super) mod sealed {
    use super::ColumnData;
    use crate::column::Column;

    pub trait Erase: Sized {
        fn erase(data: ColumnData<Self>) -> Column;
        fn typed(column: &Column) -> Option<&ColumnData<Self>>;
        fn typed_mut(column: &mut Column) -> Option<&mut ColumnData<Self>>;
    }
}
