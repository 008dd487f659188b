//! Defines a slot's fragment: its rows, the cuts between episodes, and the state from which the slot continues.

use core::ops::Range;

use super::{BatchError, Derived, MultiAgentBatch, SampleBatch};
use crate::{
    ids::{FragmentNo, SlotId, WeightsVersion},
    prelude::*,
};

/// The reason why a piece of an episode ends at a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutReason {
    /// The episode terminated: the value of the next state is zero.
    Terminated,
    /// The episode was truncated: the bootstrap value stands for the rest.
    Truncated,
    /// The fragment is full and the episode continues.
    FragmentEnd,
}

/// The end of a piece of an episode within a fragment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cut {
    /// One past the last row of the piece, counted from the fragment's first row.
    pub end: u32,
    /// The reason why the piece ends here.
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
    /// Finite numbers by name: the metrics that callbacks recorded and, under
    /// [`POLICY_REWARD_MEAN`](Self::POLICY_REWARD_MEAN), the mean reward of the agents of each named policy.
    pub custom_metrics: BTreeMap<String, f64>,
}

impl EpisodeMetrics {
    /// Maximum number of an episode's custom metrics in an upload.
    pub const MAX_CUSTOM_METRICS: usize = 64;
    /// Maximum length of a custom metric's name in bytes.
    pub const MAX_NAME_BYTES: usize = 128;
    /// Prefix of the name of a policy's reward; the policy's name follows.
    pub const POLICY_REWARD_MEAN: &str = "policy_reward_mean/";

    /// Returns the custom metrics of an episode that an upload contains: the finite ones, the first by name. Summaries ignore
    /// the others.
    pub(crate) fn that_travel(metrics: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
        let travels = |(name, value): &(&String, &f64)| Self::is_name(name) && value.is_finite();
        let metrics = metrics.iter().filter(travels).take(Self::MAX_CUSTOM_METRICS);
        metrics.map(|(name, value)| (name.clone(), *value)).collect_ordered()
    }

    /// Returns whether an upload contains a custom metric of this name.
    pub(crate) fn is_name(name: &str) -> bool {
        (1..=Self::MAX_NAME_BYTES).contains(&name.len())
    }
}

/// One slot's share of the experience of a fragment, and the state from which its next fragment starts.
///
/// It is a pure function of (seed, state at the start, weights): a worker that takes over the slot of a lost worker
/// recomputes it bit for bit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlotFragment {
    /// The slot.
    pub slot: SlotId,
    /// The number of this fragment within its slot.
    pub fragment: FragmentNo,
    /// Version of the weights that chose the actions; one version for the whole fragment.
    pub weights_version: WeightsVersion,
    /// Number of the episode at the first row.
    pub first_episode: u32,
    /// `t` of the first row.
    pub first_t: u32,
    /// `obs`, `actions`, `rewards`, `terminateds`, `truncateds`, `action_logp`, `vf_preds`. Ids, `t` and `new_obs` follow
    /// from the other fields. Rows of a recurrent policy have sequences: one starts at the first row, after each cut and
    /// after `max_seq_len` rows, and `state_in_0`, … hold the states before its first row.
    pub rows: SampleBatch,
    /// Ends of pieces in row order; the last cut is at the last row.
    pub cuts: Vec<Cut>,
    /// One row per cut: the observation after the piece's last row.
    pub final_obs: SampleBatch,
    /// Rows by policy, for environments with several agents or user code at every step: the worker has postprocessed them,
    /// and they have all columns. `first_episode`, `first_t`, `rows`, `cuts` and `final_obs` are unused then.
    pub agents: Option<MultiAgentBatch>,
    /// Episodes that ended in this fragment, in order.
    pub episodes: Vec<EpisodeMetrics>,
    /// Encoded [`SlotState`](crate::sampler::SlotState) after the last row.
    pub state: Vec<u8>,
}

impl SlotFragment {
    /// Returns the rows with the derived columns: see [`SampleBatch::from_fragments`].
    ///
    /// # Errors
    /// The errors of [`SampleBatch::from_fragments`].
    pub fn with_derived(&self) -> Result<SampleBatch, BatchError> {
        SampleBatch::from_fragments(core::slice::from_ref(self), &mut Derived::default())
    }

    /// Iterates over the pieces of the fragment: their rows, and the cuts at their ends.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (Range<usize>, &Cut)> {
        let mut start = 0;
        self.cuts.iter().map(move |cut| {
            let piece = start..(cut.end as usize).max(start);
            start = piece.end;
            (piece, cut)
        })
    }

    /// Checks that the pieces cover all rows; `name` is the column that needs them, for the error.
    pub(crate) fn check_covered(&self, name: &str) -> Result<(), BatchError> {
        let (expected, found) = (self.rows.len(), self.pieces().last().map_or(0, |(piece, _)| piece.end));
        if expected == found {
            return Ok(());
        }
        Err(BatchError::LengthMismatch { name: name.to_string(), expected, found })
    }

    /// Returns the number of env steps in this fragment.
    #[must_use]
    pub fn env_steps(&self) -> u64 {
        self.agents.as_ref().map_or(self.rows.len(), |agents| agents.env_steps) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uploads_contain_a_limited_number_of_finite_metrics_with_short_names() {
        let mut metrics: BTreeMap<String, f64> = (0..70).map(|i| (format!("m{i:02}"), f64::from(i))).collect();
        metrics.extend([("a".into(), f64::NAN), ("b".repeat(129), 1.0), (String::new(), 1.0)]);
        let carried = EpisodeMetrics::that_travel(&metrics);
        assert_eq!((carried.len(), carried.first_key_value()), (64, Some((&"m00".to_owned(), &0.0))));
        assert_eq!(EpisodeMetrics::that_travel(&carried), carried);
    }
}
