//! Splits a batch into consecutive slices.

use super::{BatchError, SampleBatch};

/// The unit by which a batch is split into consecutive slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceBy {
    /// Slices of this number of steps; the last one may be shorter.
    Size(usize),
    /// This number of slices; the later ones get the remainder: 10 steps in 3 slices are 3, 3 and 4.
    NumSlices(usize),
}

/// Iterates over consecutive slices of a batch. See [`SampleBatch::timeslices`].
#[derive(Clone, Debug)]
pub struct Timeslices<'a> {
    batch: &'a SampleBatch,
    by: SliceBy,
    start: usize,
    left: usize,
}

impl SampleBatch {
    /// Splits the batch into consecutive slices by [`index_slice`](Self::index_slice); joined again, they give the batch.
    /// With more slices than steps, the first ones are empty. A sequence that crosses a cut goes into the later slice.
    ///
    /// # Errors
    /// [`BatchError::ZeroSlices`] for a size of 0, or for no slices; [`BatchError::TooManySlices`] for more than the batch
    /// has steps, and more than 65,536.
    pub fn timeslices(&self, by: SliceBy) -> Result<Timeslices<'_>, BatchError> {
        if matches!(by, SliceBy::Size(0) | SliceBy::NumSlices(0)) {
            return Err(BatchError::ZeroSlices);
        }
        if let SliceBy::NumSlices(slices) = by
            && slices > self.positions().max(1 << 16)
        {
            return Err(BatchError::TooManySlices { slices, steps: self.positions() });
        }
        Ok(Timeslices { batch: self, by, start: 0, left: self.positions() })
    }
}

impl Iterator for Timeslices<'_> {
    type Item = SampleBatch;

    fn next(&mut self) -> Option<SampleBatch> {
        if self.len() == 0 {
            return None;
        }
        let len = match &mut self.by {
            SliceBy::Size(size) => self.left.min(*size),
            SliceBy::NumSlices(slices) => {
                let len = self.left / *slices;
                *slices -= 1;
                len
            }
        };
        let slice = self.batch.index_slice(self.start..self.start + len);
        (self.start, self.left) = (self.start + len, self.left - len);
        Some(slice)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let slices = match self.by {
            SliceBy::Size(size) => self.left.div_ceil(size),
            SliceBy::NumSlices(slices) => slices,
        };
        (slices, Some(slices))
    }
}

impl ExactSizeIterator for Timeslices<'_> {}

#[cfg(test)]
mod tests {
    use super::{
        super::test_support::{a, rows, sequences},
        *,
    };
    use crate::prelude::*;

    fn cut(batch: &SampleBatch, by: SliceBy) -> Vec<Vec<i64>> {
        batch.timeslices(by).unwrap().map(|slice| a(&slice)).collect()
    }

    #[test]
    fn the_last_slice_may_be_shorter() {
        let batch = rows(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(cut(&batch, SliceBy::Size(5)), [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]);
        assert_eq!(cut(&batch, SliceBy::Size(3)).last(), Some(&vec![9]));
        assert_eq!(cut(&batch, SliceBy::Size(usize::MAX)).len(), 1);
        assert_eq!(batch.timeslices(SliceBy::Size(0)).unwrap_err(), BatchError::ZeroSlices);
    }

    #[test]
    fn later_slices_get_the_remainder() {
        let batch = rows(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(cut(&batch, SliceBy::NumSlices(3)), [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8, 9]]);
        assert_eq!(cut(&rows(&[0, 1, 2]), SliceBy::NumSlices(5)), [vec![], vec![], vec![0], vec![1], vec![2]]);
        assert_eq!(batch.timeslices(SliceBy::NumSlices(1 << 16)).unwrap().len(), 1 << 16);
        let too_many = BatchError::TooManySlices { slices: usize::MAX, steps: 10 };
        assert_eq!(batch.timeslices(SliceBy::NumSlices(usize::MAX)).unwrap_err(), too_many);
        assert_eq!(batch.timeslices(SliceBy::NumSlices(0)).unwrap_err(), BatchError::ZeroSlices);
    }

    #[test]
    fn sequences_are_not_split() {
        assert_eq!(cut(&sequences(&[2, 3, 1]), SliceBy::Size(3)), [vec![1, 2], vec![3, 2, 3, 4]]);
    }
}
