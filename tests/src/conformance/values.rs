//! Converts columns and batches to JSON.

use rollmesh_core::{
    batch::{BatchError, BatchParts, SampleBatch},
    column::{Column, ColumnData, ColumnError, ColumnName, DType, Element, RowShape},
};
use serde_json::{Value, json};

use super::Fault;

/// Returns the fault of a case that does not follow the format.
pub(super) fn bad(what: &str) -> Fault {
    Fault::BadCase(what.to_string())
}

/// Reads a number, or the name of one that JSON cannot represent.
pub(super) fn float(value: &Value) -> Result<f64, Fault> {
    match value.as_str() {
        Some("NaN") => Ok(f64::NAN),
        Some("Infinity") => Ok(f64::INFINITY),
        Some("-Infinity") => Ok(f64::NEG_INFINITY),
        _ => value.as_f64().ok_or_else(|| bad("a number")),
    }
}

pub(super) fn integer<T: TryFrom<i64>>(value: &Value) -> Result<T, Fault> {
    value.as_i64().and_then(|value| value.try_into().ok()).ok_or_else(|| bad("an integer"))
}

pub(super) fn list<T>(value: &Value, item: impl Fn(&Value) -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
    value.as_array().ok_or_else(|| bad("a list"))?.iter().map(item).collect()
}

pub(super) fn floats(value: &Value) -> Result<Vec<f64>, Fault> {
    list(value, float)
}

pub(super) fn text(value: &Value) -> Result<&str, Fault> {
    value.as_str().ok_or_else(|| bad("a string"))
}

/// Writes a number as JSON, by name if JSON cannot represent it.
pub(super) fn float_json(x: f64) -> Value {
    if x.is_nan() {
        json!("NaN")
    } else if x.is_infinite() {
        json!(if x > 0.0 { "Infinity" } else { "-Infinity" })
    } else {
        json!(x)
    }
}

/// Returns the number with the fewest digits that has this 32-bit value.
fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or(f64::NAN)
}

pub(super) fn dtype(name: &str) -> Result<DType, Fault> {
    Ok(match name {
        "f32" => DType::F32,
        "f64" => DType::F64,
        "i32" => DType::I32,
        "i64" => DType::I64,
        "u8" => DType::U8,
        "bool" => DType::Bool,
        _ => return Err(bad("a dtype")),
    })
}

/// An element type with its form in JSON.
pub(super) trait JsonElement: Element {
    const NAME: &'static str;
    fn read(value: &Value) -> Result<Self, Fault>;
    fn write(self) -> Value;
}

macro_rules! json_element {
    ($($ty:ty, $name:literal, $read:expr, $write:expr;)+) => {
        $(impl JsonElement for $ty {
            const NAME: &'static str = $name;
            fn read(value: &Value) -> Result<Self, Fault> {
                ($read)(value)
            }
            fn write(self) -> Value {
                ($write)(self)
            }
        })+
    };
}

json_element! {
    f32, "f32", |v| float(v).map(|x| x as f32), |x: f32| float_json(shortest(x));
    f64, "f64", float, float_json;
    i32, "i32", integer, Value::from;
    i64, "i64", integer, Value::from;
    u8, "u8", integer, Value::from;
    bool, "bool", |v: &Value| v.as_bool().ok_or_else(|| bad("true or false")), Value::from;
}

/// An array as nested lists.
pub(super) struct Nested<T> {
    pub(super) dims: Vec<u32>,
    pub(super) values: Vec<T>,
}

impl<T: JsonElement> Nested<T> {
    pub(super) fn read(value: &Value) -> Result<Self, Fault> {
        let Some(items) = value.as_array() else { return Ok(Self { dims: vec![], values: vec![T::read(value)?] }) };
        let parts = items.iter().map(Self::read).collect::<Result<Vec<_>, _>>()?;
        let inner = parts.first().map_or_else(Vec::new, |part| part.dims.clone());
        if parts.iter().any(|part| part.dims != inner) {
            return Err(Fault::ShapeMismatch);
        }
        let dims = [items.len() as u32].into_iter().chain(inner).collect();
        Ok(Self { dims, values: parts.into_iter().flat_map(|part| part.values).collect() })
    }
}

pub(super) fn nest<T: JsonElement>(dims: &[u32], values: &mut impl Iterator<Item = T>) -> Value {
    match dims {
        [] => values.next().map_or(Value::Null, JsonElement::write),
        [n, rest @ ..] => (0..*n).map(|_| nest(rest, values)).collect(),
    }
}

fn read_column<T: JsonElement>(value: &Value) -> Result<Column, Fault> {
    let dims: Vec<u32> = list(&value["shape"], integer)?;
    let row = RowShape::new(dims.get(1..).unwrap_or_default()).map_err(|_| bad("a row shape"))?;
    let data = ColumnData::new(list(&value["data"], T::read)?, row).map_err(|_| Fault::ShapeMismatch)?;
    Ok(Column::from_typed(data))
}

fn write_column<T: JsonElement>(data: &ColumnData<T>) -> Value {
    let shape: Vec<usize> =
        [data.rows()].into_iter().chain(data.shape().dims().iter().map(|&dim| dim as usize)).collect();
    let values: Vec<Value> = data.values().iter().map(|value| value.write()).collect();
    json!({"dtype": T::NAME, "shape": shape, "data": values})
}

pub(super) fn column(value: &Value) -> Result<Column, Fault> {
    match dtype(text(&value["dtype"])?)? {
        DType::F32 => read_column::<f32>(value),
        DType::F64 => read_column::<f64>(value),
        DType::I32 => read_column::<i32>(value),
        DType::I64 => read_column::<i64>(value),
        DType::U8 => read_column::<u8>(value),
        DType::Bool => read_column::<bool>(value),
    }
}

/// Returns a column of numbers as JSON; none for other columns.
pub(super) fn column_json(column: &Column) -> Option<Value> {
    Some(match column {
        Column::F32(data) => write_column(data),
        Column::F64(data) => write_column(data),
        Column::I32(data) => write_column(data),
        Column::I64(data) => write_column(data),
        Column::U8(data) => write_column(data),
        Column::Bool(data) => write_column(data),
        Column::Bytes(_) | Column::Compressed(_) => return None,
    })
}

pub(super) fn batch(value: &Value) -> Result<SampleBatch, Fault> {
    let present = |name: &str| value.get(name).filter(|value| !value.is_null());
    let flag = |name: &str| present(name).and_then(Value::as_bool).unwrap_or(false);
    let columns = value["columns"].as_object().ok_or_else(|| bad("columns"))?;
    let columns = columns.iter().map(|(name, value)| Ok((ColumnName::from(name.clone()), column(value)?)));
    let seq_lens = present("seq_lens").map(|lens| list(lens, integer).map(ColumnData::scalars)).transpose()?;
    let parts = BatchParts {
        columns: columns.collect::<Result<_, Fault>>()?,
        seq_lens,
        max_seq_len: present("max_seq_len").map(integer).transpose()?,
        zero_padded: flag("zero_padded"),
        time_major: flag("time_major"),
        num_grad_updates: present("num_grad_updates").map(float).transpose()?,
        ..BatchParts::default()
    };
    SampleBatch::from_parts(parts).map_err(batch_fault)
}

pub(super) fn batch_fault(error: BatchError) -> Fault {
    match error {
        BatchError::MissingColumn(_) => Fault::MissingColumn,
        BatchError::LengthMismatch { .. } | BatchError::Lanes { .. } => Fault::LengthMismatch,
        BatchError::Column { source: ColumnError::Mismatch { .. } | ColumnError::RaggedRows { .. }, .. } => {
            Fault::ShapeMismatch
        }
        _ => Fault::InvalidArgument,
    }
}

pub(super) fn batch_json(batch: &SampleBatch) -> Value {
    let columns = batch.iter().filter_map(|(name, column)| Some((name.to_string(), column_json(column)?)));
    let mut json = json!({"columns": columns.collect::<serde_json::Map<_, _>>()});
    if let Some(lens) = batch.seq_lens() {
        json["seq_lens"] = json!(lens);
    }
    if let Some(max_seq_len) = batch.max_seq_len() {
        json["max_seq_len"] = max_seq_len.into();
    }
    if batch.time_major() {
        json["time_major"] = true.into();
    } else {
        json["count"] = batch.len().into();
    }
    if batch.zero_padded() {
        json["zero_padded"] = true.into();
    }
    if let Some(updates) = batch.num_grad_updates() {
        json["num_grad_updates"] = float_json(updates);
    }
    json
}
