//! What is in some batches, without holding them.

use std::collections::BTreeMap;

use rollmesh_core::batch::{AnyBatch, BatchError, Continuation, OpenEpisodes, SampleBatch};
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
    open: OpenEpisodes<(f64, u64)>,
    /// Some of those: there are too many to hold, or other episodes have their ids.
    given_up: u64,
    pub(super) returns: Spread,
    pub(super) lengths: Spread,
    pub(super) histogram: Histogram,
}

impl Episodes {
    /// More are open at once in no data that say where episodes end.
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

    pub(super) fn unfinished(&self) -> u64 {
        self.open.len() as u64 + self.given_up
    }
}

impl Survey {
    /// Another file begins.
    pub(super) fn begin_file(&mut self) {
        for PolicySurvey { episodes, .. } in self.policies.values_mut() {
            episodes.given_up += episodes.open.begin_file().len() as u64;
        }
    }

    pub(super) fn add(&mut self, batch: &AnyBatch) -> Result<(), BatchError> {
        self.batches += 1;
        self.env_steps += batch.env_steps() as u64;
        let gaps = batch.single().is_err();
        for (id, mut rows) in batch.as_multi_agent().policy_batches {
            rows.decompress_if_needed()?;
            let policy = self.policies.entry(id.to_string()).or_insert_with(|| PolicySurvey {
                rows: 0,
                columns: BTreeMap::new(),
                episodes: Episodes {
                    open: OpenEpisodes::default(),
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
            policy.episodes.add(&rows, gaps);
        }
        Ok(())
    }
}
