//! Incremental decoder of a [`WeightsUpdate`], which decodes weights while their bytes arrive.

use super::WeightsUpdateError;
use crate::{
    ids::WeightsVersion,
    prelude::*,
    protocol::{
        CHUNK_BYTES, DecodeError, HEADER_BYTES, Kind,
        message::{WeightsHead, WeightsUpdate},
    },
    weights::{Tensor, Weights, WeightsError},
};

/// Most tensors of one set of weights.
pub(super) const MAX_TENSORS: usize = 1024;
/// Most bytes of a tensor's name.
pub(super) const MAX_NAME_BYTES: usize = 128;
/// Most dimensions of a tensor.
pub(super) const MAX_RANK: u8 = 8;

/// Bytes of a value.
const VALUE: usize = size_of::<f32>();

/// Most values that are reserved for a tensor before they arrive; a tensor that claims more grows with the received bytes.
const MAX_ROOM: usize = 1 << 18;

/// Decodes weights piece by piece, wherever their bytes are split. Values are checked as they are read.
#[derive(Clone, Debug)]
pub(in crate::protocol) struct WeightsReader {
    run: u32,
    /// Bytes of the message, header included, that have not arrived yet.
    rest: usize,
    stage: ReaderStage,
}

#[derive(Clone, Debug)]
enum ReaderStage {
    /// The part before the values is incomplete: its bytes, and how many are needed before the next attempt to decode it.
    Head(Vec<u8>, usize),
    Values(Values),
    /// Weights of another run, which are skipped.
    Other,
}

impl WeightsReader {
    /// Creates a reader for the weights of a run, in a message of `total` bytes, header included.
    pub(in crate::protocol) fn new(run: u32, total: usize) -> Self {
        Self { run, rest: total, stage: ReaderStage::Head(Vec::new(), HEADER_BYTES + 1) }
    }

    /// Returns the run whose weights it reads.
    pub(in crate::protocol) fn run(&self) -> u32 {
        self.run
    }

    /// Reads the next piece of the message.
    pub(in crate::protocol) fn read(&mut self, piece: &[u8]) -> Result<(), WeightsUpdateError> {
        self.rest = self.rest.saturating_sub(piece.len());
        match &mut self.stage {
            ReaderStage::Other => Ok(()),
            ReaderStage::Values(values) => values.read(piece),
            ReaderStage::Head(bytes, wanted) if bytes.len() + piece.len() < *wanted && self.rest > 0 => {
                bytes.extend_from_slice(piece);
                Ok(())
            }
            ReaderStage::Head(bytes, _) => {
                let mut bytes = core::mem::take(bytes);
                let seen = if bytes.is_empty() {
                    piece
                } else {
                    bytes.extend_from_slice(piece);
                    &bytes
                };
                self.stage = self.look(seen)?;
                Ok(())
            }
        }
    }

    /// Decodes the part before the values from the bytes received so far, and returns the next stage.
    fn look(&self, bytes: &[u8]) -> Result<ReaderStage, WeightsUpdateError> {
        let body = bytes.get(HEADER_BYTES..).unwrap_or_default();
        let broken = || DecodeError::Body { kind: Kind::WeightsUpdate };
        let (head, first) = match postcard::take_from_bytes::<WeightsHead<'_>>(body) {
            Ok(decoded) => decoded,
            // All valid tables are shorter than a chunk.
            Err(postcard::Error::DeserializeUnexpectedEnd) if self.rest > 0 && bytes.len() < CHUNK_BYTES as usize => {
                return Ok(ReaderStage::Head(bytes.to_vec(), 2 * bytes.len()));
            }
            Err(_) => return Err(broken().into()),
        };
        let (announced, here) = (head.value_bytes as usize, first.len() + self.rest);
        if here < announced {
            return Err(broken().into());
        }
        if here > announced {
            let bytes = here - announced;
            return Err(DecodeError::TrailingBytes { kind: Kind::WeightsUpdate, bytes }.into());
        }
        if head.run != self.run {
            return Ok(ReaderStage::Other);
        }
        let mut values = Values::new(head.version, head.names, &head.ranks, &head.dims, announced)?;
        values.read(first)?;
        Ok(ReaderStage::Values(values))
    }

    /// Returns the weights once the whole message has arrived; `None` for those of other runs.
    pub(in crate::protocol) fn finish(self) -> Result<Option<Weights>, WeightsUpdateError> {
        match self.stage {
            ReaderStage::Other => Ok(None),
            ReaderStage::Values(values) if self.rest == 0 => values.finish().map(Some),
            ReaderStage::Head(..) | ReaderStage::Values(_) => {
                Err(DecodeError::Body { kind: Kind::WeightsUpdate }.into())
            }
        }
    }
}

/// Converts the values of a decoded message.
pub(super) fn read_values(update: &WeightsUpdate) -> Result<Weights, WeightsUpdateError> {
    let WeightsUpdate { version, names, ranks, dims, values, .. } = update;
    let mut reader = Values::new(*version, names, ranks, dims, values.len())?;
    reader.read(values)?;
    reader.finish()
}

/// Tensors that are being filled.
#[derive(Clone, Debug)]
struct Values {
    version: WeightsVersion,
    /// The complete tensors, and last the one being filled.
    tensors: Vec<Tensor>,
    /// The tensors still to fill, in reverse order, with the number of their values.
    empty: Vec<(Tensor, usize)>,
    /// Number of values missing in the last of `tensors`.
    wanted: usize,
    /// The first bytes of a value that continues in the next piece.
    cut: Vec<u8>,
}

/// Checks everything but the values, as the receiver of the update does.
pub(super) fn check_table(update: &WeightsUpdate) -> Result<(), WeightsUpdateError> {
    let WeightsUpdate { version, names, ranks, dims, values, .. } = update;
    Values::new(*version, names, ranks, dims, values.len()).map(drop)
}

impl Values {
    /// Checks everything but the values before allocating memory for them.
    fn new(
        version: u64,
        names: &str,
        ranks: &[u8],
        mut dims: &[u32],
        value_bytes: usize,
    ) -> Result<Self, WeightsUpdateError> {
        let count = ranks.len();
        if count > MAX_TENSORS {
            return Err(WeightsUpdateError::TooMany(count));
        }
        let names = || names.split('\n').filter(|name| (1..=MAX_NAME_BYTES).contains(&name.len()));
        if names().count() != count {
            return Err(WeightsUpdateError::Names { names: names().count(), tensors: count });
        }
        let mut rest = value_bytes;
        let mut empty = Vec::with_capacity(count);
        for (name, &rank) in names().zip(ranks) {
            let shape = split(&mut dims, usize::from(rank))
                .filter(|_| rank <= MAX_RANK)
                .ok_or_else(|| WeightsUpdateError::Dims(name.into()))?;
            let values = shape.iter().try_fold(1usize, |values, &dim| values.checked_mul(dim as usize));
            let (values, left) = values
                .and_then(|values| Some((values, rest.checked_sub(values.checked_mul(VALUE)?)?)))
                .ok_or_else(|| WeightsUpdateError::Values(name.into()))?;
            rest = left;
            empty.push((Tensor { name: name.into(), shape: shape.to_vec(), values: Vec::new() }, values));
        }
        if !dims.is_empty() {
            return Err(WeightsUpdateError::ExtraDims(dims.len()));
        }
        if rest > 0 {
            return Err(WeightsUpdateError::ExtraValues(rest));
        }
        empty.reverse();
        let (version, tensors) = (WeightsVersion(version), Vec::with_capacity(count));
        Ok(Self { version, tensors, empty, wanted: 0, cut: Vec::with_capacity(VALUE) })
    }

    fn read(&mut self, mut piece: &[u8]) -> Result<(), WeightsUpdateError> {
        if !self.cut.is_empty() {
            let missing = take(&mut piece, VALUE - self.cut.len());
            self.cut.extend_from_slice(missing);
            if let Ok(value) = <[u8; VALUE]>::try_from(&self.cut[..]) {
                self.cut.clear();
                self.append(&[value])?;
            }
        }
        let (values, cut) = piece.as_chunks();
        self.append(values)?;
        self.cut.extend_from_slice(cut);
        Ok(())
    }

    fn append(&mut self, mut values: &[[u8; VALUE]]) -> Result<(), WeightsUpdateError> {
        while !values.is_empty() {
            if self.wanted == 0 {
                // All announced values belong to a tensor.
                let Some((tensor, wanted)) = self.empty.pop() else { return Ok(()) };
                self.tensors.push(tensor);
                self.wanted = wanted;
            }
            let Some(tensor) = self.tensors.last_mut() else { return Ok(()) };
            let now = take(&mut values, self.wanted);
            let room = self.wanted.min(MAX_ROOM.max(tensor.values.len())).max(now.len());
            if tensor.values.capacity() - tensor.values.len() < now.len() {
                tensor.values.reserve_exact(room);
            }
            self.wanted -= now.len();
            if !append_finite(&mut tensor.values, now) {
                return Err(WeightsError::NotFinite(tensor.name.clone()).into());
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Weights, WeightsUpdateError> {
        // The remaining tensors have no values.
        self.tensors.extend(self.empty.into_iter().rev().map(|(tensor, _)| tensor));
        Ok(Weights::of_finite(self.version, self.tensors)?)
    }
}

/// Appends values and returns false if one of them is not finite. Works in pieces, so that they are checked while in the
/// cache.
fn append_finite(to: &mut Vec<f32>, values: &[[u8; VALUE]]) -> bool {
    values.chunks(1024).all(|piece| {
        to.extend(piece.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        to[to.len() - piece.len()..].iter().fold(true, |finite, value| finite & value.is_finite())
    })
}

/// Splits the first `count` items off a slice, or all if there are fewer.
fn take<'a, T>(items: &mut &'a [T], count: usize) -> &'a [T] {
    split(items, count.min(items.len())).unwrap_or_default()
}

/// Splits the first `count` items off a slice, if it has that many.
fn split<'a, T>(items: &mut &'a [T], count: usize) -> Option<&'a [T]> {
    let (first, rest) = items.split_at_checked(count)?;
    *items = rest;
    Some(first)
}
