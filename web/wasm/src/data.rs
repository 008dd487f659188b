//! Files of logged experience, read piece by piece.

use rollmesh_data::{
    limits::LONGEST_LINE,
    survey::{Found, Inspection},
};
use wasm_bindgen::prelude::*;

use crate::batch;

/// Places that are named of each problem.
const PLACES: usize = 10;
/// Bins of a histogram.
const BINS: u32 = 16;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = r#"
/** What is in a file and what is wrong with it, with the names that `rollmesh data inspect --json` has. */
export interface DataReport {
    batches: number;
    env_steps: number;
    /** Lines that are no batches; they are passed over. */
    corrupt_lines: number;
    /** Why the rest of the file was not looked at: too many lines in a row are no batches. */
    gave_up: string | null;
    /** By id; of single agents `default_policy`. */
    policies: Record<string, PolicyReport>;
    /** What nobody should learn from, as `rollmesh data validate` finds it: how often, and the first places. */
    problems: Record<string, { count: number; places: string[] }>;
}

/** The rows of one policy. */
export interface PolicyReport {
    rows: number;
    columns: Record<string, ColumnReport>;
    /** Episodes that have ended. */
    episodes: number;
    /** Episodes that were not seen to end. */
    unfinished: number;
    /** The returns and lengths of episodes that have ended. */
    return: Spread;
    length: Spread;
    /** How many have which return: bins beside each other; `to` is not in a bin. */
    histogram: { from: number; to: number; count: number }[];
}

/** Numbers, summed up; least, greatest and mean are null where there is none. */
export interface Spread {
    count: number;
    /** Numbers beside those that are not finite. */
    not_finite: number;
    min: number | null;
    max: number | null;
    mean: number | null;
}

/** A column: its elements summed up, none of texts, and `float32 (4)` or what else it holds. */
export interface ColumnReport extends Spread {
    type: string[];
    rows: number;
}
"#;

#[wasm_bindgen]
extern "C" {
    /// What is in a file, see the TypeScript declarations.
    #[wasm_bindgen(typescript_type = "DataReport")]
    pub type DataReport;
}

/// Reads a file of logged experience, RLlib's lines of JSON, that comes piece by piece: from a `File` that was dropped on a
/// page, a `Response` or a stream of Node's.
///
/// ```js
/// const data = new DataFile();
/// for await (const piece of file.stream()) {
///   data.push(piece);
///   for (let batch; (batch = data.next()); ) learn(batch.policies.default_policy.columns);
/// }
/// data.finish();
/// for (let batch; (batch = data.next()); ) learn(batch.policies.default_policy.columns);
/// console.log(data.report().policies.default_policy.return.mean);
/// ```
///
/// What is held is a piece, a line and its batch, whatever the file's size.
#[wasm_bindgen]
pub struct DataFile {
    inspection: Inspection,
}

#[wasm_bindgen]
impl DataFile {
    /// A line, and what is compressed in it, may have `longestLine` bytes each (64 MiB); longer ones are passed over.
    #[wasm_bindgen(constructor)]
    #[must_use]
    pub fn new(#[wasm_bindgen(js_name = longestLine)] longest_line: Option<u32>) -> Self {
        let longest = longest_line.map_or(LONGEST_LINE, |bytes| bytes as usize);
        Self { inspection: Inspection::new(longest, PLACES) }
    }

    /// Takes the next piece; take its batches before the next one.
    ///
    /// # Errors
    /// Throws an `Error` that names the format and what to do if the first piece begins as another format does.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), JsError> {
        self.inspection.push(piece).map_err(error)
    }

    /// No other piece comes: the last line needs no end.
    pub fn finish(&mut self) {
        self.inspection.finish();
    }

    /// The next batch; `undefined` until another piece comes, and after the last one. Lines that are no batches are passed over,
    /// and among the problems.
    ///
    /// # Errors
    /// Throws an `Error` for compressed columns that are damaged; the next call goes on behind that batch.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Option<batch::Batch>, JsError> {
        self.inspection.next_batch().map(|batch| batch::to_js(&batch).map_err(error)).transpose()
    }

    /// What was found so far.
    ///
    /// # Errors
    /// Throws an `Error` only if memory is at its end.
    pub fn report(&self) -> Result<DataReport, JsError> {
        to_js(&self.inspection.found(BINS))
    }
}

/// By way of JSON, in which what is not finite is null.
fn to_js(found: &Found) -> Result<DataReport, JsError> {
    let text = serde_json::to_string(found).map_err(error)?;
    let value = js_sys::JSON::parse(&text).map_err(|_| JsError::new("the report is no JSON"))?;
    Ok(value.unchecked_into())
}

fn error(error: impl std::fmt::Display) -> JsError {
    JsError::new(&error.to_string())
}
