//! Bitwise comparison of fragments.

use crate::batch::{Cut, CutReason, EpisodeMetrics, MultiAgentBatch, SlotFragment};

/// Compares bits: unlike with `==`, a NaN equals itself and -0.0 differs from 0.0.
pub(super) fn same_bits(a: &SlotFragment, b: &SlotFragment) -> bool {
    (a.slot, a.fragment, a.weights_version) == (b.slot, b.fragment, b.weights_version)
        && (a.first_episode, a.first_t, &a.state) == (b.first_episode, b.first_t, &b.state)
        && a.cuts.iter().map(cut_bits).eq(b.cuts.iter().map(cut_bits))
        && a.episodes.iter().map(episode_bits).eq(b.episodes.iter().map(episode_bits))
        && a.rows.same_bits(&b.rows)
        && a.final_obs.same_bits(&b.final_obs)
        && match (&a.agents, &b.agents) {
            (Some(a), Some(b)) => same_agents(a, b),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
}

fn same_agents(a: &MultiAgentBatch, b: &MultiAgentBatch) -> bool {
    a.env_steps == b.env_steps
        && a.policy_batches.keys().eq(b.policy_batches.keys())
        && a.policy_batches.values().zip(b.policy_batches.values()).all(|(a, b)| a.same_bits(b))
}

fn cut_bits(cut: &Cut) -> (u32, CutReason, u32) {
    (cut.end, cut.reason, cut.bootstrap_value.to_bits())
}

/// Custom metrics may depend on the worker, such as times; the learner does not use them, so they are not compared.
fn episode_bits(episode: &EpisodeMetrics) -> (u32, u32, u64) {
    (episode.episode, episode.len, episode.episode_return.to_bits())
}
