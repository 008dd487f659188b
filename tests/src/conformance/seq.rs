//! Runs `seq.*`: sequences for recurrent policies.

use rollmesh_core::{
    column::{Column, ColumnData, RowShape},
    view::{SequenceError, SequenceIds, chop_into_sequences},
};
use serde_json::{Value, json};

use super::{
    Answer, Fault,
    values::{Nested, bad, integer, list, nest},
};

pub(super) fn answer(name: &str, input: &Value, args: &Value) -> Answer {
    if name != "chop" {
        return Err(Fault::UnknownOperation);
    }
    let ids = |name: &str| list(&input[name], integer::<i64>);
    let (episode_ids, unroll_ids, agent_indices) = (ids("episode_ids")?, ids("unroll_ids")?, ids("agent_indices")?);
    let ids = SequenceIds { episode_ids: &episode_ids, unroll_ids: &unroll_ids, agent_indices: &agent_indices };
    let (features, states) = (list(&input["features"], column)?, list(&input["states"], column)?);
    let dynamic_max = args["dynamic_max"].as_bool().unwrap_or(false);
    let chopped = chop_into_sequences(ids, &features, &states, integer(&args["max_seq_len"])?, dynamic_max);
    let chopped = chopped.map_err(|error| match error {
        SequenceError::LengthMismatch { .. } => Fault::LengthMismatch,
        _ => Fault::InvalidArgument,
    })?;
    Ok(json!({
        "features": chopped.features.iter().map(rows).collect::<Result<Vec<_>, _>>()?,
        "states": chopped.states.iter().map(rows).collect::<Result<Vec<_>, _>>()?,
        "seq_lens": chopped.seq_lens.values(),
    }))
}

fn column(value: &Value) -> Result<Column, Fault> {
    let Nested { dims, values } = Nested::<f64>::read(value)?;
    let row = RowShape::new(dims.get(1..).unwrap_or_default()).map_err(|_| Fault::ShapeMismatch)?;
    Ok(ColumnData::new(values, row).map_err(|_| Fault::ShapeMismatch)?.into())
}

fn rows(column: &Column) -> Answer {
    let data = column.typed::<f64>().map_err(|_| bad("floats"))?;
    let shape = data.shape();
    let dims: Vec<u32> = [data.rows() as u32].into_iter().chain(shape.dims().iter().copied()).collect();
    Ok(nest(&dims, &mut data.values().iter().copied()))
}
