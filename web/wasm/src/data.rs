//! Files of logged experience, read piece by piece.

use rollmesh_data::{limits::LONGEST_LINE, survey::Inspection};
use wasm_bindgen::prelude::*;

use crate::{BatchHandle, Failure};

/// Places that are named of each problem.
const PLACES: usize = 10;
/// Bins of a histogram.
const BINS: u32 = 16;

/// Reads a file of logged experience, RLlib's lines of JSON, that comes piece by piece: from a `File` that was dropped on a
/// page, a `Response` or a stream of Node's.
///
/// What is held is a piece, a line and its batch, whatever the file's size.
#[wasm_bindgen]
pub struct DataHandle {
    inspection: Inspection,
}

#[wasm_bindgen]
impl DataHandle {
    /// A line, and what is compressed in it, may have `longestLine` bytes each (64 MiB); longer ones are passed over.
    #[wasm_bindgen(constructor)]
    #[must_use]
    pub fn new(#[wasm_bindgen(js_name = longestLine)] longest_line: Option<u32>) -> Self {
        let longest = longest_line.map_or(LONGEST_LINE, |bytes| bytes as usize);
        Self { inspection: Inspection::new(longest, PLACES) }
    }

    /// Takes the next piece; take its batches before the next one. Fails if the first piece begins as another format does.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Failure> {
        self.inspection.push(piece).map_err(|error| Failure::new("data", error))
    }

    /// No other piece comes: the last line needs no end.
    pub fn finish(&mut self) {
        self.inspection.finish();
    }

    /// The next batch; `undefined` until another piece comes, and after the last one. Lines that are no batches are passed over,
    /// and among the problems. After compressed columns that are damaged the next call continues behind that batch.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<BatchHandle>, Failure> {
        Ok(self.inspection.next_batch().map(BatchHandle::of).transpose()?)
    }

    /// What was found so far, as JSON, in which what is not finite is null.
    pub fn report(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string(&self.inspection.found(BINS))?)
    }
}
