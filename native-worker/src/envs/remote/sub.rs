//! The state of a sub-environment in another process.

use std::time::{Duration, Instant};

use rollmesh_core::env::{EnvError, multi_agent::Turn};

use super::{
    process::EnvProcess,
    wire::{ChildRequest, MakeRequest},
};

/// The event that a sub-environment waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its first poll.
    New,
    /// An answer of its process.
    Asked,
    /// A poll that collects its turn.
    Ready,
    /// Actions.
    Acting,
    /// A reset.
    Over,
}

/// The pending request of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    Make,
    Reset,
    Step,
    Render,
}

/// The reason that there is no turn.
pub(super) enum Fault {
    /// The environment failed.
    Failure(EnvError),
    /// The caller's request was invalid; the environment is intact.
    Mistake(EnvError),
}

pub(super) struct Sub {
    /// The [`MakeRequest`] as JSON.
    pub(super) make: Vec<u8>,
    pub(super) process: Option<EnvProcess>,
    pub(super) phase: Phase,
    pub(super) job: Option<Job>,
    /// True if a reset follows the job, whose result is discarded.
    pub(super) reset_next: bool,
    /// No new process is started before this time.
    pub(super) delay_until: Option<Instant>,
    pub(super) next_episode: u32,
    /// Observations and rewards waiting for a poll.
    pub(super) turn: Turn,
    /// True if they are the first observations of an episode.
    pub(super) begins: bool,
    pub(super) fault: Option<Fault>,
    /// Rewards and ends of agents without an observation since their latest one, and whether they were delivered.
    pub(super) owed: Turn,
    pub(super) is_paid: bool,
    /// True if the latest actions have an entry for it.
    pub(super) is_answered: bool,
}

impl Sub {
    pub(super) fn new(request: &MakeRequest) -> Self {
        // Names, numbers and settings can always be serialised.
        Self::with_make(serde_json::to_vec(request).unwrap_or_default())
    }

    pub(super) fn with_make(make: Vec<u8>) -> Self {
        Self {
            make,
            process: None,
            phase: Phase::New,
            job: None,
            reset_next: false,
            delay_until: None,
            next_episode: 0,
            turn: Turn::new(),
            begins: false,
            fault: None,
            owed: Turn::new(),
            is_paid: false,
            is_answered: false,
        }
    }

    /// Requests the start of the next episode.
    pub(super) fn want_reset(&mut self) {
        (self.phase, self.reset_next) = (Phase::Asked, true);
    }

    /// Sends the process its next request; true if a process has to be started first.
    pub(super) fn send_next_request(&mut self, now: Instant) -> bool {
        if self.phase != Phase::Asked || self.job.is_some() || !self.reset_next {
            return false;
        }
        let Some(process) = &mut self.process else { return self.rest(now).is_none() };
        let episode = self.next_episode;
        self.next_episode = episode.wrapping_add(1);
        (self.job, self.reset_next, self.is_paid) = (Some(Job::Reset), false, false);
        self.turn.clear();
        self.owed.clear();
        process.ask("for a reset", ChildRequest::Reset, |out| out.extend(episode.to_le_bytes()));
        false
    }

    /// Returns whether it has taken a step whose result was not collected.
    pub(super) fn has_unpolled_step(&self) -> bool {
        self.phase == Phase::Ready && self.fault.is_none() && !self.begins
    }

    /// Returns the time until it gets another process.
    pub(super) fn rest(&self, now: Instant) -> Option<Duration> {
        let until = self.delay_until?.saturating_duration_since(now);
        (!until.is_zero()).then_some(until)
    }

    /// Returns whether a poll waits for it; not while it is restarted, which may take long.
    pub(super) fn is_awaited(&self) -> bool {
        self.phase == Phase::Asked && self.process.is_some() && self.job != Some(Job::Make)
    }
}
