//! Reports of a hub: records for the audit log, notices for users, and the logs of workers for operators, which are
//! bounded and sent as they grow.

use super::{Causer, Hub, HubEffect, HubRun, PeerConnection, Record, limits::STATE_BACKLOG_BYTES};
use crate::{
    group::GroupEvent,
    ids::WorkerId,
    prelude::*,
    protocol::{
        Message, MessageFrame, Role,
        message::{LogLine, WorkerLog},
        printable,
    },
};

/// Maximum number of lines that are kept of a worker, …
const MAX_LINES: usize = 200;
/// … of logs, …
const MAX_LOGS: usize = 256;
/// … and of bytes that a new operator is sent.
const MAX_SNAPSHOT_BYTES: usize = 64 << 10;
/// The log of the hub itself.
pub(super) const HUB: u32 = 0;
/// The audit log, without the records of leases and of unauthenticated peers.
pub(super) const AUDIT: u32 = u32::MAX;

/// The logs of workers and of the hub.
#[derive(Debug, Default)]
pub(super) struct Logs {
    logs: BTreeMap<u32, Log>,
    /// Number of lines of all logs, evicted ones included.
    num_lines: u64,
    /// The greatest number of a line of an evicted log, plus one: dashboards take smaller ones for lines that they have.
    evicted: u64,
}

/// The latest lines of a worker.
#[derive(Debug, Default)]
struct Log {
    lines: VecDeque<LogLine>,
    /// Position of the last line among those of all logs.
    latest: u64,
    /// Number of the first line that is kept.
    first: u64,
    /// Number of the first line that operators have not been sent.
    unsent: u64,
}

impl Log {
    fn add(&mut self, line: LogLine) {
        if self.lines.len() == MAX_LINES {
            self.lines.pop_front();
            self.first += 1;
        }
        self.lines.push_back(line);
    }

    /// Returns the number of the line after the last one.
    fn end(&self) -> u64 {
        self.first + self.lines.len() as u64
    }

    /// Returns the latest lines from this number on, as many as fit into a message.
    fn since(&self, worker: u32, number: u64) -> Option<WorkerLog> {
        let first = number.max(self.first).max(self.end().saturating_sub(WorkerLog::MAX_LINES as u64));
        let lines: Vec<LogLine> = self.lines.iter().skip((first - self.first) as usize).cloned().collect();
        (!lines.is_empty()).then_some(WorkerLog { worker, first, lines })
    }
}

impl Logs {
    fn log(&mut self, worker: u32, level: u8, text: &str, seconds: u64) {
        let text = printable(text).chars().take(WorkerLog::MAX_CHARS).collect();
        self.num_lines += 1;
        let log = self.logs.entry(worker).or_insert_with(|| Log { first: self.evicted, ..Log::default() });
        log.add(LogLine { seconds, level, text });
        log.latest = self.num_lines;
        // The log without a line for longest is evicted; the hub's own stay.
        let of_workers = self.logs.iter().filter(|(id, _)| ![HUB, AUDIT].contains(id));
        if self.logs.len() > MAX_LOGS
            && let Some((&oldest, _)) = of_workers.min_by_key(|(_, log)| log.latest)
        {
            let evicted = self.logs.remove(&oldest).map_or(0, |log| log.end());
            self.evicted = self.evicted.max(evicted);
        }
    }

    /// Returns the logs for a new dashboard, if it is an operator's: those of the newest workers first, within a limit of bytes.
    pub(super) fn snapshot_for(&self, role: Role) -> Vec<MessageFrame> {
        if role != Role::Operator {
            return Vec::new();
        }
        let mut left = MAX_SNAPSHOT_BYTES;
        let logs = self.logs.iter().rev().filter_map(|(&worker, log)| log.since(worker, 0));
        let frames = logs.filter_map(|log| MessageFrame::new(&Message::WorkerLog(log)).ok());
        let fits = |frame: &MessageFrame| {
            let rest = left.checked_sub(frame.num_bytes());
            left = rest.unwrap_or(left);
            rest.is_some()
        };
        frames.filter(fits).collect()
    }

    fn take_fresh(&mut self) -> Vec<MessageFrame> {
        let fresh = self.logs.iter_mut().filter_map(|(&worker, log)| {
            let lines = log.since(worker, log.unsent);
            log.unsent = log.end();
            MessageFrame::new(&Message::WorkerLog(lines?)).ok()
        });
        fresh.collect()
    }
}

impl<C: PeerConnection, R: HubRun> Hub<C, R> {
    /// Adds a record to the audit log. Operators see it, unless it is about a lease, of which there are too many, or caused by
    /// an unauthenticated peer, which could evict everything else.
    pub fn record(&mut self, record: Record) {
        if !record.is_of_leases() && !matches!(record.causer(), Some(Causer::Strangers)) {
            // A record is an object of numbers and texts.
            self.log(AUDIT, 0, &serde_json::to_string(&record).unwrap_or_default());
        }
        self.effects.push_back(HubEffect::Record(record));
    }

    /// Sends a notice to dashboards and the user of the program.
    pub fn notice(&mut self, level: u8, text: String) {
        self.broadcast_notice(level, &text);
        self.log(HUB, level, &text);
        self.effects.push_back(HubEffect::Notice { level, text });
    }

    pub(super) fn notice_leave(&mut self, is_fault: bool, text: String) {
        if is_fault { self.notice_offence(text) } else { self.notice_coming(text) }
    }

    /// Sends a [`notice`](Self::notice), rate-limited, about peers that connect and disconnect.
    pub fn notice_coming(&mut self, text: String) {
        if let Some(text) = self.comings.say(text, self.now) {
            self.notice(0, text);
        }
    }

    /// Sends a [`notice`](Self::notice), rate-limited, about actions that any peer can repeat without limit.
    pub fn notice_offence(&mut self, text: String) {
        if let Some(text) = self.loud.say(text, self.now) {
            self.notice(1, text);
        }
    }

    /// Counts an unsolicited answer of a peer. Messages cross on the way, so this happens to correct peers as well, but
    /// not repeatedly: above the limit the peer is expelled.
    pub(super) fn count_offence(&mut self, id: u32) {
        let now = self.now;
        if self.peers.get_mut(&id).is_some_and(|peer| peer.offences.add(now)) {
            self.expel(id, "it keeps sending answers without a call");
        }
    }

    /// Adds a line to the log of a worker.
    pub(super) fn log(&mut self, worker: u32, level: u8, text: &str) {
        self.logs.log(worker, level, text, self.seconds);
    }

    /// Adds a line of a local worker's standard error to its log; before it connects, to the hub's.
    pub fn log_child(&mut self, child: u32, worker: Option<u32>, line: &str) {
        match worker {
            Some(worker) => self.log(worker, 0, line),
            None => self.log(HUB, 1, &format!("local worker {child}: {line}")),
        }
    }

    /// Sends operators the new lines of all logs. A slow consumer misses lines, which it sees by their numbers.
    pub(super) fn send_logs(&mut self) {
        let fresh = self.logs.take_fresh();
        for peer in self.peers.values().filter(|peer| peer.role == Role::Operator && peer.is_up_to_date) {
            if peer.link.queued_bytes() <= STATE_BACKLOG_BYTES {
                fresh.iter().for_each(|frame| peer.link.send_frame(frame.clone()));
            }
        }
    }
}

/// Returns the worker that an event is about.
pub(super) fn worker_of(event: &GroupEvent) -> Option<WorkerId> {
    match event {
        GroupEvent::LeaseExpired { worker, .. }
        | GroupEvent::WorkerUnable { worker, .. }
        | GroupEvent::WorkerHung { worker, .. }
        | GroupEvent::WorkerRecovered { worker }
        | GroupEvent::LeaseHedged { worker, .. }
        | GroupEvent::FragmentsRejected { worker, .. }
        | GroupEvent::ReplayMismatch { worker, .. }
        | GroupEvent::FragmentFailed { worker, .. }
        | GroupEvent::WorkerQuarantined { worker, .. } => Some(*worker),
        GroupEvent::AuditMismatch { second, .. } => Some(*second),
        GroupEvent::AllUnable { .. }
        | GroupEvent::TooFewSlots(_)
        | GroupEvent::NotAudited
        | GroupEvent::FragmentsDropped { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_are_bounded_and_lines_are_sent_once() {
        let mut all = Logs::default();
        for number in 0..MAX_LINES + 5 {
            all.log(3, 0, &format!("line {number}\n{}", "x".repeat(1_000)), 0);
        }
        let log = &all.logs[&3];
        assert_eq!((log.lines.len(), log.first), (MAX_LINES, 5));
        assert!(log.lines[0].text.starts_with("line 5 x") && log.lines[0].text.len() == WorkerLog::MAX_CHARS);
        let newest = log.since(3, 0).expect("lines");
        assert_eq!((newest.lines.len(), newest.first), (WorkerLog::MAX_LINES, 5 + 200 - 64));
        assert_eq!((all.take_fresh().len(), all.take_fresh().len()), (1, 0));
        all.log(3, 1, "more", 0);
        assert_eq!(all.take_fresh().len(), 1);
        for worker in 0..2 * MAX_LOGS as u32 {
            all.log(worker, 0, &"y".repeat(1_000), 0);
        }
        assert!(all.logs.len() <= MAX_LOGS && all.logs.contains_key(&HUB));
        // The workers with the smallest ids still log, with greater numbers than before their logs were evicted.
        all.log(3, 0, "here", 0);
        assert!(all.logs.len() <= MAX_LOGS && all.logs[&3].first > 200, "{}", all.logs[&3].first);
        let bytes: usize = all.snapshot_for(Role::Operator).iter().map(MessageFrame::num_bytes).sum();
        assert!((MAX_SNAPSHOT_BYTES / 2..=MAX_SNAPSHOT_BYTES).contains(&bytes), "{bytes} bytes");
    }
}
