//! The workers of a simulated run, and the network between them and the hub.

use rollmesh_core::{
    batch::SlotFragment,
    group::{Principal, SamplingMode, WorkerProfile},
    ids::WorkerId,
    time::Micros,
};

use super::{Event, Peer, SimNet};
use crate::{
    fake_rows::{flip_a_reward_bit, flip_a_state_bit},
    fake_worker::{FakeWorker, WorkerInput, WorkerOutput},
};

/// The number of env steps between two checks of the clock.
const CHUNK: u64 = 5;

/// The interval at which a worker reports its progress, on its own clock, as a real worker does.
const PROGRESS_INTERVAL: Micros = Micros::from_millis(250);

/// The permanent properties of a worker across its connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    pub(super) us_per_step: u64,
    /// The principal of an untrusted worker.
    pub(super) principal: Option<Principal>,
}

pub(super) struct Process {
    machine: FakeWorker,
    pub(super) who: Who,
    ticking: bool,
    pub(super) frozen_until: Micros,
    /// The times from which on messages from the hub, and to it, get through again.
    pub(super) unreachable_until: Micros,
    pub(super) mute_until: Micros,
    pub(super) clock: Clock,
    /// The time of the latest report on the worker's own clock.
    reported: Micros,
}

/// An unreliable clock.
#[derive(Clone, Copy)]
pub(super) struct Clock {
    /// The clock's reading when it was set, and the time of the setting.
    pub(super) set: (Micros, Micros),
    /// The clock's speed in thousandths.
    pub(super) per_mille: u64,
}

impl Clock {
    fn read(self, now: Micros) -> Micros {
        let (said, at) = self.set;
        said + Micros(now.since(at).0.saturating_mul(self.per_mille) / 1_000)
    }
}

impl SimNet {
    pub(super) fn join(&mut self, who: Who) {
        if who.principal.is_some_and(|principal| self.hub.has_failed_audit(principal)) {
            return;
        }
        let worker = WorkerId(self.hub.next_worker);
        self.hub.next_worker += 1;
        self.log(format_args!("worker {worker} joins"));
        let never = Micros(0);
        let is_synchronous = self.scenario.mode == SamplingMode::Synchronous;
        // With follow-up leases, one may be lost while the next one arrives.
        let machine = FakeWorker::new(self.scenario.length, is_synchronous && self.scenario.per_version > 1);
        let machine = if worker.0.is_multiple_of(2) { machine.sequential() } else { machine };
        let is_unable =
            self.scenario.faults.unable > 0 && self.is_chaos() && self.dice.chance(self.scenario.faults.unable);
        let machine = if is_unable { machine.unable() } else { machine };
        let machine = if self.scenario.is_fragile { machine.fragile() } else { machine };
        let process = Process {
            machine,
            who,
            ticking: false,
            frozen_until: never,
            unreachable_until: never,
            mute_until: never,
            clock: Clock { set: (never, never), per_mille: 1_000 },
            reported: never,
        };
        let (peer, answer) = (Peer { life: self.hub.life, worker }, process.machine.answer());
        self.processes.insert(peer, process);
        if let Some(principal) = who.principal {
            self.hub.distrust(worker, principal);
        }
        self.hub.group.handle_joined(worker, WorkerProfile::NATIVE, self.now);
        self.send_to_group(peer, answer);
    }

    pub(super) fn worker_receives(&mut self, to: Peer, input: WorkerInput) {
        let Some(process) = self.processes.get(&to) else { return };
        if process.frozen_until > self.now {
            let thaw = process.frozen_until.since(self.now);
            return self.after(thaw, Event::ToWorker { to, input });
        }
        let refuses =
            matches!(input, WorkerInput::Grant(_)) && self.is_chaos() && self.dice.chance(self.scenario.faults.refused);
        let Some(process) = self.processes.get_mut(&to) else { return };
        let mut answer = process.machine.receive(input);
        if refuses {
            answer = process.machine.refuse();
        }
        if let Some(said) = answer {
            self.send_to_group(to, said);
        }
        self.keep_ticking(to);
    }

    pub(super) fn tick(&mut self, worker: Peer) {
        let faults = &self.scenario.faults;
        let fails = faults.failed > 0 && self.is_chaos() && self.dice.chance(faults.failed);
        let Some(process) = self.processes.get_mut(&worker) else { return };
        if process.frozen_until > self.now {
            let thaw = process.frozen_until.since(self.now);
            return self.after(thaw, Event::Tick(worker));
        }
        process.ticking = false;
        let bad_luck = format!("bad luck at {}", self.now);
        if let Some(said) = fails.then(|| process.machine.fail_once(&bad_luck)).flatten() {
            self.send_to_group(worker, said);
            return self.keep_ticking(worker);
        }
        let clock = process.clock.read(self.now);
        let is_due = clock.since(process.reported) >= PROGRESS_INTERVAL || clock < process.reported;
        let said = process.machine.work(CHUNK).filter(|said| is_due || !matches!(said, WorkerOutput::Progress(..)));
        if let Some(said) = said {
            process.reported = clock;
            self.send_to_group(worker, said);
        }
        self.keep_ticking(worker);
    }

    /// Schedules a busy worker's next chunk.
    fn keep_ticking(&mut self, worker: Peer) {
        let Some(process) = self.processes.get_mut(&worker) else { return };
        if process.machine.is_busy() && !process.ticking {
            process.ticking = true;
            let took = Micros(process.who.us_per_step * CHUNK);
            self.after(took, Event::Tick(worker));
        }
    }

    fn send_to_group(&mut self, from: Peer, mut said: WorkerOutput) {
        if let WorkerOutput::Upload(_, fragments) = &mut said
            && self.scenario.faults.falsification > 0
            && self.dice.chance(self.scenario.faults.falsification)
        {
            fragments.iter_mut().take(1).for_each(flip_a_reward_bit);
        }
        if let WorkerOutput::Upload(_, fragments) = &mut said {
            self.falsify(from, fragments);
        }
        let corrupted = self.is_chaos() && self.dice.chance(self.scenario.faults.corrupted);
        let cut_off = self.processes.get(&from).map_or(Micros(0), |process| process.mute_until);
        for delay in self.deliveries(cut_off) {
            self.after(delay, Event::ToGroup { from, said: said.clone(), corrupted });
        }
    }

    /// Falsifies the fragments of a dishonest worker.
    fn falsify(&mut self, from: Peer, fragments: &mut [SlotFragment]) {
        let Some(watch) = self.scenario.watch else { return };
        let principal = self.processes.get(&from).and_then(|process| process.who.principal);
        if !principal.is_some_and(|principal| watch.is_divergent(principal)) {
            return;
        }
        for fragment in fragments {
            if self.dice.chance(watch.falsification) {
                self.dice.one_of(&[flip_a_reward_bit, flip_a_state_bit])(fragment);
            }
        }
    }

    pub(super) fn send_to_worker(&mut self, to: Peer, input: WorkerInput) {
        let cut_off = self.processes.get(&to).map_or(Micros(0), |process| process.unreachable_until);
        for delay in self.deliveries(cut_off) {
            self.after(delay, Event::ToWorker { to, input: input.clone() });
        }
    }

    /// Returns the delays of a message's deliveries: none, one or two. A message sent into a partition may arrive after it.
    fn deliveries(&mut self, cut_off_until: Micros) -> Vec<Micros> {
        let (lost, duplicated) = (self.scenario.faults.lost, self.scenario.faults.duplicated);
        let cut_off = cut_off_until.since(self.now);
        let lost = self.is_chaos() && (self.dice.chance(lost) || cut_off > Micros(0) && self.dice.chance(500));
        let copies = if self.is_chaos() && self.dice.chance(duplicated) { 2 } else { 1 };
        (0..if lost { 0 } else { copies }).map(|_| cut_off + self.delay()).collect()
    }

    pub(super) fn delay(&mut self) -> Micros {
        let chaos = if self.is_chaos() { self.scenario.faults.delay_ms } else { 0 };
        Micros(200) + self.dice.within_ms(chaos)
    }
}
