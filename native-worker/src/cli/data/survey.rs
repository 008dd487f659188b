//! What is in some batches, without holding them.

use std::collections::BTreeMap;

use rollmesh_core::batch::{AnyBatch, BatchError, SampleBatch};
use serde::Serialize;

use super::{
    histogram::Histogram,
    numbers::{Spread, Steps, numbers},
};

/// What is in some batches.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) batches: u64,
    pub(super) env_steps: u64,
    /// By policy; of single agents the default one.
    pub(super) policies: BTreeMap<String, PolicySurvey>,
}

/// The rows of a policy.
#[derive(Debug)]
pub(super) struct PolicySurvey {
    pub(super) rows: u64,
    pub(super) columns: BTreeMap<String, ColumnSurvey>,
    pub(super) episodes: Episodes,
}

/// A column.
#[derive(Debug, Default, Serialize)]
pub(super) struct ColumnSurvey {
    /// `float32 (4)`; several if batches differ.
    #[serde(rename = "type")]
    pub(super) kinds: Vec<String>,
    pub(super) rows: u64,
    #[serde(flatten)]
    pub(super) values: Spread,
}

/// Episodes, or what single agents saw of them.
#[derive(Debug)]
pub(super) struct Episodes {
    /// Those that were not seen to end: return and length so far.
    open: BTreeMap<(i64, i64), (f64, u64)>,
    /// Some of those, of which there are too many to hold.
    given_up: u64,
    pub(super) returns: Spread,
    pub(super) lengths: Spread,
    pub(super) histogram: Histogram,
}

impl Episodes {
    /// More are open at once in no data that say where episodes end.
    const MOST_OPEN: usize = 1 << 16;

    fn add(&mut self, batch: &SampleBatch) {
        let Steps { keys, rewards, ends, .. } = Steps::of(batch);
        for (row, (key, end)) in keys.into_iter().zip(ends).enumerate() {
            let reward = rewards.as_ref().and_then(|rewards| rewards.get(row)).copied().unwrap_or(0.0);
            let (episode_return, length) = self.open.entry(key).or_default();
            (*episode_return, *length) = (*episode_return + reward, *length + 1);
            if end && let Some((episode_return, length)) = self.open.remove(&key) {
                self.returns.add(episode_return);
                self.lengths.add(length as f64);
                self.histogram.add(episode_return);
            }
            if self.open.len() > Self::MOST_OPEN {
                self.open.pop_first();
                self.given_up += 1;
            }
        }
    }

    pub(super) fn unfinished(&self) -> u64 {
        self.open.len() as u64 + self.given_up
    }
}

impl Survey {
    pub(super) fn add(&mut self, batch: &AnyBatch) -> Result<(), BatchError> {
        self.batches += 1;
        self.env_steps += batch.env_steps() as u64;
        for (id, mut rows) in batch.as_multi_agent().policy_batches {
            rows.decompress_if_needed()?;
            let policy = self.policies.entry(id.to_string()).or_insert_with(|| PolicySurvey {
                rows: 0,
                columns: BTreeMap::new(),
                episodes: Episodes {
                    open: BTreeMap::new(),
                    given_up: 0,
                    returns: Spread::default(),
                    lengths: Spread::default(),
                    histogram: Histogram::new(),
                },
            });
            policy.rows += rows.len() as u64;
            for (name, column) in rows.iter() {
                let known = policy.columns.entry(name.to_owned()).or_default();
                let kind = match column.shape().dims() {
                    [] => column.column_type().to_string(),
                    _ => format!("{} {}", column.column_type(), column.shape()),
                };
                if !known.kinds.contains(&kind) && known.kinds.len() < 8 {
                    known.kinds.push(kind);
                }
                known.rows += column.rows() as u64;
                numbers(column).unwrap_or_default().into_iter().for_each(|number| known.values.add(number));
            }
            policy.episodes.add(&rows);
        }
        Ok(())
    }
}
