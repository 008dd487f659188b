//! The duration of PPO's update of 2,048 rows: eight epochs of minibatches of 128 rows on one thread, or on
//! the device that the environment variable `ROLLMESH_TEST_DEVICE` names.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use rollmesh_core::{
    batch::{ACTION_LOGP, ACTIONS, ADVANTAGES, BatchParts, OBS, SampleBatch, VALUE_TARGETS, VF_PREDS, state_in},
    column::{Column, ColumnData, DType, RowShape},
    env::EnvSpaces,
    kernels::wide::AUTO,
    policy::{ModelConfig, ModelSpec},
    space::Space,
};
use rollmesh_learner::{DeviceSpec, Learner, PpoConfig};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROWS: usize = 2048;
/// Rows of a sequence.
const SEQUENCE: usize = 20;

fn wave(n: usize, scale: f32) -> Vec<f32> {
    (0..n).map(|i| scale * (i as f32 * 1.3 + scale).sin()).collect()
}

fn vectors(values: Vec<f32>, width: usize) -> Column {
    ColumnData::new(values, RowShape::vector(width as u32)).expect("the width divides the values").into()
}

/// Returns rows of an environment with such observations and two actions, in sequences for a memory of `cells`, if
/// there is one.
fn batch(obs: RowShape, cells: Option<usize>) -> SampleBatch {
    let actions: Vec<i64> = (0..ROWS as i64).map(|row| row * 7 % 3 % 2).collect();
    let mut columns = vec![
        (OBS.name().into(), ColumnData::new(wave(ROWS * obs.elements(), 0.9), obs).expect("rows of the shape").into()),
        (ACTIONS.name().into(), ColumnData::scalars(actions).into()),
    ];
    let logp: Vec<f32> = wave(ROWS, 0.1).into_iter().map(|x| x - 0.7).collect();
    for (name, values) in [
        (ACTION_LOGP.name(), logp),
        (VF_PREDS.name(), wave(ROWS, 0.3)),
        (ADVANTAGES.name(), wave(ROWS, 1.5)),
        (VALUE_TARGETS.name(), wave(ROWS, 1.1)),
    ] {
        columns.push((name.into(), ColumnData::scalars(values).into()));
    }
    let seq_lens = cells.map(|cells| {
        let lens: Vec<i32> = (0..ROWS).step_by(SEQUENCE).map(|start| SEQUENCE.min(ROWS - start) as i32).collect();
        (0..2).for_each(|i| columns.push((state_in(i), vectors(wave(lens.len() * cells, 0.5), cells))));
        ColumnData::scalars(lens)
    });
    SampleBatch::from_parts(BatchParts { columns, seq_lens, ..BatchParts::default() }).expect("columns fit each other")
}

/// Models by name, with the shape of an observation.
const MODELS: [(&str, &[u32], &str); 5] = [
    ("mlp_64x64", &[4], r#"{"fcnet_hiddens": [64, 64]}"#),
    ("mlp_256x256", &[4], r#"{"fcnet_hiddens": [256, 256]}"#),
    ("relu_64x64", &[4], r#"{"fcnet_hiddens": [64, 64], "fcnet_activation": "relu"}"#),
    ("lstm_64", &[4], r#"{"fcnet_hiddens": [64], "use_lstm": true, "lstm_cell_size": 64}"#),
    (
        "cnn_16x3x3_128",
        &[10, 10, 4],
        r#"{"fcnet_hiddens": [128], "conv_filters": [[16, 3, 1]], "vf_share_layers": true}"#,
    ),
];

fn updates(c: &mut Criterion) {
    let spec = std::env::var("ROLLMESH_TEST_DEVICE").map_or(DeviceSpec::Cpu, |name| name.parse().expect("a device"));
    let device = spec.open().expect("the device is there");
    let mut group = c.benchmark_group("ppo_update");
    group.sample_size(20);
    for (name, obs_shape, model) in MODELS {
        let shape = RowShape::new(obs_shape).expect("a shape");
        let spaces = EnvSpaces {
            observation: Space::uniform(DType::F32, shape, -9.0, 9.0),
            observation_type: DType::F32,
            action: Space::Discrete { n: 2 },
            action_type: DType::I64,
        };
        let model: ModelConfig = serde_json::from_str(model).expect("a model");
        let cells = model.use_lstm.then_some(model.lstm_cell_size.get() as usize);
        let spec = ModelSpec::for_spaces(&spaces, &model).expect("a model for the spaces");
        let weights = spec.init_weights(0).expect("weights");
        let batch = batch(shape, cells);
        let mut learner =
            Learner::new(PpoConfig::default(), &spaces, &spec, 0, &weights, device.clone(), AUTO).expect("a learner");
        group.bench_function(name, |b| b.iter(|| learner.update(black_box(&batch)).expect("an update")));
    }
}

criterion_group!(benches, updates);
criterion_main!(benches);
