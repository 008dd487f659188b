//! Reads columns with one value per row.

use super::PostprocessError;
use crate::{
    batch::{BatchError, SampleBatch},
    column::{ColumnData, ColumnKey, Element},
    prelude::*,
};

/// Returns the values of a column of scalars.
pub(super) fn scalars<T: Element>(batch: &SampleBatch, key: ColumnKey<T>) -> Result<&[T], PostprocessError> {
    one_per_row(key.name(), batch.data(key)?)
}

/// Returns the [`scalars`] of an optional column.
pub(super) fn optional<T: Element>(batch: &SampleBatch, key: ColumnKey<T>) -> Result<Option<&[T]>, PostprocessError> {
    batch.column(key.name()).map(|_| scalars(batch, key)).transpose()
}

/// Returns the values of a column of 32- or 64-bit scalars as doubles, so that sums in double precision start from the exact
/// values.
pub(super) fn floats(batch: &SampleBatch, key: ColumnKey<f32>) -> Result<Cow<'_, [f64]>, PostprocessError> {
    let name = key.name();
    let column = batch.column(name).ok_or_else(|| BatchError::MissingColumn(name.to_string()))?;
    match column.typed::<f64>() {
        Ok(wide) => one_per_row(name, wide).map(Cow::Borrowed),
        Err(_) => Ok(scalars(batch, key)?.iter().copied().map(f64::from).collect()),
    }
}

fn one_per_row<'a, T: Element>(name: &str, data: &'a ColumnData<T>) -> Result<&'a [T], PostprocessError> {
    if data.shape().elements() != 1 {
        return Err(PostprocessError::NotScalar { name: name.to_string(), shape: data.shape() });
    }
    Ok(data.values())
}
