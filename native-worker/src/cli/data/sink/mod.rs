//! Outputs of converted batches.

mod json;
mod minari;
#[cfg(test)]
mod tests;

use std::path::Path;

use rollmesh_core::batch::{AnyBatch, SampleBatch};
use rollmesh_data::{
    minari::MinariInfo,
    parquet::{ParquetOptions, ParquetWriter},
};

use self::{json::JsonSink, minari::MinariSink};
use super::losses::{self, Losses};
use crate::cli::exit::Failure;

/// A format that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum DataFormat {
    /// RLlib's sample files
    Json,
    /// Tables
    Parquet,
    /// A data set that `minari` reads, in its Parquet layout
    Minari,
}

/// Returns the rows of a batch for Minari.
pub(super) fn single(batch: &AnyBatch) -> Result<&SampleBatch, Failure> {
    let refused = |error| format!("minari holds episodes of single agents, and {error}: take --to json or parquet");
    batch.single().map_err(|error| Failure::usage(refused(error)))
}

/// Writes batches, and reports the values that are read back differently.
pub(super) trait BatchSink {
    /// Begins another file of the input.
    fn begin_file(&mut self, _: &mut Losses) -> Result<(), Failure> {
        Ok(())
    }

    fn write(&mut self, batch: &AnyBatch, losses: &mut Losses) -> Result<(), Failure>;

    /// Writes the gathered rows.
    fn flush(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    fn finish(&mut self, losses: &mut Losses) -> Result<(), Failure>;
}

pub(super) fn json(folder: &Path, max_file_size: u64) -> Result<Box<dyn BatchSink>, Failure> {
    Ok(Box::new(JsonSink::new(folder, max_file_size)?))
}

pub(super) fn parquet(folder: &Path, max_file_size: u64) -> Result<Box<dyn BatchSink>, Failure> {
    let options = ParquetOptions { max_file_size, ..ParquetOptions::default() };
    Ok(Box::new(ParquetWriter::new(folder, "part", options).map_err(Failure::usage)?))
}

pub(super) fn minari(folder: &Path, info: MinariInfo) -> Result<Box<dyn BatchSink>, Failure> {
    Ok(Box::new(MinariSink::new(folder, info)?))
}

/// Loses nothing.
impl BatchSink for ParquetWriter {
    fn write(&mut self, batch: &AnyBatch, _: &mut Losses) -> Result<(), Failure> {
        Self::write(self, batch).map_err(Failure::other)
    }

    fn finish(&mut self, _: &mut Losses) -> Result<(), Failure> {
        Self::finish(self).map(drop).map_err(Failure::other)
    }
}

/// Describes the kind of rows: names, types and shapes of columns, and the attributes that are set. Rows of one kind
/// differ in values only, so a target's losses are the same.
fn kind(rows: &SampleBatch) -> String {
    let columns = rows.iter().map(|(name, column)| (name, column.column_type(), column.shape()));
    let is_longer = |most: usize| {
        let lens = rows.seq_lens().unwrap_or_default();
        lens.iter().all(|len| (len.unsigned_abs() as usize) < most)
    };
    let flags = (rows.is_training(), rows.num_grad_updates().is_some(), rows.seq_lens().is_some());
    let lens = (rows.is_empty(), rows.max_seq_len().is_some_and(is_longer));
    format!("{:?} {flags:?} {lens:?}", columns.collect::<Vec<_>>())
}
