//! Frames of the protocol between ranks. Every length is checked against the limit of its kind before it is used.

use std::io::{self, Read, Write};

use rollmesh_core::{policy::AllReduceError, worker::DataParallelError};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Maximum size of a piece of a message in bytes.
pub(super) const PIECE_BYTES: usize = 256 << 10;
/// Maximum size of a text in bytes.
const TEXT_BYTES: usize = 1 << 10;
/// Maximum size of a call's step name in bytes.
const STEP_BYTES: usize = 256;
/// Maximum size of what comes with a text in bytes.
const NUMBERS_BYTES: usize = 32;
const HEADER_BYTES: usize = 5;

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

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Frame {
    Alive,
    Welcome,
    Refused(DataParallelError),
    Begin(Begin),
    Data(Vec<u8>),
    Over(AllReduceError),
    Leave,
}

/// Why reading a frame failed.
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
            0 | 1 | 6 => 0,
            2 | 5 => NUMBERS_BYTES + TEXT_BYTES,
            3 => NUMBERS_BYTES + STEP_BYTES,
            4 => PIECE_BYTES,
            _ => return Err(FrameError::Bad("a frame of an unknown kind")),
        };
        if length > most {
            return Err(FrameError::Bad("a frame that is too long"));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload)?;
        let frame = match kind {
            0 => Some(Self::Alive),
            1 => Some(Self::Welcome),
            2 => decode(&payload).map(|error| Self::Refused(with_reason(error, printable))),
            3 => decode::<Begin>(&payload)
                .filter(|begin| begin.weight.is_finite() && begin.weight >= 0.0)
                .map(|begin| Self::Begin(Begin { step: printable(&begin.step), ..begin })),
            4 => return Ok(Self::Data(payload)),
            5 => decode(&payload).map(|error| Self::Over(over_with_reason(error, printable))),
            _ => Some(Self::Leave),
        };
        frame.ok_or(FrameError::Bad("a frame without meaning"))
    }

    /// Writes the frame with a single call.
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let text = |text: &str| cut(text, TEXT_BYTES).to_owned();
        let (kind, payload) = match self {
            Self::Alive => (0, Vec::new()),
            Self::Welcome => (1, Vec::new()),
            Self::Refused(error) => (2, encode(&with_reason(error.clone(), text))?),
            Self::Begin(begin) => (3, encode(begin)?),
            Self::Data(data) => return to.write_all(&piece(data.len(), |bytes| bytes.copy_from_slice(data))),
            Self::Over(error) => (5, encode(&over_with_reason(error.clone(), text))?),
            Self::Leave => (6, Vec::new()),
        };
        to.write_all(&framed(kind, payload.len(), |bytes| bytes.copy_from_slice(&payload)))
    }
}

/// Returns a frame with a piece of a message; `write` fills in its payload.
pub(super) fn piece(length: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
    framed(4, length, write)
}

fn framed(kind: u8, length: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES + length];
    bytes[0] = kind;
    bytes[1..HEADER_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
    write(&mut bytes[HEADER_BYTES..]);
    bytes
}

impl Begin {
    /// Returns a step's name as it is sent, cut to its maximum length.
    pub(super) fn step(text: &str) -> String {
        cut(text, STEP_BYTES).to_owned()
    }
}

/// Returns the longest prefix of whole characters within the limit.
fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    &text[..end.unwrap_or(0)]
}

/// Returns a peer's text without control characters, so that it is safe for a terminal.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn encode(payload: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_allocvec(payload).map_err(io::Error::other)
}

fn decode<T: DeserializeOwned>(payload: &[u8]) -> Option<T> {
    match postcard::take_from_bytes(payload) {
        Ok((read, [])) => Some(read),
        _ => None,
    }
}

/// Changes an error's reason. One that is never sent becomes the loss of rank 0, for its reason.
fn with_reason(mut error: DataParallelError, change: impl Fn(&str) -> String) -> DataParallelError {
    use DataParallelError as Error;
    match &mut error {
        Error::Policies { reason, .. } | Error::Lost { reason, .. } => *reason = change(reason),
        Error::Rank { .. } | Error::Version { .. } | Error::Token => {}
        Error::OtherWorldSize { .. } | Error::Duplicate(_) => {}
        unsent => return Error::Lost { rank: 0, reason: change(&unsent.to_string()) },
    }
    error
}

/// Does the same for a group's end. What is never sent becomes rank 0's reason for giving up.
fn over_with_reason(mut error: AllReduceError, change: impl Fn(&str) -> String) -> AllReduceError {
    use AllReduceError as Error;
    match &mut error {
        Error::Lost { reason, .. }
        | Error::GaveUp { reason, .. }
        | Error::OutOfStep { reason, .. }
        | Error::Protocol { reason, .. } => *reason = change(reason),
        Error::Left { .. } | Error::Diverged { .. } => {}
        Error::TooLarge { .. } => return Error::GaveUp { rank: 0, reason: change(&error.to_string()) },
    }
    error
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
        assert_eq!(there_and_back(&lost("ü".repeat(TEXT_BYTES))), lost("ü".repeat(TEXT_BYTES / 2)));
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
