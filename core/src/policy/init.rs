//! First weights of a policy: a function of the seed.

use super::{MlpPolicySpec, PolicyError};
use crate::{
    ids::{SlotId, WeightsVersion},
    math,
    prelude::*,
    rng::{Purpose, Streams},
    weights::{Tensor, Weights},
};

/// How much smaller than usual the last layer of the policy begins, so that first actions are near uniform
/// (Andrychowicz et al.: "What matters in on-policy reinforcement learning?", 2020).
const POLICY_HEAD_GAIN: f32 = 0.01;

/// Weights of version 0: uniform as Glorot and Bengio (2010) propose, biases zero, the policy's last layer small.
///
/// # Errors
/// [`PolicyError::Unsupported`] for a shape that no policy has, see [`MlpPolicySpec::check`].
pub fn init_weights(spec: &MlpPolicySpec, seed: u64) -> Result<Weights, PolicyError> {
    spec.check()?;
    let streams = Streams::new(seed, Purpose::Init);
    let mut tensors = Vec::new();
    for (net, (name, last)) in [("policy", spec.num_actions), ("value", 1)].into_iter().enumerate() {
        let widths = spec.widths(last);
        for (i, pair) in widths.windows(2).enumerate() {
            let (inputs, outputs) = (pair[0], pair[1]);
            let head = net == 0 && i + 2 == widths.len();
            let bound = math::sqrt(6.0 / (inputs + outputs) as f32) * if head { POLICY_HEAD_GAIN } else { 1.0 };
            let values = (0..inputs * outputs).map(|k| {
                // One stream per weight: the number of a weight within its layer stands where a step would.
                let mut rng = streams.at(SlotId(net as u32), i as u32, k as u32, 0);
                bound * (2.0 * rng.uniform_f32() - 1.0)
            });
            tensors.push(Tensor {
                name: format!("{name}.{i}.weight"),
                shape: vec![inputs as u32, outputs as u32],
                values: values.collect(),
            });
            tensors.push(Tensor {
                name: format!("{name}.{i}.bias"),
                shape: vec![outputs as u32],
                values: vec![0.0; outputs],
            });
        }
    }
    Ok(Weights::sorted(WeightsVersion(0), tensors))
}
