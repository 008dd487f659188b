//! Reading sample files: endlessly, in a worker, or each file once.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rollmesh_core::{
    batch::AnyBatch,
    config::ConfigError,
    episode::Losses,
    readers::{Choice, Draws},
    sampler::{InputReader, IoContext, Position, SampleError, SamplerHost},
};
use rollmesh_data::{
    json::{JsonCounts, JsonError, JsonLines},
    limits::JsonLimits,
};
use serde::{Deserialize, Serialize};

use super::{
    decoded::{Decoded, DecodedLines, Shard, Terms},
    in_order::helpers,
};
use crate::offline::OfflineError;

/// Options of a reader of sample files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JsonReaderOptions {
    /// Minimum number of rows of a batch from [`JsonReader::next_batch`], which joins as many lines as needed.
    pub batch_size: usize,
    /// Memory limit of reading in bytes, including decoded batches. A line may have a sixteenth of it, compressed and
    /// decompressed; longer ones are skipped. Joined lines may have a quarter.
    pub buffer_size: usize,
    /// The shard of the lines to read, and the number of shards; `None` for all lines.
    pub shard: Option<(u32, u32)>,
    /// Seed for choosing files.
    pub seed: u64,
    /// Index of the worker that reads: it determines the first file.
    pub worker_index: u32,
    /// Number of remote workers.
    pub num_workers: u32,
}

impl Default for JsonReaderOptions {
    fn default() -> Self {
        Self { batch_size: 1, buffer_size: 1 << 30, shard: None, seed: 0, worker_index: 0, num_workers: 0 }
    }
}

impl JsonReaderOptions {
    /// A line has at most this part of the buffer, and is held twice if threads help; its decompressed columns have as much,
    /// and decoding takes four times either.
    const LINE_PART: usize = 16;
    /// The part for lines that are decoded ahead.
    const AHEAD_PART: usize = 8;
    /// The part for joined batches: they are held while their last line is decoded, and twice while they are joined.
    const JOINED_PART: usize = 4;

    /// Reads the options from the settings: `train_batch_size` (by default the worker's), divided among the workers, and
    /// `buffer_size` in bytes (1 GiB).
    ///
    /// # Errors
    /// [`SampleError::Input`] for invalid settings.
    pub fn from_context(context: &IoContext) -> Result<Self, SampleError> {
        let wrong = |error: ConfigError| SampleError::Input(error.to_string());
        let default = Self::default();
        let rows = context.config.get::<u32>("train_batch_size").map_err(wrong)?.unwrap_or(context.train_batch_size);
        let (worker_index, num_workers) = (context.worker.worker_index, context.worker.num_workers);
        Ok(Self {
            batch_size: rows.div_ceil(num_workers.max(1)).max(1) as usize,
            buffer_size: context.config.get("buffer_size").map_err(wrong)?.unwrap_or(default.buffer_size),
            shard: context.shard,
            seed: context.seed,
            worker_index,
            num_workers,
        })
    }

    fn limits(&self) -> JsonLimits {
        JsonLimits { decompressed: self.buffer_size / Self::LINE_PART }
    }

    /// Returns the terms for reading one of the files.
    fn terms(&self, file: usize, helpers: usize) -> Terms {
        Terms {
            shard: self.shard.map(|(shard, shards)| Shard { file: file as u64, shard, shards }),
            line: self.buffer_size / Self::LINE_PART,
            limits: self.limits(),
            ahead: self.buffer_size / Self::AHEAD_PART,
            helpers,
        }
    }
}

/// Callback for corrupt lines.
type BoxedOnCorrupt = Box<dyn FnMut(&Path, &JsonError) + Send>;

/// Reads batches from sample files, endlessly: the worker's index determines the first file, all others are drawn at random.
/// Corrupt lines are counted and skipped, unless there are too many in a row.
///
/// Workers of a run share the lines instead of all reading the same: line `l` of the `f`-th file belongs to shard `(f + l)
/// mod n`.
///
/// In files of more than a megabyte, lines are decoded ahead by as many threads as there are processors. That changes
/// neither the order, nor the counts, nor where an error is returned.
pub struct JsonReader {
    files: Vec<PathBuf>,
    options: JsonReaderOptions,
    draws: Draws,
    /// Files that may have batches for this worker.
    usable: Vec<usize>,
    open: Option<OpenFile>,
    started: bool,
    lines: JsonLines,
    on_corrupt: Option<BoxedOnCorrupt>,
    /// Number of corrupt lines already reported by [`losses`](InputReader::losses).
    reported_lines: u64,
    /// Number of helper threads.
    helpers: usize,
}

struct OpenFile {
    file: usize,
    lines: DecodedLines,
    /// True if it contained any batch.
    fruitful: bool,
}

/// The reader's position.
#[derive(Serialize, Deserialize)]
struct JsonPosition {
    /// Bytes of each file, to detect that it has changed.
    sizes: Vec<u64>,
    drawn: u64,
    started: bool,
    usable: Vec<u32>,
    /// The open file, and whether it contained any batch.
    open: Option<(u32, bool)>,
    counts: JsonCounts,
    reported_lines: u64,
}

impl JsonReader {
    /// Creates a reader of these files.
    ///
    /// # Errors
    /// [`OfflineError::NoFiles`] without any.
    pub fn new(files: Vec<PathBuf>, options: JsonReaderOptions) -> Result<Self, OfflineError> {
        if files.is_empty() {
            return Err(OfflineError::NoFiles("to read from".into()));
        }
        let draws = Draws::new(options.seed, options.worker_index, Choice::File);
        let lines = JsonLines::lenient(options.limits());
        let usable = (0..files.len()).collect();
        let (open, started) = (None, false);
        let helpers = helpers();
        Ok(Self { files, options, draws, usable, open, started, lines, on_corrupt: None, reported_lines: 0, helpers })
    }

    /// Overrides the number of helper threads.
    #[cfg(test)]
    pub(super) fn with_helpers(self, helpers: usize) -> Self {
        Self { helpers, ..self }
    }

    /// Sets a callback for corrupt lines, which are skipped.
    #[must_use]
    pub fn on_corrupt(mut self, hear: impl FnMut(&Path, &JsonError) + Send + 'static) -> Self {
        self.on_corrupt = Some(Box::new(hear));
        self
    }

    /// Returns the number of corrupt lines so far.
    #[must_use]
    pub fn corrupt_lines(&self) -> u64 {
        self.lines.corrupt_lines()
    }

    /// Returns the batches of the next lines, joined until there are at least [`batch_size`](JsonReaderOptions::batch_size)
    /// rows.
    ///
    /// # Errors
    /// [`OfflineError::Joined`] if the buffer is too small for that many rows; others. The next call continues after the
    /// error.
    pub fn next_batch(&mut self) -> Result<AnyBatch, OfflineError> {
        let JsonReaderOptions { batch_size, buffer_size, .. } = self.options;
        let room = buffer_size / JsonReaderOptions::JOINED_PART;
        let (mut batches, mut rows, mut bytes) = (Vec::new(), 0, 0);
        while rows < batch_size {
            let batch = self.next_record()?;
            (rows, bytes) = (rows + batch.env_steps(), bytes + batch.size_bytes());
            // A single batch is not joined and needs no further memory.
            if bytes > room && (rows < batch_size || !batches.is_empty()) {
                return Err(OfflineError::Joined { rows, bytes, room, batch_size, buffer_size });
            }
            batches.push(batch);
        }
        match <[AnyBatch; 1]>::try_from(batches) {
            Ok([only]) => Ok(only),
            Err(several) => Ok(AnyBatch::concat_common(&several)?),
        }
    }

    /// Returns the batch of the next line that has rows.
    fn next_record(&mut self) -> Result<AnyBatch, OfflineError> {
        loop {
            if self.open.is_none() {
                let file = self.choose()?;
                self.begin(file).inspect_err(|_| self.usable.retain(|other| *other != file))?;
            }
            let read = self.read_line();
            if let Err(OfflineError::Read { .. }) = read
                && let Some(broken) = self.open.take()
            {
                // Reading it would fail every time.
                self.usable.retain(|file| *file != broken.file);
            }
            match read? {
                Some(batch) if batch.agent_steps() > 0 => return Ok(batch),
                Some(_) => {}
                None => {
                    // It has no batches for this worker, so it is not read again.
                    if let Some(barren) = self.open.take().filter(|open| !open.fruitful) {
                        self.usable.retain(|file| *file != barren.file);
                    }
                }
            }
        }
    }

    fn choose(&mut self) -> Result<usize, OfflineError> {
        let files = self.files.len();
        if !std::mem::replace(&mut self.started, true) {
            let (index, total) = (self.options.worker_index, self.options.num_workers.max(1));
            let place = (files - 1) as f64 * (f64::from(index) / f64::from(total));
            return Ok((place.round_ties_even() as usize).min(files - 1));
        }
        let place = self.draws.below(self.usable.len());
        let no_data = || OfflineError::NoData {
            files,
            worker_index: self.options.worker_index,
            last: self.lines.last_error().map(ToString::to_string),
        };
        self.usable.get(place).copied().ok_or_else(no_data)
    }

    fn begin(&mut self, file: usize) -> Result<(), OfflineError> {
        let lines = DecodedLines::open(&self.files[file], self.options.terms(file, self.helpers))?;
        self.lines.begin_file();
        self.open = Some(OpenFile { file, lines, fruitful: false });
        Ok(())
    }

    /// Returns the next batch of the open file; `None` at its end.
    fn read_line(&mut self) -> Result<Option<AnyBatch>, OfflineError> {
        let Some(open) = &mut self.open else { return Ok(None) };
        let path = &self.files[open.file];
        loop {
            let before = self.lines.corrupt_lines();
            let read = match open.lines.next()? {
                Decoded::End => return Ok(None),
                Decoded::Passed => {
                    self.lines.skip();
                    continue;
                }
                Decoded::Line(found) => self.lines.take(found),
                Decoded::TooLong(bytes) => self.lines.too_long(bytes).map(|()| None),
            };
            if let Some(batch) = read.map_err(|source| OfflineError::Json { path: path.clone(), source })? {
                open.fruitful = true;
                return Ok(Some(batch));
            }
            if self.lines.corrupt_lines() > before
                && let (Some(hear), Some(error)) = (&mut self.on_corrupt, self.lines.last_error())
            {
                hear(path, error);
            }
        }
    }

    fn sizes(&self) -> Vec<u64> {
        // A missing file is reported when it is read.
        self.files.iter().map(|file| fs::metadata(file).map_or(0, |about| about.len())).collect()
    }

    fn restore_position(&mut self, position: JsonPosition) -> Result<(), OfflineError> {
        let JsonPosition { sizes, drawn, started, usable, open, counts, reported_lines } = position;
        let files = self.files.len();
        let known = |file: u32| (file as usize) < files;
        if sizes.len() != files || !usable.iter().copied().chain(open.map(|(file, _)| file)).all(known) {
            return Err(OfflineError::OtherFiles { then: sizes.len(), now: files });
        }
        let sizes = self.sizes().into_iter().zip(sizes);
        if let Some((path, (now, then))) = self.files.iter().zip(sizes).find(|(_, (now, then))| now != then) {
            return Err(OfflineError::Changed { path: path.clone(), then, now });
        }
        self.open = None;
        if let Some((file, fruitful)) = open {
            self.begin(file as usize)?;
            if let Some(open) = &mut self.open {
                open.lines.pass_over(counts.line)?;
                open.fruitful = fruitful;
            }
        }
        self.draws.skip_to(drawn);
        self.lines.restore_counts(counts);
        self.usable = usable.into_iter().map(|file| file as usize).collect();
        (self.started, self.reported_lines) = (started, reported_lines);
        Ok(())
    }

    /// Returns an iterator over every line of every file, once and in order; with a shard, over its lines.
    #[must_use]
    pub fn read_all_files(mut self) -> AllFiles {
        self.open = None;
        AllFiles { reader: self, next: 0, failed: false }
    }
}

/// Iterator over the batches of all files, each once.
pub struct AllFiles {
    reader: JsonReader,
    next: usize,
    failed: bool,
}

impl AllFiles {
    /// Returns the number of corrupt lines so far.
    #[must_use]
    pub fn corrupt_lines(&self) -> u64 {
        self.reader.corrupt_lines()
    }

    /// Returns the line of the latest batch, from 1; 0 before the first one of a file.
    #[must_use]
    pub fn line(&self) -> u64 {
        self.reader.open.as_ref().map_or(0, |_| self.reader.lines.counts().line)
    }

    /// Returns the number of bytes read of the open file; for an archive these are decompressed bytes.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.reader.open.as_ref().map_or(0, |open| open.lines.bytes_read())
    }

    fn advance(&mut self) -> Result<Option<AnyBatch>, OfflineError> {
        loop {
            if let Some(batch) = self.reader.read_line()? {
                return Ok(Some(batch));
            }
            if self.next == self.reader.files.len() {
                return Ok(None);
            }
            self.reader.begin(self.next)?;
            self.next += 1;
        }
    }
}

impl Iterator for AllFiles {
    type Item = Result<AnyBatch, OfflineError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let next = self.advance();
        self.failed = next.is_err();
        next.transpose()
    }
}

impl InputReader for JsonReader {
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        self.next_batch().map_err(|error| SampleError::Input(error.to_string()))
    }

    fn losses(&mut self) -> Losses {
        let corrupt = self.corrupt_lines();
        let corrupt_lines = corrupt - std::mem::replace(&mut self.reported_lines, corrupt);
        Losses { corrupt_lines, ..Losses::default() }
    }

    fn position(&self) -> Option<Position> {
        let number = |file: usize| u32::try_from(file).ok();
        let open = match &self.open {
            Some(open) => Some((number(open.file)?, open.fruitful)),
            None => None,
        };
        Some(Position::new(&JsonPosition {
            sizes: self.sizes(),
            drawn: self.draws.drawn(),
            started: self.started,
            usable: self.usable.iter().map(|file| number(*file)).collect::<Option<_>>()?,
            open,
            counts: self.lines.counts(),
            reported_lines: self.reported_lines,
        }))
    }

    fn set_position(&mut self, position: &Position) -> Result<(), SampleError> {
        self.restore_position(position.read()?).map_err(|error| SampleError::Input(error.to_string()))
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        self.open = None;
        Ok(())
    }
}
