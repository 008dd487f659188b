//! Errors of reading and writing files.

use std::{io, path::PathBuf};

use rollmesh_core::batch::BatchError;
use rollmesh_data::{
    dataset::DatasetError,
    json::{EncodeError, JsonError},
};

use super::inputs::{ENDINGS, Located};

/// An error of reading or writing files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OfflineError {
    /// No file matches.
    #[error("there are no files {0}: give a file, a directory, or a pattern that matches some")]
    NoFiles(String),
    /// A directory without files of a known ending.
    #[error("there are no files in {} that end in {}: name the files themselves, or a pattern", .0.display(), ENDINGS.join(", "))]
    NoFilesIn(PathBuf),
    /// A run's directory instead of its rows.
    #[error("{0} is the directory of a run, not its rows: name the directory that its --output has written")]
    RunDirectory(PathBuf),
    /// RLlib's `dataset` without its paths.
    #[error(
        "the input 'dataset' is what its settings name: set input_config (--input-config) to {{\"format\": \"json\", \"paths\": …}}, or \
         name the files as the input"
    )]
    NoPaths,
    /// The pattern is invalid.
    #[error("'{pattern}' is no pattern: {problem}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The problem.
        problem: String,
    },
    /// The input is on another machine.
    #[error("'{0}' is on another machine: copy it here first")]
    Remote(String),
    /// A file has an unknown format.
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
        /// The first file.
        first: Located,
        /// A file of another format.
        other: Located,
    },
    /// A name is both a path and the name of a data set.
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
    /// No data set has this name on this machine.
    #[error("there is no data set '{name}' in {}: {fix}", folder.display())]
    NoDataset {
        /// Its name.
        name: String,
        /// The folder that was searched.
        folder: PathBuf,
        /// The fix.
        fix: &'static str,
    },
    /// A file cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The process that reads a data set has reached its limit of memory.
    #[error(
        "{path}: reading it takes more than {limit} bytes of memory: raise memory_limit (--memory-limit) if you trust the \
         file",
        path = path.display()
    )]
    Memory {
        /// The data set.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// The process that reads a data set has failed.
    #[error("{path}: the process that reads it has ended: {end}", path = path.display())]
    Reader {
        /// The data set.
        path: PathBuf,
        /// Its end, and the last lines of its standard error.
        end: String,
    },
    /// An archive is invalid or unsupported.
    #[error("{path}: {reason}", path = path.display())]
    Zip {
        /// The archive.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A file contains something other than batches.
    #[error("{path}: {source}", path = path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The problem.
        source: JsonError,
    },
    /// Lines that are joined to one batch exceed their memory limit.
    #[error(
        "{rows} rows of lines that are joined take {bytes} bytes, {room} are allowed: lower train_batch_size (here {batch_size} \
         rows), or raise buffer_size (here {buffer_size} bytes, of which joined lines have a quarter)"
    )]
    Joined {
        /// Rows so far.
        rows: usize,
        /// Their bytes.
        bytes: usize,
        /// The limit in bytes.
        room: usize,
        /// Rows that are needed.
        batch_size: usize,
        /// The configured buffer size in bytes.
        buffer_size: usize,
    },
    /// None of the files has a batch for this worker.
    #[error(
        "the input (files: {files}) has no batch for worker {worker_index}{}: either it is empty, or there are more \
         workers than lines, so that dataset_shards should be smaller",
        last.as_ref().map_or_else(String::new, |last| format!(" (the last problem was {last})"))
    )]
    NoData {
        /// Number of files.
        files: usize,
        /// The worker whose batches were searched.
        worker_index: u32,
        /// The problem of the last corrupt line.
        last: Option<String>,
    },
    /// A resumed reader finds another number of files.
    #[error("there are {now} files, but there were {then}: bring them back, or begin again")]
    OtherFiles {
        /// Number of files then.
        then: usize,
        /// Number of files now.
        now: usize,
    },
    /// A resumed reader finds a changed file.
    #[error(
        "{path} has {now} bytes, but had {then}: bring back what was read, or begin again",
        path = path.display()
    )]
    Changed {
        /// The file, or the first of several.
        path: PathBuf,
        /// Its bytes then.
        then: u64,
        /// Its bytes now.
        now: u64,
    },
    /// Batches cannot be joined.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A batch cannot be encoded in the file's format.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The disk is full. Everything written before is in the file, and the caller still has the batch.
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
        /// The operating system's error.
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
