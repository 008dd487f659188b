//! The workers of a simulated run, the network between them and the hub, and faults of both.

use rollmesh_core::{
    group::{Party, WorkerProfile},
    ids::WorkerId,
    time::Micros,
};

use super::{Event, RunSim};
use crate::{
    fake_rows::{flip_a_reward_bit, flip_a_state_bit},
    fake_worker::{FakeWorker, Said, Told},
};

/// Env steps between two looks at what is asked of a worker.
const CHUNK: u64 = 3;

pub(super) struct SimWorker {
    /// Its place in the scenario.
    pub(super) place: usize,
    machine: FakeWorker,
    /// The life of the run that it works for.
    life: u32,
    is_ticking: bool,
    /// When messages get through again.
    cut_off_until: Micros,
}

impl RunSim {
    pub(super) fn join(&mut self, place: usize) {
        if !self.hub.admits(place) {
            return;
        }
        let id = WorkerId(self.next_worker);
        self.next_worker += 1;
        let machine = FakeWorker::new(self.scenario.length, true);
        let worker = SimWorker { place, machine, life: self.hub.life, is_ticking: false, cut_off_until: Micros(0) };
        self.workers.insert(id, worker);
        self.bring_into_run(id);
    }

    /// Announces the run to a worker, which answers.
    pub(super) fn bring_into_run(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        (worker.machine, worker.life) = (FakeWorker::new(self.scenario.length, true), self.hub.life);
        let answer = worker.machine.answer();
        if let Some(principal) = self.principal(id) {
            self.hub.run.group.distrust(id, principal);
            self.hub.keep_snapshot(self.now, self.scenario.save_ms);
        }
        self.hub.run.group.handle_joined(id, WorkerProfile::NATIVE, self.now);
        // A worker that does not answer is lost sooner or later; its answer is not.
        let delay = self.delay();
        self.after(delay, Event::ToHub { from: id, life: self.hub.life, said: answer });
    }

    /// Returns the principal of an untrusted worker.
    pub(super) fn principal(&self, id: WorkerId) -> Option<Party> {
        let place = self.workers.get(&id)?.place;
        let is_untrusted = self.scenario.workers[place].lies.is_some();
        is_untrusted.then(|| self.hub.principal(place, 1 << 32 | u64::from(id.0)))
    }

    pub(super) fn worker_hears(&mut self, to: WorkerId, life: u32, told: Told) {
        let Some(worker) = self.workers.get_mut(&to).filter(|worker| worker.life == life) else { return };
        let answer = worker.machine.hear(told);
        answer.into_iter().for_each(|said| self.send_to_hub(to, said));
        self.keep_ticking(to);
    }

    pub(super) fn tick(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
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

    fn send_to_hub(&mut self, from: WorkerId, mut said: Said) {
        let Some(worker) = self.workers.get(&from) else { return };
        let (life, lies) = (worker.life, self.scenario.workers[worker.place].lies.unwrap_or(0));
        if let Said::Upload(_, fragments) = &mut said {
            for fragment in fragments {
                if self.dice.chance(lies) {
                    self.dice.one_of(&[flip_a_reward_bit, flip_a_state_bit])(fragment);
                }
            }
        }
        if let Some(delay) = self.delivery(from) {
            self.after(delay, Event::ToHub { from, life, said });
        }
    }

    pub(super) fn send_to_worker(&mut self, to: WorkerId, told: Told) {
        let life = self.hub.life;
        if let Some(delay) = self.delivery(to) {
            self.after(delay, Event::ToWorker { to, life, told });
        }
    }

    /// Returns how long a message takes, `None` for one that is lost.
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

    /// Something goes wrong.
    pub(super) fn fault(&mut self) {
        if !self.is_chaos() {
            return;
        }
        let next = self.dice.within_ms(2 * self.scenario.fault_every_ms);
        self.after(next, Event::Fault);
        let connected: Vec<WorkerId> = self.workers.keys().copied().collect();
        match self.dice.between(0, 9) {
            0 if self.scenario.hub_crashes => self.crash_hub(),
            // All connections break.
            1 => connected.into_iter().for_each(|worker| self.break_connection(worker)),
            _ if connected.is_empty() => {}
            2..=5 => {
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

    /// Crashes a worker, or breaks its connection: the hub notices that later, and the worker connects anew.
    fn break_connection(&mut self, worker: WorkerId) {
        let Some(process) = self.workers.remove(&worker) else { return };
        let (noticed, back) = (self.dice.within_ms(3_000), self.dice.within_ms(3_000));
        self.after(noticed, Event::Lost(worker));
        self.after(back, Event::Join(process.place));
    }
}
