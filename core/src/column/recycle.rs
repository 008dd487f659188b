//! Reuses the buffers of columns.

use super::{Column, ColumnData, Element, RowShape};
use crate::prelude::*;

/// Creates columns, and reuses a column's buffer once all other references to it are dropped: a consumer that drops its
/// batches before the next ones are created saves allocations and page faults.
#[derive(Debug, Default)]
pub(crate) struct Recycler {
    last: Option<Column>,
}

impl Recycler {
    /// Returns an empty buffer: the last column's if it is not shared.
    pub(crate) fn buffer<T: Element>(&mut self) -> Vec<T> {
        let Some(last) = self.last.take() else { return Vec::new() };
        let Ok(shared) = last.typed::<T>().map(|data| data.shared().clone()) else { return Vec::new() };
        // From here on, only other references count.
        drop(last);
        match Arc::try_unwrap(shared) {
            Ok(mut values) => {
                values.clear();
                values
            }
            Err(shared) => Vec::with_capacity(shared.len()),
        }
    }

    /// Creates a column from a buffer of whole rows, and keeps it for reuse.
    pub(crate) fn freeze<T: Element>(&mut self, values: Vec<T>, shape: RowShape) -> ColumnData<T> {
        let column = ColumnData::whole_rows(Arc::new(values), shape);
        self.last = Some(Column::from_typed(column.clone()));
        column
    }

    /// Creates a column of the `rows` rows that `fill` appends. `fill` must append whole rows.
    pub(crate) fn column<T: Element>(
        &mut self,
        shape: RowShape,
        rows: usize,
        fill: impl FnOnce(&mut Vec<T>),
    ) -> ColumnData<T> {
        let mut values = self.buffer();
        values.reserve(rows * shape.elements());
        fill(&mut values);
        self.freeze(values, shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scalars<T: Element>(recycler: &mut Recycler, values: &[T]) -> ColumnData<T> {
        recycler.column(RowShape::SCALAR, values.len(), |buffer| buffer.extend_from_slice(values))
    }

    #[test]
    fn a_dropped_column_gives_its_buffer_back() {
        let mut recycler = Recycler::default();
        let first = scalars(&mut recycler, &[1.0f32, 2.0]);
        let kept = first.values().as_ptr();
        let second = scalars(&mut recycler, &[3.0f32, 4.0]);
        assert_ne!(second.values().as_ptr(), kept);
        assert_eq!(first.values(), [1.0, 2.0]);
        let freed = second.values().as_ptr();
        drop(second);
        let third = scalars(&mut recycler, &[5.0f32, 6.0]);
        assert_eq!((third.values().as_ptr(), third.values()), (freed, &[5.0, 6.0][..]));
        assert_eq!(scalars(&mut recycler, &[7i64]).values(), [7]);
    }
}
