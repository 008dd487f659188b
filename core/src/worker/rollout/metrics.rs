//! What became of the episodes.

use super::{RolloutWorker, Source};
use crate::{
    episode::{EpisodeSummary, Losses, Quarantined, RolloutMetrics},
    estimate::Sample,
    ids::PolicyId,
    prelude::*,
    sampler::{BatchMode, SamplerInput as _},
    worker::config::InputEvaluation,
};

/// What has happened since the last time somebody asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerMetrics {
    /// Episodes that have ended.
    pub episodes: Vec<RolloutMetrics>,
    /// Env steps that were taken and will be in no sample, see [`Losses`]; also those of samples that callbacks or an
    /// output refused.
    pub discarded_env_steps: u64,
    /// Rows of agents in those.
    pub discarded_agent_steps: u64,
    /// Env steps of the input evaluation `simulation`: counted, told in [`episodes`](Self::episodes), and in no sample, so that
    /// nobody learns from them.
    #[doc(alias = "blackhole_outputs")]
    pub blackholed_env_steps: u64,
    /// Rows of agents in those.
    pub blackholed_agent_steps: u64,
    /// Lines of the input's files that were passed over since they are no batches.
    pub corrupt_lines: u64,
    /// The sub-environments that failed too often and are in quarantine now: the others go on. They get another chance
    /// when the worker's state is [restored](RolloutWorker::restore), or when a callback restarts them.
    pub quarantined: Vec<Quarantined>,
    /// How good policies would have been in the episodes that were read.
    pub estimates: Vec<OffPolicyEstimate>,
    /// Episodes and estimates that nobody asked for in time: the oldest ones, beyond [`MOST`](Self::MOST) of each. Over a wire
    /// also those that one message has no room for, and names of an episode's numbers beyond 4,096.
    pub forgotten: u64,
    /// What may be a mistake; everything is said once.
    pub warnings: Vec<WorkerWarning>,
}

/// What may be a mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerWarning {
    /// The sampler gave a batch of very many rows. As in RLlib, that is more than 1000 and ten fragments, or 5000 where
    /// episodes are complete.
    #[error(
        "a batch of {rows} rows came from an episode, where more than {threshold} are rare: see that episodes end, or \
         set a horizon"
    )]
    LargeBatch {
        /// Its rows.
        rows: usize,
        /// The most that are usual.
        threshold: usize,
    },
    /// A sub-environment was taken out. The others go on, and sample as much as all would.
    #[error("sub-environment {env} has failed again and again and is in quarantine: {reason}")]
    Quarantined {
        /// Its index.
        env: usize,
        /// Its last failure.
        reason: String,
    },
}

impl WorkerMetrics {
    /// Episodes, and estimates, that at least wait for somebody to ask.
    pub const MOST: usize = 100_000;

    /// True if there is something to forget.
    pub(in crate::worker) fn can_be_cut(&self) -> bool {
        !self.episodes.is_empty() || !self.estimates.is_empty()
    }

    /// Without the older half of the episodes and of the estimates.
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

    /// The episodes in a few numbers.
    #[must_use]
    pub fn summary(&self) -> EpisodeSummary {
        EpisodeSummary::of(&self.episodes)
    }
}

/// How good a policy would have been in one episode.
#[derive(Clone, Debug, PartialEq)]
pub struct OffPolicyEstimate {
    /// The policy.
    pub policy: PolicyId,
    /// How it was estimated.
    pub by: InputEvaluation,
    /// Returns of who acted, and of the policy.
    pub sample: Sample,
    /// Whether it was estimated as RLlib did before version 2, see
    /// [`RolloutConfig::legacy_step_estimates`](crate::worker::RolloutConfig::legacy_step_estimates).
    pub legacy: bool,
}

impl OffPolicyEstimate {
    /// The numbers under RLlib's names: `v_behavior`, `v_target`, `v_gain` and `v_delta`; of a legacy one `V_prev`, `V_step_IS`
    /// or `V_step_WIS`, and `V_gain_est`.
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
    /// Episodes that have ended since the last call, in the order of their ends, and estimates of policies.
    #[doc(alias("get_metrics", "collect_metrics"))]
    pub fn metrics(&mut self) -> WorkerMetrics {
        self.collect_metrics();
        WorkerMetrics { quarantined: self.quarantined.clone(), ..core::mem::take(&mut self.metrics) }
    }

    /// Fetches what the sampler knows of episodes, and forgets the oldest ones if nobody has asked for too long.
    pub(super) fn collect_metrics(&mut self) {
        let opened = &mut self.parts.opened;
        let (mut episodes, mut losses) = match &mut opened.source {
            Source::None => (Vec::new(), Losses::default()),
            Source::Lockstep(sampler) => (sampler.metrics(), sampler.losses()),
            Source::Reader(sampler) => (sampler.metrics(), sampler.losses()),
            Source::Input(reader) => (reader.metrics(), reader.losses()),
        };
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

    /// Steps that were taken will be in no sample.
    pub(super) fn discard(&mut self, env_steps: usize, agent_steps: usize) {
        self.metrics.discarded_env_steps += env_steps as u64;
        self.metrics.discarded_agent_steps += agent_steps as u64;
    }

    /// Says so if a batch of the sampler has very many rows.
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

/// Forgets the oldest items, once there are twice as many as are kept. Says how many it has forgotten.
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
