//! Hashes whole batches.

use twox_hash::XxHash3_128;

use super::{Hash128, finish, put_row};
use crate::{
    batch::{AnyBatch, BatchError, SampleBatch},
    column::Column,
    prelude::*,
};

/// Hash of complete batches: two programs that sample the same batches get the same hash.
///
/// | part | content of the hash |
/// |---|---|
/// | batch | env steps and number of policies, then the policies' batches in order of the ids |
/// | policy's batch | its id, number of rows, number of columns, then the columns in order of the names; number of sequences and their lengths |
/// | column | name, element type as [`ColumnType`](crate::column::ColumnType) writes it, rank and dimensions of a row, then the elements |
/// | ragged column | likewise, but the elements are first all rows' lengths, then all rows |
///
/// The length precedes each name. Lengths, numbers and dimensions are 32 bits, steps and rows 64; everything is
/// little-endian, and all NaNs hash alike. A batch of the default policy alone hashes like a multi-agent batch, and a
/// compressed column like its decompressed content.
#[derive(Clone, Default)]
pub struct BatchHasher {
    hasher: XxHash3_128,
    bytes: Vec<u8>,
}

impl BatchHasher {
    /// Creates an empty hash.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a batch. Order matters.
    ///
    /// # Errors
    /// [`BatchError::Column`] for a compressed column that cannot be decompressed; on an error, the hash stays as it is.
    pub fn add(&mut self, batch: &AnyBatch) -> Result<(), BatchError> {
        self.bytes.clear();
        let batch = batch.as_multi_agent();
        self.bytes.extend_from_slice(&(batch.env_steps() as u64).to_le_bytes());
        put_count(&mut self.bytes, batch.policy_batches.len());
        for (policy, rows) in &batch.policy_batches {
            put_name(&mut self.bytes, policy.as_str());
            put_batch(&mut self.bytes, rows)?;
        }
        self.hasher.write(&self.bytes);
        Ok(())
    }

    /// Returns the hash so far.
    #[must_use]
    pub fn finish(&self) -> Hash128 {
        finish(&self.hasher)
    }
}

impl core::fmt::Debug for BatchHasher {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("BatchHasher").field(&self.finish()).finish()
    }
}

fn put_count(bytes: &mut Vec<u8>, count: usize) {
    bytes.extend_from_slice(&(count as u32).to_le_bytes());
}

fn put_name(bytes: &mut Vec<u8>, name: &str) {
    put_count(bytes, name.len());
    bytes.extend_from_slice(name.as_bytes());
}

fn put_batch(bytes: &mut Vec<u8>, batch: &SampleBatch) -> Result<(), BatchError> {
    bytes.extend_from_slice(&(batch.len() as u64).to_le_bytes());
    let mut columns: Vec<(&str, &Column)> = batch.iter().collect();
    columns.sort_unstable_by_key(|(name, _)| *name);
    put_count(bytes, columns.len());
    for (name, column) in columns {
        let failed = |source| BatchError::Column { name: name.into(), source };
        let column = if column.is_compressed() { &column.decompress().map_err(failed)? } else { column };
        put_name(bytes, name);
        put_name(bytes, &column.column_type().to_string());
        let shape = column.shape();
        put_count(bytes, shape.dims().len());
        shape.dims().iter().for_each(|dim| bytes.extend_from_slice(&dim.to_le_bytes()));
        match column {
            Column::Bytes(ragged) => {
                ragged.lengths().for_each(|length| bytes.extend_from_slice(&length.to_le_bytes()));
                bytes.extend_from_slice(ragged.contiguous());
            }
            array => (0..array.rows()).for_each(|row| put_row(bytes, array, row)),
        }
    }
    let seq_lens = batch.seq_lens().unwrap_or_default();
    put_count(bytes, seq_lens.len());
    seq_lens.iter().for_each(|length| bytes.extend_from_slice(&length.to_le_bytes()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::{MultiAgentBatch, REWARDS, T},
        column::{BytesColumn, ColumnData, Granularity},
        hash::bytes_hash,
        ids::PolicyId,
    };

    fn hash(batch: impl Into<AnyBatch>) -> Hash128 {
        let mut hasher = BatchHasher::new();
        hasher.add(&batch.into()).unwrap();
        hasher.finish()
    }

    fn batch(rewards: Vec<f32>) -> SampleBatch {
        SampleBatch::new().with(REWARDS, ColumnData::scalars(rewards)).unwrap()
    }

    #[test]
    fn the_bytes_are_the_ones_that_are_written_down() {
        let mut expected = Vec::new();
        expected.extend([2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        expected.extend(b"\x0e\0\0\0default_policy\x02\0\0\0\0\0\0\0\x02\0\0\0");
        expected.extend(b"\x05\0\0\0infos\x05\0\0\0bytes\0\0\0\0\x01\0\0\0\x02\0\0\0abc");
        expected.extend(b"\x07\0\0\0rewards\x07\0\0\0float32\0\0\0\0\0\0\x80\x3f\0\0\xc0\x7f");
        expected.extend([0; 4]);
        let mut rows = batch(vec![1.0, -f32::NAN]);
        rows.insert("infos", BytesColumn::bytes(["a", "bc"]).unwrap()).unwrap();
        assert_eq!(hash(rows), bytes_hash(&expected));
    }

    #[test]
    fn only_what_a_batch_says_matters() {
        let rows = batch(vec![1.0, 2.0]).with(T, ColumnData::scalars(vec![0, 1])).unwrap();
        let usual = hash(rows.clone());
        let other_order = SampleBatch::new()
            .with(T, ColumnData::scalars(vec![0, 1]))
            .unwrap()
            .with(REWARDS, ColumnData::scalars(vec![1.0, 2.0]));
        assert_eq!(hash(other_order.unwrap()), usual);
        let mut compressed = rows.clone();
        compressed.compress_columns(Granularity::Bulk, &[REWARDS.name()]).unwrap();
        assert_eq!(hash(compressed), usual);
        assert_eq!(hash(rows.as_multi_agent()), usual);
        assert_ne!(hash(MultiAgentBatch::new(rows.as_multi_agent().policy_batches, 3)), usual);
        let renamed = [(PolicyId::new("other"), rows.clone())].into_iter().collect();
        assert_ne!(hash(MultiAgentBatch::new(renamed, 2)), usual);
        assert_ne!(hash(rows.slice(0, 1).unwrap()), usual);
        assert_ne!(hash(batch(vec![1.0, 2.0])), usual);
    }
}
