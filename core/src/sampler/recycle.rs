//! Buffers that come back.

use crate::{
    column::{ColumnData, Element, RowShape},
    prelude::*,
};

/// Makes columns, and takes a column's buffer back as soon as nobody else holds it: a consumer that drops its batches
/// before the next fragment makes sampling free of allocation.
#[derive(Debug)]
pub(super) struct Recycler<T> {
    last: Option<Arc<Vec<T>>>,
}

impl<T> Default for Recycler<T> {
    fn default() -> Self {
        Self { last: None }
    }
}

impl<T: Element> Recycler<T> {
    /// A column with the rows that `fill` appends. `fill` must append whole rows.
    pub(super) fn column(&mut self, shape: RowShape, fill: impl FnOnce(&mut Vec<T>)) -> ColumnData<T> {
        let mut shared = self.last.take().unwrap_or_default();
        match Arc::get_mut(&mut shared) {
            Some(values) => {
                values.clear();
                fill(values);
            }
            None => {
                let mut values = Vec::with_capacity(shared.len());
                fill(&mut values);
                shared = Arc::new(values);
            }
        }
        self.last = Some(shared.clone());
        ColumnData::whole_rows(shared, shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_column_gives_its_buffer_back() {
        let mut recycler = Recycler::default();
        let first = recycler.column(RowShape::SCALAR, |values| values.extend([1.0f32, 2.0]));
        let kept = first.values().as_ptr();
        let second = recycler.column(RowShape::SCALAR, |values| values.extend([3.0, 4.0]));
        assert_ne!(second.values().as_ptr(), kept);
        assert_eq!(first.values(), [1.0, 2.0]);
        let freed = second.values().as_ptr();
        drop(second);
        let third = recycler.column(RowShape::SCALAR, |values| values.extend([5.0, 6.0]));
        assert_eq!((third.values().as_ptr(), third.values()), (freed, &[5.0, 6.0][..]));
    }
}
