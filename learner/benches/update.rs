//! How long PPO's update of 2,048 rows takes: eight epochs of minibatches of 128 rows on one thread, or on
//! the device that the environment variable `ROLLMESH_TEST_DEVICE` names.

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use rollmesh_core::{
    batch::{ACTION_LOGP, ACTIONS, ADVANTAGES, BatchParts, OBS, SampleBatch, VALUE_TARGETS, VF_PREDS, state_in},
    column::{Column, ColumnData, DType, RowShape},
    env::EnvSpaces,
    ids::WeightsVersion,
    kernels::wide::AUTO,
    space::Space,
    weights::{Tensor, Weights},
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

/// Rows of an environment with `obs` numbers and two actions, in sequences for a memory of `cells`, if there is one.
fn batch(obs: usize, cells: Option<usize>) -> SampleBatch {
    let actions: Vec<i64> = (0..ROWS as i64).map(|row| row * 7 % 3 % 2).collect();
    let mut columns = vec![
        (OBS.name().into(), vectors(wave(ROWS * obs, 0.9), obs)),
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

/// Weights of a policy and a value network behind a memory of `cells`, if there is one.
fn weights(obs: usize, hidden: &[usize], cells: Option<usize>) -> Weights {
    let mut shapes: Vec<(String, Vec<usize>)> = Vec::new();
    let mut layers = |network: &str, widths: &[usize]| {
        for (i, pair) in widths.windows(2).enumerate() {
            shapes.push((format!("{network}.{i}.weight"), pair.to_vec()));
            shapes.push((format!("{network}.{i}.bias"), vec![pair[1]]));
        }
    };
    let before = [&[obs], hidden].concat();
    let mut heads = before.clone();
    if let Some(cells) = cells {
        layers("encoder", &before);
        heads = vec![cells];
    }
    layers("policy", &[&heads[..], &[2]].concat());
    layers("value", &[&heads[..], &[1]].concat());
    if let Some(cells) = cells {
        let inputs = *before.last().expect("at least the observation");
        shapes.push(("lstm.weight_ih".into(), vec![inputs, 4 * cells]));
        shapes.push(("lstm.weight_hh".into(), vec![cells, 4 * cells]));
        shapes.push(("lstm.bias".into(), vec![4 * cells]));
    }
    let tensor = |(name, shape): (String, Vec<usize>)| Tensor {
        values: wave(shape.iter().product(), 0.2),
        shape: shape.into_iter().map(|dim| dim as u32).collect(),
        name,
    };
    Weights::new(WeightsVersion(0), shapes.into_iter().map(tensor).collect()).expect("names are unique")
}

fn updates(c: &mut Criterion) {
    let spec = std::env::var("ROLLMESH_TEST_DEVICE").map_or(DeviceSpec::Cpu, |name| name.parse().expect("a device"));
    let device = spec.open().expect("the device is there");
    let mut group = c.benchmark_group("ppo_update");
    group.sample_size(20);
    for (name, hidden, cells) in
        [("mlp_64x64", &[64, 64][..], None), ("mlp_256x256", &[256, 256], None), ("lstm_64", &[64], Some(64))]
    {
        let obs = 4;
        let spaces = EnvSpaces {
            observation: Space::vector(&vec![-9.0; obs], &vec![9.0; obs]),
            observation_type: DType::F32,
            action: Space::Discrete { n: 2 },
            action_type: DType::I64,
        };
        let (batch, weights) = (batch(obs, cells), weights(obs, hidden, cells));
        let mut learner =
            Learner::new(PpoConfig::default(), &spaces, 0, &weights, device.clone(), AUTO).expect("a learner");
        group.bench_function(name, |b| b.iter(|| learner.update(black_box(&batch)).expect("an update")));
    }
}

criterion_group!(benches, updates);
criterion_main!(benches);
