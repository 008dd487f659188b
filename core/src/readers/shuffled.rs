//! Shuffles batches.

use serde::{Deserialize, Serialize};

use super::{Choice, Draws};
use crate::{
    batch::AnyBatch,
    env::SubEnv,
    episode::{Losses, RolloutMetrics},
    prelude::*,
    sampler::{Budget, InputReader, Position, SampleError, SamplerHost},
};

/// Keeps some batches of another input waiting and returns a random one of them, which the next batch replaces: every batch
/// is returned once. (RLlib 2.9.3 replaces one and returns another, so it repeats some batches and drops others.)
///
/// The size of the waiting batches, apart from the latest one, is limited too: at the limit, fewer batches wait.
pub struct ShuffledInput {
    input: Box<dyn InputReader>,
    size: usize,
    /// Maximum size of the waiting batches in bytes.
    buffer: usize,
    waiting: Vec<AnyBatch>,
    /// Size of the waiting batches in bytes.
    held: usize,
    draws: Draws,
}

/// The position of the reader.
#[derive(Serialize, Deserialize)]
struct ShuffledPosition {
    drawn: u64,
    waiting: Vec<AnyBatch>,
    input: Position,
}

impl ShuffledInput {
    /// Default limit of waiting bytes: 1 GiB.
    pub const DEFAULT_BUFFER: usize = 1 << 30;

    /// Shuffles among `size` batches; with 0 or 1 they keep their order.
    #[must_use]
    pub fn new(input: Box<dyn InputReader>, size: usize, seed: u64, worker_index: u32) -> Self {
        let draws = Draws::new(seed, worker_index, Choice::Place);
        Self { input, size, buffer: Self::DEFAULT_BUFFER, waiting: Vec::new(), held: 0, draws }
    }

    /// Sets the limit of waiting bytes. A single batch above the limit is an error, [`SampleError::BatchTooLarge`].
    #[must_use]
    pub fn with_buffer(self, bytes: usize) -> Self {
        Self { buffer: bytes, ..self }
    }

    /// Removes and returns a waiting batch if the latest one exceeded the limit.
    fn surplus(&mut self) -> Option<AnyBatch> {
        if self.held <= self.buffer {
            return None;
        }
        let place = self.draws.below(self.waiting.len());
        let chosen = (place < self.waiting.len()).then(|| self.waiting.swap_remove(place))?;
        self.held -= chosen.size_bytes();
        Some(chosen)
    }

    /// Adds a batch to the waiting ones; if the buffer is full, returns one of them in exchange.
    fn exchange(&mut self, next: AnyBatch) -> Result<Option<AnyBatch>, SampleError> {
        let (bytes, buffer) = (next.size_bytes(), self.buffer);
        if bytes > buffer {
            return Err(SampleError::BatchTooLarge { bytes, buffer });
        }
        // A slice would keep the whole shared buffer alive.
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
        self.next_within(host, &mut Budget::endless())?.ok_or_else(SampleError::no_update)
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

    fn for_each_env(&mut self, f: &mut dyn FnMut(SubEnv<'_>)) {
        self.input.for_each_env(f);
    }

    fn position(&self) -> Option<Position> {
        let (drawn, input) = (self.draws.drawn(), self.input.position()?);
        Some(Position::new(&ShuffledPosition { drawn, waiting: self.waiting.clone(), input }))
    }

    fn set_position(&mut self, position: &Position) -> Result<(), SampleError> {
        let ShuffledPosition { drawn, waiting, input } = position.read()?;
        if waiting.len() > self.size {
            return Err(SampleError::Input(format!("{} batches wait, for which there is no room", waiting.len())));
        }
        self.held = waiting.iter().map(AnyBatch::size_bytes).sum();
        self.waiting = waiting;
        self.draws.skip_to(drawn);
        self.input.set_position(&input)
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        self.waiting.clear();
        self.held = 0;
        self.input.stop()
    }
}
