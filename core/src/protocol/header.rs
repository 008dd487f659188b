//! The eight-byte header of every frame.
//!
//! ```text
//! 0..2 magic "RM" | 2 header version | 3 flags | 4 kind | 5..8 reserved
//! ```
//! Flags and reserved bytes are written as zero and ignored when read: a later version may give them
//! a meaning that an older reader does not need.

use super::{DecodeError, Kind};

/// Magic bytes of every frame.
pub const MAGIC: [u8; 2] = *b"RM";
/// Version of the header's layout.
pub const HEADER_VERSION: u8 = 1;
/// Length of the header in bytes.
pub const HEADER_BYTES: usize = 8;

/// Encodes the header of a message of this kind.
pub(super) const fn write(kind: Kind) -> [u8; HEADER_BYTES] {
    [MAGIC[0], MAGIC[1], HEADER_VERSION, 0, kind.to_wire(), 0, 0, 0]
}

/// Splits a frame into its kind and its body.
pub(super) fn read(frame: &[u8]) -> Result<(Kind, &[u8]), DecodeError> {
    let Some((header, body)) = frame.split_first_chunk::<HEADER_BYTES>() else {
        return Err(DecodeError::Short { bytes: frame.len() });
    };
    let [m0, m1, version, _flags, kind, ..] = *header;
    if [m0, m1] != MAGIC {
        return Err(DecodeError::Magic([m0, m1]));
    }
    if version != HEADER_VERSION {
        return Err(DecodeError::HeaderVersion(version));
    }
    Ok((Kind::try_from(kind)?, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    #[test]
    fn the_header_is_these_bytes() {
        assert_eq!(write(Kind::FragmentUpload), [0x52, 0x4d, 0x01, 0x00, 0x17, 0x00, 0x00, 0x00]);
    }

    #[test]
    fn unknown_flags_and_reserved_bytes_are_ignored() {
        let frame = [0x52, 0x4d, 0x01, 0xff, 0x04, 0xaa, 0xbb, 0xcc, 0x00];
        assert_eq!(read(&frame), Ok((Kind::Goodbye, &[0x00u8][..])));
    }

    #[test]
    fn errors_say_what_is_wrong() {
        let cases: [(&[u8], &str); 4] = [
            (b"RM\x01", "a frame of 3 bytes is shorter than its header"),
            (b"GET / HT", "a frame starts with [71, 69], not with \"RM\": this is no rollmesh peer"),
            (b"RM\x02\0\x01\0\0\0", "header version 2 is not 1: update the older side"),
            (b"RM\x01\0\xee\0\0\0", "0xee is no kind of message that this version knows"),
        ];
        for (frame, message) in cases {
            assert_eq!(read(frame).unwrap_err().to_string(), message);
        }
    }
}
