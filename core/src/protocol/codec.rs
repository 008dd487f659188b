//! Encodes and decodes a [`Message`].

use serde::Deserialize;

use super::{
    Kind, Message, UnknownValue,
    header::{self, HEADER_BYTES},
    message::ChunkRef,
};
use crate::prelude::*;

/// The reason why bytes are not a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The header is incomplete.
    #[error("a frame of {bytes} bytes is shorter than its header")]
    Short {
        /// Length of the frame.
        bytes: usize,
    },
    /// The magic bytes are wrong, so the peer is not a rollmesh program.
    #[error("a frame starts with {0:?}, not with \"RM\": this is no rollmesh peer")]
    Magic([u8; 2]),
    /// The header has another layout.
    #[error("header version {0} is not {expected}: update the older side", expected = header::HEADER_VERSION)]
    HeaderVersion(u8),
    /// The kind is unknown.
    #[error(transparent)]
    UnknownKind(#[from] UnknownValue),
    /// The body is larger than its kind allows.
    #[error("{kind:?} of {bytes} bytes is larger than the {cap} allowed", cap = kind.body_cap())]
    TooLarge {
        /// Kind of the message.
        kind: Kind,
        /// Length of the body.
        bytes: usize,
    },
    /// The body does not decode as its kind.
    #[error("the body of {kind:?} does not decode")]
    Body {
        /// Kind of the message.
        kind: Kind,
    },
    /// Bytes follow the end of the body.
    #[error("{kind:?} is followed by {bytes} bytes that do not belong to it")]
    TrailingBytes {
        /// Kind of the message.
        kind: Kind,
        /// Number of these bytes.
        bytes: usize,
    },
}

impl Message {
    /// Encodes header and body.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // postcard fails only on sequences of unknown length, which no body has.
        self.write_body(begin(self.kind(), self.usual_bytes())).expect("lengths within bodies are known")
    }

    /// Returns about how many bytes a body needs, and not much less, so that a large one is not moved while it is written.
    fn usual_bytes(&self) -> usize {
        let large = match self {
            Self::Chunk(chunk) => chunk.data.len(),
            Self::WeightsUpdate(update) => update.values.len() + update.names.len() + 12 * update.ranks.len(),
            Self::LeaseGrant(grant) => grant.states.len() + 12 * grant.slots.len(),
            Self::FragmentUpload(upload) => {
                let texts = upload.data.len() + upload.states.len() + upload.episode_returns.len();
                texts + 24 * upload.slots.len() + 6 * upload.cut_ends.len()
            }
            Self::AgentUpload(upload) => {
                let texts = upload.batches.len() + upload.states.len() + upload.episode_returns.len();
                texts + upload.metric_names.len() + 2 * upload.metric_values.len() + 32 * upload.slots.len()
            }
            Self::WorkerSetup(setup) => setup.config.len(),
            Self::Ask(ask) => ask.body.len() + ask.name.len(),
            Self::Infer(infer) => infer.num_bytes(),
            Self::Inferred(inferred) => inferred.outputs.len(),
            Self::Asked(asked) => asked.body.len(),
            Self::Call(call) => call.body.len(),
            Self::CallResult(result) => result.body.len(),
            Self::SlotClip(clip) | Self::EvaluationClip(clip) | Self::BestEvaluationClip(clip) => {
                clip.steps.len() + clip.film.len() + clip.batch.len() + clip.reason.len()
            }
            _ => 0,
        };
        large + 128
    }

    /// Decodes a whole message. Allocates in proportion to the bytes received, not to lengths that they claim.
    ///
    /// # Errors
    /// [`DecodeError`] names what is wrong; no input panics.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (kind, body) = header::read(bytes)?;
        if body.len() > kind.body_cap() as usize {
            return Err(DecodeError::TooLarge { kind, bytes: body.len() });
        }
        match Self::read_body(kind, body) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(DecodeError::TrailingBytes { kind, bytes: rest.len() }),
            Err(_) => Err(DecodeError::Body { kind }),
        }
    }
}

impl<'a> ChunkRef<'a> {
    /// Writes a chunk's frame up to its data, of which `bytes` follow, after `lead` bytes that are not part of the frame.
    pub(super) fn begin(&self, lead: usize, bytes: usize) -> Vec<u8> {
        let mut frame = Vec::with_capacity(lead + HEADER_BYTES + bytes + 32);
        frame.resize(lead, 0);
        frame.extend_from_slice(&header::write(Kind::Chunk));
        let place = (self.stream, self.total, self.offset);
        // A chunk has no sequences of unknown length, see above.
        let mut frame = postcard::to_extend(&place, frame).expect("no sequences");
        push_length(&mut frame, bytes);
        frame
    }

    /// Decodes the body of a chunk.
    pub(super) fn decode(body: &'a [u8]) -> Result<Self, DecodeError> {
        decode_body(Kind::Chunk, body)
    }
}

/// Decodes a body that borrows from its bytes.
pub(super) fn decode_body<'a, T: Deserialize<'a>>(kind: Kind, body: &'a [u8]) -> Result<T, DecodeError> {
    if body.len() > kind.body_cap() as usize {
        return Err(DecodeError::TooLarge { kind, bytes: body.len() });
    }
    match postcard::take_from_bytes(body) {
        Ok((read, [])) => Ok(read),
        Ok((_, rest)) => Err(DecodeError::TrailingBytes { kind, bytes: rest.len() }),
        Err(_) => Err(DecodeError::Body { kind }),
    }
}

/// Appends the length prefix of a byte string.
pub(super) fn push_length(frame: &mut Vec<u8>, mut bytes: usize) {
    while bytes >= 0x80 {
        frame.push(bytes as u8 | 0x80);
        bytes >>= 7;
    }
    frame.push(bytes as u8);
}

/// Begins a frame with capacity for its body.
fn begin(kind: Kind, room: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEADER_BYTES + room);
    frame.extend_from_slice(&header::write(kind));
    frame
}

#[cfg(test)]
mod tests {
    use super::{super::message::Chunk, *};

    #[test]
    fn a_chunk_that_is_not_copied_is_the_same_chunk() {
        let chunk = Chunk { stream: 300, total: 9, offset: 2, data: vec![0, 200, 7] };
        let view = ChunkRef { stream: 300, total: 9, offset: 2, data: &[0, 200, 7] };
        let frame = Message::Chunk(chunk).encode();
        assert_eq!([&view.begin(5, 3)[5..], view.data].concat(), frame);
        assert_eq!(ChunkRef::decode(&frame[HEADER_BYTES..]), Ok(view));
        let kind = Kind::Chunk;
        assert_eq!(ChunkRef::decode(&frame[HEADER_BYTES..frame.len() - 1]), Err(DecodeError::Body { kind }));
        let long = [&frame[HEADER_BYTES..], &[1]].concat();
        assert_eq!(ChunkRef::decode(&long), Err(DecodeError::TrailingBytes { kind, bytes: 1 }));
        let bytes = kind.body_cap() as usize + 1;
        assert_eq!(ChunkRef::decode(&vec![0; bytes]), Err(DecodeError::TooLarge { kind, bytes }));
    }
}
