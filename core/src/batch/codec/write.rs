//! Encodes batches.

use super::{
    super::{AnyBatch, MultiAgentBatch, SampleBatch},
    HAS_GRAD_UPDATES, HAS_MAX_SEQ_LEN, IS_TRAINING, MAGIC, MULTI, SINGLE, TIME_MAJOR, TYPES, VERSION, ZERO_PADDED,
};
use crate::{
    column::{BytesColumn, Column, CompressedColumn, LittleEndian, by_type},
    prelude::*,
};

/// Encodes a batch.
#[must_use]
pub fn encode(batch: &SampleBatch) -> Vec<u8> {
    let mut bytes = vec![0; HEAD + batch_len(batch)];
    let mut out = EncodedBytes(&mut bytes);
    out.head(SINGLE);
    out.batch(batch);
    debug_assert!(out.0.is_empty(), "{} bytes too many", out.0.len());
    bytes
}

/// Encodes a multi-agent batch.
#[must_use]
pub fn encode_multi_agent(batch: &MultiAgentBatch) -> Vec<u8> {
    let policies = batch.policy_batches.iter().map(|(policy, batch)| 4 + policy.as_str().len() + batch_len(batch));
    let mut bytes = vec![0; HEAD + 12 + policies.sum::<usize>()];
    let mut out = EncodedBytes(&mut bytes);
    out.head(MULTI);
    out.numbers(&[batch.env_steps as u64]);
    out.numbers(&[batch.policy_batches.len() as u32]);
    for (policy, batch) in &batch.policy_batches {
        out.text(policy.as_str());
        out.batch(batch);
    }
    debug_assert!(out.0.is_empty(), "{} bytes too many", out.0.len());
    bytes
}

/// Encodes a batch of either kind.
#[must_use]
pub fn encode_any(batch: &AnyBatch) -> Vec<u8> {
    match batch {
        AnyBatch::Single(batch) => encode(batch),
        AnyBatch::Multi(batch) => encode_multi_agent(batch),
    }
}

/// Bytes before the first part.
const HEAD: usize = 8;
/// Bytes of a batch without columns and sequences.
const EMPTY: usize = 32;
/// Bytes of a column without its name, dimensions and rows.
const COLUMN: usize = 4 + 4 + 16;
/// Bytes of a block in the table.
pub(super) const BLOCK: usize = 40;

fn batch_len(batch: &SampleBatch) -> usize {
    let columns =
        batch.iter().map(|(name, column)| COLUMN + name.len() + 4 * column.shape().dims().len() + data_len(column));
    EMPTY + 4 * batch.seq_lens().map_or(0, <[i32]>::len) + columns.sum::<usize>()
}

/// Returns the size of a column's row data.
fn data_len(column: &Column) -> usize {
    match column {
        Column::Bytes(data) => 4 * data.rows() + data.contiguous().len(),
        Column::Compressed(data) => 8 + data.used().map(|(block, _)| BLOCK + block.bytes().len()).sum::<usize>(),
        _ => column.size_bytes(),
    }
}

/// The bytes that remain to be written. Its length is exactly the required one, so no write is cut off.
struct EncodedBytes<'a>(&'a mut [u8]);

impl EncodedBytes<'_> {
    fn numbers<T: LittleEndian>(&mut self, values: &[T]) {
        T::write_le(values, self.0.split_off_mut(..values.len() * T::BYTES).unwrap_or_default());
    }

    fn text(&mut self, text: &str) {
        self.numbers(&[text.len() as u32]);
        self.numbers(text.as_bytes());
    }

    fn head(&mut self, kind: u16) {
        self.numbers(&MAGIC);
        self.numbers(&[VERSION, kind]);
    }

    fn batch(&mut self, batch: &SampleBatch) {
        let flags = [
            (batch.time_major(), TIME_MAJOR),
            (batch.zero_padded(), ZERO_PADDED),
            (batch.is_training(), IS_TRAINING),
            (batch.max_seq_len().is_some(), HAS_MAX_SEQ_LEN),
            (batch.num_grad_updates().is_some(), HAS_GRAD_UPDATES),
        ];
        let seq_lens = batch.seq_lens().unwrap_or_default();
        self.numbers(&[flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum::<u32>()]);
        self.numbers(&[batch.iter().len() as u32]);
        self.numbers(&[seq_lens.len() as u64, batch.max_seq_len().unwrap_or(0) as u64]);
        self.numbers(&[batch.num_grad_updates().unwrap_or(0.0)]);
        self.numbers(seq_lens);
        for (name, column) in batch.iter() {
            self.text(name);
            let number = TYPES.iter().find(|(column_type, _)| *column_type == column.column_type());
            let dims = column.shape();
            let rank = dims.dims().len() as u8;
            self.numbers(&[number.map_or(0, |(_, number)| *number), rank, u8::from(column.is_compressed()), 0]);
            self.numbers(dims.dims());
            self.numbers(&[column.rows() as u64, data_len(column) as u64]);
            self.data(column);
        }
    }

    fn data(&mut self, column: &Column) {
        by_type!(
            Column,
            column,
            data => self.numbers(data.values()),
            Column::Bytes(data) => self.ragged(data),
            Column::Compressed(data) => self.blocks(data),
        );
    }

    fn ragged(&mut self, data: &BytesColumn) {
        data.lengths().for_each(|length| self.numbers(&[length]));
        self.numbers(data.contiguous());
    }

    fn blocks(&mut self, data: &CompressedColumn) {
        self.numbers(&[data.used().count() as u64]);
        for (block, used) in data.used() {
            let (raw, rows) = block.raw_and_rows();
            self.numbers(&[block.bytes().len(), raw, rows, used.start, used.end].map(|number| number as u64));
        }
        data.used().for_each(|(block, _)| self.numbers(block.bytes()));
    }
}
