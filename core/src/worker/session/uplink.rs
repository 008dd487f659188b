//! The speed of a worker's link to its hub, from the hub's credits: uploads are compressed for a link that is slower
//! than the codec.

use crate::{protocol::CHUNK_BYTES, time::Micros};

/// Bytes that a slow core compresses per second. A link below that is the bottleneck of an upload.
const CODEC_BYTES_PER_S: u64 = 50_000_000;
/// After an upload that compression does not shorten, as many are sent as they are.
const PAUSE: u32 = 15;
/// After this many compressed uploads, one is sent as it is: those of a link that has become fast never wait, so that its
/// speed is not measured.
const PROBE: u32 = 64;

/// The speed of a link, as far as uploads have had to wait for it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uplink {
    now: Micros,
    /// Since when the worker does not serve its connection.
    busy_since: Option<Micros>,
    /// The duration for which it last did not serve it; 0 if it is known that no credit came meanwhile.
    busy: Micros,
    /// Since when how many bytes wait for credit.
    waiting: Option<(Micros, usize)>,
    /// The mean over the latest waits.
    bytes_per_s: Option<u64>,
    pause: u32,
    /// Compressed uploads since the link was last measured with one that is not.
    compressed: u32,
}

impl Uplink {
    pub(super) fn set_time(&mut self, now: Micros) {
        self.now = now;
        self.busy = self.busy_since.take().map_or(self.busy, |since| now.since(since));
    }

    /// Records that the worker does something else until its connection is served again, which [`set_time`](Self::set_time)
    /// reports.
    pub(super) fn begin_work(&mut self, now: Micros) {
        self.busy_since.get_or_insert(now);
    }

    /// Records that everything that came while the worker was busy was handled: no credit was among it since the latest
    /// observation, and what comes from now on is no credit of that time.
    pub(super) fn has_caught_up(&mut self) {
        self.busy = Micros(0);
    }

    /// Records the bytes that are queued once everything was sent that may be sent.
    pub(super) fn observe(&mut self, queued: usize) {
        if let Some((since, before)) = self.waiting {
            // Credit that came while the worker was busy may have come at its beginning: the link took no time.
            let (sent, micros) = (before.saturating_sub(queued), self.now.since(since).since(self.busy).0);
            // A clock of low resolution may stand still between two credits.
            if queued > 0 && (queued == before || micros == 0 && self.busy == Micros(0)) {
                return;
            }
            // Less is little evidence about the link: it may have waited for the hub's answer to the hello.
            if sent >= CHUNK_BYTES as usize && micros > 0 {
                let latest = (sent as u64).saturating_mul(1_000_000) / micros;
                self.bytes_per_s = Some(self.bytes_per_s.map_or(latest, |mean| (3 * mean + latest) / 4));
            }
        }
        self.waiting = (queued > 0).then_some((self.now, queued));
        self.busy = Micros(0);
    }

    /// Returns whether the next upload should be compressed.
    pub(super) fn is_slow(&mut self) -> bool {
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        let is_slow = self.bytes_per_s.is_some_and(|bytes_per_s| bytes_per_s < CODEC_BYTES_PER_S);
        self.compressed = if is_slow && self.compressed < PROBE { self.compressed + 1 } else { 0 };
        self.compressed > 0
    }

    /// Records that compression did not shorten an upload.
    pub(super) fn give_up(&mut self) {
        self.pause = PAUSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends 4 MB over a link that takes this long for half a megabyte.
    fn after(micros: u64) -> Uplink {
        let mut uplink = Uplink::default();
        for part in 0..8 {
            uplink.set_time(Micros(1 + part * micros));
            uplink.observe(4_000_000 - 500_000 * part as usize);
        }
        uplink.set_time(Micros(1 + 8 * micros));
        uplink.observe(0);
        uplink
    }

    #[test]
    fn only_links_slower_than_the_codec_are_slow() {
        assert!(after(40_000).is_slow(), "100 Mbit/s");
        assert!(!after(4_000).is_slow(), "1 Gbit/s");
        assert!(!after(0).is_slow(), "the clock stands still");
        let mut unknown = Uplink::default();
        unknown.observe(0);
        assert!(!unknown.is_slow(), "no upload has had to wait");
    }

    #[test]
    fn work_of_the_worker_is_no_time_of_its_link() {
        // Half a megabyte arrives while the worker is busy, for as long as it takes on a slow link.
        let busy = |millis_before: u64| {
            let mut uplink = Uplink::default();
            for part in 0..8 {
                let began = Micros::from_millis(100 * part);
                uplink.set_time(began);
                uplink.observe(4_000_000 - 500_000 * part as usize);
                uplink.begin_work(Micros(began.0 + 1_000 * millis_before));
            }
            uplink.is_slow()
        };
        assert!(!busy(1), "the credit may have come at the beginning");
        assert!(busy(40), "no credit had come before the worker was busy");
    }

    #[test]
    fn time_that_the_worker_waits_after_its_work_is_time_of_its_link() {
        // The worker is busy for 30 ms; half a megabyte is credited while it is, or 20 ms later.
        let speed = |is_credited_late: bool| {
            let mut uplink = Uplink::default();
            uplink.set_time(Micros(0));
            uplink.observe(4_000_000);
            uplink.begin_work(Micros(0));
            uplink.begin_work(Micros::from_millis(20));
            uplink.set_time(Micros::from_millis(30));
            uplink.observe(4_000_000);
            if is_credited_late {
                uplink.has_caught_up();
            }
            uplink.set_time(Micros::from_millis(if is_credited_late { 50 } else { 31 }));
            uplink.observe(3_500_000);
            uplink.bytes_per_s
        };
        assert_eq!(speed(true), Some(10_000_000));
        assert_eq!(speed(false), Some(500_000_000), "it may have come at the beginning");
    }

    #[test]
    fn slow_link_is_remeasured_periodically() {
        let mut uplink = after(40_000);
        assert_eq!((0..2 * (PROBE + 1)).filter(|_| !uplink.is_slow()).count(), 2);
    }

    #[test]
    fn uploads_that_compression_does_not_shorten_are_sent_as_they_are_for_a_while() {
        let mut uplink = after(40_000);
        uplink.give_up();
        assert_eq!((0..20).filter(|_| uplink.is_slow()).count(), 20 - PAUSE as usize);
    }
}
