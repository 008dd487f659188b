//! What one slot hands over per fragment: rows, where they are cut, and the state to go on from.

use super::{AGENT_INDEX, BatchError, EPS_ID, NEW_OBS, OBS, SampleBatch, T};
use crate::{
    column::{Column, ColumnData},
    ids::{FragmentNo, SlotId, WeightsVersion, eps_id},
    prelude::*,
};

/// Why a piece of an episode ends at a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutReason {
    /// The episode terminated: what follows is worth nothing.
    Terminated,
    /// The episode was truncated from outside: what follows is worth the bootstrap value.
    Truncated,
    /// The fragment is full and the episode goes on.
    FragmentEnd,
}

/// The end of a piece of an episode within a fragment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// One past the last row of the piece, counted from the fragment's first row.
    pub end: u32,
    /// Why the piece ends here.
    pub reason: CutReason,
    /// Value estimate of the observation after the last row; 0 if terminated.
    pub bootstrap_value: f32,
}

/// Length and return of a finished episode.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EpisodeMetrics {
    /// Number of the episode in its slot.
    pub episode: u32,
    /// Env steps.
    pub len: u32,
    /// Sum of the raw rewards.
    pub episode_return: f64,
}

/// One slot's share of the experience of a fragment, and the state from which the next one starts.
///
/// A pure function of (seed, state at the start, weights): whoever takes the slot over after a loss
/// makes this again, bit for bit.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotFragment {
    /// The slot.
    pub slot: SlotId,
    /// Which of its fragments this is.
    pub fragment: FragmentNo,
    /// The weights that acted, one version for the whole fragment.
    pub weights_version: WeightsVersion,
    /// Episode number at the first row.
    pub first_episode: u32,
    /// `t` of the first row.
    pub first_t: u32,
    /// `obs`, `actions`, `rewards`, `terminateds`, `truncateds`, `action_logp`, `vf_preds`. Ids, `t` and
    /// `new_obs` follow from the other fields.
    pub rows: SampleBatch,
    /// Ends of pieces in row order; the last one is at the last row.
    pub cuts: Vec<Cut>,
    /// One row per cut: the observation after the piece's last row.
    pub final_obs: SampleBatch,
    /// Episodes that ended in this fragment, in order.
    pub episodes: Vec<EpisodeMetrics>,
    /// Encoded [`SlotState`](crate::sampler::SlotState) after the last row.
    pub state: Vec<u8>,
}

impl SlotFragment {
    /// The rows with the columns that follow from the fragment: `new_obs`, `eps_id`, `t` and `agent_index`.
    ///
    /// # Errors
    /// [`BatchError::LengthMismatch`] if the cuts do not cover the rows, [`BatchError`] for missing observations.
    pub fn with_derived(&self) -> Result<SampleBatch, BatchError> {
        let rows = self.rows.column(OBS.name()).map_or(0, Column::rows);
        let covered = self.cuts.iter().map(|cut| cut.end as usize).max().unwrap_or(0);
        if covered > rows {
            return Err(BatchError::LengthMismatch { name: EPS_ID.name().into(), expected: rows, found: covered });
        }
        let (mut ids, mut ts) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        let (mut episode, mut t) = (self.first_episode, i64::from(self.first_t));
        for cut in &self.cuts {
            while ids.len() < cut.end as usize {
                ids.push(eps_id(self.slot, episode));
                ts.push(t);
                t += 1;
            }
            (episode, t) = (episode.wrapping_add(1), 0);
        }
        let agents = vec![0; rows];
        let mut rows = self.rows.clone();
        rows.insert(NEW_OBS.name(), self.new_obs()?)?;
        rows.with(EPS_ID, ColumnData::scalars(ids))?
            .with(T, ColumnData::scalars(ts))?
            .with(AGENT_INDEX, ColumnData::scalars(agents))
    }

    /// The observation after each row: that of the next row, or the final one of its piece.
    fn new_obs(&self) -> Result<Column, BatchError> {
        let column = |batch: &SampleBatch| {
            batch.column(OBS.name()).cloned().ok_or_else(|| BatchError::MissingColumn(OBS.name().to_string()))
        };
        let (obs, finals) = (column(&self.rows)?, column(&self.final_obs)?);
        let mut parts = Vec::with_capacity(2 * self.cuts.len());
        let mut start = 0;
        for (piece, cut) in self.cuts.iter().enumerate().take(finals.rows()) {
            let end = (cut.end as usize).min(obs.rows());
            if start < end {
                parts.extend([obs.slice(start + 1..end), finals.slice(piece..piece + 1)]);
            }
            start = end.max(start);
        }
        let new_obs =
            Column::concat(&parts.iter().collect::<Vec<_>>()).map_err(BatchError::of_column(NEW_OBS.name()))?;
        Ok(new_obs.unwrap_or_else(|| obs.slice(0..0)))
    }

    /// Env steps in this fragment.
    #[must_use]
    pub fn env_steps(&self) -> u64 {
        self.rows.len() as u64
    }
}
