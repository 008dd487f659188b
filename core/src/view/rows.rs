//! Handles rows of any element type: borrowed for a call, or collected into a column.

use core::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    column::{Column, ColumnData, ColumnError, DType, RowShape},
    prelude::*,
};

/// One row of a column, borrowed: a reference to a number for a scalar, a slice or an array for a vector,
/// [`shaped`](Self::shaped) for other shapes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<'a> {
    pub(crate) values: Values<'a>,
    pub(crate) shape: RowShape,
}

impl<'a> Row<'a> {
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
        let (shape, first) = (column.shape(), row.checked_mul(column.shape().elements())?);
        let values = Values::of(column)?.get(first..first.checked_add(shape.elements())?)?;
        Some(Self { values, shape })
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

macro_rules! values {
    ($($variant:ident($ty:ty)),+ $(,)?) => {
        /// Elements of one type.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub(crate) enum Values<'a> {
            $($variant(&'a [$ty])),+
        }

        /// A growing buffer of elements of one type.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub(crate) enum Buffer {
            $($variant(Vec<$ty>)),+
        }

        $(
            impl<'a> From<&'a $ty> for Row<'a> {
                fn from(value: &'a $ty) -> Self {
                    Self { values: Values::$variant(core::slice::from_ref(value)), shape: RowShape::SCALAR }
                }
            }

            impl<'a> From<&'a [$ty]> for Row<'a> {
                fn from(values: &'a [$ty]) -> Self {
                    let shape = RowShape::vector(u32::try_from(values.len()).unwrap_or(u32::MAX));
                    Self { values: Values::$variant(values), shape }
                }
            }

            impl<'a, const N: usize> From<&'a [$ty; N]> for Row<'a> {
                fn from(values: &'a [$ty; N]) -> Self {
                    Self::from(values.as_slice())
                }
            }
        )+

        impl<'a> Values<'a> {
            /// Returns all elements of a column; `None` if they are not numbers.
            pub(crate) fn of(column: &'a Column) -> Option<Self> {
                None$(.or_else(|| column.typed::<$ty>().ok().map(|data| Self::$variant(data.values()))))+
            }

            pub(crate) fn dtype(&self) -> DType {
                match self { $(Self::$variant(_) => DType::$variant),+ }
            }

            pub(crate) fn len(&self) -> usize {
                match self { $(Self::$variant(values) => values.len()),+ }
            }

            pub(crate) fn get(&self, range: Range<usize>) -> Option<Self> {
                Some(match self { $(Self::$variant(values) => Self::$variant(values.get(range)?)),+ })
            }
        }

        impl Buffer {
            /// Creates an empty buffer for elements of the same type as these.
            pub(crate) fn like(values: Values<'_>) -> Self {
                match values { $(Values::$variant(_) => Self::$variant(Vec::new())),+ }
            }

            pub(crate) fn values(&self) -> Values<'_> {
                match self { $(Self::$variant(values) => Values::$variant(values)),+ }
            }

            #[cfg(test)]
            pub(super) fn capacity(&self) -> usize {
                match self { $(Self::$variant(values) => values.capacity()),+ }
            }

            /// Allocates memory for this number of additional elements. Returns false if the allocation fails.
            pub(crate) fn try_reserve(&mut self, elements: usize) -> bool {
                match self { $(Self::$variant(values) => values.try_reserve_exact(elements).is_ok()),+ }
            }

            /// Appends elements of the same type; ignores those of another one.
            pub(crate) fn push(&mut self, values: Values<'_>) {
                match (self, values) {
                    $((Self::$variant(all), Values::$variant(more)) => all.extend_from_slice(more),)+
                    _ => debug_assert!(false, "elements of another type"),
                }
            }

            pub(crate) fn push_zeros(&mut self, elements: usize) {
                match self { $(Self::$variant(values) => values.resize(values.len() + elements, <$ty>::default())),+ }
            }

            /// Removes elements at the front and keeps the memory.
            pub(crate) fn drop_front(&mut self, elements: usize) {
                match self { $(Self::$variant(values) => drop(values.drain(..elements.min(values.len())))),+ }
            }

            pub(crate) fn into_column(self, shape: RowShape) -> Result<Column, ColumnError> {
                Ok(match self { $(Self::$variant(values) => ColumnData::new(values, shape)?.into()),+ })
            }
        }

        /// Creates an empty buffer for elements of a type.
        pub(crate) fn buffer_of(dtype: DType) -> Option<Buffer> {
            None$(.or_else(|| (dtype == DType::$variant).then(|| Buffer::$variant(Vec::new()))))+
        }
    };
}

values!(F32(f32), F64(f64), I32(i32), I64(i64), U8(u8), Bool(bool));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_shape_they_are_given() {
        assert_eq!(Row::from(&1.0f32).shape(), RowShape::SCALAR);
        assert_eq!(Row::from(&[1u8, 2]).shape(), RowShape::vector(2));
        let square = RowShape::new(&[2, 2]).unwrap();
        let row = Row::shaped(&[true, false, true, false], square).unwrap();
        assert_eq!((row.shape(), row.dtype()), (square, DType::Bool));
        let error = Row::shaped(&[1i32, 2, 3], square).unwrap_err();
        assert_eq!(error.to_string(), "3 values do not make whole rows of shape (2, 2)");
    }

    #[test]
    fn rows_of_columns() {
        let column = Column::from(ColumnData::new(vec![1i64, 2, 3, 4], RowShape::vector(2)).unwrap());
        assert_eq!(Row::of(&column, 1), Some(Row::from(&[3i64, 4])));
        assert_eq!(Row::of(&column, 2), None);
        assert_eq!(Row::of(&column, usize::MAX), None);
    }

    #[test]
    fn buffers_become_columns_of_their_type() {
        for dtype in [DType::F32, DType::F64, DType::I32, DType::I64, DType::U8, DType::Bool] {
            let mut buffer = buffer_of(dtype).unwrap();
            buffer.push_zeros(4);
            buffer.drop_front(2);
            let column = buffer.into_column(RowShape::vector(2)).unwrap();
            assert_eq!((column.dtype(), column.rows()), (Some(dtype), 1));
        }
    }
}
