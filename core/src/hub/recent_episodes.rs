//! The latest episodes of a run, for its means and its stop condition.

use crate::{
    batch::{EpisodeMetrics, SlotFragment},
    episode::Spread,
    prelude::*,
};

/// The latest finished episodes of a run.
#[derive(Clone, Debug, Default)]
pub struct RecentEpisodes {
    finished: u64,
    recent: VecDeque<EpisodeMetrics>,
}

impl RecentEpisodes {
    /// Episodes that means are taken over.
    pub const WINDOW: usize = 100;

    /// Returns a window of which `finished` episodes have ended, these last.
    #[must_use]
    pub fn of(finished: u64, recent: impl Iterator<Item = EpisodeMetrics>) -> Self {
        Self { finished, recent: recent.collect() }
    }

    /// Returns how many episodes have ended so far.
    #[must_use]
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// Iterates over the latest episodes, oldest first.
    pub fn recent(&self) -> impl Iterator<Item = &EpisodeMetrics> {
        self.recent.iter()
    }

    /// Counts the episodes of a batch: slot by slot, each slot's in order.
    pub fn count(&mut self, fragments: &[SlotFragment]) {
        let number: usize = fragments.iter().map(|fragment| fragment.episodes.len()).sum();
        // A full window of later episodes would push the others out again.
        let passed = number.saturating_sub(Self::WINDOW);
        self.finished += passed as u64;
        let episodes = fragments.iter().flat_map(|fragment| &fragment.episodes);
        episodes.skip(passed).for_each(|episode| self.push(episode.clone()));
    }

    /// Counts an episode.
    pub fn push(&mut self, episode: EpisodeMetrics) {
        self.finished += 1;
        if self.recent.len() == Self::WINDOW {
            self.recent.pop_front();
        }
        self.recent.push_back(episode);
    }

    /// Returns the mean return of the latest episodes, `None` before the first.
    #[must_use]
    pub fn return_mean(&self) -> Option<f64> {
        self.mean(|episode| episode.episode_return)
    }

    /// Returns a quantile of their returns, linear between ranks, `None` before the first.
    #[must_use]
    pub fn return_quantile(&self, part: f64) -> Option<f64> {
        let mut returns: Vec<f64> = self.recent.iter().map(|episode| episode.episode_return).collect();
        returns.sort_by(f64::total_cmp);
        let last = returns.len().checked_sub(1)?;
        let rank = part * last as f64;
        let below = (rank as usize).min(last);
        let (low, high) = (returns[below], returns[(below + 1).min(last)]);
        Some(low + (rank - below as f64) * (high - low))
    }

    /// Returns their mean length in env steps, `None` before the first.
    #[must_use]
    pub fn len_mean(&self) -> Option<f64> {
        self.mean(|episode| f64::from(episode.len))
    }

    /// Returns the mean rewards of the agents of each named policy, and what callbacks have recorded, by name.
    #[must_use]
    pub fn by_name(&self) -> (BTreeMap<String, f64>, BTreeMap<String, Spread>) {
        let spreads = Spread::by_name(self.recent.iter().flat_map(|episode| &episode.custom_metrics));
        let (mut rewards, mut custom) = (BTreeMap::new(), BTreeMap::new());
        for (name, spread) in spreads {
            let Some(spread) = spread.finite() else { continue };
            match name.strip_prefix(EpisodeMetrics::POLICY_REWARD_MEAN) {
                Some(policy) => _ = rewards.insert(policy.to_owned(), spread.mean),
                None => _ = custom.insert(name, spread),
            }
        }
        (rewards, custom)
    }

    /// Returns true once the mean return is one of a full window and at least `target`.
    #[must_use]
    pub fn have_reached(&self, target: f64) -> bool {
        self.recent.len() == Self::WINDOW && self.return_mean().is_some_and(|mean| mean >= target)
    }

    fn mean(&self, of: impl Fn(&EpisodeMetrics) -> f64) -> Option<f64> {
        (!self.recent.is_empty()).then(|| self.recent.iter().map(of).sum::<f64>() / self.recent.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn episodes(returns: impl IntoIterator<Item = f64>) -> RecentEpisodes {
        let mut episodes = RecentEpisodes::default();
        for (i, episode_return) in returns.into_iter().enumerate() {
            episodes.push(EpisodeMetrics { episode: i as u32, len: 2, episode_return, ..EpisodeMetrics::default() });
        }
        episodes
    }

    #[test]
    fn long_batch_counts_all_episodes_and_keeps_the_latest() {
        let batch = |returns: core::ops::Range<u32>| {
            let episode = |i| EpisodeMetrics { episode: i, episode_return: i.into(), ..EpisodeMetrics::default() };
            SlotFragment { episodes: returns.map(episode).collect(), ..SlotFragment::default() }
        };
        let mut episodes = RecentEpisodes::default();
        episodes.count(&[batch(0..30), batch(30..60)]);
        episodes.count(&[batch(60..200), batch(200..290)]);
        assert_eq!(episodes.finished(), 290);
        assert!(episodes.recent().map(|episode| episode.episode).eq(190..290));
    }

    #[test]
    fn quantiles_lie_between_the_ranks_of_the_returns() {
        let part = |returns: &[f64], part| episodes(returns.iter().copied()).return_quantile(part);
        assert_eq!(part(&[], 0.5), None);
        assert_eq!([0.0, 0.1, 0.9, 1.0].map(|it| part(&[7.0], it)), [Some(7.0); 4]);
        assert_eq!([0.0, 0.25, 0.5, 1.0].map(|it| part(&[30.0, 10.0, 20.0], it)), [10.0, 15.0, 20.0, 30.0].map(Some));
    }

    #[test]
    fn target_is_reached_only_with_a_full_window() {
        assert_eq!(episodes([]).return_mean(), None);
        assert!(!episodes([500.0; 99]).have_reached(475.0));
        assert!(episodes([500.0; 100]).have_reached(475.0));
        let recovered = episodes(core::iter::repeat_n(0.0, 50).chain(core::iter::repeat_n(500.0, 100)));
        assert!(recovered.have_reached(500.0));
        assert!(!recovered.have_reached(500.1));
    }
}
