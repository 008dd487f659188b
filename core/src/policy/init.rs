//! First weights of a policy: a function of the seed.

use super::ModelSpec;
use crate::{
    hash::bytes_hash,
    ids::{PolicyId, SlotId, WeightsVersion},
    math,
    prelude::*,
    rng::{Purpose, Streams},
    weights::{Tensor, Weights},
};

/// How much smaller than usual the last layer of the policy begins, so that first actions are near uniform
/// (Andrychowicz et al.: "What matters in on-policy reinforcement learning?", 2020).
const POLICY_HEAD_GAIN: f32 = 0.01;

/// Weights of version 0. The spec has been checked.
pub(super) fn first_weights(spec: &ModelSpec, seed: u64) -> Weights {
    let streams = Streams::new(seed, Purpose::Init);
    let weights = spec.matrices().into_iter().map(|matrix| {
        let (inputs, outputs, (net, layer)) = (matrix.inputs, matrix.outputs, matrix.address);
        let gain = if matrix.head { POLICY_HEAD_GAIN } else { 1.0 };
        let bound = math::sqrt(6.0 / (inputs + outputs) as f32) * gain;
        let values = (0..inputs * outputs).map(|k| {
            // One stream per weight: the number of a weight within its layer stands where a step would.
            let mut rng = streams.at(SlotId(net), layer, k as u32, 0);
            bound * (2.0 * rng.uniform_f32() - 1.0)
        });
        Tensor { name: matrix.name, shape: vec![inputs as u32, outputs as u32], values: values.collect() }
    });
    let biases = spec.biases().into_iter().map(|bias| {
        // The second of four gates is the one that forgets.
        let value = |i: usize| f32::from(u8::from(bias.gates && (bias.len / 4..bias.len / 2).contains(&i)));
        Tensor { values: (0..bias.len).map(value).collect(), shape: vec![bias.len as u32], name: bias.name }
    });
    Weights::sorted(WeightsVersion(0), weights.chain(biases).collect())
}

/// The seed of a policy's first weights: another one for each policy of a run, whatever their order; the run's own for
/// [`PolicyId::DEFAULT`].
#[must_use]
pub fn weights_seed(seed: u64, id: &PolicyId) -> u64 {
    if *id == PolicyId::DEFAULT {
        return seed;
    }
    let [a, b, c, d, e, f, g, h, ..] = bytes_hash(id.as_str().as_bytes()).0;
    seed ^ u64::from_be_bytes([a, b, c, d, e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::weights_hash;

    #[test]
    fn first_weights_of_the_mlp_are_frozen() {
        let spec = ModelSpec { obs_len: 4, dist_inputs_len: 2, hidden: vec![64, 64], lstm_cell_size: None };
        let hash = weights_hash(&spec.init_weights(7).unwrap());
        assert_eq!(hash.to_string(), "0827f248de3cdc047f7a4c5de870161f");
    }

    #[test]
    fn forget_gates_begin_open() {
        let spec = ModelSpec { obs_len: 2, dist_inputs_len: 2, hidden: vec![], lstm_cell_size: Some(3) };
        let weights = spec.init_weights(1).unwrap();
        let bias = &weights.tensor("lstm.bias").unwrap().values;
        assert_eq!(bias[..], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn policies_of_a_run_begin_differently() {
        let ids = ["default_policy", "car1", "car2"].map(PolicyId::new);
        let seeds = ids.map(|id| weights_seed(5, &id));
        assert!(seeds[0] == 5 && seeds[1] != 5 && seeds[2] != 5 && seeds[1] != seeds[2]);
    }
}
