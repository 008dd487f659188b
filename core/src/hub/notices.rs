//! Limits on the notices that peers can cause, and on the offences that a hub tolerates.

use crate::{prelude::*, time::Micros};

/// Rate limit for notices that any peer may cause.
#[derive(Clone, Debug, Default)]
pub struct NoticeRate {
    second: u64,
    said: u32,
    left_out: u32,
}

impl NoticeRate {
    /// Most notices per second; the rest is counted.
    pub const MAX: u32 = 50;

    /// Returns the notice, with the number of the notices dropped before it; `None` above the limit.
    pub fn say(&mut self, text: String, now: Micros) -> Option<String> {
        let second = now.0 / 1_000_000;
        if second != self.second {
            (self.second, self.said) = (second, 0);
        }
        if self.said >= Self::MAX {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.said += 1;
        match core::mem::take(&mut self.left_out) {
            0 => Some(text),
            more => Some(format!("{text} (and {more} more like it before)")),
        }
    }
}

/// A peer's recent unsolicited messages. Messages cross on the way, so correct peers send some, too, but not
/// repeatedly.
#[derive(Clone, Debug, Default)]
pub struct Offences {
    second: u64,
    number: u32,
}

impl Offences {
    /// Most unsolicited messages; the count decreases by one every second.
    pub const MAX: u32 = 100;

    /// Counts one more. Returns true if there are too many.
    pub fn add(&mut self, now: Micros) -> bool {
        let second = now.0 / 1_000_000;
        let forgotten = u32::try_from(second.saturating_sub(self.second)).unwrap_or(u32::MAX);
        self.second = second;
        self.number = self.number.saturating_sub(forgotten).saturating_add(1);
        self.number > Self::MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_above_the_rate_are_counted_and_not_said() {
        let mut rate = NoticeRate::default();
        let mut say = |ms: u64| rate.say("bad".into(), Micros::from_millis(ms));
        assert!((0..NoticeRate::MAX).all(|_| say(10) == Some("bad".into())));
        assert_eq!((say(20), say(999)), (None, None));
        assert_eq!(say(1000), Some("bad (and 2 more like it before)".into()));
        assert_eq!(say(1001), Some("bad".into()));
    }

    #[test]
    fn past_offences_are_forgotten() {
        let mut offences = Offences::default();
        let mut add = |s: u64| offences.add(Micros::from_millis(s * 1_000));
        // One offence per second is tolerated for ever.
        assert!((0..10 * u64::from(Offences::MAX)).all(|s| !add(s)));
        assert!((1..Offences::MAX).all(|_| !add(10_000)));
        assert_eq!((add(10_000), add(10_000)), (false, true));
    }
}
