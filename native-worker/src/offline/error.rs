//! Why files cannot be read or written.

use std::{io, path::PathBuf};

use rollmesh_core::batch::BatchError;
use rollmesh_data::{
    dataset::DatasetError,
    json::{EncodeError, JsonError},
};

use super::inputs::Located;

/// Why files cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// There are no such files.
    #[error("there are no files {0}: give a file, a directory, or a pattern that matches some")]
    NoFiles(String),
    /// RLlib's `dataset` without its paths.
    #[error(
        "the input 'dataset' is what its settings name: set input_config (--input-config) to {{\"format\": \"json\", \"paths\": …}}, or \
         name the files as the input"
    )]
    NoPaths,
    /// A pattern is none.
    #[error("'{pattern}' is no pattern: {source}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        source: glob::PatternError,
    },
    /// It is not on this machine.
    #[error("'{0}' is on another machine: copy it here first")]
    Remote(String),
    /// A file is in no format that is read here.
    #[error(
        "{path} is neither JSON lines, a zip archive of them, HDF5 nor Parquet: convert it to one of these",
        path = path.display()
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// Files of several formats were named together.
    #[error(
        "{} is {}, but {} is {}: files of one input are of one format; name a mixture with probabilities, or join them with \
         `rollmesh data merge`",
        first.path.display(), first.format, other.path.display(), other.format
    )]
    MixedFormats {
        /// The first one.
        first: Located,
        /// One of another format.
        other: Located,
    },
    /// A name is both a path and a data set's.
    #[error(
        "'{name}' is both the path {} and the data set {}: write ./{name} for the one or the folder's full path for the \
         other",
        path.display(), dataset.display()
    )]
    Ambiguous {
        /// The name.
        name: String,
        /// The path.
        path: PathBuf,
        /// The data set's folder.
        dataset: PathBuf,
    },
    /// There is no such data set on this machine.
    #[error("there is no data set '{name}' in {}: {fix}", folder.display())]
    NoDataset {
        /// Its name.
        name: String,
        /// Where it was looked for.
        folder: PathBuf,
        /// What can be done.
        fix: &'static str,
    },
    /// A file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// An archive is none, or none that can be read.
    #[error("{path}: {reason}", path = path.display())]
    Zip {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file holds something else than batches.
    #[error("{path}: {source}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: JsonError,
    },
    /// Lines that are to be one batch take more memory than they may.
    #[error(
        "{rows} rows of lines that are joined take {bytes} bytes, {room} are allowed: lower train_batch_size (here {batch_size} \
         rows), or raise buffer_size (here {buffer_size} bytes, of which joined lines have a quarter)"
    )]
    Joined {
        /// Rows so far.
        rows: usize,
        /// Their bytes.
        bytes: usize,
        /// What is allowed.
        room: usize,
        /// Rows that are wanted.
        batch_size: usize,
        /// The declared buffer.
        buffer_size: usize,
    },
    /// None of the files has a batch for this worker.
    #[error(
        "there is no batch in {files} files for worker {worker_index}{}: either they are empty, or there are more \
         workers than lines, so that dataset_shards should be smaller",
        last.as_ref().map_or_else(String::new, |last| format!(" (the last problem was {last})"))
    )]
    NoData {
        /// How many files there are.
        files: usize,
        /// Whose batches were looked for.
        worker_index: u32,
        /// What was wrong with the last line that was no batch.
        last: Option<String>,
    },
    /// Somebody who goes on where another one was finds other files.
    #[error("there are {now} files, but there were {then}: bring them back, or begin again")]
    OtherFiles {
        /// How many there were.
        then: usize,
        /// How many there are.
        now: usize,
    },
    /// Somebody who goes on where another one was finds another file.
    #[error(
        "{path} has {now} bytes, but had {then}: bring back what was read, or begin again",
        path = path.display()
    )]
    Changed {
        /// The file, or the first of several.
        path: PathBuf,
        /// Bytes that it had.
        then: u64,
        /// Bytes that it has.
        now: u64,
    },
    /// Batches cannot be joined.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A batch has no form in the file's format.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The disk is full. Everything before is in the file, and the batch is still the caller's.
    #[error("{path}: the disk is full; what was written before is complete", path = path.display())]
    DiskFull {
        /// The file.
        path: PathBuf,
    },
    /// A file cannot be written.
    #[error("{path}: {source}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl OfflineError {
    pub(crate) fn write(path: PathBuf, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path },
            _ => Self::Write { path, source },
        }
    }
}

impl From<OfflineError> for DatasetError {
    fn from(error: OfflineError) -> Self {
        Self::Host(Box::new(error))
    }
}
