//! What the fields of a schema take, before they are made: tables of a schema may be shared, so a few bytes can say a million
//! fields.

use std::mem::size_of;

use arrow_ipc::{Field, KeyValue, Schema, root_as_message};
use arrow_schema::Field as ArrowField;

/// No real schema takes more: the sum stops here.
const MOST: u64 = 1 << 32;
/// What a table of metadata takes for each pair, which grows by doubling, and without any.
const PAIR_BYTES: u64 = 160;
const TABLE_BYTES: u64 = 256;
/// A field behind its pointer, and the place of that in a list that grows by doubling.
const FIELD_BYTES: u64 = size_of::<ArrowField>() as u64 + 64;

/// Bytes that the fields of a schema take, by the message that says it; none if it says no schema.
pub(crate) fn schema_memory(message: &[u8]) -> Option<u64> {
    // What streams of messages begin with.
    let message = message.strip_prefix(&[0xff; 4]).and_then(|rest| rest.get(4..)).unwrap_or(message);
    Some(memory(root_as_message(message).ok()?.header_as_schema()?))
}

/// Bytes that the fields of a schema take.
pub(super) fn memory(schema: Schema<'_>) -> u64 {
    let mut bytes = schema.custom_metadata().map_or(0, |pairs| pairs_memory(pairs.iter()));
    for field in schema.fields().into_iter().flatten() {
        add(field, &mut bytes);
    }
    bytes
}

/// How deep it goes, the message was checked for.
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
