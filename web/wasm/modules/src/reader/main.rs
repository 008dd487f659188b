//! Reads files of logged experience: a module of its own, which the page and the npm package load when a file is opened.

use rollmesh_core::{batch::codec::encode_any, encoding::encode};
use rollmesh_data::{limits::LONGEST_LINE, survey::Inspection};
use wasm_bindgen::prelude::*;

/// Bins of a histogram.
const BINS: u32 = 16;

fn main() {
    console_error_panic_hook::set_once();
}

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
    /// Names at most `places` places of each problem. A line, and what is compressed in it, may have `longestLine` bytes each
    /// (64 MiB); longer ones are skipped.
    #[wasm_bindgen(constructor)]
    #[must_use]
    pub fn new(places: u32, #[wasm_bindgen(js_name = longestLine)] longest_line: Option<u32>) -> Self {
        let longest = longest_line.map_or(LONGEST_LINE, |bytes| bytes as usize);
        Self { inspection: Inspection::new(longest, places as usize) }
    }

    /// The same, and keeps the first steps from an episode on, for `takeClip`.
    #[must_use]
    pub fn replaying(self, episode: u32) -> Self {
        Self { inspection: self.inspection.replaying(episode) }
    }

    /// The steps to be replayed as the page shows them, once, as soon as they are complete.
    #[wasm_bindgen(js_name = takeClip)]
    pub fn take_clip(&mut self) -> Option<Vec<u8>> {
        self.inspection.take_clip().map(|clip| encode(&clip))
    }

    /// Takes the next piece; take its batches before the next one. Fails if the first piece begins as another format does.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), JsError> {
        Ok(self.inspection.push(piece)?)
    }

    /// No other piece comes: the last line needs no end.
    pub fn finish(&mut self) {
        self.inspection.finish();
    }

    /// The next batch in the core's encoding; `undefined` until another piece comes, and after the last one. Lines that are no
    /// batches are skipped, and counted as problems.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Vec<u8>> {
        self.inspection.next_batch().map(|batch| encode_any(&batch))
    }

    /// Looks at all batches of the piece, and keeps none.
    pub fn inspect(&mut self) {
        while self.inspection.next_batch().is_some() {}
    }

    /// What was found so far, as JSON, in which what is not finite is null.
    pub fn report(&self) -> Result<String, JsError> {
        Ok(serde_json::to_string(&self.inspection.found(BINS))?)
    }
}
