//! The workers that a hub's shell starts: which of them should be running, and what follows when one ends.

#[cfg(test)]
mod tests;

use crate::{ids::WorkerId, prelude::*, protocol::TokenId, time::Micros};

/// A worker that exits without having connected, or before this time without having been useful, counts as a failed start.
const SHORT_LIFE: Micros = Micros::from_secs(2);
/// Maximum number of consecutive failed starts.
const MAX_FAILED_STARTS: u32 = 5;
/// Number of consecutive failures without a delay before the next start: a user may have killed the workers.
const FREE_FAILED_STARTS: u32 = 2;
/// Delay before the next attempt when launchers have no place now, but soon may have one.
const NOT_YET: Micros = Micros::from_secs(1);
/// Time for a worker on the hub's machine to reconnect after it has lost its connection.
const SILENCE: Micros = Micros::from_secs(2);
/// The same for a worker that a connected launcher has started: networks fail for longer, and a start takes longer.
const SILENCE_ELSEWHERE: Micros = Micros::from_secs(20);

/// When local workers that ended unexpectedly are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// Minimum delay after the end.
    pub delay: Micros,
    /// Maximum number of replacements in total.
    pub max: u32,
}

impl Default for Replacement {
    /// Replaces immediately, without limit.
    fn default() -> Self {
        Self { delay: Micros(0), max: u32::MAX }
    }
}

/// The local workers that should be running, by their numbers. Each has a token of its own, and a process that the shell owns.
#[derive(Debug, Default)]
pub struct LocalWorkers {
    latest: u32,
    running: BTreeMap<u32, LocalWorker>,
    /// A spare worker, started before it is needed: it takes the place of the next one that ends. Until then it is not counted.
    spare: Option<u32>,
    failed_starts: u32,
    /// Consecutive short lives that ended with a crash while holding a lease.
    crashes: u32,
    replacement: Replacement,
    replaced: u32,
    /// When replacements are due, by the number of the worker that they replace.
    awaited: BTreeMap<u32, Micros>,
    /// When workers have to have reconnected, with the peers that they were.
    disconnected: BTreeMap<(u32, WorkerId), Micros>,
}

#[derive(Debug)]
struct LocalWorker {
    token: TokenId,
    /// Whether it runs on another machine than the hub.
    is_elsewhere: bool,
    /// The peer of its current or latest connection.
    peer: Option<u32>,
    began: Micros,
    /// True once it has done useful work: whatever ends it later, its start was successful.
    is_useful: bool,
    /// True if its process crashed while it held a lease: its start was successful and the environment is at fault.
    crashed_at_work: bool,
    /// True if it is to exit and not to be replaced.
    is_dismissed: bool,
    /// True if it is to exit and to be replaced, which is no failure.
    is_restarted: bool,
}

/// The consequence of the end of a local worker, or of a failed start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalEnd {
    /// It was dismissed, or was a spare.
    AsWished,
    /// Replace it after this delay.
    Replace(Micros),
    /// Do not replace it: the configured number of replacements is used up.
    NotReplaced,
    /// Give up: it failed too many times in a row.
    GiveUp,
}

/// The action that is due for a local worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalDue {
    /// Start a worker in place of this one.
    Replace(u32),
    /// End this one, unless it is connected: it has not reconnected in time. A stopped process would keep its place.
    EndSilent(u32),
}

impl LocalWorkers {
    /// Sets when workers that ended are replaced.
    pub fn replace_as(&mut self, replacement: Replacement) {
        self.replacement = replacement;
    }

    /// Returns an unused number.
    pub fn next_number(&mut self) -> u32 {
        self.latest += 1;
        self.latest
    }

    /// Records that a worker is being started.
    pub fn handle_started(&mut self, number: u32, token: TokenId, is_elsewhere: bool, now: Micros) {
        let worker = LocalWorker {
            token,
            is_elsewhere,
            peer: None,
            began: now,
            is_useful: false,
            crashed_at_work: false,
            is_dismissed: false,
            is_restarted: false,
        };
        self.running.insert(number, worker);
    }

    /// Returns the number of workers that are running or about to be started.
    #[must_use]
    pub fn count(&self) -> usize {
        self.staying().len() + self.awaited.len()
    }

    /// Returns the numbers of the running workers, oldest first, without the spare and the dismissed.
    #[must_use]
    pub fn staying(&self) -> Vec<u32> {
        let staying = self.running.iter().filter(|(number, worker)| !worker.is_dismissed && !self.is_spare(**number));
        staying.map(|(&number, _)| number).collect()
    }

    /// Returns the numbers of all workers that have not exited.
    pub fn running(&self) -> impl Iterator<Item = u32> {
        self.running.keys().copied()
    }

    /// Returns true until the worker has exited.
    #[must_use]
    pub fn is_running(&self, number: u32) -> bool {
        self.running.contains_key(&number)
    }

    /// Returns true for a worker that has not exited and was dismissed.
    #[must_use]
    pub fn is_dismissed(&self, number: u32) -> bool {
        self.running.get(&number).is_some_and(|worker| worker.is_dismissed)
    }

    /// Returns the peer of the worker's latest connection; `None` if it never connected or has exited.
    #[must_use]
    pub fn peer_of(&self, number: u32) -> Option<u32> {
        self.running.get(&number).and_then(|worker| worker.peer)
    }

    /// Records that the worker is connected as this peer.
    pub fn handle_connected(&mut self, number: u32, peer: u32) {
        if let Some(worker) = self.running.get_mut(&number) {
            worker.peer = Some(peer);
        }
    }

    /// Records that the worker, which was this peer, has lost its connection.
    pub fn handle_disconnected(&mut self, number: u32, peer: u32, now: Micros) {
        if let Some(worker) = self.running.get(&number) {
            let patience = if worker.is_elsewhere { SILENCE_ELSEWHERE } else { SILENCE };
            self.disconnected.insert((number, WorkerId(peer)), now + patience);
        }
    }

    /// Records that the worker has done useful work.
    pub fn handle_useful(&mut self, number: u32) {
        if let Some(worker) = self.running.get_mut(&number) {
            worker.is_useful = true;
            self.failed_starts = 0;
        }
    }

    /// Records that the worker's process crashed while it held a lease. If other workers succeed with the fragment, it is
    /// replaced without limit, but with delays.
    pub fn handle_crash_at_work(&mut self, number: u32) {
        if let Some(worker) = self.running.get_mut(&number) {
            worker.crashed_at_work = true;
        }
    }

    /// Returns true if the worker is the spare.
    #[must_use]
    pub fn is_spare(&self, number: u32) -> bool {
        self.spare == Some(number)
    }

    /// Returns true if there is no spare, and ended workers are replaced immediately and without limit.
    #[must_use]
    pub fn wants_spare(&self) -> bool {
        self.spare.is_none() && self.replacement == Replacement::default()
    }

    /// Makes the worker the spare.
    pub fn keep_as_spare(&mut self, number: u32) {
        self.spare = Some(number);
    }

    /// Returns the spare's number.
    #[must_use]
    pub fn spare(&self) -> Option<u32> {
        self.spare
    }

    /// Gives the spare a place: its lifetime counts from now on.
    pub fn employ_spare(&mut self, now: Micros) {
        if let Some(worker) = self.spare.take().and_then(|spare| self.running.get_mut(&spare)) {
            worker.began = now;
        }
    }

    /// Returns the spare when it is no longer needed; there is none afterwards.
    pub fn release_spare(&mut self) -> Option<u32> {
        self.spare.take()
    }

    /// Forgets earlier failed starts: an operator has requested workers, a run needs them, or a launcher may start them elsewhere.
    pub fn forget_failed_starts(&mut self) {
        self.failed_starts = 0;
    }

    /// Returns true if the worker will be replaced, or was dismissed.
    #[must_use]
    pub fn may_end(&self, number: u32) -> bool {
        let more = self.replaced < self.replacement.max;
        self.running.get(&number).is_some_and(|worker| worker.is_dismissed || more)
    }

    /// Dismisses the worker: if it exits, another one does not take its place.
    pub fn dismiss(&mut self, number: u32) {
        if let Some(worker) = self.running.get_mut(&number) {
            worker.is_dismissed = true;
        }
    }

    /// Lets the worker's end, which the shell causes, be no failure. Returns false for one that was dismissed.
    #[must_use]
    pub fn restart(&mut self, number: u32) -> bool {
        let worker = self.running.get_mut(&number).filter(|worker| !worker.is_dismissed);
        worker.map(|worker| worker.is_restarted = true).is_some()
    }

    /// Schedules a replacement.
    pub fn replace_at(&mut self, number: u32, due: Micros) {
        self.awaited.insert(number, due);
    }

    /// Cancels a scheduled replacement.
    pub fn forget_replacement(&mut self, number: u32) {
        self.awaited.remove(&number);
    }

    /// Cancels all scheduled replacements.
    pub fn forget_replacements(&mut self) {
        self.awaited.clear();
    }

    /// Returns true if replacements are scheduled.
    #[must_use]
    pub fn awaits_any(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Returns when something is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Micros> {
        self.awaited.values().chain(self.disconnected.values()).min().copied()
    }

    /// Returns what is due, one action at a time.
    pub fn poll_due(&mut self, now: Micros) -> Option<LocalDue> {
        let awaited = self.awaited.iter().find(|(_, due)| **due <= now).map(|(&number, _)| number);
        if let Some(number) = awaited {
            self.awaited.remove(&number);
            return Some(LocalDue::Replace(number));
        }
        loop {
            let late = self.disconnected.iter().find(|(_, due)| **due <= now);
            let (number, peer) = late.map(|(&late, _)| late)?;
            self.disconnected.remove(&(number, peer));
            // It may have been another peer meanwhile, whose connection was lost just now.
            if self.may_end(number) && self.peer_of(number) == Some(peer.0) {
                return Some(LocalDue::EndSilent(number));
            }
        }
    }

    /// Handles the exit of a worker. Returns its token, which is to be revoked, and what follows; `None` for an unknown worker.
    pub fn handle_exit(&mut self, number: u32, now: Micros) -> Option<(TokenId, LocalEnd)> {
        let worker = self.running.remove(&number)?;
        let token = worker.token;
        if worker.is_dismissed || self.spare.take_if(|spare| *spare == number).is_some() {
            return Some((token, LocalEnd::AsWished));
        }
        if worker.is_restarted {
            return Some((token, LocalEnd::Replace(Micros(0))));
        }
        // One that never connected has failed however long that took, in the queue of a cluster for example.
        let has_failed = !worker.is_useful && (worker.peer.is_none() || now.since(worker.began) < SHORT_LIFE);
        if worker.crashed_at_work {
            // A crash at work is no failed start and never leads to giving up.
            self.crashes = if has_failed { self.crashes.saturating_add(1).min(MAX_FAILED_STARTS) } else { 0 };
        } else if has_failed {
            self.count_failed_start(now);
        } else {
            self.failed_starts = 0;
        }
        let end = match self.replaced >= self.replacement.max {
            true => LocalEnd::NotReplaced,
            false if worker.crashed_at_work => self.attempt_after(self.crashes),
            false => self.attempt_after(self.failed_starts),
        };
        self.replaced = self.replaced.saturating_add(u32::from(matches!(end, LocalEnd::Replace(_))));
        Some((token, end))
    }

    /// Handles a worker that could not be started. Returns what follows.
    pub fn handle_failed_start(&mut self, now: Micros) -> LocalEnd {
        self.count_failed_start(now);
        match self.attempt_after(self.failed_starts) {
            LocalEnd::Replace(pause) => LocalEnd::Replace(pause.max(pause_after(self.failed_starts))),
            end => end,
        }
    }

    /// Returns the delay before the next attempt to start a worker for which launchers have no place yet. This is no failure:
    /// the hub limits how long it waits for a launcher itself.
    #[must_use]
    pub fn pause_without_place(&self) -> Micros {
        self.replacement.delay.max(NOT_YET)
    }

    /// Counts a failed start. The start of a worker that has connected and lives is successful, whatever ends it later, and ends
    /// the failures in a row: one place that fails must not stand for all.
    fn count_failed_start(&mut self, now: Micros) {
        for worker in self.running.values_mut().filter(|worker| !worker.is_useful) {
            if worker.peer.is_some() && now.since(worker.began) >= SHORT_LIFE {
                worker.is_useful = true;
                self.failed_starts = 0;
            }
        }
        self.failed_starts = self.failed_starts.saturating_add(1);
    }

    /// Decides after this many consecutive failures: the first ones are retried immediately, the next ones after exponential
    /// backoff, and then the hub gives up.
    fn attempt_after(&self, failures: u32) -> LocalEnd {
        let delay = self.replacement.delay;
        match failures {
            0..=FREE_FAILED_STARTS => LocalEnd::Replace(delay),
            n if n <= MAX_FAILED_STARTS => LocalEnd::Replace(delay.max(pause_after(n))),
            _ => LocalEnd::GiveUp,
        }
    }
}

/// Returns the delay after this many consecutive failures (exponential backoff).
fn pause_after(failed_starts: u32) -> Micros {
    Micros::from_millis(100 << failed_starts.min(MAX_FAILED_STARTS))
}
