//! Tables of contents and schemas, made to take far more memory than they are long; and large ones that are what they seem.

use std::{fs, sync::Arc};

use arrow_array::{ArrayRef, FixedSizeListArray, Float32Array, RecordBatch, UInt8Array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Schema};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use parquet::{arrow::ArrowWriter, basic::Compression, file::properties::WriterProperties};
use rollmesh_data::{
    dataset::{BatchStream as _, DatasetError},
    limits::DEFAULT_BUFFER,
    minari::MinariDataset,
    parquet::ParquetStream,
};

use super::{
    all,
    damage::{SMALL, few_episodes},
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

/// An element of a schema: a required group, or a required column of numbers.
fn element(name: &str, children: u32) -> Vec<u8> {
    match children {
        0 => Struct::default().number(1, I32, 1).number(3, I32, 0).text(4, name).end(),
        _ => Struct::default().number(3, I32, 0).text(4, name).number(5, I32, children).end(),
    }
}

/// A chunk without pages.
fn chunk() -> Vec<u8> {
    let data = Struct::default().number(1, I32, 1).list(2, I32, &[]).list(3, BINARY, &[]).number(4, I32, 0);
    let data = data.number(5, I64, 0).number(6, I64, 0).number(7, I64, 0).number(9, I64, 4);
    Struct::default().number(2, I64, 4).inner(3, data).end()
}

/// A file of nothing but a table of contents.
fn file(elements: &[Vec<u8>], groups: usize, pairs: &[(&str, &str)]) -> Vec<u8> {
    let leaves = elements.iter().filter(|element| element.starts_with(&[0x15, 2])).count();
    let group = Struct::default().list(1, STRUCT, &vec![chunk(); leaves]).number(2, I64, 0).number(3, I64, 0).end();
    let pairs: Vec<Vec<u8>> =
        pairs.iter().map(|(key, value)| Struct::default().text(1, key).text(2, value).end()).collect();
    let table = Struct::default().number(1, I32, 1).list(2, STRUCT, elements).number(3, I64, 0);
    let table = table.list(4, STRUCT, &vec![group; groups]).list(5, STRUCT, &pairs).end();
    let len = (table.len() as u32).to_le_bytes();
    [&b"PAR1"[..], &table, &len, b"PAR1"].concat()
}

/// Reads a file, which takes no more memory than any may; gives what is wrong with it.
fn refused(name: &str, file: Vec<u8>) -> Option<DatasetError> {
    let mut error = None;
    bounded(name, file.len(), LARGE, || {
        error = ParquetStream::from_source(file, DEFAULT_BUFFER).and_then(|mut stream| all(&mut stream)).err();
    });
    error
}

/// The message of a schema with a field that holds two of the next depth, of which there is only one each.
fn shared_fields(depth: u32) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    let put16 = |bytes: &mut Vec<u8>, numbers: &[u16]| numbers.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
    let put32 = |bytes: &mut Vec<u8>, numbers: &[u32]| numbers.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
    // The root, then how the tables of a message, of a schema, of a field and of a type without anything are made.
    put32(&mut bytes, &[48]);
    put16(&mut bytes, &[10, 12, 4, 6, 8, 0]);
    put16(&mut bytes, &[8, 8, 0, 4]);
    put16(&mut bytes, &[16, 16, 0, 0, 4, 8, 0, 12]);
    put16(&mut bytes, &[4, 4, 0, 0]);
    assert_eq!(bytes.len(), 48);
    // The message, of version 5, is a schema; the schema has one field.
    put32(&mut bytes, &[44]);
    put16(&mut bytes, &[4, 1]);
    put32(&mut bytes, &[4]);
    put32(&mut bytes, &[60 - 16, 4, 1, 4]);
    let fields = bytes.len() as u32;
    let end = fields + depth * 28 + 16;
    for level in 0..depth {
        let at = fields + level * 28;
        let next = at + 28;
        // A struct whose two children are the next field.
        put32(&mut bytes, &[at - 24, 13, end - (at + 8), 4, 2, next - (at + 20), next - (at + 24)]);
    }
    let last = fields + depth * 28;
    // A field without children, of no type; the table of all types.
    put32(&mut bytes, &[last - 24, 1, end - (last + 8), 0]);
    put32(&mut bytes, &[end - 40]);
    bytes
}

#[test]
fn what_is_said_of_columns_costs_no_more_than_the_file() {
    let many: Vec<Vec<u8>> = [element("root", 3000)].into_iter().chain((0..3000).map(|_| element("", 0))).collect();
    let long = "long".repeat(2000);
    let paths: Vec<Vec<u8>> =
        [element("root", 1), element(&long, 800)].into_iter().chain((0..800).map(|_| element("", 0))).collect();
    let few = [element("root", 2), element("a", 0), element("b", 0)];
    let keys: Vec<String> = (0..20_000).map(|n| format!("{n}")).collect();
    let pairs: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "")).collect();
    let hint = STANDARD.encode(shared_fields(16));
    for (name, file) in [
        ("many columns", file(&many, 1, &[])),
        ("long paths", file(&paths, 0, &[])),
        ("many groups", file(&few, 5000, &[])),
        ("many pairs", file(&few, 0, &pairs)),
        ("shared fields", file(&few, 0, &[("ARROW:schema", &hint)])),
    ] {
        let error = refused(name, file).unwrap_or_else(|| panic!("{name} was read"));
        assert!(matches!(error, DatasetError::Contents { .. }), "{name}: {error}");
    }
}

/// Such tables end the program, if they are believed: by a vector without end, or by a stack.
#[test]
fn groups_that_cannot_be_are_damage() {
    let claim = [element("root", 1), element("a", i32::MAX as u32 / 2)];
    let deep: Vec<Vec<u8>> = (0..50_000).map(|_| element("g", 1)).chain([element("leaf", 0)]).collect();
    for (name, elements) in [("children", claim.to_vec()), ("depth", deep)] {
        let error = refused(name, file(&elements, 0, &[])).unwrap();
        assert!(matches!(error, DatasetError::Corrupt(_)), "{name}: {error}");
    }
}

#[test]
fn files_are_named_with_the_limit_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.parquet");
    let elements: Vec<Vec<u8>> = [element("root", 3000)].into_iter().chain((0..3000).map(|_| element("", 0))).collect();
    fs::write(&path, file(&elements, 1, &[])).unwrap();
    let error = ParquetStream::open(&path, DEFAULT_BUFFER).err().unwrap().to_string();
    for part in [&*path.to_string_lossy(), "524288 are allowed", "fewer columns or larger row groups"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn schemas_of_arrow_files_cost_no_more_than_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let first = few_episodes("minari_cartpole_arrow", folder.path());
    let message = shared_fields(16);
    let head = [&[0xff; 4][..], &(message.len() as u32).to_le_bytes()].concat();
    fs::write(&first, [&b"ARROW1\0\0"[..], &head, &message].concat()).unwrap();
    bounded("shared fields", message.len(), SMALL, || {
        let read = MinariDataset::open(folder.path(), DEFAULT_BUFFER).and_then(|dataset| all(&mut dataset.stream()));
        assert!(matches!(read, Err(DatasetError::Contents { .. })), "{read:?}");
    });
}

/// A file of so many columns with so many rows each, in groups of so many.
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

/// Rows of a column of lists of fixed size, of which only the first one is there: all others are filled by who reads them.
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
fn lists_that_are_not_there_take_no_more_than_the_file() {
    let file = sparse(4096, 4000);
    assert!(file.len() < 100_000, "{}", file.len());
    // A column of others must have a value in every row.
    let error = refused("sparse lists", file).unwrap();
    assert!(matches!(error, DatasetError::Shape { .. }), "{error}");
}
