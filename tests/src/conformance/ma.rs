//! Runs `ma.*`: operations of [`MultiAgentBatch`].

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::{AnyBatch, MultiAgentBatch, SampleBatch},
    ids::PolicyId,
};
use serde_json::{Map, Value, json};

use super::{
    Answer, Fault,
    values::{bad, batch, batch_fault, batch_json, integer, list},
};

pub(super) fn answer(name: &str, input: &Value, args: &Value) -> Answer {
    match name {
        "timeslices" => {
            let slices = multi(&input["ma"])?.timeslices(integer(&args["k"])?).map_err(batch_fault)?;
            Ok(slices.iter().map(multi_json).collect())
        }
        "wrap_as_needed" => {
            let batches = policy_batches(&input["policy_batches"])?;
            Ok(any_json(&MultiAgentBatch::wrap_as_needed(batches, integer(&args["env_steps"])?)))
        }
        "concat" => {
            let items = list(&input["items"], |item| match item.get("batch") {
                Some(single) => batch(single).map(AnyBatch::from),
                None => multi(&item["ma"]).map(AnyBatch::from),
            })?;
            Ok(any_json(&AnyBatch::concat(&items).map_err(batch_fault)?))
        }
        "counts" => {
            let multi = multi(&input["ma"])?;
            Ok(json!({
                "env_steps": multi.env_steps(),
                "agent_steps": multi.agent_steps(),
                "len": multi.len(),
                "size_bytes": multi.size_bytes(),
            }))
        }
        "convert_to_single" => Ok(batch_json(multi(&input["ma"])?.single().map_err(batch_fault)?)),
        _ => Err(Fault::UnknownOperation),
    }
}

fn policy_batches(value: &Value) -> Result<BTreeMap<PolicyId, SampleBatch>, Fault> {
    let batches = value.as_object().ok_or_else(|| bad("batches by policy"))?;
    batches.iter().map(|(id, value)| Ok((PolicyId::new(id.clone()), batch(value)?))).collect()
}

fn multi(value: &Value) -> Result<MultiAgentBatch, Fault> {
    Ok(MultiAgentBatch::new(policy_batches(&value["policy_batches"])?, integer(&value["env_steps"])?))
}

fn multi_json(multi: &MultiAgentBatch) -> Value {
    let batches = multi.policy_batches.iter().map(|(id, batch)| (id.to_string(), batch_json(batch)));
    json!({
        "policy_batches": batches.collect::<Map<_, _>>(),
        "env_steps": multi.env_steps(),
        "agent_steps": multi.agent_steps(),
    })
}

pub(super) fn any_json(any: &AnyBatch) -> Value {
    match any {
        AnyBatch::Single(batch) => json!({"kind": "SampleBatch", "batch": batch_json(batch)}),
        AnyBatch::Multi(multi) => json!({"kind": "MultiAgentBatch", "ma": multi_json(multi)}),
    }
}
