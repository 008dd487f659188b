//! Batches in another order.

use serde::{Deserialize, Serialize};

use super::{Choice, Draws};
use crate::{
    batch::{AnyBatch, codec},
    env::SubEnv,
    episode::{Losses, RolloutMetrics},
    prelude::*,
    sampler::{Budget, InputReader, Position, SampleError, SamplerHost},
};

/// Holds back some batches of another input and gives one of them by chance, in whose place the next one goes: every
/// batch comes out once. (RLlib 2.9.3 replaces one and gives another, so that some come twice and some never.)
///
/// What it holds back has a limit in bytes, too, beside the batch that came last: where that is reached first, fewer wait.
pub struct ShuffledInput {
    input: Box<dyn InputReader>,
    size: usize,
    /// Bytes that may wait.
    buffer: usize,
    waiting: Vec<AnyBatch>,
    /// Bytes that wait.
    held: usize,
    draws: Draws,
}

/// Where it is.
#[derive(Serialize, Deserialize)]
struct ShuffledPosition {
    drawn: u64,
    waiting: Vec<Waiting>,
    input: Position,
}

/// A batch that waits, encoded.
#[derive(Serialize, Deserialize)]
enum Waiting {
    Single(Vec<u8>),
    Multi(Vec<u8>),
}

impl Waiting {
    fn of(batch: &AnyBatch) -> Self {
        match batch {
            AnyBatch::Single(batch) => Self::Single(codec::encode(batch)),
            AnyBatch::Multi(batch) => Self::Multi(codec::encode_multi_agent(batch)),
        }
    }

    fn batch(&self) -> Result<AnyBatch, SampleError> {
        let damaged = |error: codec::CodecError| SampleError::Input(format!("a batch that waits: {error}"));
        match self {
            Self::Single(bytes) => codec::decode(bytes).map(AnyBatch::Single).map_err(damaged),
            Self::Multi(bytes) => codec::decode_multi_agent(bytes).map(AnyBatch::Multi).map_err(damaged),
        }
    }
}

impl ShuffledInput {
    /// Bytes that may wait unless somebody says otherwise: 1 GiB.
    pub const DEFAULT_BUFFER: usize = 1 << 30;

    /// Shuffles among `size` batches; with 0 or 1 they come as they are.
    #[must_use]
    pub fn new(input: Box<dyn InputReader>, size: usize, seed: u64, worker_index: u32) -> Self {
        let draws = Draws::new(seed, worker_index, Choice::Place);
        Self { input, size, buffer: Self::DEFAULT_BUFFER, waiting: Vec::new(), held: 0, draws }
    }

    /// Lets so many bytes wait at most. A batch that is larger by itself is an error,
    /// [`SampleError::BatchTooLarge`].
    #[must_use]
    pub fn with_buffer(self, bytes: usize) -> Self {
        Self { buffer: bytes, ..self }
    }

    /// One of those that wait, if the one that came last left more of them than there is room for.
    fn surplus(&mut self) -> Option<AnyBatch> {
        if self.held <= self.buffer {
            return None;
        }
        let place = self.draws.below(self.waiting.len());
        let chosen = (place < self.waiting.len()).then(|| self.waiting.swap_remove(place))?;
        self.held -= chosen.size_bytes();
        Some(chosen)
    }

    /// Lets a batch wait, if need be in the place of one that waits no longer.
    fn exchange(&mut self, next: AnyBatch) -> Result<Option<AnyBatch>, SampleError> {
        let (bytes, buffer) = (next.size_bytes(), self.buffer);
        if bytes > buffer {
            return Err(SampleError::BatchTooLarge { bytes, buffer });
        }
        // A part of a buffer would keep all of it.
        let next = next.copy();
        let has_room = self.waiting.len() < self.size && self.held + bytes <= buffer;
        self.held += bytes;
        if has_room {
            self.waiting.push(next);
            return Ok(None);
        }
        let place = self.draws.below(self.waiting.len());
        let chosen = match self.waiting.get_mut(place) {
            Some(chosen) => core::mem::replace(chosen, next),
            None => next,
        };
        self.held -= chosen.size_bytes();
        Ok(Some(chosen))
    }
}

impl InputReader for ShuffledInput {
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        if self.size <= 1 {
            return self.input.next(host);
        }
        if let Some(surplus) = self.surplus() {
            return Ok(surplus);
        }
        loop {
            let next = self.input.next(host)?;
            if let Some(chosen) = self.exchange(next)? {
                return Ok(chosen);
            }
        }
    }

    fn next_within(
        &mut self,
        host: &mut SamplerHost<'_>,
        budget: &mut Budget,
    ) -> Result<Option<AnyBatch>, SampleError> {
        if self.size <= 1 {
            return self.input.next_within(host, budget);
        }
        if let Some(surplus) = self.surplus() {
            return Ok(Some(surplus));
        }
        while let Some(next) = self.input.next_within(host, budget)? {
            if let Some(chosen) = self.exchange(next)? {
                return Ok(Some(chosen));
            }
        }
        Ok(None)
    }

    fn losses(&mut self) -> Losses {
        self.input.losses()
    }

    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        self.input.metrics()
    }

    fn sub_environments(&mut self) -> Vec<SubEnv<'_>> {
        self.input.sub_environments()
    }

    fn for_each_env(&mut self, f: &mut dyn FnMut(SubEnv<'_>)) {
        self.input.for_each_env(f);
    }

    fn position(&self) -> Option<Position> {
        let waiting = self.waiting.iter().map(Waiting::of).collect();
        Some(Position::new(&ShuffledPosition { drawn: self.draws.drawn(), waiting, input: self.input.position()? }))
    }

    fn set_position(&mut self, position: &Position) -> Result<(), SampleError> {
        let ShuffledPosition { drawn, waiting, input } = position.read()?;
        if waiting.len() > self.size {
            return Err(SampleError::Input(format!("{} batches wait, for which there is no room", waiting.len())));
        }
        self.waiting = waiting.iter().map(Waiting::batch).collect::<Result<_, _>>()?;
        self.held = self.waiting.iter().map(AnyBatch::size_bytes).sum();
        self.draws.go_on(drawn);
        self.input.set_position(&input)
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        self.waiting.clear();
        self.held = 0;
        self.input.stop()
    }
}
