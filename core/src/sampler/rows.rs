//! Functions over rows of any element type.

use crate::{
    column::{RowShape, RowsRef, by_type},
    prelude::*,
    space::{PointError, Space},
};

/// Returns the first row that is not in the space, with the beginning of its values. Rows have `width` elements.
///
/// # Errors
/// [`PointError`] for rows whose type does not fit the space.
pub(super) fn first_outside(
    space: &Space,
    rows: RowsRef<'_>,
    width: usize,
) -> Result<Option<(usize, String)>, PointError> {
    by_type!(RowsRef, rows, rows => Ok(space
        .first_outside(rows)?
        .map(|row| (row, format!("{:?}", &rows[row * width..][..width.min(8)])))))
}

/// Returns the expected shape of a row, or a vector if the row has another length.
pub(super) fn fitting(shape: RowShape, elements: usize) -> RowShape {
    if shape.elements() == elements { shape } else { RowShape::vector(u32::try_from(elements).unwrap_or(u32::MAX)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_another_length_are_vectors() {
        assert_eq!(fitting(RowShape::SCALAR, 1), RowShape::SCALAR);
        assert_eq!(fitting(RowShape::SCALAR, 3), RowShape::vector(3));
    }
}
