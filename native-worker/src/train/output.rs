//! What a run samples, kept in files.

use std::{
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use rollmesh_core::batch::{Derived, SampleBatch, SlotFragment};

use crate::offline::{
    OfflineError,
    json::{JsonWriter, JsonWriterOptions},
};

/// Writes the fragments of a run as RLlib's JSON, a line per iteration, with the columns that any reader expects.
#[derive(Clone)]
pub(super) struct RunOutput(Arc<Mutex<(JsonWriter, Derived)>>);

impl RunOutput {
    pub(super) fn create(directory: &Path) -> Result<Self, OfflineError> {
        let writer = JsonWriter::new(directory, JsonWriterOptions::default())?;
        Ok(Self(Arc::new(Mutex::new((writer, Derived::default())))))
    }

    /// Writes an iteration. Blocks as long as the disk does.
    pub(super) fn write(&self, fragments: &[SlotFragment]) -> Result<(), OfflineError> {
        // Whoever panicked has left whole lines behind.
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (writer, derived) = &mut *open;
        writer.append(&SampleBatch::from_fragments(fragments, derived)?.into())
    }
}
