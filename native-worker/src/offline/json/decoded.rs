//! The lines of a file, decoded: one by one, and those of long files ahead of whoever wants them, by several threads.

use std::{collections::VecDeque, mem, ops::Range, path::Path};

use rollmesh_core::batch::AnyBatch;
use rollmesh_data::{
    json::{JsonLines, RecordError},
    limits::JsonLimits,
};

use super::{
    in_order::InOrder,
    source::{Line, Source},
};
use crate::offline::OfflineError;

/// The lines of a file that one of several workers reads.
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

/// Which lines are wanted, and what may be held of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// None for all lines.
    pub(super) shard: Option<Shard>,
    /// Bytes of the longest line.
    pub(super) line: usize,
    pub(super) limits: JsonLimits,
    /// Bytes that everything may take that is done ahead, until somebody takes it.
    pub(super) ahead: usize,
    /// Threads beside this one.
    pub(super) helpers: usize,
}

/// What there is in the next line.
pub(super) enum Decoded {
    /// What was found; nothing in a blank line.
    Line(Option<Result<AnyBatch, RecordError>>),
    /// Nobody wants it.
    Passed,
    /// It is longer than there is room for; so much of it is.
    TooLong(usize),
    End,
}

/// An open file.
pub(super) struct DecodedLines {
    source: Source,
    terms: Terms,
    /// Lines that were taken from the file.
    lines: u64,
    ahead: Option<Ahead>,
}

impl DecodedLines {
    /// Bytes of a file behind which threads are worth their beginning.
    const LONG: u64 = 1 << 20;

    pub(super) fn open(path: &Path, terms: Terms) -> Result<Self, OfflineError> {
        Ok(Self { source: Source::open(path)?, terms, lines: 0, ahead: None })
    }

    /// Passes over so many lines, which were read before.
    pub(super) fn pass_over(&mut self, lines: u64) -> Result<(), OfflineError> {
        self.lines += lines;
        for _ in 0..lines {
            self.source.line(false, self.terms.line)?;
        }
        Ok(())
    }

    /// Bytes that were read of the file, as far as they are its own.
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
                Line::Whole(line) => Decoded::Line(JsonLines::decode(line, &self.terms.limits)),
                Line::Passed => Decoded::Passed,
                Line::TooLong(bytes) => Decoded::TooLong(bytes),
                Line::End => Decoded::End,
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

fn read<'a>(source: &'a mut Source, terms: &Terms, lines: &mut u64) -> Result<Line<'a>, OfflineError> {
    let is_wanted = terms.shard.is_none_or(|shard| shard.has(*lines));
    *lines += 1;
    source.line(is_wanted, terms.line)
}

/// What is done ahead.
///
/// A line and what is decompressed of it take four times as much when they are decoded, and the line itself besides. Every
/// chunk has an equal part of the room, and most of that is for what lines are decompressed to. A line that is too long for
/// that, or is decompressed to more, is decoded when it is its turn, with all the room that a line has.
struct Ahead {
    chunks: InOrder<Chunk, Chunk>,
    current: Chunk,
    /// The text of a chunk that is used up.
    spare: Vec<u8>,
    /// Bytes of text after which a chunk is full, and which a line has at most that is decoded ahead.
    text: usize,
    /// Bytes of a chunk's part of the room.
    part: usize,
    most_chunks: usize,
    /// A longer line waits for its turn: there is room for one.
    is_long: bool,
    is_over: bool,
}

impl Ahead {
    /// Text of which a chunk is full: so much that handing it over costs little.
    const FULL: usize = 256 << 10;
    /// With less it is not worth while.
    const LEAST: usize = 16 << 10;
    /// Most lines of a chunk: a batch takes some room however short the line is.
    const MOST_LINES: usize = 256;

    /// None if there is nobody who could help, or no room for it.
    fn new(terms: &Terms) -> Option<Self> {
        // One that everybody works at, and one that waits.
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

    /// Gives the threads something to do as long as there is room.
    fn fill(&mut self, source: &mut Source, terms: &Terms, lines: &mut u64) {
        while !self.is_over && !self.is_long && self.chunks.len() < self.most_chunks {
            let chunk = self.chunk(source, terms, lines);
            self.chunks.push(chunk);
        }
    }

    fn chunk(&mut self, source: &mut Source, terms: &Terms, lines: &mut u64) -> Chunk {
        let mut chunk = Chunk { text: mem::take(&mut self.spare), most: self.text, ..Chunk::default() };
        chunk.text.reserve_exact(2 * self.text);
        while chunk.text.len() < self.text && chunk.pieces.len() < Self::MOST_LINES && !self.is_over && !self.is_long {
            chunk.pieces.push_back(match read(source, terms, lines) {
                Ok(Line::Whole(line)) => {
                    let start = chunk.text.len();
                    chunk.text.reserve_exact(line.len());
                    chunk.text.extend_from_slice(line);
                    self.is_long = line.len() > self.text;
                    Piece::Line(start..chunk.text.len())
                }
                Ok(Line::Passed) => Piece::Ready(Decoded::Passed),
                Ok(Line::TooLong(bytes)) => Piece::Ready(Decoded::TooLong(bytes)),
                Ok(Line::End) => {
                    self.is_over = true;
                    Piece::Ready(Decoded::End)
                }
                Err(error) => {
                    self.is_over = true;
                    Piece::Failed(error)
                }
            });
        }
        // At most two full texts, each five times; the rest is for four times what is decompressed.
        let decompressed = self.part.saturating_sub(5 * 2 * self.text) / 4 / chunk.pieces.len().max(1);
        chunk.limits = JsonLimits { decompressed: decompressed.min(terms.limits.decompressed) };
        chunk.is_long = self.is_long;
        chunk
    }

    /// The current chunk is used up.
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

/// Some lines of the file.
#[derive(Default)]
struct Chunk {
    text: Vec<u8>,
    pieces: VecDeque<Piece>,
    /// Bytes of the longest line that is decoded ahead.
    most: usize,
    /// The last line is longer.
    is_long: bool,
    limits: JsonLimits,
}

enum Piece {
    /// Where it is in the text, as long as it was not decoded.
    Line(Range<usize>),
    Ready(Decoded),
    /// The file could not be read any further.
    Failed(OfflineError),
}

impl Chunk {
    /// Decodes the lines for which there is room.
    fn decode(mut self) -> Self {
        for piece in &mut self.pieces {
            let Piece::Line(line) = piece else { continue };
            if line.len() > self.most {
                continue;
            }
            let found = JsonLines::decode(self.text.get(line.clone()).unwrap_or_default(), &self.limits);
            if !matches!(&found, Some(Err(error)) if error.is_lack_of_room()) {
                *piece = Piece::Ready(Decoded::Line(found));
            }
        }
        self
    }

    /// The next line of it; decodes it if nobody had room for that.
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
    fn what_is_done_ahead_has_room_for_all_that_may_come_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lines.json");
        let numbers = |n: usize| format!("{{\"type\": \"SampleBatch\", \"t\": [1{}]}}\n", ", 7".repeat(n));
        for (text, longest) in
            [(numbers(10).repeat(60_000), 0), (numbers(9_000).repeat(200), 0), (numbers(20_000).repeat(60), 1)]
        {
            fs::write(&path, &text).unwrap();
            let limits = JsonLimits { decompressed: 8 << 20 };
            let terms = Terms { shard: None, line: 4 << 20, limits, ahead: 4 << 20, helpers: 1 };
            let (mut source, mut lines) = (Source::open(&path).unwrap(), 0);
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
