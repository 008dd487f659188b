//! Estimates the memory that the parquet crate needs for a table of contents, before the crate reads it: a few bytes can
//! describe so many columns, row groups and names that their objects need hundreds of times as much memory.

use std::mem::size_of;

use arrow_schema::Field;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use parquet::{
    arrow::ARROW_SCHEMA_META_KEY,
    file::metadata::{ColumnChunkMetaData, KeyValue, RowGroupMetaData},
    schema::types::{ColumnDescriptor, Type},
};

use super::{
    super::arrow::schema_memory,
    thrift::{BINARY, BOOL, I16, I32, I64, LIST, Reader, STRUCT},
};

/// The kinds of the fields, from field 1 on: of the table itself, and within it of columns, key-value pairs, row groups,
/// their columns' pages, and the pages' metadata.
const TABLE: [u8; 7] = [I32, LIST, I64, LIST, LIST, BINARY, LIST];
const ELEMENT: [u8; 10] = [I32, I32, I32, BINARY, I32, I32, I32, I32, I32, STRUCT];
const PAIR: [u8; 2] = [BINARY, BINARY];
const GROUP: [u8; 7] = [LIST, I64, I64, LIST, I64, I64, I16];
const CHUNK: [u8; 7] = [BINARY, I64, STRUCT, I64, I32, I64, I32];
const CHUNK_DATA: [u8; 17] =
    [I32, LIST, LIST, I32, I64, I64, I64, LIST, I64, I64, I64, STRUCT, LIST, I64, I32, STRUCT, STRUCT];
const SORTING: [u8; 3] = [I32, BOOL, BOOL];

/// Maximum nesting of groups, since reading is recursive.
const MAX_DEPTH: usize = 64;
/// Memory of the objects for an element of the schema: a type, a column, fields of Arrow's schema, and pointers to them.
const ELEMENT_BYTES: u64 = (size_of::<Type>() + size_of::<ColumnDescriptor>() + 3 * size_of::<Field>()) as u64 + 256;
/// A pair is stored as it is and in a map, which grows by doubling.
const PAIR_BYTES: u64 = size_of::<KeyValue>() as u64 + 160;
const GROUP_BYTES: u64 = size_of::<RowGroupMetaData>() as u64;
const CHUNK_BYTES: u64 = size_of::<ColumnChunkMetaData>() as u64;
/// The crate keeps a field of Arrow's schema both as it was read and as it was parsed.
const COPIES: u64 = 2;

/// Returns an upper bound for the memory of the parquet crate's objects for a table of contents, including the table itself,
/// if the crate skips statistics. None for an invalid table.
pub(super) fn memory(contents: &[u8]) -> Option<u64> {
    let mut bytes = contents.len() as u64;
    let mut leaves = 0;
    Reader::new(contents).fields(&TABLE, |reader, field, kind| {
        match field {
            2 => {
                let schema = schema(reader)?;
                leaves = schema.leaves;
                bytes = bytes.checked_add(schema.bytes)?;
            }
            // The crate allocates memory for all columns before it reads them.
            4 => reader.structs(|reader, _| {
                bytes = bytes.checked_add(GROUP_BYTES + CHUNK_BYTES * leaves + group(reader)?)?;
                Some(())
            })?,
            5 => reader.structs(|reader, _| {
                bytes = bytes.checked_add(pair(reader)?)?;
                Some(())
            })?,
            _ => reader.skip(kind, 0)?,
        }
        Some(())
    })?;
    Some(bytes)
}

#[derive(Default)]
struct Schema {
    bytes: u64,
    /// Columns with values.
    leaves: u64,
}

/// A group of the schema with unread elements.
struct Open {
    left: u64,
    /// Length of its path, including the enclosing groups; each of its columns gets a copy.
    path: u64,
}

fn schema(reader: &mut Reader<'_>) -> Option<Schema> {
    let mut schema = Schema::default();
    let mut open: Vec<Open> = Vec::new();
    let mut claimed = 0;
    reader.structs(|reader, len| {
        let (name, children) = element(reader)?;
        // Each element except the first belongs to one group.
        claimed += children;
        if claimed >= len {
            return None;
        }
        while open.pop_if(|group| group.left == 0).is_some() {}
        let mut path = name + size_of::<String>() as u64;
        if let Some(group) = open.last_mut() {
            group.left -= 1;
            path += group.path;
        }
        if children > 0 {
            open.push(Open { left: children, path });
        } else {
            schema.leaves += 1;
            schema.bytes += path;
        }
        schema.bytes += ELEMENT_BYTES + 6 * name;
        (open.len() <= MAX_DEPTH).then_some(())
    })?;
    Some(schema)
}

/// Returns the length of the name, and the number of children.
fn element(reader: &mut Reader<'_>) -> Option<(u64, u64)> {
    let (mut name, mut children) = (0, 0);
    reader.fields(&ELEMENT, |reader, field, kind| match field {
        4 => reader.binary().map(|text| name = text.len() as u64),
        5 => reader.zigzag().and_then(|number| u64::try_from(number).ok()).map(|number| children = number),
        _ => reader.skip(kind, 0),
    })?;
    // A count has 32 bits.
    (children <= u64::from(u32::MAX)).then_some((name, children))
}

fn pair(reader: &mut Reader<'_>) -> Option<u64> {
    let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
    reader.fields(&PAIR, |reader, field, kind| match field {
        1 => reader.binary().map(|text| key = text),
        2 => reader.binary().map(|text| value = text),
        _ => reader.skip(kind, 0),
    })?;
    let bytes = PAIR_BYTES + 3 * (key.len() + value.len()) as u64;
    if key != ARROW_SCHEMA_META_KEY.as_bytes() {
        return Some(bytes);
    }
    // The crate reports undecodable metadata as an error.
    let message = STANDARD.decode(value).ok()?;
    bytes.checked_add(COPIES * schema_memory(&message)?)
}

fn group(reader: &mut Reader<'_>) -> Option<u64> {
    let mut bytes = 0;
    reader.fields(&GROUP, |reader, field, kind| match field {
        1 => reader.structs(|reader, _| chunk(reader).map(|chunk| bytes += chunk)),
        4 => reader.structs(|reader, _| {
            bytes += 16;
            reader.fields(&SORTING, |reader, _, kind| reader.skip(kind, 0))
        }),
        _ => reader.skip(kind, 0),
    })?;
    Some(bytes)
}

/// Returns the memory of a chunk in addition to its place among the columns of its group.
fn chunk(reader: &mut Reader<'_>) -> Option<u64> {
    let mut bytes = 0;
    reader.fields(&CHUNK, |reader, field, kind| match field {
        1 => reader.binary().map(|path| bytes += path.len() as u64),
        3 => reader.fields(&CHUNK_DATA, |reader, field, kind| {
            let before = reader.left();
            reader.skip(kind, 0)?;
            // Geospatial statistics: numbers of four bytes and a box.
            if field == 17 {
                bytes += 4 * (before - reader.left()) as u64 + 256;
            }
            Some(())
        }),
        _ => reader.skip(kind, 0),
    })?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a field's header, for consecutive fields or after skipped ones.
    fn head(step: u8, kind: u8) -> u8 {
        step << 4 | kind
    }

    /// Returns a table of contents whose schema has these elements: name and number of children.
    fn table(elements: &[(&str, u8)]) -> Vec<u8> {
        let mut bytes = vec![head(2, LIST), 0xf0 | STRUCT, elements.len() as u8];
        for (name, children) in elements {
            bytes.extend([head(4, BINARY), name.len() as u8]);
            bytes.extend(name.as_bytes());
            bytes.extend([head(1, I32), children << 1, 0]);
        }
        bytes.push(0);
        bytes
    }

    #[test]
    fn every_column_has_a_copy_of_its_path() {
        let flat = memory(&table(&[("root", 2), ("a", 0), ("b", 0)])).unwrap();
        let nested = |name: &str| memory(&table(&[("root", 1), (name, 2), ("a", 0), ("b", 0)])).unwrap();
        assert!(nested("x") > flat);
        // The name occurs in the file, in its own objects, and in the paths of both columns.
        assert_eq!(nested("long-name") - nested("x"), 8 * (1 + 6 + 2));
    }

    #[test]
    fn children_that_are_not_there_are_not_believed() {
        assert!(memory(&table(&[("root", 2), ("a", 0), ("b", 0)])).is_some());
        for children in [3, 60] {
            assert_eq!(memory(&table(&[("root", children), ("a", 0), ("b", 0)])), None);
            assert_eq!(memory(&table(&[("root", 2), ("a", children), ("b", 0)])), None);
        }
        let mut negative = table(&[("root", 0)]);
        let at = negative.len() - 3;
        assert_eq!(negative[at], 0);
        negative[at] = 1;
        assert_eq!(memory(&negative), None);
    }

    #[test]
    fn groups_are_not_nested_without_end() {
        let nested = |depth: usize| {
            let mut elements = vec![("g", 1); depth];
            elements.push(("leaf", 0));
            memory(&table(&elements))
        };
        assert!(nested(MAX_DEPTH).is_some());
        assert_eq!(nested(MAX_DEPTH + 1), None);
    }

    #[test]
    fn each_group_of_rows_has_room_for_all_columns() {
        let mut bytes = table(&[("root", 2), ("a", 0), ("b", 0)]);
        bytes.pop();
        // Field 4: two empty groups.
        bytes.extend([head(2, LIST), 2 << 4 | STRUCT, 0, 0, 0]);
        let without = memory(&table(&[("root", 2), ("a", 0), ("b", 0)])).unwrap();
        assert_eq!(memory(&bytes).unwrap() - without, 4 + 2 * (GROUP_BYTES + 2 * CHUNK_BYTES));
    }
}
