//! The collective calls, which all ranks make together.

use std::{sync::Arc, thread::JoinHandle};

use rollmesh_core::{
    policy::{AllReduce, AllReduceError},
    protocol::printable,
    worker::{DataParallelError, JoinRequest},
};

use super::{
    address,
    frame::{self, Action, Begin, Frame, PIECE_BYTES},
    join,
    links::Links,
    secure::RankTls,
};

/// Number of values in a piece of a message.
const PIECE_NUMBERS: usize = PIECE_BYTES / size_of::<f32>();

/// A rank of a group, whose ranks run in separate processes or threads and communicate over TCP.
///
/// ```
/// use rollmesh::data_parallel::TcpAllReduce;
/// use rollmesh_core::{
///     policy::AllReduce as _,
///     protocol::Token,
///     worker::{DataParallelConfig, HostFacts as _, JoinRequest},
/// };
///
/// let port = rollmesh::NativeHost.free_port().ok_or("no port")?;
/// let rank = move |rank: u32| -> Result<[f32; 1], Box<dyn std::error::Error + Send + Sync>> {
///     let config = DataParallelConfig::new(format!("127.0.0.1:{port}"), rank, 2, Token::new([7; 32]));
///     let mut ranks = TcpAllReduce::join(&JoinRequest { config, policies: vec![], max_message: 1 << 20 })?;
///     // Rank 0 has the value 0 from three rows, rank 1 the value 1 from one.
///     let mut values = [rank as f32];
///     ranks.all_reduce("values", &mut values, [3.0, 1.0][rank as usize])?;
///     Ok(values)
/// };
/// let other = std::thread::spawn(move || rank(1).unwrap());
/// assert_eq!(rank(0).map_err(|error| error.to_string())?, [0.25]);
/// assert_eq!(other.join().unwrap(), [0.25]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TcpAllReduce {
    rank: u32,
    world_size: u32,
    /// Number of calls so far.
    calls: u64,
    max_message: usize,
    links: Arc<Links>,
    threads: Vec<JoinHandle<()>>,
    /// Dropped after the links, so that everything that they have sent is encrypted.
    _tls: Option<RankTls>,
}

impl TcpAllReduce {
    /// Joins the group, and waits until all ranks have joined.
    ///
    /// # Errors
    /// [`DataParallelError`], which says what to change.
    pub fn join(request: &JoinRequest) -> Result<Self, DataParallelError> {
        let JoinRequest { config, max_message, .. } = request;
        config.check()?;
        let (rank, world_size) = (config.rank, config.world_size);
        let (mut streams, mut tls) = (Vec::new(), None);
        if world_size > 1 {
            let address = address::resolve(&config.url)?;
            tls = RankTls::of(address, &config.token)
                .map_err(|error| DataParallelError::Lost { rank, reason: format!("it cannot encrypt: {error}") })?;
            streams = join::join(request, address, tls.clone())?;
        }
        // Limit for a whole message with the overhead of its pieces, and the beginning of the next one.
        let max_waiting = max_message.saturating_mul(2).saturating_add(1 << 20);
        let lost = |error: std::io::Error| DataParallelError::Lost { rank, reason: error.to_string() };
        let (links, threads) = Links::open(rank, streams, max_waiting).map_err(lost)?;
        Ok(Self { rank, world_size, calls: 0, max_message: *max_message, links, threads, _tls: tls })
    }

    /// Begins a call: other ranks announce it to rank 0, which checks that it is the same for all. Returns the announcements
    /// of the other ranks on rank 0.
    fn begin(&mut self, action: Action, step: &str, weight: f64, bytes: usize) -> Result<Vec<Begin>, AllReduceError> {
        let own = Begin { number: self.calls, action, weight, bytes: bytes as u64, step: printable(step) };
        self.calls += 1;
        if bytes > self.max_message {
            return Err(AllReduceError::TooLarge { step: own.step, bytes, limit: self.max_message });
        }
        if self.rank > 0 {
            self.links.send(0, &Frame::Begin(own))?;
            return Ok(Vec::new());
        }
        let others = (0..self.links.peers()).map(|peer| {
            let Frame::Begin(begin) = self.links.next(peer)? else {
                return Err(self.protocol(peer, "data before a call"));
            };
            // Ranks may gather messages of different lengths.
            let same_length = action == Action::Gather || begin.bytes == own.bytes;
            if (begin.number, begin.action, &begin.step) == (own.number, own.action, &own.step) && same_length {
                return Ok(begin);
            }
            let call = |begin: &Begin| format!("'{}' with {} bytes, call {}", begin.step, begin.bytes, begin.number);
            let reason = format!("it is at {}, rank 0 at {}", call(&begin), call(&own));
            Err(AllReduceError::OutOfStep { rank: self.links.rank_of(peer), reason })
        });
        others.collect()
    }

    /// Returns the next piece of a peer's message, which must have exactly this length.
    fn piece(&self, peer: usize, bytes: usize) -> Result<Vec<u8>, AllReduceError> {
        match self.links.next(peer)? {
            Frame::Data(piece) if piece.len() == bytes => Ok(piece),
            _ => Err(self.protocol(peer, "a piece of a message that is none")),
        }
    }

    /// Returns a peer's message, assembled from its pieces.
    fn message(&self, peer: usize, bytes: usize) -> Result<Vec<u8>, AllReduceError> {
        let mut message = Vec::new();
        while message.len() < bytes {
            message.extend(self.piece(peer, PIECE_BYTES.min(bytes - message.len()))?);
        }
        Ok(message)
    }

    fn send_message(&self, peer: usize, message: &[u8]) -> Result<(), AllReduceError> {
        let frame = |piece: &[u8]| frame::piece(piece.len(), |bytes| bytes.copy_from_slice(piece));
        message.chunks(PIECE_BYTES).try_for_each(|piece| self.links.send_bytes(peer, &frame(piece)))
    }

    fn protocol(&self, peer: usize, reason: &str) -> AllReduceError {
        AllReduceError::Protocol { rank: self.links.rank_of(peer), reason: reason.into() }
    }

    fn reduce(&mut self, step: &str, values: &mut [f32], weight: f64) -> Result<(), AllReduceError> {
        let others = self.begin(Action::Reduce, step, weight, size_of_val(values))?;
        if values.is_empty() {
            // As with values: when the call returns, rank 0 has heard from all ranks.
            let nothing = encode(&[]);
            return match self.rank {
                0 => (0..self.links.peers()).try_for_each(|peer| self.links.send_bytes(peer, &nothing)),
                _ => self.piece(0, 0).map(drop),
            };
        }
        if self.rank > 0 {
            for piece in values.chunks(PIECE_NUMBERS) {
                self.links.send_bytes(0, &encode(piece))?;
            }
            for piece in values.chunks_mut(PIECE_NUMBERS) {
                let means = self.piece(0, size_of_val(piece))?;
                piece.iter_mut().zip(numbers(&means)).for_each(|(value, mean)| *value = mean);
            }
            return Ok(());
        }
        let total = others.iter().fold(weight, |total, other| total + other.weight);
        let mut sums = Vec::with_capacity(values.len().min(PIECE_NUMBERS));
        for piece in values.chunks_mut(PIECE_NUMBERS) {
            sums.clear();
            sums.extend(piece.iter().map(|value| if weight > 0.0 { weight * f64::from(*value) } else { 0.0 }));
            for (peer, other) in others.iter().enumerate() {
                let theirs = self.piece(peer, size_of_val(piece))?;
                if other.weight > 0.0 {
                    sums.iter_mut()
                        .zip(numbers(&theirs))
                        .for_each(|(sum, value)| *sum += other.weight * f64::from(value));
                }
            }
            let mean = |sum: f64| if total > 0.0 { (sum / total) as f32 } else { 0.0 };
            piece.iter_mut().zip(&sums).for_each(|(value, sum)| *value = mean(*sum));
            let means = encode(piece);
            (0..self.links.peers()).try_for_each(|peer| self.links.send_bytes(peer, &means))?;
        }
        Ok(())
    }

    fn gather(&mut self, step: &str, bytes: &[u8], limit: usize) -> Result<Vec<Vec<u8>>, AllReduceError> {
        let too_large = |bytes, limit| AllReduceError::TooLarge { step: step.into(), bytes, limit };
        if bytes.len() > limit {
            return Err(too_large(bytes.len(), limit));
        }
        let others = self.begin(Action::Gather, step, 0.0, bytes.len())?;
        let (count, number) = (self.world_size as usize, self.calls);
        if self.rank > 0 {
            self.send_message(0, bytes)?;
            let mut all = Vec::with_capacity(count);
            for _ in 0..count {
                let Frame::Begin(begin) = self.links.next(0)? else {
                    return Err(self.protocol(0, "data before a result"));
                };
                let length = usize::try_from(begin.bytes).ok().filter(|&length| length <= limit);
                all.push(self.message(0, length.ok_or_else(|| self.protocol(0, "a result that is too long"))?)?);
            }
            return Ok(all);
        }
        let mut all = vec![bytes.to_vec()];
        for (peer, other) in others.iter().enumerate() {
            let length = usize::try_from(other.bytes).ok().filter(|&length| length <= limit);
            all.push(
                self.message(peer, length.ok_or_else(|| self.protocol(peer, "more bytes than this call takes"))?)?,
            );
        }
        let total: usize = all.iter().map(Vec::len).sum();
        if total > self.max_message {
            return Err(too_large(total, self.max_message));
        }
        for peer in 0..self.links.peers() {
            for bytes in &all {
                let begin = Begin {
                    number,
                    action: Action::Gather,
                    weight: 0.0,
                    bytes: bytes.len() as u64,
                    step: String::new(),
                };
                self.links.send(peer, &Frame::Begin(begin))?;
                self.send_message(peer, bytes)?;
            }
        }
        Ok(all)
    }
}

impl AllReduce for TcpAllReduce {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world_size
    }

    fn all_reduce(&mut self, step: &str, values: &mut [f32], weight: f64) -> Result<(), AllReduceError> {
        self.links.begin()?;
        let weight = if weight.is_finite() { weight.max(0.0) } else { 0.0 };
        let reduced = self.reduce(step, values, weight);
        self.links.end(reduced)
    }

    fn all_gather(&mut self, step: &str, bytes: &[u8], limit: usize) -> Result<Vec<Vec<u8>>, AllReduceError> {
        self.links.begin()?;
        let gathered = self.gather(step, bytes, limit);
        self.links.end(gathered)
    }

    fn give_up(&mut self, reason: &str) {
        self.links.fail(AllReduceError::GaveUp { rank: self.rank, reason: reason.to_owned() });
    }
}

impl Drop for TcpAllReduce {
    fn drop(&mut self) {
        self.links.leave(std::mem::take(&mut self.threads));
    }
}

impl std::fmt::Debug for TcpAllReduce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rank, world_size, calls, .. } = self;
        f.debug_struct("TcpAllReduce")
            .field("rank", rank)
            .field("world_size", world_size)
            .field("calls", calls)
            .finish()
    }
}

/// Returns a frame with a piece of values.
fn encode(values: &[f32]) -> Vec<u8> {
    frame::piece(size_of_val(values), |bytes| {
        bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
    })
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))
}
