//! Arrow's own files.

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;

use super::{super::dataset::DatasetError, corrupt};

/// The record batches of a file or stream that is in memory.
pub(in crate::offline) struct IpcBatches {
    decoder: StreamDecoder,
    rest: Buffer,
}

impl IpcBatches {
    /// Takes the bytes. A file is a stream between two signatures, with a table of contents that is not needed.
    pub(in crate::offline) fn new(bytes: Vec<u8>) -> Self {
        let start = if bytes.starts_with(b"ARROW1\0\0") { 8 } else { 0 };
        Self { decoder: StreamDecoder::new(), rest: Buffer::from_vec(bytes).slice(start) }
    }

    /// The next batch, none at the end.
    pub(in crate::offline) fn next(&mut self) -> Result<Option<RecordBatch>, DatasetError> {
        // The decoder takes a message's length on trust, but keeps no more of it than there is.
        let batch = self.decoder.decode(&mut self.rest).map_err(corrupt)?;
        if batch.is_none() {
            self.decoder.finish().map_err(corrupt)?;
        }
        Ok(batch)
    }
}
