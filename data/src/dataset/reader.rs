//! Provides a data set as a worker's input.

use rollmesh_core::{
    batch::AnyBatch,
    episode::Losses,
    sampler::{InputReader, Position, SampleError, SamplerHost},
};
use serde::{Deserialize, Serialize};

use super::{BatchStream, DatasetError};

/// Reads a data set repeatedly for a worker: in each epoch every batch exactly once, in the file's order.
///
/// With `n` shards it reads every `n`-th batch, so that no two workers read the same rows. The declared buffer alone
/// determines the batches, so all workers must declare the same one.
pub struct DatasetReader<S> {
    stream: S,
    shard: u32,
    shards: u32,
    /// Batches read so far in this epoch.
    passed: u64,
    epochs: u64,
    /// Reported corrupt lines of this epoch, and unreported ones of earlier epochs.
    reported_lines: u64,
    not_reported: u64,
}

/// The position of the reader.
#[derive(Serialize, Deserialize)]
struct EpochPosition {
    /// Size of all files.
    bytes: u64,
    passed: u64,
    epochs: u64,
    reported_lines: u64,
    not_reported: u64,
}

impl<S: BatchStream> DatasetReader<S> {
    /// Creates a reader of all batches.
    pub fn new(stream: S) -> Self {
        Self::sharded(stream, None)
    }

    /// Creates a reader of one shard out of a number of them, or of all batches.
    pub fn sharded(stream: S, shard: Option<(u32, u32)>) -> Self {
        let (shard, shards) = shard.unwrap_or((0, 1));
        Self { stream, shard, shards: shards.max(1), passed: 0, epochs: 0, reported_lines: 0, not_reported: 0 }
    }

    /// Returns the number of complete epochs.
    #[must_use]
    pub fn epochs(&self) -> u64 {
        self.epochs
    }

    /// Returns the next batch of this epoch, or none at its end; then the next epoch begins.
    ///
    /// # Errors
    /// [`DatasetError`].
    pub fn next_in_epoch(&mut self) -> Result<Option<AnyBatch>, DatasetError> {
        while let Some(batch) = self.stream.next_batch()? {
            let mine = self.passed % u64::from(self.shards) == u64::from(self.shard % self.shards);
            self.passed += 1;
            if mine {
                return Ok(Some(batch));
            }
        }
        self.epochs += 1;
        self.rewind()?;
        Ok(None)
    }

    fn rewind(&mut self) -> Result<(), DatasetError> {
        self.not_reported += self.stream.corrupt_lines().saturating_sub(self.reported_lines);
        (self.passed, self.reported_lines) = (0, 0);
        self.stream.rewind()
    }

    /// Reads all batches of one epoch, from its beginning.
    ///
    /// # Errors
    /// [`DatasetError`].
    #[doc(alias = "read_all_files")]
    pub fn read_all(
        &mut self,
    ) -> Result<impl Iterator<Item = Result<AnyBatch, DatasetError>> + use<'_, S>, DatasetError> {
        self.rewind()?;
        let mut done = false;
        Ok(std::iter::from_fn(move || {
            let next = if done { None } else { self.next_in_epoch().transpose() };
            done = !matches!(next, Some(Ok(_)));
            next
        }))
    }
}

impl<S: BatchStream> InputReader for DatasetReader<S> {
    /// Returns the next batch, of the next epoch if this one has ended.
    fn next(&mut self, _host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let mut next = self.next_in_epoch();
        if matches!(next, Ok(None)) {
            next = self.next_in_epoch();
        }
        match next {
            Ok(Some(batch)) => Ok(batch),
            Ok(None) => Err(SampleError::Input("there is no batch for this worker: use fewer workers".to_string())),
            Err(error) => Err(SampleError::Input(error.to_string())),
        }
    }

    /// Returns the lost lines. All readers skip the same corrupt lines, and the first one counts them.
    fn losses(&mut self) -> Losses {
        if !self.shard.is_multiple_of(self.shards) {
            return Losses::default();
        }
        let corrupt = self.stream.corrupt_lines();
        let corrupt_lines = std::mem::take(&mut self.not_reported) + corrupt.saturating_sub(self.reported_lines);
        self.reported_lines = corrupt;
        Losses { corrupt_lines, ..Losses::default() }
    }

    fn position(&self) -> Option<Position> {
        let Self { passed, epochs, reported_lines, not_reported, .. } = *self;
        Some(Position::new(&EpochPosition { bytes: self.stream.bytes(), passed, epochs, reported_lines, not_reported }))
    }

    /// Skips the batches that were already read in the epoch.
    fn set_position(&mut self, position: &Position) -> Result<(), SampleError> {
        let EpochPosition { bytes, passed, epochs, reported_lines, not_reported } = position.read()?;
        let changed = |what: &str| SampleError::Input(format!("{what}: bring back what was read, or begin again"));
        let now = self.stream.bytes();
        if now != bytes {
            return Err(changed(&format!("the files have {now} bytes, but had {bytes}")));
        }
        let input = |error: DatasetError| SampleError::Input(error.to_string());
        self.stream.rewind().map_err(input)?;
        for _ in 0..passed {
            self.stream
                .next_batch()
                .map_err(input)?
                .ok_or_else(|| changed("there are fewer batches than there were"))?;
        }
        (self.passed, self.epochs, self.reported_lines, self.not_reported) =
            (passed, epochs, reported_lines, not_reported);
        Ok(())
    }
}
