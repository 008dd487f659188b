//! Computes the size of a compressed page's content before memory is allocated for it.
//!
//! The header of a page declares its decompressed size, and the parquet crate allocates that much memory before it reads the
//! page. Most compressed formats consist of sequences whose lengths can be summed without decompression; deflate has to be
//! decompressed for this, into a small window.

use std::io::Read as _;

use flate2::bufread::MultiGzDecoder;
use parquet::basic::Compression;

use crate::lz4::{lz4_block_len, lz4_frame_len};

/// Returns whether a page may decompress to exactly this number of bytes. For Zstandard, only the maximum of [`ZSTD_BLOCK`]
/// bytes per block is known.
pub(super) fn may_hold(codec: Compression, page: &[u8], bytes: usize) -> bool {
    match codec {
        Compression::SNAPPY => snappy(page) == Some(bytes),
        Compression::GZIP(_) => gzip(page, bytes) == Some(bytes),
        Compression::ZSTD(_) => zstd_at_most(page).is_some_and(|most| bytes <= most),
        Compression::LZ4_RAW => lz4_block_len(page) == Ok(bytes),
        Compression::LZ4 => lz4(page) == Some(bytes),
        // These need no memory: the page is uncompressed, or the crate was built without the codec and reports that.
        Compression::UNCOMPRESSED | Compression::BROTLI(_) | Compression::LZO => true,
    }
}

/// Returns whether the crate decompresses the whole page, and only then compares its size with the header's.
pub(super) fn is_open_ended(codec: Compression) -> bool {
    matches!(codec, Compression::GZIP(_) | Compression::LZ4)
}

/// Reads a little-endian number.
fn number<const N: usize>(rest: &mut &[u8]) -> Option<usize> {
    let bytes = take(rest, N)?;
    Some(bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (front, back) = rest.split_at_checked(len)?;
    *rest = back;
    Some(front)
}

/// Sums the lengths of literals and copies, see [the
/// format](https://github.com/google/snappy/blob/main/format_description.txt).
fn snappy(page: &[u8]) -> Option<usize> {
    let start = page.iter().position(|byte| *byte < 128)? + 1;
    let mut rest = page.get(start..)?;
    let mut total = 0usize;
    while !rest.is_empty() {
        let tag = number::<1>(&mut rest)?;
        let (len, offset) = match tag & 3 {
            0 => {
                let len = match tag >> 2 {
                    60 => number::<1>(&mut rest)?,
                    61 => number::<2>(&mut rest)?,
                    62 => number::<3>(&mut rest)?,
                    63 => number::<4>(&mut rest)?,
                    len => len,
                } + 1;
                take(&mut rest, len)?;
                (len, None)
            }
            1 => (4 + (tag >> 2 & 7), Some((tag >> 5) << 8 | number::<1>(&mut rest)?)),
            2 => ((tag >> 2) + 1, Some(number::<2>(&mut rest)?)),
            _ => ((tag >> 2) + 1, Some(number::<4>(&mut rest)?)),
        };
        if offset.is_some_and(|offset| offset == 0 || offset > total) {
            return None;
        }
        total += len;
    }
    Some(total)
}

/// Inflates without keeping the content; none if it exceeds `limit`.
fn gzip(page: &[u8], limit: usize) -> Option<usize> {
    let mut decoder = MultiGzDecoder::new(page);
    let (mut window, mut total) = ([0; 8 << 10], 0);
    loop {
        match decoder.read(&mut window).ok()? {
            0 => return Some(total),
            read => total += read,
        }
        if total > limit {
            return None;
        }
    }
}

/// Maximum size of a Zstandard block's content.
pub(super) const ZSTD_BLOCK: usize = 128 << 10;

/// Sums the maximum sizes of the blocks, see [RFC 8878](https://www.rfc-editor.org/rfc/rfc8878).
fn zstd_at_most(page: &[u8]) -> Option<usize> {
    let (mut rest, mut total) = (page, 0usize);
    while !rest.is_empty() {
        match number::<4>(&mut rest)? {
            0xfd2f_b528 => {}
            0x184d_2a50..=0x184d_2a5f => {
                let len = number::<4>(&mut rest)?;
                take(&mut rest, len)?;
                continue;
            }
            _ => return None,
        }
        let head = number::<1>(&mut rest)?;
        let is_single = head & 32 != 0;
        let content_size = match head >> 6 {
            0 => usize::from(is_single),
            log => 1 << log,
        };
        let dictionary_id = [0, 1, 2, 4][head & 3];
        take(&mut rest, usize::from(!is_single) + dictionary_id + content_size)?;
        loop {
            let block = number::<3>(&mut rest)?;
            let len = block >> 3;
            let (stored, held) = match block >> 1 & 3 {
                0 => (len, len),
                1 => (1, len.min(ZSTD_BLOCK)),
                2 => (len, ZSTD_BLOCK),
                _ => return None,
            };
            take(&mut rest, stored)?;
            total += held;
            if block & 1 != 0 {
                break;
            }
        }
        if head & 4 != 0 {
            take(&mut rest, 4)?;
        }
    }
    Some(total)
}

/// Handles the three historical uses of LZ4 in files, before it got two names: Hadoop's, frames, and plain blocks.
fn lz4(page: &[u8]) -> Option<usize> {
    const FRAME: [u8; 4] = 0x184d_2204u32.to_le_bytes();
    if page.starts_with(&FRAME) {
        return lz4_frame_len(page).ok();
    }
    hadoop(page).or_else(|| lz4_block_len(page).ok())
}

/// Sums blocks in Hadoop's format, where each block follows its sizes.
fn hadoop(mut rest: &[u8]) -> Option<usize> {
    let mut total = 0usize;
    while !rest.is_empty() {
        let sizes = take(&mut rest, 8)?;
        let [held, stored] =
            [sizes.get(..4)?, sizes.get(4..)?].map(|size| size.iter().fold(0, |n, byte| n << 8 | usize::from(*byte)));
        if lz4_block_len(take(&mut rest, stored)?) != Ok(held) {
            return None;
        }
        total += held;
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn lengths_of_snappy() {
        // "abcd" and 64 bytes from 4 back, 11 from 1 back, 5 from 2 back.
        let page = [84, 3 << 2, b'a', b'b', b'c', b'd', 63 << 2 | 2, 4, 0, 7 << 2 | 1, 1, 4 << 2 | 3, 2, 0, 0, 0];
        assert_eq!(snappy(&page), Some(84));
        assert!(may_hold(Compression::SNAPPY, &page, 84) && !may_hold(Compression::SNAPPY, &page, 85));
        for len in [0, 5, 7, 8, 10, 13] {
            assert_eq!(snappy(&page[..len]), None, "{len}");
        }
        let far = |offset: u8| snappy(&[5, 0, b'a', 3 << 2 | 2, offset, 0]);
        assert_eq!([far(0), far(1), far(2)], [None, Some(5), None]);
    }

    #[test]
    fn lengths_of_zstandard() {
        // A header with a window, a stored block of three, one byte 1000 times, and a compressed block.
        let block = |kind: usize, len: usize, last: bool| {
            (len << 3 | kind << 1 | usize::from(last)).to_le_bytes()[..3].to_vec()
        };
        let head = [0x28, 0xb5, 0x2f, 0xfd, 0, 0x58];
        let plain = [&head[..], &block(0, 3, false), b"abc", &block(1, 1000, true), b"z"].concat();
        assert_eq!(zstd_at_most(&plain), Some(1003));
        let packed = [&head[..], &block(2, 4, true), &[0; 4]].concat();
        assert_eq!(zstd_at_most(&packed), Some(ZSTD_BLOCK));
        assert_eq!(zstd_at_most(&[plain.clone(), packed].concat()), Some(1003 + ZSTD_BLOCK));
        assert_eq!(zstd_at_most(&plain[..plain.len() - 1]), None);
    }

    #[test]
    fn lengths_of_deflate_and_of_lz4_in_three_forms() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&[7; 100_000]).unwrap();
        let page = encoder.finish().unwrap();
        assert_eq!((gzip(&page, 100_000), gzip(&page, 99_999)), (Some(100_000), None));

        let block = [0x50, b'a', b'b', b'c', b'd', b'e'];
        assert_eq!(lz4(&block), Some(5));
        let framed = [&[0, 0, 0, 5, 0, 0, 0, 6][..], &block].concat();
        assert_eq!((hadoop(&framed), lz4(&framed.repeat(2))), (Some(5), Some(10)));
        assert_eq!(hadoop(&[&[0, 0, 0, 6, 0, 0, 0, 6][..], &block].concat()), None);
        assert_eq!(lz4(&0x184d_2204u32.to_le_bytes()), None, "a frame without blocks");
    }
}
