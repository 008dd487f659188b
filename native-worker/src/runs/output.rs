//! The output of a run: its rows in files.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rollmesh_core::{
    batch::{AnyBatch, BatchError, Derived, MultiAgentBatch, SampleBatch, SlotFragment},
    ids::SlotId,
};
use serde::{Deserialize, Serialize};

use crate::offline::{
    OfflineError,
    json::{JsonWriter, JsonWriterOptions, SeriesPlace, is_series, new_series},
};

/// Writes the rows of a run as RLlib's JSON: the fragments of an iteration in one line, with the standard columns, or each batch
/// of the run's own worker in one. After a resume or rollback every iteration is still in the output exactly once.
#[derive(Clone)]
pub(super) struct RunOutput {
    directory: PathBuf,
    series: Arc<str>,
    num_slots: u32,
    open: Arc<Mutex<OpenOutput>>,
}

struct OpenOutput {
    /// `None` once the output is closed.
    writer: Option<JsonWriter>,
    derived: Derived,
}

/// The directory of an output, and how it is written.
pub(super) type OutputTarget<'a> = (&'a Path, JsonWriterOptions);

/// The position of a run's output between two iterations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OutputPlace {
    /// The prefix of the run's file names.
    series: String,
    at: SeriesPlace,
    /// Env steps in the files, by slot.
    steps: Vec<u64>,
    /// The iteration after which the files end.
    iteration: u64,
}

impl OutputPlace {
    /// Returns the start of a series.
    pub(super) fn start_of(series: String) -> Self {
        Self { series, at: SeriesPlace::default(), steps: Vec::new(), iteration: 0 }
    }

    /// Returns the iteration after which the files end.
    pub(super) fn iteration(&self) -> u64 {
        self.iteration
    }

    /// Returns false if the name could refer to files that do not belong to an output.
    pub(super) fn is_sound(&self) -> bool {
        is_series(&self.series)
    }
}

impl RunOutput {
    /// Creates an output with unique file names.
    pub(super) fn create((directory, options): OutputTarget<'_>, num_slots: u32) -> Result<Self, OfflineError> {
        let series = new_series(options.worker_index);
        let series = series.map_err(|source| OfflineError::write(directory.to_owned(), source))?;
        Ok(Self::reopen((directory, options), OutputPlace::start_of(series), num_slots)?.0)
    }

    /// Continues at a position; rows after it are removed, and will be recomputed. The result is false if the files are
    /// shorter than that.
    pub(super) fn reopen(
        (directory, options): OutputTarget<'_>,
        place: OutputPlace,
        num_slots: u32,
    ) -> Result<(Self, bool), OfflineError> {
        let OutputPlace { series, at, steps, iteration: _ } = place;
        let (writer, is_whole) = JsonWriter::in_series(directory, options, &series, at)?;
        let mut derived = Derived::default();
        (0..num_slots).map(SlotId).zip(steps).for_each(|(slot, steps)| derived.set_steps(slot, steps));
        let open = Arc::new(Mutex::new(OpenOutput { writer: Some(writer), derived }));
        Ok((Self { directory: directory.to_owned(), series: series.into(), num_slots, open }, is_whole))
    }

    fn open(&self) -> MutexGuard<'_, OpenOutput> {
        // A panic leaves complete lines behind.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes an iteration, of each fragment the first `wanted` rows; all rows if that is `None` or if there are several
    /// agents. Blocks on the disk.
    pub(super) fn write(&self, fragments: &[SlotFragment], wanted: Option<&[u64]>) -> Result<(), OfflineError> {
        let mut open = self.open();
        let OpenOutput { writer: Some(writer), derived } = &mut *open else { return Ok(()) };
        if fragments.iter().any(|fragment| fragment.agents.is_some()) {
            let agents = fragments.iter().filter_map(|fragment| fragment.agents.as_ref());
            return writer.append(&MultiAgentBatch::concat(agents)?.into());
        }
        // Columns derived from the next row need the whole fragment, so it is cut afterwards.
        let rows = SampleBatch::from_fragments(fragments, derived)?;
        let rows = match wanted {
            None => rows,
            Some(wanted) => first_rows(&rows, fragments, wanted)?,
        };
        if rows.is_empty() { Ok(()) } else { writer.append(&rows.into()) }
    }

    /// Writes the batches of an iteration. Blocks on the disk.
    pub(super) fn append(&self, batches: Vec<AnyBatch>) -> Result<(), OfflineError> {
        let mut open = self.open();
        let Some(writer) = &mut open.writer else { return Ok(()) };
        batches.into_iter().try_for_each(|mut batch| {
            match &mut batch {
                AnyBatch::Single(rows) => rows.decompress_if_needed()?,
                AnyBatch::Multi(rows) => rows.decompress_if_needed()?,
            }
            writer.append(&batch)
        })
    }

    /// Returns the position after an iteration, while nothing is being written.
    pub(super) fn place(&self, iteration: u64) -> Option<OutputPlace> {
        let open = self.open();
        let at = open.writer.as_ref()?.place();
        let steps = (0..self.num_slots).map(|slot| open.derived.steps(SlotId(slot))).collect();
        Some(OutputPlace { series: self.series().into(), at, steps, iteration })
    }

    /// Returns the prefix of the file names.
    pub(super) fn series(&self) -> &str {
        &self.series
    }

    /// Returns the directory of the files.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Flushes everything written so far to disk, which writing does not wait for.
    pub(super) fn sync(&self) -> io::Result<()> {
        let file = self.open().writer.as_ref().map_or(Ok(None), JsonWriter::share_open)?;
        file.map_or(Ok(()), |file| file.sync_data())?;
        // Other systems cannot open directories and flush names by themselves.
        if cfg!(unix) { File::open(&self.directory)?.sync_all() } else { Ok(()) }
    }

    /// Closes the output: nothing more is written, not even by a pending write.
    pub(super) fn close(&self) {
        self.open().writer = None;
    }
}

/// Returns the first `wanted` rows of each fragment.
fn first_rows(rows: &SampleBatch, fragments: &[SlotFragment], wanted: &[u64]) -> Result<SampleBatch, BatchError> {
    let mut at = 0;
    let pieces = fragments.iter().zip(wanted).map(|(fragment, wanted)| {
        let from = at;
        at += fragment.rows.len();
        rows.slice(from as i64, from + *wanted as usize)
    });
    SampleBatch::concat(&pieces.collect::<Result<Vec<_>, _>>()?)
}
