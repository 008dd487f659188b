//! A rate limiter.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A token bucket: allows a burst of one second's worth, then an even rate.
pub(super) struct RateLimiter {
    each: Duration,
    /// The time at which everything admitted so far would be due at an even rate.
    due: Instant,
}

impl RateLimiter {
    pub(super) fn new(per_s: u32) -> Self {
        Self { each: Duration::from_secs(1) / per_s.max(1), due: Instant::now() }
    }

    /// Waits until one more may pass.
    pub(super) async fn next(&mut self) {
        if let Some(time) = self.pass(Instant::now()) {
            sleep_until(time).await;
        }
    }

    /// Admits one more; if that is not possible now, returns the time to retry.
    fn pass(&mut self, now: Instant) -> Option<Instant> {
        self.due = self.due.max(now) + self.each;
        self.due.checked_sub(Duration::from_secs(1)).filter(|time| *time > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_second_is_unthrottled_and_later_messages_are_evenly_spaced() {
        let mut rate_limiter = RateLimiter::new(10);
        let now = Instant::now();
        assert!((0..10).all(|_| rate_limiter.pass(now).is_none()));
        assert_eq!(rate_limiter.pass(now), Some(now + Duration::from_millis(100)));
        assert_eq!(rate_limiter.pass(now), Some(now + Duration::from_millis(200)));
        assert_eq!(rate_limiter.pass(now + Duration::from_secs(1)), None);
    }
}
