//! A file of logged experience that the person has opened.

use std::{collections::BTreeMap, sync::Arc};

use serde::Deserialize;

/// A file, as far as it was read.
#[derive(Clone, Debug, Default)]
pub struct OpenedFile {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes that were read.
    pub read: u64,
    /// What was found in those.
    pub report: Arc<FileReport>,
    /// Where it stands.
    pub status: FileStatus,
}

/// How it goes with a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FileStatus {
    /// It is being read.
    #[default]
    Reading,
    /// It was read to its end.
    Read,
    /// It cannot be read, for this reason.
    Failed(String),
}

/// What is in a file, as the Web Worker reports it and `rollmesh data inspect --json` prints it.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct FileReport {
    /// Number of batches.
    pub batches: u64,
    /// Number of env steps.
    pub env_steps: u64,
    /// By policy; the default policy for single agents.
    pub policies: BTreeMap<String, PolicyReport>,
    /// Why the rest of the file was not read.
    pub gave_up: Option<String>,
    /// What nothing should be learned from, by its name.
    pub problems: BTreeMap<String, Problem>,
}

/// The rows of a policy.
#[derive(Clone, Debug, Deserialize)]
pub struct PolicyReport {
    /// Number of rows.
    pub rows: u64,
    /// By name.
    pub columns: BTreeMap<String, ColumnReport>,
    /// Episodes that have ended.
    pub episodes: u64,
    /// Episodes whose end is not in the file.
    pub unfinished: u64,
    /// The returns of episodes that have ended.
    #[serde(rename = "return")]
    pub returns: Spread,
    /// Their lengths.
    #[serde(rename = "length")]
    pub lengths: Spread,
    /// How many have which return.
    pub histogram: Vec<Bin>,
}

/// Some numbers; without any, minimum, maximum and mean are `None`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Spread {
    /// The minimum.
    pub min: Option<f64>,
    /// The maximum.
    pub max: Option<f64>,
    /// The mean.
    pub mean: Option<f64>,
}

/// A column.
#[derive(Clone, Debug, Deserialize)]
pub struct ColumnReport {
    /// Types like `float32 (4)`; several if batches differ.
    #[serde(rename = "type")]
    pub kinds: Vec<String>,
    /// Number of elements that are not finite.
    pub not_finite: u64,
    /// The minimum of the others.
    pub min: Option<f64>,
    /// The maximum of the others.
    pub max: Option<f64>,
    /// The mean of the others.
    pub mean: Option<f64>,
}

/// Episodes with returns within a range.
#[derive(Clone, Debug, Deserialize)]
pub struct Bin {
    /// Its start.
    pub from: f64,
    /// Its end, which is not in it.
    pub to: f64,
    /// Number of episodes.
    pub count: u64,
}

/// How often something is wrong, and the first places.
#[derive(Clone, Debug, Deserialize)]
pub struct Problem {
    /// How often.
    pub count: u64,
    /// Where.
    pub places: Vec<String>,
}

// Every report is another one.
impl PartialEq for OpenedFile {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.report, &other.report) && self.read == other.read && self.status == other.status
    }
}

impl OpenedFile {
    /// How it stands with it, in a few words.
    #[must_use]
    pub fn say(&self) -> String {
        match &self.status {
            FileStatus::Failed(reason) => format!("{} was not read: {reason}.", self.name),
            FileStatus::Reading => "Reading".into(),
            FileStatus::Read if self.report.batches == 0 => {
                "There is no batch in it: it should be a file of RLlib's, with a JSON object per line.".into()
            }
            FileStatus::Read => "Read to its end".into(),
        }
    }
}
