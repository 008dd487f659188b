//! What one slot hands over per fragment: rows, where they are cut, and the state to go on from.

use core::ops::Range;

use super::{BatchError, Derived, MultiAgentBatch, SampleBatch};
use crate::{
    ids::{FragmentNo, SlotId, WeightsVersion},
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

/// Length, return and custom metrics of a finished episode.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EpisodeMetrics {
    /// Number of the episode in its slot.
    pub episode: u32,
    /// Env steps.
    pub len: u32,
    /// Sum of the raw rewards.
    pub episode_return: f64,
    /// Finite numbers by name: those that callbacks have recorded and, after
    /// [`POLICY_REWARD_MEAN`](Self::POLICY_REWARD_MEAN), the mean reward of the agents of each policy that has a name.
    pub custom_metrics: BTreeMap<String, f64>,
}

impl EpisodeMetrics {
    /// The most custom metrics of an episode that an upload carries.
    pub const MAX_CUSTOM_METRICS: usize = 64;
    /// The most bytes of a custom metric's name.
    pub const MAX_NAME_BYTES: usize = 128;
    /// What the name of a policy's reward begins with; the policy's follows.
    pub const POLICY_REWARD_MEAN: &str = "policy_reward_mean/";

    /// Those of an episode's custom metrics that an upload carries: finite ones, the first by name. Summaries pass over
    /// the others.
    pub(crate) fn that_travel(metrics: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
        let travels = |(name, value): &(&String, &f64)| Self::is_name(name) && value.is_finite();
        let metrics = metrics.iter().filter(travels).take(Self::MAX_CUSTOM_METRICS);
        metrics.map(|(name, value)| (name.clone(), *value)).collect()
    }

    /// Whether an upload carries a custom metric of this name.
    pub(crate) fn is_name(name: &str) -> bool {
        (1..=Self::MAX_NAME_BYTES).contains(&name.len())
    }
}

/// One slot's share of the experience of a fragment, and the state from which the next one starts.
///
/// A pure function of (seed, state at the start, weights): whoever takes the slot over after a loss
/// makes this again, bit for bit.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// `new_obs` follow from the other fields. Of a recurrent policy in sequences: one begins with the first row, after
    /// each cut and after `max_seq_len` rows, and `state_in_0`, … have the states before its first row.
    pub rows: SampleBatch,
    /// Ends of pieces in row order; the last one is at the last row.
    pub cuts: Vec<Cut>,
    /// One row per cut: the observation after the piece's last row.
    pub final_obs: SampleBatch,
    /// Rows by policy of environments with several agents, or with user code at every step: postprocessed by the worker, with
    /// all columns. Then `first_episode`, `first_t`, `rows`, `cuts` and `final_obs` say nothing.
    pub agents: Option<MultiAgentBatch>,
    /// Episodes that ended in this fragment, in order.
    pub episodes: Vec<EpisodeMetrics>,
    /// Encoded [`SlotState`](crate::sampler::SlotState) after the last row.
    pub state: Vec<u8>,
}

impl SlotFragment {
    /// The rows with the columns that follow from the fragment: see [`SampleBatch::from_fragments`].
    ///
    /// # Errors
    /// As there.
    pub fn with_derived(&self) -> Result<SampleBatch, BatchError> {
        SampleBatch::from_fragments(core::slice::from_ref(self), &mut Derived::default())
    }

    /// The pieces of the fragment: their rows, and the cuts at their ends.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (Range<usize>, &Cut)> {
        let mut start = 0;
        self.cuts.iter().map(move |cut| {
            let piece = start..(cut.end as usize).max(start);
            start = piece.end;
            (piece, cut)
        })
    }

    /// Checks that the pieces make up all rows; `name` is the column that is to be made of them.
    pub(crate) fn check_covered(&self, name: &str) -> Result<(), BatchError> {
        let (expected, found) = (self.rows.len(), self.pieces().last().map_or(0, |(piece, _)| piece.end));
        if expected == found {
            return Ok(());
        }
        Err(BatchError::LengthMismatch { name: name.to_string(), expected, found })
    }

    /// Env steps in this fragment.
    #[must_use]
    pub fn env_steps(&self) -> u64 {
        self.agents.as_ref().map_or(self.rows.len(), |agents| agents.env_steps) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_carry_finite_metrics_with_short_names_and_not_too_many() {
        let mut metrics: BTreeMap<String, f64> = (0..70).map(|i| (format!("m{i:02}"), f64::from(i))).collect();
        metrics.extend([("a".into(), f64::NAN), ("b".repeat(129), 1.0), (String::new(), 1.0)]);
        let carried = EpisodeMetrics::that_travel(&metrics);
        assert_eq!((carried.len(), carried.first_key_value()), (64, Some((&"m00".to_owned(), &0.0))));
        assert_eq!(EpisodeMetrics::that_travel(&carried), carried);
    }
}
