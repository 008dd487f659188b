//! Runs `ope.*`: off-policy estimators.

use rollmesh_core::{
    batch::BatchError,
    estimate::{EstimateError, Estimator},
};
use serde_json::{Value, json};

use super::{
    Answer, Fault,
    values::{batch, float, float_json},
};

pub(super) fn answer(name: &str, input: &Value, args: &Value) -> Answer {
    let (name, per_episode) = name.strip_suffix("_per_episode").map_or((name, false), |name| (name, true));
    let estimator = match name {
        "is" => Estimator::ImportanceSampling,
        "wis" => Estimator::WeightedImportanceSampling,
        "dm" => Estimator::DirectMethod,
        "dr" => Estimator::DoublyRobust,
        _ => return Err(Fault::UnknownOperation),
    };
    let (batch, gamma) = (batch(&input["batch"])?, float(&args["gamma"])?);
    if per_episode {
        let samples = estimator.per_episode(&batch, gamma).map_err(fault)?;
        let sample = samples.iter().map(
            |sample| json!({"v_behavior": float_json(sample.v_behavior), "v_target": float_json(sample.v_target)}),
        );
        return Ok(sample.collect());
    }
    let split = args["split_by_episode"].as_bool().unwrap_or(true);
    let estimate = estimator.estimate(&batch, gamma, split).map_err(fault)?;
    Ok(json!({
        "v_behavior": float_json(estimate.v_behavior),
        "v_behavior_std": float_json(estimate.v_behavior_std),
        "v_target": float_json(estimate.v_target),
        "v_target_std": float_json(estimate.v_target_std),
        "v_gain": float_json(estimate.v_gain),
        "v_delta": float_json(estimate.v_delta),
    }))
}

fn fault(error: EstimateError) -> Fault {
    match error {
        EstimateError::Batch(BatchError::MissingColumn(_)) => Fault::MissingColumn,
        _ => Fault::InvalidArgument,
    }
}
