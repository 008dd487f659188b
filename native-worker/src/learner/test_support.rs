//! Weights and batches for the tests of the learner.

use rollmesh_core::{
    batch::{ACTION_LOGP, ACTIONS, ADVANTAGES, OBS, SampleBatch, VALUE_TARGETS, VF_PREDS},
    column::{ColumnData, RowShape},
    ids::{SlotId, WeightsVersion},
    rng::{Purpose, Rng, Streams},
    weights::{Tensor, Weights},
};

/// Random weights of a model with these widths.
pub(super) fn weights(obs_len: u32, hidden: &[u32], num_actions: u32) -> Weights {
    let mut rng = rng(7);
    let mut tensors = Vec::new();
    for (network, outputs) in [("policy", num_actions), ("value", 1)] {
        let widths: Vec<u32> = [&[obs_len], hidden, &[outputs]].concat();
        for (i, width) in widths.windows(2).enumerate() {
            let shapes = [("weight", vec![width[0], width[1]]), ("bias", vec![width[1]])];
            for (kind, shape) in shapes {
                let values = (0..shape.iter().product()).map(|_| rng.uniform_f32() - 0.5).collect();
                tensors.push(Tensor { name: format!("{network}.{i}.{kind}"), shape, values });
            }
        }
    }
    Weights::new(WeightsVersion(0), tensors).unwrap()
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
        .and_then(|batch| batch.with(ACTION_LOGP, ColumnData::scalars(vec![0.5f32.ln(); rows])))
        .and_then(|batch| batch.with(VF_PREDS, ColumnData::scalars(vec![0.0; rows])))
        .and_then(|batch| batch.with(ADVANTAGES, ColumnData::scalars(rewards.clone())))
        .and_then(|batch| batch.with(VALUE_TARGETS, ColumnData::scalars(rewards)))
        .unwrap()
}

fn rng(seed: u64) -> Rng {
    Streams::new(seed, Purpose::Init).at(SlotId(0), 0, 0, 0)
}
