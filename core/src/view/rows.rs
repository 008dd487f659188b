//! Borrows one row of any element type.

use crate::column::{Column, ColumnError, DType, RowShape, RowsRef};

/// One row of a column, borrowed: a reference to a number for a scalar, a slice or an array for a vector,
/// [`shaped`](Self::shaped) for other shapes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ViewRow<'a> {
    pub(crate) values: RowsRef<'a>,
    pub(crate) shape: RowShape,
}

impl<'a> ViewRow<'a> {
    /// Creates a row of this shape.
    ///
    /// # Errors
    /// [`ColumnError::RaggedRows`] if the number of values differs from the shape's number of elements.
    pub fn shaped(values: impl Into<Self>, shape: RowShape) -> Result<Self, ColumnError> {
        let row = values.into();
        if row.values.len() != shape.elements() {
            return Err(ColumnError::RaggedRows { values: row.values.len(), shape });
        }
        Ok(Self { shape, ..row })
    }

    /// Returns a row of a column; `None` if the row does not exist or the elements are not numbers.
    #[must_use]
    pub fn of(column: &'a Column, row: usize) -> Option<Self> {
        Some(Self { values: column.row(row)?, shape: column.shape() })
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.values.dtype()
    }

    /// Returns the shape of the row.
    #[must_use]
    pub fn shape(&self) -> RowShape {
        self.shape
    }
}

macro_rules! rows_of {
    ($($variant:ident($ty:ty)),+) => {
        $(
            impl<'a> From<&'a $ty> for ViewRow<'a> {
                fn from(value: &'a $ty) -> Self {
                    Self { values: RowsRef::$variant(core::slice::from_ref(value)), shape: RowShape::SCALAR }
                }
            }

            impl<'a> From<&'a [$ty]> for ViewRow<'a> {
                fn from(values: &'a [$ty]) -> Self {
                    let shape = RowShape::vector(u32::try_from(values.len()).unwrap_or(u32::MAX));
                    Self { values: RowsRef::$variant(values), shape }
                }
            }

            impl<'a, const N: usize> From<&'a [$ty; N]> for ViewRow<'a> {
                fn from(values: &'a [$ty; N]) -> Self {
                    Self::from(values.as_slice())
                }
            }
        )+
    };
}

rows_of!(F32(f32), F64(f64), I32(i32), I64(i64), U8(u8), Bool(bool));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{column::ColumnData, prelude::*};

    #[test]
    fn rows_have_the_shape_they_are_given() {
        assert_eq!(ViewRow::from(&1.0f32).shape(), RowShape::SCALAR);
        assert_eq!(ViewRow::from(&[1u8, 2]).shape(), RowShape::vector(2));
        let square = RowShape::new(&[2, 2]).unwrap();
        let row = ViewRow::shaped(&[true, false, true, false], square).unwrap();
        assert_eq!((row.shape(), row.dtype()), (square, DType::Bool));
        let error = ViewRow::shaped(&[1i32, 2, 3], square).unwrap_err();
        assert_eq!(error.to_string(), "3 values do not make whole rows of shape (2, 2)");
    }

    #[test]
    fn rows_of_columns() {
        let column = Column::from(ColumnData::new(vec![1i64, 2, 3, 4], RowShape::vector(2)).unwrap());
        assert_eq!(ViewRow::of(&column, 1), Some(ViewRow::from(&[3i64, 4])));
        assert_eq!(ViewRow::of(&column, 2), None);
        assert_eq!(ViewRow::of(&column, usize::MAX), None);
    }
}
