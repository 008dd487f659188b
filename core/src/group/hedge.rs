//! When a lease is overdue, so that an idle worker may be granted its slots as well.

use crate::{prelude::*, time::Micros};

/// Durations of the latest leases of all workers, from grant to the last commit.
#[derive(Debug)]
pub(super) struct Durations {
    floor: Micros,
    latest: VecDeque<Micros>,
    overdue_after: Micros,
}

impl Durations {
    /// Number of leases that the median is taken over.
    const WINDOW: usize = 32;
    /// A lease is overdue after this many medians.
    const FACTOR: u64 = 3;

    pub(super) fn new(floor: Micros) -> Self {
        Self { floor, latest: VecDeque::with_capacity(Self::WINDOW), overdue_after: floor }
    }

    pub(super) fn record(&mut self, took: Micros) {
        if self.latest.len() == Self::WINDOW {
            self.latest.pop_front();
        }
        self.latest.push_back(took);
        let mut sorted: Vec<Micros> = self.latest.iter().copied().collect();
        sorted.sort_unstable();
        self.overdue_after = self.floor.max(sorted[sorted.len() / 2].times(Self::FACTOR));
    }

    /// Returns the age from which a lease is overdue: three medians, but at least the floor, below which doing the work
    /// twice costs more than waiting.
    pub(super) fn overdue_after(&self) -> Micros {
        self.overdue_after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overdue_is_three_medians_but_not_below_the_floor() {
        let mut durations = Durations::new(Micros(100));
        assert_eq!(durations.overdue_after(), Micros(100));
        durations.record(Micros(10));
        assert_eq!(durations.overdue_after(), Micros(100));
        for took in [500, 400, 1_000_000, 300] {
            durations.record(Micros(took));
        }
        assert_eq!(durations.overdue_after(), Micros(1_200));
        for _ in 0..32 {
            durations.record(Micros(50));
        }
        assert_eq!(durations.overdue_after(), Micros(150));
    }
}
