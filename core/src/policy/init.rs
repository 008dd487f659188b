//! First weights of a policy: a function of the seed.

use super::{
    ModelSpec, WeightsInitializer,
    net::{Init, LayerSpec, TensorSpec},
};
use crate::{
    hash::bytes_hash,
    ids::{PolicyId, SlotId, WeightsVersion},
    kernels::nets::Activation,
    math,
    prelude::*,
    rng::{Purpose, Rng, Streams},
    weights::{Tensor, Weights},
};

/// The factor by which the last layer of the policy starts smaller than usual, so that first actions are near uniform
/// (Andrychowicz et al.: "What matters in on-policy reinforcement learning?", 2020).
const POLICY_HEAD_GAIN: f32 = 0.01;

/// Networks by the names of their layers; the number of a network addresses its weights. Others have the hash of their name.
const NETWORKS: [&str; 4] = ["policy", "value", "encoder", "lstm"];

/// Returns first weights of version 0. The spec has been checked.
pub(super) fn first_weights(spec: &ModelSpec, seed: u64) -> Weights {
    let streams = Streams::new(seed, Purpose::Init);
    let head = spec.policy.iter().rev().find(|layer| layer.num_weights() > 0);
    let tensors = spec.layers().flat_map(|layer| {
        let is_head = head.is_some_and(|head| head.name == layer.name);
        let first = move |tensor| first_tensor(spec.initializer, layer, is_head, tensor, &streams);
        layer.tensor_specs().into_iter().map(first)
    });
    Weights::sorted(WeightsVersion(0), tensors.collect())
}

fn first_tensor(
    initializer: WeightsInitializer,
    layer: &LayerSpec,
    is_head: bool,
    tensor: TensorSpec,
    streams: &Streams,
) -> Tensor {
    let TensorSpec { name, shape, init } = tensor;
    let values = match init {
        Init::Zeros => vec![0.0; shape.iter().product()],
        Init::Ones => vec![1.0; shape.iter().product()],
        Init::ForgetGates => {
            let len = shape.iter().product();
            // The second of four gates is the one that forgets.
            (0..len).map(|i| f32::from(u8::from((len / 4..len / 2).contains(&i)))).collect()
        }
        Init::Drawn { rows, columns, fans, number } => {
            let (network, number) = address(&layer.name, number);
            // One stream per weight: the number of a weight within its matrix stands where a step would.
            let rng = |k: usize| streams.at(SlotId(network), number, k as u32, 0);
            match initializer {
                WeightsInitializer::GlorotUniform => {
                    let gain = if is_head { POLICY_HEAD_GAIN } else { 1.0 };
                    let bound = math::sqrt(6.0 / (fans[0] + fans[1]) as f32) * gain;
                    (0..rows * columns).map(|k| bound * (2.0 * rng(k).uniform_f32() - 1.0)).collect()
                }
                WeightsInitializer::Orthogonal => {
                    let gain = match layer.activation() {
                        _ if is_head => f64::from(POLICY_HEAD_GAIN),
                        Activation::Linear => 1.0,
                        _ => core::f64::consts::SQRT_2,
                    };
                    orthogonal(rows, columns, gain, rng)
                }
            }
        }
    };
    Tensor { name, shape: shape.into_iter().map(|dim| dim as u32).collect(), values }
}

/// Returns the numbers of a layer's network and of its matrix within it.
fn address(layer: &str, number: u32) -> (u32, u32) {
    let numbered = layer.rsplit_once('.').and_then(|(network, layer)| Some((network, layer.parse().ok()?)));
    let (network, number) = numbered.unwrap_or((layer, number));
    let known = NETWORKS.iter().position(|known| *known == network);
    let [a, b, c, d, ..] = bytes_hash(network.as_bytes()).0;
    (known.map_or_else(|| u32::from_be_bytes([a, b, c, d]), |known| known as u32), number)
}

/// Returns a matrix of normal numbers whose columns, or rows where these are fewer, have been made orthogonal, each of
/// length `gain`: the method of Gram and Schmidt, twice, since rounding leaves something after the first time.
fn orthogonal(rows: usize, columns: usize, gain: f64, rng: impl Fn(usize) -> Rng) -> Vec<f32> {
    let (count, len) = (rows.min(columns), rows.max(columns));
    let mut vectors: Vec<Vec<f64>> = Vec::new();
    for i in 0..count {
        let mut vector: Vec<f64> = (0..len).map(|k| rng(i * len + k).normal()).collect();
        for _ in 0..2 {
            for other in &vectors {
                let along = dot(other, &vector);
                vector.iter_mut().zip(other).for_each(|(x, y)| *x -= along * y);
            }
        }
        let length = math::sqrt_f64(dot(&vector, &vector));
        vector.iter_mut().for_each(|x| *x /= length);
        vectors.push(vector);
    }
    let is_tall = rows >= columns;
    let at = |row: usize, column: usize| if is_tall { vectors[column][row] } else { vectors[row][column] };
    (0..rows * columns).map(|k| (gain * at(k / columns, k % columns)) as f32).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (x, y)| sum + x * y)
}

/// Returns the seed of a policy's first weights: a different one for each policy of a run, whatever their order; the
/// run's own for [`PolicyId::DEFAULT`].
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
    use super::{super::ModelConfig, *};
    use crate::hash::weights_hash;

    #[test]
    fn first_weights_of_the_mlp_are_frozen() {
        let spec = ModelSpec::new(&ModelConfig::default(), &[4], 2).unwrap();
        let hash = weights_hash(&spec.init_weights(7).unwrap());
        assert_eq!(hash.to_string(), "0827f248de3cdc047f7a4c5de870161f");
    }

    #[test]
    fn forget_gates_begin_open() {
        let model = r#"{"fcnet_hiddens": [], "use_lstm": true, "lstm_cell_size": 3}"#;
        let spec = ModelSpec::new(&serde_json::from_str(model).unwrap(), &[2], 2).unwrap();
        let weights = spec.init_weights(1).unwrap();
        let bias = &weights.tensor("lstm.bias").unwrap().values;
        assert_eq!(bias[..], [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn orthogonal_matrices_have_orthogonal_columns_or_rows_of_the_gain() {
        let weights_initializer = WeightsInitializer::Orthogonal;
        let model = ModelConfig { fcnet_hiddens: vec![24, 6], weights_initializer, ..ModelConfig::default() };
        let weights = ModelSpec::new(&model, &[9], 3).unwrap().init_weights(3).unwrap();
        let sqrt_2 = core::f64::consts::SQRT_2;
        for (name, gain) in [("policy.0", sqrt_2), ("policy.1", sqrt_2), ("policy.2", 0.01), ("value.2", 1.0)] {
            let tensor = weights.tensor(&format!("{name}.weight")).unwrap();
            let (rows, columns) = (tensor.shape[0] as usize, tensor.shape[1] as usize);
            let at = |row: usize, column: usize| f64::from(tensor.values[row * columns + column]);
            let (count, len) = (rows.min(columns), rows.max(columns));
            let at = |i, k| if rows >= columns { at(k, i) } else { at(i, k) };
            for (i, j) in (0..count).flat_map(|i| (0..count).map(move |j| (i, j))) {
                let product: f64 = (0..len).map(|k| at(i, k) * at(j, k)).sum();
                let expected = if i == j { gain * gain } else { 0.0 };
                assert!((product - expected).abs() < 1e-6, "{name} {i} {j}: {product}");
            }
        }
        // The same bits everywhere.
        assert_eq!(weights_hash(&weights).to_string(), "32c0fb4a3a8751201973fc71a96de77f");
    }

    #[test]
    fn policies_of_a_run_begin_differently() {
        let ids = ["default_policy", "car1", "car2"].map(PolicyId::new);
        let seeds = ids.map(|id| weights_seed(5, &id));
        assert!(seeds[0] == 5 && seeds[1] != 5 && seeds[2] != 5 && seeds[1] != seeds[2]);
    }
}
