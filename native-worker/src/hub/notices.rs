//! Notices for users, and records for the audit log.

use super::{HubNotice, actor::Actor, audit::Record, departure::Departure, monitoring::HUB};
use crate::{lines::LineNews, train::Run};

impl Actor {
    /// Records that a peer sent an unsolicited answer. Messages cross on the way, so this happens to honest peers as well,
    /// but not repeatedly: above the limit the peer is expelled.
    pub(super) fn blame(&mut self, id: u32) {
        const REASON: &str = "it keeps sending answers without a call";
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
