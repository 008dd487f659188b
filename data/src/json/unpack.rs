//! Decodes compressed columns: base64 of an LZ4 frame that contains a pickle.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rollmesh_core::column::{Column, ColumnName};

use super::RecordError;
use crate::{lz4, pickle};

/// Decodes a compressed column, or several if it is nested. `room` is the remaining limit of decompressed bytes.
pub(super) fn unpack(
    text: &[u8],
    name: &str,
    room: &mut usize,
    out: &mut Vec<(ColumnName, Column)>,
) -> Result<(), RecordError> {
    let column = || name.chars().take(64).collect::<String>();
    let frame = STANDARD.decode(text).map_err(|_| RecordError::Base64(column()))?;
    let pickled = lz4::decompress(&frame, *room).map_err(|source| RecordError::Lz4 { column: column(), source })?;
    drop(frame);
    *room = room.saturating_sub(pickled.len());
    let failed = |source| RecordError::Pickle { column: column(), source };
    let (objects, value) = pickle::read(&pickled).map_err(failed)?;
    pickle::columns(&objects, value, name, out).map_err(failed)
}
