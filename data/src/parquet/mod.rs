//! Batches in Parquet files, and Parquet files as batches.
//!
//! # Our own files
//! A row per step, a column per column: a number, or a list of fixed size whose shape is in the field's metadata, so that
//! `pandas.read_parquet` gives a table that needs no explanation. What a table cannot say is in columns whose names begin
//! with `rollmesh.`: `batch`, the number of the batch that a row is of; `policy`, whose row it is, in multi-agent
//! batches; `info`, at the first row of each policy's part, JSON with `env_steps`, `seq_lens` and flags; and `encoded`
//! for batches that are no table (time-major ones and empty ones), as
//! [`codec`](rollmesh_core::batch::codec) bytes. Recurrent states, one per sequence, are at the rows at which the sequences start. A round trip gives the
//! same batches, bit for bit; only compressed columns come back as plain ones.
//!
//! Columns that some policies do not have are null in their rows. Where policies have different columns of one name, the
//! name is followed by `@` and the policy's.
//!
//! # Files of others
//! A column becomes a column if its rows have one shape. Batches are cut where `eps_id` changes, or after rows that are
//! `terminateds` or `truncateds`, and where the buffer ends.
//!
//! # Memory
//! Files are read page by page and written row group by row group. Neither side holds much more than its declared buffer.
//!
//! ```
//! use rollmesh_data::{dataset::BatchStream as _, parquet::{ParquetOptions, ParquetStream, ParquetWriter}};
//! use rollmesh_core::{batch::{AnyBatch, REWARDS, SampleBatch}, column::ColumnData};
//!
//! let folder = tempfile::tempdir()?;
//! let batch: AnyBatch = SampleBatch::new().with(REWARDS, ColumnData::scalars(vec![1.0, 0.5]))?.into();
//! let mut writer = ParquetWriter::new(folder.path(), "worker-0", ParquetOptions::default())?;
//! writer.write(&batch)?;
//! let files = writer.finish()?;
//! let mut stream = ParquetStream::open(&files[0], 64 << 20)?;
//! assert_eq!(stream.next_batch()?, Some(batch));
//! assert_eq!(stream.next_batch()?, None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod content;
mod file;
mod footer;
mod pages;
mod pieces;
mod plan;
mod read;
mod table;
mod thrift;
mod write;

pub(super) use file::ParquetFile;
pub use read::{ParquetStream, summary};
pub use write::{Compression, ParquetOptions, ParquetWriter};

use super::dataset::DatasetError;

/// Columns that say what a table cannot.
const BATCH: &str = "rollmesh.batch";
const POLICY: &str = "rollmesh.policy";
const INFO: &str = "rollmesh.info";
const ENCODED: &str = "rollmesh.encoded";
/// What there is instead of Zstandard where its C library was left out.
const NO_ZSTD: DatasetError =
    DatasetError::NotBuilt { format: "a Parquet file compressed by Zstandard", feature: "zstd" };
/// Key of our version in the file's metadata.
const FORMAT: &str = "rollmesh.format";
