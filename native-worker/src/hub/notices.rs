//! What people are told, and what is written down for them.

use rollmesh_core::time::Micros;

use super::{
    HubNotice,
    actor::Actor,
    audit::Record,
    departure::Departure,
    limits::{MAX_LOUD_NOTICES, MAX_OFFENCES},
};
use crate::{lines::LineNews, train::Run};

/// How often something is talked about that anybody may cause.
#[derive(Default)]
pub(super) struct Loud {
    second: u64,
    said: u32,
    left_out: u32,
}

impl Loud {
    /// The notice with what was left out before it; none if there are too many.
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

/// What a peer has said of late that nobody had asked for.
#[derive(Default)]
pub(super) struct Offences {
    second: u64,
    number: u32,
}

impl Offences {
    /// Counts one more. True if these are too many.
    fn add(&mut self, now: Micros) -> bool {
        let second = now.0 / 1_000_000;
        let forgotten = u32::try_from(second.saturating_sub(self.second)).unwrap_or(u32::MAX);
        self.second = second;
        self.number = self.number.saturating_sub(forgotten).saturating_add(1);
        self.number > MAX_OFFENCES
    }
}

impl Actor {
    /// A peer has said something that nobody had asked for. Messages cross, so that this happens to the honest, too; but not
    /// again and again.
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

    /// Puts something into the audit log.
    pub(super) fn remember(&mut self, record: &Record) {
        let news = self.audit.add(record);
        self.note_lines(news);
    }

    /// Writes the lines for which there was no room, and what the audit log has yet to say.
    pub(super) fn catch_up_lines(&mut self) {
        let news = self.run.as_mut().map_or_else(Vec::new, Run::retry_lines);
        self.note_lines(news);
        let news = self.audit.catch_up();
        self.note_lines(news);
    }

    /// Tells how it is with the files of lines.
    pub(super) fn note_lines(&mut self, news: impl IntoIterator<Item = LineNews>) {
        news.into_iter().for_each(|news| self.notice(news.level(), news.to_string()));
    }

    /// Tells people: dashboards, and the terminal.
    pub(super) fn notice(&mut self, level: u8, text: String) {
        self.broadcast_notice(level, &text);
        // Whoever does not listen misses something.
        let _ = self.notices.try_send(HubNotice { level, text });
    }

    pub(super) fn notice_leave(&mut self, is_fault: bool, text: String) {
        if is_fault { self.notice_offence(text) } else { self.notice_coming(text) }
    }

    /// As [`notice`](Self::notice), of peers who come and go, which they may do as often as they like.
    pub(super) fn notice_coming(&mut self, text: String) {
        let now = self.now();
        if let Some(text) = self.comings.say(text, now) {
            self.notice(0, text);
        }
    }

    /// As [`notice`](Self::notice), for what anybody may cause as often as they like.
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
        // Whoever offends once a second may do so for ever.
        assert!((0..10 * u64::from(MAX_OFFENCES)).all(|s| !add(s)));
        assert!((1..MAX_OFFENCES).all(|_| !add(10_000)));
        assert_eq!((add(10_000), add(10_000)), (false, true));
    }
}
