//! Logged experience of any files, one after the other.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use rollmesh_core::batch::AnyBatch;
use rollmesh_data::{
    dataset::{self, BatchStream, DatasetError},
    json::JsonError,
    limits::DEFAULT_BUFFER,
};

#[cfg(unix)]
use super::apart::ReaderProcess;
use super::{
    inputs::{Format, Located},
    json::{AllFiles, JsonReader, JsonReaderOptions},
};
#[cfg(unix)]
use crate::program::child_program;

/// The default limit of memory for a process that reads.
#[cfg(unix)]
const DEFAULT_MEMORY: u64 = 4 << 30;

/// Callback for corrupt lines.
pub type OnCorrupt = dyn FnMut(&Path, &JsonError) + Send;

/// Yields every batch of some files exactly once, in the files' order, whatever their formats. Memory is limited to the
/// buffer size, for one file at a time.
///
/// ```
/// use rollmesh::offline::{
///     inputs::{DatasetFolders, locate},
///     json::{JsonWriter, JsonWriterOptions},
///     logged::Logged,
/// };
/// use rollmesh_core::{batch::{REWARDS, SampleBatch}, column::ColumnData};
/// use rollmesh_data::dataset::BatchStream as _;
///
/// let folder = tempfile::tempdir()?;
/// let mut writer = JsonWriter::new(folder.path(), JsonWriterOptions::default())?;
/// writer.append(&SampleBatch::new().with(REWARDS, ColumnData::scalars(vec![1.0, 0.5]))?.into())?;
/// let files = locate(&[folder.path().display().to_string()], &DatasetFolders::default())?;
/// let mut logged = Logged::new(files, None);
/// assert_eq!(logged.next_batch()?.map(|batch| batch.env_steps()), Some(2));
/// assert_eq!(logged.next_batch()?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Logged {
    files: Vec<Located>,
    buffer: Option<usize>,
    memory: Option<u64>,
    next: usize,
    open: Option<OpenFormat>,
    /// Position of the latest batch, and the rows before it in its file.
    place: Option<LoggedPlace>,
    rows: u64,
    corrupt_lines: u64,
    on_corrupt: Option<Arc<Mutex<OnCorrupt>>>,
    /// Bytes of each file.
    sizes: Vec<u64>,
    left_out: BTreeSet<String>,
}

/// The origin of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedPlace {
    /// Index of the file.
    pub file: usize,
    /// Its line, from 1, in files of lines. There, rows are counted from the beginning of each line.
    pub line: Option<u64>,
    /// Number of rows before it.
    pub row: u64,
    /// True if it is the first one of its file.
    pub is_first: bool,
}

enum OpenFormat {
    Lines(Box<AllFiles>),
    Dataset(Box<dyn BatchStream>),
}

impl Logged {
    /// Creates a reader of these files. Without `buffer` each format has its default buffer size: 1 GiB for lines of JSON,
    /// of which a sixteenth may be one line, 64 MiB for everything else.
    #[must_use]
    pub fn new(files: Vec<Located>, buffer: Option<usize>) -> Self {
        let sizes = files.iter().map(|file| size(&file.path)).collect();
        let (next, open, place, rows, corrupt_lines, on_corrupt) = (0, None, None, 0, 0, None);
        let left_out = BTreeSet::new();
        Self { files, buffer, memory: None, next, open, place, rows, corrupt_lines, on_corrupt, sizes, left_out }
    }

    /// Sets the most bytes of memory that the process takes which reads a data set of another format than JSON; by default
    /// 4 GiB, or four times the buffer if that is more. A program that begins with [`main_with`](crate::main_with) or
    /// [`child_process`](crate::child_process) reads these in such a process, others by themselves.
    #[must_use]
    pub fn with_memory_limit(self, bytes: Option<u64>) -> Self {
        Self { memory: bytes, ..self }
    }

    /// Sets a callback for corrupt lines, which are skipped.
    #[must_use]
    pub fn on_corrupt(mut self, hear: impl FnMut(&Path, &JsonError) + Send + 'static) -> Self {
        self.on_corrupt = Some(Arc::new(Mutex::new(hear)));
        self
    }

    /// Returns the files.
    #[must_use]
    pub fn files(&self) -> &[Located] {
        &self.files
    }

    /// Returns the origin of the latest batch.
    #[must_use]
    pub fn place(&self) -> Option<LoggedPlace> {
        self.place
    }

    /// Returns the number of corrupt lines since the [beginning](Self::rewind).
    #[must_use]
    pub fn corrupt_lines(&self) -> u64 {
        let open = if let Some(OpenFormat::Lines(lines)) = &self.open { lines.corrupt_lines() } else { 0 };
        self.corrupt_lines + open
    }

    /// Returns the approximate number of bytes read, and the bytes of all files. Only files of lines are counted gradually.
    #[must_use]
    pub fn progress(&self) -> (u64, u64) {
        let behind: u64 = self.sizes.iter().take(self.next.saturating_sub(usize::from(self.open.is_some()))).sum();
        let within = if let Some(OpenFormat::Lines(lines)) = &self.open { lines.bytes_read() } else { 0 };
        (behind + within, self.sizes.iter().sum())
    }

    fn begin(&mut self, file: &Located) -> Result<OpenFormat, DatasetError> {
        if file.format != Format::Json {
            let opened = self.open_dataset(&file.path);
            return opened.map(OpenFormat::Dataset).map_err(|error| error.of(&file.path));
        }
        let default = JsonReaderOptions::default();
        let buffer_size = self.buffer.unwrap_or(default.buffer_size);
        let mut reader = JsonReader::new(vec![file.path.clone()], JsonReaderOptions { buffer_size, ..default })?;
        if let Some(hear) = self.on_corrupt.clone() {
            reader = reader.on_corrupt(move |path, error| {
                (hear.lock().unwrap_or_else(PoisonError::into_inner))(path, error);
            });
        }
        Ok(OpenFormat::Lines(Box::new(reader.read_all_files())))
    }

    fn open_dataset(&self, path: &Path) -> Result<Box<dyn BatchStream>, DatasetError> {
        let buffer = self.buffer.unwrap_or(DEFAULT_BUFFER);
        #[cfg(unix)]
        if let Some(program) = child_program() {
            let memory = self.memory.unwrap_or_else(|| DEFAULT_MEMORY.max((buffer as u64).saturating_mul(4)));
            return Ok(Box::new(ReaderProcess::open(program, path, buffer, memory)?));
        }
        dataset::open(path, buffer)
    }

    /// Skips the rest of the open file, to continue after an error.
    pub fn skip_file(&mut self) {
        self.corrupt_lines = self.corrupt_lines();
        if let Some(OpenFormat::Dataset(stream)) = self.open.take() {
            self.left_out.extend(stream.left_out());
        }
        self.open = None;
    }
}

/// Returns the size in bytes of a file, or of everything in a folder.
fn size(path: &Path) -> u64 {
    match path.read_dir() {
        Ok(entries) => entries.filter_map(Result::ok).map(|entry| size(&entry.path())).sum(),
        Err(_) => fs::metadata(path).map_or(0, |about| about.len()),
    }
}

impl BatchStream for Logged {
    fn next_batch(&mut self) -> Result<Option<AnyBatch>, DatasetError> {
        loop {
            let mut open = match self.open.take() {
                Some(open) => open,
                None => {
                    let Some(file) = self.files.get(self.next).cloned() else { return Ok(None) };
                    (self.next, self.rows) = (self.next + 1, 0);
                    self.begin(&file)?
                }
            };
            let file = self.next.saturating_sub(1);
            let (batch, line) = match &mut open {
                OpenFormat::Lines(lines) => (lines.next().transpose().map_err(DatasetError::from), Some(lines.line())),
                OpenFormat::Dataset(stream) => {
                    let of_file = |error: DatasetError| match self.files.get(file) {
                        Some(file) => error.of(&file.path),
                        None => error,
                    };
                    (stream.next_batch().map_err(of_file), None)
                }
            };
            self.open = Some(open);
            let Some(batch) = batch? else {
                self.skip_file();
                continue;
            };
            let row = if line.is_some() { 0 } else { self.rows };
            self.rows += batch.agent_steps() as u64;
            let is_first = self.place.is_none_or(|before| before.file != file);
            self.place = Some(LoggedPlace { file, line, row, is_first });
            return Ok(Some(batch));
        }
    }

    fn corrupt_lines(&self) -> u64 {
        self.corrupt_lines()
    }

    fn bytes(&self) -> u64 {
        self.sizes.iter().sum()
    }

    fn left_out(&self) -> Vec<String> {
        let open = if let Some(OpenFormat::Dataset(stream)) = &self.open { stream.left_out() } else { Vec::new() };
        self.left_out.iter().cloned().chain(open).collect::<BTreeSet<_>>().into_iter().collect()
    }

    fn rewind(&mut self) -> Result<(), DatasetError> {
        self.skip_file();
        (self.next, self.place, self.rows, self.corrupt_lines) = (0, None, 0, 0);
        Ok(())
    }
}
