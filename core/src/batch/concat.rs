//! Joins batches.

use super::{BatchError, SampleBatch, sample_batch::Layout};
use crate::{
    column::{Column, ColumnData, ColumnName},
    prelude::*,
};

impl SampleBatch {
    /// Joins batches that have the same columns, in order. Empty batches are ignored. If no other remains, the result
    /// is empty; if one remains, the result shares its buffers.
    ///
    /// Rows are appended; trajectories of time-major batches are joined along the second dimension. `seq_lens` are appended,
    /// `max_seq_len` is the largest, and `num_grad_updates` is the mean over the batches that have one, weighted by steps.
    /// The result is a training batch if all batches are.
    ///
    /// # Errors
    /// [`BatchError::Differ`] when one is time-major, padded or has sequences and another does not, or when padded ones
    /// differ in `max_seq_len`; [`BatchError::MissingColumn`] when the columns differ, [`BatchError::Column`] when their
    /// types or row shapes do.
    #[doc(alias = "concat_samples")]
    pub fn concat<'a>(batches: impl IntoIterator<Item = &'a Self>) -> Result<Self, BatchError> {
        let full: Vec<&Self> = batches.into_iter().filter(|batch| !batch.is_empty()).collect();
        let Some((first, others)) = full.split_first() else { return Ok(Self::new()) };
        if others.is_empty() {
            return Ok((*first).clone());
        }
        others.iter().try_for_each(|other| first.check_alike(other))?;

        let mut joined = first.flags(0);
        joined.is_training = full.iter().all(|batch| batch.is_training);
        joined.max_seq_len = full.iter().filter_map(|batch| batch.max_seq_len).max();
        joined.num_grad_updates = mean_grad_updates(&full);
        joined.columns.reserve_exact(first.columns.len());
        let mut parts: Vec<&Column> = Vec::with_capacity(full.len());
        for (place, (name, _)) in first.columns.iter().enumerate() {
            parts.clear();
            for batch in &full {
                parts.push(batch.column_near(place, name)?);
            }
            let layout = first.layout(name);
            let column = match layout {
                Layout::Step if first.time_major => Column::concat_lanes(&parts),
                _ => Column::concat(&parts),
            };
            if let Some(column) = column.map_err(BatchError::of_column(name))? {
                joined.push(name.clone(), column, layout);
            }
        }
        if first.seq_lens.is_some() {
            let lens: Vec<&[i32]> = full.iter().filter_map(|batch| batch.seq_lens()).collect();
            joined.seq_lens = Some(ColumnData::scalars(lens.concat()));
            joined = joined.counted()?;
        }
        Ok(joined)
    }

    /// Joins this batch and another, in this order.
    ///
    /// # Errors
    /// As [`concat`](Self::concat).
    #[doc(alias = "concat")]
    pub fn concat_with(&self, other: &Self) -> Result<Self, BatchError> {
        Self::concat([self, other])
    }

    fn check_alike(&self, other: &Self) -> Result<(), BatchError> {
        let differ = |what| Err(BatchError::Differ(what));
        if self.time_major != other.time_major {
            return differ("time_major");
        }
        if self.zero_padded != other.zero_padded {
            return differ("zero_padded");
        }
        if self.seq_lens.is_some() != other.seq_lens.is_some() {
            return differ("having seq_lens");
        }
        if self.max_seq_len.is_some() != other.max_seq_len.is_some() {
            return differ("having max_seq_len");
        }
        // The sequences of a time-major batch are its second dimension; each has as many rows as the longest sequence may
        // have.
        let rows_are_padded = self.zero_padded || self.time_major && self.seq_lens.is_some();
        if rows_are_padded && self.max_seq_len != other.max_seq_len {
            return differ("max_seq_len");
        }
        // If the other batch has no more columns than this one, an extra column means that another one is missing, which the
        // loop below finds.
        if other.columns.len() > self.columns.len()
            && let Some((name, _)) = other.iter().find(|(name, _)| self.column(name).is_none())
        {
            return Err(BatchError::MissingColumn(name.to_string()));
        }
        Ok(())
    }

    /// Returns a column by name; tries this position first.
    fn column_near(&self, place: usize, name: &ColumnName) -> Result<&Column, BatchError> {
        match self.columns.get(place) {
            Some((n, column)) if n == name => Ok(column),
            _ => self.column(name).ok_or_else(|| BatchError::MissingColumn(name.to_string())),
        }
    }
}

/// Returns the mean over the batches that have a number, weighted by steps.
fn mean_grad_updates(batches: &[&SampleBatch]) -> Option<f64> {
    let counted = batches.iter().filter_map(|batch| Some((batch.num_grad_updates?, batch.len() as f64)));
    let (sum, weight) = counted.fold((0.0, 0.0), |(sum, all), (updates, steps)| (sum + updates * steps, all + steps));
    (weight > 0.0).then(|| sum / weight)
}

#[cfg(test)]
mod tests {
    use super::{super::test_support::*, *};
    use crate::column::RowShape;

    fn padded(max_seq_len: usize) -> SampleBatch {
        sequences(&[2, 3, 1]).right_zero_pad(max_seq_len).unwrap()
    }

    fn updates(rows: usize, updates: Option<f64>) -> SampleBatch {
        let mut batch = super::super::test_support::rows(&vec![0; rows]);
        batch.set_num_grad_updates(updates);
        batch
    }

    #[test]
    fn empty_batches_are_ignored() {
        assert_eq!(SampleBatch::concat([]), Ok(SampleBatch::new()));
        assert_eq!(SampleBatch::concat([&SampleBatch::new(), &rows(&[0, 1])]), Ok(rows(&[0, 1])));
    }

    #[test]
    fn columns_must_be_the_same() {
        let with_b = rows(&[1]).with(B, ColumnData::scalars(vec![2])).unwrap();
        let missing = Err(BatchError::MissingColumn("b".into()));
        assert_eq!(rows(&[1]).concat_with(&with_b), missing);
        assert_eq!(with_b.concat_with(&rows(&[1])), missing);
        let mut wide = SampleBatch::new();
        wide.insert("a", ColumnData::new(vec![1i64, 2], RowShape::vector(2)).unwrap()).unwrap();
        assert!(matches!(rows(&[1]).concat_with(&wide), Err(BatchError::Column { .. })));
    }

    #[test]
    fn sequences_are_appended() {
        let joined = sequences(&[1, 2]).concat_with(&sequences(&[3])).unwrap();
        assert_eq!((joined.seq_lens(), joined.max_seq_len()), (Some(&[1, 2, 3][..]), Some(3)));
        assert_eq!(joined.concat_with(&rows(&[7, 8])), Err(BatchError::Differ("having seq_lens")));
        let joined = padded(4).concat_with(&padded(4)).unwrap();
        assert_eq!((joined.len(), a(&joined).len(), joined.zero_padded()), (12, 24, true));
        assert_eq!(padded(4).concat_with(&padded(5)), Err(BatchError::Differ("max_seq_len")));
        assert_eq!(padded(4).concat_with(&sequences(&[1])), Err(BatchError::Differ("zero_padded")));
    }

    #[test]
    fn num_grad_updates_is_a_weighted_mean() {
        let mean = |a, b| updates(a, Some(4.0)).concat_with(&updates(b, Some(8.0))).unwrap().num_grad_updates();
        assert_eq!((mean(50, 50), mean(1, 3)), (Some(6.0), Some(7.0)));
        assert_eq!(updates(1, None).concat_with(&updates(9, Some(2.0))).unwrap().num_grad_updates(), Some(2.0));
        assert_eq!(updates(1, None).concat_with(&updates(9, None)).unwrap().num_grad_updates(), None);
    }

    #[test]
    fn time_major_trajectories_stand_side_by_side() {
        let (left, right) = (time_major(2, &[0, 1, 2, 3]), time_major(3, &[0, 1, 2, 3, 4, 5]));
        let joined = left.concat_with(&right).unwrap();
        assert_eq!(joined, time_major(5, &[0, 1, 0, 1, 2, 2, 3, 3, 4, 5]));
        assert_eq!((joined.len(), joined.rows), (10, 2));
        assert_eq!(left.concat_with(&rows(&[1])), Err(BatchError::Differ("time_major")));
        let longer = time_major(1, &[1, 2, 3]);
        let error = left.concat_with(&longer).unwrap_err();
        assert_eq!(error.to_string(), "column 'a': cannot join rows 2 x int64(2) with rows 3 x int64(1)");
    }
}
