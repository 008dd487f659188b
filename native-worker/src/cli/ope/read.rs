//! Reading the log.

use rollmesh_core::{
    batch::{
        ACTION_LOGP, ACTION_PROB, ACTIONS, AGENT_INDEX, EPS_ID, NEW_OBS, OBS, REWARDS, SampleBatch, T, TERMINATEDS,
        TRUNCATEDS,
    },
    column::ColumnData,
    estimate::{EpisodeLog, EstimateError, LoggedEpisodes, NEW_ACTION_PROB, check_rows},
    ids::PolicyId,
    policy::{Judge, JudgeError, PolicyError},
    preprocess::Preprocessor,
};
use rollmesh_data::{dataset::BatchStream as _, encode_observations, with_usual_types};

use super::OpeArgs;
use crate::{
    cli::exit::Failure,
    cli::progress::Progress,
    offline::{
        self,
        logged::{Logged, LoggedPlace},
    },
};

/// The columns that every estimator needs.
const COLUMNS: [&str; 4] = [REWARDS.name(), TERMINATEDS.name(), ACTION_PROB.name(), NEW_ACTION_PROB];
/// Those that value models learn from.
const OF_MODELS: [&str; 3] = [OBS.name(), NEW_OBS.name(), ACTIONS.name()];
/// All columns that are used.
const LOOKED_AT: [&str; 11] = [
    OBS.name(),
    NEW_OBS.name(),
    ACTIONS.name(),
    REWARDS.name(),
    TERMINATEDS.name(),
    TRUNCATEDS.name(),
    ACTION_PROB.name(),
    ACTION_LOGP.name(),
    EPS_ID.name(),
    AGENT_INDEX.name(),
    T.name(),
];

pub(super) struct Data {
    pub(super) logged: LoggedEpisodes,
    pub(super) files: usize,
    pub(super) corrupt_lines: u64,
}

/// Reads everything, encodes observations for the policy, computes its probabilities on the way, and keeps the columns that
/// estimators use.
pub(super) fn read(args: &OpeArgs, encoder: Option<&Preprocessor>, judge: &mut Judge<'_>) -> Result<Data, Failure> {
    let logged = offline::open_logged(&args.inputs, args.buffer_size).map_err(Failure::usage)?;
    let mut logged = logged.with_memory_limit(args.memory_limit);
    let progress = Progress::new(logged.progress().1 >> 10, "KiB", !args.json);
    let columns = if args.wants_model() { [&COLUMNS[..], &OF_MODELS].concat() } else { COLUMNS.to_vec() };
    let mut log = EpisodeLog::new(&columns);
    let mut policy: Option<PolicyId> = None;
    while let Some(batch) = logged.next_batch().map_err(Failure::other)? {
        let place = logged.place();
        if place.is_some_and(|place| place.is_first) {
            log.begin_file();
        }
        let (is_single, batches) = (batch.single().is_ok(), batch.as_multi_agent().policy_batches);
        for id in batches.keys() {
            if let Some(other) = policy.replace(id.clone()).filter(|other| other != id) {
                return Err(Failure::usage(format!(
                    "the data are of several policies, '{other}' and '{id}'; estimators judge one: split the data first"
                )));
            }
        }
        for rows in batches.into_values() {
            let rows = prepared(&rows, args, encoder, judge);
            let rows = rows.map_err(|error| Failure::usage(at(&logged, place, error)))?;
            let added = if is_single { log.add(&rows) } else { log.add_of_agents(&rows) };
            added.map_err(|error| Failure::usage(at(&logged, place, error.into())))?;
        }
        progress.say(logged.progress().0 >> 10, &format!("· {} rows", log.len()));
    }
    progress.finish();
    if log.is_empty() {
        return Err(Failure::usage(format!("there are no rows in {}", args.inputs.join(", "))));
    }
    let (files, corrupt_lines) = (logged.files().len(), logged.corrupt_lines());
    Ok(Data { logged: log.finish().map_err(Failure::usage)?, files, corrupt_lines })
}

/// Prepares rows for estimators, and checks them while their place is known.
fn prepared(
    rows: &SampleBatch,
    args: &OpeArgs,
    encoder: Option<&Preprocessor>,
    judge: &mut Judge<'_>,
) -> Result<SampleBatch, JudgeError> {
    let mut kept = SampleBatch::new();
    for name in LOOKED_AT {
        if let Some(column) = rows.column(name) {
            kept.insert(name, column.clone())?;
        }
    }
    kept.decompress_if_needed()?;
    // Rewards and probabilities are double precision if the data are; in other lines the same ones may be integers.
    let wide = [REWARDS.name(), ACTION_PROB.name()].map(|name| (name, one_number(&kept, name)));
    // Rows of a single policy stay those of a single policy.
    let mut rows = with_usual_types(kept.into())?.single()?.clone();
    if let Some(encoder) = encoder {
        encode_observations(&mut rows, encoder).map_err(|error| PolicyError::Failed(error.to_string()))?;
    }
    for (name, values) in wide {
        if let Some(values) = values {
            rows.insert(name, ColumnData::scalars(values))?;
        }
    }
    if args.wants_ratios() {
        judge.add_probs(&mut rows)?;
        // Probabilities computed from logarithms get the type of logged ones.
        if let Some(values) = one_number(&rows, ACTION_PROB.name()) {
            rows.insert(ACTION_PROB.name(), ColumnData::scalars(values))?;
        }
    } else {
        rows.remove(ACTION_PROB.name());
    }
    check_rows(&rows, args.wants_ratios())?;
    Ok(rows)
}

/// Returns a column of one number per row, as doubles.
fn one_number(rows: &SampleBatch, name: &str) -> Option<Vec<f64>> {
    let column = rows.column(name).filter(|column| column.shape().elements() == 1)?;
    column.numbers()
}

/// Adds the place of the row to an error.
fn at(logged: &Logged, place: Option<LoggedPlace>, error: JudgeError) -> String {
    let Some((place, file)) = place.and_then(|place| Some((place, logged.files().get(place.file)?))) else {
        return error.to_string();
    };
    let here = |row: usize| row.saturating_add(usize::try_from(place.row).unwrap_or(usize::MAX));
    let error = match error {
        JudgeError::Action { row, space } => JudgeError::Action { row: here(row), space },
        JudgeError::Estimate(EstimateError::Value { column, row, value }) => {
            EstimateError::Value { column, row: here(row), value }.into()
        }
        JudgeError::Estimate(EstimateError::Probability { column, row, value }) => {
            EstimateError::Probability { column, row: here(row), value }.into()
        }
        other => other,
    };
    let line = place.line.map_or_else(String::new, |line| format!(", line {line}"));
    format!("{}{line}: {error}", file.path.display())
}
