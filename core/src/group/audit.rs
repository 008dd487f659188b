//! Comparison of fragments: of all bits, or where a policy may have acted on a device, of the environment's bits and of the
//! policy's numbers within a tolerance.

use crate::{
    batch::{
        ACTION_LOGP, Cut, CutReason, EpisodeMetrics, MultiAgentBatch, STATE_IN, SampleBatch, SlotFragment, VF_PREDS,
    },
    column::Column,
    prelude::*,
    sampler::SlotState,
};

/// Most that numbers of a device differ from the kernels', relative to numbers above 1.
const TOLERANCE: f32 = 1e-4;

/// Compares a fragment with one in which its actions were replayed: log-probabilities, values and recurrent states are equal
/// within a tolerance, all else in every bit. False for rows by policy, whose advantages mix both.
pub(super) fn same_within_tolerance(a: &SlotFragment, b: &SlotFragment) -> bool {
    let cut = |cut: &Cut| (cut.end, cut.reason);
    let states = SlotState::decode(&a.state).ok().zip(SlotState::decode(&b.state).ok());
    (a.slot, a.fragment, a.weights_version) == (b.slot, b.fragment, b.weights_version)
        && (a.first_episode, a.first_t) == (b.first_episode, b.first_t)
        && a.agents.is_none()
        && b.agents.is_none()
        && a.cuts.iter().map(cut).eq(b.cuts.iter().map(cut))
        && a.cuts.iter().zip(&b.cuts).all(|(a, b)| is_near(a.bootstrap_value, b.bootstrap_value))
        && a.episodes.iter().map(episode_bits).eq(b.episodes.iter().map(episode_bits))
        && same_rows(&a.rows, &b.rows)
        && a.final_obs.same_bits(&b.final_obs)
        && states.is_some_and(|(a, b)| same_state(&a, &b))
}

fn same_rows(a: &SampleBatch, b: &SampleBatch) -> bool {
    let same = |(name, column): (&str, &Column)| {
        let is_policys = [ACTION_LOGP.name(), VF_PREDS.name()].contains(&name) || name.starts_with(STATE_IN);
        b.column(name).is_some_and(|other| match (is_policys, column, other) {
            (true, Column::F32(a), Column::F32(b)) => are_near(a.values(), b.values()),
            _ => column.same_bits(other),
        })
    };
    a.len() == b.len() && a.seq_lens() == b.seq_lens() && a.iter().len() == b.iter().len() && a.iter().all(same)
}

fn same_state(a: &SlotState, b: &SlotState) -> bool {
    let of_env = |state: &SlotState| (state.episode, state.t, state.episode_return.to_bits());
    of_env(a) == of_env(b) && a.env == b.env && are_near(&a.recurrent, &b.recurrent)
}

fn are_near(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_near(*a, *b))
}

fn is_near(a: f32, b: f32) -> bool {
    (a - b).abs() <= TOLERANCE * a.abs().max(1.0)
}

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

/// Metrics of callbacks may depend on the worker, such as times, and the learner does not use them: they are not compared,
/// other than the rewards of policies among them.
fn episode_bits(episode: &EpisodeMetrics) -> (u32, u32, u64, Vec<(&str, u64)>) {
    let is_own = |(name, _): &(&String, &f64)| name.starts_with(EpisodeMetrics::POLICY_REWARD_MEAN);
    let rewards = episode.custom_metrics.iter().filter(is_own);
    let rewards = rewards.map(|(name, reward)| (name.as_str(), reward.to_bits())).collect();
    (episode.episode, episode.len, episode.episode_return.to_bits(), rewards)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewards_of_policies_are_compared_and_metrics_of_callbacks_are_not() {
        let fragment = |reward: Option<f64>, seconds: f64| {
            let reward = reward.map(|reward| (format!("{}car", EpisodeMetrics::POLICY_REWARD_MEAN), reward));
            let custom_metrics = reward.into_iter().chain([("seconds".into(), seconds)]).collect_ordered();
            let episodes = vec![EpisodeMetrics { custom_metrics, ..EpisodeMetrics::default() }];
            SlotFragment { episodes, ..SlotFragment::default() }
        };
        let honest = fragment(Some(1.5), 0.1);
        assert!(same_bits(&honest, &fragment(Some(1.5), 7.0)));
        assert!(!same_bits(&honest, &fragment(Some(9.5), 0.1)) && !same_bits(&honest, &fragment(None, 0.1)));
    }
}
