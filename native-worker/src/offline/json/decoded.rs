//! Decoding the lines of a file: one by one, or, in long files, ahead of the reader on several threads.

use std::{collections::VecDeque, mem, ops::Range, path::Path};

use rollmesh_core::batch::AnyBatch;
use rollmesh_data::{
    json::{JsonLines, RecordError},
    limits::JsonLimits,
};

use super::{
    in_order::InOrder,
    source::{JsonFile, NextLine},
};
use crate::offline::OfflineError;

/// The shard of a file's lines that one of several workers reads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shard {
    pub(super) file: u64,
    pub(super) shard: u32,
    pub(super) shards: u32,
}

impl Shard {
    fn has(self, line: u64) -> bool {
        self.file.wrapping_add(line) % u64::from(self.shards.max(1)) == u64::from(self.shard)
    }
}

/// The selection of lines, and the memory limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// `None` for all lines.
    pub(super) shard: Option<Shard>,
    /// Maximum length of a line in bytes.
    pub(super) line: usize,
    pub(super) limits: JsonLimits,
    /// Memory limit in bytes for everything that is decoded ahead.
    pub(super) ahead: usize,
    /// Number of helper threads.
    pub(super) helpers: usize,
}

/// The outcome of the next line.
pub(super) enum Decoded {
    /// The line's batch or error; `None` for a blank line.
    Line(Option<Result<AnyBatch, RecordError>>),
    /// The line belongs to another shard.
    Passed,
    /// The line exceeds this limit in bytes.
    TooLong(usize),
    End,
}

/// The decoder of an open file.
pub(super) struct DecodedLines {
    source: JsonFile,
    terms: Terms,
    /// Number of lines taken from the file.
    lines: u64,
    ahead: Option<Ahead>,
}

impl DecodedLines {
    /// Bytes read after which helper threads are started.
    const LONG: u64 = 1 << 20;

    pub(super) fn open(path: &Path, terms: Terms) -> Result<Self, OfflineError> {
        Ok(Self { source: JsonFile::open(path)?, terms, lines: 0, ahead: None })
    }

    /// Skips this many lines, which were read before.
    pub(super) fn pass_over(&mut self, lines: u64) -> Result<(), OfflineError> {
        self.lines += lines;
        for _ in 0..lines {
            self.source.line(false, self.terms.line)?;
        }
        Ok(())
    }

    /// Returns the number of bytes consumed; for an archive these are decompressed bytes.
    pub(super) fn bytes_read(&self) -> u64 {
        self.source.bytes_read()
    }

    pub(super) fn next(&mut self) -> Result<Decoded, OfflineError> {
        if self.ahead.is_none() && self.source.bytes_read() >= Self::LONG {
            self.ahead = Ahead::new(&self.terms);
        }
        let Some(ahead) = &mut self.ahead else {
            let line = read(&mut self.source, &self.terms, &mut self.lines)?;
            return Ok(match line {
                NextLine::Whole(line) => Decoded::Line(JsonLines::decode(line, &self.terms.limits)),
                NextLine::Passed => Decoded::Passed,
                NextLine::TooLong(bytes) => Decoded::TooLong(bytes),
                NextLine::End => Decoded::End,
            });
        };
        loop {
            if let Some(decoded) = ahead.current.next(&self.terms.limits) {
                return decoded;
            }
            ahead.give_back();
            ahead.fill(&mut self.source, &self.terms, &mut self.lines);
            match ahead.chunks.next() {
                Some(chunk) => ahead.current = chunk,
                None => return Ok(Decoded::End),
            }
        }
    }
}

fn read<'a>(source: &'a mut JsonFile, terms: &Terms, lines: &mut u64) -> Result<NextLine<'a>, OfflineError> {
    let is_wanted = terms.shard.is_none_or(|shard| shard.has(*lines));
    *lines += 1;
    source.line(is_wanted, terms.line)
}

/// The lines that are decoded ahead.
///
/// Decoding takes four times the memory of a line and of its decompressed columns, in addition to the line itself. Every
/// chunk has an equal part of the memory limit, most of which is for decompressed columns. A line that is too long for that,
/// or whose columns are, is decoded by the reader when it is next, with the whole limit of a line.
struct Ahead {
    chunks: InOrder<Chunk, Chunk>,
    current: Chunk,
    /// The text buffer of a finished chunk, for reuse.
    spare: Vec<u8>,
    /// Bytes of text after which a chunk is full; also the maximum length of a line that is decoded ahead.
    text: usize,
    /// A chunk's part of the memory limit in bytes.
    part: usize,
    most_chunks: usize,
    /// True while a longer line is queued: there is memory for one.
    is_long: bool,
    is_over: bool,
}

impl Ahead {
    /// Maximum text of a chunk in bytes: large enough that handing it over costs little.
    const FULL: usize = 256 << 10;
    /// Minimum text of a chunk in bytes: below it, decoding ahead does not pay.
    const LEAST: usize = 16 << 10;
    /// Maximum number of lines of a chunk: a batch takes some memory however short its line.
    const MOST_LINES: usize = 256;

    /// Returns `None` if there are no helpers or too little memory.
    fn new(terms: &Terms) -> Option<Self> {
        // One chunk in progress and one queued per thread.
        let most_chunks = 2 * (terms.helpers + 1);
        let part = terms.ahead / most_chunks;
        let text = (part / 32).min(Self::FULL);
        if terms.helpers == 0 || text < Self::LEAST {
            return None;
        }
        let chunks = InOrder::new(Chunk::decode, terms.helpers);
        let (current, spare) = (Chunk::default(), Vec::new());
        Some(Self { chunks, current, spare, text, part, most_chunks, is_long: false, is_over: false })
    }

    /// Queues chunks for the threads as long as the limit allows.
    fn fill(&mut self, source: &mut JsonFile, terms: &Terms, lines: &mut u64) {
        while !self.is_over && !self.is_long && self.chunks.len() < self.most_chunks {
            let chunk = self.chunk(source, terms, lines);
            self.chunks.push(chunk);
        }
    }

    fn chunk(&mut self, source: &mut JsonFile, terms: &Terms, lines: &mut u64) -> Chunk {
        let mut chunk = Chunk { text: mem::take(&mut self.spare), most: self.text, ..Chunk::default() };
        chunk.text.reserve_exact(2 * self.text);
        while chunk.text.len() < self.text && chunk.pieces.len() < Self::MOST_LINES && !self.is_over && !self.is_long {
            chunk.pieces.push_back(match read(source, terms, lines) {
                Ok(NextLine::Whole(line)) => {
                    let start = chunk.text.len();
                    chunk.text.reserve_exact(line.len());
                    chunk.text.extend_from_slice(line);
                    self.is_long = line.len() > self.text;
                    Piece::Line(start..chunk.text.len())
                }
                Ok(NextLine::Passed) => Piece::Ready(Decoded::Passed),
                Ok(NextLine::TooLong(bytes)) => Piece::Ready(Decoded::TooLong(bytes)),
                Ok(NextLine::End) => {
                    self.is_over = true;
                    Piece::Ready(Decoded::End)
                }
                Err(error) => {
                    self.is_over = true;
                    Piece::Failed(error)
                }
            });
        }
        // At most two full texts, each counted five times; the rest is for four times the decompressed bytes.
        let decompressed = self.part.saturating_sub(5 * 2 * self.text) / 4 / chunk.pieces.len().max(1);
        chunk.limits = JsonLimits { decompressed: decompressed.min(terms.limits.decompressed) };
        chunk.is_long = self.is_long;
        chunk
    }

    /// Recycles the current chunk, which is used up.
    fn give_back(&mut self) {
        let used = mem::take(&mut self.current);
        if used.is_long {
            self.is_long = false;
        } else {
            self.spare = used.text;
            self.spare.clear();
        }
    }
}

/// Consecutive lines of a file.
#[derive(Default)]
struct Chunk {
    text: Vec<u8>,
    pieces: VecDeque<Piece>,
    /// Maximum length in bytes of a line that is decoded ahead.
    most: usize,
    /// True if the last line is longer.
    is_long: bool,
    limits: JsonLimits,
}

enum Piece {
    /// A line that has not been decoded: its range in the text.
    Line(Range<usize>),
    Ready(Decoded),
    /// Reading the file failed here.
    Failed(OfflineError),
}

impl Chunk {
    /// Decodes the lines that fit the memory limit.
    fn decode(mut self) -> Self {
        for piece in &mut self.pieces {
            let Piece::Line(line) = piece else { continue };
            if line.len() > self.most {
                continue;
            }
            let found = JsonLines::decode(self.text.get(line.clone()).unwrap_or_default(), &self.limits);
            if !matches!(&found, Some(Err(error)) if error.exceeds_limit()) {
                *piece = Piece::Ready(Decoded::Line(found));
            }
        }
        self
    }

    /// Returns the next line; decodes it now if it was not decoded ahead.
    fn next(&mut self, limits: &JsonLimits) -> Option<Result<Decoded, OfflineError>> {
        Some(match self.pieces.pop_front()? {
            Piece::Line(line) => Ok(Decoded::Line(JsonLines::decode(self.text.get(line).unwrap_or_default(), limits))),
            Piece::Ready(decoded) => Ok(decoded),
            Piece::Failed(error) => Err(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn work_done_ahead_reserves_memory_for_its_results() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines.json");
        let numbers = |n: usize| format!("{{\"type\": \"SampleBatch\", \"t\": [1{}]}}\n", ", 7".repeat(n));
        for (text, longest) in
            [(numbers(10).repeat(60_000), 0), (numbers(9_000).repeat(200), 0), (numbers(20_000).repeat(60), 1)]
        {
            fs::write(&path, &text).unwrap();
            let limits = JsonLimits { decompressed: 8 << 20 };
            let terms = Terms { shard: None, line: 4 << 20, limits, ahead: 4 << 20, helpers: 1 };
            let (mut source, mut lines) = (JsonFile::open(&path).unwrap(), 0);
            let mut ahead = Ahead::new(&terms).unwrap();
            ahead.fill(&mut source, &terms, &mut lines);
            let (mut room, mut long) = (0, 0);
            while let Some(chunk) = ahead.chunks.next() {
                let count = chunk.pieces.len();
                assert!((1..=Ahead::MOST_LINES).contains(&count));
                room += 4 * count * chunk.limits.decompressed;
                room += if chunk.is_long { 0 } else { 5 * chunk.text.len() };
                long += usize::from(chunk.is_long);
            }
            assert!(room <= terms.ahead && room > terms.ahead / 8, "{room}");
            assert_eq!(long, longest, "one long line waits, and nothing behind it");
        }
        let little = Terms { shard: None, line: 4 << 20, limits: JsonLimits::default(), ahead: 1 << 20, helpers: 1 };
        assert!(Ahead::new(&little).is_none() && Ahead::new(&Terms { ahead: 4 << 20, helpers: 0, ..little }).is_none());
    }
}
