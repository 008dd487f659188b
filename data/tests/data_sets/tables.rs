//! Parquet files: our own, which restore the written batches, and those of other programs.

use std::{
    fs::{self, File},
    path::PathBuf,
};

use arrow_array::{Array, cast::AsArray as _, types};
use arrow_schema::DataType;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use proptest::prelude::*;
use rollmesh_core::{
    batch::{AnyBatch, BatchParts, EPS_ID, MultiAgentBatch, OBS, REWARDS, SampleBatch},
    column::{BytesColumn, Column, ColumnData, Granularity, RowShape},
    ids::PolicyId,
};
use rollmesh_data::{
    dataset::{DatasetError, DatasetReader},
    parquet::{Compression, ParquetOptions, ParquetStream, ParquetWriter},
};

use super::{BUFFER, all, golden, joined, same_bits};

fn written(batches: &[AnyBatch], options: ParquetOptions) -> (tempfile::TempDir, Vec<PathBuf>) {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = ParquetWriter::new(folder.path(), "out", options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    let files = writer.finish().unwrap();
    (folder, files)
}

fn read(files: &[PathBuf]) -> Vec<AnyBatch> {
    files.iter().flat_map(|file| all(&mut ParquetStream::open(file, BUFFER).unwrap()).unwrap()).collect()
}

fn check(batches: &[AnyBatch], options: ParquetOptions) {
    let (_folder, files) = written(batches, options);
    let read = read(&files);
    assert_eq!(read.len(), batches.len());
    for (read, written) in read.iter().zip(batches) {
        assert!(same_bits(read, written), "{written:?}\ncame back as\n{read:?}");
    }
}

fn column(dtype: u8, rows: usize, width: u32, seed: u64) -> Column {
    let shape = if width == 0 { RowShape::SCALAR } else { RowShape::new(&[width, 2]).unwrap() };
    let values = rows * shape.elements();
    let word = |n: usize| (n as u64 + 1).wrapping_mul(seed | 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let words = || (0..values).map(word);
    match dtype {
        0 => ColumnData::new(words().map(|x| f32::from_bits((x >> 32) as u32)).collect(), shape).unwrap().into(),
        1 => ColumnData::new(words().map(f64::from_bits).collect(), shape).unwrap().into(),
        2 => ColumnData::new(words().map(|x| (x >> 32) as i32).collect(), shape).unwrap().into(),
        3 => ColumnData::new(words().map(|x| x as i64).collect(), shape).unwrap().into(),
        4 => ColumnData::new(words().map(|x| (x >> 56) as u8).collect(), shape).unwrap().into(),
        5 => ColumnData::new(words().map(|x| x >> 63 == 1).collect(), shape).unwrap().into(),
        6 => BytesColumn::bytes((0..rows).map(|n| vec![7u8; word(n) as usize % 5])).unwrap().into(),
        _ => BytesColumn::json((0..rows).map(|n| format!("{{\"n\":{n}}}"))).unwrap().into(),
    }
}

prop_compose! {
    fn any_single()(
        rows in 0usize..9,
        kinds in prop::collection::vec((0u8..8, 0u32..3), 0..5),
        sequences in prop::collection::vec(1i32..4, 0..3),
        padded in any::<bool>(),
        training in any::<bool>(),
        updates in prop::option::of(prop_oneof![Just(f64::NAN), any::<f64>()]),
        seed in any::<u64>(),
    ) -> SampleBatch {
        let longest = sequences.iter().max().copied().unwrap_or(0) as usize + 1;
        let rows = match (sequences.is_empty(), padded) {
            (true, _) => rows,
            (false, true) => sequences.len() * longest,
            (false, false) => sequences.iter().sum::<i32>() as usize,
        };
        let mut columns: Vec<_> = kinds.iter().enumerate().map(|(n, (dtype, width))| {
            (format!("c{n}").into(), column(*dtype, rows, *width, seed))
        }).collect();
        if !sequences.is_empty() {
            columns.push(("state_in_0".into(), column(0, sequences.len(), 1, seed)));
        }
        let has = !sequences.is_empty();
        SampleBatch::from_parts(BatchParts {
            columns,
            seq_lens: has.then(|| ColumnData::scalars(sequences)),
            max_seq_len: has.then_some(longest),
            zero_padded: has && padded,
            is_training: training,
            num_grad_updates: updates,
            ..BatchParts::default()
        }).unwrap()
    }
}

fn any_batch() -> impl Strategy<Value = AnyBatch> {
    let multi = (prop::collection::btree_map("[a-c]", any_single(), 0..4), 0usize..100);
    let multi = multi.prop_map(|(batches, steps)| {
        let batches = batches.into_iter().map(|(policy, batch)| (PolicyId::new(policy), batch));
        AnyBatch::Multi(MultiAgentBatch::new(batches.collect(), steps))
    });
    prop_oneof![any_single().prop_map(AnyBatch::Single), multi]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, rng_seed: prop::test_runner::RngSeed::Fixed(7), ..ProptestConfig::default() })]

    #[test]
    fn batches_round_trip_bit_identically(batches in prop::collection::vec(any_batch(), 1..5), rows in 1usize..20) {
        check(&batches, ParquetOptions { row_group_rows: rows, ..ParquetOptions::default() });
    }
}

fn rows(ids: &[i64]) -> AnyBatch {
    let batch = SampleBatch::new().with(EPS_ID, ColumnData::scalars(ids.to_vec())).unwrap();
    batch.with(REWARDS, ColumnData::scalars(ids.iter().map(|id| *id as f32).collect())).unwrap().into()
}

#[test]
fn every_compression_and_time_major_batches_and_policies_at_odds() {
    let lanes = RowShape::vector(3);
    let time_major = SampleBatch::from_parts(BatchParts {
        columns: vec![("obs".into(), ColumnData::new(vec![1.5f32; 12], lanes).unwrap().into())],
        time_major: true,
        ..BatchParts::default()
    });
    // Two policies with different columns of one name, and a name that is ours.
    let p = SampleBatch::new().with(OBS, ColumnData::new(vec![1.0; 6], lanes).unwrap()).unwrap();
    let mut q = SampleBatch::new();
    q.insert("obs", ColumnData::scalars(vec![3i64, 4])).unwrap();
    let odd = MultiAgentBatch::new([(PolicyId::new("p"), p), (PolicyId::new("q"), q)].into(), 2);
    let mut reserved = SampleBatch::new();
    reserved.insert("rollmesh.batch", ColumnData::scalars(vec![1i64])).unwrap();
    let batches = [time_major.unwrap().into(), rows(&[1, 1, 2]), odd.into(), rows(&[3]), reserved.into()];
    for compression in [Compression::None, Compression::Snappy, Compression::Zstd] {
        check(&batches, ParquetOptions { compression, ..ParquetOptions::default() });
    }
}

#[test]
fn compressed_columns_are_read_decompressed() {
    let mut batch = SampleBatch::new().with(OBS, ColumnData::scalars(vec![0.5; 1000])).unwrap();
    let plain = batch.clone();
    batch.compress(Granularity::Bulk).unwrap();
    let (_folder, files) = written(&[batch.into()], ParquetOptions::default());
    assert_eq!(read(&files), [plain.into()]);
}

#[test]
fn mixtures_settle_on_one_file() {
    let mut other = SampleBatch::new();
    other.insert("obs", ColumnData::scalars(vec![1.0f32])).unwrap();
    let batches: Vec<AnyBatch> = (0..20).map(|n| if n % 2 == 0 { rows(&[n]) } else { other.clone().into() }).collect();
    let (_folder, files) = written(&batches, ParquetOptions::default());
    assert_eq!((files.len(), read(&files)), (2, batches));
}

#[test]
fn the_tail_is_there_after_close_after_drop_and_after_errors() {
    let folder = tempfile::tempdir().unwrap();
    let new = || ParquetWriter::new(folder.path(), "out", ParquetOptions::default()).unwrap();
    let mut writer = new();
    writer.write(&rows(&[1])).unwrap();
    drop(writer);
    let mut writer = new();
    writer.write(&rows(&[2])).unwrap();
    let files = writer.finish().unwrap();
    assert_eq!(files, [folder.path().join("out-00001.parquet")], "files that are there stay");
    assert!(matches!(writer.write(&rows(&[3])), Err(DatasetError::Closed)));
    assert_eq!(writer.finish().unwrap(), files);
    let found = [0, 1].map(|n| folder.path().join(format!("out-0000{n}.parquet")));
    assert_eq!(read(&found), [rows(&[1]), rows(&[2])]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn files_are_rotated_by_size_and_a_writer_without_batches_leaves_none() {
    let options = ParquetOptions { max_file_size: 20_000, row_group_rows: 500, ..ParquetOptions::default() };
    let batches: Vec<AnyBatch> = (0..40)
        .map(|n| {
            AnyBatch::from(
                SampleBatch::new()
                    .with(OBS, ColumnData::scalars((0..500).map(|x| (x * 7919 + n) as f32).collect()))
                    .unwrap(),
            )
        })
        .collect();
    let (folder, files) = written(&batches, options);
    assert!(files.len() >= 2, "{}", files.len());
    for file in &files {
        assert!(fs::metadata(file).unwrap().len() < 30_000);
    }
    assert_eq!(read(&files), batches);
    drop(folder);
    let (folder, files) = written(&[], ParquetOptions::default());
    assert_eq!((files.len(), fs::read_dir(folder.path()).unwrap().count()), (0, 0));
}

#[test]
fn files_of_others_are_cut_into_episodes() {
    for name in ["none", "snappy", "zstd"] {
        let path = golden(&format!("transitions_{name}.parquet"));
        for buffer in [128 << 10, BUFFER] {
            let mut stream = ParquetStream::open(&path, buffer).unwrap();
            assert!(!stream.is_ours());
            let batches = all(&mut stream).unwrap();
            let whole = joined(&batches);
            assert_eq!(whole.len(), 600);
            assert_eq!(whole.column("obs").unwrap().shape(), RowShape::vector(3));
            for batch in &batches {
                let ids = batch.single().unwrap().get(EPS_ID).unwrap();
                assert!(ids.iter().all(|id| *id == ids[0]));
            }
        }
    }
}

/// Returns all values of an array, and their number per row.
fn values(array: &dyn Array) -> (Vec<f64>, usize) {
    match array.data_type() {
        DataType::Float32 => {
            (array.as_primitive::<types::Float32Type>().values().iter().map(|x| f64::from(*x)).collect(), 1)
        }
        DataType::Float64 => (array.as_primitive::<types::Float64Type>().values().to_vec(), 1),
        DataType::Int64 => (array.as_primitive::<types::Int64Type>().values().iter().map(|x| *x as f64).collect(), 1),
        DataType::Boolean => (array.as_boolean().values().iter().map(|x| f64::from(u8::from(x))).collect(), 1),
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            let (values, _) = values(lists.values());
            let width = values.len() / lists.len();
            (values, width)
        }
        other => panic!("a column of {other}"),
    }
}

/// Returns the same of a column.
fn numbers(column: &Column) -> (Vec<f64>, usize) {
    let numbers = match column {
        Column::F32(data) => data.values().iter().map(|x| f64::from(*x)).collect(),
        Column::F64(data) => data.values().to_vec(),
        Column::I64(data) => data.values().iter().map(|x| *x as f64).collect(),
        Column::Bool(data) => data.values().iter().map(|x| f64::from(u8::from(*x))).collect(),
        other => panic!("a column of {}", other.column_type()),
    };
    (numbers, column.shape().elements())
}

#[test]
fn every_column_of_files_of_others_is_the_files() {
    for name in ["none", "snappy", "zstd"] {
        let path = golden(&format!("transitions_{name}.parquet"));
        let read = joined(&all(&mut ParquetStream::open(&path, BUFFER).unwrap()).unwrap());
        let builder = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).unwrap()).unwrap();
        let columns = builder.schema().fields().len();
        let mut rows = 0;
        for table in builder.build().unwrap().map(Result::unwrap) {
            for (field, array) in table.schema().fields().iter().zip(table.columns()) {
                let column = read.column(field.name()).unwrap().slice(rows..rows + table.num_rows());
                assert_eq!(numbers(&column), values(array), "{name}: {}", field.name());
            }
            rows += table.num_rows();
        }
        assert_eq!((read.len(), read.iter().count()), (rows, columns), "{name}");
    }
}

#[test]
fn workers_share_a_file_and_every_epoch_has_every_batch_once() {
    let batches: Vec<AnyBatch> = (0..10).map(|n| rows(&[n, n])).collect();
    let (_folder, files) = written(&batches, ParquetOptions::default());
    let reader = |shard| DatasetReader::sharded(ParquetStream::open(&files[0], BUFFER).unwrap(), shard);
    let mut whole = reader(None);
    for _ in 0..2 {
        let epoch: Vec<AnyBatch> = whole.read_all().unwrap().map(Result::unwrap).collect();
        assert_eq!(epoch, batches);
    }
    assert_eq!(whole.epochs(), 2);
    let mut shared = Vec::new();
    for shard in 0..3 {
        shared.extend(reader(Some((shard, 3))).read_all().unwrap().map(Result::unwrap));
    }
    shared.sort_by_key(|batch| batch.single().unwrap().get(EPS_ID).unwrap()[0]);
    assert_eq!(shared, batches);
    // Reading continues after the end of an epoch.
    let mut endless = reader(Some((1, 3)));
    let ids = |batch: &AnyBatch| batch.single().unwrap().get(EPS_ID).unwrap()[0];
    let mut seen = Vec::new();
    while seen.len() < 7 {
        seen.extend(endless.next_in_epoch().unwrap().as_ref().map(ids));
    }
    assert_eq!(seen, [1, 4, 7, 1, 4, 7, 1]);
}
