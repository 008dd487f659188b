//! Converts non-numeric values to JSON.

use super::{
    PickleError,
    values::{Node, Objects, Value},
};

const MAX_DEPTH: usize = 32;

/// Appends a value as JSON: arrays as nested lists, and numbers that JSON cannot represent as `null`.
///
/// # Errors
/// [`PickleError::NoColumn`] for values that are nested too deeply, or for more text than `room`.
pub(crate) fn json_text(
    objects: &Objects<'_>,
    value: Value,
    out: &mut Vec<u8>,
    room: usize,
) -> Result<(), PickleError> {
    write(objects, value, out, room, 0)
}

fn write(objects: &Objects<'_>, value: Value, out: &mut Vec<u8>, room: usize, depth: usize) -> Result<(), PickleError> {
    if depth > MAX_DEPTH || out.len() > room {
        return Err(PickleError::NoColumn("values within values without end"));
    }
    match value {
        Value::None | Value::Name(_) => out.extend_from_slice(b"null"),
        Value::Bool(flag) => out.extend_from_slice(if flag { b"true" } else { b"false" }),
        Value::Int(number) => out.extend_from_slice(number.to_string().as_bytes()),
        Value::Float(number) if number.is_finite() => {
            out.extend_from_slice(zmij::Buffer::new().format_finite(number).as_bytes());
        }
        Value::Float(_) => out.extend_from_slice(b"null"),
        Value::Text(slice) | Value::Bytes(slice) => text(&String::from_utf8_lossy(objects.bytes(slice)), out),
        Value::Node(_) => match objects.node(value) {
            Some(Node::List(items) | Node::Tuple(items)) => {
                out.push(b'[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(b',');
                    }
                    write(objects, *item, out, room, depth + 1)?;
                }
                out.push(b']');
            }
            Some(Node::Dict(entries)) => {
                out.push(b'{');
                for (i, (key, item)) in entries.iter().enumerate() {
                    if i > 0 {
                        out.push(b',');
                    }
                    name(objects, *key, out)?;
                    out.push(b':');
                    write(objects, *item, out, room, depth + 1)?;
                }
                out.push(b'}');
            }
            Some(Node::Array(array)) => super::arrays::array_text(objects, array, out, room)?,
            Some(Node::DType(_)) | None => out.extend_from_slice(b"null"),
        },
    }
    Ok(())
}

/// Converts a key to text, as JSON requires.
fn name(objects: &Objects<'_>, key: Value, out: &mut Vec<u8>) -> Result<(), PickleError> {
    match key {
        Value::Text(slice) => text(&String::from_utf8_lossy(objects.bytes(slice)), out),
        Value::Int(number) => text(&number.to_string(), out),
        _ => return Err(PickleError::NoColumn("a dict with keys that are no text")),
    }
    Ok(())
}

fn text(text: &str, out: &mut Vec<u8>) {
    // Any text can be written as JSON.
    out.extend_from_slice(serde_json::to_string(text).unwrap_or_default().as_bytes());
}
