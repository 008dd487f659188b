//! Defines the shape of one row.

use core::{fmt, ops::Range};

use serde::{Deserialize, Serialize};

use super::ColumnError;
use crate::prelude::*;

/// Returns the part of a range that is within `0..len`.
pub(crate) fn clamp(range: Range<usize>, len: usize) -> Range<usize> {
    let end = range.end.min(len);
    range.start.min(end)..end
}

/// Shape of one row of a column; a scalar has no dimensions. Needs no allocation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "Vec<u32>", try_from = "Vec<u32>")]
pub struct RowShape {
    dims: [u32; Self::MAX_DIMS],
    len: u8,
}

impl RowShape {
    /// Maximum number of dimensions of a row.
    pub const MAX_DIMS: usize = 6;

    /// The shape of a column with one number per row.
    pub const SCALAR: Self = Self { dims: [0; Self::MAX_DIMS], len: 0 };

    /// Returns the shape of a vector of `n` elements.
    #[must_use]
    pub const fn vector(n: u32) -> Self {
        let mut dims = [0; Self::MAX_DIMS];
        dims[0] = n;
        Self { dims, len: 1 }
    }

    /// Creates a shape.
    ///
    /// # Errors
    /// [`ColumnError::BadShape`] for too many dimensions or more than 2^31 elements.
    pub fn new(dims: &[u32]) -> Result<Self, ColumnError> {
        let fits = dims.len() <= Self::MAX_DIMS
            && dims.iter().try_fold(1u32, |n, &d| n.checked_mul(d)).is_some_and(|n| n <= 1 << 31);
        if !fits {
            return Err(ColumnError::BadShape);
        }
        let mut shape = Self::SCALAR;
        shape.dims[..dims.len()].copy_from_slice(dims);
        shape.len = dims.len() as u8;
        Ok(shape)
    }

    /// Returns the dimensions, outermost first.
    #[must_use]
    pub fn dims(&self) -> &[u32] {
        &self.dims[..self.len as usize]
    }

    /// Returns the same shape with another first dimension.
    pub(crate) fn with_first(self, first: usize) -> Result<Self, ColumnError> {
        let mut dims = self.dims;
        let first = u32::try_from(first).map_err(|_| ColumnError::BadShape)?;
        *dims.first_mut().ok_or(ColumnError::BadShape)? = first;
        dims.get(..usize::from(self.len)).map_or(Err(ColumnError::BadShape), Self::new)
    }

    /// Returns the number of elements in one row: the product of the dimensions, 1 for a scalar.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.dims().iter().map(|&d| d as usize).product()
    }
}

impl From<RowShape> for Vec<u32> {
    fn from(shape: RowShape) -> Self {
        shape.dims().to_vec()
    }
}

impl TryFrom<Vec<u32>> for RowShape {
    type Error = ColumnError;

    fn try_from(dims: Vec<u32>) -> Result<Self, ColumnError> {
        Self::new(&dims)
    }
}

impl fmt::Display for RowShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "(")?;
        for (i, dim) in self.dims().iter().enumerate() {
            write!(f, "{}{dim}", if i > 0 { ", " } else { "" })?;
        }
        write!(f, ")")
    }
}

impl fmt::Debug for RowShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
