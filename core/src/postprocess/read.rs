//! Columns with one value per row.

use super::PostprocessError;
use crate::{
    batch::{BatchError, SampleBatch},
    column::{ColumnData, ColumnKey, Element},
    prelude::*,
};

/// The values of a column of scalars.
pub(super) fn scalars<T: Element>(batch: &SampleBatch, key: ColumnKey<T>) -> Result<&[T], PostprocessError> {
    one_per_row(key.name(), batch.data(key)?)
}

/// [`scalars`] of a column that need not be there.
pub(super) fn optional<T: Element>(batch: &SampleBatch, key: ColumnKey<T>) -> Result<Option<&[T]>, PostprocessError> {
    batch.column(key.name()).map(|_| scalars(batch, key)).transpose()
}

/// The values of a column of scalars, rounded if they were logged as 64-bit floats.
pub(super) fn floats(batch: &SampleBatch, key: ColumnKey<f32>) -> Result<Cow<'_, [f32]>, PostprocessError> {
    let name = key.name();
    let column = batch.column(name).ok_or_else(|| BatchError::MissingColumn(name.to_string()))?;
    if let Ok(wide) = column.typed::<f64>() {
        return Ok(Cow::Owned(one_per_row(name, wide)?.iter().map(|&value| value as f32).collect()));
    }
    scalars(batch, key).map(Cow::Borrowed)
}

fn one_per_row<'a, T: Element>(name: &str, data: &'a ColumnData<T>) -> Result<&'a [T], PostprocessError> {
    if data.shape().elements() != 1 {
        return Err(PostprocessError::NotScalar { name: name.to_string(), shape: data.shape() });
    }
    Ok(data.values())
}
