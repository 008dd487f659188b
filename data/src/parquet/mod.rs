//! Writes batches to Parquet files, and reads Parquet files as batches.
//!
//! # Our own files
//! There is a row per step and a column per column: a number, or a list of fixed size with its shape in the field's
//! metadata, so that `pandas.read_parquet` gives a self-explanatory table. Other properties are in columns whose names begin
//! with `rollmesh.`: `batch`, the number of a row's batch; `policy`, the row's policy, in multi-agent batches; `info`, in
//! the first row of each policy's part, JSON with `env_steps`, `seq_lens` and flags; and `encoded` for batches that do not
//! fit into a table (time-major ones and empty ones), as [`codec`](rollmesh_core::batch::codec) bytes. Recurrent states, one
//! per sequence, are in the first rows of the sequences. A round trip returns the same batches, bit for bit, except that
//! compressed columns become uncompressed.
//!
//! Columns that some policies lack are null in their rows. Where policies have different columns of one name, the file's
//! column is called by this name, `@` and the policy's name.
//!
//! # Files of other programs
//! A file's column becomes a batch's column if its rows have one shape. Batches end where `eps_id` changes, or after rows
//! that are `terminateds` or `truncateds`, and where the buffer ends.
//!
//! # Memory
//! Files are read page by page and written row group by row group. Neither the reader nor the writer uses much more memory
//! than its declared buffer.
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

mod claims;
mod file;
mod pages;
mod pieces;
mod plan;
mod read;
mod table;
mod write;

pub(super) use file::ParquetFile;
pub use read::{ParquetStream, summary};
pub use write::{Compression, ParquetOptions, ParquetWriter};

use super::dataset::DatasetError;

/// Columns for properties that a table cannot represent.
const BATCH: &str = "rollmesh.batch";
const POLICY: &str = "rollmesh.policy";
const INFO: &str = "rollmesh.info";
const ENCODED: &str = "rollmesh.encoded";
/// The error for Zstandard in a build without its C library.
const NO_ZSTD: DatasetError =
    DatasetError::NotBuilt { format: "a Parquet file compressed by Zstandard", feature: "zstd" };
/// Key of this format's version in the file's metadata.
const FORMAT: &str = "rollmesh.format";
