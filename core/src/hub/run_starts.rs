//! The choice of the run that begins next: one at a time, in the order in which operators have started them.

use super::{Hub, HubEffect, HubRun, PeerConnection, RunLoop, RunQueue, WaitingRun};
use crate::{
    prelude::*,
    protocol::{Phase, message::RunRow},
    run::RunConfig,
};

/// A run that is about to begin: the shell makes its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunStart {
    /// Operators see it among the waiting runs, under this number, and can remove it.
    Listed(u32),
    /// It continues a run that is rolled back, or the hub has no queue.
    Unlisted,
}

/// When a run begins that an operator starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunTurn {
    /// Immediately: [`Hub::begin_start`] follows.
    Now,
    /// After others: [`Hub::queue_run`] follows.
    Later,
}

/// The reason why a run can neither begin nor wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartRefusal {
    /// The hub is about to exit.
    #[error("the hub has stopped")]
    Leaving,
    /// Another run is in progress or about to begin, and the hub has no queue.
    #[error("another run is in progress; stop it first")]
    Busy,
    /// [`RunQueue::MAX_WAITING`] runs wait.
    #[error("{} runs wait already: remove one of them first", RunQueue::MAX_WAITING)]
    QueueFull,
}

impl<C: PeerConnection, R: HubRun> Hub<C, R> {
    /// Returns true if a run can begin: none is in progress or about to begin, and the previous one is completely finished.
    pub fn is_free(&self) -> bool {
        self.state().is_none_or(RunLoop::is_over) && !self.is_finishing && self.starting.is_none()
    }

    /// Decides whether a run can begin now.
    ///
    /// # Errors
    /// The hub is leaving or busy.
    pub fn may_begin(&self) -> Result<(), StartRefusal> {
        match self.is_leaving {
            true => Err(StartRefusal::Leaving),
            false if self.is_free() => Ok(()),
            false => Err(StartRefusal::Busy),
        }
    }

    /// Decides when a run begins that an operator starts.
    ///
    /// # Errors
    /// It can neither begin nor wait.
    pub fn turn_of_run(&self) -> Result<RunTurn, StartRefusal> {
        match self.may_begin() {
            Err(StartRefusal::Busy) if self.keeps_queue && self.queue.is_full() => Err(StartRefusal::QueueFull),
            Err(StartRefusal::Busy) if self.keeps_queue => Ok(RunTurn::Later),
            may_begin => may_begin.map(|()| RunTurn::Now),
        }
    }

    /// Returns the number of the next run.
    pub fn next_run(&self) -> u32 {
        self.next_run
    }

    /// Returns the number of the next run, which no other run gets.
    pub fn take_run_number(&mut self) -> u32 {
        let number = self.next_run;
        self.next_run += 1;
        number
    }

    /// Adds a run that waits. Returns its number.
    pub fn queue_run(&mut self, config: RunConfig) -> u32 {
        let number = self.take_run_number();
        self.queue.push(WaitingRun { number, config });
        number
    }

    /// Records that the shell makes the parts of a run that an operator has started. A hub with a queue lists it as the first one
    /// that waits, so that operators see it and can remove it. Returns its number.
    pub fn begin_start(&mut self, config: RunConfig) -> u32 {
        if !self.keeps_queue {
            self.begin_unlisted_start();
            return self.next_run;
        }
        let number = self.queue_run(config);
        self.starting = Some(RunStart::Listed(number));
        self.refresh_dashboards();
        number
    }

    /// Records that the shell makes the parts of the run that continues one that is rolled back.
    pub fn begin_unlisted_start(&mut self) {
        self.starting = Some(RunStart::Unlisted);
    }

    /// Records that the parts of the run that is about to begin are made, or cannot be. Returns the run if it was listed.
    pub fn end_start(&mut self) -> Option<WaitingRun> {
        match self.starting.take()? {
            RunStart::Listed(number) => self.queue.remove(number),
            RunStart::Unlisted => None,
        }
    }

    /// Records that a run of this number has begun.
    pub fn count_run(&mut self, number: u32) {
        self.next_run = self.next_run.max(number + 1);
    }

    /// Lists a run that has waited and could not begin as a past one that failed. It does not block the others.
    pub fn fail_waiting(&mut self, waiting: &WaitingRun, error: String) {
        self.notice(2, format!("run {} could not begin: {error}", waiting.number));
        self.queue.add_past(RunRow { phase: Phase::Failed.to_wire(), error, ..waiting.row() }, None);
    }

    /// Drops all waiting runs before the hub ends, also the one that is about to begin, and reports them.
    pub fn drop_waiting(&mut self) {
        self.starting = None;
        let numbers: Vec<String> = core::iter::from_fn(|| self.queue.pop()).map(|run| run.number.to_string()).collect();
        if !numbers.is_empty() {
            self.notice(2, format!("the hub ends before these runs have begun: {}", numbers.join(", ")));
        }
    }

    /// Returns what follows for the queue: the start of a removed run is given up, or the run that has waited longest is about to
    /// begin. It stays listed, and can be removed, until it begins.
    pub(super) fn poll_start(&mut self) -> Option<HubEffect<C>> {
        if let Some(RunStart::Listed(number)) = self.starting
            && !self.queue.contains(number)
        {
            self.starting = None;
            return Some(HubEffect::GiveUpStart);
        }
        if self.is_leaving || !self.is_free() {
            return None;
        }
        let waiting = self.queue.first()?.clone();
        self.starting = Some(RunStart::Listed(waiting.number));
        Some(HubEffect::MakeRun(Box::new(waiting)))
    }
}
