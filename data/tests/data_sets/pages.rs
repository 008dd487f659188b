//! Pages of Parquet files in every compression: they are read, and no declared size takes more memory than the buffer.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, GzipLevel, ZstdLevel},
    file::properties::{WriterProperties, WriterVersion},
};
use rollmesh_core::column::ColumnKey;
use rollmesh_data::{
    dataset::{BatchStream as _, DatasetError},
    parquet::ParquetStream,
};

/// Rows of most files, all in one page of two megabytes per column.
const ROWS: usize = 1 << 18;

const BUFFER: usize = 8 << 20;

/// Returns a file with one repeated number, which compresses to a fraction, and nulls in pages of the second version.
fn file(compression: Compression, version: WriterVersion, rows: usize) -> Vec<u8> {
    let same: ArrayRef = Arc::new(Int64Array::from_value(7, rows));
    let counted: ArrayRef = Arc::new(Float32Array::from_iter((0..rows).map(|row| Some((row % 16) as f32))));
    let table = RecordBatch::try_from_iter_with_nullable([("same", same, true), ("counted", counted, false)]).unwrap();
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_writer_version(version)
        .set_dictionary_enabled(false)
        .set_encoding(parquet::basic::Encoding::PLAIN)
        .set_data_page_size_limit(16 * rows)
        .set_write_batch_size(rows)
        .set_data_page_row_count_limit(rows)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), table.schema(), Some(properties)).unwrap();
    writer.write(&table).unwrap();
    writer.into_inner().unwrap()
}

/// Reads the file and returns the sums of both columns.
fn read(file: Vec<u8>) -> Result<(i64, f32), DatasetError> {
    let mut stream = ParquetStream::from_source(file, BUFFER)?;
    let mut sums = (0, 0.0);
    while let Some(batch) = stream.next_batch()? {
        let batch = batch.single().unwrap();
        sums.0 += batch.get(ColumnKey::<i64>::new("same")).unwrap().iter().sum::<i64>();
        sums.1 += batch.get(ColumnKey::<f32>::new("counted")).unwrap().iter().sum::<f32>();
    }
    Ok(sums)
}

/// Encodes an integer as in headers of pages, in four bytes.
fn in_four_bytes(number: u32) -> [u8; 4] {
    let zigzag = number << 1;
    [0, 7, 14, 21].map(|shift| (zigzag >> shift) as u8 & 127 | if shift < 21 { 128 } else { 0 })
}

/// Returns a file in which the header of a page declares the given number of bytes, regardless of the real one.
fn claiming(file: &[u8], version: u8, bytes: u32) -> Vec<u8> {
    let mut claiming = file.to_vec();
    let mut pages = 0;
    for at in 0..file.len() - 8 {
        // The type, then both sizes, the first of which takes four bytes.
        let is_header = file[at..].starts_with(&[0x15, version << 1, 0x15])
            && file[at + 3..at + 6].iter().all(|byte| *byte > 127)
            && file[at + 6] < 128
            && file[at + 7] == 0x15;
        if is_header {
            claiming[at + 3..at + 7].copy_from_slice(&in_four_bytes(bytes));
            pages += 1;
        }
    }
    assert!(pages > 0);
    claiming
}

#[test]
fn false_claims_of_pages_cost_no_more_than_the_buffer() {
    let (gzip, zstd) = (Compression::GZIP(GzipLevel::default()), Compression::ZSTD(ZstdLevel::default()));
    for compression in [Compression::SNAPPY, gzip, zstd, Compression::LZ4_RAW, Compression::LZ4] {
        for (version, kind) in [(WriterVersion::PARQUET_1_0, 0), (WriterVersion::PARQUET_2_0, 3)] {
            let good = file(compression, version, ROWS);
            assert_eq!(read(good.clone()).unwrap(), (7 * ROWS as i64, 7.5 * ROWS as f32), "{compression} {version:?}");
            // Much more than there is, and less than there is.
            for bytes in [60 << 20, 1000] {
                let bad = claiming(&good, kind, bytes);
                let len = bad.len() as u64;
                let memory = allocation_counter::measure(|| {
                    let read = read(bad);
                    assert!(read.is_err(), "{compression}: {read:?}");
                });
                let limit = 4 * len + BUFFER as u64;
                let held = memory.bytes_max;
                assert!(held <= limit, "{compression} {version:?} {bytes}: {held} of {limit}");
            }
        }
    }
}

/// The crate would decompress such pages completely before it compares them with their headers.
#[test]
fn pages_that_decompress_to_more_than_they_claim_are_not_decompressed() {
    let gzip = Compression::GZIP(GzipLevel::default());
    let bad = claiming(&file(gzip, WriterVersion::PARQUET_2_0, 6 * ROWS), 3, 1000);
    let len = bad.len() as u64;
    let memory = allocation_counter::measure(|| assert!(read(bad).is_err()));
    assert!(memory.bytes_max <= 4 * len + BUFFER as u64, "{} bytes", memory.bytes_max);
}
