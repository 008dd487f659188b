//! Reports of hosts, and logs and latest rates of workers; all bounded.

use std::collections::{BTreeMap, VecDeque};

use rollmesh_core::protocol::message::{HostReport, LogLine, WorkerLog};

/// Maximum number of lines of each log.
const MAX_LINES: usize = 200;
/// Maximum number of logs.
const MAX_LOGS: usize = 256;
/// Maximum number of rates of each worker.
const MAX_RATES: usize = 60;
/// Prefix of the names of the curves of workers' rates.
pub const WORKER_RATE: &str = "steps_per_s_of_workers";
/// Id of the hub's own log.
pub const HUB: u32 = 0;
/// Id of the hub's audit log.
pub const AUDIT: u32 = u32::MAX;

/// The latest lines of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    lines: VecDeque<LogLine>,
    /// Number of the line after the last one.
    next: u64,
    /// Number of lines that did not arrive.
    pub missed: u64,
    /// Position of its last message among those of all logs.
    latest: u64,
}

impl Log {
    /// Returns the lines, oldest first.
    pub fn lines(&self) -> impl DoubleEndedIterator<Item = &LogLine> {
        self.lines.iter()
    }

    /// Returns the lines with their numbers, oldest first.
    pub fn numbered(&self) -> impl DoubleEndedIterator<Item = (u64, &LogLine)> {
        let first = self.next - self.lines.len() as u64;
        self.lines.iter().enumerate().map(move |(index, line)| (first + index as u64, line))
    }

    fn add(&mut self, log: WorkerLog) {
        if !self.lines.is_empty() {
            self.missed += log.first.saturating_sub(self.next);
        }
        // Lines before `next` are repetitions.
        let known = self.next.saturating_sub(log.first) as usize;
        self.next = self.next.max(log.first + log.lines.len() as u64);
        self.lines.extend(log.lines.into_iter().skip(known));
        let over = self.lines.len().saturating_sub(MAX_LINES);
        self.lines.drain(..over);
    }
}

/// Reports of hosts, and logs and rates of workers.
#[derive(Clone, Debug, Default)]
pub struct Monitoring {
    hosts: BTreeMap<u32, HostReport>,
    logs: BTreeMap<u32, Log>,
    /// Number of messages with lines of logs, and of the times that logs were discarded.
    num_messages: u64,
    rates: BTreeMap<u32, VecDeque<f32>>,
}

impl Monitoring {
    pub(super) fn add_host(&mut self, report: HostReport) {
        self.hosts.insert(report.worker, report);
    }

    /// Returns the worker whose log was evicted, if any.
    pub(super) fn add_log(&mut self, log: WorkerLog) -> Option<u32> {
        self.num_messages += 1;
        let known = self.logs.entry(log.worker).or_default();
        known.latest = self.num_messages;
        known.add(log);
        if self.logs.len() <= MAX_LOGS {
            return None;
        }
        // The log that has had no new line for longest is evicted, but neither of the hub's own.
        let of_workers = self.logs.iter().filter(|(id, _)| ![HUB, AUDIT].contains(id));
        let oldest = *of_workers.min_by_key(|(_, log)| log.latest)?.0;
        self.logs.remove(&oldest);
        Some(oldest)
    }

    pub(super) fn add_rate(&mut self, worker: u32, steps_per_s: f32) {
        let rates = self.rates.entry(worker).or_default();
        if rates.len() == MAX_RATES {
            rates.pop_front();
        }
        rates.push_back(steps_per_s);
    }

    /// Discards everything, and counts this as a message about logs.
    pub(super) fn forget_all(&mut self) {
        *self = Self { num_messages: self.num_messages + 1, ..Self::default() };
    }

    pub(super) fn forget_worker(&mut self, worker: u32) {
        self.hosts.remove(&worker);
        self.rates.remove(&worker);
    }

    /// Returns the report of a worker, or of the hub.
    #[must_use]
    pub fn host(&self, worker: u32) -> Option<&HostReport> {
        self.hosts.get(&worker)
    }

    /// Returns a number that grows with every message with lines of logs, and when logs are discarded.
    #[must_use]
    pub fn num_messages(&self) -> u64 {
        self.num_messages
    }

    /// Returns the ids of the logs: of workers, [`HUB`] and [`AUDIT`].
    pub fn logs(&self) -> impl Iterator<Item = u32> {
        self.logs.keys().copied()
    }

    /// Returns the log of a worker.
    #[must_use]
    pub fn log(&self, worker: u32) -> Option<&Log> {
        self.logs.get(&worker)
    }

    /// Returns the latest line of a worker's log that is a warning or an error.
    #[must_use]
    pub fn last_error(&self, worker: u32) -> Option<&LogLine> {
        self.logs.get(&worker)?.lines().rev().find(|line| line.level > 0)
    }

    /// Returns the latest rates of a worker, oldest first.
    pub fn rates(&self, worker: u32) -> impl ExactSizeIterator<Item = f32> + Clone {
        static NONE: VecDeque<f32> = VecDeque::new();
        self.rates.get(&worker).unwrap_or(&NONE).iter().copied()
    }

    /// Returns each host's measured report and number of processes, by name: workers on the hub's host do not measure
    /// it again.
    #[must_use]
    pub fn hosts(&self) -> Vec<(HostReport, usize)> {
        let mut hosts: BTreeMap<&str, (HostReport, usize)> = BTreeMap::new();
        for report in self.hosts.values() {
            let (shown, processes) = hosts.entry(&report.host).or_insert_with(|| (report.clone(), 0));
            *processes += 1;
            if shown.memory_total == 0 {
                *shown = report.clone();
            }
        }
        hosts.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(worker: u32, first: u64, texts: &[&str]) -> WorkerLog {
        let line = |text: &&str| LogLine { text: (*text).into(), level: u8::from(text.starts_with('!')), seconds: 0 };
        WorkerLog { worker, first, lines: texts.iter().map(line).collect() }
    }

    #[test]
    fn logs_skip_repetitions_count_gaps_and_stay_bounded() {
        let mut all = Monitoring::default();
        all.add_log(log(3, 5, &["a", "!b"]));
        all.add_log(log(3, 6, &["!b", "c"]));
        all.add_log(log(3, 10, &["d"]));
        let shown = all.log(3).expect("a log");
        assert_eq!(shown.lines().map(|line| &*line.text).collect::<Vec<_>>(), ["a", "!b", "c", "d"]);
        assert_eq!((shown.missed, &*all.last_error(3).expect("a warning").text), (2, "!b"));
        (0..500).for_each(|number| _ = all.add_log(log(3, 11 + number, &["x"])));
        assert_eq!(all.log(3).map(|log| log.lines().count()), Some(MAX_LINES));
        let evicted: Vec<_> = (0..500).filter_map(|worker| all.add_log(log(worker, 0, &["x"]))).collect();
        assert_eq!(evicted, (1..=500 - MAX_LOGS as u32).collect::<Vec<_>>());
        assert!(all.logs().count() == MAX_LOGS && all.log(HUB).is_some());
        assert_eq!(all.last_error(7), None);
        all.add_log(log(3, 600, &["here"]));
        assert!(all.logs().count() == MAX_LOGS && all.log(3).is_some(), "the oldest worker still logs");
    }

    #[test]
    fn workers_on_one_host_are_one_host() {
        let mut all = Monitoring::default();
        let report = |worker, host: &str, memory_total| HostReport {
            worker,
            host: host.into(),
            memory_total,
            ..HostReport::default()
        };
        [report(0, "a", 8), report(1, "a", 0), report(2, "b", 0), report(3, "b", 4)]
            .into_iter()
            .for_each(|r| all.add_host(r));
        let hosts = all.hosts();
        let shown: Vec<_> = hosts.iter().map(|(host, count)| (&*host.host, host.memory_total, *count)).collect();
        assert_eq!(shown, [("a", 8, 2), ("b", 4, 2)]);
        all.forget_worker(3);
        assert_eq!(all.hosts().len(), 2);
    }
}
