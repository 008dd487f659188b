//! Converts a Minari data set to batches.

use std::collections::BTreeSet;

use rollmesh_core::batch::AnyBatch;

use super::{
    super::dataset::{BatchStream, DatasetError, beyond_32_bits, has_more_digits},
    MinariDataset,
};

/// The batches of a Minari data set, one per episode, in the order of ids.
pub struct MinariStream {
    dataset: MinariDataset,
    next: usize,
    /// Descriptions of the content that no batch contains: infos that are missing at some steps, infos of resets, and
    /// digits of rewards.
    left_out: BTreeSet<String>,
}

impl MinariStream {
    pub(super) fn new(dataset: MinariDataset) -> Self {
        Self { dataset, next: 0, left_out: BTreeSet::new() }
    }

    /// Returns the data set.
    #[must_use]
    pub fn dataset(&self) -> &MinariDataset {
        &self.dataset
    }
}

impl BatchStream for MinariStream {
    fn next_batch(&mut self) -> Result<Option<AnyBatch>, DatasetError> {
        while let Some(episode) = self.dataset.episode(self.next)? {
            self.next += 1;
            for (name, column) in &episode.infos {
                match column.rows().checked_sub(episode.steps()) {
                    Some(0) => {}
                    Some(1) => _ = self.left_out.insert("infos that resets told".into()),
                    _ => _ = self.left_out.insert(format!("info '{name}', which was not told at every step")),
                }
            }
            if has_more_digits(&episode.rewards) {
                self.left_out.insert(beyond_32_bits("rewards"));
            }
            if episode.steps() > 0 {
                return Ok(Some(episode.batch()?.into()));
            }
        }
        Ok(None)
    }

    fn left_out(&self) -> Vec<String> {
        let metadata = "the data set's metadata: spaces, environment, authors".to_string();
        std::iter::once(metadata).chain(self.left_out.iter().cloned()).collect()
    }

    fn rewind(&mut self) -> Result<(), DatasetError> {
        self.next = 0;
        Ok(())
    }
}
