//! Weights, batches and a registry for tests of the learner.

use candle_core::Device;
use rollmesh_core::{
    batch::{ACTION_LOGP, ACTIONS, ADVANTAGES, BatchParts, OBS, SampleBatch, VALUE_TARGETS, VF_PREDS, state_in},
    column::{Column, ColumnData, DType, RowShape},
    env::EnvSpaces,
    ids::{SlotId, WeightsVersion},
    kernels::{Kernels, nets::Activation},
    policy::{LayerKind, LayerSpec, ModelSpec, PreviousInputs, WeightsInitializer},
    rng::{Purpose, Rng, Streams},
    space::Space,
    weights::{Tensor, Weights},
    worker::Registry,
};

use super::{AlgorithmConfig, LearnError, Learner, register_learning_policies};

/// Returns spaces with `obs_len` observed numbers and `n` discrete actions.
pub(crate) fn discrete(obs_len: usize, n: u32) -> EnvSpaces {
    spaces(obs_len, Space::Discrete { n })
}

/// Returns spaces with `obs_len` observed numbers and this space of actions.
pub(crate) fn spaces(obs_len: usize, action: Space) -> EnvSpaces {
    let observation = Space::vector(&vec![-9.0; obs_len], &vec![9.0; obs_len]);
    let action_type = if let Space::Box(_) = action { DType::F32 } else { DType::I64 };
    EnvSpaces { observation, observation_type: DType::F32, action, action_type }
}

/// Returns random weights of two perceptrons with these widths.
pub(crate) fn weights(obs_len: u32, hidden: &[u32], outputs: u32) -> Weights {
    let mut tensors = Vec::new();
    for (network, outputs) in [("policy", outputs), ("value", 1)] {
        layers(&mut tensors, network, &[&[obs_len], hidden, &[outputs]].concat());
    }
    random(tensors)
}

/// Returns random weights of an LSTM after one layer of the same width.
pub(crate) fn lstm_weights(obs_len: u32, hidden: u32, outputs: u32) -> Weights {
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

/// Returns random weights of a model.
pub(crate) fn weights_of(spec: &ModelSpec) -> Weights {
    let dims = |shape: Vec<usize>| shape.into_iter().map(|dim| dim as u32).collect();
    random(spec.tensors().unwrap().into_iter().map(|(name, shape)| (name, dims(shape))).collect())
}

/// Returns the model of [`weights`] or [`lstm_weights`].
pub(crate) fn spec_of(weights: &Weights) -> ModelSpec {
    let shape = |name: String| weights.tensor(&name).map(|tensor| [tensor.shape[0] as usize, tensor.shape[1] as usize]);
    let network = |network: &str, last: Activation| {
        let shapes: Vec<_> = (0..).map_while(|i| shape(format!("{network}.{i}.weight"))).collect();
        let layer = |(i, &[inputs, outputs]): (usize, &[usize; 2])| {
            let activation = if i + 1 < shapes.len() { Activation::Tanh } else { last };
            LayerSpec { name: format!("{network}.{i}"), inputs, kind: LayerKind::Dense { outputs, activation } }
        };
        shapes.iter().enumerate().map(layer).collect::<Vec<_>>()
    };
    let mut trunk = network("encoder", Activation::Tanh);
    if let Some([inputs, gates]) = shape("lstm.weight_ih".into()) {
        trunk.push(LayerSpec {
            name: "lstm".into(),
            inputs,
            kind: LayerKind::Lstm { cells: gates / 4, previous: PreviousInputs::default() },
        });
    }
    let (policy, value) = (network("policy", Activation::Linear), network("value", Activation::Linear));
    let obs_len = trunk.first().unwrap_or(&policy[0]).inputs;
    ModelSpec { obs_len, mask_len: 0, trunk, policy, value, initializer: WeightsInitializer::GlorotUniform }
}

/// Returns a learner of [`weights`] or [`lstm_weights`].
pub(crate) fn new_learner(
    algorithm: impl Into<AlgorithmConfig>,
    spaces: &EnvSpaces,
    seed: u64,
    initial: &Weights,
    device: Device,
    kernels: Kernels,
) -> Result<Learner, LearnError> {
    Learner::new(algorithm, spaces, &spec_of(initial), seed, initial, device, kernels)
}

/// Returns the bits of all weights.
pub(crate) fn bits(weights: &Weights) -> Vec<u32> {
    weights.tensors().iter().flat_map(|tensor| tensor.values.iter().map(|value| value.to_bits())).collect()
}

/// Returns experience with a bandit of two contexts and two actions, taken at random: the action with the number of the
/// context pays.
pub(crate) fn bandit(rows: usize, seed: u64) -> SampleBatch {
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

/// Adds the other columns for learning to a batch of observations and actions: rewards that belong to one row each, and
/// no values yet.
pub(crate) fn learnable(batch: SampleBatch, logp: &[f32], rewards: &[f32]) -> SampleBatch {
    let columns = [
        (ACTION_LOGP, logp.to_vec()),
        (VF_PREDS, vec![0.0; rewards.len()]),
        (ADVANTAGES, rewards.to_vec()),
        (VALUE_TARGETS, rewards.to_vec()),
    ];
    columns.into_iter().fold(batch, |batch, (key, values)| batch.with(key, ColumnData::scalars(values)).unwrap())
}

/// Number of rows of [`batch`].
pub(crate) const ROWS: usize = 11;
/// Lengths of its sequences, for recurrent models.
const SEQ_LENS: [i32; 4] = [2, 4, 1, 4];

fn wave(n: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|i| scale * (i as f32 * 1.3 + scale).sin()).collect()
}

fn rows_of(values: Vec<f32>, width: u32) -> Column {
    ColumnData::new(values, RowShape::vector(width)).unwrap().into()
}

/// Returns artificial rows, for three numbers of observation and LSTMs of four.
pub(crate) fn batch(action: &Space) -> SampleBatch {
    let integers = |nvec: &[u32]| -> Column {
        let values = (0..ROWS).flat_map(|i| nvec.iter().map(move |&n| (i as i64 * 7 + 3) % i64::from(n))).collect();
        ColumnData::new(values, RowShape::vector(nvec.len() as u32)).unwrap().into()
    };
    let actions = match action {
        Space::Discrete { n } => integers(&[*n]),
        Space::MultiDiscrete { nvec } => integers(nvec),
        Space::MultiBinary { n } => integers(&vec![2; *n as usize]),
        // One of two values and two floats.
        Space::Tuple(_) => {
            let floats = wave(ROWS * 2, 1.1);
            let row = |(i, floats): (usize, &[f32])| [(i * 7 % 2) as f32, floats[0], floats[1]];
            rows_of(floats.chunks(2).enumerate().flat_map(row).collect(), 3)
        }
        other => rows_of(wave(ROWS * other.shape().elements(), 1.1), other.shape().elements() as u32),
    };
    let parts = BatchParts {
        columns: vec![
            (OBS.name().into(), rows_of(wave(ROWS * 3, 0.9), 3)),
            (ACTIONS.name().into(), actions),
            (state_in(0), rows_of(wave(SEQ_LENS.len() * 4, 0.5), 4)),
            (state_in(1), rows_of(wave(SEQ_LENS.len() * 4, 0.7), 4)),
        ],
        seq_lens: Some(ColumnData::scalars(SEQ_LENS.to_vec())),
        ..BatchParts::default()
    };
    let batch = SampleBatch::from_parts(parts).unwrap();
    let logp: Vec<f32> = wave(ROWS, 0.1).into_iter().map(|x| x - 1.0).collect();
    learnable(batch, &logp, &wave(ROWS, 1.5))
}

pub(crate) fn rng(seed: u64) -> Rng {
    Streams::new(seed, Purpose::Init).at(SlotId(0), 0, 0, 0)
}

/// Returns the core's registry with the policies that learn.
pub(crate) fn registry() -> Registry {
    let mut registry = Registry::builtin();
    register_learning_policies(&mut registry.policies);
    registry
}
