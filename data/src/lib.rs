//! File formats of logged experience, natively and in a browser.
//!
//! - [`json`]: RLlib's sample files, one JSON object per line and batch, with large columns compressed.
//! - [`survey`]: a summary of batches and their defects.
//! - `dataset`, with either feature: the common parts of data set readers: a stream of batches, its reader for workers,
//!   errors.
//! - `d4rl`, `minari`: data sets of logged episodes, in HDF5 with the feature `hdf5`, in tables with `parquet`.
//! - `parquet`, with the feature of that name: batches in columns that pandas and others read.
//! - [`limits`]: memory limits of readers.
//!
//! Readers do not trust their input: they check sizes before they allocate memory, and never execute code from a file.
//! Reading uses at most the declared buffer and a few MiB, see [`limits`]; only the tables of a malicious HDF5 file
//! take a few times the buffer. A damaged file gives a typed error.
//!
//! The host, see `rollmesh::offline`, resolves names to files, decodes ahead in threads, and names the files that
//! it writes; this crate does none of these.
//!
//! ```
//! use rollmesh_core::{
//!     batch::{ACTIONS, AnyBatch, OBS, SampleBatch},
//!     column::{ColumnData, RowShape},
//! };
//! use rollmesh_data::{json::{COMPRESS_COLUMNS, decode_record, encode_record}, limits::JsonLimits};
//!
//! let batch: AnyBatch = SampleBatch::new()
//!     .with(OBS, ColumnData::new(vec![0.5, 1.0, 1.5, 2.0], RowShape::vector(2))?)?
//!     .with(ACTIONS, ColumnData::scalars(vec![0, 1]))?
//!     .into();
//! let mut line = Vec::new();
//! encode_record(&batch, &COMPRESS_COLUMNS, &mut line)?;
//! assert!(line.ends_with(br#""actions": [0, 1]}"#));
//! assert_eq!(decode_record(&line, &JsonLimits::default())?, batch);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs, clippy::missing_errors_doc)]

#[cfg(feature = "parquet")]
mod arrow;
#[cfg(feature = "hdf5")]
pub mod d4rl;
#[cfg(any(feature = "hdf5", feature = "parquet"))]
pub mod dataset;
mod files;
#[cfg(feature = "hdf5")]
mod hdf5;
pub mod json;
pub mod limits;
mod lz4;
#[cfg(any(feature = "hdf5", feature = "parquet"))]
pub mod minari;
#[cfg(feature = "parquet")]
pub mod parquet;
mod pickle;
mod prepared;
mod source;
pub mod survey;
mod usual;

#[doc(hidden)]
pub use files::{FileKind, replace, sync_folder};
#[cfg(feature = "hdf5")]
pub use hdf5::Hdf5Error;
pub use lz4::Lz4Error;
pub use pickle::PickleError;
pub use prepared::{ActionChange, Preparation, PreparedInput, encode_observations};
pub use source::{FileSource, Source};
pub use usual::with_usual_types;
