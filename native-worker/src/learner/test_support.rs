//! Weights and batches for the tests of the learner.

use rollmesh_core::{
    batch::{ACTION_LOGP, ACTIONS, ADVANTAGES, OBS, SampleBatch, VALUE_TARGETS, VF_PREDS},
    column::{ColumnData, DType, RowShape},
    env::EnvSpaces,
    ids::{SlotId, WeightsVersion},
    rng::{Purpose, Rng, Streams},
    space::Space,
    weights::{Tensor, Weights},
};

/// So many numbers, and one of so many actions.
pub(super) fn discrete(obs_len: usize, n: u32) -> EnvSpaces {
    spaces(obs_len, Space::Discrete { n })
}

/// So many numbers, and actions of a space.
pub(super) fn spaces(obs_len: usize, action: Space) -> EnvSpaces {
    let observation = Space::vector(&vec![-9.0; obs_len], &vec![9.0; obs_len]);
    let action_type = if let Space::Box(_) = action { DType::F32 } else { DType::I64 };
    EnvSpaces { observation, observation_type: DType::F32, action, action_type }
}

/// Random weights of two perceptrons with these widths.
pub(super) fn weights(obs_len: u32, hidden: &[u32], outputs: u32) -> Weights {
    let mut tensors = Vec::new();
    for (network, outputs) in [("policy", outputs), ("value", 1)] {
        layers(&mut tensors, network, &[&[obs_len], hidden, &[outputs]].concat());
    }
    random(tensors)
}

/// Random weights of an LSTM after one layer of the same width.
pub(super) fn lstm_weights(obs_len: u32, hidden: u32, outputs: u32) -> Weights {
    let mut tensors = Vec::new();
    layers(&mut tensors, "encoder", &[obs_len, hidden]);
    for name in ["weight_ih", "weight_hh"] {
        tensors.push((format!("lstm.{name}"), vec![hidden, 4 * hidden]));
    }
    tensors.push(("lstm.bias".into(), vec![4 * hidden]));
    layers(&mut tensors, "policy", &[hidden, outputs]);
    layers(&mut tensors, "value", &[hidden, 1]);
    random(tensors)
}

fn layers(tensors: &mut Vec<(String, Vec<u32>)>, network: &str, widths: &[u32]) {
    for (i, width) in widths.windows(2).enumerate() {
        tensors.push((format!("{network}.{i}.weight"), vec![width[0], width[1]]));
        tensors.push((format!("{network}.{i}.bias"), vec![width[1]]));
    }
}

fn random(tensors: Vec<(String, Vec<u32>)>) -> Weights {
    let mut rng = rng(7);
    let tensors = tensors.into_iter().map(|(name, shape)| {
        let values = (0..shape.iter().product()).map(|_| rng.uniform_f32() - 0.5).collect();
        Tensor { name, shape, values }
    });
    Weights::new(WeightsVersion(0), tensors.collect()).unwrap()
}

/// All numbers of weights.
pub(super) fn bits(weights: &Weights) -> Vec<u32> {
    weights.tensors().iter().flat_map(|tensor| tensor.values.iter().map(|value| value.to_bits())).collect()
}

/// Experience with a bandit of two contexts and two actions, taken at random: the action pays that has the number
/// of the context.
pub(super) fn bandit(rows: usize, seed: u64) -> SampleBatch {
    let mut rng = rng(seed);
    let contexts: Vec<i64> = (0..rows).map(|_| rng.below(2).into()).collect();
    let actions: Vec<i64> = (0..rows).map(|_| rng.below(2).into()).collect();
    let rewards: Vec<f32> = contexts.iter().zip(&actions).map(|(c, a)| f32::from(u8::from(c == a))).collect();
    let obs = contexts.iter().flat_map(|&context| [context as f32, 1.0 - context as f32]).collect();
    SampleBatch::new()
        .with(OBS, ColumnData::new(obs, RowShape::vector(2)).unwrap())
        .and_then(|batch| batch.with(ACTIONS, ColumnData::scalars(actions)))
        .map(|batch| learnable(batch, &vec![0.5f32.ln(); rows], &rewards))
        .unwrap()
}

/// A batch of observations and actions with what else is learned from: rewards that belong to one row each, and no
/// values yet.
pub(super) fn learnable(batch: SampleBatch, logp: &[f32], rewards: &[f32]) -> SampleBatch {
    let columns = [
        (ACTION_LOGP, logp.to_vec()),
        (VF_PREDS, vec![0.0; rewards.len()]),
        (ADVANTAGES, rewards.to_vec()),
        (VALUE_TARGETS, rewards.to_vec()),
    ];
    columns.into_iter().fold(batch, |batch, (key, values)| batch.with(key, ColumnData::scalars(values)).unwrap())
}

pub(super) fn rng(seed: u64) -> Rng {
    Streams::new(seed, Purpose::Init).at(SlotId(0), 0, 0, 0)
}
