//! The throughput of encoding batches as lines of RLlib's JSON and of decoding them, with the usual columns compressed
//! and with none: the functions alone, and through files.
//!
//! `cargo bench -p rollmesh --bench json`; compare figures of one run only, machines are noisy.

use std::{hint::black_box, path::Path};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rollmesh::offline::json::{JsonReader, JsonReaderOptions, JsonWriter, JsonWriterOptions};
use rollmesh_core::{
    batch::{
        ACTION_LOGP, ACTIONS, AnyBatch, EPS_ID, NEW_OBS, OBS, REWARDS, SampleBatch, T, TERMINATEDS, TRUNCATEDS,
        UNROLL_ID, VF_PREDS,
    },
    column::{ColumnData, RowShape},
};
use rollmesh_data::{
    json::{COMPRESS_COLUMNS, decode_record, encode_record},
    limits::JsonLimits,
};

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BATCHES: usize = 50;
const ROWS: usize = 200;

fn floats(rows: usize, from: usize) -> Vec<f32> {
    (from..from + rows).map(|x| (x as f32 * 0.618_034).fract() * 4.0 - 2.0).collect()
}

/// Returns the columns of a CartPole sample of PPO's.
fn batch(number: usize) -> AnyBatch {
    let vectors = |from| ColumnData::new(floats(4 * ROWS, from), RowShape::vector(4)).expect("whole rows");
    let integers = |value: &dyn Fn(usize) -> usize| ColumnData::scalars((0..ROWS).map(|i| value(i) as i64).collect());
    let flags = |every: usize| ColumnData::scalars((0..ROWS).map(|i| i % every == every - 1).collect());
    let with = || {
        SampleBatch::new()
            .with(OBS, vectors(number))?
            .with(NEW_OBS, vectors(number + 4))?
            .with(ACTIONS, integers(&|i| (i * i / 3 + number) % 2))?
            .with(REWARDS, ColumnData::scalars(vec![1.0; ROWS]))?
            .with(TERMINATEDS, flags(50))?
            .with(TRUNCATEDS, flags(usize::MAX))?
            .with(ACTION_LOGP, ColumnData::scalars(floats(ROWS, 7 * number)))?
            .with(VF_PREDS, ColumnData::scalars(floats(ROWS, 11 * number)))?
            .with(EPS_ID, integers(&|i| 100_000_000_000_000_000 + number * ROWS + i / 50))?
            .with(UNROLL_ID, integers(&|_| number))?
            .with(T, integers(&|i| i % 50))
    };
    with().expect("columns of one length").into()
}

fn json(criterion: &mut Criterion) {
    let batches: Vec<AnyBatch> = (0..BATCHES).map(batch).collect();
    let mut group = criterion.benchmark_group("json");
    group.throughput(Throughput::Elements((BATCHES * ROWS) as u64)).sample_size(20);
    for (form, compress) in [("usual", &COMPRESS_COLUMNS[..]), ("plain", &[])] {
        let mut lines = vec![Vec::new(); BATCHES];
        group.bench_function(format!("{form}, encode_record"), |bencher| {
            bencher.iter(|| {
                for (batch, line) in batches.iter().zip(&mut lines) {
                    line.clear();
                    encode_record(batch, compress, line).expect("a line");
                }
            });
        });
        for (batch, line) in batches.iter().zip(&mut lines) {
            line.clear();
            encode_record(batch, compress, line).expect("a line");
        }
        let limits = JsonLimits::default();
        group.bench_function(format!("{form}, decode_record"), |bencher| {
            bencher
                .iter(|| lines.iter().for_each(|line| drop(black_box(decode_record(line, &limits).expect("a batch")))));
        });
        let folder = tempfile::tempdir().expect("a folder");
        let options = JsonWriterOptions {
            compress_columns: compress.iter().map(|name| (*name).into()).collect(),
            ..JsonWriterOptions::default()
        };
        let mut writer = JsonWriter::new(folder.path(), options).expect("a writer");
        group.bench_function(format!("{form}, JsonWriter"), |bencher| {
            bencher.iter(|| batches.iter().for_each(|batch| writer.append(batch).expect("room on the disk")));
        });
        let file = folder.path().join("rows.json");
        let text: Vec<u8> = lines.iter().flat_map(|line| line.iter().copied().chain([b'\n'])).collect();
        std::fs::write(&file, text).expect("room on the disk");
        group.bench_function(format!("{form}, JsonReader"), |bencher| bencher.iter(|| pass_over(&file)));
    }
    group.finish();
}

fn pass_over(file: &Path) {
    let reader = JsonReader::new(vec![file.to_path_buf()], JsonReaderOptions::default()).expect("a file");
    reader.read_all_files().for_each(|batch| drop(black_box(batch.expect("a batch"))));
}

criterion_group!(benches, json);
criterion_main!(benches);
