//! Where converted batches go, and what is lost there.

use std::{
    collections::{BTreeSet, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
};

use rollmesh_core::{
    batch::{
        AnyBatch, Continuation, EPS_ID, NEW_OBS, OBS, OpenEpisodes, REWARDS, SampleBatch, TERMINATEDS, TRUNCATEDS,
    },
    column::{Column, ColumnData},
    offline::{COMPRESS_COLUMNS, JsonLimits, decode_record, encode_record, survey::Steps, with_usual_types},
};

use crate::{
    cli::exit::Failure,
    offline::{
        dataset::DatasetError,
        json::{JsonWriter, JsonWriterOptions},
        minari::{MinariInfo, MinariWriter},
        parquet::{ParquetOptions, ParquetWriter},
    },
};

/// A format that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Target {
    /// RLlib's sample files
    Json,
    /// Tables
    Parquet,
    /// A data set that `minari` reads, in its Parquet layout
    Minari,
}

/// The rows of a batch for Minari.
pub(super) fn single(batch: &AnyBatch) -> Result<&SampleBatch, Failure> {
    let refused = |error| format!("minari holds episodes of single agents, and {error}: take --to json or parquet");
    batch.single().map_err(|error| Failure::usage(refused(error)))
}

/// What the target does not hold, in words.
pub(super) type Losses = BTreeSet<String>;

/// Writes batches.
pub(super) enum Sink {
    Json(Box<JsonSink>),
    Parquet { writer: Box<ParquetWriter>, folder: PathBuf },
    Minari(Box<MinariSink>),
}

/// Gathers batches, whose lines are made by several threads.
pub(super) struct JsonSink {
    writer: JsonWriter,
    folder: PathBuf,
    gathered: VecDeque<Arc<AnyBatch>>,
    seen: BTreeSet<String>,
}

/// Puts episodes together, which Minari writes as a whole.
pub(super) struct MinariSink {
    writer: MinariWriter,
    folder: PathBuf,
    /// Pieces of episodes that have not ended yet, by their ids.
    open: OpenEpisodes<Unfinished>,
    /// Episodes that were given an end.
    cut_off: usize,
    episodes: i64,
}

/// An episode without an end so far.
struct Unfinished {
    id: Option<i64>,
    pieces: Vec<SampleBatch>,
}

impl Sink {
    pub(super) fn json(folder: &Path, max_file_size: u64) -> Result<Self, Failure> {
        let options = JsonWriterOptions { max_file_size, ..JsonWriterOptions::default() };
        let writer = JsonWriter::new(folder, options).map_err(Failure::usage)?;
        let (gathered, seen) = (VecDeque::new(), BTreeSet::new());
        Ok(Self::Json(Box::new(JsonSink { writer, folder: folder.into(), gathered, seen })))
    }

    pub(super) fn parquet(folder: &Path, max_file_size: u64) -> Result<Self, Failure> {
        let options = ParquetOptions { max_file_size, ..ParquetOptions::default() };
        let writer = ParquetWriter::new(folder, "part", options).map_err(Failure::usage)?;
        Ok(Self::Parquet { writer: Box::new(writer), folder: folder.into() })
    }

    pub(super) fn minari(folder: &Path, info: MinariInfo) -> Result<Self, Failure> {
        let writer = MinariWriter::create(folder, info).map_err(Failure::usage)?;
        let open = OpenEpisodes::default();
        Ok(Self::Minari(Box::new(MinariSink { writer, folder: folder.into(), open, cut_off: 0, episodes: 0 })))
    }

    pub(super) fn folder(&self) -> &Path {
        match self {
            Self::Json(sink) => &sink.folder,
            Self::Parquet { folder, .. } => folder,
            Self::Minari(sink) => &sink.folder,
        }
    }

    /// Another file of the input begins.
    pub(super) fn begin_file(&mut self, losses: &mut Losses) -> Result<(), Failure> {
        let Self::Minari(sink) = self else { return Ok(()) };
        let unknown = sink.open.begin_file();
        unknown.into_iter().try_for_each(|episode| sink.cut_off(episode, losses)).map_err(Failure::other)
    }

    pub(super) fn write(&mut self, batch: &AnyBatch, losses: &mut Losses) -> Result<(), Failure> {
        match self {
            Self::Json(sink) => sink.write(batch, losses),
            Self::Parquet { writer, .. } => writer.write(batch).map_err(Failure::other),
            Self::Minari(sink) => sink.write(single(batch)?, losses).map_err(Failure::other),
        }
    }

    /// Writes what is gathered.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        if let Self::Json(sink) = self { sink.flush() } else { Ok(()) }
    }

    pub(super) fn finish(self, losses: &mut Losses) -> Result<(), Failure> {
        match self {
            Self::Json(mut sink) => sink.flush(),
            Self::Parquet { mut writer, .. } => writer.finish().map(drop).map_err(Failure::other),
            Self::Minari(mut sink) => sink.finish(losses).map_err(Failure::other),
        }
    }
}

impl JsonSink {
    fn write(&mut self, batch: &AnyBatch, losses: &mut Losses) -> Result<(), Failure> {
        // What is lost depends on names and types alone.
        if self.seen.insert(kind(batch)) {
            json_losses(batch, losses)?;
        }
        self.gathered.push_back(Arc::new(batch.clone()));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.writer.append_all(&mut self.gathered).map_err(Failure::other)
    }
}

/// Columns, types and flags of a batch.
fn kind(batch: &AnyBatch) -> String {
    let of = |rows: &SampleBatch| {
        let columns = rows.iter().map(|(name, column)| (name.to_owned(), column.column_type(), column.shape()));
        let flags = (rows.is_training(), rows.num_grad_updates().is_some(), rows.seq_lens().is_some());
        format!("{:?} {flags:?}", columns.collect::<Vec<_>>())
    };
    let policies = batch.as_multi_agent().policy_batches;
    policies.iter().map(|(id, rows)| format!("{id} {}\n", of(rows))).collect()
}

/// What a line says otherwise than the batch: found by reading it.
fn json_losses(batch: &AnyBatch, losses: &mut Losses) -> Result<(), Failure> {
    let mut line = Vec::new();
    encode_record(batch, &COMPRESS_COLUMNS, &mut line).map_err(Failure::usage)?;
    let limits = JsonLimits { decompressed: usize::MAX };
    let back = decode_record(&line, &limits).map_err(Failure::other)?;
    let back = with_usual_types(back).map_err(Failure::other)?.as_multi_agent();
    for (id, rows) in batch.as_multi_agent().policy_batches {
        let Some(found) = back.policy_batch(&id) else {
            losses.insert(format!("policy {id}, which has no rows"));
            continue;
        };
        for (name, column) in rows.iter() {
            let plain = column.decompress().map_err(Failure::other)?;
            match found.column(name) {
                None => _ = losses.insert(format!("column '{name}'")),
                Some(found) if found.column_type() != plain.column_type() => {
                    let (was, is) = (plain.column_type(), found.column_type());
                    losses.insert(format!("the type of column '{name}': {was} comes back as {is}"));
                }
                Some(found) if found.shape() != plain.shape() => {
                    losses.insert(format!(
                        "the shape of column '{name}': {} comes back as {}",
                        plain.shape(),
                        found.shape()
                    ));
                }
                Some(found) if !found.same_bits(&plain) => _ = losses.insert(format!("numbers of column '{name}'")),
                Some(_) => {}
            }
        }
        if rows.num_grad_updates() != found.num_grad_updates() {
            losses.insert("num_grad_updates, the updates behind the weights that acted".into());
        }
        if rows.seq_lens() != found.seq_lens() {
            losses.insert("lengths of sequences".into());
        }
    }
    Ok(())
}

impl MinariSink {
    fn write(&mut self, batch: &SampleBatch, losses: &mut Losses) -> Result<(), DatasetError> {
        let mut rows = batch.clone();
        rows.decompress_if_needed()?;
        for (name, column) in rows.iter() {
            let first = name.split('.').next().unwrap_or_default();
            let known = [OBS.name(), NEW_OBS.name(), "actions"].contains(&first);
            let flags = [REWARDS.name(), TERMINATEDS.name(), TRUNCATEDS.name()].contains(&name);
            if !known && !flags && !["t", EPS_ID.name()].contains(&name) {
                losses.insert(format!("column '{name}'"));
            }
            if let (Column::F64(data), true) = (column, name == REWARDS.name())
                && data.values().iter().any(|x| f64::from(*x as f32) != *x)
            {
                losses.insert("digits of rewards beyond 32 bits".into());
            }
        }
        for piece in rows.split_by_trajectory()? {
            let steps = Steps::of(&piece);
            let key = steps.keys.first().copied().unwrap_or_default();
            let mut episode = match self.open.place(key, steps.t(0), false) {
                Continuation::GoesOn(episode) => episode,
                Continuation::Begins => Unfinished { id: steps.has_ids.then_some(key.0), pieces: Vec::new() },
                Continuation::Instead(before) => {
                    self.cut_off(before, losses)?;
                    Unfinished { id: steps.has_ids.then_some(key.0), pieces: Vec::new() }
                }
            };
            episode.pieces.push(piece);
            if steps.ends.last() == Some(&true) {
                self.episode(episode.id, &episode.pieces, losses)?;
            } else {
                self.open.leave(key, steps.after(), episode);
            }
        }
        Ok(())
    }

    fn episode(&mut self, id: Option<i64>, pieces: &[SampleBatch], losses: &mut Losses) -> Result<(), DatasetError> {
        if id.is_some_and(|id| id != self.episodes) {
            losses.insert("numbers of episodes: they are numbered from 0".into());
        }
        self.episodes += 1;
        self.writer.write_episode(&SampleBatch::concat(pieces)?)
    }

    /// Episodes without an end get one: Minari has no other.
    fn cut_off(&mut self, episode: Unfinished, losses: &mut Losses) -> Result<(), DatasetError> {
        self.cut_off += 1;
        let mut whole = SampleBatch::concat(&episode.pieces)?;
        let rows = whole.len();
        whole.insert(TRUNCATEDS.name(), ColumnData::scalars((1..=rows).map(|row| row == rows).collect()))?;
        self.episode(episode.id, &[whole], losses)
    }

    fn finish(&mut self, losses: &mut Losses) -> Result<(), DatasetError> {
        for episode in std::mem::take(&mut self.open).into_values() {
            self.cut_off(episode, losses)?;
        }
        if self.cut_off > 0 {
            losses.insert(format!("that {} episodes have no end: their last steps are truncated", self.cut_off));
        }
        Ok(())
    }
}
