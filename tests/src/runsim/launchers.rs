//! The launchers of the simulated hub: programs that connect, start and end workers for it, lose their connections and
//! reconnect.

use std::collections::BTreeMap;

use rollmesh_core::{
    hub::{LauncherKey, LauncherPeer, NoLaunch, RemoteLaunchers},
    ids::WorkerId,
    protocol::{
        Message, Role, Token, TokenGrant,
        handshake::Accepted,
        message::{LauncherReady, WorkerEnded},
    },
    time::Micros,
};

use super::{Event, Plant, RunEvent, RunSim, link::SimLink};

/// The time within which a launcher must reconnect.
const MAX_ABSENCE: Micros = Micros::from_secs(30);
/// The time within which a launcher must report the end of a worker that it was commanded to end.
const KILLED: Micros = Micros::from_secs(20);

/// The hub's view of its launchers, and the launchers' programs.
#[derive(Debug)]
pub(super) struct SimLaunchers {
    pub(super) hub: RemoteLaunchers<SimLink>,
    programs: Vec<LauncherProgram>,
    /// The places of all workers that launchers were commanded to start, by their ids.
    placed: BTreeMap<u64, usize>,
}

#[derive(Debug, Default)]
struct LauncherProgram {
    /// The running workers.
    running: Vec<u64>,
    /// The id of the peer, and the hub's end of its connection.
    connection: Option<(u32, SimLink)>,
    /// The number of lost connections.
    losses: u32,
    /// The arrival times of the latest messages at the launcher and at the hub, since a connection preserves their
    /// order.
    arrivals: [Micros; 2],
    /// Whether the hub has removed the launcher, and its program has exited.
    is_gone: bool,
}

fn token_of_launcher(index: usize) -> Token {
    Token::new([200 + index as u8; 32])
}

impl SimLaunchers {
    pub(super) fn new(num_launchers: usize) -> Self {
        let programs = (0..num_launchers).map(|_| LauncherProgram::default()).collect();
        Self { hub: RemoteLaunchers::new(1, MAX_ABSENCE), programs, placed: BTreeMap::new() }
    }

    fn of_peer(&self, peer: u32) -> Option<usize> {
        let is_it = |program: &LauncherProgram| program.connection.as_ref().is_some_and(|(id, _)| *id == peer);
        self.programs.iter().position(is_it)
    }

    fn running(&self, worker: u64) -> Option<usize> {
        self.programs.iter().position(|program| program.running.contains(&worker))
    }
}

impl RunSim {
    /// Connects the launchers of the scenario, before the hub starts workers.
    pub(super) fn connect_launchers(&mut self) {
        for index in 0..self.scenario.launchers.len() {
            let grant = TokenGrant { role: Role::Launcher, child: None, expires: None };
            self.hub.core.tokens.add(&token_of_launcher(index), grant);
            self.connect_launcher(index);
            let peer = self.launchers.programs[index].connection.as_ref().map_or(0, |(peer, _)| *peer);
            self.hub_receives_from_launcher(peer, self.ready(index));
        }
    }

    /// Connects a launcher, which reports its running workers.
    pub(super) fn connect_launcher(&mut self, index: usize) {
        let program = &self.launchers.programs[index];
        if program.is_gone || program.connection.is_some() {
            return;
        }
        let accepted = self.hub.check_as(Role::Launcher, token_of_launcher(index), &format!("launcher-{index}"));
        let is_free = |accepted: &Accepted| !self.launchers.hub.is_present(&LauncherKey::of(accepted));
        let Some(accepted) = accepted.filter(is_free) else {
            return self.after(Micros::from_secs(1), Event::ConnectLauncher(index));
        };
        let link = SimLink::default();
        let peer = self.hub.admit(accepted, link.clone(), [100 + index as u8; 16], String::new());
        self.launchers.programs[index].connection = Some((peer, link));
        self.record(RunEvent::LauncherConnected { launcher: index });
        self.send_from_launcher(index, self.ready(index));
    }

    fn ready(&self, index: usize) -> Message {
        let running = self.launchers.programs[index].running.clone();
        Message::LauncherReady(LauncherReady { capacity: self.scenario.launchers[index], token_seconds: 60, running })
    }

    /// Commands a launcher to start a worker for a place. Returns its id.
    pub(super) fn launch(&mut self, number: u32, token: &Token, place: usize) -> Result<u64, NoLaunch> {
        let worker = self.launchers.hub.launch(number, token, "{}".into())?.worker;
        self.launchers.placed.insert(worker, place);
        Ok(worker)
    }

    fn delay_of_launcher(&mut self, index: usize, end: usize) -> Micros {
        let arrives = self.now + self.delay();
        let last = &mut self.launchers.programs[index].arrivals[end];
        *last = arrives.max(*last);
        last.since(self.now)
    }

    fn send_from_launcher(&mut self, index: usize, message: Message) {
        let connection = self.launchers.programs[index].connection.as_ref();
        if let Some(peer) = connection.map(|(peer, _)| *peer) {
            let delay = self.delay_of_launcher(index, 1);
            self.after(delay, Event::FromLauncher { crashes: self.hub.crashes, peer, message });
        }
    }

    /// Handles a message of a launcher in the hub.
    pub(super) fn hub_receives_from_launcher(&mut self, peer: u32, message: Message) {
        let Some(known) = self.hub.core.peers.get(&peer) else { return };
        let key = LauncherKey { token: known.valid_by, name: known.name.clone() };
        let launcher = LauncherPeer { id: peer, key, session: known.session, link: known.link.clone() };
        match self.hub.core.handle_message(peer, message) {
            Some(Message::LauncherReady(ready)) => {
                let older = self.launchers.hub.handle_ready(launcher, &ready);
                assert!(older.is_none(), "a connected launcher is not admitted again");
                self.processes.local.forget_failed_starts();
            }
            Some(Message::WorkerEnded(_)) if self.scenario.plant == Some(Plant::ForgetWorkerEnded) => {}
            Some(Message::WorkerEnded(ended)) => self.launchers.hub.handle_ended(peer, &ended),
            other => panic!("{other:?}"),
        }
        self.handle_ended_workers();
    }

    fn handle_ended_workers(&mut self) {
        while let Some(ended) = self.launchers.hub.poll_ended() {
            // The lower half of the id is the number.
            self.handle_exited(ended.worker as u32);
        }
    }

    /// Sends what the hub has queued for launchers.
    pub(super) fn deliver_to_launchers(&mut self) {
        for index in 0..self.launchers.programs.len() {
            let Some((peer, link)) = self.launchers.programs[index].connection.clone() else { continue };
            while let Some(message) = link.poll() {
                let is_planted = self.scenario.plant == Some(Plant::ForgetEndWorker);
                if !is_planted || !matches!(message, Message::EndWorker(_)) {
                    let delay = self.delay_of_launcher(index, 0);
                    self.after(delay, Event::ToLauncher { crashes: self.hub.crashes, peer, message });
                }
            }
            if link.is_closed() {
                // The hub has removed the launcher.
                self.launchers.programs[index].is_gone = true;
                self.lose_launcher(index);
                self.end_workers_of(index);
            }
        }
    }

    pub(super) fn launcher_receives(&mut self, peer: u32, message: Message) {
        let Some(index) = self.launchers.of_peer(peer) else { return };
        let is_full = self.launchers.programs[index].running.len() >= self.scenario.launchers[index] as usize;
        match message {
            Message::LaunchWorker(order) if is_full => self.report_end(index, order.worker),
            Message::LaunchWorker(order) => {
                self.launchers.programs[index].running.push(order.worker);
                self.record(RunEvent::LauncherStarted { launcher: index, worker: order.worker });
                let (place, delay) = (self.launchers.placed[&order.worker], self.dice.within_ms(300));
                self.after(delay, Event::Join(place, order.number));
            }
            Message::EndWorker(end) if self.launchers.running(end.worker) == Some(index) => {
                self.end_launched(end.worker);
            }
            Message::EndWorker(end) => self.report_end(index, end.worker),
            _ => {}
        }
    }

    /// Returns true if the process of this number occupies the place, and has not exited at its launcher.
    pub(super) fn is_process_running(&self, place: usize, number: u32) -> bool {
        let launched = self.processes.launched(number);
        self.processes.in_place(place) == Some(number)
            && launched.is_none_or(|worker| self.launchers.running(worker).is_some())
    }

    fn report_end(&mut self, index: usize, worker: u64) {
        let ended = WorkerEnded { worker, status: "it has ended".into(), is_crash: false };
        self.send_from_launcher(index, Message::WorkerEnded(ended));
    }

    /// Ends the process of a launcher's worker.
    pub(super) fn end_launched(&mut self, worker: u64) {
        let Some(index) = self.launchers.running(worker) else { return };
        self.launchers.programs[index].running.retain(|running| *running != worker);
        let is_heard = self.launchers.programs[index].connection.is_some();
        self.record(RunEvent::LauncherEnded { launcher: index, worker, is_heard });
        if self.processes.launched(worker as u32) == Some(worker) {
            self.lose_process(worker as u32);
        }
        self.report_end(index, worker);
    }

    fn end_workers_of(&mut self, index: usize) {
        let running = self.launchers.programs[index].running.clone();
        running.into_iter().for_each(|worker| self.end_launched(worker));
    }

    /// Kills a worker of a launcher, and schedules the deadline for the report of its end.
    pub(super) fn kill_launched(&mut self, worker: u64) {
        self.launchers.hub.kill(worker);
        self.after(KILLED, Event::KilledLate { crashes: self.hub.crashes, worker });
    }

    pub(super) fn give_up_launched(&mut self, worker: u64) {
        if self.processes.launched(worker as u32) == Some(worker) {
            self.handle_exited(worker as u32);
            self.launchers.hub.give_up(worker);
        }
    }

    /// Breaks the connection of a random launcher: the hub detects that later, and the launcher reconnects, sometimes
    /// too late.
    pub(super) fn break_launcher(&mut self) {
        let connected = |index: &usize| self.launchers.programs[*index].connection.is_some();
        let connected: Vec<usize> = (0..self.launchers.programs.len()).filter(connected).collect();
        if connected.is_empty() {
            return;
        }
        let index = self.dice.one_of(&connected);
        let longest = self.dice.one_of(&[3_000, 10_000, 60_000]);
        let back = self.dice.within_ms(longest);
        self.lose_launcher(index);
        self.after(back, Event::ConnectLauncher(index));
    }

    fn lose_launcher(&mut self, index: usize) {
        let program = &mut self.launchers.programs[index];
        let Some((peer, _)) = program.connection.take() else { return };
        program.losses += 1;
        let losses = program.losses;
        self.record(RunEvent::LauncherLost { launcher: index });
        let noticed = self.dice.within_ms(3_000);
        self.after(noticed, Event::Lost { worker: WorkerId(peer), crashes: self.hub.crashes });
        self.after(MAX_ABSENCE, Event::LauncherAbsent { index, losses });
    }

    /// Ends the workers of a launcher that has not reconnected in time, which the hub has given up.
    pub(super) fn handle_launcher_absent(&mut self, index: usize, losses: u32) {
        let program = &self.launchers.programs[index];
        if program.connection.is_none() && program.losses == losses {
            self.end_workers_of(index);
        }
    }

    /// Breaks the connections of all launchers, as the hub's process exits.
    pub(super) fn crash_launchers(&mut self) {
        for index in 0..self.launchers.programs.len() {
            self.lose_launcher(index);
            let back = self.dice.within_ms(2_000);
            self.after(back, Event::ConnectLauncher(index));
        }
        self.launchers.hub = RemoteLaunchers::new(self.hub.crashes as u32 + 2, MAX_ABSENCE);
    }

    /// Removes launchers that have not reconnected in time, with their workers. These are not replaced: an operator
    /// adds others.
    pub(super) fn tend_launchers(&mut self) {
        for key in self.launchers.hub.over(|_| true, self.now) {
            for number in self.launchers.hub.workers_of(&key) {
                self.processes.local.dismiss(number);
                self.add_later(number);
            }
            self.launchers.hub.remove(&key);
            if self.launchers.hub.is_empty() {
                self.add_awaited_later();
            }
            self.handle_ended_workers();
        }
    }
}
