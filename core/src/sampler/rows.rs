//! Rows of any element type, in reused memory.

use core::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{
    action::ActionTransform,
    column::{Column, ColumnData, DType, Element, Recycler, RowShape},
    env::{RowElement, RowsMut, RowsRef},
    prelude::*,
    preprocess::{PreprocessError, Preprocessor},
    space::{PointError, Scalar, Space},
    view::{Row, Values},
};

macro_rules! buffers {
    ($($variant:ident($ty:ty)),+ $(,)?) => {
        /// A buffer of elements, of one type at a time.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        pub(crate) enum RowBuffer {
            $($variant(Vec<$ty>)),+
        }

        impl RowBuffer {
            /// Clears it, and sets the type of the elements that follow.
            pub(crate) fn start(&mut self, dtype: DType) {
                match (&mut *self, dtype) {
                    $((Self::$variant(values), DType::$variant) => values.clear(),)+
                    $((_, DType::$variant) => *self = Self::$variant(Vec::new())),+
                }
            }

            /// Appends elements of the type that it was started with. Returns false for those of another one.
            pub(crate) fn push(&mut self, rows: RowsRef<'_>) -> bool {
                match (self, rows) {
                    $((Self::$variant(values), RowsRef::$variant(more)) => values.extend_from_slice(more),)+
                    _ => return false,
                }
                true
            }

            /// Resizes it to this many elements, new ones zero.
            pub(crate) fn resize(&mut self, elements: usize) {
                match self { $(Self::$variant(values) => values.resize(elements, <$ty>::default())),+ }
            }

            /// Moves the elements from `start` on to the front.
            pub(super) fn move_to_front(&mut self, start: usize) {
                match self { $(Self::$variant(values) => values.copy_within(start.., 0)),+ }
            }

            /// Sets all elements to zero.
            pub(super) fn zero(&mut self) {
                match self { $(Self::$variant(values) => values.fill(<$ty>::default())),+ }
            }

            pub(crate) fn all(&self) -> RowsRef<'_> {
                match self { $(Self::$variant(values) => RowElement::erase_rows(values)),+ }
            }

            pub(crate) fn all_mut(&mut self) -> RowsMut<'_> {
                match self { $(Self::$variant(values) => RowElement::erase_rows_mut(values)),+ }
            }

            /// Returns a range of the elements, empty if out of range.
            pub(crate) fn part(&self, range: Range<usize>) -> RowsRef<'_> {
                self.all().part(range)
            }

            /// Returns a mutable range of the elements, empty if out of range.
            pub(super) fn part_mut(&mut self, range: Range<usize>) -> RowsMut<'_> {
                match self {
                    $(Self::$variant(values) => RowElement::erase_rows_mut(values.get_mut(range).unwrap_or_default())),+
                }
            }

            /// See [`first_outside`].
            pub(super) fn first_outside(
                &self,
                space: &Space,
                width: usize,
            ) -> Result<Option<(usize, String)>, PointError> {
                match self { $(Self::$variant(values) => first_outside(space, values, width)),+ }
            }

            /// See [`lane_major`].
            pub(super) fn lane_major(&self, to: &mut Recycler, lanes: usize, steps: usize, shape: RowShape) -> Column {
                match self { $(Self::$variant(values) => lane_major(to, values, lanes, steps, shape)),+ }
            }

            /// Transforms actions for the environment.
            pub(crate) fn transform(&mut self, transform: ActionTransform, space: &Space) -> Result<(), PointError> {
                match self { $(Self::$variant(values) => transform.apply_rows(space, values)),+ }
            }
        }

        /// Preprocesses rows, one after the other, into rows of `out`.
        pub(super) fn preprocess(
            preprocessor: &Preprocessor,
            rows: RowsRef<'_>,
            out: &mut [f32],
        ) -> Result<(), PreprocessError> {
            let (from, to) = (preprocessor.space().shape().elements().max(1), preprocessor.output_len().max(1));
            match rows {
                $(RowsRef::$variant(rows) => rows
                    .chunks_exact(from)
                    .zip(out.chunks_exact_mut(to))
                    .try_for_each(|(row, out)| preprocessor.transform_row(row, out)),)+
            }
        }

        /// Converts elements to one row for collectors.
        pub(super) fn view_row(rows: RowsRef<'_>, shape: RowShape) -> Row<'_> {
            let values = match rows { $(RowsRef::$variant(values) => Values::$variant(values)),+ };
            Row { values, shape }
        }

        /// Converts a collector's row to elements.
        pub(super) fn elements(row: Row<'_>) -> RowsRef<'_> {
            match row.values { $(Values::$variant(values) => RowsRef::$variant(values)),+ }
        }
    };
}

buffers!(F32(f32), F64(f64), I32(i32), I64(i64), U8(u8), Bool(bool));

impl Default for RowBuffer {
    fn default() -> Self {
        Self::F32(Vec::new())
    }
}

/// Transposes a column of rows from step, lane, element to lane, step, element.
pub(super) fn lane_major<T: Element>(
    to: &mut Recycler,
    from: &[T],
    lanes: usize,
    steps: usize,
    shape: RowShape,
) -> Column {
    let width = shape.elements();
    let data: ColumnData<T> = to.column(shape, lanes * steps, |values| {
        for lane in 0..lanes {
            for step in 0..steps {
                values.extend_from_slice(&from[(step * lanes + lane) * width..][..width]);
            }
        }
    });
    Column::from_typed(data)
}

/// Returns the first row that is not in the space, with the beginning of its values. Rows have `width` elements.
///
/// # Errors
/// [`PointError`] for rows whose type does not fit the space.
pub(super) fn first_outside<T: Scalar>(
    space: &Space,
    rows: &[T],
    width: usize,
) -> Result<Option<(usize, String)>, PointError> {
    let outside = space.first_outside(rows)?;
    Ok(outside.map(|row| (row, format!("{:?}", &rows[row * width..][..width.min(8)]))))
}

impl RowBuffer {
    /// Replaces the content by these elements.
    pub(crate) fn set(&mut self, rows: RowsRef<'_>) {
        self.start(rows.dtype());
        self.push(rows);
    }

    pub(crate) fn len(&self) -> usize {
        self.all().len()
    }
}

/// Returns the expected shape of a row, or a vector if the row has another length.
pub(super) fn fitting(shape: RowShape, elements: usize) -> RowShape {
    if shape.elements() == elements { shape } else { RowShape::vector(u32::try_from(elements).unwrap_or(u32::MAX)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_changes_its_type_only_when_it_starts() {
        let mut buffer = RowBuffer::default();
        assert!(buffer.push(RowsRef::F32(&[1.0, 2.0])) && !buffer.push(RowsRef::I64(&[3])));
        assert_eq!(buffer.len(), 2);
        buffer.set(RowsRef::I64(&[3, 4]));
        let (RowsRef::I64(part), RowsRef::I64(nothing)) = (buffer.part(1..2), buffer.part(1..9)) else {
            panic!("not int64")
        };
        assert_eq!((part, nothing.len()), (&[4][..], 0));
        buffer.zero();
        assert_eq!(view_row(buffer.all(), RowShape::vector(2)), Row::from(&[0i64, 0]));
        assert_eq!(fitting(RowShape::SCALAR, 1), RowShape::SCALAR);
        assert_eq!(fitting(RowShape::SCALAR, 3), RowShape::vector(3));
    }
}
