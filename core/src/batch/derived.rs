//! Derives columns from fragments, for many fragments in one call.

use super::{
    ACTION_DIST_INPUTS, AGENT_INDEX, BatchError, EPS_ID, NEW_OBS, OBS, SampleBatch, SlotFragment, T, UNROLL_ID,
    columns::STATE_IN,
};
use crate::{
    column::{Column, Recycler, RowShape},
    ids::{SlotId, eps_id, unroll_id},
    prelude::*,
};

/// State that [`SampleBatch::from_fragments`] keeps between calls: how many trajectory parts each slot has delivered, and
/// the columns' buffers. A buffer is reused once all references to its column are dropped.
#[derive(Debug, Default)]
pub struct Derived {
    steps: BTreeMap<SlotId, u64>,
    new_obs: Recycler,
    eps_ids: Recycler,
    unroll_ids: Recycler,
    agents: Recycler,
    ts: Recycler,
}

impl Derived {
    /// Returns how many steps a slot has delivered.
    #[must_use]
    pub fn steps(&self, slot: SlotId) -> u64 {
        self.steps.get(&slot).copied().unwrap_or(0)
    }

    /// Sets how many steps a slot has delivered.
    pub fn set_steps(&mut self, slot: SlotId, steps: u64) {
        self.steps.insert(slot, steps);
    }
}

impl SampleBatch {
    /// Joins the fragments' rows in order and adds the derived columns `new_obs`, `eps_id`, `unroll_id`, `agent_index` and
    /// `t`.
    ///
    /// Fragments whose rows are adjacent in one buffer, as those of a [`Lockstep`](crate::sampler::Lockstep) are, are joined
    /// without a copy.
    ///
    /// # Errors
    /// [`BatchError::LengthMismatch`] if the cuts of a fragment do not cover its rows, or if there is not one final
    /// observation per cut; [`BatchError::MissingColumn`] without observations; [`BatchError::Column`] for observations that
    /// are compressed or ragged; otherwise the errors of [`concat`](Self::concat).
    pub fn from_fragments(fragments: &[SlotFragment], memory: &mut Derived) -> Result<Self, BatchError> {
        let mut batch = Self::concat(fragments.iter().map(|fragment| &fragment.rows))?;
        let finals = Self::concat(fragments.iter().map(|fragment| &fragment.final_obs))?;
        for fragment in fragments {
            fragment.check_covered(EPS_ID.name())?;
            let (expected, found) = (fragment.cuts.len(), fragment.final_obs.len());
            if expected != found {
                return Err(BatchError::LengthMismatch { name: NEW_OBS.name().to_string(), expected, found });
            }
        }
        if batch.is_empty() {
            return Ok(batch);
        }
        let rows = batch.len();
        let mut first = 0;
        let ends = fragments.iter().flat_map(|fragment| {
            let start = first;
            first += fragment.rows.len();
            fragment.pieces().map(move |(piece, _)| start + piece.end)
        });
        let new_obs = observations(&batch)?.next_rows(ends, observations(&finals)?, &mut memory.new_obs);
        let new_obs = new_obs.map_err(BatchError::of_column(NEW_OBS.name()))?;

        let eps_ids = memory.eps_ids.column(RowShape::SCALAR, rows, |ids| {
            each_piece(fragments, |fragment, episode, _, rows| {
                ids.resize(ids.len() + rows, eps_id(fragment.slot, episode));
            });
        });
        let ts = memory.ts.column(RowShape::SCALAR, rows, |ts| {
            each_piece(fragments, |_, _, t, rows| ts.extend((0..rows as i64).map(|row| t + row)));
        });
        let steps = &mut memory.steps;
        let unroll_ids = memory.unroll_ids.column(RowShape::SCALAR, rows, |ids| {
            for fragment in fragments {
                let before = steps.entry(fragment.slot).or_default();
                for (piece, _) in fragment.pieces() {
                    ids.resize(ids.len() + piece.len(), unroll_id(fragment.slot, *before, 0));
                    *before = before.wrapping_add(piece.len() as u64);
                }
            }
        });
        let agents = memory.agents.column(RowShape::SCALAR, rows, |agents| agents.resize(rows, 0));
        // Columns that only some batches have come after those that all batches have.
        let all = batch
            .columns
            .iter()
            .position(|(name, _)| *name == *ACTION_DIST_INPUTS.name() || name.starts_with(STATE_IN));
        let others = batch.columns.split_off(all.unwrap_or(batch.columns.len()));
        batch.insert(NEW_OBS.name(), new_obs)?;
        batch = batch.with(EPS_ID, eps_ids)?.with(UNROLL_ID, unroll_ids)?.with(T, ts)?.with(AGENT_INDEX, agents)?;
        batch.columns.extend(others);
        Ok(batch)
    }
}

fn observations(batch: &SampleBatch) -> Result<&Column, BatchError> {
    batch.column(OBS.name()).ok_or_else(|| BatchError::MissingColumn(OBS.name().to_string()))
}

/// Calls a function for each piece with its fragment, the number of its episode in the slot, the `t` of its first row, and
/// its number of rows.
fn each_piece(fragments: &[SlotFragment], mut visit: impl FnMut(&SlotFragment, u32, i64, usize)) {
    for fragment in fragments {
        let (mut episode, mut t) = (fragment.first_episode, i64::from(fragment.first_t));
        for (piece, _) in fragment.pieces() {
            visit(fragment, episode, t, piece.len());
            (episode, t) = (episode.wrapping_add(1), 0);
        }
    }
}
