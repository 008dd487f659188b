//! Limits of the metrics of episodes.

use crate::{
    episode::RolloutMetrics,
    prelude::*,
    worker::{CommandError, WorkerMetrics},
};

/// Most names of custom metrics, of lists and of media in an episode.
const MAX_NAMES: usize = 4_096;
/// Most agents of an episode.
const MAX_AGENTS: usize = 65_536;

/// Returns how many names and agents of an episode a hub does not accept.
fn excess(episode: &RolloutMetrics) -> usize {
    let RolloutMetrics { agent_rewards, custom_metrics, hist_data, media, .. } = episode;
    let names = [custom_metrics.len(), hist_data.len(), media.len()].map(|names| names.saturating_sub(MAX_NAMES));
    agent_rewards.len().saturating_sub(MAX_AGENTS) + names.iter().sum::<usize>()
}

/// Returns the metrics with as many names and agents as a hub accepts, and counts the others as forgotten.
pub(super) fn within_limits(metrics: &WorkerMetrics) -> Cow<'_, WorkerMetrics> {
    let excess: usize = metrics.episodes.iter().map(excess).sum();
    if excess == 0 {
        return Cow::Borrowed(metrics);
    }
    let mut cut = metrics.clone();
    cut.forgotten += excess as u64;
    for episode in &mut cut.episodes {
        episode.agent_rewards.truncate(MAX_AGENTS);
        truncate(&mut episode.custom_metrics);
        truncate(&mut episode.hist_data);
        truncate(&mut episode.media);
    }
    Cow::Owned(cut)
}

fn truncate<T>(named: &mut BTreeMap<String, T>) {
    if let Some(first) = named.keys().nth(MAX_NAMES).cloned() {
        named.split_off(&first);
    }
}

/// Checks the same limits of untrusted metrics.
pub(super) fn checked(metrics: WorkerMetrics) -> Result<WorkerMetrics, CommandError> {
    match metrics.episodes.iter().map(excess).max() {
        None | Some(0) => Ok(metrics),
        Some(excess) => {
            Err(CommandError::malformed("metrics", format_args!("an episode has {excess} names or agents too many")))
        }
    }
}
