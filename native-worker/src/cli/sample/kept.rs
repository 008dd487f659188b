//! Writing the rows of workers as they arrive.

use rollmesh_core::{
    batch::{AnyBatch, Derived, MultiAgentBatch, SampleBatch, SlotFragment},
    callbacks::WorkerInfo,
    config::Config,
    sampler::{IoContext, OutputWriter},
};

use crate::{Registry, cli::exit::Failure};

/// Writes the batches of a hub in order, each once, with the standard columns.
pub(super) struct Kept {
    writer: Box<dyn OutputWriter>,
    derived: Derived,
}

impl Kept {
    pub(super) fn open(output: &str, registry: &Registry) -> Result<Self, Failure> {
        let mut context = IoContext::new(WorkerInfo::default(), Config::new(), None);
        let writer = registry.open_output(output, &mut context).map_err(Failure::usage)?;
        Ok(Self { writer, derived: Derived::default() })
    }

    /// Writes the first `wanted` rows of each fragment; all rows if there are several agents.
    pub(super) fn write(&mut self, fragments: &[SlotFragment], wanted: &[u64]) -> Result<(), Failure> {
        let batch: AnyBatch = match fragments.iter().any(|fragment| fragment.agents.is_some()) {
            true => {
                let agents = fragments.iter().filter_map(|fragment| fragment.agents.as_ref());
                MultiAgentBatch::concat(agents).map_err(Failure::other)?.into()
            }
            false => self.first_rows(fragments, wanted)?.into(),
        };
        match batch.env_steps() {
            0 => Ok(()),
            _ => self.writer.write(&batch).map_err(Failure::other),
        }
    }

    fn first_rows(&mut self, fragments: &[SlotFragment], wanted: &[u64]) -> Result<SampleBatch, Failure> {
        // Columns derived from the next row need the whole fragment, so it is cut afterwards.
        let rows = SampleBatch::from_fragments(fragments, &mut self.derived).map_err(Failure::other)?;
        let mut at = 0;
        let pieces: Result<Vec<SampleBatch>, _> = fragments
            .iter()
            .zip(wanted)
            .map(|(fragment, wanted)| {
                let from = at;
                at += fragment.rows.len();
                rows.slice(from as i64, from + *wanted as usize)
            })
            .collect();
        pieces.and_then(|pieces| SampleBatch::concat(&pieces)).map_err(Failure::other)
    }

    pub(super) fn close(&mut self) -> Result<(), Failure> {
        self.writer.close().map_err(Failure::other)
    }
}
