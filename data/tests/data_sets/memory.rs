//! Reading a file of any size takes at most the declared memory.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_array::{
    ArrayRef, BooleanArray, Int64Array, ListArray, RecordBatch,
    builder::{Float32Builder, ListBuilder},
};
use parquet::arrow::ArrowWriter;
use rollmesh_core::{
    batch::{ACTIONS, OBS, SampleBatch},
    column::{ColumnData, RowShape},
};
use rollmesh_data::{
    dataset::BatchStream,
    parquet::{ParquetOptions, ParquetStream, ParquetWriter},
};

const BUFFER: usize = 2 << 20;

/// Returns the number of rows of a file. Checks that reading it takes at most the buffer.
fn rows_within_buffer(mut stream: impl BatchStream) -> usize {
    let mut rows = 0;
    let memory = allocation_counter::measure(|| {
        while let Some(batch) = stream.next_batch().unwrap() {
            rows += batch.env_steps();
        }
    });
    assert!(memory.bytes_max <= BUFFER as u64, "{} bytes were held", memory.bytes_max);
    rows
}

#[test]
fn files_of_our_own() {
    let folder = tempfile::tempdir().unwrap();
    let options = ParquetOptions { row_group_rows: 4096, max_file_size: u64::MAX, ..ParquetOptions::default() };
    let mut writer = ParquetWriter::new(folder.path(), "large", options).unwrap();
    for n in 0..600i64 {
        let obs =
            ColumnData::new((0..256 * 16).map(|x| (i64::from(x) * 31 + n) as f32).collect(), RowShape::vector(16));
        let batch = SampleBatch::new().with(OBS, obs.unwrap()).unwrap();
        let batch = batch.with(ACTIONS, ColumnData::scalars(vec![n; 256])).unwrap();
        writer.write(&batch.into()).unwrap();
    }
    let files = writer.finish().unwrap();
    assert!(fs::metadata(&files[0]).unwrap().len() > 4 * BUFFER as u64);
    assert_eq!(rows_within_buffer(ParquetStream::open(&files[0], BUFFER).unwrap()), 600 * 256);
}

/// Returns rows with a 1 among a hundred numbers. With a dictionary each number of four bytes takes a few bits.
fn one_hot(rows: i64) -> ListArray {
    let mut lists = ListBuilder::new(Float32Builder::new());
    for row in 0..rows {
        (0..100).for_each(|place| lists.values().append_value(f32::from(u8::from(place == row % 100))));
        lists.append(true);
    }
    lists.finish()
}

fn file_of_others(folder: &Path, rows: i64) -> PathBuf {
    let columns: [(&str, ArrayRef); 3] = [
        ("obs", Arc::new(one_hot(rows))),
        ("actions", Arc::new(Int64Array::from_iter_values((0..rows).map(|row| row % 2)))),
        ("terminateds", Arc::new(BooleanArray::from_iter((0..rows).map(|row| Some(row % 50 == 49))))),
    ];
    let table = RecordBatch::try_from_iter(columns).unwrap();
    let path = folder.join("others.parquet");
    let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), table.schema(), None).unwrap();
    writer.write(&table).unwrap();
    writer.close().unwrap();
    path
}

#[test]
fn files_of_others_that_are_far_smaller_than_what_they_hold() {
    let folder = tempfile::tempdir().unwrap();
    let rows = 30_000;
    let path = file_of_others(folder.path(), rows);
    let plain = 4 * 100 * rows as u64;
    assert!(plain > 5 * BUFFER as u64 && fs::metadata(&path).unwrap().len() < plain / 10);
    assert_eq!(rows_within_buffer(ParquetStream::open(&path, BUFFER).unwrap()), rows as usize);
}
