//! Reads and writes the LZ4 frame format of Python's `lz4.frame`.
//!
//! `lz4_flex` writes frames, but this module reads them around the crate's block decoder: the crate's frame reader allocates
//! two or three blocks of the declared maximum size, 4 MiB each, even for short frames.

use std::io::Write as _;

use lz4_flex::{
    block::{decompress_into, decompress_into_with_dict},
    frame::{BlockMode, FrameEncoder, FrameInfo},
};
use twox_hash::XxHash32;

const MAGIC: [u8; 4] = [0x04, 0x22, 0x4D, 0x18];
/// Blocks of a linked frame may refer to this number of earlier bytes.
const WINDOW: usize = 64 << 10;
/// The highest bit of a block's size marks an uncompressed block.
const STORED: u32 = 1 << 31;

/// Why a frame cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lz4Error {
    /// The bytes do not begin with a frame.
    #[error("it is no LZ4 frame")]
    NoFrame,
    /// The frame uses an unsupported part of the format.
    #[error("it is an LZ4 frame with {0}, which is not supported")]
    Unsupported(&'static str),
    /// The frame ends early.
    #[error("the LZ4 frame is cut short")]
    Short,
    /// The frame is damaged.
    #[error("the LZ4 frame is damaged: {0}")]
    Damaged(&'static str),
    /// The frame's content exceeds the caller's limit.
    #[error("decompressed it has more than {limit} bytes, which is all there is room for")]
    TooLarge {
        /// The caller's limit.
        limit: usize,
    },
}

/// Reads from the front of a slice.
struct Front<'a>(&'a [u8]);

impl<'a> Front<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Lz4Error> {
        let (front, rest) = self.0.split_at_checked(len).ok_or(Lz4Error::Short)?;
        self.0 = rest;
        Ok(front)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Lz4Error> {
        let (front, rest) = self.0.split_first_chunk().ok_or(Lz4Error::Short)?;
        self.0 = rest;
        Ok(*front)
    }

    fn u32(&mut self) -> Result<u32, Lz4Error> {
        self.array().map(u32::from_le_bytes)
    }
}

/// The header of a frame.
struct Head {
    linked: bool,
    block_checksums: bool,
    checksum: bool,
    block: usize,
    content: Option<u64>,
}

fn head(bytes: &mut Front<'_>) -> Result<Head, Lz4Error> {
    if bytes.array().map_err(|_| Lz4Error::NoFrame)? != MAGIC {
        return Err(Lz4Error::NoFrame);
    }
    let start = bytes.0;
    let [flags, sizes] = bytes.array()?;
    if flags >> 6 != 1 || flags & 2 != 0 || sizes & 0x8F != 0 {
        return Err(Lz4Error::Unsupported("another version"));
    }
    if flags & 1 != 0 {
        return Err(Lz4Error::Unsupported("a dictionary"));
    }
    let block = match sizes >> 4 {
        size @ 4..=7 => WINDOW << (2 * (size - 4)),
        _ => return Err(Lz4Error::Unsupported("blocks of another size")),
    };
    let content = if flags & 8 != 0 { Some(u64::from_le_bytes(bytes.array()?)) } else { None };
    let described = start.get(..start.len() - bytes.0.len()).unwrap_or_default();
    if bytes.take(1)? != [header_checksum(described)] {
        return Err(Lz4Error::Damaged("its head"));
    }
    Ok(Head { linked: flags & 32 == 0, block_checksums: flags & 16 != 0, checksum: flags & 4 != 0, block, content })
}

fn header_checksum(described: &[u8]) -> u8 {
    (XxHash32::oneshot(0, described) >> 8) as u8
}

/// Returns the content of one frame, at most `limit` bytes. Computes the size of the blocks' content before it allocates
/// memory.
pub(crate) fn decompress(frame: &[u8], limit: usize) -> Result<Vec<u8>, Lz4Error> {
    let too_large = Lz4Error::TooLarge { limit };
    let mut rest = Front(frame);
    let head = head(&mut rest)?;
    let total = content_len(&head, rest.0)?;
    if total > limit {
        return Err(too_large);
    }
    let mut out = vec![0; total];
    let mut done = 0;
    loop {
        let size = rest.u32()?;
        if size == 0 {
            break;
        }
        let block = rest.take((size & !STORED) as usize)?;
        let (before, room) = out.split_at_mut_checked(done).ok_or(Lz4Error::Damaged("a block"))?;
        let room_len = room.len().min(head.block);
        let room = room.get_mut(..room_len).unwrap_or_default();
        done += if size & STORED != 0 {
            room.get_mut(..block.len()).ok_or(Lz4Error::Damaged("a block"))?.copy_from_slice(block);
            block.len()
        } else if head.linked && !before.is_empty() {
            let window = before.get(before.len().saturating_sub(WINDOW)..).unwrap_or_default();
            decompress_into_with_dict(block, room, window).map_err(|_| Lz4Error::Damaged("a block"))?
        } else {
            decompress_into(block, room).map_err(|_| Lz4Error::Damaged("a block"))?
        };
        if head.block_checksums && rest.u32()? != XxHash32::oneshot(0, block) {
            return Err(Lz4Error::Damaged("the checksum of a block"));
        }
    }
    if done != total {
        return Err(Lz4Error::Damaged("a block"));
    }
    if head.checksum && rest.u32()? != XxHash32::oneshot(0, &out) {
        return Err(Lz4Error::Damaged("its checksum"));
    }
    Ok(out)
}

/// Returns the decompressed size of a frame, from its sequences, without decompression.
///
/// # Errors
/// [`Lz4Error`].
#[cfg_attr(not(feature = "parquet"), allow(dead_code))]
pub(crate) fn lz4_frame_len(frame: &[u8]) -> Result<usize, Lz4Error> {
    let mut rest = Front(frame);
    let head = head(&mut rest)?;
    content_len(&head, rest.0)
}

/// Returns the decompressed size of all blocks.
fn content_len(head: &Head, blocks: &[u8]) -> Result<usize, Lz4Error> {
    let (mut rest, mut total) = (Front(blocks), 0usize);
    loop {
        let size = rest.u32()?;
        if size == 0 {
            break;
        }
        let block = rest.take((size & !STORED) as usize)?;
        let before = if head.linked { total } else { 0 };
        let len = if size & STORED != 0 { block.len() } else { block_len(block, before)? };
        if len > head.block {
            return Err(Lz4Error::Damaged("a block is larger than its head says"));
        }
        total = total.checked_add(len).ok_or(Lz4Error::Damaged("its length"))?;
        if head.block_checksums {
            rest.u32()?;
        }
    }
    if head.content.is_some_and(|content| content != total as u64) {
        return Err(Lz4Error::Damaged("its length is not what its head says"));
    }
    Ok(total)
}

/// Returns the decompressed size of a block without a frame, from its sequences, without decompression.
///
/// # Errors
/// [`Lz4Error::Damaged`].
#[cfg_attr(not(feature = "parquet"), allow(dead_code))]
pub(crate) fn lz4_block_len(block: &[u8]) -> Result<usize, Lz4Error> {
    block_len(block, 0)
}

/// Returns the decompressed size of a block: each sequence is a token, literals, and a match of earlier bytes; the last one
/// has no match. Matches may refer to `before` bytes before the block. A match that refers to missing bytes is an error.
fn block_len(block: &[u8], before: usize) -> Result<usize, Lz4Error> {
    let damaged = |_| Lz4Error::Damaged("a block");
    let (mut rest, mut total) = (Front(block), 0usize);
    loop {
        let [token] = rest.array().map_err(damaged)?;
        let literals = length(&mut rest, token >> 4).map_err(damaged)?;
        rest.take(literals).map_err(damaged)?;
        total = total.saturating_add(literals);
        if rest.0.is_empty() {
            return Ok(total);
        }
        let offset = usize::from(u16::from_le_bytes(rest.array().map_err(damaged)?));
        if offset == 0 || offset > total.saturating_add(before) {
            return Err(Lz4Error::Damaged("a block"));
        }
        total = total.saturating_add(length(&mut rest, token & 15).map_err(damaged)?.saturating_add(4));
    }
}

fn length(rest: &mut Front<'_>, nibble: u8) -> Result<usize, Lz4Error> {
    let mut len = usize::from(nibble);
    let mut more = nibble == 15;
    while more {
        let [byte] = rest.array()?;
        len = len.saturating_add(usize::from(byte));
        more = byte == 255;
    }
    Ok(len)
}

/// Appends a frame with this content: independent blocks, the content's length, and no checksums except the header's.
pub(crate) fn compress(content: &[u8], out: &mut Vec<u8>) {
    let info = FrameInfo::new().content_size(Some(content.len() as u64)).block_mode(BlockMode::Independent);
    let mut encoder = FrameEncoder::with_frame_info(info, out);
    let written = encoder.write_all(content).and_then(|()| encoder.finish().map_err(Into::into));
    written.expect("memory takes everything, and the content is as long as it was said to be");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The largest block of a frame.
    const BLOCK: usize = 4 << 20;

    fn packed(content: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        compress(content, &mut frame);
        frame
    }

    #[test]
    fn contents_of_any_length_come_back() {
        let noise =
            |len: usize| (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect::<Vec<_>>();
        for content in
            [vec![], vec![7], vec![0; 100_000], noise(70_000), noise(BLOCK + 1), [vec![1; BLOCK], noise(9)].concat()]
        {
            assert!(decompress(&packed(&content), content.len()).unwrap() == content, "{} bytes", content.len());
        }
    }

    #[test]
    fn linked_blocks_and_checksums_are_read() {
        let mut frame = MAGIC.to_vec();
        frame.extend([0b0101_0100, 0x40]);
        frame.push(header_checksum(&frame[4..]));
        // The second block begins with a match of the first one's end.
        let second = [0x00, 4, 0, 0x50, b'e', b'f', b'g', b'h', b'i'];
        for block in [&[0x50, b'a', b'b', b'c', b'd', b'e'][..], &second] {
            frame.extend((block.len() as u32).to_le_bytes());
            frame.extend(block);
            frame.extend(XxHash32::oneshot(0, block).to_le_bytes());
        }
        frame.extend([0; 4]);
        let content = b"abcdebcdeefghi";
        frame.extend(XxHash32::oneshot(0, content).to_le_bytes());
        assert_eq!(decompress(&frame, 100).as_deref(), Ok(&content[..]));
        assert_eq!(decompress(&frame, 13), Err(Lz4Error::TooLarge { limit: 13 }));
        let last = frame.len() - 1;
        frame[last] ^= 1;
        assert_eq!(decompress(&frame, 100), Err(Lz4Error::Damaged("its checksum")));
    }

    #[test]
    fn a_frame_says_what_is_wrong_with_it() {
        let frame = packed(b"some text, some text, some text");
        assert_eq!(decompress(b"", 9), Err(Lz4Error::NoFrame));
        assert_eq!(decompress(b"PK\x03\x04 and so on", 9), Err(Lz4Error::NoFrame));
        for len in 4..frame.len() {
            assert_eq!(decompress(&frame[..len], 99), Err(Lz4Error::Short), "{len}");
        }
        let mut other = frame.clone();
        other[6] ^= 1;
        assert_eq!(decompress(&other, 99), Err(Lz4Error::Damaged("its head")));
        let mut other = frame;
        other[4] |= 1;
        assert_eq!(decompress(&other, 99), Err(Lz4Error::Unsupported("a dictionary")));
    }

    /// Returns a frame of one block without checksums.
    fn frame_of(block: &[u8]) -> Vec<u8> {
        let mut frame = MAGIC.to_vec();
        frame.extend([0b0110_0000, 0x70]);
        frame.push(header_checksum(&frame[4..]));
        frame.extend((block.len() as u32).to_le_bytes());
        frame.extend(block);
        frame.extend([0; 4]);
        frame
    }

    #[test]
    fn a_match_of_nothing_has_no_length() {
        // One letter, a match of length a thousand times 255 at some distance, and a last letter.
        let block = |distance: u8| {
            let mut block = vec![0x1f, b'a', distance, 0];
            block.extend(vec![255; 1000]);
            block.extend([0, 0x10, b'z']);
            block
        };
        assert_eq!(lz4_block_len(&block(1)), Ok(1 + 15 + 1000 * 255 + 4 + 1));
        assert_eq!(
            decompress(&frame_of(&block(1)), 1 << 20).map(|content| content.len()),
            lz4_frame_len(&frame_of(&block(1)))
        );
        for distance in [0, 2] {
            assert_eq!(lz4_block_len(&block(distance)), Err(Lz4Error::Damaged("a block")), "{distance}");
            assert_eq!(lz4_frame_len(&frame_of(&block(distance))), Err(Lz4Error::Damaged("a block")), "{distance}");
        }
    }

    proptest! {
        #[test]
        fn damaged_frames_do_no_harm(content in prop::collection::vec(0u8..3, 0..300), at in 0usize..400, byte: u8) {
            let mut frame = packed(&content);
            let at = at % frame.len();
            frame[at] = byte;
            let len = lz4_frame_len(&frame);
            if let Ok(read) = decompress(&frame, 400) {
                prop_assert!(read.len() <= 400 && len == Ok(read.len()));
            }
        }
    }
}
