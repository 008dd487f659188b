//! Reads columns of any type as numbers.

use rollmesh_core::{
    batch::{AGENT_INDEX, EPS_ID, REWARDS, SampleBatch, T, TERMINATEDS, TRUNCATEDS},
    column::Column,
};
use serde::{Deserialize, Deserializer, Serialize};

/// Returns one integer per row; none if the column is missing or has another type.
fn integers(batch: &SampleBatch, name: &str) -> Option<Vec<i64>> {
    let column = batch.column(name)?;
    if column.shape().elements() != 1 {
        return None;
    }
    match column {
        Column::I64(data) => Some(data.values().to_vec()),
        other => Some(other.numbers()?.into_iter().map(|x| x as i64).collect()),
    }
}

fn flags(batch: &SampleBatch, name: &str) -> Option<Vec<bool>> {
    let column = batch.column(name)?;
    let numbers = column.numbers().filter(|numbers| numbers.len() == column.rows());
    numbers.map(|numbers| numbers.into_iter().map(|x| x != 0.0).collect())
}

/// The columns that identify episodes and steps, row by row.
#[derive(Clone, Debug)]
pub struct Steps {
    /// Episode and agent.
    pub keys: Vec<(i64, i64)>,
    /// True if the data have ids of episodes; otherwise all rows have the same id.
    pub has_ids: bool,
    /// True if the data have agents; otherwise all rows belong to one.
    pub has_agents: bool,
    /// The step within the episode.
    pub ts: Option<Vec<i64>>,
    /// The rewards, if there is one number per row.
    pub rewards: Option<Vec<f64>>,
    /// True if each row is the last of an episode.
    pub ends: Vec<bool>,
    /// True if the data mark the ends of episodes.
    pub has_ends: bool,
}

impl Steps {
    /// Returns the step of a row within its episode.
    #[must_use]
    pub fn t(&self, row: usize) -> Option<i64> {
        self.ts.as_ref().and_then(|ts| ts.get(row)).copied()
    }

    /// Returns the step after the last one.
    #[must_use]
    pub fn after(&self) -> Option<i64> {
        self.ts.as_ref().and_then(|ts| ts.last()).map(|t| t.saturating_add(1))
    }

    /// Reads the columns of a batch.
    #[must_use]
    pub fn of(batch: &SampleBatch) -> Self {
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
        let rewards = batch.column(REWARDS.name()).and_then(Column::numbers).filter(|rewards| rewards.len() == rows);
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

/// Minimum, mean and maximum of some numbers; non-finite ones are counted separately.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Number of finite numbers.
    pub count: u64,
    /// Number of non-finite numbers.
    pub not_finite: u64,
    /// The minimum; infinite without numbers.
    #[serde(deserialize_with = "finite_or_nan")]
    pub min: f64,
    /// The maximum; infinite without numbers.
    #[serde(deserialize_with = "finite_or_nan")]
    pub max: f64,
    #[serde(skip)]
    sum: f64,
    /// The mean; NaN without numbers.
    #[serde(deserialize_with = "finite_or_nan")]
    pub mean: f64,
}

/// Reads a number that JSON writes as null if it is not finite.
fn finite_or_nan<'de, D: Deserializer<'de>>(number: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(number)?.unwrap_or(f64::NAN))
}

impl Default for Spread {
    fn default() -> Self {
        Self { count: 0, not_finite: 0, min: f64::INFINITY, max: f64::NEG_INFINITY, sum: 0.0, mean: f64::NAN }
    }
}

impl Spread {
    /// Adds a number.
    pub fn add(&mut self, number: f64) {
        if !number.is_finite() {
            self.not_finite += 1;
            return;
        }
        self.count += 1;
        self.sum += number;
        (self.min, self.max) = (self.min.min(number), self.max.max(number));
        self.mean = self.sum / self.count as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_finite_numbers_are_counted_separately() {
        let mut spread = Spread::default();
        [1.0, f64::NAN, 3.0, f64::INFINITY].into_iter().for_each(|number| spread.add(number));
        assert_eq!((spread.count, spread.not_finite, spread.mean, spread.min, spread.max), (2, 2, 2.0, 1.0, 3.0));
    }
}
