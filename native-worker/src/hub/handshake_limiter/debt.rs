//! Failures of unauthenticated peers, and the time for which they count.

use std::{collections::VecDeque, net::IpAddr, time::Duration};

use tokio::time::Instant;

/// The recent failures of an address.
#[derive(Default)]
pub(super) struct Failing {
    pub(super) times: VecDeque<Instant>,
    pub(super) debt: Debt,
}

/// A debt of failures: each is paid off by its share of a second.
#[derive(Default)]
pub(super) struct Debt(Option<Instant>);

impl Debt {
    pub(super) fn add(&mut self, now: Instant, per_s: u32) {
        self.0 = Some(self.0.map_or(now, |paid| paid.max(now)) + Duration::from_secs(1) / per_s);
    }

    /// Returns when at most one second of debt is left.
    pub(super) fn bearable_from(&self, now: Instant) -> Instant {
        self.0.and_then(|paid| paid.checked_sub(Duration::from_secs(1))).map_or(now, |bearable| bearable.max(now))
    }
}

/// Returns the address that stands for all of a source: for IPv6 the /64 network, since its owner can use any address
/// in it.
pub(super) fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        address => address,
    }
}
