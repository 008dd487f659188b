//! What is to be sent: small messages first, large ones in chunks, never more than the receiver has room for.

use ::bytes::Bytes;

use super::{CHUNK_BYTES, INITIAL_CREDIT, Kind, Message, header::HEADER_BYTES, message::ChunkRef};
use crate::{column::append_le, prelude::*};

/// An encoded message. Cheap to clone: the hub encodes weights once and queues them for every worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    kind: Kind,
    body: Body,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Body {
    /// Header and body; cut while it is sent if it is too large for one frame.
    Whole(Bytes),
    /// The chunks, cut once for all receivers, and the length of header and body together.
    Cut(Arc<[Bytes]>, usize),
}

/// A message that the receiver would not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind:?} of {bytes} bytes is larger than the {cap} that a receiver accepts", cap = kind.body_cap())]
pub struct TooLarge {
    /// What it is.
    pub kind: Kind,
    /// Length of its body.
    pub bytes: u64,
}

impl Frame {
    /// Encodes a message.
    ///
    /// # Errors
    /// [`TooLarge`] if it is above the cap of its kind.
    pub fn new(message: &Message) -> Result<Self, TooLarge> {
        Self::of_bytes(message.kind(), message.encode())
    }

    /// A message of this kind that is encoded already.
    fn of_bytes(kind: Kind, bytes: Vec<u8>) -> Result<Self, TooLarge> {
        check(kind, bytes.len())?;
        Ok(Self { kind, body: Body::Whole(bytes.into()) })
    }

    /// A message of this kind that begins with `head`, its header included, and ends with these values. If it has to be
    /// cut, it is cut now, for all receivers, as stream `stream`: see [`Outbox`].
    pub(super) fn with_values(kind: Kind, head: Vec<u8>, values: &[&[f32]], stream: u32) -> Result<Self, TooLarge> {
        let total = head.len() + values.iter().map(|values| size_of_val(*values)).sum::<usize>();
        check(kind, total)?;
        if total <= CHUNK_BYTES as usize {
            let mut bytes = head;
            values.iter().for_each(|values| append_le(&mut bytes, values));
            return Self::of_bytes(kind, bytes);
        }
        let mut cutter = Cutter::new(stream | SHARED_STREAM, total);
        cutter.write(&head);
        values.iter().for_each(|values| cutter.write_values(values));
        Ok(Self { kind, body: Body::Cut(cutter.chunks.into(), total) })
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Bytes of header and body.
    fn len(&self) -> usize {
        match &self.body {
            Body::Whole(bytes) => bytes.len(),
            Body::Cut(_, total) => *total,
        }
    }
}

fn check(kind: Kind, bytes: usize) -> Result<(), TooLarge> {
    let body = (bytes - HEADER_BYTES) as u64;
    if body > u64::from(kind.body_cap()) { Err(TooLarge { kind, bytes: body }) } else { Ok(()) }
}

/// The bit in the number of a stream that is cut for several receivers. No outbox gives such numbers to its own.
const SHARED_STREAM: u32 = 1 << 31;

/// Writes a message of known length straight into its chunks.
struct Cutter {
    stream: u32,
    /// A message is below 2^32 bytes: the caps of all kinds are.
    total: u32,
    chunks: Vec<Bytes>,
    chunk: Vec<u8>,
    /// Bytes of data that the chunk still takes.
    room: usize,
}

impl Cutter {
    fn new(stream: u32, total: usize) -> Self {
        let mut cutter = Self { stream, total: total as u32, chunks: Vec::new(), chunk: Vec::new(), room: 0 };
        cutter.begin_chunk();
        cutter
    }

    fn begin_chunk(&mut self) {
        let offset = self.chunks.len() as u32 * CHUNK_BYTES;
        self.room = self.total.saturating_sub(offset).min(CHUNK_BYTES) as usize;
        if self.room > 0 {
            self.chunk = ChunkRef { stream: self.stream, total: self.total, offset, data: &[] }.begin(self.room);
        }
    }

    /// So many bytes were appended to the chunk.
    fn advance(&mut self, bytes: usize) {
        self.room -= bytes;
        if self.room == 0 {
            self.chunks.push(core::mem::take(&mut self.chunk).into());
            self.begin_chunk();
        }
    }

    fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(self.room));
            self.chunk.extend_from_slice(now);
            self.advance(now.len());
            bytes = later;
        }
    }

    fn write_values(&mut self, mut values: &[f32]) {
        while let Some((first, others)) = values.split_first() {
            let whole = self.room / size_of::<f32>();
            if whole == 0 {
                self.write(&first.to_le_bytes());
                values = others;
                continue;
            }
            let (now, later) = values.split_at(values.len().min(whole));
            append_le(&mut self.chunk, now);
            self.advance(size_of_val(now));
            values = later;
        }
    }
}

/// A large message of which some chunks are sent.
#[derive(Clone, Debug)]
struct Sending {
    frame: Frame,
    stream: u32,
    sent: usize,
}

impl Sending {
    /// Bytes of the message in the next chunk.
    fn chunk_bytes(&self) -> usize {
        (self.frame.len() - self.sent).min(CHUNK_BYTES as usize)
    }

    fn chunk(&self) -> Option<Bytes> {
        match &self.frame.body {
            Body::Whole(bytes) => {
                let data = bytes.get(self.sent..self.sent + self.chunk_bytes())?;
                // A frame is below 2^32 bytes: the caps of all kinds are.
                let (total, offset) = (bytes.len() as u32, self.sent as u32);
                Some(ChunkRef { stream: self.stream, total, offset, data }.encode().into())
            }
            Body::Cut(chunks, _) => chunks.get(self.sent / CHUNK_BYTES as usize).cloned(),
        }
    }
}

/// The sending side of a connection.
///
/// Messages of up to [`CHUNK_BYTES`] keep their order, and so do larger ones; a small one may overtake a large
/// one. Weights are the exception: new ones take the place of older ones that are not yet being sent.
///
/// Streams are numbered, in the lower half of all numbers; those of the upper half are for messages that are cut once
/// for several receivers.
#[derive(Clone, Debug)]
pub struct Outbox {
    small: VecDeque<Frame>,
    large: VecDeque<Frame>,
    sending: Option<Sending>,
    next_stream: u32,
    credit: u64,
}

impl Default for Outbox {
    fn default() -> Self {
        Self::new(INITIAL_CREDIT)
    }
}

impl Outbox {
    /// An empty outbox whose receiver has room for this many bytes of chunks.
    #[must_use]
    pub fn new(credit: u32) -> Self {
        Self {
            small: VecDeque::new(),
            large: VecDeque::new(),
            sending: None,
            next_stream: 0,
            credit: u64::from(credit),
        }
    }

    /// Queues a message.
    ///
    /// # Errors
    /// [`TooLarge`] if it is above the cap of its kind; then nothing is queued.
    pub fn push(&mut self, message: &Message) -> Result<(), TooLarge> {
        self.push_frame(Frame::new(message)?);
        Ok(())
    }

    /// Queues a message that is already encoded.
    pub fn push_frame(&mut self, frame: Frame) {
        if frame.kind == Kind::WeightsUpdate {
            // Weights that are partly sent go on: the receiver could not tell a stream that was broken off.
            self.small.retain(|queued| queued.kind != Kind::WeightsUpdate);
            self.large.retain(|queued| queued.kind != Kind::WeightsUpdate);
        }
        let queue = if frame.len() > CHUNK_BYTES as usize { &mut self.large } else { &mut self.small };
        queue.push_back(frame);
    }

    /// The receiver has room for more bytes of chunks.
    pub fn grant(&mut self, bytes: u32) {
        self.credit = self.credit.saturating_add(u64::from(bytes));
    }

    /// The next frame to send, if there is one that may be sent now.
    pub fn poll_frame(&mut self) -> Option<Bytes> {
        match self.small.pop_front() {
            Some(Frame { body: Body::Whole(bytes), .. }) => Some(bytes),
            // What is cut is large.
            Some(_) | None => self.poll_chunk(),
        }
    }

    fn poll_chunk(&mut self) -> Option<Bytes> {
        if self.sending.is_none() {
            self.begin_stream();
        }
        let sending = self.sending.as_mut()?;
        let bytes = sending.chunk_bytes();
        if self.credit < bytes as u64 {
            return None;
        }
        let chunk = sending.chunk();
        self.credit -= bytes as u64;
        sending.sent += bytes;
        if sending.sent == sending.frame.len() {
            self.sending = None;
        }
        chunk
    }

    /// Begins the next large message only if its first chunk, a full one, can leave at once: until then newer
    /// weights may still take its place.
    fn begin_stream(&mut self) {
        if self.credit < u64::from(CHUNK_BYTES) {
            return;
        }
        if let Some(frame) = self.large.pop_front() {
            self.sending = Some(Sending { frame, stream: self.next_stream, sent: 0 });
            self.next_stream = (self.next_stream + 1) % SHARED_STREAM;
        }
    }

    /// Messages that are queued and not sent yet, those of which a part was sent among them.
    #[must_use]
    pub fn queued_frames(&self) -> usize {
        self.small.len() + self.large.len() + usize::from(self.sending.is_some())
    }

    /// Bytes that are queued and not sent yet, for limits on slow receivers.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        let queued = self.small.iter().chain(&self.large).map(Frame::len).sum::<usize>();
        queued + self.sending.as_ref().map_or(0, |sending| sending.frame.len() - sending.sent)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            Inbox, Role,
            message::{Goodbye, WeightsUpdate},
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

    /// Sends everything, granting credit as the inbox asks for it.
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
    fn a_large_message_arrives_whole_and_small_ones_overtake_it() {
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
    fn chunks_wait_for_credit_and_small_messages_do_not() {
        let mut outbox = Outbox::default();
        outbox.push(&weights(1, 10 * CHUNK_BYTES)).unwrap();
        let sent = core::iter::from_fn(|| outbox.poll_frame()).count();
        assert_eq!(sent as u32, INITIAL_CREDIT / CHUNK_BYTES);
        outbox.push(&goodbye("still here")).unwrap();
        assert_eq!(outbox.poll_frame().unwrap(), goodbye("still here").encode());
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
    fn what_no_receiver_accepts_is_not_queued() {
        let mut outbox = Outbox::default();
        let error = outbox.push(&goodbye(&"x".repeat(5000))).unwrap_err();
        assert_eq!(error.to_string(), "Goodbye of 5002 bytes is larger than the 4096 that a receiver accepts");
        assert_eq!((outbox.queued_bytes(), outbox.poll_frame()), (0, None));
    }
}
