//! Converts a batch to rows of a table.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray, UInt32Array, new_null_array};
use arrow_schema::SchemaRef;
use arrow_select::{concat::concat, take::take};
use rollmesh_core::{
    batch::{AnyBatch, SampleBatch, codec},
    column::Column,
    ids::PolicyId,
};
use serde_json::{Map, Value};

use super::{
    super::{arrow, dataset::DatasetError},
    ENCODED, INFO, POLICY,
    plan::{Plan, by_sequence, pieces, table_rows},
};

/// Returns the rows of an uncompressed batch with this number in the file.
pub(super) fn table(
    plan: &Plan,
    schema: &SchemaRef,
    number: i64,
    batch: &AnyBatch,
) -> Result<RecordBatch, DatasetError> {
    let pieces = pieces(batch);
    let encoded = pieces.is_empty() || pieces.iter().any(|(_, batch)| table_rows(batch).is_none());
    let pieces = if encoded { Vec::new() } else { pieces };
    let lens: Vec<usize> = pieces.iter().map(|(_, batch)| table_rows(batch).unwrap_or(0)).collect();
    let rows = if encoded { 1 } else { lens.iter().sum() };
    let mut arrays: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_value(number, rows))];
    for field in
        schema.fields().iter().skip(1).take_while(|field| [POLICY, INFO, ENCODED].contains(&field.name().as_str()))
    {
        arrays.push(match field.name().as_str() {
            POLICY => {
                let policies = pieces.iter().zip(&lens);
                let policies =
                    policies.flat_map(|((policy, _), len)| std::iter::repeat_n(policy.map(PolicyId::as_str), *len));
                let policies: StringArray = if encoded { StringArray::new_null(rows) } else { policies.collect() };
                Arc::new(policies)
            }
            INFO if !encoded => Arc::new(infos(batch, &pieces, &lens)),
            ENCODED if encoded => Arc::new(BinaryArray::from_vec(vec![&codec::encode_any(batch)])),
            _ => new_null_array(field.data_type(), rows),
        });
    }
    for column in &plan.columns {
        let null = |rows| new_null_array(&arrow::data_type(column.column_type, column.shape), rows);
        if encoded {
            arrays.push(null(rows));
            continue;
        }
        let mut parts = Vec::with_capacity(pieces.len());
        for ((policy, batch), len) in pieces.iter().zip(&lens) {
            parts.push(match Plan::source(column, *policy, batch) {
                Some(data) if by_sequence(batch, &column.column) => at_starts(batch, data, *len)?,
                Some(data) => arrow::array(data, None)?,
                None => null(*len),
            });
        }
        arrays.push(match parts.as_slice() {
            [part] => part.clone(),
            parts => concat(&parts.iter().map(|part| &**part).collect::<Vec<_>>()).map_err(arrow::corrupt)?,
        });
    }
    RecordBatch::try_new(schema.clone(), arrays).map_err(arrow::corrupt)
}

/// Returns the properties outside the table, in the first row of each piece.
fn infos(batch: &AnyBatch, pieces: &[(Option<&PolicyId>, &SampleBatch)], lens: &[usize]) -> StringArray {
    let multi = match batch {
        AnyBatch::Single(_) => None,
        AnyBatch::Multi(batch) => Some(batch.env_steps),
    };
    let mut rows = Vec::with_capacity(lens.iter().sum());
    for ((_, batch), len) in pieces.iter().zip(lens) {
        let info = info(batch, multi);
        rows.push(if info.is_empty() { None } else { Some(Value::Object(info).to_string()) });
        rows.resize(rows.len() + len.saturating_sub(1), None);
    }
    StringArray::from(rows)
}

fn info(batch: &SampleBatch, env_steps: Option<usize>) -> Map<String, Value> {
    let mut info = Map::new();
    let mut say = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            info.insert(key.to_string(), value);
        }
    };
    say("env_steps", env_steps.map(Value::from));
    say("seq_lens", batch.seq_lens().map(Value::from));
    say("max_seq_len", batch.max_seq_len().map(Value::from));
    say("zero_padded", batch.zero_padded().then(|| true.into()));
    say("is_training", batch.is_training().then(|| true.into()));
    // Written as bits, since JSON has no NaN.
    say("num_grad_updates", batch.num_grad_updates().map(|updates| updates.to_bits().into()));
    info
}

/// Returns one row per sequence, each at the sequence's first row.
fn at_starts(batch: &SampleBatch, data: &Column, rows: usize) -> Result<ArrayRef, DatasetError> {
    let mut places: Vec<Option<u32>> = vec![None; rows];
    let mut at = 0;
    for (sequence, len) in batch.seq_lens().unwrap_or_default().iter().enumerate() {
        if let Some(place) = places.get_mut(at) {
            *place = Some(sequence as u32);
        }
        let padded = batch.max_seq_len().filter(|_| batch.zero_padded());
        at += padded.unwrap_or_else(|| len.unsigned_abs() as usize);
    }
    let array = arrow::array(data, None)?;
    take(&array as &dyn Array, &UInt32Array::from(places), None).map_err(arrow::corrupt)
}
