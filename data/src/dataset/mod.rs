//! What readers of data sets have in common: a stream of batches that can be begun again, its reader for workers, and a
//! summary of its columns.

mod open;
mod reader;
mod steps;
mod summary;

use std::{error::Error, io, path::Path};

pub use open::open;
pub use reader::DatasetReader;
pub(crate) use steps::{Episode, append, cast};
pub use steps::{beyond_32_bits, has_more_digits};
pub use summary::{ColumnSummary, Summary, SummaryBuilder};

use rollmesh_core::batch::{AnyBatch, BatchError};

#[cfg(feature = "hdf5")]
use crate::hdf5::Hdf5Error;

/// Why a data set could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// A column that the format requires is not there.
    #[error("there is no column '{0}'")]
    MissingColumn(String),
    /// A column has another number of rows than it should.
    #[error("column '{name}' has {found} rows, the others have {expected}")]
    LengthMismatch {
        /// The column.
        name: String,
        /// Rows of the others.
        expected: u64,
        /// Its rows.
        found: u64,
    },
    /// A column's rows do not have one shape, or not the right one.
    #[error("column '{name}': {problem}")]
    Shape {
        /// The column.
        name: String,
        /// What is wrong.
        problem: String,
    },
    /// A column holds what no batch can.
    #[error(
        "column '{name}' holds {found}; leave it out, or write it as numbers, texts or lists of numbers of one length"
    )]
    Unsupported {
        /// The column.
        name: String,
        /// What it holds.
        found: String,
    },
    /// The file is damaged.
    #[error("the file is damaged: {0}")]
    Corrupt(String),
    /// What must be read at once is larger than the declared buffer.
    #[error("{what} takes {bytes} bytes, the buffer is {buffer}: declare a larger one")]
    TooLarge {
        /// What is read at once.
        what: &'static str,
        /// Its bytes.
        bytes: u64,
        /// The declared buffer.
        buffer: usize,
    },
    /// What a Parquet or Arrow file says of its columns takes more memory than what is in them.
    #[error(
        "its table of contents would take {bytes} bytes of memory, {limit} are allowed for a file of this size: write it with \
         fewer columns or larger row groups"
    )]
    Contents {
        /// The bytes.
        bytes: u64,
        /// What is allowed.
        limit: u64,
    },
    /// An HDF5 file could not be read.
    #[cfg(feature = "hdf5")]
    #[error(transparent)]
    Hdf5(#[from] Hdf5Error),
    /// Rows could not be put together.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// There is nothing in it.
    #[error("there are no episodes in {0}")]
    Empty(String),
    /// The medium failed.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: String,
        /// What it says.
        source: io::Error,
    },
    /// The host could not read a file of lines, in its words.
    #[error(transparent)]
    Host(Box<dyn Error + Send + Sync>),
    /// Something is wrong with one of several files.
    #[error("{path}: {source}")]
    In {
        /// The file or folder.
        path: String,
        /// What is wrong.
        source: Box<Self>,
    },
    /// This program was built without a format.
    #[error("this is {format}, which this program was built without: build it with the feature '{feature}'")]
    NotBuilt {
        /// The format.
        format: &'static str,
        /// The feature of `rollmesh-data`.
        feature: &'static str,
    },
    /// It was closed before.
    #[error("the file was closed")]
    Closed,
}

impl DatasetError {
    /// The same, with the file that it is about.
    #[must_use]
    pub fn of(self, path: &Path) -> Self {
        match self {
            Self::Io { .. } | Self::Host(_) | Self::In { .. } => self,
            source => Self::In { path: path.display().to_string(), source: Box::new(source) },
        }
    }
}

/// Batches of a data set, one after the other in the file's order, each exactly once.
pub trait BatchStream: Send {
    /// The next batch: at most one episode, or a part of one that is too long for the buffer. None at the end.
    ///
    /// # Errors
    /// [`DatasetError`].
    fn next_batch(&mut self) -> Result<Option<AnyBatch>, DatasetError>;

    /// Begins again.
    ///
    /// # Errors
    /// [`DatasetError`].
    fn rewind(&mut self) -> Result<(), DatasetError>;

    /// Lines that were no batches and were passed over, since the beginning.
    fn corrupt_lines(&self) -> u64 {
        0
    }

    /// Bytes of all files, by which a change is noticed; 0 if that is not known.
    fn bytes(&self) -> u64 {
        0
    }

    /// What is in the file, but in no batch so far, in words.
    fn left_out(&self) -> Vec<String> {
        Vec::new()
    }
}

impl<S: BatchStream + ?Sized> BatchStream for Box<S> {
    fn next_batch(&mut self) -> Result<Option<AnyBatch>, DatasetError> {
        (**self).next_batch()
    }

    fn rewind(&mut self) -> Result<(), DatasetError> {
        (**self).rewind()
    }

    fn corrupt_lines(&self) -> u64 {
        (**self).corrupt_lines()
    }

    fn bytes(&self) -> u64 {
        (**self).bytes()
    }

    fn left_out(&self) -> Vec<String> {
        (**self).left_out()
    }
}
