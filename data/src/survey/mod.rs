//! Summarises batches and their problems without holding them in memory.

mod check;
mod histogram;
mod inspection;
mod order;
mod replay;
mod steps;
#[cfg(any(feature = "hdf5", feature = "parquet"))]
mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::{AnyBatch, BatchError, Continuation, OpenEpisodes, SampleBatch},
    column::Column,
    math::sqrt_f64,
};
use serde::{Deserialize, Serialize};

use self::histogram::Histogram;
#[cfg(any(feature = "hdf5", feature = "parquet"))]
pub use self::tables::TableInspection;
pub use self::{
    check::{At, Check, NO_BATCHES, Problem, Problems, RowSpaces},
    histogram::Bin,
    inspection::{Found, Inspection, OtherFormat},
    steps::{Spread, Steps},
};

/// A summary of batches: counts, the types and values of columns, the returns and lengths of episodes. Its memory does not
/// grow with the number of batches.
///
/// ```
/// use rollmesh_core::{batch::{EPS_ID, REWARDS, SampleBatch, TERMINATEDS}, column::ColumnData};
/// use rollmesh_data::survey::Survey;
///
/// let mut survey = Survey::default();
/// let batch = SampleBatch::new()
///     .with(EPS_ID, ColumnData::scalars(vec![7, 7]))?
///     .with(REWARDS, ColumnData::scalars(vec![1.0, 0.5]))?
///     .with(TERMINATEDS, ColumnData::scalars(vec![false, true]))?;
/// survey.add(&batch.into())?;
/// let report = survey.report(16);
/// let policy = &report.policies["default_policy"];
/// assert_eq!((report.env_steps, policy.episodes, policy.returns.mean), (2, 1, 1.5));
/// assert_eq!(policy.columns["rewards"].kinds, ["float32"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Survey {
    batches: u64,
    env_steps: u64,
    /// By policy; the default policy for single agents.
    policies: BTreeMap<String, PolicySurvey>,
}

/// The rows of a policy.
#[derive(Debug, Default)]
struct PolicySurvey {
    rows: u64,
    columns: BTreeMap<String, ColumnSurvey>,
    episodes: EpisodeStats,
}

/// The results of a [`Survey`] so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Number of batches.
    pub batches: u64,
    /// Number of steps of environments.
    pub env_steps: u64,
    /// By policy; the default policy for single agents.
    pub policies: BTreeMap<String, PolicyReport>,
}

/// The rows of a policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyReport {
    /// Number of rows.
    pub rows: u64,
    /// By name.
    pub columns: BTreeMap<String, ColumnSurvey>,
    /// Number of ended episodes.
    pub episodes: u64,
    /// Number of episodes without a known end.
    pub unfinished: u64,
    /// The returns of ended episodes.
    #[serde(rename = "return")]
    pub returns: Spread,
    /// Their lengths.
    #[serde(rename = "length")]
    pub lengths: Spread,
    /// Histogram of the returns: adjacent bins of equal width.
    pub histogram: Vec<Bin>,
}

/// Returns a type like `float32 (4)`.
fn kind_of(column: &Column) -> String {
    match column.shape().dims() {
        [] => column.column_type().to_string(),
        _ => format!("{} {}", column.column_type(), column.shape()),
    }
}

/// A column.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ColumnSurvey {
    /// Types like `float32 (4)`; several if batches differ.
    #[serde(rename = "type")]
    pub kinds: Vec<String>,
    /// Number of rows.
    pub rows: u64,
    /// Its elements; empty for texts.
    #[serde(flatten)]
    pub values: Spread,
}

/// Episodes, or single agents' parts of them.
#[derive(Debug, Default)]
struct EpisodeStats {
    /// Open episodes: return and length so far.
    open: OpenEpisodes<(f64, u64)>,
    /// Number of abandoned open episodes: there were too many, or other episodes have the same ids.
    given_up: u64,
    returns: Spread,
    lengths: Spread,
    histogram: Histogram,
}

impl EpisodeStats {
    /// Maximum number of open episodes; data with marked ends do not reach it.
    const MOST_OPEN: usize = 1 << 16;

    fn add(&mut self, batch: &SampleBatch, gaps: bool) {
        let steps = Steps::of(batch);
        for (row, (&key, &end)) in steps.keys.iter().zip(&steps.ends).enumerate() {
            let (t, rewards) = (steps.t(row), steps.rewards.as_ref());
            let reward = rewards.and_then(|rewards| rewards.get(row)).copied().unwrap_or(0.0);
            let continuation = self.open.place(key, t, gaps);
            self.given_up += u64::from(matches!(continuation, Continuation::Instead(_)));
            let (episode_return, length) = match continuation {
                Continuation::GoesOn(so_far) => so_far,
                Continuation::Begins | Continuation::Instead(_) => (0.0, 0),
            };
            let (episode_return, length) = (episode_return + reward, length + 1);
            if end {
                self.returns.add(episode_return);
                self.lengths.add(length as f64);
                self.histogram.add(episode_return);
            } else {
                self.open.leave(key, t.map(|t| t.saturating_add(1)), (episode_return, length));
            }
            if self.open.len() > Self::MOST_OPEN {
                self.open.pop_first();
                self.given_up += 1;
            }
        }
    }

    fn unfinished(&self) -> u64 {
        self.open.len() as u64 + self.given_up
    }
}

impl Survey {
    /// Begins another file: episodes continue in it if their steps do.
    pub fn begin_file(&mut self) {
        for PolicySurvey { episodes, .. } in self.policies.values_mut() {
            episodes.given_up += episodes.open.begin_file().len() as u64;
        }
    }

    /// Adds another batch.
    ///
    /// # Errors
    /// [`BatchError`] for damaged compressed columns.
    pub fn add(&mut self, batch: &AnyBatch) -> Result<(), BatchError> {
        self.batches += 1;
        self.env_steps += batch.env_steps() as u64;
        let gaps = batch.single().is_err();
        for (id, mut rows) in batch.as_multi_agent().policy_batches {
            rows.decompress_if_needed()?;
            let policy = self.policies.entry(id.to_string()).or_default();
            policy.rows += rows.len() as u64;
            for (name, column) in rows.iter() {
                let known = policy.columns.entry(name.to_owned()).or_default();
                let kind = kind_of(column);
                if !known.kinds.contains(&kind) && known.kinds.len() < 8 {
                    known.kinds.push(kind);
                }
                known.rows += column.rows() as u64;
                column.numbers().unwrap_or_default().into_iter().for_each(|number| known.values.add(number));
            }
            policy.episodes.add(&rows, gaps);
        }
        Ok(())
    }

    /// Returns the results so far; histograms have at most `bins` bins.
    #[must_use]
    pub fn report(&self, bins: u32) -> Report {
        let policies = self.policies.iter().map(|(id, policy)| (id.clone(), policy.report(bins)));
        Report { batches: self.batches, env_steps: self.env_steps, policies: policies.collect() }
    }
}

impl PolicySurvey {
    fn report(&self, bins: u32) -> PolicyReport {
        let EpisodeStats { returns, lengths, histogram, .. } = &self.episodes;
        // Few episodes fill only few bins.
        let few = 2 * (sqrt_f64(returns.count as f64) as i64 + 1);
        PolicyReport {
            rows: self.rows,
            columns: self.columns.clone(),
            episodes: returns.count + returns.not_finite,
            unfinished: self.episodes.unfinished(),
            returns: *returns,
            lengths: *lengths,
            histogram: histogram.rows(i64::from(bins).min(few)),
        }
    }
}
