//! Estimates the memory of a schema's fields before they are created: tables of a schema may be shared, so a few bytes can
//! describe a million fields.

use std::mem::size_of;

use arrow_ipc::{Field, KeyValue, Schema, root_as_message};
use arrow_schema::Field as ArrowField;

/// Upper limit of the sum: no real schema needs more.
const MOST: u64 = 1 << 32;
/// Memory of a metadata table for each pair, with growth by doubling, and without any.
const PAIR_BYTES: u64 = 160;
const TABLE_BYTES: u64 = 256;
/// Memory of a field behind its pointer, and of the pointer's place in a list that grows by doubling.
const FIELD_BYTES: u64 = size_of::<ArrowField>() as u64 + 64;

/// Returns the memory of a schema's fields from its message; none if the message has no schema.
pub(crate) fn schema_memory(message: &[u8]) -> Option<u64> {
    // Removes the marker at the start of a message in a stream.
    let message = message.strip_prefix(&[0xff; 4]).and_then(|rest| rest.get(4..)).unwrap_or(message);
    Some(memory(root_as_message(message).ok()?.header_as_schema()?))
}

/// Returns the memory of a schema's fields.
pub(super) fn memory(schema: Schema<'_>) -> u64 {
    let mut bytes = schema.custom_metadata().map_or(0, |pairs| pairs_memory(pairs.iter()));
    for field in schema.fields().into_iter().flatten() {
        add(field, &mut bytes);
    }
    bytes
}

/// Adds a field with its parts. The nesting depth of the message has been checked.
fn add(field: Field<'_>, bytes: &mut u64) {
    if *bytes > MOST {
        return;
    }
    let zone = field.type_as_timestamp().and_then(|timestamp| timestamp.timezone());
    let ids = field.type_as_union().and_then(|union| union.typeIds());
    let texts = [field.name(), zone].into_iter().flatten().map(str::len).sum::<usize>();
    *bytes += FIELD_BYTES + (texts + 16 * ids.map_or(0, |ids| ids.len())) as u64;
    *bytes += field.custom_metadata().map_or(0, |pairs| pairs_memory(pairs.iter()));
    for child in field.children().into_iter().flatten() {
        add(child, bytes);
    }
}

fn pairs_memory<'a>(pairs: impl Iterator<Item = KeyValue<'a>>) -> u64 {
    let mut bytes = TABLE_BYTES;
    for pair in pairs {
        let texts = [pair.key(), pair.value()].into_iter().flatten().map(str::len).sum::<usize>();
        bytes = bytes.saturating_add(PAIR_BYTES + texts as u64);
    }
    bytes
}
