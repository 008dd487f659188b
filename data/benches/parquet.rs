//! The speed of writing batches to Parquet files and of reading them, compared with the parquet crate alone on the same
//! columns, alternately. Fails if either takes more than twice as long.
//!
//! `cargo bench -p rollmesh-data --all-features --bench parquet [-- TURNS]`; figures are in `docs/performance.md`.

use std::{fs::File, hint::black_box, path::PathBuf, process::ExitCode, sync::Arc, time::Instant};

use arrow_array::{ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, Int64Array, RecordBatch};
use arrow_schema::{DataType, Field, Schema};
use parquet::{
    arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReaderBuilder},
    basic::Compression,
    file::properties::{EnabledStatistics, WriterProperties},
};
use rollmesh_core::{
    batch::{ACTION_LOGP, ACTIONS, AnyBatch, EPS_ID, NEW_OBS, OBS, REWARDS, SampleBatch, T, TERMINATEDS, TRUNCATEDS},
    column::{ColumnData, RowShape},
};
use rollmesh_data::{
    dataset::BatchStream as _,
    parquet::{ParquetOptions, ParquetStream, ParquetWriter},
};

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BATCHES: usize = 50;
const ROWS: usize = 2000;
/// Maximum duration of either, as a multiple of the crate's alone.
const PROMISE: f64 = 2.0;

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

/// Returns the same columns as Arrow's arrays, without our additional columns for properties that a table cannot
/// represent.
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

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // As a test it only runs once.
    let is_test = !arguments.iter().any(|argument| argument == "--bench");
    let turns = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(if is_test { 1 } else { 31 });
    let files = Files::new();
    let writing = compare("writing", turns, || files.write_alone(), || files.write());
    let reading = compare("reading", turns, || files.read_alone(), || files.read());
    match [writing, reading].iter().all(|ratio| *ratio <= PROMISE) || is_test {
        true => ExitCode::SUCCESS,
        false => {
            println!("more than {PROMISE} times as long as the crate alone is more than is promised");
            ExitCode::FAILURE
        }
    }
}

/// Measures both alternately, prints the times, and returns the median of their ratios.
fn compare(what: &str, turns: usize, mut alone: impl FnMut(), mut ours: impl FnMut()) -> f64 {
    let seconds = |work: &mut dyn FnMut()| {
        let begun = Instant::now();
        work();
        begun.elapsed().as_secs_f64()
    };
    // The first calls allocate memory and create the files.
    alone();
    ours();
    let mut all: Vec<(f64, f64)> = Vec::with_capacity(turns);
    for turn in 0..turns.max(1) {
        // The order alternates, since the second one may run with warmer caches, or on a hotter machine.
        let (alone, ours) = match turn % 2 {
            0 => (seconds(&mut alone), seconds(&mut ours)),
            _ => {
                let ours = seconds(&mut ours);
                (seconds(&mut alone), ours)
            }
        };
        all.push((ours / alone, ours));
    }
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let [(low, _), (median, time), (high, _)] = [all[0], all[all.len() / 2], all[all.len() - 1]];
    let speed = (BATCHES * ROWS) as f64 / time / 1e6;
    println!("{what}: {median:.2} times as long as the crate alone ({low:.2} to {high:.2}), {speed:.1} M rows/s");
    median
}

/// The same rows as batches and as tables, and where they are written.
struct Files {
    folder: tempfile::TempDir,
    batches: Vec<AnyBatch>,
    tables: Vec<RecordBatch>,
    properties: WriterProperties,
}

impl Files {
    fn new() -> Self {
        let batches: Vec<SampleBatch> = (0..BATCHES).map(batch).collect();
        let tables = batches.iter().map(record_batch).collect();
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_max_row_group_row_count(Some(1 << 16))
            .build();
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder, batches: batches.into_iter().map(AnyBatch::from).collect(), tables, properties }
    }

    fn alone(&self) -> PathBuf {
        self.folder.path().join("alone.parquet")
    }

    fn ours(&self) -> PathBuf {
        self.folder.path().join("ours-00000.parquet")
    }

    fn write_alone(&self) {
        let file = File::create(self.alone()).expect("a file");
        let properties = Some(self.properties.clone());
        let mut writer = ArrowWriter::try_new(file, self.tables[0].schema(), properties).expect("a writer");
        self.tables.iter().for_each(|table| writer.write(table).expect("rows"));
        writer.into_inner().expect("an end").sync_data().expect("on disk");
    }

    fn write(&self) {
        // No file is written twice.
        drop(std::fs::remove_file(self.ours()));
        let options = ParquetOptions { max_file_size: u64::MAX, ..ParquetOptions::default() };
        let mut writer = ParquetWriter::new(self.folder.path(), "ours", options).expect("a writer");
        self.batches.iter().for_each(|batch| writer.write(batch).expect("a batch"));
        assert_eq!(writer.finish().expect("an end"), [self.ours()]);
    }

    fn read_alone(&self) {
        let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(self.alone()).expect("a file"));
        let reader = builder.expect("a reader").with_batch_size(1 << 16).build().expect("a reader");
        reader.for_each(|table| drop(black_box(table.expect("rows"))));
    }

    fn read(&self) {
        let mut stream = ParquetStream::open(&self.ours(), 64 << 20).expect("a file");
        while let Some(batch) = stream.next_batch().expect("a batch") {
            black_box(batch);
        }
    }
}
