//! Converts steps of logged episodes to batches with the well-known columns.

use rollmesh_core::{
    batch::{BatchError, EPS_ID, NEW_OBS, OBS, REWARDS, SampleBatch, T, TERMINATEDS, TRUNCATEDS},
    column::{Column, ColumnData, ColumnName, DType, RowShape},
};

use super::DatasetError;
use crate::usual;

/// A piece of an episode.
pub(crate) struct Episode {
    /// Its number.
    pub(crate) id: i64,
    /// Steps of the episode before this piece.
    pub(crate) t: u64,
    /// Observations by name below `obs` (empty for `obs` itself), with one more row than there are steps.
    pub(crate) observations: Vec<(String, Column)>,
    /// Actions by name below `actions`.
    pub(crate) actions: Vec<(String, Column)>,
    pub(crate) rewards: Column,
    pub(crate) terminateds: Column,
    pub(crate) truncateds: Column,
    /// All other columns, with their full names.
    pub(crate) others: Vec<(String, Column)>,
}

impl Episode {
    /// Returns the batch, with as many rows as there are rewards.
    pub(crate) fn batch(self) -> Result<SampleBatch, BatchError> {
        let steps = self.rewards.rows();
        let named = |prefix: &str, name: &str| match name {
            "" => ColumnName::from(prefix.to_string()),
            name => ColumnName::from(format!("{prefix}.{name}")),
        };
        let mut batch = SampleBatch::new();
        batch.insert(REWARDS.name(), self.rewards)?;
        for (name, column) in &self.observations {
            batch.insert(named(OBS.name(), name), column.slice(0..steps))?;
            let rows = column.rows();
            batch.insert(named(NEW_OBS.name(), name), column.slice(rows.saturating_sub(steps)..rows))?;
        }
        for (name, column) in self.actions {
            batch.insert(named("actions", &name), column)?;
        }
        batch.insert(TERMINATEDS.name(), self.terminateds)?;
        batch.insert(TRUNCATEDS.name(), self.truncateds)?;
        batch.insert(EPS_ID.name(), ColumnData::scalars(vec![self.id; steps]))?;
        let first = self.t as i64;
        batch.insert(T.name(), ColumnData::scalars((first..first + steps as i64).collect()))?;
        for (name, column) in self.others {
            batch.insert(name, column)?;
        }
        Ok(batch)
    }
}

/// Joins the rows of both columns, in order.
pub(crate) fn append(rows: &Column, more: &Column) -> Result<Column, BatchError> {
    let one = |column: &Column| {
        let mut batch = SampleBatch::new();
        batch.insert(OBS.name(), column.clone()).map(|()| batch)
    };
    let mut joined = SampleBatch::concat(&[one(rows)?, one(more)?])?;
    joined.remove(OBS.name()).ok_or_else(|| BatchError::MissingColumn(OBS.name().to_string()))
}

/// Returns whether its rows have numbers that change when rewards are converted to 32 bits.
#[must_use]
pub fn has_more_digits(column: &Column) -> bool {
    match column {
        Column::F64(data) => data.values().iter().any(|x| x.is_finite() && f64::from(*x as f32) != *x),
        Column::I64(data) => data.values().iter().any(|x| *x as f32 as i64 != *x),
        Column::I32(data) => data.values().iter().any(|x| *x as f32 as i32 != *x),
        _ => false,
    }
}

/// Describes the loss in the conversion of a column to 32-bit floats.
#[must_use]
pub fn beyond_32_bits(name: &str) -> String {
    format!("digits of column '{name}' beyond 32 bits")
}

/// Converts a column of one number per row to booleans or `f32`.
pub(crate) fn cast(name: &str, column: &Column, to: DType) -> Result<Column, DatasetError> {
    let one = column.shape().elements() == 1 && column.dtype().is_some();
    if !one {
        let problem = format!("its rows have shape {}; one number per row is needed", column.shape());
        return Err(DatasetError::Shape { name: name.to_string(), problem });
    }
    usual::cast(column, to, RowShape::SCALAR)
        .map_err(|error| DatasetError::Shape { name: name.to_string(), problem: error.to_string() })
}
