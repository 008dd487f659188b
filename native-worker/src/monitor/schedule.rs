//! The schedule of recorded episodes.

/// The rule that selects the episodes to record, by their numbers from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Schedule {
    /// Numbers 1, 8, 27 and the other cubes up to 1000, then every 1000th: many while much changes, and few later.
    #[default]
    #[doc(alias = "capped_cubic_video_schedule")]
    Cubic,
    /// All.
    All,
}

impl Schedule {
    /// Returns whether the episode with this number is recorded.
    #[must_use]
    pub fn includes(self, episode: u64) -> bool {
        match self {
            Self::Cubic if episode < 1000 => (1..10).any(|root: u64| root.pow(3) == episode),
            Self::Cubic => episode.is_multiple_of(1000),
            Self::All => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cubes_come_first_and_then_thousands() {
        let recorded: Vec<u64> = (0..4_001).filter(|number| Schedule::Cubic.includes(*number)).collect();
        assert_eq!(recorded, [1, 8, 27, 64, 125, 216, 343, 512, 729, 1000, 2000, 3000, 4000]);
        assert!((1..50).all(|number| Schedule::All.includes(number)));
    }
}
