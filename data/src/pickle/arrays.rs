//! Converts the content of a pickle to columns.

use std::borrow::Cow;

use half::f16;
use rollmesh_core::column::{BytesColumn, Column, ColumnData, ColumnName, DType, Element, LittleEndian as _, RowShape};

use super::{
    PickleError,
    text::json_text,
    values::{DTypeOf, Data, Node, Objects, PickleArray, Value},
};
use crate::limits::MAX_NESTING;

/// Columns by their names.
type Columns = Vec<(ColumnName, Column)>;

/// Returns the columns of a value: one with the name, or several with dotted names for a dict or a tuple of arrays.
///
/// # Errors
/// [`PickleError`].
pub(crate) fn columns(objects: &Objects<'_>, value: Value, name: &str, out: &mut Columns) -> Result<(), PickleError> {
    // Limits the total size, since an array that is referenced many times would otherwise be copied for every reference.
    let mut room = objects.pickle.len().saturating_mul(4).saturating_add(1 << 10);
    nested(objects, value, name, &mut room, 0, out)
}

fn nested(
    objects: &Objects<'_>,
    value: Value,
    name: &str,
    room: &mut usize,
    depth: usize,
    out: &mut Columns,
) -> Result<(), PickleError> {
    if depth > MAX_NESTING {
        return Err(PickleError::NoColumn("parts within parts without end"));
    }
    let node = objects.node(value).ok_or(PickleError::NoColumn("a single value"))?;
    let column = match node {
        Node::Dict(entries) => {
            for (key, part) in entries {
                let key = objects.text(*key).ok_or(PickleError::NoColumn("a dict with keys that are no text"))?;
                nested(objects, *part, &format!("{name}.{key}"), room, depth + 1, out)?;
            }
            return Ok(());
        }
        Node::Tuple(parts) if parts.iter().all(|part| is_rows(objects, *part)) => {
            for (index, part) in parts.iter().enumerate() {
                nested(objects, *part, &format!("{name}.{index}"), room, depth + 1, out)?;
            }
            return Ok(());
        }
        Node::Tuple(rows) | Node::List(rows) => list_column(objects, rows, room)?,
        Node::Array(array) => match array.data {
            Data::Bytes(_) => array_column(objects, array, room)?,
            Data::Objects(list) => match (objects.node(Value::Node(list)), array.ndim) {
                (Some(Node::List(rows)), 1) => list_column(objects, rows, room)?,
                _ => return Err(PickleError::NoColumn("an array of arrays")),
            },
            Data::Missing => return Err(PickleError::NoColumn("an array without elements")),
        },
        Node::DType(_) => return Err(PickleError::NoColumn("a type")),
    };
    out.push((name.to_string().into(), column));
    Ok(())
}

/// Returns whether a value has rows, or parts that have.
fn is_rows(objects: &Objects<'_>, value: Value) -> bool {
    match objects.node(value) {
        Some(Node::Array(array)) => array.ndim > 0,
        Some(Node::Dict(_) | Node::Tuple(_)) => true,
        _ => false,
    }
}

fn take(room: &mut usize, bytes: usize) -> Result<(), PickleError> {
    *room = room.checked_sub(bytes).ok_or(PickleError::NoColumn("more than its own bytes"))?;
    Ok(())
}

fn array_column(objects: &Objects<'_>, array: &PickleArray, room: &mut usize) -> Result<Column, PickleError> {
    let Some((_, row)) = array.dims().split_first() else { return Err(PickleError::NoColumn("a single value")) };
    let shape = RowShape::new(row).map_err(|_| PickleError::NoColumn("rows of too many dimensions"))?;
    let bytes = plain_bytes(objects, array)?;
    column(array.dtype, shape, &bytes, room)
}

/// Converts a list of rows: numbers, arrays of one shape, or other values as JSON.
fn list_column(objects: &Objects<'_>, rows: &[Value], room: &mut usize) -> Result<Column, PickleError> {
    take(room, rows.len().saturating_mul(8))?;
    let first = rows.first().copied().unwrap_or(Value::Float(0.0));
    match first {
        Value::Bool(_) => numbers(rows, |row| if let Value::Bool(row) = row { Some(row) } else { None }),
        Value::Int(_) if rows.iter().all(|row| matches!(row, Value::Int(_))) => {
            numbers(rows, |row| if let Value::Int(row) = row { Some(row) } else { None })
        }
        Value::Int(_) | Value::Float(_) => numbers(rows, |row| match row {
            Value::Int(row) => Some(row as f64),
            Value::Float(row) => Some(row),
            _ => None,
        }),
        _ => match objects.node(first) {
            Some(Node::Array(array)) if matches!(array.data, Data::Bytes(_)) => stacked(objects, rows, array, room),
            _ => json_column(objects, rows, room),
        },
    }
}

fn numbers<T: Element>(rows: &[Value], number: impl Fn(Value) -> Option<T>) -> Result<Column, PickleError> {
    let values = rows.iter().map(|row| number(*row)).collect::<Option<Vec<T>>>().ok_or(PickleError::Ragged)?;
    Ok(Column::from_typed(ColumnData::scalars(values)))
}

/// Converts arrays, each of them a row.
fn stacked(
    objects: &Objects<'_>,
    rows: &[Value],
    first: &PickleArray,
    room: &mut usize,
) -> Result<Column, PickleError> {
    let shape = RowShape::new(first.dims()).map_err(|_| PickleError::NoColumn("rows of too many dimensions"))?;
    take(room, rows.len().saturating_mul(shape.elements()).saturating_mul(usize::from(first.dtype.size)))?;
    let mut bytes = Vec::new();
    for row in rows {
        match objects.node(*row) {
            Some(Node::Array(array)) if array.dims() == first.dims() && same_type(array.dtype, first.dtype) => {
                bytes.extend_from_slice(&plain_bytes(objects, array)?);
            }
            _ => return Err(PickleError::Ragged),
        }
    }
    column(first.dtype, shape, &bytes, room)
}

fn same_type(a: DTypeOf, b: DTypeOf) -> bool {
    (a.kind, a.size) == (b.kind, b.size)
}

fn json_column(objects: &Objects<'_>, rows: &[Value], room: &mut usize) -> Result<Column, PickleError> {
    let (mut bytes, mut lengths) = (Vec::new(), Vec::with_capacity(rows.len()));
    for row in rows {
        let start = bytes.len();
        json_text(objects, *row, &mut bytes, *room)?;
        lengths.push((bytes.len() - start) as u32);
    }
    take(room, bytes.len())?;
    let column = BytesColumn::from_lengths(rollmesh_core::column::BytesKind::Json, bytes, &lengths);
    column.map(Column::from).map_err(|_| PickleError::NoColumn("texts that are no texts"))
}

/// Appends a small array as nested lists of its elements, by dimension.
pub(super) fn array_text(
    objects: &Objects<'_>,
    array: &PickleArray,
    out: &mut Vec<u8>,
    room: usize,
) -> Result<(), PickleError> {
    // Converts all elements as parts of a single row.
    let bytes = plain_bytes(objects, array)?;
    let mut rest = room;
    let elements = column(array.dtype, RowShape::SCALAR, &bytes, &mut rest)?;
    let element = |row: usize, out: &mut Vec<u8>| match &elements {
        Column::F32(data) => number_text(data.values().get(row).map(|value| f64::from(*value)), out),
        Column::F64(data) => number_text(data.values().get(row).copied(), out),
        Column::I32(data) => whole_text(data.values().get(row).map(|value| i64::from(*value)), out),
        Column::I64(data) => whole_text(data.values().get(row).copied(), out),
        Column::U8(data) => whole_text(data.values().get(row).map(|value| i64::from(*value)), out),
        Column::Bool(data) => {
            let is_true = data.values().get(row).copied().unwrap_or_default();
            out.extend_from_slice(if is_true { b"true" } else { b"false" });
        }
        Column::Bytes(_) | Column::Compressed(_) => out.extend_from_slice(b"null"),
    };
    let dims = array.dims();
    // Returns how many lists begin before an element, and end after it.
    let closed = |row: usize| {
        let mut width = 1usize;
        dims.iter()
            .rev()
            .take_while(|dim| {
                width = width.saturating_mul(**dim as usize);
                width > 0 && row.is_multiple_of(width)
            })
            .count()
    };
    if elements.rows() == 0 {
        out.extend_from_slice(b"[]");
    }
    for row in 0..elements.rows() {
        if row > 0 {
            out.push(b',');
        }
        out.resize(out.len() + closed(row), b'[');
        element(row, out);
        out.resize(out.len() + closed(row + 1), b']');
        if out.len() > room {
            return Err(PickleError::NoColumn("arrays within infos without end"));
        }
    }
    Ok(())
}

fn number_text(number: Option<f64>, out: &mut Vec<u8>) {
    match number.filter(|number| number.is_finite()) {
        Some(number) => out.extend_from_slice(zmij::Buffer::new().format_finite(number).as_bytes()),
        None => out.extend_from_slice(b"null"),
    }
}

fn whole_text(number: Option<i64>, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(number.unwrap_or_default()).as_bytes());
}

/// Returns the elements in row-major order, as little-endian bytes.
fn plain_bytes<'a>(objects: &'a Objects<'_>, array: &PickleArray) -> Result<Cow<'a, [u8]>, PickleError> {
    let Data::Bytes(data) = array.data else { return Err(PickleError::NoColumn("an array of objects")) };
    if array.dtype.kind == b'O' {
        return Err(PickleError::NoColumn("an array of objects"));
    }
    let (bytes, size) = (objects.bytes(data), usize::from(array.dtype.size));
    let elements = array.dims().iter().try_fold(1usize, |n, dim| n.checked_mul(*dim as usize));
    if elements.and_then(|elements| elements.checked_mul(size)) != Some(bytes.len()) {
        return Err(PickleError::Damaged { at: 0, what: "an array whose elements do not fill its shape" });
    }
    let mut bytes = Cow::Borrowed(bytes);
    if array.fortran && array.dims().len() > 1 && !bytes.is_empty() {
        bytes = Cow::Owned(in_rows(&bytes, array.dims(), size));
    }
    if array.dtype.big_endian && size > 1 {
        bytes.to_mut().chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    Ok(bytes)
}

/// Converts elements from column-major to row-major order.
fn in_rows(bytes: &[u8], dims: &[u32], size: usize) -> Vec<u8> {
    let mut strides = Vec::with_capacity(dims.len());
    let mut stride = size;
    for dim in dims {
        strides.push(stride);
        stride *= *dim as usize;
    }
    let mut index = vec![0u32; dims.len()];
    let mut out = Vec::with_capacity(bytes.len());
    let mut from = 0;
    while out.len() < bytes.len() {
        out.extend_from_slice(bytes.get(from..from + size).unwrap_or_default());
        for ((index, dim), stride) in index.iter_mut().zip(dims).zip(&strides).rev() {
            *index += 1;
            from += stride;
            if *index < *dim {
                break;
            }
            from -= stride * *dim as usize;
            *index = 0;
        }
    }
    out
}

fn column(dtype: DTypeOf, shape: RowShape, bytes: &[u8], room: &mut usize) -> Result<Column, PickleError> {
    let width = match (dtype.kind, dtype.size) {
        (b'f', 2) | (b'u', 4) => 2,
        (b'i', 1) => 4,
        (b'i' | b'u', 2) => 2,
        _ => 1,
    };
    take(room, bytes.len().saturating_mul(width))?;
    let of = |dtype| Column::from_raw(dtype, shape, bytes);
    let column = match (dtype.kind, dtype.size) {
        (b'f', 4) => of(DType::F32),
        (b'f', 8) => of(DType::F64),
        (b'i', 4) => of(DType::I32),
        (b'i', 8) => of(DType::I64),
        (b'u', 1) => of(DType::U8),
        (b'b', 1) => of(DType::Bool),
        (b'f', 2) => {
            ColumnData::new(u16::read_le(bytes).into_iter().map(|bits| f16::from_bits(bits).to_f32()).collect(), shape)
                .map(Into::into)
        }
        (b'i', 1) => ColumnData::new(bytes.iter().map(|byte| i32::from(*byte as i8)).collect(), shape).map(Into::into),
        (b'i', 2) => ColumnData::new(i16::read_le(bytes).into_iter().map(i32::from).collect(), shape).map(Into::into),
        (b'u', 2) => ColumnData::new(u16::read_le(bytes).into_iter().map(i32::from).collect(), shape).map(Into::into),
        (b'u', 4) => ColumnData::new(u32::read_le(bytes).into_iter().map(i64::from).collect(), shape).map(Into::into),
        (b'u', 8) => {
            let values =
                u64::read_le(bytes).into_iter().map(|value| i64::try_from(value).ok()).collect::<Option<Vec<_>>>();
            ColumnData::new(values.ok_or_else(|| PickleError::DType("u8 above 2^63".into()))?, shape).map(Into::into)
        }
        (kind, size) => return Err(PickleError::DType(format!("{}{size}", char::from(kind)))),
    };
    column.map_err(|error| match error {
        rollmesh_core::column::ColumnError::NotBool(_) => {
            PickleError::Damaged { at: 0, what: "a truth value that is none" }
        }
        _ => PickleError::Ragged,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_rows() {
        // 2 x 3 x 2, where every element is its position in column-major order.
        let bytes: Vec<u8> = (0..12).collect();
        let rows = in_rows(&bytes, &[2, 3, 2], 1);
        assert_eq!(rows, [0, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11]);
        assert_eq!(in_rows(&bytes, &[2, 3], 2), [0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11]);
    }
}
