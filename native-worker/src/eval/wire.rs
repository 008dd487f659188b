//! Messages over what blocks: pipes of processes, sockets, ways through a hub.

use std::io::{self, ErrorKind, Read, Write};

use rollmesh_core::eval_worker::{FrameLimits, FrameReader, frame_start};
use serde::{Serialize, de::DeserializeOwned};

/// So much is read at once at most.
const PIECE: usize = 64 << 10;

/// Sends a message; nothing of one that nobody would read.
pub(super) fn send(mut to: impl Write, message: &impl Serialize, bytes: &[u8]) -> io::Result<()> {
    let start = frame_start(message, bytes).map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
    to.write_all(&start)?;
    to.write_all(bytes)?;
    to.flush()
}

/// The next message.
pub(super) fn receive<M: DeserializeOwned>(from: impl Read) -> io::Result<(M, Vec<u8>)> {
    receive_at_most(from, FrameLimits::MAX)
}

/// As [`receive`], from somebody who has no more than this to say.
pub(super) fn receive_at_most<M: DeserializeOwned>(
    mut from: impl Read,
    limits: FrameLimits,
) -> io::Result<(M, Vec<u8>)> {
    let invalid = |error| io::Error::new(ErrorKind::InvalidData, error);
    let mut reader = FrameReader::new(limits);
    let mut piece = [0; PIECE];
    loop {
        if let Some(message) = reader.take().map_err(invalid)? {
            return Ok(message);
        }
        let missing = reader.missing().min(PIECE);
        match from.read(piece.get_mut(..missing).unwrap_or_default()) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => _ = reader.push(piece.get(..read).unwrap_or_default()).map_err(invalid)?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_one_by_one_and_whole() {
        let mut pipe = Vec::new();
        send(&mut pipe, &"first", &[7; 200_000]).unwrap();
        let end = pipe.len();
        send(&mut pipe, &"second", b"").unwrap();
        let mut from = &pipe[..];
        assert_eq!(receive(&mut from).unwrap(), (String::from("first"), vec![7; 200_000]));
        assert_eq!(from.len(), pipe.len() - end, "nothing of the next one is taken");
        assert_eq!(receive(&mut from).unwrap(), (String::from("second"), vec![]));
        let cut = receive::<String>(&pipe[..end - 1]).unwrap_err();
        assert_eq!(cut.kind(), ErrorKind::UnexpectedEof);
        let short = FrameLimits { text: 1024, bytes: 0 };
        assert_eq!(receive_at_most::<String>(&pipe[..], short).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
