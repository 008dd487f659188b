//! Tables of contents that would end the program or take far more memory than their length, and large ones that are
//! valid.

use std::{fs, sync::Arc};

use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, UInt8Array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Schema};
use parquet::{arrow::ArrowWriter, basic::Compression, file::properties::WriterProperties};
use rollmesh_data::{
    dataset::{BatchStream as _, DatasetError},
    limits::DEFAULT_BUFFER,
    parquet::ParquetStream,
};

use super::{
    BUFFER, all,
    harness::{LARGE, bounded},
};

const I32: u8 = 5;
const I64: u8 = 6;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const STRUCT: u8 = 12;

/// A struct of Thrift's compact protocol.
#[derive(Clone, Default)]
struct Struct {
    bytes: Vec<u8>,
    last: u8,
}

impl Struct {
    fn head(&mut self, field: u8, kind: u8) {
        self.bytes.push((field - self.last) << 4 | kind);
        self.last = field;
    }

    fn varint(&mut self, mut number: u64) {
        while number > 127 {
            self.bytes.push(number as u8 | 128);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn number(mut self, field: u8, kind: u8, number: u32) -> Self {
        self.head(field, kind);
        self.varint(u64::from(number) << 1);
        self
    }

    fn text(mut self, field: u8, text: &str) -> Self {
        self.head(field, BINARY);
        self.varint(text.len() as u64);
        self.bytes.extend(text.as_bytes());
        self
    }

    fn inner(mut self, field: u8, inner: Self) -> Self {
        self.head(field, STRUCT);
        self.bytes.extend(inner.end());
        self
    }

    fn list(mut self, field: u8, kind: u8, elements: &[Vec<u8>]) -> Self {
        self.head(field, LIST);
        self.bytes.push(0xf0 | kind);
        self.varint(elements.len() as u64);
        self.bytes.extend(elements.concat());
        self
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(0);
        self.bytes
    }
}

/// Returns an element of a schema: a required group, or a required column of numbers.
fn element(name: &str, children: u32) -> Vec<u8> {
    match children {
        0 => Struct::default().number(1, I32, 1).number(3, I32, 0).text(4, name).end(),
        _ => Struct::default().number(3, I32, 0).text(4, name).number(5, I32, children).end(),
    }
}

/// Returns a column chunk whose pages have this many bytes, or which has none.
fn chunk(bytes: u32) -> Vec<u8> {
    let data = Struct::default().number(1, I32, 1).list(2, I32, &[]).list(3, BINARY, &[]).number(4, I32, 0);
    let data = data.number(5, I64, 0).number(6, I64, bytes).number(7, I64, bytes).number(9, I64, 4);
    Struct::default().number(2, I64, 4).inner(3, data).end()
}

/// Returns a file with a footer and no pages, whose columns all declare this many bytes at the same offset.
fn file_of(elements: &[Vec<u8>], groups: usize, pairs: &[(&str, &str)], bytes: u32) -> Vec<u8> {
    let leaves = elements.iter().filter(|element| element.starts_with(&[0x15, 2])).count();
    let group =
        Struct::default().list(1, STRUCT, &vec![chunk(bytes); leaves]).number(2, I64, 0).number(3, I64, 0).end();
    let pairs: Vec<Vec<u8>> =
        pairs.iter().map(|(key, value)| Struct::default().text(1, key).text(2, value).end()).collect();
    let table = Struct::default().number(1, I32, 1).list(2, STRUCT, elements).number(3, I64, 0);
    let table = table.list(4, STRUCT, &vec![group; groups]).list(5, STRUCT, &pairs).end();
    let len = (table.len() as u32).to_le_bytes();
    [&b"PAR1"[..], &table, &len, b"PAR1"].concat()
}

fn file(elements: &[Vec<u8>], groups: usize, pairs: &[(&str, &str)]) -> Vec<u8> {
    file_of(elements, groups, pairs, 0)
}

/// Checks that reading a file takes no more memory than allowed, and returns the error of reading it.
fn refused(name: &str, file: Vec<u8>) -> Option<DatasetError> {
    let mut error = None;
    bounded(name, file.len(), LARGE, || {
        error = ParquetStream::from_source(file, BUFFER).and_then(|mut stream| all(&mut stream)).err();
    });
    error
}

/// Such tables would end the program: by a vector without end, by the stack, or by a path of 8,000 letters for each column.
#[test]
fn groups_that_cannot_be_are_damage() {
    let long = "long".repeat(2000);
    let paths: Vec<Vec<u8>> =
        [element("root", 1), element(&long, 800)].into_iter().chain((0..800).map(|_| element("", 0))).collect();
    let claim = [element("root", 1), element("a", i32::MAX as u32 / 2)];
    let deep: Vec<Vec<u8>> = (0..50_000).map(|_| element("g", 1)).chain([element("leaf", 0)]).collect();
    for (name, elements) in [("children", claim.to_vec()), ("depth", deep), ("paths", paths)] {
        let error = refused(name, file(&elements, 0, &[])).unwrap();
        assert!(matches!(error, DatasetError::Corrupt(_)), "{name}: {error}");
    }
}

#[test]
fn files_are_named_with_the_limit_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.parquet");
    let keys: Vec<String> = (0..60_000).map(|n| format!("{n}")).collect();
    let pairs: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "")).collect();
    fs::write(&path, file(&[element("root", 1), element("a", 0)], 0, &pairs)).unwrap();
    let error = ParquetStream::open(&path, BUFFER).err().unwrap().to_string();
    for part in [&*path.to_string_lossy(), "its table of contents", "the buffer is 1048576", "declare a larger one"] {
        assert!(error.contains(part), "{error}");
    }
}

/// Returns a file of the given number of columns with the given number of rows each, in groups of the given size.
fn written(columns: usize, rows: usize, group: usize) -> Vec<u8> {
    let fields = (0..columns).map(|column| Field::new(format!("feature_{column}"), DataType::Float32, false));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group)).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), schema.clone(), Some(properties)).unwrap();
    let column = |n: usize| Arc::new(Float32Array::from_iter_values((0..rows).map(|row| (row * n) as f32))) as ArrayRef;
    writer.write(&RecordBatch::try_new(schema, (0..columns).map(column).collect()).unwrap()).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn wide_files_and_files_of_many_groups_are_read() {
    for (columns, rows, group) in [(2000, 1000, 1000), (100, 1, 1), (12, 20_000, 200), (12, 200, 10)] {
        let file = written(columns, rows, group);
        let mut read = 0;
        bounded(&format!("{columns} columns"), file.len(), LARGE, || {
            let mut stream = ParquetStream::from_source(file, DEFAULT_BUFFER).unwrap();
            while let Some(batch) = stream.next_batch().unwrap() {
                read += batch.env_steps();
            }
        });
        assert_eq!(read, rows);
    }
}

#[test]
fn columns_share_no_pages_and_their_pages_fit_into_the_buffer_together() {
    let elements = [element("root", 2), element("a", 0), element("b", 0)];
    for bytes in [10, 1 << 20] {
        let error = refused("shared pages", file_of(&elements, 1, &[], bytes)).unwrap();
        assert!(error.to_string().contains("the places of its columns"), "{error}");
    }
    // Each of 200 columns has a dictionary of 16,000 bytes and a page of 6,000.
    let error = refused("pages", written(200, 4000, 4000)).unwrap();
    assert!(error.to_string().contains("the pages that are read together"), "{error}");
}

/// Returns a file with a column of lists of fixed size. Only the first row is present, and a reader fills in all
/// others.
fn sparse(width: i32, rows: usize) -> Vec<u8> {
    let item = Arc::new(Field::new("item", DataType::UInt8, true));
    let values = UInt8Array::from_iter_values((0..rows * width as usize).map(|n| n as u8));
    let present: NullBuffer = (0..rows).map(|row| row == 0).collect();
    let lists = FixedSizeListArray::new(item, width, Arc::new(values), Some(present));
    let table = RecordBatch::try_from_iter_with_nullable([("lists", Arc::new(lists) as ArrayRef, true)]).unwrap();
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = ArrowWriter::try_new(Vec::new(), table.schema(), Some(properties)).unwrap();
    writer.write(&table).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn lists_that_are_not_there_take_no_more_than_the_buffer() {
    let file = sparse(4096, 4000);
    assert!(file.len() < 100_000, "{}", file.len());
    // Columns in files of other programs must have a value in every row.
    let error = refused("sparse lists", file).unwrap();
    assert!(matches!(error, DatasetError::Shape { .. }), "{error}");
}
