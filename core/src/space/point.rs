//! Defines the points of spaces.

use super::{Scalar, Space};
use crate::{column::DType, prelude::*};

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

    /// Returns the elements, if this is an array of that type.
    #[must_use]
    pub fn values<T: Scalar>(&self) -> Option<&[T]> {
        T::of_point(self)
    }

    /// Returns the type of the elements; `None` for tuples and dicts.
    #[must_use]
    pub const fn dtype(&self) -> Option<DType> {
        match self {
            Self::F32(_) => Some(DType::F32),
            Self::F64(_) => Some(DType::F64),
            Self::I32(_) => Some(DType::I32),
            Self::I64(_) => Some(DType::I64),
            Self::U8(_) => Some(DType::U8),
            Self::Bool(_) => Some(DType::Bool),
            Self::Tuple(_) | Self::Dict(_) => None,
        }
    }

    /// Converts an array of numbers to a type.
    pub(crate) fn cast<S: Scalar>(values: &[S], dtype: DType) -> Self {
        fn to<S: Scalar, T: Scalar>(values: &[S]) -> Point {
            T::into_point(values.iter().map(|x| T::from_f64(x.to_f64())).collect())
        }
        match dtype {
            DType::F32 => to::<S, f32>(values),
            DType::F64 => to::<S, f64>(values),
            DType::I32 => to::<S, i32>(values),
            DType::I64 => to::<S, i64>(values),
            DType::U8 => to::<S, u8>(values),
            DType::Bool => to::<S, bool>(values),
        }
    }

    /// Describes the point for messages: `3 values of float32`.
    pub(crate) fn describe(&self) -> String {
        let len = match self {
            Self::F32(values) => values.len(),
            Self::F64(values) => values.len(),
            Self::I32(values) => values.len(),
            Self::I64(values) => values.len(),
            Self::U8(values) => values.len(),
            Self::Bool(values) => values.len(),
            Self::Tuple(parts) => return format!("a tuple of {}", parts.len()),
            Self::Dict(parts) => return format!("a dict of {}", parts.len()),
        };
        format!("{len} values of {}", self.dtype().map_or("", DType::name))
    }
}

/// Converts one integer to a point of a discrete space.
impl From<i64> for Point {
    fn from(value: i64) -> Self {
        Self::I64(vec![value])
    }
}

/// Calls `$body` with `$values` bound to the elements of an array point; `$compound` for tuples and dicts.
macro_rules! with_values {
    ($point:expr, $values:ident => $body:expr, else $compound:expr) => {
        match $point {
            $crate::space::Point::F32($values) => $body,
            $crate::space::Point::F64($values) => $body,
            $crate::space::Point::I32($values) => $body,
            $crate::space::Point::I64($values) => $body,
            $crate::space::Point::U8($values) => $body,
            $crate::space::Point::Bool($values) => $body,
            $crate::space::Point::Tuple(_) | $crate::space::Point::Dict(_) => $compound,
        }
    };
}
pub(crate) use with_values;

/// Why rows or points do not match a space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
