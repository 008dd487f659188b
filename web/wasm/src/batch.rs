//! Batches as plain objects with typed arrays: nothing in them refers to the module's memory, so they can be kept,
//! posted to a worker, or transferred without a copy.

use js_sys::{BigInt64Array, Float32Array, Float64Array, Int32Array, Object, Reflect, Uint8Array, Uint32Array};
use rollmesh_core::{
    batch::{AnyBatch, BatchError, SampleBatch},
    column::{BytesColumn, Column, RowShape},
};
use wasm_bindgen::prelude::*;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** What a sampler hands over: the rows of every policy that has acted. */
export interface Batch {
    /** Steps of the environments, with one agent in them or with several. */
    envSteps: number;
    /** Rows of all policies. */
    agentSteps: number;
    /** By id; a policy that nobody named is `default_policy`. */
    policies: Record<string, SampleBatch>;
}

/** The rows of one policy: columns of equal length, in the order in which RLlib has them. */
export interface SampleBatch {
    /** Number of rows, of every column. */
    rows: number;
    /** By name: `obs`, `actions`, `rewards`, `terminateds`, `truncateds`, `advantages`, and so on. */
    columns: Record<string, Column>;
    /** Rows of each sequence, one after the other, where the policy has memory. */
    seqLens?: Int32Array;
}

/** Rows of equal shape, or of any length. */
export type Column = ArrayColumn | RaggedColumn;

/** Rows of equal shape, one after the other: `data` has `rows` times the product of `shape` elements. */
export type ArrayColumn =
    | { dtype: "float32"; shape: number[]; data: Float32Array }
    | { dtype: "float64"; shape: number[]; data: Float64Array }
    | { dtype: "int32"; shape: number[]; data: Int32Array }
    /** Ids of episodes need all 64 bits, and discrete actions have them as in NumPy. */
    | { dtype: "int64"; shape: number[]; data: BigInt64Array }
    | { dtype: "uint8"; shape: number[]; data: Uint8Array }
    /** 0 for false and 1 for true. */
    | { dtype: "bool"; shape: number[]; data: Uint8Array };

/** Rows of bytes, or of JSON in UTF-8: row `i` is `data.subarray(offsets[i], offsets[i + 1])`. */
export interface RaggedColumn {
    dtype: "bytes" | "json";
    offsets: Uint32Array;
    data: Uint8Array;
}
"#;

#[wasm_bindgen]
extern "C" {
    /// A batch as an object, see the TypeScript declarations.
    #[wasm_bindgen(typescript_type = "Batch")]
    pub type Batch;
}

/// Copies a batch out of the module's memory. Compressed columns are decompressed.
///
/// # Errors
/// [`BatchError`] for blocks that are damaged.
pub(crate) fn to_js(batch: &AnyBatch) -> Result<Batch, BatchError> {
    let mut multi = batch.as_multi_agent();
    multi.decompress_if_needed()?;
    let policies = Object::new();
    for (id, rows) in &multi.policy_batches {
        set(&policies, id.as_str(), &policy_batch(rows));
    }
    let object = Object::new();
    // Counts of rows that are in memory are numbers that JavaScript has.
    set(&object, "envSteps", &(batch.env_steps() as f64).into());
    set(&object, "agentSteps", &(batch.agent_steps() as f64).into());
    set(&object, "policies", &policies);
    Ok(JsValue::from(object).unchecked_into())
}

fn policy_batch(batch: &SampleBatch) -> JsValue {
    let columns = Object::new();
    for (name, values) in batch.iter() {
        set(&columns, name, &column(values));
    }
    let object = Object::new();
    set(&object, "rows", &(batch.len() as f64).into());
    set(&object, "columns", &columns);
    if let Some(lengths) = batch.seq_lens() {
        set(&object, "seqLens", &Int32Array::from(lengths));
    }
    object.into()
}

fn column(column: &Column) -> JsValue {
    let shape = column.shape();
    match column {
        Column::F32(rows) => array("float32", shape, &Float32Array::from(rows.values())),
        Column::F64(rows) => array("float64", shape, &Float64Array::from(rows.values())),
        Column::I32(rows) => array("int32", shape, &Int32Array::from(rows.values())),
        Column::I64(rows) => array("int64", shape, &BigInt64Array::from(rows.values())),
        Column::U8(rows) => array("uint8", shape, &Uint8Array::from(rows.values())),
        Column::Bool(rows) => {
            let bytes: Vec<u8> = rows.values().iter().map(|value| u8::from(*value)).collect();
            array("bool", shape, &Uint8Array::from(&bytes[..]))
        }
        Column::Bytes(rows) => ragged(rows),
        // None is left by now.
        Column::Compressed(_) => JsValue::UNDEFINED,
    }
}

fn array(dtype: &str, shape: RowShape, data: &JsValue) -> JsValue {
    let object = Object::new();
    set(&object, "dtype", &dtype.into());
    let dims = shape.dims().iter().map(|dim| JsValue::from(*dim)).collect::<js_sys::Array>();
    set(&object, "shape", &dims);
    set(&object, "data", data);
    object.into()
}

fn ragged(rows: &BytesColumn) -> JsValue {
    let mut offsets = vec![0];
    offsets.extend(rows.lengths().scan(0, |end: &mut u32, length| {
        *end = end.wrapping_add(length);
        Some(*end)
    }));
    let object = Object::new();
    set(&object, "dtype", &rows.kind().to_string().into());
    set(&object, "offsets", &Uint32Array::from(&offsets[..]));
    set(&object, "data", &Uint8Array::from(rows.contiguous()));
    object.into()
}

/// Sets a property of a fresh object, which takes any.
pub(crate) fn set(object: &Object, name: &str, value: &JsValue) {
    let _ = Reflect::set(object, &name.into(), value);
}
