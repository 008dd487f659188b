//! Env steps per second over the last seconds.

use std::collections::VecDeque;

use rollmesh_core::time::Micros;

const WINDOW: Micros = Micros::from_secs(4);

/// The counts of the last seconds.
#[derive(Debug, Default)]
pub(crate) struct Rate {
    counts: VecDeque<(Micros, u64)>,
}

impl Rate {
    /// Records a count, which never falls, at this time.
    pub(crate) fn record(&mut self, now: Micros, count: u64) {
        self.counts.push_back((now, count));
        // The oldest kept count is just outside of the window, so that the counts cover the window.
        while self.counts.get(1).is_some_and(|(at, _)| now.since(*at) >= WINDOW) {
            self.counts.pop_front();
        }
    }

    /// Returns the counts per second.
    pub(crate) fn per_second(&self) -> f64 {
        match (self.counts.front(), self.counts.back()) {
            (Some((from, least)), Some((to, most))) if to > from => {
                (most - least) as f64 * 1e6 / to.since(*from).0 as f64
            }
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_follows_the_last_seconds() {
        let mut rate = Rate::default();
        assert_eq!(rate.per_second(), 0.0);
        for second in 0..10 {
            rate.record(Micros::from_secs(second), second * 100);
        }
        assert_eq!(rate.per_second(), 100.0);
        for second in 10..15 {
            rate.record(Micros::from_secs(second), 900);
        }
        assert_eq!(rate.per_second(), 0.0);
        assert!(rate.counts.len() <= 6);
    }
}
