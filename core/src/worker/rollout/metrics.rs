//! Metrics of a worker's episodes.

use serde::{Deserialize, Serialize};

use super::{RolloutWorker, Source};
use crate::{
    episode::{EpisodeSummary, Quarantined, RolloutMetrics},
    estimate::Sample,
    ids::PolicyId,
    lists::AtMost,
    prelude::*,
    sampler::BatchMode,
    worker::config::InputEvaluation,
};

/// Metrics since the last call of [`RolloutWorker::metrics`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerMetrics {
    /// Finished episodes.
    #[serde(with = "AtMost::<{ 2 * WorkerMetrics::MOST }>")]
    pub episodes: Vec<RolloutMetrics>,
    /// Env steps that were taken and are in no sample, see [`Losses`](crate::episode::Losses); includes samples that callbacks or an output
    /// rejected.
    pub discarded_env_steps: u64,
    /// Agents' rows in those env steps.
    pub discarded_agent_steps: u64,
    /// Env steps of the input evaluation `simulation`: they are counted and part of [`episodes`](Self::episodes), but in no
    /// sample, so that no policy learns from them.
    #[doc(alias = "blackhole_outputs")]
    pub blackholed_env_steps: u64,
    /// Agents' rows in those env steps.
    pub blackholed_agent_steps: u64,
    /// Lines of the input's files that were skipped because they are not batches.
    pub corrupt_lines: u64,
    /// Sub-environments that failed too often and are quarantined now, while the others continue. They are retried when the
    /// worker's state is [restored](RolloutWorker::restore), or when a callback restarts them.
    #[serde(with = "AtMost::<{ 2 * WorkerMetrics::MOST }>")]
    pub quarantined: Vec<Quarantined>,
    /// Off-policy estimates from the episodes that were read.
    #[serde(with = "AtMost::<{ 2 * WorkerMetrics::MOST }>")]
    pub estimates: Vec<OffPolicyEstimate>,
    /// Episodes and estimates that were dropped: the oldest ones, beyond [`MOST`](Self::MOST) of each. On the wire also
    /// those beyond the limit of a message, and names of an episode's custom metrics beyond 4,096.
    pub forgotten: u64,
    /// Hints at possible mistakes, each given once.
    #[serde(with = "AtMost::<{ 2 * WorkerMetrics::MOST }>")]
    pub warnings: Vec<WorkerWarning>,
}

/// A hint at a possible mistake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerWarning {
    /// The sampler returned a batch of very many rows. As in RLlib, that is more than 1000 and ten fragments, or 5000 with
    /// complete episodes.
    #[error(
        "a batch of {rows} rows came from an episode, where more than {threshold} are rare: see that episodes end, or \
         set a horizon"
    )]
    LargeBatch {
        /// Number of rows.
        rows: usize,
        /// The threshold.
        threshold: usize,
    },
    /// A sub-environment was quarantined. The others continue, and sample as many steps as all would.
    #[error("sub-environment {env} has failed again and again and is in quarantine: {reason}")]
    Quarantined {
        /// Its index.
        env: usize,
        /// Its last failure.
        reason: String,
    },
}

impl WorkerMetrics {
    /// Episodes, and estimates, that are kept at least until they are read.
    pub const MOST: usize = 100_000;

    /// Returns true if there is something to drop.
    pub(in crate::worker) fn can_be_cut(&self) -> bool {
        !self.episodes.is_empty() || !self.estimates.is_empty()
    }

    /// Returns the metrics without the older half of the episodes and of the estimates.
    pub(in crate::worker) fn later_half(&self) -> Self {
        let (episodes, estimates) = (self.episodes.len().div_ceil(2), self.estimates.len().div_ceil(2));
        Self {
            episodes: self.episodes.get(episodes..).unwrap_or_default().to_vec(),
            estimates: self.estimates.get(estimates..).unwrap_or_default().to_vec(),
            forgotten: self.forgotten + (episodes + estimates) as u64,
            quarantined: self.quarantined.clone(),
            warnings: self.warnings.clone(),
            ..*self
        }
    }

    /// Summarises the episodes.
    #[must_use]
    pub fn summary(&self) -> EpisodeSummary {
        EpisodeSummary::of(&self.episodes)
    }
}

/// An off-policy estimate from one episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OffPolicyEstimate {
    /// The policy.
    pub policy: PolicyId,
    /// The estimator.
    pub by: InputEvaluation,
    /// Estimated returns of the behaviour policy, and of the policy.
    pub sample: Sample,
    /// Whether it was estimated as RLlib did before version 2, see
    /// [`RolloutConfig::legacy_step_estimates`](crate::worker::RolloutConfig::legacy_step_estimates).
    pub legacy: bool,
}

impl OffPolicyEstimate {
    /// Returns the values under RLlib's names: `v_behavior`, `v_target`, `v_gain` and `v_delta`; for a legacy estimate
    /// `V_prev`, `V_step_IS` or `V_step_WIS`, and `V_gain_est`.
    #[must_use]
    #[doc(alias("V_prev", "V_step_IS", "V_step_WIS", "V_gain_est"))]
    pub fn metrics(&self) -> Vec<(&'static str, f64)> {
        let Sample { v_behavior, v_target } = self.sample;
        let gain = self.sample.v_gain();
        if self.legacy {
            let step = if self.by == InputEvaluation::Wis { "V_step_WIS" } else { "V_step_IS" };
            return vec![("V_prev", v_behavior), (step, v_target), ("V_gain_est", gain)];
        }
        vec![("v_behavior", v_behavior), ("v_target", v_target), ("v_gain", gain), ("v_delta", v_target - v_behavior)]
    }
}

impl RolloutWorker {
    /// Returns the metrics since the last call: episodes that have ended, in the order of their ends, and off-policy
    /// estimates.
    #[doc(alias("get_metrics", "collect_metrics"))]
    pub fn metrics(&mut self) -> WorkerMetrics {
        self.collect_metrics();
        WorkerMetrics { quarantined: self.quarantined.clone(), ..core::mem::take(&mut self.metrics) }
    }

    /// Collects the sampler's metrics, and drops the oldest ones if they were not read for too long.
    pub(super) fn collect_metrics(&mut self) {
        let opened = &mut self.parts.opened;
        let source = opened.source.as_mut().map(Source::reader_mut);
        let (mut episodes, mut losses) = source.map(|reader| (reader.metrics(), reader.losses())).unwrap_or_default();
        if let Some(simulation) = &mut opened.simulation {
            episodes.extend(simulation.metrics());
            losses.add(simulation.losses());
        }
        let waiting = &mut self.metrics;
        waiting.episodes.append(&mut episodes);
        waiting.discarded_env_steps += losses.env_steps;
        waiting.discarded_agent_steps += losses.agent_steps;
        waiting.blackholed_env_steps += losses.blackholed_env_steps;
        waiting.blackholed_agent_steps += losses.blackholed_agent_steps;
        waiting.corrupt_lines += losses.corrupt_lines;
        for Quarantined { env, reason } in losses.quarantined.iter().filter(|out| !self.quarantined.contains(out)) {
            waiting.warnings.push(WorkerWarning::Quarantined { env: *env, reason: reason.clone() });
        }
        self.quarantined = losses.quarantined;
        let most = WorkerMetrics::MOST;
        waiting.forgotten += keep_latest(&mut waiting.episodes, most) + keep_latest(&mut waiting.estimates, most);
    }

    /// Counts steps that will be in no sample.
    pub(super) fn discard(&mut self, env_steps: usize, agent_steps: usize) {
        self.metrics.discarded_env_steps += env_steps as u64;
        self.metrics.discarded_agent_steps += agent_steps as u64;
    }

    /// Adds a warning if a batch of the sampler has very many rows.
    pub(super) fn look_at_size(&mut self, rows: usize) {
        let fragment = self.parts.fragment_length as usize;
        let threshold = match self.parts.config.batch_mode {
            BatchMode::TruncateEpisodes => fragment.saturating_mul(10).max(1_000),
            BatchMode::CompleteEpisodes => 5_000,
        };
        if rows > threshold && !self.warned {
            self.warned = true;
            self.metrics.warnings.push(WorkerWarning::LargeBatch { rows, threshold });
        }
    }
}

/// Drops the oldest items, once there are twice as many as are kept. Returns how many it has dropped.
fn keep_latest<T>(items: &mut Vec<T>, most: usize) -> u64 {
    let excess = if items.len() > most.saturating_mul(2) { items.len() - most } else { 0 };
    items.drain(..excess);
    excess as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_kept() {
        let mut items = Vec::from_iter(0..6);
        assert_eq!((keep_latest(&mut items, 3), items.len()), (0, 6));
        items.push(6);
        assert_eq!((keep_latest(&mut items, 3), items), (4, vec![4, 5, 6]));
    }
}
