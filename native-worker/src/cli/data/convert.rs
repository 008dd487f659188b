//! `rollmesh data convert`, `merge` and `split`.

use std::{
    fs,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, OnceLock},
};

use clap::{Args, ValueEnum as _};
use rollmesh_core::{
    batch::{AnyBatch, Continuation, OBS, OpenEpisodes, SampleBatch},
    space::Space,
};
use rollmesh_data::{
    dataset::BatchStream as _,
    minari::MinariInfo,
    survey::{RowSpaces, Steps},
    with_usual_types,
};
use serde_json::{Map, json};

use super::{
    InputArgs, Reading,
    actions::{ActionArgs, Actions, has_float_actions},
    env_spaces::row_spaces,
    losses::{self, Losses},
    numbers::short,
    renumber::Numbers,
    sink::{self, BatchSink, DataFormat, single},
    spaces::{SeenSpaces, dataset_id},
};
use crate::{
    Registry,
    cli::{exit::Failure, signals::Interruption, table::count},
    offline::{
        inputs::Format,
        logged::{Logged, LoggedPlace},
    },
    terminal::printable,
};

/// Bytes that are read before the gathered rows are written: enough for all threads.
const GATHERED: usize = 4 << 20;

/// Difference from its share of the rows above which a part is reported.
const FAR_FROM_SHARE: f64 = 0.05;

/// The input, the output and the settings of a conversion.
#[derive(Args)]
pub(super) struct ConvertArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Folder to write to
    ///
    /// It is created if it does not exist
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Format: json, parquet or minari [default: the first file's]
    ///
    /// minari is Minari's Parquet layout. Of D4RL's files the default is parquet
    #[arg(long, value_name = "FORMAT", value_parser = target)]
    to: Option<DataFormat>,
    /// Bytes after which a new file begins
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    max_file_size: u64,
    /// Environment of the rows, for its spaces and bounds
    ///
    /// Actions are converted between its bounds, as D4RL and Minari have them, and policies' [-1, 1], as JSON and Parquet have
    /// them. minari also needs spaces [default: as the rows show them]
    #[arg(long)]
    env: Option<String>,
    #[command(flatten)]
    actions: ActionArgs,
    /// For minari: id of the data set
    ///
    /// [default: the last two folders of --output]
    #[arg(long, value_name = "ID")]
    dataset_id: Option<String>,
}

#[derive(Args)]
pub(super) struct SplitArgs {
    #[command(flatten)]
    to: ConvertArgs,
    /// What each part gets of the rows; the sum is 1
    #[arg(long, value_delimiter = ',', default_value = "0.9,0.1")]
    fractions: Vec<f64>,
}

fn target(text: &str) -> Result<DataFormat, String> {
    DataFormat::from_str(text, true).map_err(|_| match text {
        "hdf5" | "h5" | "d4rl" => {
            "HDF5 is read, but not written: take minari, whose Parquet layout the minari package reads, too".into()
        }
        _ => "json, parquet and minari can be written".into(),
    })
}

pub(super) fn convert(args: &ConvertArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    ConvertJob::open(args, registry, vec![args.output.clone()])?.run(|batch, _, _| Ok(vec![(0, batch)]))
}

pub(super) fn merge(args: &ConvertArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    let mut numbers = Numbers::default();
    let job = ConvertJob::open(args, registry, vec![args.output.clone()])?;
    let is_json = job.target == DataFormat::Json;
    job.run(|mut batch, place, losses| {
        // Lines of JSON do not contain types; usual types make the rows of all other files compatible.
        if !is_json {
            let usual = with_usual_types(batch.clone()).map_err(Failure::other)?;
            losses::digits(&batch, &usual, losses)?;
            batch = usual;
        }
        if place.is_first {
            numbers.begin_file();
        }
        numbers.renumber(&mut batch).map_err(Failure::other)?;
        Ok(vec![(0, batch)])
    })
}

pub(super) fn split(args: &SplitArgs, registry: &Registry) -> Result<ExitCode, Failure> {
    if let Some(part) = args.fractions.iter().find(|part| !(0.0..=1.0).contains(*part)) {
        return Err(Failure::usage(format!("--fractions: {part} is not from 0 to 1")));
    }
    let sum: f64 = args.fractions.iter().sum();
    if (sum - 1.0).abs() > 1e-9 {
        return Err(Failure::usage(format!("--fractions: the sum is {sum}, not 1")));
    }
    let parts = 0..args.fractions.len();
    let folders = parts.clone().map(|part| args.to.output.join(format!("part-{part}"))).collect();
    let mut deal = Deal { fractions: &args.fractions, rows: parts.map(|_| 0).collect(), open: OpenEpisodes::default() };
    let job = ConvertJob { shares: &args.fractions, ..ConvertJob::open(&args.to, registry, folders)? };
    job.run(|batch, place, _| {
        if place.is_first {
            deal.open.begin_file();
        }
        let AnyBatch::Single(rows) = batch else {
            let part = deal.next();
            deal.count(part, batch.agent_steps());
            return Ok(vec![(part, batch)]);
        };
        let mut dealt = Vec::new();
        // Columns without rows may be of any type.
        if rows.is_empty() {
            return Ok(dealt);
        }
        for piece in rows.split_by_trajectory().map_err(Failure::other)? {
            let part = deal.part(&piece);
            deal.count(part, piece.len());
            dealt.push((part, piece.into()));
        }
        Ok(dealt)
    })
}

/// Assigns episodes to parts: each to the part that is furthest below its share.
struct Deal<'a> {
    fractions: &'a [f64],
    rows: Vec<u64>,
    /// The parts of episodes that continue in later batches.
    open: OpenEpisodes<usize>,
}

impl Deal<'_> {
    fn next(&self) -> usize {
        let total = self.rows.iter().sum::<u64>() as f64;
        let lacks = |part: usize| self.fractions[part] * (total + 1.0) - self.rows[part] as f64;
        (0..self.rows.len()).max_by(|a, b| lacks(*a).total_cmp(&lacks(*b)).then(b.cmp(a))).unwrap_or(0)
    }

    fn part(&mut self, piece: &SampleBatch) -> usize {
        let steps = Steps::of(piece);
        let key = steps.keys.first().copied().unwrap_or_default();
        let part = match self.open.place(key, steps.t(0), false) {
            Continuation::GoesOn(part) => part,
            Continuation::Begins | Continuation::Instead(_) => self.next(),
        };
        if steps.ends.last() != Some(&true) {
            self.open.leave(key, steps.after(), part);
        }
        part
    }

    fn count(&mut self, part: usize, rows: usize) {
        self.rows[part] += rows as u64;
    }
}

/// A conversion from an input to one or more outputs.
struct ConvertJob<'a> {
    args: &'a ConvertArgs,
    target: DataFormat,
    logged: Logged,
    reading: Reading,
    folders: Vec<PathBuf>,
    /// One of each folder.
    sinks: Vec<Box<dyn BatchSink>>,
    actions: Actions,
    losses: Losses,
    /// The first line that does not fit into the buffer.
    too_long: Arc<OnceLock<String>>,
    /// The share of the rows that each of several outputs gets.
    shares: &'a [f64],
    interruption: Interruption,
}

impl<'a> ConvertJob<'a> {
    fn open(args: &'a ConvertArgs, registry: &Registry, folders: Vec<PathBuf>) -> Result<Self, Failure> {
        let too_long = Arc::new(OnceLock::new());
        let first_too_long = too_long.clone();
        let mut logged = args.input.open()?.on_corrupt(move |path, error| {
            if error.exceeds_limit() {
                let _ = first_too_long.set(format!("{}: {error}", path.display()));
            }
        });
        let first = logged.files().first().map(|file| file.format);
        let target = args.to.unwrap_or(match first {
            Some(Format::Json) => DataFormat::Json,
            Some(Format::Minari) => DataFormat::Minari,
            _ => DataFormat::Parquet,
        });
        // An output must not contain files of the input.
        for folder in &folders {
            if folder.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
                return Err(Failure::usage(format!("{} is not empty: choose another --output", folder.display())));
            }
        }
        let interruption = Interruption::watch();
        let reading = args.input.progress(&logged);
        let env = args.env.as_ref().map(|env| row_spaces(env, registry)).transpose()?;
        let actions = Actions::new(&args.actions, target, env.as_ref().map(|spaces| spaces.env.action.clone()));
        let spaces = match (target, &env) {
            (DataFormat::Minari, Some(env)) => Some(env_spaces(&mut logged, env)?),
            (DataFormat::Minari, None) => Some(seen_spaces(&mut logged, &actions)?),
            _ => None,
        };
        let make = |folder: &PathBuf| match (target, spaces.clone()) {
            (DataFormat::Minari, Some((observation_space, action_space))) => {
                let dataset_id = args.dataset_id.clone().unwrap_or_else(|| dataset_id(folder));
                sink::minari(folder, MinariInfo { dataset_id, observation_space, action_space, more: Map::new() })
            }
            (DataFormat::Json, _) => sink::json(folder, args.max_file_size),
            _ => sink::parquet(folder, args.max_file_size),
        };
        let sinks = folders.iter().map(make).collect::<Result<_, _>>()?;
        let losses = Losses::new();
        Ok(Self { args, target, logged, reading, folders, sinks, actions, losses, too_long, shares: &[], interruption })
    }

    /// Writes every batch to the sinks that `deal` returns, in the form that it returns.
    fn run(
        self,
        mut deal: impl FnMut(AnyBatch, LoggedPlace, &mut Losses) -> Result<Vec<(usize, AnyBatch)>, Failure>,
    ) -> Result<ExitCode, Failure> {
        let Self {
            args,
            target: _,
            mut logged,
            reading,
            folders,
            mut sinks,
            actions,
            mut losses,
            too_long,
            shares,
            interruption,
        } = self;
        let check_limit = || match too_long.get() {
            Some(line) => {
                Err(Failure::other(format!("{line}, with --buffer-size, of which a sixteenth may be one line")))
            }
            None => Ok(()),
        };
        let formats: Vec<Format> = logged.files().iter().map(|file| file.format).collect();
        let (mut steps, mut read) = (vec![0; sinks.len()], 0);
        let dealt = reading.each(&mut logged, |batch, place| {
            if interruption.is_noticed() {
                return Err(Failure::Interrupted("what was written is removed, since it was not all".into()));
            }
            if place.is_first {
                sinks.iter_mut().try_for_each(|sink| sink.begin_file(&mut losses))?;
            }
            check_limit()?;
            read += batch.size_bytes();
            let batch = match formats.get(place.file) {
                Some(from) => actions.converted(batch, *from, &mut losses)?,
                None => batch,
            };
            for (part, batch) in deal(batch, place, &mut losses)? {
                if let (Some(sink), Some(steps)) = (sinks.get_mut(part), steps.get_mut(part)) {
                    *steps += batch.env_steps() as u64;
                    sink.write(&batch, &mut losses)?;
                }
            }
            // Gathered rows may keep their whole batches in memory.
            if read >= GATHERED {
                read = 0;
                sinks.iter_mut().try_for_each(|sink| sink.flush())?;
            }
            Ok(())
        });
        let dealt = dealt.and_then(|()| check_limit());
        if let Err(failure @ Failure::Interrupted(_)) = dealt {
            drop(sinks);
            // The folders were empty before.
            for folder in folders {
                let failed = |error| Failure::other(format!("cannot remove {}: {error}", folder.display()));
                fs::remove_dir_all(&folder).map_err(failed)?;
            }
            return Err(failure);
        }
        if let Err(failure) = dealt {
            // The rows that were read before are kept.
            sinks.iter_mut().try_for_each(|sink| sink.flush())?;
            report_losses(&losses);
            return Err(failure);
        }
        reading.progress.finish();
        sinks.iter_mut().try_for_each(|sink| sink.finish(&mut losses))?;
        drop(sinks);
        losses.extend(logged.left_out());
        let corrupt = logged.corrupt_lines();
        if corrupt > 0 && logged.place().is_none() {
            return Err(Failure::other(format!(
                "none of {} is a batch (see `rollmesh data validate`)",
                count(corrupt, "line")
            )));
        }
        if corrupt > 0 {
            losses.insert(format!("{corrupt} corrupt lines (see `rollmesh data validate`)"));
        }
        if args.input.json {
            let outputs = folders.iter().zip(&steps).map(|(path, steps)| json!({"path": path, "env_steps": steps}));
            println!("{}", json!({"outputs": outputs.collect::<Vec<_>>(), "lost": losses}));
            return Ok(ExitCode::SUCCESS);
        }
        report_shares(shares, &steps);
        folders.iter().zip(&steps).for_each(|(path, steps)| println!("{}: {steps} env steps", path.display()));
        if losses.is_empty() {
            println!("nothing is lost");
        }
        report_losses(&losses);
        Ok(ExitCode::SUCCESS)
    }
}

/// Reports the losses in the written files.
fn report_losses(losses: &Losses) {
    losses.iter().for_each(|what| eprintln!("lost: {}", printable(what)));
}

/// Reports parts that differ much from their shares, which few or long episodes cannot meet.
fn report_shares(shares: &[f64], steps: &[u64]) {
    let total = steps.iter().sum::<u64>().max(1) as f64;
    for (part, (share, steps)) in shares.iter().zip(steps).enumerate() {
        let found = *steps as f64 / total;
        if (found - share).abs() > FAR_FROM_SHARE {
            let (found, share) = (short((1000.0 * found).round() / 10.0), short(100.0 * share));
            eprintln!(
                "note: part-{part} has {found} % of the env steps, not {share} %: episodes, and batches of several agents, stay whole"
            );
        }
    }
}

/// Returns the spaces of an environment: of observations the one that the first rows have, for which they are read once more,
/// or the environment's own if they have none of them.
fn env_spaces(logged: &mut Logged, spaces: &RowSpaces) -> Result<(Space, Space), Failure> {
    let mut observation = spaces.env.observation.clone();
    while let Some(batch) = logged.next_batch().map_err(Failure::other)? {
        let mut rows = single(&batch)?.clone();
        if rows.is_empty() {
            continue;
        }
        rows.decompress_if_needed().map_err(Failure::other)?;
        if let Some(space) = rows.column(OBS.name()).and_then(|column| spaces.observation_of(column)) {
            observation = space.clone();
        }
        break;
    }
    logged.rewind().map_err(Failure::other)?;
    Ok((observation, spaces.env.action.clone()))
}

/// Returns the spaces that the rows show, which are read once more for that.
fn seen_spaces(logged: &mut Logged, actions: &Actions) -> Result<(Space, Space), Failure> {
    let (mut seen, mut has_floats) = (SeenSpaces::default(), false);
    while let Some(batch) = logged.next_batch().map_err(Failure::other)? {
        let mut rows = single(&batch)?.clone();
        rows.decompress_if_needed().map_err(Failure::other)?;
        has_floats |= has_float_actions(&rows);
        seen.add(&rows);
    }
    logged.rewind().map_err(Failure::other)?;
    actions.check(logged.files().iter().map(|file| file.format), has_floats)?;
    seen.finish()
}
