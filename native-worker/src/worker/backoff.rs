//! Pauses between attempts.

use std::time::Duration;

/// The first pause, before the random part.
const FIRST: Duration = Duration::from_millis(100);
/// The longest pause, before the random part.
const LONGEST: Duration = Duration::from_secs(5);

/// Pauses that double, each with a random part, so that many workers do not come back at once.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after another failure; `random` is any number.
    pub(super) fn next(&mut self, random: u32) -> Duration {
        let pause = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures += 1;
        pause.mul_f64(0.5 + 0.5 * f64::from(random) / f64::from(u32::MAX))
    }

    /// An attempt succeeded.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let mut backoff = Backoff::default();
        let pauses: Vec<_> = (0..8).map(|_| backoff.next(u32::MAX).as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(backoff.next(0).as_millis(), 2500);
        backoff.reset();
        assert_eq!(backoff.next(u32::MAX).as_millis(), 100);
    }
}
