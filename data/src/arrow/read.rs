//! Converts arrays to columns.

use arrow_array::{
    Array, GenericListArray, OffsetSizeTrait,
    cast::AsArray as _,
    types::{
        Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
        UInt32Type, UInt64Type,
    },
};
use arrow_schema::{DataType, Field};
use rollmesh_core::column::{BytesColumn, BytesKind, Column, ColumnData, Element, RowShape};

use super::{super::dataset::DatasetError, CONTENT, JSON, SHAPE};

/// Returns the columns of an array: one, or one for each part of a struct, with dotted names. An array without rows, or a
/// struct without parts, gives none.
pub(crate) fn columns(name: &str, field: &Field, array: &dyn Array) -> Result<Vec<(String, Column)>, DatasetError> {
    let mut columns = Vec::new();
    collect(name, field, array, &mut columns)?;
    Ok(columns)
}

/// Checks that every row has a value.
fn no_nulls(name: &str, array: &dyn Array) -> Result<(), DatasetError> {
    match array.null_count() {
        0 => Ok(()),
        nulls => Err(shape(name, format!("{nulls} rows have no value; fill them or leave them out"))),
    }
}

fn shape(name: &str, problem: impl Into<String>) -> DatasetError {
    DatasetError::Shape { name: name.to_string(), problem: problem.into() }
}

fn collect(name: &str, field: &Field, array: &dyn Array, out: &mut Vec<(String, Column)>) -> Result<(), DatasetError> {
    if array.is_empty() || matches!(array.data_type(), DataType::Null) {
        return Ok(());
    }
    no_nulls(name, array)?;
    if let DataType::Struct(fields) = array.data_type() {
        for (field, part) in fields.iter().zip(array.as_struct().columns()) {
            collect(&format!("{name}.{}", field.name()), field, part, out)?;
        }
        return Ok(());
    }
    out.push((name.to_string(), column(name, field, array)?));
    Ok(())
}

fn column(name: &str, field: &Field, array: &dyn Array) -> Result<Column, DatasetError> {
    let json = field.metadata().get(CONTENT).is_some_and(|content| content == JSON);
    let kind = if json { BytesKind::Json } else { BytesKind::Bytes };
    match array.data_type() {
        DataType::Utf8 => {
            return texts(name, kind, array.as_string::<i32>().iter().map(|text| text.map(str::as_bytes)));
        }
        DataType::LargeUtf8 => {
            return texts(name, kind, array.as_string::<i64>().iter().map(|text| text.map(str::as_bytes)));
        }
        DataType::Binary => return texts(name, kind, array.as_binary::<i32>().iter()),
        DataType::LargeBinary => return texts(name, kind, array.as_binary::<i64>().iter()),
        _ => {}
    }
    let mut dims = Vec::new();
    let values = elements(name, array.slice(0, array.len()), &mut dims)?;
    if let Some(known) = field.metadata().get(SHAPE) {
        // Without dimensions the text is empty: Minari stores numbers as lists of one.
        let known = known.split(',').filter(|dim| !dim.is_empty());
        let known: Option<Vec<u32>> = known.map(|dim| dim.trim().parse().ok()).collect();
        let product = |dims: &[u32]| dims.iter().try_fold(1u32, |all, dim| all.checked_mul(*dim));
        // Uses the shape only if it fits these rows.
        dims = known.filter(|known| product(known) == product(&dims)).unwrap_or(dims);
    }
    let dims = RowShape::new(&dims).ok().filter(|shape| shape.elements() > 0);
    let dims = dims.ok_or_else(|| shape(name, "its rows are empty, or have too many dimensions"))?;
    numbers(name, dims, &*values)
}

/// Returns the elements of nested lists, which must have equal lengths at each level.
fn elements(
    name: &str,
    array: arrow_array::ArrayRef,
    dims: &mut Vec<u32>,
) -> Result<arrow_array::ArrayRef, DatasetError> {
    if dims.len() > RowShape::MAX_DIMS {
        return Err(shape(name, "its lists are nested too deeply"));
    }
    no_nulls(name, &*array)?;
    let values = match array.data_type() {
        DataType::FixedSizeList(_, size) => {
            let list = array.as_fixed_size_list();
            let size = usize::try_from(*size).map_err(|_| shape(name, "its lists have a negative length"))?;
            dims.push(size as u32);
            // The child may begin before the first list and end after the last.
            let first = list.value_offset_at(0);
            list.values().slice(first, list.len() * size)
        }
        DataType::List(_) => equal_lists(name, array.as_list::<i32>(), dims)?,
        DataType::LargeList(_) => equal_lists(name, array.as_list::<i64>(), dims)?,
        _ => return Ok(array),
    };
    if values.is_empty() {
        return Err(shape(name, "its lists are empty"));
    }
    elements(name, values, dims)
}

fn equal_lists<O: OffsetSizeTrait>(
    name: &str,
    lists: &GenericListArray<O>,
    dims: &mut Vec<u32>,
) -> Result<arrow_array::ArrayRef, DatasetError> {
    let offsets = lists.value_offsets();
    let len = lists.value_length(0).as_usize();
    let odd =
        offsets.windows(2).position(|ends| matches!(ends, [a, b] if b.as_usize().wrapping_sub(a.as_usize()) != len));
    if let Some(row) = odd {
        return Err(shape(name, format!("row {row} has another length than row 0, which has {len}")));
    }
    dims.push(u32::try_from(len).unwrap_or(u32::MAX));
    let (first, last) = (offsets.first().map_or(0, |at| at.as_usize()), offsets.last().map_or(0, |at| at.as_usize()));
    Ok(lists.values().slice(first, last.saturating_sub(first)))
}

fn texts<'a>(
    name: &str,
    kind: BytesKind,
    rows: impl Iterator<Item = Option<&'a [u8]>>,
) -> Result<Column, DatasetError> {
    let (mut bytes, mut lengths) = (Vec::new(), Vec::with_capacity(rows.size_hint().0));
    for row in rows {
        let row = row.unwrap_or_default();
        bytes.extend_from_slice(row);
        lengths.push(row.len() as u32);
    }
    let column = BytesColumn::from_lengths(kind, bytes, &lengths);
    column.map(Column::from).map_err(|error| shape(name, error.to_string()))
}

fn numbers(name: &str, dims: RowShape, array: &dyn Array) -> Result<Column, DatasetError> {
    macro_rules! primitive {
        ($ty:ty) => {
            array.as_primitive::<$ty>().values()
        };
    }
    match array.data_type() {
        DataType::Float16 => make(name, dims, primitive!(Float16Type).iter().map(|x| x.to_f32()).collect()),
        DataType::Float32 => make(name, dims, primitive!(Float32Type).to_vec()),
        DataType::Float64 => make(name, dims, primitive!(Float64Type).to_vec()),
        DataType::Int8 => make(name, dims, primitive!(Int8Type).iter().map(|x| i32::from(*x)).collect()),
        DataType::Int16 => make(name, dims, primitive!(Int16Type).iter().map(|x| i32::from(*x)).collect()),
        DataType::Int32 => make(name, dims, primitive!(Int32Type).to_vec()),
        DataType::Int64 => make(name, dims, primitive!(Int64Type).to_vec()),
        DataType::UInt8 => make(name, dims, primitive!(UInt8Type).to_vec()),
        DataType::UInt16 => make(name, dims, primitive!(UInt16Type).iter().map(|x| i32::from(*x)).collect()),
        DataType::UInt32 => make(name, dims, primitive!(UInt32Type).iter().map(|x| i64::from(*x)).collect()),
        DataType::UInt64 => {
            let values = primitive!(UInt64Type);
            if values.iter().any(|x| i64::try_from(*x).is_err()) {
                return Err(shape(name, "an integer is above 2^63 - 1"));
            }
            make(name, dims, values.iter().map(|x| *x as i64).collect())
        }
        DataType::Boolean => make(name, dims, array.as_boolean().values().iter().collect::<Vec<bool>>()),
        found => Err(DatasetError::Unsupported { name: name.to_string(), found: format!("{found}") }),
    }
}

fn make<T: Element>(name: &str, dims: RowShape, values: Vec<T>) -> Result<Column, DatasetError> {
    let column = ColumnData::new(values, dims).map(Column::from_typed);
    column.map_err(|error| shape(name, error.to_string()))
}
