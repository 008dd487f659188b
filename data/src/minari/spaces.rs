//! Reads spaces in Minari's form.

use rollmesh_core::column::{Column, RowShape};
use serde_json::Value;

use crate::usual::cast;

/// Parses a space. Infinities, which Python writes but JSON does not support, become null: the reader does not use bounds.
pub(super) fn parse(text: &str) -> Option<Value> {
    let mut json = String::with_capacity(text.len());
    let (mut rest, mut in_text) = (text, false);
    while let Some(first) = rest.chars().next() {
        let word = ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| !in_text && rest.starts_with(word));
        if let Some(word) = word {
            json.push_str("null");
            rest = rest.get(word.len()..)?;
            continue;
        }
        let taken = if in_text && first == '\\' { 2 } else { 1 };
        in_text ^= first == '"';
        let taken = rest.char_indices().nth(taken).map_or(rest.len(), |(at, _)| at);
        json.push_str(rest.get(..taken)?);
        rest = rest.get(taken..)?;
    }
    serde_json::from_str(&json).ok()
}

/// Returns the dimensions of a box.
fn dims(space: &Value) -> Option<Vec<u32>> {
    let dims = space.get("shape")?.as_array()?;
    dims.iter().map(|dim| dim.as_u64().and_then(|dim| u32::try_from(dim).ok())).collect()
}

/// Returns the parts of a dict or tuple with their names.
fn parts(space: &Value) -> Vec<(String, &Value)> {
    match space.get("subspaces") {
        Some(Value::Object(parts)) => parts.iter().map(|(name, part)| (name.clone(), part)).collect(),
        Some(Value::Array(parts)) => parts.iter().enumerate().map(|(place, part)| (place.to_string(), part)).collect(),
        _ => Vec::new(),
    }
}

/// Returns whether points contain images, which Minari encodes as JPEG.
pub(super) fn has_frames(space: &Value) -> bool {
    let is_large = |dims: Vec<u32>| (2..=3).contains(&dims.len()) && dims.iter().take(2).all(|dim| *dim >= 32);
    let is_frame = space.get("dtype").and_then(Value::as_str) == Some("uint8") && dims(space).is_some_and(is_large);
    is_frame || parts(space).iter().any(|(_, part)| has_frames(part))
}

/// Restores the shape of boxes, which files store as vectors. Columns that do not fit stay unchanged.
pub(super) fn reshape(space: &Value, columns: &mut [(String, Column)]) {
    reshape_part(space, "", columns);
}

fn reshape_part(space: &Value, name: &str, columns: &mut [(String, Column)]) {
    for (part, space) in parts(space) {
        let name = if name.is_empty() { part } else { format!("{name}.{part}") };
        reshape_part(space, &name, columns);
    }
    let shape = dims(space).and_then(|dims| RowShape::new(&dims).ok());
    let column = columns.iter_mut().find_map(|(known, column)| (known == name).then_some(column));
    if let (Some(shape), Some(column)) = (shape, column)
        && shape.elements() == column.shape().elements()
        && shape != column.shape()
        && let Some(Ok(reshaped)) = column.dtype().map(|dtype| cast(column, dtype, shape))
    {
        *column = reshaped;
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::column::ColumnData;

    use super::*;

    #[test]
    fn pythons_infinities_are_read_but_not_within_names() {
        let space =
            parse(r#"{"type": "Dict", "subspaces": {"a\"NaN": {"shape": [2], "low": [-Infinity, NaN]}}}"#).unwrap();
        assert_eq!(space["subspaces"]["a\"NaN"]["low"], serde_json::json!([null, null]));
        assert_eq!(parse("{"), None);
    }

    #[test]
    fn boxes_get_their_shape() {
        let space = serde_json::json!({"subspaces": [{"shape": [2, 3]}, {"type": "Discrete"}]});
        let mut columns = vec![
            ("0".to_string(), ColumnData::new(vec![0.0f32; 12], RowShape::vector(6)).unwrap().into()),
            ("1".to_string(), ColumnData::scalars(vec![0i64; 2]).into()),
        ];
        reshape(&space, &mut columns);
        assert_eq!(columns[0].1.shape().dims(), [2, 3]);
        assert_eq!(columns[1].1.shape(), RowShape::SCALAR);
    }
}
