//! Builds batches for tests.

pub(crate) use super::BatchParts;
use super::SampleBatch;
use crate::{
    column::{Column, ColumnData, ColumnKey, RowShape},
    prelude::*,
};

pub(crate) const A: ColumnKey<i64> = ColumnKey::new("a");
pub(crate) const B: ColumnKey<i64> = ColumnKey::new("b");
pub(crate) const S: ColumnKey<f64> = ColumnKey::new("state_in_0");

pub(crate) fn ints(values: &[i64]) -> Column {
    ColumnData::scalars(values.to_vec()).into()
}

/// Returns a batch with the column `a`.
pub(crate) fn rows(values: &[i64]) -> SampleBatch {
    SampleBatch::new().with(A, ColumnData::scalars(values.to_vec())).unwrap()
}

/// Returns a batch with the columns `a` and `state_in_0`, both cut to the required length.
pub(crate) fn sequences(lens: &[i32]) -> SampleBatch {
    let steps = lens.iter().sum::<i32>() as usize;
    let columns = vec![
        ("a".into(), ints(&[1, 2, 3, 2, 3, 4][..steps])),
        ("state_in_0".into(), ColumnData::scalars([1.0, 3.0, 4.0][..lens.len()].to_vec()).into()),
    ];
    let seq_lens = Some(ColumnData::scalars(lens.to_vec()));
    SampleBatch::from_parts(BatchParts { columns, seq_lens, ..BatchParts::default() }).unwrap()
}

/// Returns a time-major batch with the column `a` and this number of trajectories.
pub(crate) fn time_major(trajectories: u32, values: &[i64]) -> SampleBatch {
    let data = ColumnData::new(values.to_vec(), RowShape::vector(trajectories)).unwrap();
    let columns = vec![("a".into(), data.into())];
    SampleBatch::from_parts(BatchParts { columns, time_major: true, ..BatchParts::default() }).unwrap()
}

/// Returns the column `a`.
pub(crate) fn a(batch: &SampleBatch) -> Vec<i64> {
    batch.get(A).unwrap().to_vec()
}

/// Returns the column `state_in_0`.
pub(crate) fn s(batch: &SampleBatch) -> Vec<f64> {
    batch.get(S).unwrap().to_vec()
}
