//! Outputs of converted batches.

mod json;
mod minari;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

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
pub(super) enum Target {
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

/// Writes batches, and reports what is read back differently.
pub(super) enum Sink {
    Json(Box<JsonSink>),
    /// Loses nothing.
    Parquet {
        writer: Box<ParquetWriter>,
        folder: PathBuf,
    },
    Minari(Box<MinariSink>),
}

impl Sink {
    pub(super) fn json(folder: &Path, max_file_size: u64) -> Result<Self, Failure> {
        Ok(Self::Json(Box::new(JsonSink::new(folder, max_file_size)?)))
    }

    pub(super) fn parquet(folder: &Path, max_file_size: u64) -> Result<Self, Failure> {
        let options = ParquetOptions { max_file_size, ..ParquetOptions::default() };
        let writer = ParquetWriter::new(folder, "part", options).map_err(Failure::usage)?;
        Ok(Self::Parquet { writer: Box::new(writer), folder: folder.into() })
    }

    pub(super) fn minari(folder: &Path, info: MinariInfo) -> Result<Self, Failure> {
        Ok(Self::Minari(Box::new(MinariSink::new(folder, info)?)))
    }

    pub(super) fn folder(&self) -> &Path {
        match self {
            Self::Json(sink) => sink.folder(),
            Self::Parquet { folder, .. } => folder,
            Self::Minari(sink) => sink.folder(),
        }
    }

    /// Begins another file of the input.
    pub(super) fn begin_file(&mut self, losses: &mut Losses) -> Result<(), Failure> {
        if let Self::Minari(sink) = self { sink.begin_file(losses) } else { Ok(()) }
    }

    pub(super) fn write(&mut self, batch: &AnyBatch, losses: &mut Losses) -> Result<(), Failure> {
        match self {
            Self::Json(sink) => sink.write(batch, losses),
            Self::Parquet { writer, .. } => writer.write(batch).map_err(Failure::other),
            Self::Minari(sink) => sink.write(batch, losses),
        }
    }

    /// Writes the gathered rows.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        if let Self::Json(sink) = self { sink.flush() } else { Ok(()) }
    }

    pub(super) fn finish(self, losses: &mut Losses) -> Result<(), Failure> {
        match self {
            Self::Json(mut sink) => sink.flush(),
            Self::Parquet { mut writer, .. } => writer.finish().map(drop).map_err(Failure::other),
            Self::Minari(mut sink) => sink.finish(losses),
        }
    }
}

/// Describes the kind of rows: names, types and shapes of columns, and which attributes are set. Rows of one kind differ in
/// values only, so a target's losses are the same.
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
