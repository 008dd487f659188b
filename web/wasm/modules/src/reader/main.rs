//! Reads files of logged experience: a module of its own, which the page and the npm package load when a file is opened.

use rollmesh_core::{batch::codec::encode_any, encoding::encode};
use rollmesh_data::{limits::LONGEST_LINE, survey::Inspection};
use wasm_bindgen::prelude::*;

/// The number of bins of a histogram.
const BINS: u32 = 16;

fn main() {
    console_error_panic_hook::set_once();
}

/// Reads a file of logged experience, RLlib's lines of JSON, that arrives in chunks: from a `File` that was dropped on
/// a page, a `Response` or a Node stream.
///
/// The handle holds one chunk, one line and its batch, independently of the file's size.
#[wasm_bindgen]
pub struct DataHandle {
    inspection: Inspection,
}

#[wasm_bindgen]
impl DataHandle {
    /// Creates a reader whose report names at most `places` places of each problem. A line and its decompressed data
    /// may each have `longestLine` bytes (default 64 MiB); longer lines are skipped.
    #[wasm_bindgen(constructor)]
    #[must_use]
    pub fn new(places: u32, #[wasm_bindgen(js_name = longestLine)] longest_line: Option<u32>) -> Self {
        let longest = longest_line.map_or(LONGEST_LINE, |bytes| bytes as usize);
        Self { inspection: Inspection::new(longest, places as usize) }
    }

    /// Makes the reader keep the first steps from the given episode on, for `takeClip`.
    #[must_use]
    pub fn replaying(self, episode: u32) -> Self {
        Self { inspection: self.inspection.replaying(episode) }
    }

    /// Returns the steps to be replayed in the form that the page shows, once, as soon as they are complete.
    #[wasm_bindgen(js_name = takeClip)]
    pub fn take_clip(&mut self) -> Option<Vec<u8>> {
        self.inspection.take_clip().map(|clip| encode(&clip))
    }

    /// Takes the next chunk; call `next` until it returns `undefined` before the next chunk. Fails if the first chunk
    /// begins as another format does.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), JsError> {
        Ok(self.inspection.push(piece)?)
    }

    /// Ends the input, so that the last line needs no line break.
    pub fn finish(&mut self) {
        self.inspection.finish();
    }

    /// Returns the next batch in the core's encoding; `undefined` until another chunk is pushed, and after the last
    /// batch. Lines that are not batches are skipped and counted as problems.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Vec<u8>> {
        self.inspection.next_batch().map(|batch| encode_any(&batch))
    }

    /// Inspects all batches of the chunk without returning them.
    pub fn inspect(&mut self) {
        while self.inspection.next_batch().is_some() {}
    }

    /// Returns the findings so far as JSON; values that are not finite are null.
    pub fn report(&self) -> Result<String, JsError> {
        Ok(serde_json::to_string(&self.inspection.found(BINS))?)
    }
}
