//! Undoes the filters of chunks.

use std::io::Read as _;

use flate2::read::ZlibDecoder;

use super::{Hdf5Error, cursor::Cursor};

/// A filter that was applied to chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    Deflate,
    Shuffle,
    Fletcher32,
    Lzf,
}

/// Reads the filters in the order of their application.
pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Vec<Filter>, Hdf5Error> {
    let version = cursor.u8()?;
    let count = cursor.u8()?;
    cursor.skip(if version == 1 { 6 } else { 0 })?;
    let mut filters = Vec::new();
    for _ in 0..count {
        let id = cursor.u16()?;
        let name = if version == 1 || id >= 256 { usize::from(cursor.u16()?) } else { 0 };
        cursor.skip(2)?;
        let values = usize::from(cursor.u16()?);
        cursor.skip(if version == 1 { name.next_multiple_of(8) } else { name })?;
        cursor.skip(4 * values)?;
        cursor.skip(if version == 1 && values % 2 == 1 { 4 } else { 0 })?;
        filters.push(match id {
            1 => Filter::Deflate,
            2 => Filter::Shuffle,
            3 => Filter::Fletcher32,
            32000 => Filter::Lzf,
            id => return Err(Hdf5Error::Unsupported(format!("filter {id} of chunks"))),
        });
    }
    Ok(filters)
}

/// Undoes the filters, the last one first, except those in the mask. The result has at most `bytes` bytes.
pub(super) fn decode(
    filters: &[Filter],
    mask: u32,
    mut data: Vec<u8>,
    bytes: usize,
    element: usize,
) -> Result<Vec<u8>, Hdf5Error> {
    for (place, filter) in filters.iter().enumerate().rev() {
        if place < 32 && mask & 1 << place != 0 {
            continue;
        }
        data = match filter {
            Filter::Deflate => inflate(&data, bytes + 4)?,
            Filter::Shuffle => unshuffle(&data, element),
            Filter::Fletcher32 => verified(data)?,
            Filter::Lzf => unlzf(&data, bytes)?,
        };
    }
    Ok(data)
}

/// Inflates with memory in proportion to the actual content: a small chunk that declares a large size costs nothing.
fn inflate(data: &[u8], most: usize) -> Result<Vec<u8>, Hdf5Error> {
    let mut out = Vec::with_capacity(most.min(3 * data.len() + 64));
    let read = ZlibDecoder::new(data).take(most as u64 + 1).read_to_end(&mut out);
    read.map_err(|_| Hdf5Error::Corrupt("a chunk that cannot be inflated"))?;
    if out.len() > most {
        return Err(Hdf5Error::Corrupt("a chunk of a wrong size"));
    }
    Ok(out)
}

/// Undoes the shuffle filter, which stores the first bytes of all elements together, then all second ones, ….
fn unshuffle(data: &[u8], element: usize) -> Vec<u8> {
    let count = data.len() / element.max(1);
    if element <= 1 {
        return data.to_vec();
    }
    let mut out = vec![0; data.len()];
    for (byte, plane) in data.chunks_exact(count.max(1)).take(element).enumerate() {
        for (to, from) in out.chunks_exact_mut(element).zip(plane) {
            if let Some(to) = to.get_mut(byte) {
                *to = *from;
            }
        }
    }
    let whole = count * element;
    if let (Some(to), Some(from)) = (out.get_mut(whole..), data.get(whole..)) {
        to.copy_from_slice(from);
    }
    out
}

/// Removes the checksum, which must be correct.
fn verified(mut data: Vec<u8>) -> Result<Vec<u8>, Hdf5Error> {
    let end = data.len().checked_sub(4).ok_or(Hdf5Error::Corrupt("a chunk without its checksum"))?;
    let sum = data.split_off(end);
    let (mut first, mut second) = (0u32, 0u32);
    let mut add = |word: u32| {
        first = (first + word) % 65535;
        second = (second + first) % 65535;
    };
    let (words, rest) = data.as_chunks::<2>();
    words.iter().for_each(|word| add(u16::from_be_bytes(*word).into()));
    rest.iter().for_each(|byte| add(u32::from(*byte) << 8));
    // 65535 equals 0 here, and the library writes either.
    let same = |a: u32, b: u32| a % 65535 == b % 65535;
    let stored = u32::from_le_bytes(sum.as_slice().try_into().unwrap_or_default());
    if !same(stored & 0xffff, first) || !same(stored >> 16, second) {
        return Err(Hdf5Error::Corrupt("a chunk whose checksum is wrong"));
    }
    Ok(data)
}

/// Decompresses Marc Lehmann's LZF: literals, and copies of earlier bytes.
fn unlzf(mut data: &[u8], most: usize) -> Result<Vec<u8>, Hdf5Error> {
    let wrong = Hdf5Error::Corrupt("a chunk that cannot be decompressed");
    let mut out = Vec::with_capacity(most.min(3 * data.len() + 64));
    while let Some((&control, rest)) = data.split_first() {
        data = rest;
        if control < 32 {
            let Some((literals, rest)) = data.split_at_checked(usize::from(control) + 1) else { return Err(wrong) };
            out.extend_from_slice(literals);
            data = rest;
        } else {
            let mut len = usize::from(control >> 5);
            if len == 7 {
                let Some((&more, rest)) = data.split_first() else { return Err(wrong) };
                (len, data) = (len + usize::from(more), rest);
            }
            let Some((&low, rest)) = data.split_first() else { return Err(wrong) };
            data = rest;
            let back = (usize::from(control & 31) << 8 | usize::from(low)) + 1;
            let Some(start) = out.len().checked_sub(back) else { return Err(wrong) };
            for at in start..start + len + 2 {
                out.push(out.get(at).copied().unwrap_or_default());
            }
        }
        if out.len() > most {
            return Err(wrong);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_in_their_order() {
        assert_eq!(unshuffle(&[1, 3, 5, 2, 4, 6, 7], 2), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(unshuffle(&[1, 2], 4), [1, 2]);
    }

    #[test]
    fn copies_may_overlap_themselves() {
        // A literal `ab`, then 5 bytes from 2 before.
        assert_eq!(unlzf(&[1, b'a', b'b', 3 << 5, 1], 100).unwrap(), b"abababa");
        assert!(unlzf(&[3 << 5, 1], 100).is_err());
        assert!(unlzf(&[1, b'a', b'b', 3 << 5, 1], 6).is_err());
    }

    #[test]
    fn a_wrong_checksum_is_an_error() {
        // 0x0102 + 0x0300 and 0x0102 + 0x0402.
        assert_eq!(verified(vec![1, 2, 3, 0x02, 0x04, 0x04, 0x05]).unwrap(), [1, 2, 3]);
        assert!(verified(vec![1, 2, 4, 0x02, 0x04, 0x04, 0x05]).is_err());
    }
}
