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
    config::ConfigError,
    sampler::{IoContext, OutputWriter, SampleError},
};
use rollmesh_data::json::{COMPRESS_COLUMNS, EncodeError, encode_record};

use super::{
    in_order::{InOrder, helpers},
    paged::Paged,
    series::{SeriesPlace, file_name},
};
use crate::offline::OfflineError;

/// How sample files are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonWriterOptions {
    /// Bytes after which a new file begins.
    pub max_file_size: u64,
    /// Columns that are compressed.
    pub compress_columns: Vec<String>,
    /// Which worker writes; a part of the files' names.
    pub worker_index: u32,
}

impl Default for JsonWriterOptions {
    fn default() -> Self {
        let compress_columns = COMPRESS_COLUMNS.map(String::from).into();
        Self { max_file_size: 64 << 20, compress_columns, worker_index: 0 }
    }
}

impl JsonWriterOptions {
    /// What the settings say: `max_file_size` in bytes (64 MiB) and `compress_columns` (`obs` and `new_obs`).
    ///
    /// # Errors
    /// [`SampleError::Output`] for settings of another form.
    #[doc(alias("output_max_file_size", "output_compress_columns"))]
    pub fn from_context(context: &IoContext) -> Result<Self, SampleError> {
        let wrong = |error: ConfigError| SampleError::Output(error.to_string());
        let default = Self::default();
        let config = &context.config;
        Ok(Self {
            max_file_size: config.get("max_file_size").map_err(wrong)?.unwrap_or(default.max_file_size),
            compress_columns: config.get("compress_columns").map_err(wrong)?.unwrap_or(default.compress_columns),
            worker_index: context.worker.worker_index,
        })
    }
}

/// Writes batches to files `output-<date>_worker-<index>_<number>.json` in a directory, a line each. The date is in UTC.
///
/// A line is handed to the system as a whole: when [`append`](Self::append) comes back, it is out of this process, and
/// if it fails, nothing of the batch is in the file. No file that is there already is ever written to.
pub struct JsonWriter {
    directory: PathBuf,
    options: Arc<JsonWriterOptions>,
    clock: fn() -> SystemTime,
    /// What the files' names begin with, if they are to be found again.
    series: Option<String>,
    number: u64,
    open: Option<(PathBuf, File)>,
    written: u64,
    paged: Paged,
    encoders: Option<InOrder<Unwritten, Lines>>,
    /// Lines that are written, for the next ones.
    spare: Vec<Vec<u8>>,
}

/// Bytes of batches that one thread makes lines of at a time: far more work than to wake it.
const PORTION_BYTES: usize = 128 << 10;

/// Batches that become lines.
struct Unwritten {
    batches: Vec<Arc<AnyBatch>>,
    options: Arc<JsonWriterOptions>,
    text: Vec<u8>,
}

/// Lines of batches, one after the other.
struct Lines {
    text: Vec<u8>,
    /// Bytes of each.
    lens: Vec<usize>,
    /// Why there is none of the batch that would be next.
    error: Option<EncodeError>,
}

impl Unwritten {
    /// The first ones of these batches, at least one if there are any.
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

    fn encode(self) -> Lines {
        let Self { batches, options, mut text } = self;
        text.clear();
        let mut lens = Vec::with_capacity(batches.len());
        let mut lines = batches.iter().map(|batch| {
            let before = text.len();
            encode(batch, &options, &mut text).map(|()| lens.push(text.len() - before))
        });
        let error = lines.find_map(Result::err);
        Lines { text, lens, error }
    }
}

/// Writes the line of a batch, with its end, behind what is there.
fn encode(batch: &AnyBatch, options: &JsonWriterOptions, text: &mut Vec<u8>) -> Result<(), EncodeError> {
    let columns: Vec<&str> = options.compress_columns.iter().map(String::as_str).collect();
    encode_record(batch, &columns, text)?;
    text.push(b'\n');
    Ok(())
}

impl JsonWriter {
    /// Writes to a directory, which is made if it is not there. The first file is made with the first batch.
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

    /// Writes the files of a series, of which the next one has this number; first the one that is open, if it has so many
    /// bytes already.
    pub(super) fn of_series(self, series: &str, number: u64, open: Option<(PathBuf, File)>, written: u64) -> Self {
        Self { series: Some(series.to_owned()), number, open, written, ..self }
    }

    /// Where it is in its series.
    pub(crate) fn place(&self) -> SeriesPlace {
        match &self.open {
            Some(_) => SeriesPlace { file: self.number - 1, bytes: self.written },
            None => SeriesPlace { file: self.number, bytes: 0 },
        }
    }

    /// A handle of the file that is open, for whoever makes sure that it is on the disk.
    pub(crate) fn share_open(&self) -> io::Result<Option<File>> {
        self.open.as_ref().map(|(_, file)| file.try_clone()).transpose()
    }

    /// Takes the time from elsewhere.
    #[cfg(test)]
    pub(super) fn with_clock(self, clock: fn() -> SystemTime) -> Self {
        Self { clock, ..self }
    }

    /// Writes on in another file, as if it were the one that is open.
    #[cfg(test)]
    pub(super) fn redirect(&mut self, path: &Path) {
        let file = OpenOptions::new().write(true).open(path);
        self.open = file.ok().map(|file| (path.to_path_buf(), file));
    }

    /// Writes a batch.
    ///
    /// # Errors
    /// [`OfflineError::Encode`], [`OfflineError::Write`], [`OfflineError::DiskFull`]. Whoever writes again goes on
    /// where the last whole line ends.
    pub fn append(&mut self, batch: &AnyBatch) -> Result<(), OfflineError> {
        let mut line = self.spare.pop().unwrap_or_default();
        line.clear();
        encode(batch, &self.options, &mut line)?;
        let written = self.write_line(&line);
        self.spare.push(line);
        written
    }

    /// Writes batches, the first one first, until none is left. As many threads as there are processors, with which the batches
    /// are shared, make the lines; some for each of them are held.
    ///
    /// # Errors
    /// As [`append`](Self::append). What is left has not been written.
    pub fn append_all(&mut self, batches: &mut VecDeque<Arc<AnyBatch>>) -> Result<(), OfflineError> {
        let encoders = self.encoders.take().unwrap_or_else(|| InOrder::new(Unwritten::encode, helpers()));
        let mut given = 0;
        loop {
            // What everybody works at, and as much that waits.
            while encoders.len() < 2 * (helpers() + 1) && given < batches.len() {
                let text = self.spare.pop().unwrap_or_default();
                let portion = Unwritten::first_of(batches.iter().skip(given), &self.options, text);
                given += portion.batches.len();
                encoders.push(portion);
            }
            let Some(Lines { text, lens, error }) = encoders.next() else { break };
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
                // Whoever counts on what is in the next one counts on this one, too.
                full.sync_data().map_err(|source| OfflineError::write(path.clone(), source))?;
            }
            self.open = Some(self.create()?);
            self.written = 0;
        }
        let Some((path, file)) = &mut self.open else { return Ok(()) };
        if let Err(source) = file.write_all(self.paged.at(self.written, line)) {
            // Half a line would be a corrupt one. Where even this fails, the next line goes into another file.
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
                // Another writer of this second.
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

/// `2024-02-29_23-59-59`, in UTC.
pub(super) fn date(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so that leap days are their ends: see Hinnant, "chrono-compatible low-level date algorithms".
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
