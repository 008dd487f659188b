//! Writing episodes in Minari's Parquet layout.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use rollmesh_core::{
    batch::{AnyBatch, BatchError, Continuation, NEW_OBS, OBS, OpenEpisodes, REWARDS, SampleBatch, T, TRUNCATEDS},
    column::ColumnData,
};
use rollmesh_data::{
    dataset::{DatasetError, beyond_32_bits, has_more_digits},
    limits::DEFAULT_BUFFER,
    minari::{MinariDataset, MinariInfo, MinariWriter},
    survey::Steps,
};

use super::{
    BatchSink, kind,
    losses::{self, Losses},
    single,
};
use crate::cli::exit::Failure;

/// Assembles episodes, which Minari writes as a whole.
pub(super) struct MinariSink {
    writer: MinariWriter,
    folder: PathBuf,
    /// Pieces of episodes that have not ended yet, by their ids.
    open: OpenEpisodes<Unfinished>,
    /// Number of episodes that were truncated here.
    cut_off: usize,
    episodes: usize,
    /// Kinds of episodes whose losses are known.
    seen: BTreeSet<String>,
}

/// An episode without an end so far.
struct Unfinished {
    id: Option<i64>,
    pieces: Vec<SampleBatch>,
}

impl MinariSink {
    pub(super) fn new(folder: &Path, info: MinariInfo) -> Result<Self, Failure> {
        let writer = MinariWriter::create(folder, info).map_err(Failure::usage)?;
        let (folder, open, seen) = (folder.into(), OpenEpisodes::default(), BTreeSet::new());
        Ok(Self { writer, folder, open, cut_off: 0, episodes: 0, seen })
    }

    fn add(&mut self, rows: &SampleBatch, losses: &mut Losses) -> Result<(), DatasetError> {
        // Columns without rows may be of any type.
        let pieces = if rows.is_empty() { Vec::new() } else { rows.split_by_trajectory()? };
        let mut is_whole = pieces.len() == 1;
        for piece in pieces {
            let steps = Steps::of(&piece);
            let key = steps.keys.first().copied().unwrap_or_default();
            let begun = Unfinished { id: steps.has_ids.then_some(key.0), pieces: Vec::new() };
            let mut episode = match self.open.place(key, steps.t(0), false) {
                Continuation::GoesOn(episode) => {
                    is_whole = false;
                    episode
                }
                Continuation::Begins => begun,
                Continuation::Instead(before) => {
                    self.cut_off(before, losses)?;
                    begun
                }
            };
            episode.pieces.push(piece);
            if steps.ends.last() == Some(&true) {
                self.episode(episode, losses)?;
            } else {
                self.open.leave(key, steps.after(), episode);
            }
        }
        if !is_whole {
            losses.insert("which rows were in one batch: episodes are whole".into());
        }
        Ok(())
    }

    fn episode(&mut self, episode: Unfinished, losses: &mut Losses) -> Result<(), DatasetError> {
        let rows = SampleBatch::concat(&episode.pieces)?;
        self.writer.write_episode(&rows)?;
        if episode.id.is_some_and(|id| usize::try_from(id) != Ok(self.episodes)) {
            losses.insert("numbers of episodes: they are numbered from 0".into());
        }
        other_numbers(&rows, losses);
        if self.seen.insert(kind(&rows)) {
            losses::columns(&rows, &self.read_again(&rows)?, losses);
        }
        self.episodes += 1;
        Ok(())
    }

    /// Reads back the latest episode.
    fn read_again(&self, written: &SampleBatch) -> Result<SampleBatch, DatasetError> {
        // The buffer holds all of it several times.
        let dataset = MinariDataset::open(&self.folder, DEFAULT_BUFFER.max(8 * written.size_bytes()))?;
        let missing = || BatchError::MissingColumn(OBS.name().into());
        dataset.episode(self.episodes)?.ok_or_else(missing)?.batch()
    }

    /// Truncates an episode without an end, which Minari does not support.
    fn cut_off(&mut self, episode: Unfinished, losses: &mut Losses) -> Result<(), DatasetError> {
        self.cut_off += 1;
        let mut whole = SampleBatch::concat(&episode.pieces)?;
        let rows = whole.len();
        whole.insert(TRUNCATEDS.name(), ColumnData::scalars((1..=rows).map(|row| row == rows).collect()))?;
        self.episode(Unfinished { pieces: vec![whole], ..episode }, losses)
    }
}

impl BatchSink for MinariSink {
    fn begin_file(&mut self, losses: &mut Losses) -> Result<(), Failure> {
        let unknown = self.open.begin_file();
        unknown.into_iter().try_for_each(|episode| self.cut_off(episode, losses)).map_err(Failure::other)
    }

    fn write(&mut self, batch: &AnyBatch, losses: &mut Losses) -> Result<(), Failure> {
        let mut rows = single(batch)?.clone();
        if rows.zero_padded() {
            return Err(Failure::usage("padding is no step of an episode, as minari holds them: take --to parquet"));
        }
        if matches!(batch, AnyBatch::Multi(_)) {
            losses.insert("that batches are of policies by name, and their env steps".into());
        }
        losses::of_all_rows(&rows, &SampleBatch::new(), losses);
        rows.decompress_if_needed().map_err(Failure::other)?;
        self.add(&rows, losses).map_err(Failure::other)
    }

    fn finish(&mut self, losses: &mut Losses) -> Result<(), Failure> {
        for episode in std::mem::take(&mut self.open).into_values() {
            self.cut_off(episode, losses).map_err(Failure::other)?;
        }
        if self.cut_off > 0 {
            losses.insert(format!("that {} episodes have no end: their last steps are truncated", self.cut_off));
        }
        Ok(())
    }
}

/// Adds numbers of an episode that Minari does not hold, or holds differently.
fn other_numbers(rows: &SampleBatch, losses: &mut Losses) {
    if rows.column(REWARDS.name()).is_some_and(has_more_digits) {
        losses.insert(beyond_32_bits(REWARDS.name()));
    }
    if Steps::of(rows).ts.is_some_and(|ts| ts.iter().zip(0..).any(|(t, step)| *t != step)) {
        losses.insert(format!("numbers of column '{}': the steps of an episode are counted from 0", T.name()));
    }
    let last = rows.len().saturating_sub(1);
    for (name, column) in rows.iter() {
        let Some(rest) = name.strip_prefix(OBS.name()).filter(|rest| rest.is_empty() || rest.starts_with('.')) else {
            continue;
        };
        let name = format!("{}{rest}", NEW_OBS.name());
        let next = rows.column(&name);
        if next.is_some_and(|next| !next.slice(0..last).same_bits(&column.slice(1..rows.len()))) {
            losses.insert(format!("numbers of column '{name}': what follows on a step is the next one's observation"));
        }
    }
}
