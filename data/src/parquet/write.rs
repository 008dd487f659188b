//! Writes batches to Parquet files.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::{
    arrow::ArrowWriter,
    basic::ZstdLevel,
    file::properties::{EnabledStatistics, WriterProperties},
    schema::types::ColumnPath,
};
use rollmesh_core::{
    batch::AnyBatch,
    sampler::{OutputWriter, SampleError},
};

use super::{
    super::{arrow::corrupt, dataset::DatasetError},
    BATCH, INFO, POLICY,
    plan::Plan,
    table::table,
};

/// The compression of the pages of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    None,
    /// Fast and supported by all readers.
    #[default]
    Snappy,
    /// Smallest files.
    Zstd,
}

/// The options of writing files.
#[derive(Clone, Debug)]
pub struct ParquetOptions {
    /// Maximum file size, after which the next batch begins a new file: 64 MiB.
    pub max_file_size: u64,
    /// Maximum number of rows of a row group: 65,536.
    pub row_group_rows: usize,
    /// Maximum size of a row group in memory: 64 MiB.
    pub buffer: usize,
    /// The compression of pages.
    pub compression: Compression,
}

impl Default for ParquetOptions {
    fn default() -> Self {
        Self { max_file_size: 64 << 20, row_group_rows: 1 << 16, buffer: 64 << 20, compression: Compression::default() }
    }
}

/// Writes batches to Parquet files in a folder: `NAME-00000.parquet`, `NAME-00001.parquet`, ….
///
/// While a file is incomplete, its name ends in `.part`, so that readers do not find it: a Parquet file without its end
/// cannot be read. The writer completes a file when it is full, when a batch does not fit its columns, in
/// [`finish`](Self::finish) and when the writer is dropped, even after a batch that could not be written. If the process is
/// killed, the incomplete file is lost, at most [`ParquetOptions::max_file_size`] bytes.
pub struct ParquetWriter {
    folder: PathBuf,
    name: String,
    options: ParquetOptions,
    next: u32,
    open: Option<Open>,
    done: Vec<PathBuf>,
    closed: bool,
}

struct Open {
    plan: Plan,
    schema: SchemaRef,
    writer: ArrowWriter<BufWriter<File>>,
    path: PathBuf,
    batches: i64,
}

impl ParquetWriter {
    /// Creates a writer of files whose names begin with `name`. Creates the folder; existing files in it stay.
    ///
    /// # Errors
    /// [`DatasetError::Io`].
    pub fn new(folder: &Path, name: &str, options: ParquetOptions) -> Result<Self, DatasetError> {
        fs::create_dir_all(folder).map_err(io_error(folder))?;
        let (folder, name) = (folder.to_path_buf(), name.to_string());
        Ok(Self { folder, name, options, next: 0, open: None, done: Vec::new(), closed: false })
    }

    /// Writes a batch. Compressed columns become uncompressed.
    ///
    /// # Errors
    /// [`DatasetError`]. On an error, the file lacks the batch but keeps all earlier ones.
    pub fn write(&mut self, batch: &AnyBatch) -> Result<(), DatasetError> {
        if self.closed {
            return Err(DatasetError::Closed);
        }
        if self.options.compression == Compression::Zstd && !cfg!(feature = "zstd") {
            return Err(super::NO_ZSTD);
        }
        let mut batch = batch.clone();
        match &mut batch {
            AnyBatch::Single(batch) => batch.decompress_if_needed()?,
            AnyBatch::Multi(batch) => batch.decompress_if_needed()?,
        }
        let mut plan = Plan::of(&batch);
        if let Some(open) = &self.open {
            let merged = open.plan.merge(&plan);
            let is_full =
                open.writer.bytes_written() + open.writer.in_progress_size() >= self.options.max_file_size as usize;
            if is_full || merged.as_ref() != Some(&open.plan) {
                // The next file also allows this one's columns, so that mixtures do not need a file per batch.
                plan = merged.unwrap_or(plan);
                self.complete()?;
            }
        }
        let mut open = match self.open.take() {
            Some(open) => open,
            None => self.begin(plan)?,
        };
        let rows = table(&open.plan, &open.schema, open.batches, &batch);
        let written = rows.and_then(|rows| open.write(&rows, self.options.buffer));
        open.batches += i64::from(written.is_ok());
        self.open = Some(open);
        written
    }

    /// Completes the last file. Returns all written files.
    ///
    /// # Errors
    /// [`DatasetError`]. Further calls do nothing.
    pub fn finish(&mut self) -> Result<Vec<PathBuf>, DatasetError> {
        self.closed = true;
        self.complete()?;
        Ok(self.done.clone())
    }

    fn begin(&mut self, plan: Plan) -> Result<Open, DatasetError> {
        let schema = Arc::new(plan.schema());
        let (file, path) = loop {
            let path = self.folder.join(format!("{}-{:05}.parquet", self.name, self.next));
            self.next = self.next.checked_add(1).ok_or(DatasetError::Closed)?;
            let part = part(&path);
            let file = OpenOptions::new().write(true).create_new(true).open(&part);
            match file {
                // The part file reserves the name for this writer.
                Ok(_) if path.exists() => fs::remove_file(&part).map_err(io_error(&part))?,
                Ok(file) => break (file, path),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(io_error(&part)(error)),
            }
        };
        let properties = Some(self.properties());
        let writer = ArrowWriter::try_new(BufWriter::new(file), schema.clone(), properties).map_err(corrupt)?;
        Ok(Open { plan, schema, writer, path, batches: 0 })
    }

    fn properties(&self) -> WriterProperties {
        let compression = match self.options.compression {
            Compression::None => parquet::basic::Compression::UNCOMPRESSED,
            Compression::Snappy => parquet::basic::Compression::SNAPPY,
            Compression::Zstd => parquet::basic::Compression::ZSTD(ZstdLevel::default()),
        };
        // For random numbers, dictionaries and statistics take time and have no benefit.
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_max_row_group_row_count(Some(self.options.row_group_rows.max(1)));
        let named = [BATCH, POLICY, INFO, "eps_id", "agent_index", "unroll_id", "env_id"].into_iter();
        let properties = named.fold(properties, |properties, name| {
            properties.set_column_dictionary_enabled(ColumnPath::new(vec![name.to_string()]), true)
        });
        properties.build()
    }

    fn complete(&mut self) -> Result<(), DatasetError> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        let part = part(&open.path);
        open.writer.finish().map_err(|error| write_error(&part, error))?;
        open.writer.inner_mut().flush().map_err(io_error(&part))?;
        if open.batches == 0 {
            // A file without rows is useless.
            return fs::remove_file(&part).map_err(io_error(&part));
        }
        open.writer.inner_mut().get_ref().sync_data().map_err(io_error(&part))?;
        fs::rename(&part, &open.path).map_err(io_error(&part))?;
        self.done.push(open.path);
        Ok(())
    }
}

impl Open {
    fn write(&mut self, rows: &RecordBatch, buffer: usize) -> Result<(), DatasetError> {
        let part = part(&self.path);
        self.writer.write(rows).map_err(|error| write_error(&part, error))?;
        if self.writer.in_progress_size() > buffer {
            self.writer.flush().map_err(|error| write_error(&part, error))?;
        }
        Ok(())
    }
}

impl Drop for ParquetWriter {
    fn drop(&mut self) {
        // A caller that needs the error calls `finish`.
        let _ = self.complete();
    }
}

impl OutputWriter for ParquetWriter {
    fn write(&mut self, batch: &AnyBatch) -> Result<(), SampleError> {
        Self::write(self, batch).map_err(|error| SampleError::Output(error.to_string()))
    }

    fn close(&mut self) -> Result<(), SampleError> {
        self.finish().map(drop).map_err(|error| SampleError::Output(error.to_string()))
    }
}

fn part(path: &Path) -> PathBuf {
    path.with_extension("parquet.part")
}

fn io_error(path: &Path) -> impl Fn(io::Error) -> DatasetError {
    let path = path.display().to_string();
    move |source| DatasetError::Io { path: path.clone(), source }
}

fn write_error(path: &Path, error: parquet::errors::ParquetError) -> DatasetError {
    io_error(path)(io::Error::other(error))
}
