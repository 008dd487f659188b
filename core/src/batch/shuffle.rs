//! Reorders rows.

use super::{BatchError, SampleBatch};
use crate::{column::ColumnName, prelude::*, rng::Rng};

impl SampleBatch {
    /// Shuffles the rows of all columns into one random order, in place where the buffers are not shared.
    ///
    /// # Errors
    /// [`BatchError::HasSequences`], [`BatchError::TimeMajor`]; [`BatchError::TooManyRows`] for 2^32 rows or more;
    /// [`BatchError::Column`] for damaged compressed rows from another source. On an error, the batch stays as it is.
    pub fn shuffle(&mut self, rng: &mut Rng) -> Result<(), BatchError> {
        self.check_rows_are_single("shuffle")?;
        let rows = u32::try_from(self.rows).map_err(|_| BatchError::TooManyRows(self.rows))?;
        let partners = rng.partners(rows);
        let pairs = || (1..rows as usize).rev().zip(partners.iter().map(|&row| row as usize));
        let mut order = Vec::new();
        let mut shuffled = Vec::with_capacity(self.columns.len());
        for (name, column) in &self.columns {
            // Swapping rows in place costs less than allocating new ones.
            if column.is_array() {
                continue;
            }
            if order.is_empty() {
                order = (0..rows).collect();
                pairs().for_each(|(a, b)| order.swap(a, b));
            }
            shuffled.push(column.gather_rows(&order).map_err(BatchError::of_column(name))?);
        }
        let mut shuffled = shuffled.into_iter();
        for (_, column) in &mut self.columns {
            if column.is_array() {
                column.swap_rows(pairs());
            } else if let Some(gathered) = shuffled.next() {
                *column = gathered;
            }
        }
        Ok(())
    }

    /// Returns these rows in this order; a row may occur more than once.
    ///
    /// # Errors
    /// [`BatchError::NoRow`], [`BatchError::HasSequences`], [`BatchError::TimeMajor`]; [`BatchError::Column`] for damaged
    /// compressed rows from another source.
    pub fn gather(&self, rows: &[u32]) -> Result<Self, BatchError> {
        self.check_rows_are_single("gather")?;
        if let Some(row) = rows.iter().copied().max().filter(|row| *row as usize >= self.rows) {
            return Err(BatchError::NoRow { row, rows: self.rows });
        }
        self.in_order(rows)
    }

    /// Returns the [`gather`](Self::gather)ed rows, which are known to exist.
    pub(super) fn in_order(&self, rows: &[u32]) -> Result<Self, BatchError> {
        let column = |(name, column): &(ColumnName, crate::column::Column)| {
            Ok((name.clone(), column.gather_rows(rows).map_err(BatchError::of_column(name))?))
        };
        let columns: Vec<_> = self.columns.iter().map(column).collect::<Result<_, BatchError>>()?;
        let rows = if columns.is_empty() { 0 } else { rows.len() };
        Ok(Self { columns, ..self.flags(rows) })
    }

    pub(super) fn check_rows_are_single(&self, operation: &'static str) -> Result<(), BatchError> {
        if self.seq_lens.is_some() {
            return Err(BatchError::HasSequences(operation));
        }
        if self.time_major {
            return Err(BatchError::TimeMajor(operation));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_support::*, *};
    use crate::{
        column::{BytesColumn, ColumnData, Granularity},
        ids::SlotId,
        rng::{Purpose, Streams},
    };

    fn rng() -> Rng {
        Streams::new(3, Purpose::Shuffle).at(SlotId(0), 0, 0, 0)
    }

    #[test]
    fn all_columns_get_the_same_order() {
        let values: Vec<i64> = (0..50).collect();
        let mut batch = rows(&values).with(B, ColumnData::scalars(values.clone())).unwrap();
        batch.insert("infos", BytesColumn::json(values.iter().map(|i| i.to_string())).unwrap()).unwrap();
        for (name, granularity) in [("c", Granularity::Bulk), ("d", Granularity::Rows)] {
            batch.insert(name, ints(&values).compress(granularity).unwrap()).unwrap();
        }
        batch.shuffle(&mut rng()).unwrap();
        batch.decompress_if_needed().unwrap();
        let shuffled = a(&batch);
        assert_ne!(shuffled, values);
        assert!(batch.iter().all(|(name, column)| name == "infos" || *column == ints(&shuffled)));
        let infos = batch.infos().unwrap();
        assert!((0..50).all(|row| infos.text(row) == Some(shuffled[row].to_string().as_str())));
        let mut sorted = shuffled;
        sorted.sort_unstable();
        assert_eq!(sorted, values);
    }

    #[test]
    fn rows_are_gathered() {
        assert_eq!(a(&rows(&[5, 6, 7]).gather(&[2, 0, 2]).unwrap()), [7, 5, 7]);
        assert_eq!(rows(&[5]).gather(&[1]), Err(BatchError::NoRow { row: 1, rows: 1 }));
    }

    #[test]
    fn sequences_and_trajectories_stay_in_order() {
        assert_eq!(sequences(&[2, 3, 1]).shuffle(&mut rng()), Err(BatchError::HasSequences("shuffle")));
        assert_eq!(time_major(1, &[1]).shuffle(&mut rng()), Err(BatchError::TimeMajor("shuffle")));
    }
}
