//! Delays before reconnecting after a connection was lost or could not be opened.

use crate::time::Micros;

const FIRST: Micros = Micros::from_millis(400);
const LONGEST: Micros = Micros::from_secs(8);

/// Returns the delay after `attempt` consecutive failures: exponential backoff from 0.4 s to 8 s. A random part of its
/// second half is omitted (jitter), so that many peers do not reconnect to a restarted hub in the same instant.
///
/// `random` is uniform over all 32-bit numbers.
#[must_use]
pub fn reconnect_delay(attempt: u32, random: u32) -> Micros {
    let doublings = attempt.saturating_sub(1).min(10);
    let longest = FIRST.times(1 << doublings).min(LONGEST);
    let half = longest.0 / 2;
    Micros(half + ((half * u64::from(random)) >> 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_to_a_bound_and_keep_half_of_it() {
        let ms = |attempt, random| reconnect_delay(attempt, random).0 / 1_000;
        assert_eq!([ms(0, 0), ms(1, 0), ms(2, 0), ms(3, 0)], [200, 200, 400, 800]);
        assert_eq!([ms(1, u32::MAX), ms(40, u32::MAX), ms(u32::MAX, 0)], [399, 7_999, 4_000]);
        assert_eq!(ms(1, 1 << 31), 300);
    }
}
