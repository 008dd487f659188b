//! The receiving side of a connection: checks limits, then the sender's role, then joins chunks, then decodes.

use super::{
    CHUNK_BYTES, DecodeError, INITIAL_CREDIT, Kind, Message, PRE_AUTH_FRAME_BYTES, Role, allow,
    convert::{self, WeightsReader, WeightsUpdateError},
    expect, header,
    header::HEADER_BYTES,
    message::{ChunkRef, Credit},
};
use crate::{prelude::*, weights::Weights};

/// The reason why a frame is rejected. The connection must be closed after any of these.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InboxError {
    /// The bytes are not a message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// An unauthenticated peer sent something else than `Hello`, or too much.
    #[error("the first message must be a Hello of at most {PRE_AUTH_FRAME_BYTES} bytes, not {kind:?} of {bytes}")]
    HelloExpected {
        /// Kind of the message.
        kind: Kind,
        /// Length of the frame.
        bytes: usize,
    },
    /// The peer's role does not allow this message.
    #[error("a peer with role {role:?} may not send {kind:?}")]
    NotAllowed {
        /// Role of the peer.
        role: Role,
        /// Kind of the message.
        kind: Kind,
    },
    /// The hub sent a message that this role does not accept.
    #[error("the hub sent {kind:?}, which a peer with role {role:?} does not expect")]
    NotExpected {
        /// Role of this side.
        role: Role,
        /// Kind of the message.
        kind: Kind,
    },
    /// A frame is so large that it had to be sent in chunks.
    #[error("a frame {kind:?} of {bytes} bytes is above {CHUNK_BYTES} and must come in chunks")]
    FrameTooLarge {
        /// Kind of the message.
        kind: Kind,
        /// Length of the frame.
        bytes: usize,
    },
    /// A message was sent in chunks though its kind must not be split.
    #[error("{kind:?} may not come in chunks")]
    NotSplittable {
        /// Kind of the message.
        kind: Kind,
    },
    /// A chunk does not continue the one before.
    #[error("chunk {stream}@{offset} of {total} bytes does not follow: {expected}")]
    ChunkOutOfOrder {
        /// Stream number of the chunk.
        stream: u32,
        /// Its offset.
        offset: u32,
        /// Its announced total length.
        total: u32,
        /// The expected place.
        expected: ChunkPlace,
    },
    /// A chunk has an impossible size.
    #[error("a chunk of {bytes} bytes at {offset} does not fit into {total} bytes")]
    ChunkSize {
        /// Its length.
        bytes: usize,
        /// Its offset.
        offset: u32,
        /// Announced length of the whole message.
        total: u32,
    },
    /// The chunks exceed the granted credit.
    #[error("a chunk of {bytes} bytes, but only {credit} bytes were granted")]
    CreditExceeded {
        /// Its length.
        bytes: usize,
        /// The remaining credit.
        credit: u32,
    },
    /// The weights that [`Inbox::receive`] decodes are invalid.
    #[error(transparent)]
    Weights(#[from] WeightsUpdateError),
}

/// The expected place of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPlace {
    /// A new stream begins at offset 0.
    Start,
    /// The stream in progress continues here.
    At {
        /// Stream number.
        stream: u32,
        /// Offset within it.
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

/// The messages that this side accepts.
#[derive(Clone, Copy, Debug)]
enum KindFilter {
    /// Hub: the peer is not authenticated yet.
    Hello,
    /// Hub: messages of a peer of this role.
    FromPeer(Role),
    /// Peer of this role: messages of the hub.
    FromHub(Role),
}

/// A split message of which some chunks have arrived.
#[derive(Clone, Debug)]
struct Joining {
    stream: u32,
    total: u32,
    /// Bytes that have arrived.
    bytes: u32,
    parts: JoinedParts,
}

/// The received part of a split message.
#[derive(Clone, Debug)]
enum JoinedParts {
    /// Its bytes. They grow as chunks arrive, and not beyond the announced length, which alone allocates nothing.
    Joined(Vec<u8>),
    /// Weights, decoded as they arrive instead of kept as bytes.
    Weights(Box<WeightsReader>),
    /// Weights that are passed on as they arrive.
    Passed,
}

/// A complete message, as [`Inbox::receive`] returns it.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)] // Messages are handled one by one.
pub enum Received {
    /// A message of a kind that is allowed.
    Message(Message),
    /// Weights of the run that was passed when their first bytes arrived.
    Weights {
        /// The run.
        run: u32,
        /// The weights.
        weights: Weights,
    },
    /// A part of a message with weights, for a relay, which decodes none.
    Piece(WeightsPiece),
}

/// A part of a message with weights, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightsPiece {
    /// The run and the version of the weights, with the first part.
    pub start: Option<(u32, u64)>,
    /// Length of the whole message, its header included.
    pub total: u32,
    /// The bytes.
    pub data: Vec<u8>,
}

impl WeightsPiece {
    fn new(total: u32, offset: u32, data: &[u8]) -> Result<Self, DecodeError> {
        let start = match offset {
            0 => {
                let (kind, body) = header::read(data)?;
                // Both kinds of weights begin with these.
                Some(postcard::take_from_bytes::<(u32, u64)>(body).map_err(|_| DecodeError::Body { kind })?.0)
            }
            _ => None,
        };
        Ok(Self { start, total, data: data.to_vec() })
    }
}

/// Largest buffer that is kept for reuse once a message has been read.
const MAX_SPARE_BYTES: usize = 16 << 20;

/// Once this many bytes of a message have arrived, a buffer for the whole message is allocated. Until then the buffer grows
/// with the received bytes. If it kept growing beyond, the allocator would retain the outgrown sizes of large messages,
/// which amounted to half as much again as all messages.
const EARNEST_BYTES: usize = 1 << 20;
/// Most bytes that are allocated for parts that have not arrived, unless as many have: the results of calls may be larger.
const AHEAD_BYTES: usize = 64 << 20;

/// The receiving side of a connection.
#[derive(Clone, Debug)]
pub struct Inbox {
    filter: KindFilter,
    joining: Option<Joining>,
    /// The latest split message, then the buffer for the next one: fresh memory costs more time than all copying.
    spare: Vec<u8>,
    /// Credit: bytes of chunks that the sender may still send.
    credit: u32,
    /// Bytes of chunks that have arrived and whose credit was not renewed.
    used: u32,
}

impl Inbox {
    /// Creates the hub's side of a new connection: accepts a `Hello` and nothing else until [`admit`](Self::admit).
    #[must_use]
    pub fn of_hub() -> Self {
        Self::new(KindFilter::Hello)
    }

    /// Creates the side of a peer of this role.
    #[must_use]
    pub fn of_peer(role: Role) -> Self {
        Self::new(KindFilter::FromHub(role))
    }

    fn new(filter: KindFilter) -> Self {
        Self { filter, joining: None, spare: Vec::new(), credit: INITIAL_CREDIT, used: 0 }
    }

    /// Accepts the messages of a role, after the peer's `Hello` was accepted.
    pub fn admit(&mut self, role: Role) {
        self.filter = KindFilter::FromPeer(role);
    }

    /// Handles a frame; returns the message if it is complete now.
    ///
    /// # Errors
    /// [`InboxError`] says what is wrong; the connection must then be closed.
    pub fn handle_frame(&mut self, frame: &[u8]) -> Result<Option<Message>, InboxError> {
        let received = self.receive(frame, None)?;
        // A receiver may have many connections, most of them idle, so keep no buffer.
        self.spare = Vec::new();
        Ok(received.and_then(|received| match received {
            Received::Message(message) => Some(message),
            // Weights begun in a call of `receive`.
            Received::Weights { run, weights } => Some(Message::WeightsUpdate(convert::weights_update(run, &weights))),
            // Only the inbox of a relay has parts.
            Received::Piece(_) => None,
        }))
    }

    /// Returns the kind of the message of which this frame is the first chunk, and the bytes that it takes once decompressed; `None` for all other frames, and
    /// for those that will be rejected. A caller with a memory budget for all its connections checks it before it handles
    /// the frame.
    #[must_use]
    pub fn announced(&self, frame: &[u8]) -> Option<(Kind, usize)> {
        let (kind, body) = header::read(frame).ok()?;
        if kind != Kind::Chunk || self.joining.is_some() {
            return None;
        }
        self.check_filter(kind, frame.len()).ok()?;
        let chunk = ChunkRef::decode(body).ok()?;
        self.check_chunk(&chunk).ok()?;
        let kind = self.check_first(&chunk).ok()?;
        // A compressed upload becomes as long as its first field says.
        let longer = match kind {
            Kind::CompressedUpload => {
                chunk.data.get(HEADER_BYTES..).and_then(|body| postcard::take_from_bytes(body).ok())
            }
            _ => None,
        };
        let longer = longer.map_or(0, |(bytes, _): (u32, _)| bytes.min(Kind::FragmentUpload.body_cap()));
        Some((kind, chunk.total as usize + longer as usize))
    }

    /// Returns true while a split message is incomplete.
    #[must_use]
    pub fn is_joining(&self) -> bool {
        self.joining.is_some()
    }

    /// Handles a frame; returns the message if it is complete now. Weights of `run` are decoded while they arrive: little is
    /// left to do at their end, and their bytes are not kept.
    ///
    /// # Errors
    /// [`InboxError`] says what is wrong; the connection must then be closed.
    pub fn receive(&mut self, frame: &[u8], run: Option<u32>) -> Result<Option<Received>, InboxError> {
        if self.spare.capacity() > MAX_SPARE_BYTES {
            self.spare = Vec::new();
        }
        let (kind, body) = header::read(frame)?;
        self.check_filter(kind, frame.len())?;
        if kind == Kind::Chunk {
            return self.handle_chunk(&ChunkRef::decode(body)?, run);
        }
        if frame.len() > CHUNK_BYTES as usize {
            return Err(InboxError::FrameTooLarge { kind, bytes: frame.len() });
        }
        if self.passes_on() && kind.is_of_weights() {
            let piece = WeightsPiece::new(frame.len() as u32, 0, frame)?;
            return Ok(Some(Received::Piece(piece)));
        }
        if let Some(run) = run
            && let Some(weights) = convert::weights_in(frame, run)?
        {
            return Ok(Some(Received::Weights { run, weights }));
        }
        Ok(Some(Received::Message(Message::decode(frame)?)))
    }

    /// Returns the credit to grant the sender, once half of it is used. A caller that cannot take more data now asks later,
    /// and the sender waits (back-pressure).
    pub fn take_credit_due(&mut self) -> Option<Credit> {
        if self.used < INITIAL_CREDIT / 2 {
            return None;
        }
        let bytes = core::mem::take(&mut self.used);
        self.credit += bytes;
        Some(Credit { bytes })
    }

    /// Returns whether this is the inbox of a relay.
    fn passes_on(&self) -> bool {
        matches!(self.filter, KindFilter::FromHub(Role::Relay))
    }

    fn check_filter(&self, kind: Kind, bytes: usize) -> Result<(), InboxError> {
        match self.filter {
            KindFilter::Hello if kind != Kind::Hello || bytes > PRE_AUTH_FRAME_BYTES as usize => {
                Err(InboxError::HelloExpected { kind, bytes })
            }
            KindFilter::FromPeer(role) if !allow(role, kind) => Err(InboxError::NotAllowed { role, kind }),
            KindFilter::FromHub(role) if !expect(role, kind) => Err(InboxError::NotExpected { role, kind }),
            KindFilter::Hello | KindFilter::FromPeer(_) | KindFilter::FromHub(_) => Ok(()),
        }
    }

    fn handle_chunk(&mut self, chunk: &ChunkRef<'_>, run: Option<u32>) -> Result<Option<Received>, InboxError> {
        self.check_chunk(chunk)?;
        let bytes = chunk.data.len();
        let &ChunkRef { stream, total, offset, .. } = chunk;
        let mut joining = match self.joining.take() {
            None => self.begin_stream(chunk, run)?,
            Some(joining) => joining,
        };
        let next = ChunkPlace::At { stream: joining.stream, offset: joining.bytes, total: joining.total };
        if next != (ChunkPlace::At { stream, offset, total }) {
            return Err(InboxError::ChunkOutOfOrder { stream, offset, total, expected: next });
        }
        match &mut joining.parts {
            JoinedParts::Joined(joined) => {
                if joined.capacity() - joined.len() < bytes {
                    let doubled = (2 * joined.len()).max(joined.len() + bytes);
                    let wanted = if joined.len() < EARNEST_BYTES { doubled } else { doubled.max(AHEAD_BYTES) };
                    joined.reserve_exact(wanted.min(total as usize) - joined.len());
                }
                joined.extend_from_slice(chunk.data);
            }
            JoinedParts::Weights(reader) => reader.read(chunk.data)?,
            JoinedParts::Passed => {}
        }
        joining.bytes += bytes as u32;
        self.credit -= bytes as u32;
        self.used += bytes as u32;
        let is_complete = joining.bytes == total;
        if matches!(joining.parts, JoinedParts::Passed) {
            self.joining = (!is_complete).then_some(joining);
            return Ok(Some(Received::Piece(WeightsPiece::new(total, offset, chunk.data)?)));
        }
        if !is_complete {
            self.joining = Some(joining);
            return Ok(None);
        }
        match joining.parts {
            JoinedParts::Passed => Ok(None),
            JoinedParts::Joined(joined) => {
                let message = Message::decode(&joined)?;
                self.spare = joined;
                Ok(Some(Received::Message(message)))
            }
            JoinedParts::Weights(reader) => {
                let run = reader.run();
                Ok(reader.finish()?.map(|weights| Received::Weights { run, weights }))
            }
        }
    }

    fn check_chunk(&self, chunk: &ChunkRef<'_>) -> Result<(), InboxError> {
        let bytes = chunk.data.len();
        let &ChunkRef { total, offset, .. } = chunk;
        if bytes == 0 || bytes > CHUNK_BYTES as usize || offset as usize + bytes > total as usize {
            return Err(InboxError::ChunkSize { bytes, offset, total });
        }
        if bytes > self.credit as usize {
            return Err(InboxError::CreditExceeded { bytes, credit: self.credit });
        }
        Ok(())
    }

    /// Checks a stream's first chunk before anything of it is kept.
    fn check_first(&self, first: &ChunkRef<'_>) -> Result<Kind, InboxError> {
        let &ChunkRef { stream, total, offset, .. } = first;
        if offset != 0 {
            return Err(InboxError::ChunkOutOfOrder { stream, offset, total, expected: ChunkPlace::Start });
        }
        let (kind, _) = header::read(first.data)?;
        if !kind.may_be_split() {
            return Err(InboxError::NotSplittable { kind });
        }
        self.check_filter(kind, total as usize)?;
        let body = (total as usize).saturating_sub(HEADER_BYTES);
        if body > kind.body_cap() as usize {
            return Err(DecodeError::TooLarge { kind, bytes: body }.into());
        }
        Ok(kind)
    }

    fn begin_stream(&mut self, first: &ChunkRef<'_>, run: Option<u32>) -> Result<Joining, InboxError> {
        let kind = self.check_first(first)?;
        let &ChunkRef { stream, total, .. } = first;
        let parts = match run {
            _ if self.passes_on() => JoinedParts::Passed,
            Some(run) if kind == Kind::WeightsUpdate => {
                JoinedParts::Weights(Box::new(WeightsReader::new(run, total as usize)))
            }
            _ => {
                let mut joined = core::mem::take(&mut self.spare);
                joined.clear();
                JoinedParts::Joined(joined)
            }
        };
        Ok(Joining { stream, total, bytes: 0, parts })
    }
}

#[cfg(test)]
mod tests;
