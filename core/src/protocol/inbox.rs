//! What arrives: limits first, then who may say it, then its parts joined, then decoded.

use super::{
    CHUNK_BYTES, DecodeError, INITIAL_CREDIT, Kind, Message, PRE_AUTH_FRAME_BYTES, Role, allow, expect, header,
    header::HEADER_BYTES,
    message::{Chunk, Credit},
};
use crate::prelude::*;

/// Why a frame is not accepted. The connection cannot go on after any of these.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InboxError {
    /// The bytes are no message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A peer without a role says something else than `Hello`, or too much.
    #[error("the first message must be a Hello of at most {PRE_AUTH_FRAME_BYTES} bytes, not {kind:?} of {bytes}")]
    HelloExpected {
        /// What it says.
        kind: Kind,
        /// Length of the frame.
        bytes: usize,
    },
    /// A peer says what its role does not allow.
    #[error("a peer with role {role:?} may not send {kind:?}")]
    NotAllowed {
        /// Role of the peer.
        role: Role,
        /// What it says.
        kind: Kind,
    },
    /// The hub says what it does not say to this role.
    #[error("the hub sent {kind:?}, which a peer with role {role:?} does not expect")]
    NotExpected {
        /// Role of this side.
        role: Role,
        /// What the hub says.
        kind: Kind,
    },
    /// A frame that should have come in chunks.
    #[error("a frame {kind:?} of {bytes} bytes is above {CHUNK_BYTES} and must come in chunks")]
    FrameTooLarge {
        /// What it is.
        kind: Kind,
        /// Length of the frame.
        bytes: usize,
    },
    /// Chunks of something that fits in a frame.
    #[error("{kind:?} may not come in chunks")]
    NotSplittable {
        /// What it is.
        kind: Kind,
    },
    /// A chunk that does not follow the one before.
    #[error("chunk {stream}@{offset} of {total} bytes does not follow: {expected}")]
    ChunkOutOfOrder {
        /// Stream of the chunk.
        stream: u32,
        /// Place of the chunk.
        offset: u32,
        /// Announced length.
        total: u32,
        /// What should have come.
        expected: ChunkPlace,
    },
    /// A chunk of impossible size.
    #[error("a chunk of {bytes} bytes at {offset} does not fit into {total} bytes")]
    ChunkSize {
        /// Its length.
        bytes: usize,
        /// Its place.
        offset: u32,
        /// Announced length of the whole.
        total: u32,
    },
    /// More chunks than there was credit for.
    #[error("a chunk of {bytes} bytes, but only {credit} bytes were granted")]
    CreditExceeded {
        /// Its length.
        bytes: usize,
        /// What was left.
        credit: u32,
    },
}

/// Where a chunk should have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPlace {
    /// A new stream must begin at 0.
    Start,
    /// The stream that is under way goes on here.
    At {
        /// The stream.
        stream: u32,
        /// The place within it.
        offset: u32,
        /// Its announced length.
        total: u32,
    },
}

impl core::fmt::Display for ChunkPlace {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Start => write!(f, "a new stream begins at 0"),
            Self::At { stream, offset, total } => write!(f, "{stream}@{offset} of {total} bytes comes next"),
        }
    }
}

/// Whom this side listens to.
#[derive(Clone, Copy, Debug)]
enum Gate {
    /// Hub: the peer has not shown a token yet.
    Hello,
    /// Hub: to a peer of this role.
    FromPeer(Role),
    /// Peer of this role: to the hub.
    FromHub(Role),
}

/// A split message of which some chunks have arrived.
#[derive(Clone, Debug)]
struct Joining {
    stream: u32,
    total: u32,
    /// Grows as chunks arrive: an announcement alone takes no memory.
    bytes: Vec<u8>,
}

/// The receiving side of a connection.
#[derive(Clone, Debug)]
pub struct Inbox {
    gate: Gate,
    joining: Option<Joining>,
    /// Bytes of chunks that the sender may still send.
    credit: u32,
    /// Bytes of chunks that arrived and were not granted again.
    used: u32,
}

impl Inbox {
    /// The hub's side of a new connection: takes a `Hello` and nothing else until [`admit`](Self::admit).
    #[must_use]
    pub fn of_hub() -> Self {
        Self::new(Gate::Hello)
    }

    /// The side of a peer of this role.
    #[must_use]
    pub fn of_peer(role: Role) -> Self {
        Self::new(Gate::FromHub(role))
    }

    fn new(gate: Gate) -> Self {
        Self { gate, joining: None, credit: INITIAL_CREDIT, used: 0 }
    }

    /// The peer's `Hello` was accepted; from now on it may say what its role allows.
    pub fn admit(&mut self, role: Role) {
        self.gate = Gate::FromPeer(role);
    }

    /// Takes a frame; returns the message if it is complete now.
    ///
    /// # Errors
    /// [`InboxError`] says what is wrong; the connection must then be closed.
    pub fn handle_frame(&mut self, frame: &[u8]) -> Result<Option<Message>, InboxError> {
        let (kind, _) = header::read(frame)?;
        self.check_gate(kind, frame.len())?;
        if kind != Kind::Chunk {
            if frame.len() > CHUNK_BYTES as usize {
                return Err(InboxError::FrameTooLarge { kind, bytes: frame.len() });
            }
            return Ok(Some(Message::decode(frame)?));
        }
        match Message::decode(frame)? {
            Message::Chunk(chunk) => self.handle_chunk(&chunk),
            other => Ok(Some(other)),
        }
    }

    /// What to grant the sender, once half of what it may send is used. Whoever cannot take more data now asks
    /// later: the sender waits.
    pub fn take_credit_due(&mut self) -> Option<Credit> {
        if self.used < INITIAL_CREDIT / 2 {
            return None;
        }
        let bytes = core::mem::take(&mut self.used);
        self.credit += bytes;
        Some(Credit { bytes })
    }

    fn check_gate(&self, kind: Kind, bytes: usize) -> Result<(), InboxError> {
        match self.gate {
            Gate::Hello if kind != Kind::Hello || bytes > PRE_AUTH_FRAME_BYTES as usize => {
                Err(InboxError::HelloExpected { kind, bytes })
            }
            Gate::FromPeer(role) if !allow(role, kind) => Err(InboxError::NotAllowed { role, kind }),
            Gate::FromHub(role) if !expect(role, kind) => Err(InboxError::NotExpected { role, kind }),
            Gate::Hello | Gate::FromPeer(_) | Gate::FromHub(_) => Ok(()),
        }
    }

    fn handle_chunk(&mut self, chunk: &Chunk) -> Result<Option<Message>, InboxError> {
        let bytes = chunk.data.len();
        let &Chunk { stream, total, offset, .. } = chunk;
        if bytes == 0 || bytes > CHUNK_BYTES as usize || offset as usize + bytes > total as usize {
            return Err(InboxError::ChunkSize { bytes, offset, total });
        }
        if bytes > self.credit as usize {
            return Err(InboxError::CreditExceeded { bytes, credit: self.credit });
        }
        let mut joining = match self.joining.take() {
            None => self.begin_stream(chunk)?,
            Some(joining) => joining,
        };
        let next = ChunkPlace::At { stream: joining.stream, offset: joining.bytes.len() as u32, total: joining.total };
        if next != (ChunkPlace::At { stream, offset, total }) {
            return Err(InboxError::ChunkOutOfOrder { stream, offset, total, expected: next });
        }
        joining.bytes.extend_from_slice(&chunk.data);
        self.credit -= bytes as u32;
        self.used += bytes as u32;
        if joining.bytes.len() < total as usize {
            self.joining = Some(joining);
            return Ok(None);
        }
        Ok(Some(Message::decode(&joining.bytes)?))
    }

    /// Looks at what a stream is going to be before any of it is kept.
    fn begin_stream(&self, first: &Chunk) -> Result<Joining, InboxError> {
        let &Chunk { stream, total, offset, .. } = first;
        if offset != 0 {
            return Err(InboxError::ChunkOutOfOrder { stream, offset, total, expected: ChunkPlace::Start });
        }
        let (kind, _) = header::read(&first.data)?;
        if !kind.may_be_split() {
            return Err(InboxError::NotSplittable { kind });
        }
        self.check_gate(kind, total as usize)?;
        let body = (total as usize).saturating_sub(HEADER_BYTES);
        if body > kind.body_cap() as usize {
            return Err(DecodeError::TooLarge { kind, bytes: body }.into());
        }
        Ok(Joining { stream, total, bytes: Vec::new() })
    }
}
