//! Converts columns to arrays.

use std::{collections::HashMap, sync::Arc};

use arrow_array::{ArrayRef, BinaryArray, BooleanArray, FixedSizeListArray, PrimitiveArray, StringArray, types};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field};
use rollmesh_core::column::{BytesKind, Column, ColumnType, DType, RowShape};

use super::{super::dataset::DatasetError, CONTENT, JSON, SHAPE, corrupt};

/// Returns the field of such a column.
pub(crate) fn field(name: &str, column_type: ColumnType, shape: RowShape, nullable: bool) -> Field {
    let mut metadata = HashMap::new();
    if !shape.dims().is_empty() {
        let dims: Vec<String> = shape.dims().iter().map(u32::to_string).collect();
        metadata.insert(SHAPE.to_string(), dims.join(","));
    }
    if column_type == ColumnType::Ragged(BytesKind::Json) {
        metadata.insert(CONTENT.to_string(), JSON.to_string());
    }
    Field::new(name, data_type(column_type, shape), nullable).with_metadata(metadata)
}

/// Returns the Arrow type of such a column.
pub(crate) fn data_type(column_type: ColumnType, shape: RowShape) -> DataType {
    let element = match column_type {
        ColumnType::Ragged(BytesKind::Json) => return DataType::Utf8,
        ColumnType::Ragged(BytesKind::Bytes) => return DataType::Binary,
        ColumnType::Array(DType::F32) => DataType::Float32,
        ColumnType::Array(DType::F64) => DataType::Float64,
        ColumnType::Array(DType::I32) => DataType::Int32,
        ColumnType::Array(DType::I64) => DataType::Int64,
        ColumnType::Array(DType::U8) => DataType::UInt8,
        ColumnType::Array(DType::Bool) => DataType::Boolean,
    };
    match i32::try_from(shape.elements()) {
        Ok(size) if !shape.dims().is_empty() => DataType::FixedSizeList(Arc::new(item(element)), size),
        _ => element,
    }
}

fn item(element: DataType) -> Field {
    Field::new("element", element, false)
}

/// Returns the array of a plain column; rows that are not valid are null.
pub(crate) fn array(column: &Column, valid: Option<NullBuffer>) -> Result<ArrayRef, DatasetError> {
    if let Column::Bytes(data) = column {
        let offsets = OffsetBuffer::from_lengths(data.lengths().map(|len| len as usize));
        let values = Buffer::from(data.contiguous());
        return Ok(match data.kind() {
            BytesKind::Bytes => Arc::new(BinaryArray::try_new(offsets, values, valid).map_err(corrupt)?),
            BytesKind::Json => Arc::new(StringArray::try_new(offsets, values, valid).map_err(corrupt)?),
        });
    }
    let shape = column.shape();
    let list = match data_type(column.column_type(), shape) {
        DataType::FixedSizeList(item, size) => Some((item, size)),
        _ => None,
    };
    let nulls = if list.is_some() { None } else { valid.clone() };
    macro_rules! primitive {
        ($ty:ident, $data:expr) => {
            Arc::new(PrimitiveArray::<types::$ty>::new(ScalarBuffer::from($data.values().to_vec()), nulls)) as ArrayRef
        };
    }
    let values: ArrayRef = match column {
        Column::F32(data) => primitive!(Float32Type, data),
        Column::F64(data) => primitive!(Float64Type, data),
        Column::I32(data) => primitive!(Int32Type, data),
        Column::I64(data) => primitive!(Int64Type, data),
        Column::U8(data) => primitive!(UInt8Type, data),
        Column::Bool(data) => Arc::new(BooleanArray::new(BooleanBuffer::from(data.values()), nulls)),
        Column::Bytes(_) | Column::Compressed(_) => {
            return Err(DatasetError::Unsupported { name: String::new(), found: "compressed rows".to_string() });
        }
    };
    match list {
        None => Ok(values),
        Some((item, size)) => Ok(Arc::new(FixedSizeListArray::try_new(item, size, values, valid).map_err(corrupt)?)),
    }
}
