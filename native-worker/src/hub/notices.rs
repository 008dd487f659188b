//! Notices for users, and records for the audit log.

use rollmesh_core::time::Micros;

use super::{
    HubNotice,
    actor::Actor,
    audit::Record,
    departure::Departure,
    limits::{MAX_LOUD_NOTICES, MAX_OFFENCES},
    monitoring::HUB,
};
use crate::{lines::LineNews, train::Run};

/// Rate limit for notices that any peer may cause.
#[derive(Default)]
pub(super) struct Loud {
    second: u64,
    said: u32,
    left_out: u32,
}

impl Loud {
    /// Returns the notice, with the number of those left out before it; `None` above the limit.
    fn say(&mut self, text: String, now: Micros) -> Option<String> {
        let second = now.0 / 1_000_000;
        if second != self.second {
            (self.second, self.said) = (second, 0);
        }
        if self.said >= MAX_LOUD_NOTICES {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.said += 1;
        match std::mem::take(&mut self.left_out) {
            0 => Some(text),
            more => Some(format!("{text} (and {more} more like it before)")),
        }
    }
}

/// A peer's recent unsolicited messages.
#[derive(Default)]
pub(super) struct Offences {
    second: u64,
    number: u32,
}

impl Offences {
    /// Counts one more. True if there are too many.
    fn add(&mut self, now: Micros) -> bool {
        let second = now.0 / 1_000_000;
        let forgotten = u32::try_from(second.saturating_sub(self.second)).unwrap_or(u32::MAX);
        self.second = second;
        self.number = self.number.saturating_sub(forgotten).saturating_add(1);
        self.number > MAX_OFFENCES
    }
}

impl Actor {
    /// Records that a peer sent an unsolicited answer. Messages cross on the way, so this happens to honest peers as well,
    /// but not repeatedly: above the limit the peer is expelled.
    pub(super) fn blame(&mut self, id: u32) {
        const REASON: &str = "it answers what nobody has asked, again and again";
        let now = self.now();
        if let Some(peer) = self.peers.get_mut(&id)
            && peer.offences.add(now)
        {
            peer.link.expel(REASON);
            self.forget(id, &Departure::expelled(REASON));
        }
    }

    /// Adds a record to the audit log.
    pub(super) fn remember(&mut self, record: &Record) {
        let news = self.audit.add(record);
        self.note_lines(news);
    }

    /// Retries lines that could not be written, and writes the audit log's pending counts.
    pub(super) fn catch_up_lines(&mut self) {
        let news = self.run.as_mut().map_or_else(Vec::new, Run::retry_lines);
        self.note_lines(news);
        let news = self.audit.catch_up();
        self.note_lines(news);
    }

    /// Reports failures and recoveries of files of lines.
    pub(super) fn note_lines(&mut self, news: impl IntoIterator<Item = LineNews>) {
        news.into_iter().for_each(|news| self.notice(news.level(), news.to_string()));
    }

    /// Sends a notice to dashboards and the terminal.
    pub(super) fn notice(&mut self, level: u8, text: String) {
        self.broadcast_notice(level, &text);
        self.log(HUB, level, &text);
        // Notices that the program does not read are dropped.
        let _ = self.notices.try_send(HubNotice { level, text });
    }

    pub(super) fn notice_leave(&mut self, is_fault: bool, text: String) {
        if is_fault { self.notice_offence(text) } else { self.notice_coming(text) }
    }

    /// Like [`notice`](Self::notice), rate-limited, about peers that connect and disconnect.
    pub(super) fn notice_coming(&mut self, text: String) {
        let now = self.now();
        if let Some(text) = self.comings.say(text, now) {
            self.notice(0, text);
        }
    }

    /// Like [`notice`](Self::notice), rate-limited, for what any peer may cause as often as it likes.
    pub(super) fn notice_offence(&mut self, text: String) {
        let now = self.now();
        if let Some(text) = self.loud.say(text, now) {
            self.notice(1, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offenders_are_not_talked_about_all_the_time() {
        let mut loud = Loud::default();
        let mut say = |ms: u64| loud.say("bad".into(), Micros::from_millis(ms));
        assert!((0..MAX_LOUD_NOTICES).all(|_| say(10) == Some("bad".into())));
        assert_eq!((say(20), say(999)), (None, None));
        assert_eq!(say(1000), Some("bad (and 2 more like it before)".into()));
        assert_eq!(say(1001), Some("bad".into()));
    }

    #[test]
    fn offences_of_the_past_are_forgotten() {
        let mut offences = Offences::default();
        let mut add = |s: u64| offences.add(Micros::from_millis(s * 1_000));
        // One offence per second is tolerated for ever.
        assert!((0..10 * u64::from(MAX_OFFENCES)).all(|s| !add(s)));
        assert!((1..MAX_OFFENCES).all(|_| !add(10_000)));
        assert_eq!((add(10_000), add(10_000)), (false, true));
    }
}
