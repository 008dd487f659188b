//! A worker as its manager sees it.

use super::{CallConfig, WorkerHealth, has_tag};
use crate::{
    ids::{CallId, CallSetId, WorkerId},
    prelude::*,
    time::Micros,
};

/// State of a worker.
#[derive(Debug)]
pub(super) struct Called {
    pub(super) is_healthy: bool,
    /// False while it is disconnected.
    pub(super) is_there: bool,
    /// Incremented when it disconnects or becomes unhealthy: earlier answers say nothing about it since.
    pub(super) life: u64,
    pub(super) restarts: u64,
    pub(super) sample_failures: u32,
    /// Asynchronous calls that started and were not fetched.
    pub(super) in_flight: usize,
    /// Unanswered calls, in the order in which it does them.
    pub(super) waiting: VecDeque<Waiting>,
    /// When it started the first of them.
    pub(super) turn: Micros,
    /// When it last made progress with a sample, in this life.
    pub(super) progress: Option<Micros>,
    /// When the first call's lease was renewed after it had expired while the caller did not poll.
    pub(super) renewed: Option<Micros>,
    /// Whether it may be throttled at any time.
    pub(super) is_throttled: bool,
}

/// An unanswered call.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) call: CallId,
    pub(super) is_sample: bool,
    pub(super) reports_progress: bool,
    pub(super) whose: Whose,
}

/// The recipient of an answer.
#[derive(Clone, Debug)]
pub(super) enum Whose {
    /// The caller that waits for a set, and the call's place in it.
    Set(CallSetId, usize),
    /// The caller that fetches asynchronous answers, with the call's tag.
    Async(Option<Arc<str>>),
    /// `None` once the caller's timeout has passed.
    TimedOut,
    /// None from the start: the caller does not wait.
    Forgotten,
}

impl Called {
    pub(super) fn new() -> Self {
        Self {
            is_healthy: true,
            is_there: true,
            life: 0,
            restarts: 0,
            sample_failures: 0,
            in_flight: 0,
            waiting: VecDeque::new(),
            turn: Micros(0),
            progress: None,
            renewed: None,
            is_throttled: false,
        }
    }

    /// Appends a call.
    pub(super) fn begin(&mut self, call: Waiting, now: Micros) {
        if self.waiting.is_empty() {
            self.next_turn(now);
        }
        self.waiting.push_back(call);
    }

    /// Removes and returns the call that was answered. A successful sample counts as progress.
    pub(super) fn take(&mut self, call: CallId, is_done: bool, now: Micros) -> Option<Waiting> {
        let place = self.waiting.iter().position(|waiting| waiting.call == call)?;
        if is_done && self.waiting.get(place).is_some_and(|waiting| waiting.reports_progress) {
            self.progress = Some(now);
        }
        // The answer to a later call, such as its refusal, says nothing about the first one.
        if place == 0 {
            self.next_turn(now);
        }
        self.waiting.remove(place)
    }

    fn next_turn(&mut self, now: Micros) {
        (self.turn, self.renewed) = (now, None);
    }

    /// Records progress with its first call.
    pub(super) fn get_on(&mut self, at: Micros) {
        let reports = self.waiting.front().is_some_and(|call| call.reports_progress);
        if reports && at > self.turn && self.progress.is_none_or(|before| at > before) {
            (self.progress, self.renewed) = (Some(at), None);
        }
    }

    /// Returns when its first call exceeds the call timeout.
    pub(super) fn deadline(&self, call_timeout: Option<Micros>) -> Option<Micros> {
        self.waiting.front().and(call_timeout).map(|limit| self.turn + limit)
    }

    /// Returns when the lease of its first call expires, if it has one.
    pub(super) fn lease_end(&self, progress_timeout: Option<Micros>) -> Option<Micros> {
        let timeout = progress_timeout.filter(|_| self.waiting.front().is_some_and(|call| call.reports_progress))?;
        let is_unhurried = self.is_throttled || self.progress.is_none();
        let patience = if is_unhurried { timeout.times(CallConfig::UNHURRIED) } else { timeout };
        let begun = self.turn.max(self.progress.unwrap_or_default()).max(self.renewed.unwrap_or_default());
        Some(begun + patience)
    }

    /// Returns the number of unanswered asynchronous calls with one of these tags, or with any.
    pub(super) fn num_pending(&self, tags: &[&str]) -> usize {
        let is_meant = |call: &&Waiting| matches!(&call.whose, Whose::Async(tag) if has_tag(tags, tag.as_deref()));
        self.waiting.iter().filter(is_meant).count()
    }

    /// Returns the number of calls that a caller waits for.
    pub(super) fn num_awaited(&self) -> usize {
        self.num_pending(&[]) + self.num_in_sets()
    }

    pub(super) fn num_in_sets(&self) -> usize {
        self.waiting.iter().filter(|call| matches!(call.whose, Whose::Set(..))).count()
    }

    pub(super) fn status(&self, worker: WorkerId) -> WorkerHealth {
        WorkerHealth {
            worker,
            is_healthy: self.is_healthy,
            is_there: self.is_there,
            restarts: self.restarts,
            in_flight: self.in_flight,
            waiting: self.waiting.len(),
            sample_failures: self.sample_failures,
        }
    }
}
