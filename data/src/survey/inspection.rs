//! A file of lines of JSON, looked at piece by piece.

use std::collections::BTreeMap;

use rollmesh_core::batch::AnyBatch;
use serde::Serialize;

use super::{At, Check, NO_BATCHES, Problem, Problems, Report, Survey};
use crate::{
    json::{JsonError, JsonPieces},
    limits::JsonLimits,
};

/// A file is in another format than lines of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is {name}, and lines of JSON are read here: `rollmesh data inspect FILE` looks at it, `rollmesh data convert FILE --to json \
     --output DIR` makes lines of it"
)]
pub struct OtherFormat {
    name: &'static str,
}

impl OtherFormat {
    /// The format that the first bytes of a file show, if it is one of those that experience is kept in and not lines of JSON.
    fn of(start: &[u8]) -> Option<Self> {
        let formats: [(&[u8], &str); 5] = [
            (b"\x89HDF", "an HDF5 file"),
            (b"PAR1", "a Parquet file"),
            (b"ARROW1", "an Arrow file"),
            (b"PK\x03\x04", "a zip archive"),
            (b"\x1f\x8b", "a gzip archive"),
        ];
        formats.into_iter().find(|(bytes, _)| start.starts_with(bytes)).map(|(_, name)| Self { name })
    }
}

/// What was found in a file so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Found {
    /// What is in its batches.
    #[serde(flatten)]
    pub report: Report,
    /// Lines that are no batches, which were passed over.
    pub corrupt_lines: u64,
    /// Why the rest of the file was not looked at.
    pub gave_up: Option<String>,
    /// What is wrong, and where: of each, the first places are named and all counted.
    pub problems: BTreeMap<String, Problem>,
}

/// Reads a file of lines of JSON that comes piece by piece, and keeps books of what is in it and what is wrong with it. What is
/// held is a piece, a line and its batch, whatever the file's size.
///
/// ```
/// use rollmesh_data::survey::Inspection;
///
/// let mut file = Inspection::new(1 << 20, 10);
/// file.push(b"{\"type\": \"SampleBatch\", \"obs\": [1, 2], \"rewards\": [1.0, 0.5]}\nno batch\n")?;
/// file.finish();
/// while file.next_batch().is_some() {}
/// let found = file.found(16);
/// assert_eq!((found.report.env_steps, found.corrupt_lines), (2, 1));
/// assert!(found.problems["lines that are no batches"].places[0].starts_with("line 2: no JSON"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Inspection {
    pieces: JsonPieces,
    has_begun: bool,
    survey: Survey,
    check: Check,
    problems: Problems,
    gave_up: Option<String>,
}

impl Inspection {
    /// Nothing has come. A line, and what is compressed in it, may have so many bytes each; of each problem so many places are
    /// named.
    #[must_use]
    pub fn new(longest: usize, places: usize) -> Self {
        Self {
            pieces: JsonPieces::new(longest, JsonLimits { decompressed: longest }),
            has_begun: false,
            survey: Survey::default(),
            check: Check::new(None),
            problems: Problems::new(places),
            gave_up: None,
        }
    }

    /// Takes the next piece. Pieces wait until their batches are [taken](Self::next_batch). After too many lines in a row that are
    /// no batches nothing is read or kept any more, see [`Found::gave_up`].
    ///
    /// # Errors
    /// [`OtherFormat`], by the first bytes of the first piece.
    pub fn push(&mut self, piece: &[u8]) -> Result<(), OtherFormat> {
        if !self.has_begun
            && let Some(other) = OtherFormat::of(piece)
        {
            return Err(other);
        }
        self.has_begun |= !piece.is_empty();
        self.pieces.push(piece);
        Ok(())
    }

    /// No other piece comes.
    pub fn finish(&mut self) {
        self.pieces.finish();
    }

    /// The next batch; none until another piece comes, and after the last one.
    pub fn next_batch(&mut self) -> Option<AnyBatch> {
        loop {
            let batch = match self.pieces.next_batch()? {
                Ok(batch) => batch,
                Err(error) => {
                    if matches!(error, JsonError::TooMany { .. }) {
                        self.gave_up = Some(error.to_string());
                    }
                    self.problems.add(NO_BATCHES, || error.to_string());
                    continue;
                }
            };
            let at = At { line: Some(self.pieces.books().line), ..At::default() };
            self.check.batch(&batch, at, &mut self.problems);
            // Damaged columns are among the problems.
            let _ = self.survey.add(&batch);
            return Some(batch);
        }
    }

    /// Why nothing more is read.
    #[must_use]
    pub fn gave_up(&self) -> Option<&str> {
        self.gave_up.as_deref()
    }

    /// What was found so far; histograms have at most so many bins.
    #[must_use]
    pub fn found(&self, bins: u32) -> Found {
        Found {
            report: self.survey.report(bins),
            corrupt_lines: self.pieces.books().corrupt_lines,
            gave_up: self.gave_up.clone(),
            problems: self.problems.found().clone(),
        }
    }
}
