//! A sub-environment of another process: where it is in its life.

use std::time::{Duration, Instant};

use rollmesh_core::env::{EnvError, multi_agent::Turn};

use super::{
    process::Process,
    wire::{Order, Request},
};

/// What a sub-environment waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The first poll.
    New,
    /// Its process.
    Asked,
    /// A poll to collect its news.
    Ready,
    /// Actions.
    Acting,
    /// A reset.
    Over,
}

/// What its process is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Make,
    Reset,
    Step,
    Render,
}

/// Why there is no turn.
pub(super) enum Fault {
    /// It has failed.
    Failure(EnvError),
    /// Something was asked of it that it cannot do; it is fine itself.
    Mistake(EnvError),
}

pub(super) struct Sub {
    pub(super) order: Vec<u8>,
    pub(super) process: Option<Process>,
    pub(super) phase: Phase,
    pub(super) job: Option<Job>,
    /// A reset is to follow the job, whose outcome nobody wants any more.
    pub(super) reset_next: bool,
    /// No new process before that.
    pub(super) rest_until: Option<Instant>,
    pub(super) next_episode: u32,
    /// News that wait for a poll.
    pub(super) turn: Turn,
    /// They are the first observations of an episode.
    pub(super) begins: bool,
    pub(super) fault: Option<Fault>,
    /// What agents without an observation are owed since the latest news, and that it was paid out.
    pub(super) owed: Turn,
    pub(super) is_paid: bool,
    /// The latest actions have an entry for it.
    pub(super) is_answered: bool,
}

impl Sub {
    pub(super) fn new(order: &Order) -> Self {
        // Names, numbers and settings can always be written.
        Self::with_order(serde_json::to_vec(order).unwrap_or_default())
    }

    pub(super) fn with_order(order: Vec<u8>) -> Self {
        Self {
            order,
            process: None,
            phase: Phase::New,
            job: None,
            reset_next: false,
            rest_until: None,
            next_episode: 0,
            turn: Turn::new(),
            begins: false,
            fault: None,
            owed: Turn::new(),
            is_paid: false,
            is_answered: false,
        }
    }

    /// Wants the next episode to begin.
    pub(super) fn want_reset(&mut self) {
        (self.phase, self.reset_next) = (Phase::Asked, true);
    }

    /// Lets its process begin with whatever is next; true if there has to be a process first.
    pub(super) fn go_on(&mut self, now: Instant) -> bool {
        if self.phase != Phase::Asked || self.job.is_some() || !self.reset_next {
            return false;
        }
        let Some(process) = &mut self.process else { return self.rest(now).is_none() };
        let episode = self.next_episode;
        self.next_episode = episode.wrapping_add(1);
        (self.job, self.reset_next, self.is_paid) = (Some(Job::Reset), false, false);
        self.turn.clear();
        self.owed.clear();
        process.ask("for a reset", Request::Reset, |out| out.extend(episode.to_le_bytes()));
        false
    }

    /// It has taken a step of which nobody has heard.
    pub(super) fn has_unheard_step(&self) -> bool {
        self.phase == Phase::Ready && self.fault.is_none() && !self.begins
    }

    /// How long it has to rest until it gets another process.
    pub(super) fn rest(&self, now: Instant) -> Option<Duration> {
        let until = self.rest_until?.saturating_duration_since(now);
        (!until.is_zero()).then_some(until)
    }

    /// Others wait for it, unless it is made again: that may take long.
    pub(super) fn is_awaited(&self) -> bool {
        self.phase == Phase::Asked && self.process.is_some() && self.job != Some(Job::Make)
    }
}
