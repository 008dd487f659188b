//! Converts rows of a table to their batch.

use std::collections::BTreeMap;

use arrow_array::{Array, ArrayRef, BooleanArray, RecordBatch, cast::AsArray as _};
use arrow_buffer::BooleanBuffer;
use arrow_select::filter::filter;
use rollmesh_core::{
    batch::{AnyBatch, BatchParts, MultiAgentBatch, SampleBatch, codec},
    column::{Column, ColumnData, ColumnName},
    ids::PolicyId,
};
use serde_json::Value;

use super::{
    super::{arrow, dataset::DatasetError},
    ENCODED, INFO, POLICY,
    plan::{NAME_IN_BATCH, OWNER},
};

/// Returns the batch of these rows, which all have the same batch number.
pub(super) fn batch(rows: &RecordBatch) -> Result<AnyBatch, DatasetError> {
    if let Some(bytes) = text_or_bytes(rows, ENCODED, 0)? {
        return codec::decode_any(bytes).map_err(arrow::corrupt);
    }
    let Some(owners) = rows.column_by_name(POLICY) else {
        return piece_batch(rows, &info(rows, 0)?, None).map(AnyBatch::Single);
    };
    let owners = owners.as_string_opt::<i32>().ok_or_else(|| corrupt("the policies are no texts"))?;
    let owner = |row: usize| owners.is_valid(row).then(|| owners.value(row));
    let mut policies = BTreeMap::new();
    let (mut at, mut env_steps) = (0, None);
    while at < rows.num_rows() {
        let policy = owner(at);
        let len = (at..rows.num_rows()).take_while(|row| owner(*row) == policy).count().max(1);
        let piece = rows.slice(at, len);
        let info = info(&piece, 0)?;
        let Some(policy) = policy else {
            // Rows without a policy belong to a single-agent batch.
            return match len == rows.num_rows() {
                true => piece_batch(&piece, &info, None).map(AnyBatch::Single),
                false => Err(corrupt("rows with and without a policy in one batch")),
            };
        };
        let policy = PolicyId::new(policy.to_string());
        let batch = piece_batch(&piece, &info, Some(&policy))?;
        env_steps = env_steps.or_else(|| info.get("env_steps").and_then(Value::as_u64));
        if policies.insert(policy, batch).is_some() {
            return Err(corrupt("a policy is in one batch twice"));
        }
        at += len;
    }
    let env_steps = env_steps.and_then(|steps| usize::try_from(steps).ok());
    let env_steps = env_steps.ok_or_else(|| corrupt("a batch without its env_steps"))?;
    Ok(AnyBatch::Multi(MultiAgentBatch::new(policies, env_steps)))
}

fn corrupt(what: &str) -> DatasetError {
    DatasetError::Corrupt(what.to_string())
}

fn piece_batch(rows: &RecordBatch, info: &Value, policy: Option<&PolicyId>) -> Result<SampleBatch, DatasetError> {
    let mut columns = Vec::new();
    for (field, array) in rows.schema_ref().fields().iter().zip(rows.columns()) {
        if field.name().starts_with("rollmesh.") || array.null_count() == rows.num_rows() {
            continue;
        }
        let owner = field.metadata().get(OWNER);
        if owner.is_some_and(|owner| policy.is_none_or(|policy| policy.as_str() != owner)) {
            continue;
        }
        let name = field.metadata().get(NAME_IN_BATCH).unwrap_or_else(|| field.name());
        for (name, column) in arrow::columns(name, field, &present(array)?)? {
            columns.push((ColumnName::from(name), column));
        }
    }
    let ints = |key: &str| match info.get(key) {
        Some(Value::Array(values)) => {
            let values: Option<Vec<i32>> =
                values.iter().map(|x| x.as_i64().and_then(|x| i32::try_from(x).ok())).collect();
            values.map(Some).ok_or_else(|| DatasetError::Corrupt(format!("'{key}' of a batch")))
        }
        _ => Ok(None),
    };
    let flag = |key: &str| info.get(key) == Some(&Value::Bool(true));
    let parts = BatchParts {
        columns,
        seq_lens: ints("seq_lens")?.map(ColumnData::scalars),
        max_seq_len: info.get("max_seq_len").and_then(Value::as_u64).and_then(|len| usize::try_from(len).ok()),
        zero_padded: flag("zero_padded"),
        time_major: false,
        is_training: flag("is_training"),
        num_grad_updates: info.get("num_grad_updates").and_then(Value::as_u64).map(f64::from_bits),
    };
    Ok(SampleBatch::from_parts(parts)?)
}

/// Returns the rows that have a value.
pub(super) fn present(array: &ArrayRef) -> Result<ArrayRef, DatasetError> {
    let Some(nulls) = array.nulls().filter(|nulls| nulls.null_count() > 0) else { return Ok(array.clone()) };
    let keep = BooleanArray::new(BooleanBuffer::collect_bool(array.len(), |row| nulls.is_valid(row)), None);
    filter(array, &keep).map_err(arrow::corrupt)
}

/// Returns the value of a text or binary column in a row; none without the column or the value.
fn text_or_bytes<'a>(rows: &'a RecordBatch, name: &str, row: usize) -> Result<Option<&'a [u8]>, DatasetError> {
    let Some(array) = rows.column_by_name(name) else { return Ok(None) };
    if row >= array.len() || array.is_null(row) {
        return Ok(None);
    }
    if let Some(texts) = array.as_string_opt::<i32>() {
        return Ok(Some(texts.value(row).as_bytes()));
    }
    if let Some(bytes) = array.as_binary_opt::<i32>() {
        return Ok(Some(bytes.value(row)));
    }
    Err(DatasetError::Corrupt(format!("column '{name}' is no text")))
}

fn info(rows: &RecordBatch, row: usize) -> Result<Value, DatasetError> {
    match text_or_bytes(rows, INFO, row)? {
        Some(text) => serde_json::from_slice(text).map_err(arrow::corrupt),
        None => Ok(Value::Null),
    }
}

/// Returns all columns of another program's file that can be converted.
pub(super) fn foreign(rows: &RecordBatch) -> Result<Vec<(String, Column)>, DatasetError> {
    let mut columns = Vec::new();
    for (field, array) in rows.schema_ref().fields().iter().zip(rows.columns()) {
        columns.extend(arrow::columns(field.name(), field, array)?);
    }
    Ok(columns)
}
