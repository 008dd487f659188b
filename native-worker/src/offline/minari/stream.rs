//! A Minari data set as batches.

use rollmesh_core::batch::AnyBatch;

use super::{
    super::dataset::{BatchStream, DatasetError},
    MinariDataset,
};

/// The batches of a Minari data set, one per episode, in the order of ids.
pub struct MinariStream {
    dataset: MinariDataset,
    next: usize,
}

impl MinariStream {
    pub(super) fn new(dataset: MinariDataset) -> Self {
        Self { dataset, next: 0 }
    }

    /// The data set.
    #[must_use]
    pub fn dataset(&self) -> &MinariDataset {
        &self.dataset
    }
}

impl BatchStream for MinariStream {
    fn next_batch(&mut self) -> Result<Option<AnyBatch>, DatasetError> {
        while let Some(episode) = self.dataset.episode(self.next)? {
            self.next += 1;
            if episode.steps() > 0 {
                return Ok(Some(episode.batch()?.into()));
            }
        }
        Ok(None)
    }

    fn rewind(&mut self) -> Result<(), DatasetError> {
        self.next = 0;
        Ok(())
    }
}
