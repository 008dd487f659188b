//! Runs `worker.*`: methods of a worker. Its policies are numbers.

use std::collections::BTreeMap;

use rollmesh_core::{
    ids::{PolicyId, WeightsVersion},
    policy::PolicyMapError,
    space::Space,
    weights::{Tensor, Weights},
    worker::{NewPolicy, RolloutConfig, RolloutError, RolloutWorker, SetupError, config::FragmentLength},
};
use serde_json::{Value, json};

use super::{
    Answer, Fault,
    mocks::MockPolicy,
    values::{bad, integer, text},
};

pub(super) fn answer(name: &str, input: &Value, args: &Value) -> Answer {
    match name {
        "weights_seq" => weights_seq(input),
        "auto_fragment" => auto_fragment(args),
        "policies" => policies(input),
        _ => Err(Fault::UnknownOperation),
    }
}

/// Returns a worker without environments.
fn worker() -> Result<RolloutWorker, Fault> {
    RolloutWorker::builder()
        .config(RolloutConfig::default())
        .policy(PolicyId::DEFAULT, new_policy()?)
        .build()
        .map_err(|error| fault(error.into()))
}

fn new_policy() -> Result<NewPolicy, Fault> {
    Ok(NewPolicy::object(MockPolicy::boxed()?).with_spaces(Space::Discrete { n: 2 }, Space::Discrete { n: 2 }))
}

/// Returns which of the weights, which are numbers, were installed.
fn weights_seq(input: &Value) -> Answer {
    let mut worker = worker()?;
    let calls = input["calls"].as_array().ok_or_else(|| bad("a list of calls"))?;
    let mut applied = Vec::new();
    for call in calls {
        let number: u64 = integer(&call[0])?;
        let value = Tensor { name: "number".into(), shape: vec![1], values: vec![number as f32] };
        let weights = Weights::new(WeightsVersion(number), vec![value]).map_err(|_| Fault::InvalidArgument)?;
        let before = worker.weights(None).map_err(fault)?;
        worker.set_weights(&BTreeMap::from([(PolicyId::DEFAULT, weights)]), None, call[1].as_u64()).map_err(fault)?;
        if worker.weights(None).map_err(fault)? != before {
            applied.push(number);
        }
    }
    Ok(json!({"applied": applied}))
}

fn auto_fragment(args: &Value) -> Answer {
    let size = integer(&args["train_batch_size"])?;
    let (num_workers, num_envs) = (integer(&args["num_workers"])?, integer(&args["num_envs"])?);
    Ok((0..=num_workers).map(|index| FragmentLength::Auto.resolve(size, num_workers, num_envs, index)).collect())
}

fn policies(input: &Value) -> Answer {
    let mut worker = worker()?;
    let steps = input["ops"].as_array().ok_or_else(|| bad("a list of steps"))?;
    let answers = steps.iter().map(|op| match step(&mut worker, op) {
        Err(Fault::BadCase(what)) => Err(Fault::BadCase(what)),
        Err(fault) => Ok(json!({"err": fault.name()})),
        ok => ok,
    });
    answers.collect()
}

fn step(worker: &mut RolloutWorker, step: &Value) -> Answer {
    let id = || Ok::<_, Fault>(PolicyId::new(text(&step["id"])?.to_string()));
    match text(&step["op"])? {
        "add" => {
            let new = if step["with_policy"] == true { new_policy()? } else { NewPolicy::default() };
            worker.add_policy(id()?, new, None, None).map_err(fault)?;
            Ok(Value::Null)
        }
        "remove" => {
            worker.remove_policy(&id()?, None, None).map_err(fault)?;
            Ok(Value::Null)
        }
        "has" => Ok(worker.policy(&id()?).is_some().into()),
        "call" => Ok(worker.for_policy(&id()?, |_| 1).map_err(fault)?.into()),
        "ids" => Ok(worker.policies().ids().map(PolicyId::to_string).collect::<Value>()),
        _ => Err(Fault::UnknownOperation),
    }
}

fn fault(error: RolloutError) -> Fault {
    match error {
        RolloutError::PolicyMap(PolicyMapError::Unknown(_)) => Fault::UnknownPolicy,
        RolloutError::PolicyMap(PolicyMapError::AlreadyExists(_)) => Fault::AlreadyExists,
        RolloutError::Setup(SetupError::KindOrObject(_)) => Fault::InvalidArgument,
        error => Fault::BadCase(error.to_string()),
    }
}
