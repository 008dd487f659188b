//! Reads and writes the LZ4 frame format of Python's `lz4.frame`.

use std::io::{self, Read, Write as _};

use lz4_flex::frame::{BlockMode, FrameDecoder, FrameEncoder, FrameInfo};

const MAGIC: [u8; 4] = [0x04, 0x22, 0x4D, 0x18];

/// An error of reading a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lz4Error {
    /// The bytes do not begin with a frame.
    #[error("it is no LZ4 frame")]
    NoFrame,
    /// The frame ends early, or has an empty block or other bytes behind it.
    #[error("the LZ4 frame is cut short, or followed by other bytes")]
    Short,
    /// The frame is damaged, or uses an unsupported part of the format; this is the decoder's error.
    #[error("the LZ4 frame cannot be decoded: {0}")]
    Damaged(String),
    /// The frame's content exceeds the caller's limit.
    #[error("decompressed it has more than {limit} bytes, which is all there is room for")]
    TooLarge {
        /// The caller's limit.
        limit: usize,
    },
}

/// The unread part of a frame. Its end is an error: the decoder takes it for the end of the content, and asks for no more
/// bytes after a whole frame.
struct Unread<'a>(&'a [u8]);

impl Read for Unread<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() { Err(io::ErrorKind::WriteZero.into()) } else { self.0.read(out) }
    }
}

/// Returns the content of one frame, at most `limit` bytes.
pub(crate) fn decompress(frame: &[u8], limit: usize) -> Result<Vec<u8>, Lz4Error> {
    if !frame.starts_with(&MAGIC) {
        return Err(Lz4Error::NoFrame);
    }
    let mut content = Vec::with_capacity(frame.len().min(limit));
    let mut room = FrameDecoder::new(Unread(frame)).take((limit as u64).saturating_add(1));
    match room.read_to_end(&mut content) {
        Ok(len) if len > limit => Err(Lz4Error::TooLarge { limit }),
        Ok(_) if !is_at_end(room.get_mut()) => Err(Lz4Error::Short),
        Ok(_) => Ok(content),
        Err(error) if error.kind() == io::ErrorKind::WriteZero => Err(Lz4Error::Short),
        Err(error) => Err(Lz4Error::Damaged(error.to_string())),
    }
}

/// Returns whether all bytes were used, and a frame's end was the last of them. The decoder also stops at an empty block: only
/// after an end, it takes the bytes that begin a frame for that, and otherwise for the size of a block, which is too large.
fn is_at_end(decoder: &mut FrameDecoder<Unread<'_>>) -> bool {
    let is_used = decoder.get_ref().0.is_empty();
    *decoder.get_mut() = Unread(&MAGIC);
    is_used && decoder.read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WriteZero)
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
    use lz4_flex::frame::BlockSize;
    use proptest::prelude::*;

    use super::*;

    /// The largest block of a frame.
    const BLOCK: usize = 4 << 20;

    fn packed(content: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        compress(content, &mut frame);
        frame
    }

    fn noise(len: usize) -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    #[test]
    fn contents_of_any_length_round_trip() {
        for content in
            [vec![], vec![7], vec![0; 100_000], noise(70_000), noise(BLOCK + 1), [vec![1; BLOCK], noise(9)].concat()]
        {
            for limit in [content.len(), usize::MAX] {
                assert!(decompress(&packed(&content), limit).unwrap() == content, "{} bytes", content.len());
            }
        }
    }

    #[test]
    fn an_empty_block_or_bytes_after_the_end_are_no_end() {
        let frame = packed(b"some text, some text, some text");
        let end = frame.len() - 4;
        let empty = 0x8000_0000u32.to_le_bytes();
        for cut in [[&frame[..end], &empty].concat(), [&frame[..end], &empty, &frame[end..]].concat()] {
            assert_eq!(decompress(&cut, 99), Err(Lz4Error::Short));
        }
        assert_eq!(decompress(&[&frame[..], &frame].concat(), 99), Err(Lz4Error::Short));
    }

    /// The frames are those of `lz4.frame` by default, and with all checksums.
    #[test]
    fn linked_blocks_and_checksums_are_read() {
        let info = FrameInfo::new().block_mode(BlockMode::Linked).block_size(BlockSize::Max64KB);
        let info = info.block_checksums(true).content_checksum(true);
        let content = noise(40_000).repeat(5);
        let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
        encoder.write_all(&content).unwrap();
        let mut frame = encoder.finish().unwrap();
        assert!(decompress(&frame, content.len()).unwrap() == content);
        let limit = content.len() - 1;
        assert_eq!(decompress(&frame, limit), Err(Lz4Error::TooLarge { limit }));
        let last = frame.len() - 1;
        frame[last] ^= 1;
        assert_eq!(decompress(&frame, content.len()), Err(Lz4Error::Damaged("ContentChecksumError".into())));
    }

    #[test]
    fn a_frame_says_what_is_wrong_with_it() {
        let frame = packed(b"some text, some text, some text");
        assert_eq!(decompress(b"", 9), Err(Lz4Error::NoFrame));
        assert_eq!(decompress(b"PK\x03\x04 and so on", 9), Err(Lz4Error::NoFrame));
        for len in 4..frame.len() {
            assert_eq!(decompress(&frame[..len], 99), Err(Lz4Error::Short), "{len}");
        }
        let mut other = frame;
        other[6] ^= 1;
        assert_eq!(decompress(&other, 99), Err(Lz4Error::Damaged("HeaderChecksumError".into())));
    }

    proptest! {
        #[test]
        fn damaged_frames_do_no_harm(content in prop::collection::vec(0u8..3, 0..300), at in 0usize..400, byte: u8) {
            let mut frame = packed(&content);
            let at = at % frame.len();
            frame[at] = byte;
            if let Ok(read) = decompress(&frame, 400) {
                prop_assert!(read.len() <= 400);
            }
        }
    }
}
