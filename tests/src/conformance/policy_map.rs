//! Runs `policymap.*`: resident and evicted policies. A policy is a number here.

use rollmesh_core::{
    ids::PolicyId,
    policy::{MemoryStore, PolicyMap, PolicyMapError, PolicyMapLimits, Stash, StashError},
};
use serde_json::{Value, json};

use super::{
    Answer, Fault,
    values::{bad, integer, text},
};

/// The smallest policy: its state is a value.
struct Number(Value);

impl Stash for Number {
    fn spec(&self) -> &str {
        "number"
    }

    fn size_bytes(&self) -> usize {
        size_of::<Self>()
    }

    fn stash(&self) -> Result<Vec<u8>, StashError> {
        Ok(self.0.to_string().into_bytes())
    }

    fn restore(&mut self, state: &[u8]) -> Result<(), StashError> {
        self.0 = serde_json::from_slice(state).map_err(|_| StashError::Damaged)?;
        Ok(())
    }
}

pub(super) fn answer(name: &str, input: &Value, args: &Value) -> Answer {
    if name != "ops" {
        return Err(Fault::UnknownOperation);
    }
    let limits = PolicyMapLimits { count: integer(&args["capacity"])?, ..PolicyMapLimits::UNLIMITED };
    let policies = PolicyMap::bounded(limits, MemoryStore::default(), |_, _| Ok(Number(Value::Null)));
    let mut policies = policies.with_swapping(args["swappable"].as_bool().unwrap_or(false));
    let steps = input["ops"].as_array().ok_or_else(|| bad("a list of steps"))?;
    let answers = steps.iter().map(|op| match step(&mut policies, op) {
        Err(Fault::UnknownPolicy) => Ok(json!({"err": Fault::UnknownPolicy.name()})),
        other => other,
    });
    answers.collect()
}

fn step(policies: &mut PolicyMap<Number>, step: &Value) -> Answer {
    let id = || Ok::<_, Fault>(PolicyId::new(text(&step["id"])?.to_string()));
    let names = |ids: &mut dyn Iterator<Item = &PolicyId>| ids.map(PolicyId::to_string).collect::<Vec<_>>();
    match text(&step["op"])? {
        "insert" => policies.insert(id()?, Number(step["value"].clone())).map_err(fault)?,
        "get" => return Ok(policies.get_mut(&id()?).map_err(fault)?.0.clone()),
        "get_or_none" => return Ok(policies.get_mut(&id()?).map_or(Value::Null, |number| number.0.clone())),
        "set_value" => policies.get_mut(&id()?).map_err(fault)?.0 = step["value"].clone(),
        "del" => policies.remove(&id()?).map_err(fault)?,
        "contains" => return Ok(policies.contains(&id()?).into()),
        "len" => return Ok(policies.len().into()),
        "keys" => return Ok(names(&mut policies.ids()).into()),
        "state" => {
            return Ok(json!({
                "resident_lru": names(&mut policies.resident()),
                "stashed": names(&mut policies.stashed()),
            }));
        }
        "constructions" => return Ok(policies.constructions().into()),
        _ => return Err(Fault::UnknownOperation),
    }
    Ok(Value::Null)
}

fn fault(error: PolicyMapError) -> Fault {
    match error {
        PolicyMapError::Unknown(_) => Fault::UnknownPolicy,
        PolicyMapError::AlreadyExists(_) => Fault::AlreadyExists,
        _ => Fault::InvalidArgument,
    }
}
