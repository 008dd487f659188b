//! Defines the common parts of data set readers: a stream of batches that can be rewound, its reader for workers, and a
//! summary of its columns.

mod open;
mod reader;
mod steps;
mod summary;

use std::{error::Error, io, path::Path};

pub use open::{open, open_file};
pub use reader::DatasetReader;
pub(crate) use steps::{Episode, append, cast};
pub use steps::{beyond_32_bits, has_more_digits};
pub use summary::{ColumnSummary, Summary, SummaryBuilder};

use rollmesh_core::batch::{AnyBatch, BatchError};

#[cfg(feature = "hdf5")]
use crate::hdf5::Hdf5Error;

/// An error of reading or writing a data set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// A required column is missing.
    #[error("there is no column '{0}'")]
    MissingColumn(String),
    /// A column has the wrong number of rows.
    #[error("column '{name}' has {found} rows, the others have {expected}")]
    LengthMismatch {
        /// The column.
        name: String,
        /// Number of rows of the other columns.
        expected: u64,
        /// Its number of rows.
        found: u64,
    },
    /// The rows of a column differ in shape, or have the wrong shape.
    #[error("column '{name}': {problem}")]
    Shape {
        /// The column.
        name: String,
        /// The cause.
        problem: String,
    },
    /// A batch cannot hold the column's content.
    #[error(
        "column '{name}' holds {found}; leave it out, or write it as numbers, texts or lists of numbers of one length"
    )]
    Unsupported {
        /// The column.
        name: String,
        /// The content.
        found: String,
    },
    /// The file is damaged.
    #[error("the file is damaged: {0}")]
    Corrupt(String),
    /// A part that must be read as a whole exceeds the declared buffer.
    #[error("{what} takes {bytes} bytes, the buffer is {buffer}: declare a larger one")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// Its size in bytes.
        bytes: u64,
        /// The declared buffer.
        buffer: usize,
    },
    /// An HDF5 file could not be read.
    #[cfg(feature = "hdf5")]
    #[error(transparent)]
    Hdf5(#[from] Hdf5Error),
    /// Rows could not be joined.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The data set is empty.
    #[error("there are no episodes in {0}")]
    Empty(String),
    /// Reading or writing the file failed.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The host could not read a file of lines; this is its error.
    #[error(transparent)]
    Host(Box<dyn Error + Send + Sync>),
    /// One of several files is invalid.
    #[error("{path}: {source}")]
    In {
        /// The file or folder.
        path: String,
        /// The cause.
        source: Box<Self>,
    },
    /// This program was built without support for a format.
    #[error("this is {format}, which this program was built without: build it with the feature '{feature}'")]
    NotBuilt {
        /// The format.
        format: &'static str,
        /// The feature of `rollmesh-data`.
        feature: &'static str,
    },
    /// The writer or reader is already closed.
    #[error("the file was closed")]
    Closed,
}

impl DatasetError {
    /// Returns the same error with the file's path.
    #[must_use]
    pub fn of(self, path: &Path) -> Self {
        match self {
            Self::Io { .. } | Self::Host(_) | Self::In { .. } => self,
            source => Self::In { path: path.display().to_string(), source: Box::new(source) },
        }
    }
}

/// The batches of a data set in the file's order, each exactly once.
pub trait BatchStream: Send {
    /// Returns the next batch: at most one episode, or a part of an episode that exceeds the buffer. None at the end.
    ///
    /// # Errors
    /// [`DatasetError`].
    fn next_batch(&mut self) -> Result<Option<AnyBatch>, DatasetError>;

    /// Rewinds to the beginning.
    ///
    /// # Errors
    /// [`DatasetError`].
    fn rewind(&mut self) -> Result<(), DatasetError>;

    /// Returns the number of skipped lines without a valid batch, since the beginning.
    fn corrupt_lines(&self) -> u64 {
        0
    }

    /// Returns the size of all files, which shows changes; 0 if it is not known.
    fn bytes(&self) -> u64 {
        0
    }

    /// Describes the content of the file that no batch so far contains.
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
