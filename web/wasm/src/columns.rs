//! Columns and rows as typed arrays. Nothing in them refers to the module's memory, so they can be kept, posted to a worker,
//! or transferred without a copy.

use js_sys::{BigInt64Array, Float32Array, Float64Array, Int32Array, Object, Reflect, Uint8Array, Uint32Array};
use rollmesh_core::{
    batch::BatchError,
    by_type,
    column::{BytesColumn, BytesKind, Column, ColumnError, DType, Element, RowBuffer, RowShape, RowsRef},
};
use wasm_bindgen::prelude::*;

use crate::Failure;

/// An element type with its own typed array. Booleans are bytes, 0 for false and 1 for true.
pub(crate) trait JsElement: Element {
    fn to_js(values: &[Self]) -> JsValue;

    /// Returns the elements; `None` for another kind of array, or for bytes that are not booleans.
    fn of_js(array: &JsValue) -> Option<Vec<Self>>;
}

macro_rules! elements {
    ($($ty:ty: $array:ty),+ $(,)?) => {
        $(
            impl JsElement for $ty {
                fn to_js(values: &[Self]) -> JsValue {
                    <$array>::from(values).into()
                }
                fn of_js(array: &JsValue) -> Option<Vec<Self>> {
                    array.dyn_ref::<$array>().map(<$array>::to_vec)
                }
            }
        )+
    };
}

elements!(f32: Float32Array, f64: Float64Array, i32: Int32Array, i64: BigInt64Array, u8: Uint8Array);

impl JsElement for bool {
    fn to_js(values: &[Self]) -> JsValue {
        u8::to_js(&values.iter().map(|value| u8::from(*value)).collect::<Vec<_>>())
    }
    fn of_js(array: &JsValue) -> Option<Vec<Self>> {
        u8::of_js(array)?.into_iter().map(|byte| if byte < 2 { Some(byte == 1) } else { None }).collect()
    }
}

/// Reads rows from a typed array of the given element type. Fails with a description of the mismatch.
pub(crate) fn of_array(dtype: DType, shape: RowShape, data: &JsValue) -> Result<Column, String> {
    let other = || format!("values of {dtype} are wanted, in the typed array for them");
    let mut buffer = RowBuffer::new(dtype);
    by_type!(RowBuffer, &mut buffer, values => *values = JsElement::of_js(data).ok_or_else(other)?);
    buffer.all().to_column(shape).map_err(|error| error.to_string())
}

/// Returns the elements of a column in a typed array.
pub(crate) fn array(column: &Column) -> Result<JsValue, ColumnError> {
    Ok(by_type!(RowsRef, column.array()?, values => JsElement::to_js(values)))
}

/// Returns a column as an object: `dtype`, `shape` and `data`, or `dtype`, `offsets` and `data` of ragged rows.
pub(crate) fn to_js(column: &Column) -> Result<JsValue, Failure> {
    let object = Object::new();
    if let Column::Bytes(rows) = column {
        let mut offsets = vec![0];
        offsets.extend(rows.lengths().scan(0, |end: &mut u32, length| {
            *end = end.wrapping_add(length);
            Some(*end)
        }));
        set(&object, "dtype", &rows.kind().to_string().into());
        set(&object, "offsets", &Uint32Array::from(&offsets[..]));
        set(&object, "data", &Uint8Array::from(rows.contiguous()));
    } else {
        set(&object, "dtype", &column.dtype().map_or("", DType::name).into());
        let dims = column.shape().dims().iter().map(|dim| JsValue::from(*dim)).collect::<js_sys::Array>();
        set(&object, "shape", &dims);
        set(&object, "data", &array(column)?);
    }
    Ok(object.into())
}

/// Reads a column from an object of [`to_js`].
pub(crate) fn of_js(name: &str, object: &JsValue) -> Result<Column, Failure> {
    let wrong = |what: &str| Failure::new("batch", format!("column '{name}' {what}"));
    let get = |key: &str| Reflect::get(object, &key.into()).map_err(|_| wrong("is no object"));
    let dtype = get("dtype")?.as_string().unwrap_or_default();
    let of_column = |source| BatchError::Column { name: name.into(), source };
    let kind = match &*dtype {
        "bytes" => BytesKind::Bytes,
        "json" => BytesKind::Json,
        _ => {
            let dtype = DType::by_name(&dtype).ok_or_else(|| wrong(&format!("has the unknown dtype '{dtype}'")))?;
            let dims = js_sys::try_iter(&get("shape")?).ok().flatten().ok_or_else(|| wrong("has no shape"))?;
            let dims: Option<Vec<u32>> = dims.map(|dim| Some(dim.ok()?.as_f64()? as u32)).collect();
            let shape = RowShape::new(&dims.ok_or_else(|| wrong("has a shape that is no list of numbers"))?);
            let shape = shape.map_err(of_column)?;
            return of_array(dtype, shape, &get("data")?).map_err(|reason| wrong(&format!("is refused: {reason}")));
        }
    };
    let offsets = get("offsets")?.dyn_into::<Uint32Array>().map_err(|_| wrong("has no offsets"))?.to_vec();
    let lengths: Vec<u32> = offsets.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
    let bytes = u8::of_js(&get("data")?).ok_or_else(|| wrong("has no bytes as data"))?;
    Ok(Column::Bytes(BytesColumn::from_lengths(kind, bytes, &lengths).map_err(of_column)?))
}

/// Sets a property of a fresh object, which takes any.
pub(crate) fn set(object: &Object, name: &str, value: &JsValue) {
    let _ = Reflect::set(object, &name.into(), value);
}
