//! Writing sample files.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use rollmesh_core::{
    batch::AnyBatch,
    config::{Config, ConfigError},
    sampler::{IoContext, OutputWriter, SampleError},
};
use rollmesh_data::json::{COMPRESS_COLUMNS, EncodeError, encode_record};

use super::{
    in_order::{InOrder, helpers},
    paged::Paged,
    series::{SeriesPlace, file_name},
};
use crate::offline::OfflineError;

/// Options of a writer of sample files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonWriterOptions {
    /// Length in bytes after which a new file begins.
    pub max_file_size: u64,
    /// Columns that are compressed.
    pub compress_columns: Vec<String>,
    /// Index of the worker that writes; a part of the file names.
    pub worker_index: u32,
}

impl Default for JsonWriterOptions {
    fn default() -> Self {
        let compress_columns = COMPRESS_COLUMNS.map(String::from).into();
        Self { max_file_size: 64 << 20, compress_columns, worker_index: 0 }
    }
}

impl JsonWriterOptions {
    /// Reads the options from the settings: `max_file_size` in bytes (64 MiB) and `compress_columns` (`obs` and `new_obs`).
    ///
    /// # Errors
    /// [`SampleError::Output`] for invalid settings.
    #[doc(alias("output_max_file_size", "output_compress_columns"))]
    pub fn from_context(context: &IoContext) -> Result<Self, SampleError> {
        let options = Self::from_config(&context.config).map_err(|error| SampleError::Output(error.to_string()))?;
        Ok(Self { worker_index: context.worker.worker_index, ..options })
    }

    /// As [`from_context`](Self::from_context), for a writer of no worker.
    pub(crate) fn from_config(config: &Config) -> Result<Self, ConfigError> {
        let default = Self::default();
        Ok(Self {
            max_file_size: config.get("max_file_size")?.unwrap_or(default.max_file_size),
            compress_columns: config.get("compress_columns")?.unwrap_or(default.compress_columns),
            ..default
        })
    }
}

/// Writes batches to files `output-<date>_worker-<index>_<number>.json` in a directory, one line each. The date is in UTC.
///
/// A line is passed to the operating system as a whole: when [`append`](Self::append) returns, it has left this process, and
/// if it fails, nothing of the batch is in the file. Existing files are never written to.
pub struct JsonWriter {
    directory: PathBuf,
    options: Arc<JsonWriterOptions>,
    clock: fn() -> SystemTime,
    /// The name of the series, for a resumable writer.
    series: Option<String>,
    number: u64,
    open: Option<(PathBuf, File)>,
    written: u64,
    paged: Paged,
    encoders: Option<InOrder<Unwritten, EncodedLines>>,
    /// Text buffers for reuse.
    spare: Vec<Vec<u8>>,
}

/// Bytes of batches that a thread encodes as one job: far more work than waking the thread.
const PORTION_BYTES: usize = 128 << 10;

/// Batches to encode.
struct Unwritten {
    batches: Vec<Arc<AnyBatch>>,
    options: Arc<JsonWriterOptions>,
    text: Vec<u8>,
}

/// Encoded lines.
struct EncodedLines {
    text: Vec<u8>,
    /// Length of each line in bytes.
    lens: Vec<usize>,
    /// The error of the batch after the last line, if it cannot be encoded.
    error: Option<EncodeError>,
}

impl Unwritten {
    /// Takes the first of these batches, at least one if there are any.
    fn first_of<'a>(
        batches: impl Iterator<Item = &'a Arc<AnyBatch>>,
        options: &Arc<JsonWriterOptions>,
        text: Vec<u8>,
    ) -> Self {
        let mut bytes = 0;
        let fits = |batch: &&Arc<AnyBatch>| {
            let is_early = bytes < PORTION_BYTES;
            bytes += batch.size_bytes();
            is_early
        };
        Self { batches: batches.take_while(fits).cloned().collect(), options: options.clone(), text }
    }

    fn encode(self) -> EncodedLines {
        let Self { batches, options, mut text } = self;
        text.clear();
        let mut lens = Vec::with_capacity(batches.len());
        let mut lines = batches.iter().map(|batch| {
            let before = text.len();
            encode(batch, &options, &mut text).map(|()| lens.push(text.len() - before))
        });
        let error = lines.find_map(Result::err);
        EncodedLines { text, lens, error }
    }
}

/// Appends the line of a batch, with its newline.
fn encode(batch: &AnyBatch, options: &JsonWriterOptions, text: &mut Vec<u8>) -> Result<(), EncodeError> {
    let columns: Vec<&str> = options.compress_columns.iter().map(String::as_str).collect();
    encode_record(batch, &columns, text)?;
    text.push(b'\n');
    Ok(())
}

impl JsonWriter {
    /// Creates a writer to a directory, which is created if it does not exist. The first file is created with the first
    /// batch.
    ///
    /// # Errors
    /// [`OfflineError::Write`], [`OfflineError::DiskFull`].
    pub fn new(directory: impl AsRef<Path>, options: JsonWriterOptions) -> Result<Self, OfflineError> {
        let directory = directory.as_ref().to_path_buf();
        fs::create_dir_all(&directory).map_err(|source| OfflineError::write(directory.clone(), source))?;
        Ok(Self {
            directory,
            options: Arc::new(options),
            clock: SystemTime::now,
            series: None,
            number: 0,
            open: None,
            written: 0,
            paged: Paged::default(),
            encoders: None,
            spare: Vec::new(),
        })
    }

    /// Makes it write a series whose next file has this number; first the open file, if any, which has `written` bytes.
    pub(super) fn of_series(self, series: &str, number: u64, open: Option<(PathBuf, File)>, written: u64) -> Self {
        Self { series: Some(series.to_owned()), number, open, written, ..self }
    }

    /// Returns its position in the series.
    pub(crate) fn place(&self) -> SeriesPlace {
        match &self.open {
            Some(_) => SeriesPlace { file: self.number - 1, bytes: self.written },
            None => SeriesPlace { file: self.number, bytes: 0 },
        }
    }

    /// Returns a handle of the open file, for syncing it to disk.
    pub(crate) fn share_open(&self) -> io::Result<Option<File>> {
        self.open.as_ref().map(|(_, file)| file.try_clone()).transpose()
    }

    /// Overrides the clock.
    #[cfg(test)]
    pub(super) fn with_clock(self, clock: fn() -> SystemTime) -> Self {
        Self { clock, ..self }
    }

    /// Makes it continue in another file, as if it were the open one.
    #[cfg(test)]
    pub(super) fn redirect(&mut self, path: &Path) {
        let file = OpenOptions::new().write(true).open(path);
        self.open = file.ok().map(|file| (path.to_path_buf(), file));
    }

    /// Writes a batch.
    ///
    /// # Errors
    /// [`OfflineError::Encode`], [`OfflineError::Write`], [`OfflineError::DiskFull`]. The next call continues after the last
    /// complete line.
    pub fn append(&mut self, batch: &AnyBatch) -> Result<(), OfflineError> {
        let mut line = self.spare.pop().unwrap_or_default();
        line.clear();
        encode(batch, &self.options, &mut line)?;
        let written = self.write_line(&line);
        self.spare.push(line);
        written
    }

    /// Writes batches, first to last, until none is left. They are encoded by as many threads as there are processors; a few
    /// batches per thread are held in memory.
    ///
    /// # Errors
    /// As [`append`](Self::append). The batches left have not been written.
    pub fn append_all(&mut self, batches: &mut VecDeque<Arc<AnyBatch>>) -> Result<(), OfflineError> {
        let mut encoders = self.encoders.take().unwrap_or_else(|| InOrder::new(Unwritten::encode, helpers()));
        let mut given = 0;
        loop {
            // One job in progress and one queued per thread.
            while encoders.len() < 2 * (helpers() + 1) && given < batches.len() {
                let text = self.spare.pop().unwrap_or_default();
                let portion = Unwritten::first_of(batches.iter().skip(given), &self.options, text);
                given += portion.batches.len();
                encoders.push(portion);
            }
            let Some(EncodedLines { text, lens, error }) = encoders.next() else { break };
            let mut rest = text.as_slice();
            for len in lens {
                let line;
                (line, rest) = rest.split_at(len);
                self.write_line(line)?;
                batches.pop_front();
                given -= 1;
            }
            if let Some(error) = error {
                return Err(error.into());
            }
            self.spare.push(text);
        }
        self.encoders = Some(encoders);
        Ok(())
    }

    fn write_line(&mut self, line: &[u8]) -> Result<(), OfflineError> {
        if self.open.is_none() || self.written >= self.options.max_file_size {
            if let (Some(_), Some((path, full))) = (&self.series, &self.open) {
                // A position in the next file implies that this file is on disk.
                full.sync_data().map_err(|source| OfflineError::write(path.clone(), source))?;
            }
            self.open = Some(self.create()?);
            self.written = 0;
        }
        let Some((path, file)) = &mut self.open else { return Ok(()) };
        if let Err(source) = file.write_all(self.paged.at(self.written, line)) {
            // A partial line would be corrupt. If truncating fails as well, the next line goes into another file.
            let error = OfflineError::write(path.clone(), source);
            if file.set_len(self.written).is_err() {
                self.open = None;
            }
            return Err(error);
        }
        self.written += line.len() as u64;
        Ok(())
    }

    fn create(&mut self) -> Result<(PathBuf, File), OfflineError> {
        let date = date((self.clock)());
        loop {
            let name = match &self.series {
                Some(series) => file_name(series, self.number),
                None => format!("output-{date}_worker-{}_{}.json", self.options.worker_index, self.number),
            };
            let path = self.directory.join(name);
            self.number += 1;
            match OpenOptions::new().append(true).create_new(true).open(&path) {
                Ok(file) => return Ok((path, file)),
                // Another writer has created it in the same second.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(OfflineError::write(path, source)),
            }
        }
    }
}

impl OutputWriter for JsonWriter {
    fn write(&mut self, batch: &AnyBatch) -> Result<(), SampleError> {
        self.append(batch).map_err(|error| SampleError::Output(error.to_string()))
    }

    fn close(&mut self) -> Result<(), SampleError> {
        self.open = None;
        Ok(())
    }
}

/// Formats a time like `2024-02-29_23-59-59`, in UTC.
pub(super) fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so that the leap day is their last: see Hinnant, "chrono-compatible low-level date algorithms".
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hours, minutes, seconds) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}_{hours:02}-{minutes:02}-{seconds:02}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rollmesh_core::{
        batch::{REWARDS, SampleBatch},
        column::ColumnData,
    };

    use super::*;

    #[test]
    fn portions_are_small_but_never_empty() {
        let batch = |rows: usize| {
            let column = ColumnData::scalars(vec![0.5_f32; rows]);
            Arc::new(AnyBatch::from(SampleBatch::new().with(REWARDS, column).unwrap()))
        };
        let batches = [15_000, 15_000, 15_000, 1, 1_000_000, 1].map(batch);
        let mut sizes = Vec::new();
        while let given @ ..6 = sizes.iter().sum::<usize>() {
            let portion = Unwritten::first_of(batches.iter().skip(given), &Arc::default(), Vec::new());
            let lines = portion.encode();
            assert!(lines.error.is_none() && lines.lens.iter().sum::<usize>() == lines.text.len());
            sizes.push(lines.lens.len());
        }
        assert_eq!(sizes, [3, 2, 1]);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        let at = |seconds| date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01_00-00-00");
        assert_eq!(at(951_827_696), "2000-02-29_12-34-56");
        assert_eq!(at(1_709_251_199), "2024-02-29_23-59-59");
        assert_eq!(at(4_107_542_399), "2100-02-28_23-59-59");
        assert_eq!(at(4_107_542_400), "2100-03-01_00-00-00");
    }
}
