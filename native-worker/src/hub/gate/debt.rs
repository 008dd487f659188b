//! What strangers have got wrong, and how long that weighs on them.

use std::{collections::VecDeque, net::IpAddr, time::Duration};

use tokio::time::Instant;

/// What an address has got wrong lately.
#[derive(Default)]
pub(super) struct Failing {
    pub(super) times: VecDeque<Instant>,
    pub(super) debt: Debt,
}

/// Failures, each of which takes its share of a second to be paid for.
#[derive(Default)]
pub(super) struct Debt(Option<Instant>);

impl Debt {
    pub(super) fn add(&mut self, now: Instant, per_s: u32) {
        self.0 = Some(self.0.map_or(now, |paid| paid.max(now)) + Duration::from_secs(1) / per_s);
    }

    /// When no more than a second of it is left.
    pub(super) fn bearable_from(&self, now: Instant) -> Instant {
        self.0.and_then(|paid| paid.checked_sub(Duration::from_secs(1))).map_or(now, |bearable| bearable.max(now))
    }
}

/// What counts as one address: of IPv6 a network, since everybody has as many addresses of one as they like.
pub(super) fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        address => address,
    }
}
