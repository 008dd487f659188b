//! Frames of the protocol between ranks. Every length is checked against the limit of its kind before it is used.

use std::io::{self, Read, Write};

use rollmesh_core::{policy::AllReduceError, worker::DataParallelError};

/// Maximum size of a piece of a message in bytes.
pub(super) const PIECE_BYTES: usize = 256 << 10;
/// Maximum size of a text in bytes.
const TEXT_BYTES: usize = 1 << 10;
/// Maximum size of a call's step name in bytes.
const STEP_BYTES: usize = 256;
const HEADER_BYTES: usize = 5;

/// The operation of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Reduce = 0,
    Gather = 1,
}

/// Announces a call, or a result of unknown length.
#[derive(Clone, Debug, PartialEq)]
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
            2 => 9 + TEXT_BYTES,
            3 => 25 + STEP_BYTES,
            4 => PIECE_BYTES,
            5 => 5 + TEXT_BYTES,
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
            2 => refusal(&payload).map(Self::Refused),
            3 => begin(&payload).map(Self::Begin),
            4 => return Ok(Self::Data(payload)),
            5 => over(&payload).map(Self::Over),
            _ => Some(Self::Leave),
        };
        frame.ok_or(FrameError::Bad("a frame without meaning"))
    }

    /// Writes the frame with a single call.
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[0] = match self {
            Self::Alive => 0,
            Self::Welcome => 1,
            Self::Refused(error) => {
                let (kind, numbers, text) = of_refusal(error);
                bytes.push(kind);
                numbers.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
                bytes.extend(cut(&text, TEXT_BYTES).as_bytes());
                2
            }
            Self::Begin(Begin { number, action, weight, bytes: length, step }) => {
                bytes.extend(number.to_le_bytes());
                bytes.push(*action as u8);
                bytes.extend(weight.to_le_bytes());
                bytes.extend(length.to_le_bytes());
                bytes.extend(cut(step, STEP_BYTES).as_bytes());
                3
            }
            Self::Data(data) => return to.write_all(&piece(data.len(), |bytes| bytes.copy_from_slice(data))),
            Self::Over(error) => {
                let (kind, rank, text) = of_over(error);
                bytes.push(kind);
                bytes.extend(rank.to_le_bytes());
                bytes.extend(cut(&text, TEXT_BYTES).as_bytes());
                5
            }
            Self::Leave => 6,
        };
        let length = (bytes.len() - HEADER_BYTES) as u32;
        bytes[1..HEADER_BYTES].copy_from_slice(&length.to_le_bytes());
        to.write_all(&bytes)
    }
}

/// Returns a frame with a piece of a message; `write` fills in its payload.
pub(super) fn piece(length: usize, write: impl FnOnce(&mut [u8])) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES + length];
    bytes[0] = 4;
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

/// Converts a peer's text, replacing control characters so that it is safe for a terminal.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn begin(payload: &[u8]) -> Option<Begin> {
    let (number, rest) = payload.split_first_chunk()?;
    let (action, rest) = rest.split_first()?;
    let (weight, rest) = rest.split_first_chunk()?;
    let (bytes, step) = rest.split_first_chunk()?;
    let action = match action {
        0 => Action::Reduce,
        1 => Action::Gather,
        _ => return None,
    };
    let weight = Some(f64::from_le_bytes(*weight)).filter(|weight| weight.is_finite() && *weight >= 0.0)?;
    let (number, bytes) = (u64::from_le_bytes(*number), u64::from_le_bytes(*bytes));
    Some(Begin { number, action, weight, bytes, step: text(step) })
}

fn of_over(error: &AllReduceError) -> (u8, u32, String) {
    match error {
        AllReduceError::Lost { rank, reason } => (1, *rank, reason.clone()),
        AllReduceError::GaveUp { rank, reason } => (2, *rank, reason.clone()),
        AllReduceError::Left { rank } => (3, *rank, String::new()),
        AllReduceError::OutOfStep { rank, reason } => (4, *rank, reason.clone()),
        AllReduceError::Diverged { rank } => (5, *rank, String::new()),
        AllReduceError::Protocol { rank, reason } => (6, *rank, reason.clone()),
        // It is sent as a rank's reason for giving up.
        AllReduceError::TooLarge { .. } => (2, 0, error.to_string()),
    }
}

fn over(payload: &[u8]) -> Option<AllReduceError> {
    let (kind, rest) = payload.split_first()?;
    let (rank, reason) = rest.split_first_chunk()?;
    let (rank, reason) = (u32::from_le_bytes(*rank), text(reason));
    Some(match kind {
        1 => AllReduceError::Lost { rank, reason },
        2 => AllReduceError::GaveUp { rank, reason },
        3 => AllReduceError::Left { rank },
        4 => AllReduceError::OutOfStep { rank, reason },
        5 => AllReduceError::Diverged { rank },
        6 => AllReduceError::Protocol { rank, reason },
        _ => return None,
    })
}

fn of_refusal(error: &DataParallelError) -> (u8, [u32; 2], String) {
    match error {
        DataParallelError::Version { rank, found, .. } => (1, [*rank, (*found).into()], String::new()),
        DataParallelError::Token => (2, [0, 0], String::new()),
        DataParallelError::OtherWorldSize { rank, found, wanted } => (3, [*rank, *found], wanted.to_string()),
        DataParallelError::Duplicate(rank) => (4, [*rank, 0], String::new()),
        DataParallelError::Policies { rank, reason } => (5, [*rank, 0], reason.clone()),
        DataParallelError::Rank { rank, world_size } => (6, [*rank, *world_size], String::new()),
        DataParallelError::Lost { rank, reason } => (7, [*rank, 0], reason.clone()),
        other => (7, [0, 0], other.to_string()),
    }
}

fn refusal(payload: &[u8]) -> Option<DataParallelError> {
    let (kind, rest) = payload.split_first()?;
    let (a, rest) = rest.split_first_chunk()?;
    let (b, reason) = rest.split_first_chunk()?;
    let (a, b, reason) = (u32::from_le_bytes(*a), u32::from_le_bytes(*b), text(reason));
    Some(match kind {
        1 => DataParallelError::Version { rank: a, found: u16::try_from(b).ok()?, wanted: super::VERSION },
        2 => DataParallelError::Token,
        3 => DataParallelError::OtherWorldSize { rank: a, found: b, wanted: reason.parse().ok()? },
        4 => DataParallelError::Duplicate(a),
        5 => DataParallelError::Policies { rank: a, reason },
        6 => DataParallelError::Rank { rank: a, world_size: b },
        7 => DataParallelError::Lost { rank: a, reason },
        _ => return None,
    })
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
