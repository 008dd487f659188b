//! The throughput of batches, postprocessing and filters. Cases, columns and names follow section E of RLlib's figures
//! in `docs/performance.md`; where memory bandwidth is the limit, a plain copy of the same bytes is measured for
//! comparison.
//!
//! `cargo bench -p rollmesh --bench data_plane`; compare figures of one run only, machines are noisy.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use rollmesh_core::{
    batch::{
        ACTION_DIST_INPUTS, ACTION_LOGP, ACTIONS, AGENT_INDEX, EPS_ID, EpisodeKey, NEW_OBS, OBS, REWARDS, SampleBatch,
        T, TERMINATEDS, TRUNCATEDS, UNROLL_ID, VF_PREDS, codec,
    },
    column::{Column, ColumnData, RowShape},
    filter::{MeanStdConfig, MeanStdFilter},
    ids::SlotId,
    postprocess::{AdvantageConfig, compute_advantages, gae, piece_ends},
    rng::{Purpose, Rng, Streams},
};

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const EPISODE: usize = 50;
const GAMMA: f64 = 0.99;
const LAMBDA: f64 = 0.95;

/// Returns rows with all columns of a CartPole sample, in episodes of 50 steps.
fn fragment(rows: usize, number: u32) -> SampleBatch {
    let mut rng = random(number);
    let mut normal = |values: usize| (0..values).map(|_| rng.normal() as f32).collect::<Vec<_>>();
    let vectors = |values, width| ColumnData::new(values, RowShape::vector(width)).expect("whole rows");
    let integers = |value: &dyn Fn(usize) -> usize| ColumnData::scalars((0..rows).map(|i| value(i) as i64).collect());
    let columns: [(&str, Column); 13] = [
        (OBS.name(), vectors(normal(4 * rows), 4).into()),
        (NEW_OBS.name(), vectors(normal(4 * rows), 4).into()),
        (ACTIONS.name(), integers(&|i| i % 2).into()),
        (REWARDS.name(), ColumnData::scalars(vec![1f32; rows]).into()),
        (TERMINATEDS.name(), ColumnData::scalars((0..rows).map(|i| (i + 1) % EPISODE == 0).collect()).into()),
        (TRUNCATEDS.name(), ColumnData::scalars(vec![false; rows]).into()),
        (EPS_ID.name(), integers(&|i| i / EPISODE + number as usize * 100_000).into()),
        (UNROLL_ID.name(), integers(&|_| number as usize).into()),
        (AGENT_INDEX.name(), integers(&|_| 0).into()),
        (T.name(), integers(&|i| i % EPISODE).into()),
        (VF_PREDS.name(), ColumnData::scalars(normal(rows)).into()),
        (ACTION_DIST_INPUTS.name(), vectors(normal(2 * rows), 2).into()),
        (ACTION_LOGP.name(), ColumnData::scalars(normal(rows)).into()),
    ];
    columns.into_iter().fold(SampleBatch::new(), |mut batch, (name, column)| {
        batch.insert(name, column).expect("columns of equal length");
        batch
    })
}

fn random(number: u32) -> Rng {
    Streams::new(1, Purpose::Shuffle).at(SlotId(number), 0, 0, 0)
}

/// Copies every column into a buffer of its own: the minimum cost of a contiguous result.
fn copy(parts: &[&SampleBatch]) -> Vec<Vec<u8>> {
    let bytes =
        |column: &Column| column.rows() * column.shape().elements() * column.dtype().map_or(0, |dtype| dtype.size());
    let names: Vec<&str> = parts[0].iter().map(|(name, _)| name).collect();
    let source = vec![7u8; 200 * 16];
    let mut copies = Vec::with_capacity(names.len());
    for name in names {
        let column = |batch: &SampleBatch| batch.column(name).map_or(0, bytes);
        let mut buffer = Vec::with_capacity(parts.iter().map(|batch| column(batch)).sum());
        parts.iter().for_each(|batch| buffer.extend_from_slice(&source[..column(batch).min(source.len())]));
        copies.push(buffer);
    }
    copies
}

fn concat(c: &mut Criterion) {
    let fragments: Vec<SampleBatch> = (0..64).map(|number| fragment(200, number)).collect();
    let parts: Vec<&SampleBatch> = fragments.iter().collect();
    let mut group = c.benchmark_group("concat_64x200");
    group.throughput(Throughput::Elements(64 * 200));
    group.bench_function("rollmesh", |b| b.iter(|| SampleBatch::concat(black_box(&fragments))));
    group.bench_function("memcpy", |b| b.iter(|| copy(black_box(&parts))));
    group.finish();
}

fn split(c: &mut Criterion) {
    let mut group = c.benchmark_group("split_by_episode");
    for rows in [12_800, 100_000] {
        let batch = fragment(rows, 0);
        group.throughput(Throughput::Elements(rows as u64));
        group.bench_function(format!("{rows} rows, {} episodes", rows / EPISODE), |b| {
            b.iter(|| black_box(&batch).split_by_episode(Some(EpisodeKey::EpsId)));
        });
    }
    group.finish();
}

fn slice(c: &mut Criterion) {
    let batch = fragment(100_000, 0);
    let mut group = c.benchmark_group("slice_1000_of_100k");
    group.throughput(Throughput::Elements(1_000));
    group.bench_function("index_slice", |b| {
        b.iter(|| (0..1_000).map(|i| black_box(&batch).index_slice(i * 100..i * 100 + 100)).collect::<Vec<_>>());
    });
    group.bench_function("slice", |b| {
        b.iter(|| (0..1_000).map(|i| black_box(&batch).slice(i * 100, i as usize * 100 + 100)).collect::<Vec<_>>());
    });
    group.finish();
}

fn shuffle(c: &mut Criterion) {
    let mut batch = fragment(100_000, 0);
    let mut number = 0;
    let mut group = c.benchmark_group("shuffle_100k");
    group.throughput(Throughput::Elements(100_000));
    group.bench_function("13 columns", |b| {
        b.iter(|| {
            number += 1;
            batch.shuffle(&mut random(number))
        });
    });
    group.finish();
}

fn encode(c: &mut Criterion) {
    let batch = fragment(100_000, 0);
    let bytes = codec::encode(&batch);
    let mut group = c.benchmark_group("codec_100k");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("encode", |b| b.iter(|| codec::encode(black_box(&batch))));
    group.bench_function("decode", |b| b.iter(|| codec::decode(black_box(&bytes))));
    group.bench_function("memcpy", |b| b.iter(|| black_box(&bytes).to_vec()));
    group.finish();
}

fn advantages(c: &mut Criterion) {
    let batch = fragment(100_000, 0);
    let config = AdvantageConfig { gamma: GAMMA, lambda: LAMBDA, use_gae: true, use_critic: true };
    let mut group = c.benchmark_group("gae_100k");
    group.throughput(Throughput::Elements(100_000));
    group.bench_function("one episode", |b| b.iter(|| compute_advantages(black_box(&batch), 0.0, &config)));
    group.bench_function("2000 episodes", |b| {
        b.iter(|| gae_of_pieces(black_box(&batch)));
    });
    group.finish();
}

/// Returns advantages and value targets of all episodes, each of which ends with the value 0.
fn gae_of_pieces(batch: &SampleBatch) -> (Vec<f32>, Vec<f32>) {
    let (rewards, values) = (batch.get(REWARDS).expect("rewards"), batch.get(VF_PREDS).expect("values"));
    let (mut advantages, mut targets) = (vec![0.0; batch.len()], vec![0.0; batch.len()]);
    let mut start = 0;
    for end in piece_ends(batch).expect("flags and ids") {
        let (advantages, targets) = (&mut advantages[start..end], &mut targets[start..end]);
        gae(&rewards[start..end], &values[start..end], 0.0, GAMMA, LAMBDA, advantages, targets);
        start = end;
    }
    (advantages, targets)
}

fn filter(c: &mut Criterion) {
    let mut group = c.benchmark_group("meanstd_row_update");
    for (width, rows) in [(4, 5_000), (84 * 84, 200)] {
        let mut rng = random(0);
        let values: Vec<f32> = (0..width * rows).map(|_| rng.normal() as f32).collect();
        let shape = RowShape::vector(width as u32);
        let mut filter = MeanStdFilter::new(shape, MeanStdConfig::default()).expect("a sound shape");
        group.throughput(Throughput::Elements(rows as u64));
        group.bench_function(format!("{width} values"), |b| {
            b.iter_batched_ref(
                || values.clone(),
                |values| values.chunks_exact_mut(width).try_for_each(|row| filter.filter_rows(row, true)),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

criterion_group!(benches, concat, split, slice, shuffle, encode, advantages, filter);
criterion_main!(benches);
