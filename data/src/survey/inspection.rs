//! Inspects a file of lines of JSON that arrives in pieces.

use std::collections::BTreeMap;

use rollmesh_core::{batch::AnyBatch, protocol::message::EnvClip};
use serde::{Deserialize, Serialize};

use super::{At, Check, NO_BATCHES, Problem, Problems, Report, Survey, replay::Replay};
use crate::{
    json::{JsonError, JsonPieces},
    limits::JsonLimits,
};

/// A file has another format than lines of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this is {name}, and lines of JSON are read here: `rollmesh data inspect FILE` looks at it, `rollmesh data convert FILE --to json \
     --output DIR` makes lines of it"
)]
pub struct OtherFormat {
    name: &'static str,
}

impl OtherFormat {
    /// Returns the format that the first bytes of a file indicate, if it is a known format for experience other than lines
    /// of JSON.
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

/// The results for a file so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The summary of its batches.
    #[serde(flatten)]
    pub report: Report,
    /// Number of skipped lines that are not batches.
    pub corrupt_lines: u64,
    /// The reason why the rest of the file was not read.
    pub gave_up: Option<String>,
    /// The problems: each lists its first places, and counts all.
    pub problems: BTreeMap<String, Problem>,
}

/// Reads a file of lines of JSON that arrives in pieces, and records its content and its problems. It holds a piece, a line
/// and its batch in memory, whatever the file's size is.
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
    is_finished: bool,
    replay: Option<Replay>,
}

impl Inspection {
    /// Creates an inspection without data. Each line, and its decompressed content, may have up to `longest` bytes; each
    /// problem lists up to `places` places.
    #[must_use]
    pub fn new(longest: usize, places: usize) -> Self {
        Self {
            pieces: JsonPieces::new(longest, JsonLimits { decompressed: longest }),
            has_begun: false,
            survey: Survey::default(),
            check: Check::new(None),
            problems: Problems::new(places),
            gave_up: None,
            is_finished: false,
            replay: None,
        }
    }

    /// Keeps the first steps from an episode on, see [`take_clip`](Self::take_clip).
    #[must_use]
    pub fn replaying(self, episode: u32) -> Self {
        Self { replay: Some(Replay::new(episode)), ..self }
    }

    /// Returns the steps to be replayed, once, as soon as they are complete.
    pub fn take_clip(&mut self) -> Option<EnvClip> {
        self.replay.as_mut()?.take()
    }

    /// Adds the next piece. Pieces are kept until their batches are [taken](Self::next_batch). After too many consecutive
    /// lines that are not batches, all further pieces are dropped, see [`Found::gave_up`].
    ///
    /// # Errors
    /// [`OtherFormat`], from the first bytes of the first piece.
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

    /// Ends the file.
    pub fn finish(&mut self) {
        self.pieces.finish();
        self.is_finished = true;
    }

    /// Returns the next batch; none until another piece arrives, and at the end.
    pub fn next_batch(&mut self) -> Option<AnyBatch> {
        loop {
            let Some(next) = self.pieces.next_batch() else {
                self.replay.iter_mut().filter(|_| self.is_finished).for_each(Replay::finish);
                return None;
            };
            let batch = match next {
                Ok(batch) => batch,
                Err(error) => {
                    if matches!(error, JsonError::TooMany { .. }) {
                        self.gave_up = Some(error.to_string());
                    }
                    self.problems.add(NO_BATCHES, || error.to_string());
                    continue;
                }
            };
            self.replay.iter_mut().for_each(|replay| replay.add(&batch));
            let at = At { line: Some(self.pieces.counts().line), ..At::default() };
            self.check.batch(&batch, at, &mut self.problems);
            // The problems include damaged columns.
            let _ = self.survey.add(&batch);
            return Some(batch);
        }
    }

    /// Returns why reading stopped.
    #[must_use]
    pub fn gave_up(&self) -> Option<&str> {
        self.gave_up.as_deref()
    }

    /// Returns the results so far; histograms have at most `bins` bins.
    #[must_use]
    pub fn found(&self, bins: u32) -> Found {
        Found {
            report: self.survey.report(bins),
            corrupt_lines: self.pieces.counts().corrupt_lines,
            gave_up: self.gave_up.clone(),
            problems: self.problems.found().clone(),
        }
    }
}
