//! Runs `post.*`: advantages and other targets.

use rollmesh_core::{
    batch::{ADVANTAGES, BatchError, SampleBatch, VALUE_TARGETS, VALUES_BOOTSTRAPPED},
    postprocess::{
        AdvantageConfig, PostprocessError, adjust_nstep, compute_advantages, compute_gae_for_sample_batch,
        discount_cumsum,
    },
};
use serde_json::{Value, json};

use super::{
    Answer, Fault,
    values::{bad, batch, batch_json, float, float_json, floats, integer},
};

pub(super) fn answer(name: &str, input: &Value, args: &Value) -> Answer {
    match name {
        "discount_cumsum" => {
            let mut values = floats(&input["x"])?;
            discount_cumsum(&mut values, float(&args["gamma"])?);
            Ok(values.into_iter().map(float_json).collect())
        }
        "compute_advantages" => {
            let last_r = float(&args["last_r"])? as f32;
            let batch = compute_advantages(&batch(&input["batch"])?, last_r, &config(args)?).map_err(fault)?;
            columns(&batch, &[ADVANTAGES.name(), VALUE_TARGETS.name()])
        }
        "gae" => {
            let value = float(&args["bootstrap_value"])? as f32;
            let batch = compute_gae_for_sample_batch(&batch(&input["batch"])?, value, &config(args)?).map_err(fault)?;
            columns(&batch, &[ADVANTAGES.name(), VALUE_TARGETS.name(), VALUES_BOOTSTRAPPED.name()])
        }
        "adjust_nstep" => {
            let (n_step, gamma) = (integer(&args["n_step"])?, float(&args["gamma"])?);
            Ok(batch_json(&adjust_nstep(&batch(&input["batch"])?, n_step, gamma).map_err(fault)?))
        }
        _ => Err(Fault::UnknownOperation),
    }
}

fn config(args: &Value) -> Result<AdvantageConfig, Fault> {
    let flag = |name: &str| args[name].as_bool().ok_or_else(|| bad("true or false"));
    Ok(AdvantageConfig {
        gamma: float(&args["gamma"])?,
        lambda: float(&args["lambda"])?,
        use_gae: args.get("use_gae").map_or(Ok(true), |_| flag("use_gae"))?,
        use_critic: args.get("use_critic").map_or(Ok(true), |_| flag("use_critic"))?,
    })
}

fn columns(batch: &SampleBatch, names: &[&str]) -> Answer {
    let all = batch_json(batch);
    let wanted = names.iter().filter_map(|name| Some(((*name).to_string(), all["columns"].get(*name)?.clone())));
    Ok(json!({"columns": wanted.collect::<serde_json::Map<_, _>>()}))
}

fn fault(error: PostprocessError) -> Fault {
    match error {
        PostprocessError::Batch(BatchError::MissingColumn(_)) => Fault::MissingColumn,
        _ => Fault::InvalidArgument,
    }
}
