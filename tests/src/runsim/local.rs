//! The local workers of the simulated hub: processes that are started, exit, freeze, and are replaced.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use rollmesh_core::{
    hub::{ChildFate, LocalDue, LocalEnd, LocalWorkers, NoLaunch},
    ids::WorkerId,
    protocol::{Role, Token, TokenGrant, TokenHash},
    time::Micros,
};

use super::{Event, Plant, RunEvent, RunSim};

/// The time until an operator adds a worker in a place that the hub has given up.
const ADDED_AFTER: Micros = Micros::from_secs(5);
/// The largest number of consecutive starts that fail.
const MAX_FAILED: u32 = 3;

/// The processes of local workers, which the hub numbers.
#[derive(Debug, Default)]
pub(super) struct LocalProcesses {
    pub(super) local: LocalWorkers,
    /// The places of the scenario by the numbers of the running processes.
    running: BTreeMap<u32, usize>,
    /// The places of scheduled replacements, by the numbers of the processes that they replace.
    awaited: BTreeMap<u32, usize>,
    /// The ids of the processes that launchers run, by number.
    launched: BTreeMap<u32, u64>,
    /// The processes that have joined.
    joined: BTreeSet<u32>,
    /// The number of consecutive failed starts.
    failed: u32,
}

impl LocalProcesses {
    /// Returns the id of a process that a launcher runs.
    pub(super) fn launched(&self, number: u32) -> Option<u64> {
        self.launched.get(&number).copied()
    }

    /// Records that a process joins. Returns the session that it resumes, if it has joined before.
    pub(super) fn join(&mut self, number: u32) -> Option<[u8; 16]> {
        (!self.joined.insert(number)).then(|| session_of(number))
    }

    /// Returns the number of the process in a place.
    pub(super) fn in_place(&self, place: usize) -> Option<u32> {
        self.running.iter().find(|(_, at)| **at == place).map(|(number, _)| *number)
    }
}

pub(super) fn session_of(number: u32) -> [u8; 16] {
    let mut session = [1; 16];
    session[..4].copy_from_slice(&number.to_le_bytes());
    session
}

/// Returns the token of a local worker. A restarted hub numbers its workers from the beginning.
pub(super) fn token_of_child(number: u32, crashes: u64) -> Token {
    let mut bytes = [0xcc; 32];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..12].copy_from_slice(&crashes.to_le_bytes());
    Token::new(bytes)
}

impl RunSim {
    /// Returns true if the worker of a place is a process of the hub.
    pub(super) fn is_local(&self, place: usize) -> bool {
        self.scenario.workers[place].falsification.is_none()
    }

    /// Starts the processes of a hub that has just begun.
    pub(super) fn start_all_local(&mut self) {
        self.processes = LocalProcesses::default();
        for place in 0..self.scenario.workers.len() {
            if self.is_local(place) {
                self.start_local(place);
            }
        }
    }

    fn start_local(&mut self, place: usize) {
        let (number, now) = (self.processes.local.next_number(), self.now);
        let has_failed = self.processes.failed < MAX_FAILED && self.dice.chance(self.scenario.failed_starts);
        if has_failed {
            self.processes.failed += 1;
            let end = self.processes.local.handle_failed_start(now);
            return self.follow_end(number, place, end);
        }
        self.processes.failed = 0;
        let token = token_of_child(number, self.hub.crashes);
        let is_elsewhere = !self.launchers.hub.is_empty();
        if is_elsewhere {
            match self.launch(number, &token, place) {
                Ok(worker) => _ = self.processes.launched.insert(number, worker),
                Err(NoLaunch::NotYet(_)) => {
                    let pause = self.processes.local.pause_without_place();
                    return self.follow_end(number, place, LocalEnd::Replace(pause));
                }
                Err(_) => {
                    let end = self.processes.local.handle_failed_start(now);
                    return self.follow_end(number, place, end);
                }
            }
        }
        let grant = TokenGrant { role: Role::Worker, child: Some(number), expires: None };
        self.hub.core.tokens.add(&token, grant);
        self.processes.local.handle_started(number, TokenHash::of(&token).id(), is_elsewhere, now);
        self.processes.running.insert(number, place);
        self.record(RunEvent::LocalStarted { number });
        if !is_elsewhere {
            let delay = self.delay();
            self.after(delay, Event::Join(place, number));
        }
    }

    /// Kills a process: its connection breaks, and it exits soon.
    fn kill_local(&mut self, number: u32) {
        if let Some(worker) = self.processes.launched(number) {
            return self.kill_launched(worker);
        }
        self.lose_process(number);
        let took = self.dice.within_ms(100);
        self.after(took, Event::Exited { crashes: self.hub.crashes, number });
    }

    /// Breaks the connection of a process that exits.
    pub(super) fn lose_process(&mut self, number: u32) {
        let Some(&place) = self.processes.running.get(&number) else { return };
        let connected = self.workers.iter().find(|(_, worker)| worker.place == place).map(|(id, _)| *id);
        if let Some(worker) = connected {
            self.workers.remove(&worker);
            let noticed = self.dice.within_ms(1_000);
            self.after(noticed, Event::Lost { worker, crashes: self.hub.crashes });
        }
    }

    /// Makes a random local process exit.
    pub(super) fn crash_local(&mut self) {
        let running: Vec<u32> = self.processes.running.keys().copied().collect();
        if !running.is_empty() {
            let number = self.dice.one_of(&running);
            match self.processes.launched(number) {
                Some(worker) => self.end_launched(worker),
                None => self.kill_local(number),
            }
        }
    }

    /// Handles the exit of a process in the hub.
    pub(super) fn handle_exited(&mut self, number: u32) {
        let Some(place) = self.processes.running.remove(&number) else { return };
        let Some((token, end)) = self.processes.local.handle_exit(number, self.now) else { return };
        self.processes.launched.remove(&number);
        self.record(RunEvent::LocalExited { number });
        self.hub.core.tokens.revoke(token);
        if !self.hub.core.is_leaving && self.scenario.plant != Some(Plant::ForgetReplacement) {
            self.follow_end(number, place, end);
        }
    }

    fn follow_end(&mut self, number: u32, place: usize, end: LocalEnd) {
        match end {
            LocalEnd::AsWished | LocalEnd::NotReplaced => {}
            LocalEnd::Replace(Micros(0)) => {
                self.start_local(place);
                if self.scenario.plant == Some(Plant::ReplaceTwice) {
                    self.start_local(place);
                }
            }
            LocalEnd::Replace(pause) => {
                self.processes.awaited.insert(number, place);
                self.processes.local.replace_at(number, self.now + pause);
            }
            LocalEnd::GiveUp => self.after(ADDED_AFTER, Event::AddLocal { crashes: self.hub.crashes, place }),
        }
    }

    /// Schedules an operator's command to add a worker in the place of this one, which the hub does not replace.
    pub(super) fn add_later(&mut self, number: u32) {
        if let Some(&place) = self.processes.running.get(&number) {
            self.after(ADDED_AFTER, Event::AddLocal { crashes: self.hub.crashes, place });
        }
    }

    /// Cancels scheduled replacements, and schedules an operator's commands to add these workers.
    pub(super) fn add_awaited_later(&mut self) {
        self.processes.local.forget_replacements();
        for place in mem::take(&mut self.processes.awaited).into_values() {
            self.after(ADDED_AFTER, Event::AddLocal { crashes: self.hub.crashes, place });
        }
    }

    /// Starts a worker for an operator in a place that the hub has given up.
    pub(super) fn add_local(&mut self, place: usize) {
        self.processes.local.forget_failed_starts();
        self.start_local(place);
    }

    /// Performs the due replacements and kills of local workers.
    pub(super) fn tend_local(&mut self) {
        while let Some(due) = self.processes.local.poll_due(self.now) {
            match due {
                LocalDue::Replace(number) => {
                    let place = self.processes.awaited.remove(&number).filter(|_| !self.hub.core.is_leaving);
                    place.into_iter().for_each(|place| self.start_local(place));
                }
                LocalDue::EndSilent(number) if self.hub.core.peer_of_child(number).is_none() => self.kill_local(number),
                LocalDue::EndSilent(_) => {}
            }
        }
    }

    /// Ends a local worker that hangs, or is in quarantine, if another one may take its place.
    pub(super) fn end_local(&mut self, number: u32) {
        if self.processes.local.may_end(number) {
            self.kill_local(number);
        }
    }

    pub(super) fn decide_on_local(&mut self, number: u32, fate: ChildFate) {
        match fate {
            ChildFate::Useful => self.processes.local.handle_useful(number),
            ChildFate::Last => self.processes.local.dismiss(number),
            ChildFate::Dismissed => {
                self.processes.local.dismiss(number);
                self.kill_local(number);
            }
            ChildFate::Replaced => self.end_local(number),
            ChildFate::Restarted => {
                if self.processes.local.restart(number) {
                    self.kill_local(number);
                }
            }
        }
    }

    /// Sweeps for workers without progress, and for a run that no worker can sample for.
    pub(super) fn sweep(&mut self) {
        self.after(super::SWEEP_EVERY, Event::Sweep);
        self.tend_launchers();
        if self.scenario.plant != Some(Plant::KeepTokens) {
            self.hub.core.expel_invalid();
        }
        if self.scenario.plant != Some(Plant::ForgetHung) {
            self.hub.core.sweep_hung();
        }
        if self.scenario.plant != Some(Plant::ForgetHopeless) {
            let local = &self.processes.local;
            let is_connected = |number: &u32| self.hub.core.peer_of_child(*number).is_some();
            let expects_worker = local.awaits_any() || !local.staying().iter().all(is_connected);
            self.hub.core.sweep_hopeless(expects_worker);
        }
    }

    /// Freezes a worker, which keeps its connection.
    pub(super) fn freeze(&mut self, worker: WorkerId) {
        self.workers.entry(worker).and_modify(|worker| worker.is_frozen = true);
    }
}
