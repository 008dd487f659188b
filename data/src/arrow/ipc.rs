//! Reads Arrow's own files.

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::{reader::StreamDecoder, root_as_message};

use super::{super::dataset::DatasetError, corrupt, guarded};

/// Marker at the start of a message.
const CONTINUATION: [u8; 4] = [0xff; 4];

/// The record batches of a file or stream in memory.
pub(crate) struct IpcBatches {
    decoder: StreamDecoder,
    rest: Buffer,
}

impl IpcBatches {
    /// Creates a reader from the bytes. A file is a stream between two signatures, followed by a table of contents that is
    /// not needed.
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let start = if bytes.starts_with(b"ARROW1\0\0") { 8 } else { 0 };
        Self { decoder: StreamDecoder::new(), rest: Buffer::from_vec(bytes).slice(start) }
    }

    /// Returns the next batch; none at the end.
    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>, DatasetError> {
        while let Some(len) = message(&self.rest)? {
            // Passes only whole messages: with a part of one, the decoder would trust the declared length.
            let mut whole = self.rest.slice_with_length(0, len);
            self.rest = self.rest.slice(len);
            let batch = guarded(|| self.decoder.decode(&mut whole)).and_then(|batch| batch.map_err(corrupt));
            match batch {
                Ok(None) => {}
                Ok(batch) => return Ok(batch),
                Err(error) => {
                    self.rest = Buffer::default();
                    return Err(error);
                }
            }
        }
        Ok(None)
    }
}

/// Returns the size of the next message with its body; none at the end.
fn message(bytes: &[u8]) -> Result<Option<usize>, DatasetError> {
    let early = || corrupt("an Arrow message ends too early");
    if bytes.is_empty() {
        return Ok(None);
    }
    let head = if bytes.starts_with(&CONTINUATION) { 8 } else { 4 };
    let len = bytes.get(head - 4..head).and_then(|len| len.try_into().ok()).map(u32::from_le_bytes);
    let len = len.ok_or_else(early)? as usize;
    if len == 0 {
        return Ok(None);
    }
    let message = bytes.get(head..).and_then(|rest| rest.get(..len)).ok_or_else(early)?;
    let message = root_as_message(message).map_err(corrupt)?;
    let body = message.bodyLength();
    for rows in [
        message.header_as_record_batch(),
        message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data()),
    ] {
        rows.map_or(Ok(()), |rows| check(&rows, body))?;
    }
    let total = usize::try_from(body).ok().and_then(|body| body.checked_add(head + len));
    total.filter(|total| *total <= bytes.len()).map(Some).ok_or_else(early)
}

/// Checks that all buffers are within the body and no array declares more rows than it can have bits.
fn check(rows: &arrow_ipc::RecordBatch<'_>, body: i64) -> Result<(), DatasetError> {
    if rows.compression().is_some() {
        return Err(corrupt("compressed Arrow files are not read: write them without compression"));
    }
    let is_within =
        |offset: i64, len: i64| offset >= 0 && len >= 0 && offset.checked_add(len).is_some_and(|end| end <= body);
    let buffers = rows.buffers().is_none_or(|all| all.iter().all(|buffer| is_within(buffer.offset(), buffer.length())));
    let is_possible = |len: i64| (0..=body.saturating_mul(8)).contains(&len);
    let arrays = rows
        .nodes()
        .is_none_or(|all| all.iter().all(|node| is_possible(node.length()) && is_possible(node.null_count())));
    if buffers && arrays && is_possible(rows.length()) {
        Ok(())
    } else {
        Err(corrupt("an Arrow array beyond its message"))
    }
}
