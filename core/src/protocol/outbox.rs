//! The sending side of a connection: small messages first, large ones in chunks, within the receiver's credit.

use core::ops::Range;

use ::bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{CHUNK_BYTES, FrameBytes, INITIAL_CREDIT, Kind, Message, header::HEADER_BYTES, message::ChunkRef};
use crate::{
    column::append_le,
    prelude::*,
    weights::{Tensor, Weights},
};

/// Bytes in front of a chunk that are not sent. Without them WebSocket's header would make the socket copy the chunk to an
/// address 1 to 31 bytes behind its own in a page of memory, which takes sixteen times as long on AMD's Zen.
const LEAD: usize = 64;

/// A message that is ready to be sent. Cheap to clone: the hub queues one of weights for every worker. Large weights are
/// encoded chunk by chunk when they are sent, so their bytes are never in memory a second time.
#[derive(Clone, Debug, PartialEq)]
pub struct MessageFrame {
    kind: Kind,
    body: Body,
}

#[derive(Clone, Debug, PartialEq)]
enum Body {
    /// Header and body.
    Bytes(Bytes),
    /// Weights that are encoded chunk by chunk, and the encoded part before their values.
    Weights(Bytes, Weights),
}

impl Body {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Weights(head, weights) => head.len() + weights.value_bytes(),
        }
    }

    /// Returns where a chunk that begins at `start` ends: between two values.
    fn chunk_end(&self, start: usize) -> usize {
        let (end, len) = (start + CHUNK_BYTES as usize, self.len());
        match self {
            _ if end >= len => len,
            Self::Weights(head, _) if end > head.len() => end - (end - head.len()) % VALUE,
            Self::Bytes(_) | Self::Weights(..) => end,
        }
    }

    /// Appends a part of its bytes; a part of weights begins and ends between two values.
    fn append(&self, part: Range<usize>, to: &mut Vec<u8>) {
        let bytes = match self {
            Self::Bytes(bytes) | Self::Weights(bytes, _) => bytes,
        };
        let end = part.end.min(bytes.len());
        to.extend_from_slice(bytes.get(part.start..end).unwrap_or_default());
        let Self::Weights(head, weights) = self else { return };
        let value = |place: usize| place.saturating_sub(head.len()) / VALUE;
        let mut before = 0;
        for Tensor { values, .. } in weights.tensors() {
            let here = |place: usize| value(place).saturating_sub(before).min(values.len());
            append_le(to, values.get(here(part.start)..here(part.end)).unwrap_or_default());
            before += values.len();
        }
    }
}

/// Bytes of a tensor's value.
const VALUE: usize = size_of::<f32>();

/// A message that the receiver would reject as too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind:?} of {bytes} bytes is larger than the {cap} that a receiver accepts", cap = kind.body_cap())]
pub struct TooLarge {
    /// Kind of the message.
    pub kind: Kind,
    /// Length of its body.
    pub bytes: u64,
}

impl MessageFrame {
    /// Encodes a message.
    ///
    /// # Errors
    /// [`TooLarge`] if it is above the cap of its kind.
    pub fn new(message: &Message) -> Result<Self, TooLarge> {
        Self::of_bytes(message.kind(), message.encode())
    }

    /// Wraps a message of this kind that is already encoded.
    fn of_bytes(kind: Kind, bytes: Vec<u8>) -> Result<Self, TooLarge> {
        Self::checked(kind, Body::Bytes(bytes.into()))
    }

    /// Wraps weights behind their `head`, the encoded part before their values.
    pub(super) fn of_weights(head: Vec<u8>, weights: &Weights) -> Result<Self, TooLarge> {
        let body = Body::Weights(head.into(), weights.clone());
        if body.len() > CHUNK_BYTES as usize {
            return Self::checked(Kind::WeightsUpdate, body);
        }
        let mut bytes = Vec::with_capacity(body.len());
        body.append(0..body.len(), &mut bytes);
        Self::of_bytes(Kind::WeightsUpdate, bytes)
    }

    fn checked(kind: Kind, body: Body) -> Result<Self, TooLarge> {
        let bytes = (body.len() - HEADER_BYTES) as u64;
        if bytes > u64::from(kind.body_cap()) { Err(TooLarge { kind, bytes }) } else { Ok(Self { kind, body }) }
    }

    /// Returns the message's kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the SHA-256 of the message.
    #[must_use]
    pub fn sha256(&self) -> [u8; 32] {
        let mut hasher = Sha256::new();
        let (mut at, mut piece) = (0, Vec::new());
        while at < self.body.len() {
            let end = self.body.chunk_end(at);
            piece.clear();
            self.body.append(at..end, &mut piece);
            hasher.update(&piece);
            at = end;
        }
        hasher.finalize().into()
    }

    /// Returns the message's length in bytes, header included.
    #[must_use]
    pub fn num_bytes(&self) -> usize {
        self.body.len()
    }
}

/// A large message of which some chunks were sent.
#[derive(Clone, Debug)]
struct Sending {
    frame: MessageFrame,
    stream: u32,
    sent: usize,
}

impl Sending {
    /// Returns the part of the message for the next chunk.
    fn next_part(&self) -> Range<usize> {
        self.sent..self.frame.body.chunk_end(self.sent)
    }

    fn chunk(&self, part: Range<usize>) -> FrameBytes {
        // A frame is below 2^32 bytes, since the caps of all kinds are.
        let (total, offset) = (self.frame.body.len() as u32, part.start as u32);
        let mut frame = ChunkRef { stream: self.stream, total, offset, data: &[] }.begin(LEAD, part.len());
        self.frame.body.append(part, &mut frame);
        FrameBytes(Bytes::from(frame).slice(LEAD..))
    }
}

/// The sending side of a connection.
///
/// Messages of up to [`CHUNK_BYTES`] keep their order, and so do larger ones; a small one may overtake a large one, but
/// calls, leases and uploads never overtake one of their own kind. Weights replace older ones that are not yet being sent.
#[derive(Clone, Debug)]
pub struct Outbox {
    small: VecDeque<MessageFrame>,
    large: VecDeque<MessageFrame>,
    sending: Option<Sending>,
    next_stream: u32,
    credit: u64,
    /// Bytes of `small` and `large`, kept up to date because a hub with many slow receivers reads it often.
    waiting_bytes: usize,
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new(INITIAL_CREDIT)
    }
}

impl Outbox {
    /// Creates an empty outbox with this credit for chunks.
    #[must_use]
    pub fn new(credit: u32) -> Self {
        Self {
            small: VecDeque::new(),
            large: VecDeque::new(),
            sending: None,
            next_stream: 0,
            credit: u64::from(credit),
            waiting_bytes: 0,
        }
    }

    /// Queues a message.
    ///
    /// # Errors
    /// [`TooLarge`] if it is above the cap of its kind; then nothing is queued.
    pub fn push(&mut self, message: &Message) -> Result<(), TooLarge> {
        self.push_frame(MessageFrame::new(message)?);
        Ok(())
    }

    /// Queues a message that is already encoded.
    pub fn push_frame(&mut self, frame: MessageFrame) {
        if frame.kind.is_of_weights() {
            // Finish weights that are partly sent: the receiver could not detect an interrupted stream.
            self.small.retain(|queued| !queued.kind.is_of_weights());
            self.large.retain(|queued| !queued.kind.is_of_weights());
            self.waiting_bytes = self.small.iter().chain(&self.large).map(|queued| queued.body.len()).sum();
        }
        self.waiting_bytes += frame.body.len();
        let is_large = frame.body.len() > CHUNK_BYTES as usize || self.holds_up(frame.kind);
        let queue = if is_large { &mut self.large } else { &mut self.small };
        queue.push_back(frame);
    }

    /// Returns whether a large message is queued that one of this kind must not overtake, so that it is sent in chunks as
    /// well.
    fn holds_up(&self, kind: Kind) -> bool {
        let sending = self.sending.iter().map(|sending| &sending.frame);
        self.large.iter().chain(sending).any(|frame| kind.keeps_its_place_behind(frame.kind))
    }

    /// Adds credit granted by the receiver.
    pub fn grant(&mut self, bytes: u32) {
        self.credit = self.credit.saturating_add(u64::from(bytes));
    }

    /// Returns the next frame to send, if one may be sent now.
    pub fn poll_frame(&mut self) -> Option<FrameBytes> {
        let small = self.small.pop_front();
        self.waiting_bytes -= small.as_ref().map_or(0, |frame| frame.body.len());
        match small {
            Some(MessageFrame { body: Body::Bytes(bytes), .. }) => Some(FrameBytes(bytes)),
            // Weights that are not encoded yet are large.
            Some(_) | None => self.poll_chunk(),
        }
    }

    fn poll_chunk(&mut self) -> Option<FrameBytes> {
        if self.sending.is_none() {
            self.begin_stream();
        }
        let sending = self.sending.as_mut()?;
        let part = sending.next_part();
        if self.credit < part.len() as u64 {
            return None;
        }
        self.credit -= part.len() as u64;
        sending.sent = part.end;
        let chunk = sending.chunk(part);
        if sending.sent == sending.frame.body.len() {
            self.sending = None;
        }
        Some(chunk)
    }

    /// Begins the next large message only if the credit covers its first, full chunk: until then newer weights may still
    /// replace it.
    fn begin_stream(&mut self) {
        if self.credit < u64::from(CHUNK_BYTES) {
            return;
        }
        if let Some(frame) = self.large.pop_front() {
            self.waiting_bytes -= frame.body.len();
            self.sending = Some(Sending { frame, stream: self.next_stream, sent: 0 });
            self.next_stream = self.next_stream.wrapping_add(1);
        }
    }

    /// Returns the number of messages that are not sent completely.
    #[must_use]
    pub fn queued_frames(&self) -> usize {
        self.small.len() + self.large.len() + usize::from(self.sending.is_some())
    }

    /// Returns the number of bytes not sent yet, for limits on slow consumers.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.waiting_bytes + self.sending.as_ref().map_or(0, |sending| sending.frame.body.len() - sending.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Inbox, Role,
            message::{Call, Goodbye, LeaseGrant, WeightsUpdate},
        },
        *,
    };

    fn weights(version: u64, bytes: u32) -> Message {
        let (names, ranks, dims) = (String::from("w"), vec![1], vec![bytes / 4]);
        Message::WeightsUpdate(WeightsUpdate { run: 1, version, names, ranks, dims, values: vec![7; bytes as usize] })
    }

    fn goodbye(reason: &str) -> Message {
        Message::Goodbye(Goodbye { reason: reason.into() })
    }

    /// Sends everything, granting credit as the inbox requests it.
    fn exchange(outbox: &mut Outbox, inbox: &mut Inbox) -> Vec<Message> {
        let mut messages = vec![];
        while let Some(frame) = outbox.poll_frame() {
            messages.extend(inbox.handle_frame(&frame).unwrap());
            if let Some(credit) = inbox.take_credit_due() {
                outbox.grant(credit.bytes);
            }
        }
        messages
    }

    #[test]
    fn small_messages_overtake_a_large_one_that_arrives_intact() {
        let (mut outbox, mut inbox) = (Outbox::default(), Inbox::of_peer(Role::Worker));
        let large = weights(1, 10 * CHUNK_BYTES);
        outbox.push(&large).unwrap();
        let first = outbox.poll_frame().unwrap();
        assert_eq!(inbox.handle_frame(&first), Ok(None));
        outbox.push(&goodbye("a")).unwrap();
        outbox.push(&goodbye("b")).unwrap();
        assert_eq!(exchange(&mut outbox, &mut inbox), [goodbye("a"), goodbye("b"), large]);
        assert_eq!(outbox.queued_bytes(), 0);
    }

    #[test]
    fn no_call_overtakes_another_one() {
        let (mut outbox, mut inbox) = (Outbox::default(), Inbox::of_peer(Role::Worker));
        let call = |call, bytes: u32| Message::Call(Call { call, body: vec![7; bytes as usize] });
        let calls = [call(0, 1), call(1, 3 * CHUNK_BYTES), call(2, 0), call(3, CHUNK_BYTES), call(4, 1)];
        calls[..2].iter().for_each(|call| outbox.push(call).unwrap());
        assert_eq!(inbox.handle_frame(&outbox.poll_frame().unwrap()), Ok(Some(calls[0].clone())));
        assert_eq!(inbox.handle_frame(&outbox.poll_frame().unwrap()), Ok(None));
        calls[2..].iter().for_each(|call| outbox.push(call).unwrap());
        outbox.push(&goodbye("between")).unwrap();
        let mut expected = vec![goodbye("between")];
        expected.extend_from_slice(&calls[1..]);
        assert_eq!(exchange(&mut outbox, &mut inbox), expected);
        outbox.push(&calls[0]).unwrap();
        assert_eq!(outbox.poll_frame().unwrap()[..], calls[0].encode(), "nothing is left that it could overtake");
    }

    #[test]
    fn no_lease_overtakes_another_one_and_no_upload() {
        let lease = |lease, bytes: u32| {
            let (slots, sources, state_ends) = (vec![0], vec![2], vec![bytes]);
            let states = vec![7; bytes as usize];
            let (run, fragment, weights_version) = (1, lease, 0);
            Message::LeaseGrant(LeaseGrant {
                run,
                lease,
                fragment,
                weights_version,
                slots,
                sources,
                state_ends,
                states,
            })
        };
        let (mut outbox, mut inbox) = (Outbox::default(), Inbox::of_peer(Role::Worker));
        let leases = [lease(1, 2 * CHUNK_BYTES), lease(2, 1)];
        leases.iter().for_each(|lease| outbox.push(lease).unwrap());
        outbox.push(&goodbye("between")).unwrap();
        assert_eq!(exchange(&mut outbox, &mut inbox), [&[goodbye("between")], &leases[..]].concat());
        outbox.push(&leases[1]).unwrap();
        assert_eq!(outbox.poll_frame().unwrap()[..], leases[1].encode(), "nothing is left that it could overtake");

        let upload = |bytes: u32| MessageFrame::of_bytes(Kind::FragmentUpload, vec![7; bytes as usize]).unwrap();
        outbox.push_frame(upload(2 * CHUNK_BYTES));
        outbox.push_frame(upload(100));
        assert_eq!((outbox.small.len(), outbox.large.len()), (0, 2));
    }

    #[test]
    fn chunks_wait_for_credit_and_small_messages_do_not() {
        let mut outbox = Outbox::default();
        outbox.push(&weights(1, 10 * CHUNK_BYTES)).unwrap();
        let sent = core::iter::from_fn(|| outbox.poll_frame()).count();
        assert_eq!(sent as u32, INITIAL_CREDIT / CHUNK_BYTES);
        outbox.push(&goodbye("still here")).unwrap();
        assert_eq!(outbox.poll_frame().unwrap()[..], goodbye("still here").encode());
        assert_eq!(outbox.poll_frame(), None);
        outbox.grant(CHUNK_BYTES);
        assert!(outbox.poll_frame().is_some());
        assert_eq!(outbox.poll_frame(), None);
    }

    #[test]
    fn newer_weights_take_the_place_of_older_ones() {
        let (mut outbox, mut inbox) = (Outbox::default(), Inbox::of_peer(Role::Worker));
        let large = |version| weights(version, 2 * CHUNK_BYTES);
        for version in 1..=3 {
            outbox.push(&large(version)).unwrap();
        }
        outbox.push(&goodbye("between")).unwrap();
        assert_eq!(exchange(&mut outbox, &mut inbox), [goodbye("between"), large(3)]);
        for version in 4..=6 {
            outbox.push(&weights(version, 16)).unwrap();
        }
        assert_eq!(exchange(&mut outbox, &mut inbox), [weights(6, 16)]);
    }

    #[test]
    fn weights_that_are_partly_sent_are_not_broken_off() {
        let (mut outbox, mut inbox) = (Outbox::default(), Inbox::of_peer(Role::Worker));
        let large = |version| weights(version, 2 * CHUNK_BYTES);
        outbox.push(&large(1)).unwrap();
        inbox.handle_frame(&outbox.poll_frame().unwrap()).unwrap();
        outbox.push(&large(2)).unwrap();
        outbox.push(&large(3)).unwrap();
        assert_eq!(exchange(&mut outbox, &mut inbox), [large(1), large(3)]);
    }

    #[test]
    fn weights_that_wait_for_credit_are_not_sent_yet() {
        let mut outbox = Outbox::new(CHUNK_BYTES - 1);
        outbox.push(&weights(1, 2 * CHUNK_BYTES)).unwrap();
        assert_eq!(outbox.poll_frame(), None);
        outbox.push(&weights(2, 2 * CHUNK_BYTES)).unwrap();
        outbox.grant(3 * CHUNK_BYTES);
        let mut inbox = Inbox::of_peer(Role::Worker);
        assert_eq!(exchange(&mut outbox, &mut inbox), [weights(2, 2 * CHUNK_BYTES)]);
    }

    #[test]
    fn message_too_large_for_its_receiver_is_not_queued() {
        let mut outbox = Outbox::default();
        let error = outbox.push(&goodbye(&"x".repeat(5000))).unwrap_err();
        assert_eq!(error.to_string(), "Goodbye of 5002 bytes is larger than the 4096 that a receiver accepts");
        assert_eq!((outbox.queued_bytes(), outbox.poll_frame()), (0, None));
    }
}
