//! Converts well-known columns to this crate's types, which formats with fewer types lose.

use rollmesh_core::{
    batch::*,
    by_type,
    column::{Column, ColumnData, ColumnError, DType, Element as _, RowShape, RowsRef},
};

/// Columns of 32-bit floats.
const FLOATS: [&str; 12] = [
    REWARDS.name(),
    PREV_REWARDS.name(),
    ACTION_DIST_INPUTS.name(),
    ACTION_PROB.name(),
    ACTION_LOGP.name(),
    VF_PREDS.name(),
    VALUES_BOOTSTRAPPED.name(),
    ADVANTAGES.name(),
    VALUE_TARGETS.name(),
    "returns_to_go",
    "obs_embeds",
    "weights",
];

/// Columns of 64-bit integers.
const INTEGERS: [&str; 5] = [EPS_ID.name(), UNROLL_ID.name(), AGENT_INDEX.name(), ENV_ID.name(), T.name()];

/// Returns the same rows with well-known columns in the types of their [keys](rollmesh_core::column::ColumnKey): flags as
/// booleans, ids as 64-bit integers, rewards and policies' outputs as 32-bit floats. Observations, actions and states are
/// converted from 64-bit to 32-bit floats, as in RLlib's collectors; actions of 32-bit integers become 64-bit. Other
/// columns, and columns without numbers, stay unchanged.
///
/// # Errors
/// [`BatchError::Column`] for ids with fractions.
pub fn with_usual_types(batch: AnyBatch) -> Result<AnyBatch, BatchError> {
    Ok(match batch {
        AnyBatch::Single(batch) => convert(batch)?.into(),
        AnyBatch::Multi(multi) => {
            let steps = multi.env_steps();
            let batches = multi.policy_batches.into_iter().map(|(id, batch)| Ok((id, convert(batch)?)));
            MultiAgentBatch::new(batches.collect::<Result<_, BatchError>>()?, steps).into()
        }
    })
}

fn convert(batch: SampleBatch) -> Result<SampleBatch, BatchError> {
    let mut parts = batch.into_parts();
    for (name, column) in &mut parts.columns {
        let failed = |source| BatchError::Column { name: name.to_string(), source };
        let Some((found, wanted)) = column.dtype().and_then(|found| Some((found, usual(name, found)?))) else {
            continue;
        };
        if found != wanted {
            *column = cast(&column.decompress().map_err(failed)?, wanted, column.shape()).map_err(failed)?;
        }
    }
    SampleBatch::from_parts(parts)
}

/// Returns the type of a column with this name.
fn usual(name: &str, found: DType) -> Option<DType> {
    let first = name.split('.').next().unwrap_or_default();
    if [TERMINATEDS.name(), TRUNCATEDS.name()].contains(&name) {
        Some(DType::Bool)
    } else if INTEGERS.contains(&name) {
        Some(DType::I64)
    } else if FLOATS.contains(&name) {
        Some(DType::F32)
    } else if [ACTIONS.name(), PREV_ACTIONS.name()].contains(&first) && found == DType::I32 {
        Some(DType::I64)
    } else if found == DType::F64 {
        let floats = [OBS.name(), NEW_OBS.name(), ACTIONS.name(), PREV_ACTIONS.name()];
        let is_state = name.starts_with("state_in_") || name.starts_with("state_out_");
        (floats.contains(&first) || is_state).then_some(DType::F32)
    } else {
        None
    }
}

/// Converts the elements to a type of [well-known columns](with_usual_types) or keeps their own, and to rows of a shape with
/// as many elements. Columns without numbers stay unchanged.
///
/// # Errors
/// [`ColumnError`] for integers with fractions, and for elements that do not form whole rows.
pub(crate) fn cast(column: &Column, wanted: DType, shape: RowShape) -> Result<Column, ColumnError> {
    let Ok(values) = column.array() else { return Ok(column.clone()) };
    match wanted {
        same if same == values.dtype() => values.to_column(shape),
        DType::F32 => ColumnData::new(values.cast::<f32>(), shape).map(Column::from_typed),
        DType::Bool => ColumnData::new(values.cast::<bool>(), shape).map(Column::from_typed),
        DType::I64 => {
            let found = column.column_type();
            let whole = |value: f64| {
                // Within the range in which a float represents every integer.
                let is_whole = value.abs() <= 9_007_199_254_740_992.0 && value as i64 as f64 == value;
                is_whole
                    .then_some(value as i64)
                    .ok_or_else(|| ColumnError::WrongType { wanted: DType::I64.into(), found })
            };
            by_type!(RowsRef, values, values => {
                let numbers: Vec<i64> = values.iter().map(|value| whole(value.to_f64())).collect::<Result<_, _>>()?;
                ColumnData::new(numbers, shape).map(Column::from_typed)
            })
        }
        _ => values.to_column(shape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_get_the_types_of_their_keys() {
        let batch = SampleBatch::new()
            .with(rollmesh_core::column::ColumnKey::<f64>::new("obs.pos"), ColumnData::scalars(vec![0.1, 2.0]))
            .and_then(|b| {
                b.with(rollmesh_core::column::ColumnKey::<i64>::new("rewards"), ColumnData::scalars(vec![1, 0]))
            })
            .and_then(|b| {
                b.with(rollmesh_core::column::ColumnKey::<f32>::new("terminateds"), ColumnData::scalars(vec![0.0, 1.0]))
            })
            .and_then(|b| {
                b.with(rollmesh_core::column::ColumnKey::<i32>::new("actions"), ColumnData::scalars(vec![3, 4]))
            })
            .and_then(|b| {
                b.with(rollmesh_core::column::ColumnKey::<f64>::new("t"), ColumnData::scalars(vec![0.0, 1.0]))
            })
            .and_then(|b| {
                b.with(rollmesh_core::column::ColumnKey::<f64>::new("own"), ColumnData::scalars(vec![0.1, 0.2]))
            })
            .unwrap();
        let AnyBatch::Single(batch) = with_usual_types(batch.into()).unwrap() else { panic!("a single batch") };
        assert_eq!(batch.column("obs.pos").unwrap().dtype(), Some(DType::F32));
        assert_eq!(batch.get(REWARDS).unwrap(), [1.0, 0.0]);
        assert_eq!(batch.get(TERMINATEDS).unwrap(), [false, true]);
        assert_eq!(batch.get(ACTIONS).unwrap(), [3, 4]);
        assert_eq!(batch.get(T).unwrap(), [0, 1]);
        assert_eq!(batch.column("own").unwrap().dtype(), Some(DType::F64));
    }

    #[test]
    fn ids_with_fractions_are_refused() {
        let ids = ColumnData::scalars(vec![0.5]);
        let batch = SampleBatch::new().with(rollmesh_core::column::ColumnKey::<f64>::new("eps_id"), ids).unwrap();
        assert!(matches!(with_usual_types(batch.into()), Err(BatchError::Column { name, .. }) if name == "eps_id"));
    }
}
