//! Reads Parquet files as batches.

use std::path::Path;

use arrow_array::{RecordBatch, cast::AsArray as _, types::Int64Type};
use arrow_select::concat::concat_batches;
use rollmesh_core::{
    batch::{AnyBatch, EPS_ID, REWARDS, SampleBatch, TERMINATEDS, TRUNCATEDS},
    column::{Column, DType},
};

use super::{
    super::{
        arrow,
        dataset::{BatchStream, DatasetError, Summary, SummaryBuilder, beyond_32_bits, cast, has_more_digits},
        source::Source,
    },
    BATCH, FORMAT, ParquetFile,
    pieces::{batch, foreign, present},
};

/// The batches of a Parquet file: the written ones, or one per episode for files of other programs.
pub struct ParquetStream {
    file: ParquetFile,
    buffer: usize,
    /// True if the file has this crate's format, which includes the batches' boundaries.
    ours: bool,
    window: Option<Window>,
    at: usize,
    /// Rows of an incomplete batch, and its number.
    open: Vec<RecordBatch>,
    number: i64,
    /// True if rewards of another program's file lost digits.
    is_narrowed: bool,
}

enum Window {
    Ours(RecordBatch),
    Foreign(SampleBatch),
}

impl ParquetStream {
    /// Opens a file. Reading uses about `buffer` bytes.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn open(path: &Path, buffer: usize) -> Result<Self, DatasetError> {
        Ok(Self::new(ParquetFile::open(path, buffer)?, buffer))
    }

    /// Reads a file from any source, such as memory.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn from_source(source: impl Source + 'static, buffer: usize) -> Result<Self, DatasetError> {
        Ok(Self::new(ParquetFile::new(std::sync::Arc::new(source), buffer)?, buffer))
    }

    fn new(file: ParquetFile, buffer: usize) -> Self {
        let ours = file.schema().metadata().contains_key(FORMAT);
        Self { file, buffer, ours, window: None, at: 0, open: Vec::new(), number: 0, is_narrowed: false }
    }

    /// Returns whether the file has this crate's format, which includes the batches' boundaries.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.ours
    }

    fn next_window(&mut self) -> Result<bool, DatasetError> {
        let Some(rows) = self.file.next()? else { return Ok(false) };
        self.at = 0;
        self.window = Some(match self.ours {
            true => Window::Ours(rows),
            false => {
                let columns = arrow::guarded(|| foreign(&rows))??;
                let mut rewards = columns.iter().filter(|(name, _)| name == REWARDS.name());
                self.is_narrowed |= rewards.any(|(_, column)| has_more_digits(column));
                Window::Foreign(sample_batch(columns)?)
            }
        });
        Ok(true)
    }

    /// Converts the collected rows to a batch.
    fn complete(&mut self) -> Result<Option<AnyBatch>, DatasetError> {
        let parts = std::mem::take(&mut self.open);
        let Some(first) = parts.first() else { return Ok(None) };
        arrow::guarded(|| {
            let rows = match parts.as_slice() {
                [rows] => rows.clone(),
                parts => concat_batches(&first.schema(), parts).map_err(arrow::corrupt)?,
            };
            batch(&rows).map(Some)
        })?
    }
}

impl BatchStream for ParquetStream {
    fn next_batch(&mut self) -> Result<Option<AnyBatch>, DatasetError> {
        loop {
            match &self.window {
                Some(Window::Ours(rows)) if self.at < rows.num_rows() => {
                    let numbers = rows.column_by_name(BATCH).and_then(|array| array.as_primitive_opt::<Int64Type>());
                    let numbers = numbers.ok_or_else(|| DatasetError::MissingColumn(BATCH.to_string()))?;
                    let numbers = numbers.values().get(self.at..).unwrap_or_default();
                    let Some(&number) = numbers.first() else { continue };
                    if number != self.number
                        && let Some(batch) = self.complete()?
                    {
                        return Ok(Some(batch));
                    }
                    let Some(Window::Ours(rows)) = &self.window else { continue };
                    let run = rows.column_by_name(BATCH).and_then(|array| array.as_primitive_opt::<Int64Type>());
                    let run =
                        run.map_or(1, |run| run.values().iter().skip(self.at).take_while(|n| **n == number).count());
                    let part = rows.slice(self.at, run);
                    let bytes: usize = self.open.iter().map(RecordBatch::get_array_memory_size).sum();
                    if !self.open.is_empty() && bytes > self.buffer {
                        return Err(DatasetError::TooLarge {
                            what: "a batch",
                            bytes: bytes as u64,
                            buffer: self.buffer,
                        });
                    }
                    self.open.push(part);
                    (self.number, self.at) = (number, self.at + run);
                }
                Some(Window::Foreign(rows)) if self.at < rows.len() => {
                    let run = episode_run(rows, self.at)?;
                    let batch = rows.slice(self.at as i64, self.at + run)?;
                    self.at += run;
                    return Ok(Some(batch.into()));
                }
                _ => {
                    if !self.next_window()? {
                        self.window = None;
                        return self.complete();
                    }
                }
            }
        }
    }

    fn left_out(&self) -> Vec<String> {
        self.is_narrowed.then(|| beyond_32_bits(REWARDS.name())).into_iter().collect()
    }

    fn rewind(&mut self) -> Result<(), DatasetError> {
        self.file.rewind();
        (self.window, self.at) = (None, 0);
        self.open.clear();
        Ok(())
    }
}

/// Returns a summary of a file.
///
/// # Errors
/// [`DatasetError`].
pub fn summary(source: impl Source + 'static, buffer: usize) -> Result<Summary, DatasetError> {
    let mut file = ParquetFile::new(std::sync::Arc::new(source), buffer)?;
    let mut builder = SummaryBuilder::default();
    let (mut lengths, mut length, mut before) = (Vec::new(), 0, None);
    while let Some(rows) = file.next()? {
        let mut columns = Vec::new();
        for (field, array) in rows.schema_ref().fields().iter().zip(rows.columns()) {
            if !field.name().starts_with("rollmesh.") {
                columns.extend(arrow::columns(field.name(), field, &present(array)?)?);
            }
        }
        for (name, column) in &columns {
            builder.push(name, column)?;
        }
        let find = |name: &str| columns.iter().find_map(|(known, column)| (known == name).then_some(column));
        let ids = find(EPS_ID.name()).and_then(|column| column.typed::<i64>().ok());
        let ends = ends(&find, rows.num_rows())?;
        for row in 0..rows.num_rows() {
            let id = ids.and_then(|ids| ids.values().get(row).copied());
            if length > 0 && id != before {
                lengths.push(std::mem::take(&mut length));
            }
            (length, before) = (length + 1, id);
            if id.is_none() && ends.get(row) == Some(&true) {
                lengths.push(std::mem::take(&mut length));
            }
        }
    }
    lengths.extend((length > 0).then_some(length));
    Ok(builder.finish(lengths))
}

/// Returns the rows after which an episode ends, by its flags.
fn ends<'a>(find: &impl Fn(&str) -> Option<&'a Column>, rows: usize) -> Result<Vec<bool>, DatasetError> {
    let mut ends = vec![false; rows];
    for name in [TERMINATEDS.name(), TRUNCATEDS.name()] {
        if let Some(column) = find(name) {
            let flags = cast(name, column, DType::Bool)?;
            let flags = flags.typed::<bool>().map(|flags| flags.values().to_vec()).unwrap_or_default();
            ends.iter_mut().zip(flags).for_each(|(end, flag)| *end |= flag);
        }
    }
    Ok(ends)
}

/// Returns the number of rows from `at` on that belong to one episode.
fn episode_run(rows: &SampleBatch, at: usize) -> Result<usize, DatasetError> {
    let ids = rows.column(EPS_ID.name()).and_then(|column| column.typed::<i64>().ok());
    if let Some(ids) = ids {
        let ids = ids.values().get(at..).unwrap_or_default();
        return Ok(ids.iter().take_while(|id| Some(*id) == ids.first()).count().max(1));
    }
    let find = |name: &str| rows.column(name);
    let ends = ends(&find, rows.len())?;
    let run = ends.iter().skip(at).position(|end| *end).map_or(rows.len() - at, |last| last + 1);
    Ok(run.max(1))
}

/// Returns a batch of another program's columns; converts flags and rewards to this crate's types.
fn sample_batch(columns: Vec<(String, Column)>) -> Result<SampleBatch, DatasetError> {
    let mut batch = SampleBatch::new();
    for (name, column) in columns {
        let column = match name.as_str() {
            "terminateds" | "truncateds" => cast(&name, &column, DType::Bool)?,
            "rewards" => cast(&name, &column, DType::F32)?,
            _ => column,
        };
        batch.insert(name, column)?;
    }
    Ok(batch)
}
