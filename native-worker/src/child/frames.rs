//! Messages over a process's pipes: each is preceded by its length, 4 bytes, little-endian.

use std::{
    io::{self, ErrorKind, Read, Write},
    os::fd::AsFd,
    time::Duration,
};

use rollmesh_core::protocol::{Kind, Message};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Serialize, de::DeserializeOwned};

/// Maximum size in bytes of a message: a call or its result with their headers, which are not split here.
const MAX_MESSAGE_BYTES: u32 = Kind::CallResult.body_cap() + 64;
/// Maximum size in bytes of the JSON that a process reads first: a run's description.
const MAX_JSON_BYTES: u32 = 16 << 20;

/// Writes a message of the worker protocol.
pub(crate) fn write_message(to: impl Write, message: &Message) -> io::Result<()> {
    write(to, &message.encode())
}

/// Reads a message of the worker protocol.
pub(crate) fn read_message(from: impl Read) -> io::Result<Message> {
    let bytes = read_at_most(from, MAX_MESSAGE_BYTES)?;
    Message::decode(&bytes).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Writes a value as JSON.
pub(crate) fn write_json(to: impl Write, value: &impl Serialize) -> io::Result<()> {
    write(to, &serde_json::to_vec(value)?)
}

/// Reads a value from JSON.
pub(crate) fn read_json<T: DeserializeOwned>(from: impl Read) -> io::Result<T> {
    Ok(serde_json::from_slice(&read_at_most(from, MAX_JSON_BYTES)?)?)
}

/// Waits until a pipe has something to read or has ended. Returns false if neither happens within the limit.
pub(crate) fn is_readable_within(pipe: impl AsFd, limit: Duration) -> io::Result<bool> {
    let limit = Timespec::try_from(limit).map_err(|_| ErrorKind::InvalidInput)?;
    Ok(poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&limit))? > 0)
}

fn write(mut to: impl Write, bytes: &[u8]) -> io::Result<()> {
    let len = u32::try_from(bytes.len()).map_err(|_| ErrorKind::InvalidInput)?;
    to.write_all(&len.to_le_bytes())?;
    to.write_all(bytes)?;
    to.flush()
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

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::message::Call;

    use super::*;

    #[test]
    fn messages_are_read_one_by_one_and_cut_ones_are_refused() {
        let mut pipe = Vec::new();
        let call = Message::Call(Call { call: 3, body: vec![7; 700_000] });
        write_message(&mut pipe, &call).unwrap();
        write_json(&mut pipe, &"second").unwrap();
        let mut from = &pipe[..];
        assert_eq!(read_message(&mut from).unwrap(), call);
        assert_eq!(read_json::<String>(&mut from).unwrap(), "second");
        assert_eq!(read_message(from).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        assert_eq!(read_message(&pipe[..200_003]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let long = (MAX_MESSAGE_BYTES + 1).to_le_bytes();
        assert_eq!(read_message(&long[..]).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(read_message(&[1, 0, 0, 0, 9][..]).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
