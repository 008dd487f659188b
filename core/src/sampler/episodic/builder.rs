//! Postprocessed pieces that will be joined to a batch.

use crate::{
    batch::{AnyBatch, BatchError, MultiAgentBatch, SampleBatch},
    ids::PolicyId,
    prelude::*,
};

/// The finished pieces of one environment since its last batch.
#[derive(Debug, Default)]
pub(super) struct PieceBuilder {
    pieces: BTreeMap<PolicyId, Vec<SampleBatch>>,
    pub(super) env_steps: usize,
    pub(super) agent_steps: usize,
}

impl PieceBuilder {
    pub(super) fn add(&mut self, policy: &PolicyId, piece: SampleBatch) {
        match self.pieces.get_mut(policy) {
            Some(pieces) => pieces.push(piece),
            None => drop(self.pieces.insert(policy.clone(), vec![piece])),
        }
    }

    /// Joins everything to one batch and starts over; pieces that cannot be joined are dropped.
    pub(super) fn build(&mut self, single_agent: bool) -> Result<AnyBatch, BatchError> {
        let Self { pieces, env_steps, .. } = core::mem::take(self);
        let joined = pieces.into_iter().map(|(policy, pieces)| Ok((policy, SampleBatch::concat(&pieces)?)));
        let batches = joined.try_collect_ordered()?;
        Ok(if single_agent {
            MultiAgentBatch::wrap_as_needed(batches, env_steps)
        } else {
            MultiAgentBatch::new(batches, env_steps).into()
        })
    }
}
