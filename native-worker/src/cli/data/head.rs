//! `rollmesh data head`.

use std::{collections::BTreeSet, process::ExitCode};

use clap::Args;
use rollmesh_core::{
    batch::{RowValue, SampleBatch},
    by_type,
    column::RowsRef,
};
use rollmesh_data::dataset::BatchStream as _;
use serde_json::{Map, Value};

use super::InputArgs;
use crate::{
    cli::{exit::Failure, table},
    offline::logged::Logged,
    terminal::printable,
};

/// Width of a cell in characters.
const CELL: usize = 32;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  rollmesh data head samples\n  rollmesh data head samples --rows 3 --columns obs,actions\n  \
                        rollmesh data head samples --rows 1000 --json > rows.jsonl"
)]
pub(super) struct HeadArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Rows to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    rows: usize,
    /// Columns to show [default: all]
    #[arg(long, value_delimiter = ',')]
    columns: Vec<String>,
}

pub(super) fn run(args: &HeadArgs) -> Result<ExitCode, Failure> {
    let mut logged = args.input.open()?;
    check_columns(args, &mut logged)?;
    let mut left = args.rows;
    while left > 0
        && let Some(batch) = logged.next_batch().map_err(Failure::other)?
    {
        let multi = batch.single().is_err();
        for (id, mut rows) in batch.as_multi_agent().policy_batches {
            if left == 0 {
                break;
            }
            rows.decompress_if_needed().map_err(Failure::other)?;
            let policy = multi.then(|| id.to_string());
            let shown =
                if args.input.json { lines(&rows, args, policy, left)? } else { table(&rows, args, policy, left)? };
            left -= shown.min(left);
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks that the rows to show have the wanted columns, before any is shown.
fn check_columns(args: &HeadArgs, logged: &mut Logged) -> Result<(), Failure> {
    let (mut left, mut there) = (args.rows, BTreeSet::new());
    let missing = |there: &BTreeSet<String>| args.columns.iter().find(|column| !there.contains(*column));
    while left > 0
        && missing(&there).is_some()
        && let Some(batch) = logged.next_batch().map_err(Failure::other)?
    {
        left -= batch.agent_steps().min(left);
        let batches = batch.as_multi_agent().policy_batches;
        there.extend(batches.values().flat_map(|rows| rows.iter().map(|(name, _)| name.to_owned())));
    }
    logged.rewind().map_err(Failure::other)?;
    match missing(&there).filter(|_| !there.is_empty()) {
        Some(column) => {
            let there = there.into_iter().collect::<Vec<_>>().join(", ");
            Err(Failure::usage(format!("--columns: the rows have no '{column}'; they have: {there}")))
        }
        None => Ok(()),
    }
}

fn wanted(args: &HeadArgs, name: &str) -> bool {
    args.columns.is_empty() || args.columns.iter().any(|column| column == name)
}

/// Prints a JSON object per row.
fn lines(batch: &SampleBatch, args: &HeadArgs, policy: Option<String>, most: usize) -> Result<usize, Failure> {
    let mut shown = 0;
    for row in batch.rows().map_err(Failure::other)?.take(most) {
        let mut object = Map::new();
        object.extend(policy.clone().map(|policy| ("policy".to_owned(), Value::from(policy))));
        for (name, value) in row.iter().filter(|(name, _)| wanted(args, name)) {
            let is_single = batch.column(name).is_some_and(|column| column.shape().dims().is_empty());
            object.insert(name.to_owned(), json(value, is_single));
        }
        println!("{}", Value::Object(object));
        shown += 1;
    }
    Ok(shown)
}

/// Converts a value to JSON; numbers that JSON does not have become texts.
fn json(value: RowValue<'_>, is_single: bool) -> Value {
    let number = |text: String| text.parse().map_or_else(|_| Value::from(text), Value::Number);
    let all: Vec<Value> = match value {
        RowValue::Array(RowsRef::Bool(values)) => values.iter().map(|x| Value::from(*x)).collect(),
        RowValue::Array(rows) => {
            by_type!(RowsRef, rows, values => values.iter().map(|x| number(x.to_string())).collect())
        }
        RowValue::Bytes(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            return serde_json::from_str(&text).unwrap_or_else(|_| Value::from(text.into_owned()));
        }
    };
    match <[Value; 1]>::try_from(all) {
        Ok([only]) if is_single => only,
        Ok([only]) => Value::Array(vec![only]),
        Err(all) => Value::Array(all),
    }
}

fn table(batch: &SampleBatch, args: &HeadArgs, policy: Option<String>, most: usize) -> Result<usize, Failure> {
    let names: Vec<&str> = batch.iter().map(|(name, _)| name).filter(|name| wanted(args, name)).collect();
    let mut rows = vec![names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>()];
    for row in batch.rows().map_err(Failure::other)?.take(most) {
        let cell = |name: &&str| row.get(name).map_or_else(|| "-".into(), |value| cut(&text(value)));
        rows.push(names.iter().map(cell).collect());
    }
    if let Some(policy) = policy {
        println!("policy {}", printable(&policy));
    }
    println!("{}", table::table(&rows, |_| false).trim_end());
    Ok(rows.len() - 1)
}

fn text(value: RowValue<'_>) -> String {
    fn list<T: std::fmt::Display>(values: &[T]) -> String {
        match values {
            [only] => only.to_string(),
            values => format!("[{}]", values.iter().take(64).map(T::to_string).collect::<Vec<_>>().join(", ")),
        }
    }
    match value {
        // Lines of JSON do not show that numbers had 32 bits.
        RowValue::Array(RowsRef::F64(values)) if values.iter().all(|x| f64::from(*x as f32) == *x) => {
            list(&values.iter().map(|x| *x as f32).collect::<Vec<_>>())
        }
        RowValue::Array(rows) => by_type!(RowsRef, rows, values => list(values)),
        RowValue::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
    }
}

fn cut(text: &str) -> String {
    // A row must stay on its line.
    let clean = printable(&text.chars().take(CELL + 1).collect::<String>());
    match clean.char_indices().nth(CELL - 1) {
        Some((end, _)) if clean.chars().count() > CELL => format!("{}…", &clean[..end]),
        _ => clean,
    }
}
