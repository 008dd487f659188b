//! Defines the points of spaces.

use super::Space;
use crate::{
    column::{DType, Element, RowBuffer, RowsRef, by_type},
    prelude::*,
};

/// A point of a [`Space`], like the result of Gymnasium's `sample`. Arrays are flat, row-major; the space defines their
/// shape.
#[derive(Clone, Debug, PartialEq)]
pub enum Point {
    /// 32-bit floats.
    F32(Vec<f32>),
    /// 64-bit floats.
    F64(Vec<f64>),
    /// 32-bit integers.
    I32(Vec<i32>),
    /// 64-bit integers, also for a point of a discrete space.
    I64(Vec<i64>),
    /// Bytes, also for a point of a multi-binary space.
    U8(Vec<u8>),
    /// Booleans.
    Bool(Vec<bool>),
    /// A point of a tuple.
    Tuple(Vec<Self>),
    /// A point of a dict, sorted by name.
    Dict(BTreeMap<String, Self>),
}

impl Point {
    /// Creates a point of a dict. Of two parts with the same name, the later one counts.
    #[must_use]
    pub fn dict<N: Into<String>>(parts: impl IntoIterator<Item = (N, Self)>) -> Self {
        Self::Dict(parts.into_iter().map(|(name, part)| (name.into(), part)).collect())
    }

    /// Returns the elements of an array; `None` for tuples and dicts.
    #[must_use]
    pub fn array(&self) -> Option<RowsRef<'_>> {
        Some(by_type!(Self, self, values => Element::erase_rows(values), Self::Tuple(_) | Self::Dict(_) => return None))
    }

    /// Returns the elements, if this is an array of that type.
    #[must_use]
    pub fn values<T: Element>(&self) -> Option<&[T]> {
        self.array().and_then(T::rows)
    }

    /// Returns the type of the elements; `None` for tuples and dicts.
    #[must_use]
    pub fn dtype(&self) -> Option<DType> {
        self.array().map(|elements| elements.dtype())
    }

    /// Converts an array of numbers to a type.
    pub(crate) fn cast<S: Element>(values: &[S], dtype: DType) -> Self {
        let mut point = Self::from(RowBuffer::zeros(dtype, values.len()));
        by_type!(Self, &mut point, to => cast(values, to), Self::Tuple(_) | Self::Dict(_) => {});
        point
    }

    /// Describes the point for messages: `3 values of float32`.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Tuple(parts) => format!("a tuple of {}", parts.len()),
            Self::Dict(parts) => format!("a dict of {}", parts.len()),
            point => point.array().map_or_else(String::new, |x| format!("{} values of {}", x.len(), x.dtype())),
        }
    }
}

/// Converts numbers to another type.
pub(crate) fn cast<S: Element, T: Element>(from: &[S], to: &mut [T]) {
    to.iter_mut().zip(from).for_each(|(to, x)| *to = T::from_f64(x.to_f64()));
}

impl From<RowBuffer> for Point {
    fn from(buffer: RowBuffer) -> Self {
        by_type!(RowBuffer, buffer, values => values.into())
    }
}

macro_rules! arrays {
    ($($variant:ident($ty:ty)),+) => {
        $(impl From<Vec<$ty>> for Point {
            fn from(values: Vec<$ty>) -> Self {
                Self::$variant(values)
            }
        })+
    };
}

arrays!(F32(f32), F64(f64), I32(i32), I64(i64), U8(u8), Bool(bool));

/// Converts one integer to a point of a discrete space.
impl From<i64> for Point {
    fn from(value: i64) -> Self {
        Self::I64(vec![value])
    }
}

/// The reason why rows or points do not match a space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PointError {
    /// The rows have an element type that the space does not accept.
    #[error("{space} has no rows of {found}")]
    WrongType {
        /// The space.
        space: String,
        /// Element type of the rows.
        found: DType,
    },
    /// The length of a row or buffer is wrong for the space.
    #[error("{space} needs {wanted} elements, here are {found}")]
    WrongLength {
        /// The space.
        space: String,
        /// Required number of elements.
        wanted: u64,
        /// Number of elements given.
        found: usize,
    },
    /// The point is not in the space.
    #[error("{found} is no point of {space}")]
    Outside {
        /// The space.
        space: String,
        /// The value given.
        found: String,
    },
}

impl PointError {
    pub(crate) fn outside(space: &Space, point: &Point) -> Self {
        Self::Outside { space: space.to_string(), found: point.describe() }
    }
}
