//! How fast batches go into Parquet files and come out, beside the parquet crate alone on the same columns.
//!
//! `cargo bench -p rollmesh --bench parquet`; compare figures of one run only, machines are noisy.

use std::{fs::File, hint::black_box, sync::Arc};

use arrow_array::{ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use parquet::{
    arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReaderBuilder},
    basic::Compression,
    file::properties::{EnabledStatistics, WriterProperties},
};
use rollmesh::offline::{
    dataset::BatchStream as _,
    parquet::{ParquetOptions, ParquetStream, ParquetWriter},
};
use rollmesh_core::{
    batch::{ACTION_LOGP, ACTIONS, AnyBatch, EPS_ID, NEW_OBS, OBS, REWARDS, SampleBatch, T, TERMINATEDS, TRUNCATEDS},
    column::{ColumnData, RowShape},
};

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BATCHES: usize = 50;
const ROWS: usize = 2000;

fn floats(rows: usize, from: usize) -> Vec<f32> {
    (from..from + rows).map(|x| (x as f32 * 0.618_034).fract() * 4.0 - 2.0).collect()
}

fn batch(number: usize) -> SampleBatch {
    let vectors = |from| ColumnData::new(floats(4 * ROWS, from), RowShape::vector(4)).expect("whole rows");
    let integers = |value: &dyn Fn(usize) -> usize| ColumnData::scalars((0..ROWS).map(|i| value(i) as i64).collect());
    let flags = |every: usize| ColumnData::scalars((0..ROWS).map(|i| i % every == every - 1).collect());
    let with = || {
        SampleBatch::new()
            .with(OBS, vectors(number))?
            .with(NEW_OBS, vectors(number + 4))?
            .with(ACTIONS, integers(&|i| i % 2))?
            .with(REWARDS, ColumnData::scalars(floats(ROWS, number)))?
            .with(TERMINATEDS, flags(50))?
            .with(TRUNCATEDS, flags(200))?
            .with(ACTION_LOGP, ColumnData::scalars(floats(ROWS, 7 * number)))?
            .with(EPS_ID, integers(&|i| number * ROWS + i / 50))?
            .with(T, integers(&|i| i % 50))
    };
    with().expect("columns of one length")
}

/// The same columns as Arrow's arrays, without ours that say what a table cannot.
fn record_batch(batch: &SampleBatch) -> RecordBatch {
    let item = Arc::new(Field::new("element", DataType::Float32, false));
    let vectors = |key| {
        let values = Arc::new(Float32Array::from(SampleBatch::get(batch, key).expect("there").to_vec()));
        Arc::new(FixedSizeListArray::new(item.clone(), 4, values, None)) as ArrayRef
    };
    let floats = |key| Arc::new(Float32Array::from(SampleBatch::get(batch, key).expect("there").to_vec())) as ArrayRef;
    let integers = |key| Arc::new(Int64Array::from(SampleBatch::get(batch, key).expect("there").to_vec())) as ArrayRef;
    let flags = |key| Arc::new(BooleanArray::from(SampleBatch::get(batch, key).expect("there").to_vec())) as ArrayRef;
    let columns = [
        ("obs", vectors(OBS)),
        ("new_obs", vectors(NEW_OBS)),
        ("actions", integers(ACTIONS)),
        ("rewards", floats(REWARDS)),
        ("terminateds", flags(TERMINATEDS)),
        ("truncateds", flags(TRUNCATEDS)),
        ("action_logp", floats(ACTION_LOGP)),
        ("eps_id", integers(EPS_ID)),
        ("t", integers(T)),
    ];
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), false)).collect();
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("a table")
}

fn parquet_files(criterion: &mut Criterion) {
    let folder = tempfile::tempdir().expect("a folder");
    let batches: Vec<SampleBatch> = (0..BATCHES).map(batch).collect();
    let any: Vec<AnyBatch> = batches.iter().cloned().map(AnyBatch::from).collect();
    let tables: Vec<RecordBatch> = batches.iter().map(record_batch).collect();
    let alone = folder.path().join("alone.parquet");
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_max_row_group_row_count(Some(1 << 16))
        .build();
    let mut group = criterion.benchmark_group("parquet");
    group.throughput(Throughput::Elements((BATCHES * ROWS) as u64)).sample_size(10);
    group.bench_function("write, the crate alone", |bencher| {
        bencher.iter(|| {
            let file = File::create(&alone).expect("a file");
            let mut writer =
                ArrowWriter::try_new(file, tables[0].schema(), Some(properties.clone())).expect("a writer");
            tables.iter().for_each(|table| writer.write(table).expect("rows"));
            let file = writer.into_inner().expect("an end");
            file.sync_data().expect("on disk");
        });
    });
    let options = ParquetOptions { max_file_size: u64::MAX, ..ParquetOptions::default() };
    let mut files = Vec::new();
    group.bench_function("write, ParquetWriter", |bencher| {
        bencher.iter(|| {
            files.iter().for_each(|file| drop(std::fs::remove_file(file)));
            let mut writer = ParquetWriter::new(folder.path(), "ours", options.clone()).expect("a writer");
            any.iter().for_each(|batch| writer.write(batch).expect("a batch"));
            files = writer.finish().expect("an end");
        });
    });
    group.bench_function("read, the crate alone", |bencher| {
        bencher.iter(|| {
            let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(&alone).expect("a file"));
            let reader = builder.expect("a reader").with_batch_size(1 << 16).build().expect("a reader");
            reader.for_each(|table| drop(black_box(table.expect("rows"))));
        });
    });
    group.bench_function("read, ParquetStream", |bencher| {
        bencher.iter(|| {
            let mut stream = ParquetStream::open(&files[0], 64 << 20).expect("a file");
            while let Some(batch) = stream.next_batch().expect("a batch") {
                black_box(batch);
            }
        });
    });
    group.finish();
}

criterion_group!(benches, parquet_files);
criterion_main!(benches);
