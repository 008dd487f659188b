//! Runs `batch.*`: operations of [`SampleBatch`].

use rollmesh_core::{
    batch::{EpisodeKey, RowValue, SampleBatch, SliceBy},
    by_type,
    column::RowsRef,
    ids::SlotId,
    rng::{Purpose, Streams},
};
use serde_json::{Map, Value, json};

use super::{
    Answer, Fault,
    values::{JsonElement, bad, batch, batch_fault, batch_json, float_json, integer, list, nest},
};

pub(super) fn answer(name: &str, input: &Value, args: &Value) -> Answer {
    if name == "concat" {
        return concat(input, args);
    }
    let mut batch = batch(&input["batch"])?;
    let optional = |name: &str| args.get(name).filter(|value| !value.is_null());
    match name {
        "index_slice" => {
            let start = optional("start").map_or(Ok(0), integer)?;
            let stop = optional("stop").map_or(Ok(usize::MAX), integer)?;
            Ok(batch_json(&batch.index_slice(start..stop)))
        }
        "slice" => {
            let (start, end) = (integer(&args["start"])?, integer(&args["end"])?);
            let slice = match (optional("state_start"), optional("state_end")) {
                (Some(first), Some(last)) => batch.slice_with_states(start, end, integer(first)?..integer(last)?),
                _ => batch.slice(start, end),
            };
            Ok(batch_json(&slice.map_err(batch_fault)?))
        }
        "timeslices" => {
            let by = match optional("size") {
                Some(size) => SliceBy::Size(integer(size)?),
                None => SliceBy::NumSlices(integer(&args["num_slices"])?),
            };
            Ok(batch.timeslices(by).map_err(batch_fault)?.map(|slice| batch_json(&slice)).collect())
        }
        "right_zero_pad" => {
            let padded = batch.right_zero_pad(integer(&args["max_seq_len"])?);
            Ok(batch_json(&padded.map_err(batch_fault)?))
        }
        "split_by_episode" => {
            let key = optional("key").map(|key| key.as_str().unwrap_or_default().parse::<EpisodeKey>());
            let episodes = batch.split_by_episode(key.transpose().map_err(batch_fault)?).map_err(batch_fault)?;
            Ok(episodes.iter().map(batch_json).collect())
        }
        "rows" => rows(&batch),
        "count" => Ok(batch.len().into()),
        "size_bytes" => Ok(batch.size_bytes().into()),
        "flags" => Ok(json!({
            "is_terminated_or_truncated": batch.is_terminated_or_truncated().map_err(batch_fault)?,
            "is_single_trajectory": batch.is_single_trajectory().map_err(batch_fault)?,
            "dones": batch.dones().map_err(batch_fault)?,
        })),
        "shuffle" => {
            let seed = args["seed"].as_u64().ok_or_else(|| bad("a seed"))?;
            let mut rng = Streams::new(seed, Purpose::Shuffle).at(SlotId(0), 0, 0, 0);
            batch.shuffle(&mut rng).map_err(batch_fault)?;
            Ok(batch_json(&batch))
        }
        "validate" => Ok(json!({"count": batch.len()})),
        _ => Err(Fault::UnknownOperation),
    }
}

fn concat(input: &Value, args: &Value) -> Answer {
    let batches = list(&input["batches"], batch)?;
    let joined = SampleBatch::concat(&batches).map_err(batch_fault)?;
    let mut joined_json = batch_json(&joined);
    let any = batches.iter().any(|batch| batch.num_grad_updates().is_some());
    if any || args["report_num_grad_updates"] == true {
        joined_json["num_grad_updates"] = joined.num_grad_updates().map_or(Value::Null, float_json);
    }
    Ok(joined_json)
}

fn rows(batch: &SampleBatch) -> Answer {
    let rows = batch.rows().map_err(batch_fault)?.map(|row| {
        let value = |(name, value): (&str, RowValue<'_>)| {
            let shape = batch.column(name).map(|column| column.shape());
            let dims = shape.as_ref().map_or(&[][..], |shape| shape.dims());
            (name.to_string(), row_json(value, dims))
        };
        let mut row_json: Map<String, Value> = row.iter().map(value).collect();
        if let Some(len) = row.seq_lens() {
            row_json.insert("seq_lens".into(), len.into());
        }
        Value::from(row_json)
    });
    Ok(rows.collect())
}

fn row_json(value: RowValue<'_>, dims: &[u32]) -> Value {
    fn nested<T: JsonElement>(values: &[T], dims: &[u32]) -> Value {
        nest(dims, &mut values.iter().copied())
    }
    match value {
        RowValue::Array(rows) => by_type!(RowsRef, rows, values => nested(values, dims)),
        RowValue::Bytes(bytes) => String::from_utf8_lossy(bytes).into(),
    }
}
