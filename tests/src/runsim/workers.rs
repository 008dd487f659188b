//! The workers of a simulated run, the network between them and the hub, and faults of both.

use rollmesh_core::{
    hub::{DecodedUpload, PeerEnd},
    ids::WorkerId,
    protocol::{
        Message,
        message::{LeaseRefused, Progress, RunAnswer},
    },
    time::Micros,
};

use super::{Event, RunSim, link::SimLink};
use crate::{
    fake_rows::{flip_a_reward_bit, flip_a_state_bit},
    fake_worker::{FakeWorker, WorkerInput, WorkerOutput},
};

/// The number of env steps between two checks of a worker's messages.
const CHUNK: u64 = 3;

pub(super) struct SimWorker {
    /// The worker's place in the scenario.
    pub(super) place: usize,
    /// The number of the process of a local worker.
    process: u32,
    /// The hub's end of its connection.
    pub(super) link: SimLink,
    machine: FakeWorker,
    /// The run that the worker works for.
    run: u32,
    /// The life of that run.
    life: u32,
    is_ticking: bool,
    /// Whether the worker does nothing any more, although it keeps its connection.
    pub(super) is_frozen: bool,
    /// The time from which on messages get through again.
    cut_off_until: Micros,
}

impl RunSim {
    pub(super) fn join(&mut self, place: usize, process: u32) {
        let is_running = !self.is_local(place) || self.is_process_running(place, process);
        let other = self.workers.values().find(|worker| worker.place == place);
        match other.map(|worker| worker.process) {
            Some(other) if is_running && other != process => {
                // The hub expels the earlier process, whose token is revoked.
                return self.after(Micros::from_secs(1), Event::Join(place, process));
            }
            None if is_running => {}
            _ => return,
        }
        let Some((id, link)) = self.admit(place) else {
            // A hub that is about to exit may admit the worker later; one that has revoked its token will not.
            let is_busy = self.hub.core.is_leaving;
            return if is_busy {
                self.after(Micros::from_secs(1), Event::Join(place, process))
            };
        };
        let machine = self.machine();
        let (life, cut_off_until) = (self.hub.life, Micros(0));
        let worker = SimWorker {
            place,
            process,
            link,
            machine,
            run: 0,
            life,
            is_ticking: false,
            is_frozen: false,
            cut_off_until,
        };
        self.workers.insert(WorkerId(id), worker);
    }

    fn machine(&self) -> FakeWorker {
        let machine = FakeWorker::new(self.scenario.length, true);
        if self.scenario.are_unable { machine.unable() } else { machine }
    }

    /// Announces the run to a worker, which answers.
    pub(super) fn announce(&mut self, id: WorkerId, run: u32) {
        let machine = self.machine();
        let Some(worker) = self.workers.get_mut(&id).filter(|worker| !worker.is_frozen) else { return };
        (worker.machine, worker.life, worker.run) = (machine, self.hub.life, run);
        let answer = worker.machine.answer();
        // The answer is never lost, since a worker that does not answer would be lost.
        let delay = self.delay();
        self.after(delay, Event::ToHub { from: id, crashes: self.hub.crashes, run, said: answer });
    }

    /// Handles a worker's message about a run in the hub.
    pub(super) fn hub_receives(&mut self, WorkerId(from): WorkerId, run: u32, said: WorkerOutput) {
        let message = match said {
            WorkerOutput::Answer(answer) => Message::RunAnswer(RunAnswer::new(run, answer.as_ref().copied())),
            WorkerOutput::Progress(lease, env_steps) => Message::Progress(Progress { lease: lease.0, env_steps }),
            WorkerOutput::Refused(lease) => {
                Message::LeaseRefused(LeaseRefused { lease: lease.0, reason: "no".into(), failed: None })
            }
            WorkerOutput::Failed(lease, failure) => Message::LeaseRefused(LeaseRefused::one(lease, &failure)),
            WorkerOutput::Upload(lease, fragments) => {
                return self.hub.core.handle_decoded(from, DecodedUpload::new(lease, fragments));
            }
        };
        assert_eq!(self.hub.core.handle_message(from, message), None, "the shell has no part in it");
    }

    /// Handles a closed connection in the hub.
    pub(super) fn handle_lost(&mut self, WorkerId(id): WorkerId) {
        self.hub.core.handle_left(id, PeerEnd { reason: "disconnected", is_fault: true, denied: None });
    }

    pub(super) fn worker_receives(&mut self, to: WorkerId, life: u32, input: WorkerInput) {
        let Some(worker) = self.workers.get_mut(&to).filter(|worker| worker.life == life && !worker.is_frozen) else {
            return;
        };
        let answer = worker.machine.receive(input);
        answer.into_iter().for_each(|said| self.send_to_hub(to, said));
        self.keep_ticking(to);
    }

    pub(super) fn tick(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(&id).filter(|worker| !worker.is_frozen) else { return };
        worker.is_ticking = false;
        let said = worker.machine.work(CHUNK);
        said.into_iter().for_each(|said| self.send_to_hub(id, said));
        self.keep_ticking(id);
    }

    fn keep_ticking(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        if worker.machine.is_busy() && !std::mem::replace(&mut worker.is_ticking, true) {
            let took = Micros(self.scenario.workers[worker.place].us_per_step * CHUNK);
            self.after(took, Event::Tick(id));
        } else if !worker.machine.is_busy() {
            worker.is_ticking = false;
        }
    }

    fn send_to_hub(&mut self, from: WorkerId, mut said: WorkerOutput) {
        let Some(worker) = self.workers.get(&from) else { return };
        let (run, falsification) = (worker.run, self.scenario.workers[worker.place].falsification.unwrap_or(0));
        if let WorkerOutput::Upload(_, fragments) = &mut said {
            for fragment in fragments {
                if self.dice.chance(falsification) {
                    self.dice.one_of(&[flip_a_reward_bit, flip_a_state_bit])(fragment);
                }
            }
        }
        if let Some(delay) = self.delivery(from) {
            self.after(delay, Event::ToHub { from, crashes: self.hub.crashes, run, said });
        }
    }

    pub(super) fn send_to_worker(&mut self, to: WorkerId, input: WorkerInput) {
        let life = self.hub.life;
        if let Some(delay) = self.delivery(to) {
            self.after(delay, Event::ToWorker { to, life, input });
        }
    }

    /// Returns the delay of a message, `None` for a lost one.
    fn delivery(&mut self, worker: WorkerId) -> Option<Micros> {
        let cut_off = self.workers.get(&worker).map_or(Micros(0), |worker| worker.cut_off_until.since(self.now));
        let is_lost =
            self.is_chaos() && (self.dice.chance(self.scenario.lost) || cut_off > Micros(0) && self.dice.chance(500));
        (!is_lost).then(|| cut_off + self.delay())
    }

    pub(super) fn delay(&mut self) -> Micros {
        let most = if self.is_chaos() { self.scenario.delay_ms } else { 0 };
        Micros(200) + self.dice.within_ms(most)
    }

    fn is_chaos(&self) -> bool {
        self.now < self.scenario.until
    }

    /// Injects a random fault, and schedules the next one.
    pub(super) fn fault(&mut self) {
        if !self.is_chaos() {
            return;
        }
        let next = self.dice.within_ms(2 * self.scenario.fault_every_ms);
        self.after(next, Event::Fault);
        let awake = self.workers.iter().filter(|(_, worker)| !worker.is_frozen);
        let connected: Vec<WorkerId> = awake.map(|(id, _)| *id).collect();
        match self.dice.between(0, 14) {
            0 if self.scenario.hub_crashes => self.crash_hub(),
            // All connections break.
            1 => connected.into_iter().for_each(|worker| self.break_connection(worker)),
            2 => self.crash_local(),
            9 => self.break_launcher(),
            10 => self.break_ask_peer(),
            _ if connected.is_empty() => {}
            3 | 4 => {
                let worker = self.dice.one_of(&connected);
                self.freeze(worker);
            }
            5..=8 => {
                let worker = self.dice.one_of(&connected);
                self.break_connection(worker);
            }
            _ => {
                let (worker, span) = (self.dice.one_of(&connected), self.dice.within_ms(5_000));
                let until = self.now + span;
                self.workers.entry(worker).and_modify(|worker| worker.cut_off_until = until);
            }
        }
    }

    /// Breaks the connection of a worker, or crashes one that is not local: the hub detects that later, and the worker
    /// reconnects.
    pub(super) fn break_connection(&mut self, worker: WorkerId) {
        let Some(process) = self.workers.remove(&worker) else { return };
        let (noticed, back) = (self.dice.within_ms(3_000), self.dice.within_ms(3_000));
        self.after(noticed, Event::Lost { worker, crashes: self.hub.crashes });
        let number = self.processes.in_place(process.place);
        self.after(back, Event::Join(process.place, number.unwrap_or(0)));
    }
}
