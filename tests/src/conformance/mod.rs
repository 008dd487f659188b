//! The core's public API as operations on JSON, to compare its results with those of other systems.
//!
//! The module is an adapter that only converts values and errors. A case is `{"id", "op", "in", "args"}`, its answer
//! `{"id", "ok"}` or `{"id", "err"}` with one of [`Fault`]'s names.

mod actions;
mod batch;
mod data;
mod data_bin;
mod env;
mod filter;
pub mod judge;
mod ma;
mod mocks;
mod ope;
mod policy_map;
mod post;
mod sampler;
mod seq;
mod values;
mod views;
mod worker;

use std::path::Path;

use serde_json::{Value, json};

/// The error of an operation, at the level that the cases distinguish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A column is missing.
    MissingColumn,
    /// Columns have different numbers of rows.
    LengthMismatch,
    /// An argument is invalid.
    InvalidArgument,
    /// The policy id is unknown.
    UnknownPolicy,
    /// The id exists already.
    AlreadyExists,
    /// Row shapes differ.
    ShapeMismatch,
    /// An environment failed.
    EnvError,
    /// A file is damaged.
    CorruptData,
    /// A pickle contains a forbidden name.
    ForbiddenPickle,
    /// A record has an unknown type.
    UnknownType,
    /// Too many consecutive records are damaged.
    TooManyErrors,
    /// A file has no data.
    NoData,
    /// The operation does not exist.
    UnknownOperation,
    /// The case itself is invalid; the text gives the location.
    BadCase(String),
}

impl Fault {
    fn name(&self) -> &str {
        match self {
            Self::MissingColumn => "missing_column",
            Self::LengthMismatch => "length_mismatch",
            Self::InvalidArgument => "invalid_argument",
            Self::UnknownPolicy => "unknown_policy",
            Self::AlreadyExists => "already_exists",
            Self::ShapeMismatch => "shape_mismatch",
            Self::EnvError => "env_error",
            Self::CorruptData => "corrupt_data",
            Self::ForbiddenPickle => "forbidden_pickle",
            Self::UnknownType => "unknown_type",
            Self::TooManyErrors => "too_many_errors",
            Self::NoData => "no_data",
            Self::UnknownOperation => "unknown_operation",
            Self::BadCase(_) => "bad_case",
        }
    }
}

type Answer = Result<Value, Fault>;

/// Answers one case, given as a line of JSON. Its file paths are relative to the current directory.
#[must_use]
pub fn answer(line: &str) -> String {
    answer_in(Path::new(""), line)
}

/// Answers a case as [`answer`] does, with file paths relative to another directory.
#[must_use]
pub fn answer_in(folder: &Path, line: &str) -> String {
    let case: Value = match serde_json::from_str(line) {
        Ok(case) => case,
        Err(error) => return json!({"id": null, "err": "bad_case", "message": error.to_string()}).to_string(),
    };
    let id = &case["id"];
    match dispatch(&case, folder) {
        Ok(ok) => json!({"id": id, "ok": ok}),
        Err(Fault::BadCase(what)) => json!({"id": id, "err": "bad_case", "message": what}),
        Err(fault) => json!({"id": id, "err": fault.name()}),
    }
    .to_string()
}

fn dispatch(case: &Value, folder: &Path) -> Answer {
    let op = case["op"].as_str().unwrap_or_default();
    let (area, name) = op.split_once('.').unwrap_or((op, ""));
    let (input, args) = (&case["in"], &case["args"]);
    match area {
        "actions" => actions::answer(name, input, args),
        "batch" => batch::answer(name, input, args),
        "data" if name == "summary" => data_bin::summary(args, folder),
        "data" => data::answer(name, args, folder),
        "env" => env::answer(name, input, args),
        "filter" => filter::answer(name, input),
        "ma" => ma::answer(name, input, args),
        "ope" => ope::answer(name, input, args),
        "policymap" => policy_map::answer(name, input, args),
        "post" => post::answer(name, input, args),
        "sampler" => sampler::answer(name, args),
        "seq" => seq::answer(name, input, args),
        "worker" => worker::answer(name, input, args),
        "views" => views::answer(name, input, args),
        _ => Err(Fault::UnknownOperation),
    }
}
