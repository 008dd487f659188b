//! Frames of the protocol between ranks. Every length is checked against the limit of its kind before it is used.

use std::io::{self, Read, Write};

use rollmesh_core::{encoding, policy::AllReduceError, protocol::printable, worker::DataParallelError};
use serde::{Deserialize, Serialize};

/// Maximum size of a piece of a message in bytes.
pub(super) const PIECE_BYTES: usize = 256 << 10;
/// Maximum size of any other frame in bytes, whose text is [cut](printable).
const CONTROL_BYTES: usize = 4 << 10;
const HEADER_BYTES: usize = 5;
/// The first byte of a frame in postcard's encoding.
const CONTROL: u8 = 0;
/// The first byte of a piece of a message.
const DATA: u8 = 1;

/// The operation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Action {
    Reduce,
    Gather,
}

/// Announces a call, or a result of unknown length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Begin {
    /// The number of the call, from 0.
    pub(super) number: u64,
    pub(super) action: Action,
    pub(super) weight: f64,
    /// Length of the message that follows in pieces.
    pub(super) bytes: u64,
    pub(super) step: String,
}

/// A frame. The order is part of the protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Frame {
    Alive,
    Welcome,
    Refused(DataParallelError),
    Begin(Begin),
    Over(AllReduceError),
    Leave,
    /// A piece of a message, which is sent as it is.
    #[serde(skip)]
    Data(Vec<u8>),
}

/// An error of reading a frame.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Bad(&'static str),
}

impl Frame {
    /// Reads the next frame.
    pub(super) fn read(from: &mut impl Read) -> Result<Self, FrameError> {
        let mut header = [0; HEADER_BYTES];
        from.read_exact(&mut header)?;
        let [kind, length @ ..] = header;
        let length = u32::from_le_bytes(length) as usize;
        let most = match kind {
            CONTROL => CONTROL_BYTES,
            DATA => PIECE_BYTES,
            _ => return Err(FrameError::Bad("a frame of an unknown kind")),
        };
        if length > most {
            return Err(FrameError::Bad("a frame that is too long"));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload)?;
        if kind == DATA {
            return Ok(Self::Data(payload));
        }
        let is_sound =
            |frame: &Self| !matches!(frame, Self::Begin(begin) if !(0.0..f64::INFINITY).contains(&begin.weight));
        let frame = encoding::decode(&payload).filter(is_sound);
        Ok(frame.ok_or(FrameError::Bad("a frame without meaning"))?.with_printable_text())
    }

    /// Writes the frame with a single call.
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        if let Self::Data(data) = self {
            return to.write_all(&piece(data.len(), |bytes| bytes.copy_from_slice(data)));
        }
        let payload = postcard::to_allocvec(&self.clone().with_printable_text()).map_err(io::Error::other)?;
        to.write_all(&framed(CONTROL, payload.len(), |bytes| bytes.copy_from_slice(&payload)))
    }

    /// Makes its text safe for a terminal, and short.
    fn with_printable_text(mut self) -> Self {
        use AllReduceError as Over;
        use DataParallelError as Refused;
        let text = match &mut self {
            Self::Refused(Refused::Policies { reason, .. } | Refused::Lost { reason, .. })
            | Self::Over(
                Over::Lost { reason, .. }
                | Over::GaveUp { reason, .. }
                | Over::OutOfStep { reason, .. }
                | Over::Protocol { reason, .. },
            ) => reason,
            Self::Begin(begin) => &mut begin.step,
            _ => return self,
        };
        *text = printable(text);
        self
    }
}

/// Returns a frame with a piece of a message; `write` fills in its payload.
pub(super) fn piece(length: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
    framed(DATA, length, write)
}

fn framed(kind: u8, length: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES + length];
    bytes[0] = kind;
    bytes[1..HEADER_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
    write(&mut bytes[HEADER_BYTES..]);
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn there_and_back(frame: &Frame) -> Frame {
        let mut bytes = Vec::new();
        frame.write(&mut bytes).unwrap();
        Frame::read(&mut &bytes[..]).unwrap()
    }

    #[test]
    fn frames_survive_the_round_trip() {
        let reason = || "no \"reason\" ü".to_owned();
        let begin = Begin { number: 7, action: Action::Gather, weight: 0.5, bytes: 9, step: "a step".into() };
        let frames = [
            Frame::Alive,
            Frame::Welcome,
            Frame::Leave,
            Frame::Begin(begin),
            Frame::Data(vec![1, 2, 3]),
            Frame::Over(AllReduceError::Lost { rank: 3, reason: reason() }),
            Frame::Over(AllReduceError::GaveUp { rank: 3, reason: reason() }),
            Frame::Over(AllReduceError::Left { rank: 4 }),
            Frame::Over(AllReduceError::OutOfStep { rank: 4, reason: reason() }),
            Frame::Over(AllReduceError::Diverged { rank: 5 }),
            Frame::Over(AllReduceError::Protocol { rank: 5, reason: reason() }),
            Frame::Refused(DataParallelError::Version { rank: 1, found: 9, wanted: crate::data_parallel::VERSION }),
            Frame::Refused(DataParallelError::Token),
            Frame::Refused(DataParallelError::OtherWorldSize { rank: 1, found: 3, wanted: 2 }),
            Frame::Refused(DataParallelError::Duplicate(1)),
            Frame::Refused(DataParallelError::Policies { rank: 2, reason: reason() }),
            Frame::Refused(DataParallelError::Rank { rank: 2, world_size: 2 }),
            Frame::Refused(DataParallelError::Lost { rank: 2, reason: reason() }),
        ];
        for frame in frames {
            assert_eq!(there_and_back(&frame), frame);
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let lost = |reason: String| Frame::Over(AllReduceError::Lost { rank: 1, reason });
        assert_eq!(there_and_back(&lost("ü".repeat(1024))), lost("ü".repeat(512)));
        assert_eq!(there_and_back(&lost("\u{1b}[2J\n".into())), lost(" [2J ".into()));
    }

    #[test]
    fn lengths_are_not_believed() {
        for kind in 0..=255u8 {
            let mut bytes = vec![kind];
            bytes.extend(u32::MAX.to_le_bytes());
            assert!(matches!(Frame::read(&mut &bytes[..]), Err(FrameError::Bad(_))), "{kind}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), kind in 0..8u8, cut in 0..40u32) {
            let _ = Frame::read(&mut &bytes[..]);
            let framed = [&[kind][..], &cut.to_le_bytes(), &bytes].concat();
            let _ = Frame::read(&mut &framed[..]);
        }
    }
}
