//! The worker protocol over a process's pipes: each frame is preceded by its length, 4 bytes, little-endian.

use std::io::{self, ErrorKind, Read, Write};

use rollmesh_core::protocol::MAX_FRAME_BYTES;
use serde::{Serialize, de::DeserializeOwned};

/// Maximum size in bytes of the JSON that a process reads first: a run's description.
const MAX_JSON_BYTES: u32 = 16 << 20;

/// Writes a frame.
pub(crate) fn write_frame(mut to: impl Write, frame: &[u8]) -> io::Result<()> {
    let len = u32::try_from(frame.len()).map_err(|_| ErrorKind::InvalidInput)?;
    to.write_all(&len.to_le_bytes())?;
    to.write_all(frame)?;
    to.flush()
}

/// Reads a frame.
pub(crate) fn read_frame(from: impl Read) -> io::Result<Vec<u8>> {
    read_at_most(from, MAX_FRAME_BYTES)
}

fn read_at_most(mut from: impl Read, max: u32) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > max {
        let error = format!("a frame of {len} bytes is longer than the {max} that are read");
        return Err(io::Error::new(ErrorKind::InvalidData, error));
    }
    // Memory grows with the bytes received, not with the announced length.
    let mut frame = Vec::new();
    from.take(len.into()).read_to_end(&mut frame)?;
    if frame.len() < len as usize { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(frame) }
}

/// Writes a value as JSON.
pub(crate) fn write_json(to: impl Write, value: &impl Serialize) -> io::Result<()> {
    write_frame(to, &serde_json::to_vec(value)?)
}

/// Reads a value from JSON.
pub(crate) fn read_json<T: DeserializeOwned>(from: impl Read) -> io::Result<T> {
    Ok(serde_json::from_slice(&read_at_most(from, MAX_JSON_BYTES)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_one_by_one_and_whole() {
        let mut pipe = Vec::new();
        write_frame(&mut pipe, &[7; 200_000]).unwrap();
        write_json(&mut pipe, &"second").unwrap();
        let mut from = &pipe[..];
        assert_eq!(read_frame(&mut from).unwrap(), [7; 200_000]);
        assert_eq!(read_json::<String>(&mut from).unwrap(), "second");
        assert_eq!(read_frame(from).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(read_frame(&pipe[..200_003]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let long = (MAX_FRAME_BYTES + 1).to_le_bytes();
        assert_eq!(read_frame(&long[..]).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
