//! Compresses and decompresses columns.

use super::{BatchError, NEW_OBS, OBS, SampleBatch, columns::is_or_is_part_of};
use crate::column::Granularity;

impl SampleBatch {
    /// Compresses `obs` and `new_obs`, with all their parts.
    ///
    /// # Errors
    /// As [`compress_columns`](Self::compress_columns).
    pub fn compress(&mut self, granularity: Granularity) -> Result<(), BatchError> {
        self.compress_columns(granularity, &[OBS.name(), NEW_OBS.name()])
    }

    /// Compresses these columns with all their parts: `obs` stands for `obs.pos` too. Ignores names without a column and
    /// columns that are already compressed.
    ///
    /// # Errors
    /// [`BatchError::TimeMajor`]; [`BatchError::Column`] for a row of more than 32 MiB. On an error, all columns stay as
    /// they are.
    pub fn compress_columns(&mut self, granularity: Granularity, names: &[&str]) -> Result<(), BatchError> {
        if self.time_major {
            return Err(BatchError::TimeMajor("compress"));
        }
        let mut columns = self.columns.clone();
        for (name, column) in &mut columns {
            if names.iter().any(|wanted| is_or_is_part_of(name, wanted)) {
                *column = column.compress(granularity).map_err(BatchError::of_column(name))?;
            }
        }
        self.columns = columns;
        Ok(())
    }

    /// Decompresses all compressed columns.
    ///
    /// # Errors
    /// [`BatchError::Column`] for damaged rows from another source. On an error, all columns stay as they are.
    pub fn decompress_if_needed(&mut self) -> Result<(), BatchError> {
        if !self.columns.iter().any(|(_, column)| column.is_compressed()) {
            return Ok(());
        }
        let mut columns = self.columns.clone();
        for (name, column) in &mut columns {
            *column = column.decompress().map_err(BatchError::of_column(name))?;
        }
        self.columns = columns;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{super::test_support::*, *};
    use crate::{
        column::{Column, ColumnData},
        prelude::*,
    };

    #[test]
    fn compress() {
        let values: Vec<i64> = (0..100).map(|i| i / 10).collect();
        for granularity in [Granularity::Bulk, Granularity::Rows] {
            let mut batch = rows(&values).with(B, ColumnData::scalars(values.clone())).unwrap();
            batch.insert("obs", ints(&values)).unwrap();
            batch.insert("obs.pos", ints(&values)).unwrap();
            batch.insert("obscure", ints(&values)).unwrap();
            let plain = batch.clone();
            batch.compress(granularity).unwrap();
            let compressed = |batch: &SampleBatch| {
                let columns = batch.iter().filter(|(_, column)| column.is_compressed());
                columns.map(|(name, _)| name.to_string()).collect::<Vec<_>>()
            };
            assert_eq!(compressed(&batch), ["obs", "obs.pos"]);
            batch.compress_columns(granularity, &["a", "b", "nothing"]).unwrap();
            assert_eq!(compressed(&batch), ["a", "b", "obs", "obs.pos"]);
            assert_eq!((batch.len(), batch.index_slice(3..7).len()), (100, 4));
            let mut part = batch.index_slice(3..7);
            part.decompress_if_needed().unwrap();
            assert_eq!(part, plain.index_slice(3..7));
            batch.decompress_if_needed().unwrap();
            assert_eq!(batch, plain);
        }
    }

    #[test]
    fn a_time_major_batch_stays_plain() {
        let mut batch = time_major(1, &[1, 2]);
        let compressed = batch.compress_columns(Granularity::Bulk, &["a"]);
        assert_eq!(compressed, Err(BatchError::TimeMajor("compress")));
        let column = Column::from(ColumnData::scalars(vec![1i64; 2])).compress(Granularity::Bulk).unwrap();
        assert!(matches!(batch.insert("b", column), Err(BatchError::NotTimeMajor { .. })));
    }

    #[test]
    fn slices_of_a_block_are_joined_to_the_block() {
        let mut batch = rows(&(0..1_000).map(|i| i * i % 977).collect::<Vec<i64>>());
        batch.compress_columns(Granularity::Bulk, &["a"]).unwrap();
        let slices: Vec<_> = batch.timeslices(crate::batch::SliceBy::Size(10)).unwrap().collect();
        let joined = SampleBatch::concat(&slices).unwrap();
        assert_eq!(joined, batch);
        assert_eq!(joined.size_bytes(), batch.size_bytes());
    }

    #[test]
    fn padding_makes_one_block() {
        let parts = BatchParts {
            columns: vec![("a".into(), ints(&(0..2_000).map(|i| i * i % 977).collect::<Vec<i64>>()))],
            seq_lens: Some(ColumnData::scalars(vec![5; 400])),
            ..BatchParts::default()
        };
        let plain = SampleBatch::from_parts(parts).unwrap();
        let mut batch = plain.clone();
        batch.compress_columns(Granularity::Bulk, &["a"]).unwrap();
        let mut padded = batch.right_zero_pad(6).unwrap();
        assert!(padded.size_bytes() < 2 * batch.size_bytes());
        padded.decompress_if_needed().unwrap();
        assert_eq!(padded, plain.right_zero_pad(6).unwrap());
    }
}
