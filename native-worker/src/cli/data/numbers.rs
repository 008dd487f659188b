//! Columns as numbers, whatever their types.

use rollmesh_core::{
    batch::{AGENT_INDEX, EPS_ID, REWARDS, SampleBatch, T, TERMINATEDS, TRUNCATEDS},
    column::Column,
};
use serde::Serialize;

/// All elements; none of columns that are no numbers.
pub(in crate::cli) fn numbers(column: &Column) -> Option<Vec<f64>> {
    Some(match column {
        Column::F32(data) => data.values().iter().map(|x| f64::from(*x)).collect(),
        Column::F64(data) => data.values().to_vec(),
        Column::I32(data) => data.values().iter().map(|x| f64::from(*x)).collect(),
        Column::I64(data) => data.values().iter().map(|x| *x as f64).collect(),
        Column::U8(data) => data.values().iter().map(|x| f64::from(*x)).collect(),
        Column::Bool(data) => data.values().iter().map(|x| f64::from(u8::from(*x))).collect(),
        Column::Bytes(_) | Column::Compressed(_) => return None,
    })
}

/// One integer per row; none if the column is not there or holds something else.
pub(super) fn integers(batch: &SampleBatch, name: &str) -> Option<Vec<i64>> {
    let column = batch.column(name)?;
    if column.shape().elements() != 1 {
        return None;
    }
    match column {
        Column::I64(data) => Some(data.values().to_vec()),
        other => Some(numbers(other)?.into_iter().map(|x| x as i64).collect()),
    }
}

fn flags(batch: &SampleBatch, name: &str) -> Option<Vec<bool>> {
    let column = batch.column(name)?;
    let numbers = numbers(column).filter(|numbers| numbers.len() == column.rows());
    numbers.map(|numbers| numbers.into_iter().map(|x| x != 0.0).collect())
}

/// What tells episodes apart, row by row.
pub(super) struct Steps {
    /// Episode and agent.
    pub(super) keys: Vec<(i64, i64)>,
    /// Whether the ids of episodes are in the data; else all have the same.
    pub(super) has_ids: bool,
    /// Whether the agents are; else all rows are one's.
    pub(super) has_agents: bool,
    /// The step within the episode.
    pub(super) ts: Option<Vec<i64>>,
    pub(super) rewards: Option<Vec<f64>>,
    /// The last row of an episode.
    pub(super) ends: Vec<bool>,
    pub(super) has_ends: bool,
}

impl Steps {
    pub(super) fn t(&self, row: usize) -> Option<i64> {
        self.ts.as_ref().and_then(|ts| ts.get(row)).copied()
    }

    /// The step that follows on the last one.
    #[cfg(feature = "offline-parquet")]
    pub(super) fn after(&self) -> Option<i64> {
        self.ts.as_ref().and_then(|ts| ts.last()).map(|t| t.saturating_add(1))
    }

    pub(super) fn of(batch: &SampleBatch) -> Self {
        let rows = batch.len();
        let ids = integers(batch, EPS_ID.name()).filter(|ids| ids.len() == rows);
        let agents = integers(batch, AGENT_INDEX.name()).filter(|agents| agents.len() == rows);
        let (terminateds, truncateds) = (flags(batch, TERMINATEDS.name()), flags(batch, TRUNCATEDS.name()));
        let at = |flags: &Option<Vec<bool>>, row: usize| flags.as_ref().and_then(|flags| flags.get(row)) == Some(&true);
        let key = |row: usize| {
            let of =
                |column: &Option<Vec<i64>>| column.as_ref().and_then(|column| column.get(row)).copied().unwrap_or(0);
            (of(&ids), of(&agents))
        };
        let rewards = batch.column(REWARDS.name()).and_then(numbers).filter(|rewards| rewards.len() == rows);
        Self {
            keys: (0..rows).map(key).collect(),
            has_ids: ids.is_some(),
            has_agents: agents.is_some(),
            ts: integers(batch, T.name()).filter(|ts| ts.len() == rows),
            rewards,
            ends: (0..rows).map(|row| at(&terminateds, row) || at(&truncateds, row)).collect(),
            has_ends: terminateds.is_some() || truncateds.is_some(),
        }
    }
}

/// Least, mean and greatest of some numbers; those that are not finite are counted beside.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Spread {
    pub(super) count: u64,
    pub(super) not_finite: u64,
    pub(super) min: f64,
    pub(super) max: f64,
    #[serde(skip)]
    sum: f64,
    pub(super) mean: f64,
}

impl Default for Spread {
    fn default() -> Self {
        Self { count: 0, not_finite: 0, min: f64::INFINITY, max: f64::NEG_INFINITY, sum: 0.0, mean: f64::NAN }
    }
}

impl Spread {
    pub(super) fn add(&mut self, number: f64) {
        if !number.is_finite() {
            self.not_finite += 1;
            return;
        }
        self.count += 1;
        self.sum += number;
        (self.min, self.max) = (self.min.min(number), self.max.max(number));
        self.mean = self.sum / self.count as f64;
    }

    /// `mean 500 (from 500 to 500)`, or nothing to say.
    pub(super) fn say(&self) -> String {
        match self.count {
            0 => "-".into(),
            _ => format!("{} (from {} to {})", short(self.mean), short(self.min), short(self.max)),
        }
    }
}

/// A number with as many digits as people read.
pub(in crate::cli) fn short(number: f64) -> String {
    let size = number.abs();
    if number.fract() == 0.0 && size < 1e15 {
        format!("{number}")
    } else if (1e-3..1e6).contains(&size) {
        format!("{number:.4}").trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        format!("{number:.3e}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [500.0, 0.5, 1234.56789, 1e-9, 2.5e17].map(short),
            ["500", "0.5", "1234.5679", "1.000e-9", "2.500e17"]
        );
    }

    #[test]
    fn what_is_not_finite_is_counted_beside() {
        let mut spread = Spread::default();
        [1.0, f64::NAN, 3.0, f64::INFINITY].into_iter().for_each(|number| spread.add(number));
        assert_eq!((spread.count, spread.not_finite, spread.say().as_str()), (2, 2, "2 (from 1 to 3)"));
    }
}
