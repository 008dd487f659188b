//! The connection to the hub, as people see it.

/// How the page stands with the hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// There is no token, so there is no point in trying.
    #[default]
    NoToken,
    /// The socket is being opened, or the hub has not answered yet.
    Connecting {
        /// Tries before this one that failed.
        attempt: u32,
    },
    /// The hub has accepted the page.
    Online {
        /// The hub's name and version.
        server: String,
    },
    /// The hub is not in reach; the page tries again by itself.
    Waiting {
        /// Tries so far that failed.
        attempt: u32,
    },
    /// The hub does not accept the page; trying again would not help.
    Refused {
        /// What is wrong and what to do about it.
        reason: String,
    },
}

impl Connection {
    /// Failed tries in a row.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        match self {
            Self::Connecting { attempt } | Self::Waiting { attempt } => *attempt,
            Self::NoToken | Self::Online { .. } | Self::Refused { .. } => 0,
        }
    }
}

const FIRST_RETRY_MS: f64 = 400.0;
const LAST_RETRY_MS: f64 = 8_000.0;

/// Time to wait after `attempt` failed tries in a row: doubling up to eight seconds, of which a random half
/// is spent, so that many pages do not come back to a restarted hub in the same instant.
#[must_use]
pub fn retry_delay_ms(attempt: u32, random: f64) -> u32 {
    let doubled = FIRST_RETRY_MS * f64::from(1_u32 << attempt.saturating_sub(1).min(10));
    let longest = doubled.min(LAST_RETRY_MS);
    (longest * (0.5 + 0.5 * random.clamp(0.0, 1.0))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_bound_and_keep_half_of_it() {
        assert_eq!(retry_delay_ms(1, 0.0), 200);
        assert_eq!(retry_delay_ms(1, 1.0), 400);
        assert_eq!(retry_delay_ms(3, 1.0), 1_600);
        assert_eq!(retry_delay_ms(40, 1.0), 8_000);
        assert_eq!(retry_delay_ms(u32::MAX, 0.0), 4_000);
    }
}
