//! A group, its workers and the network between them, on a virtual clock.
//!
//! Everything follows from the scenario: the same one gives the same log, byte for byte. After every
//! call of the group the books are checked against what was seen from outside.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use rollmesh_core::{
    batch::SlotFragment,
    group::{GroupCommand, GroupConfig, LeaseGroup, Ledger, Outcome, Receipt, WorkerProfile},
    ids::{FragmentNo, LeaseId, WeightsVersion, WorkerId},
    time::Micros,
};

use crate::{
    fake_worker::{FakeWorker, Said, Told},
    scenario::{Blow, Dice, Scenario},
};

/// Virtual time after which a run that is not over never will be.
const TOO_LATE: Micros = Micros::from_secs(3_600);

/// Env steps between two reports of progress.
const CHUNK: u64 = 5;

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// The batches, one for each iteration.
    pub batches: Vec<Vec<SlotFragment>>,
    /// The group's books at the end.
    pub ledger: Ledger,
    /// When the last batch was there.
    pub finished_at: Micros,
    /// Everything that happened.
    pub log: String,
}

#[derive(Debug)]
enum Event {
    ToGroup { from: WorkerId, said: Said, corrupted: bool },
    ToWorker { to: WorkerId, told: Told },
    Join { us_per_step: u64 },
    Lost(WorkerId),
    Tick(WorkerId),
    Timer,
    BeginIteration,
    Resume,
    Blow,
}

struct Process {
    machine: FakeWorker,
    us_per_step: u64,
    ticking: bool,
    frozen_until: Micros,
    cut_off_until: Micros,
}

/// A run in progress.
pub struct SimNet {
    scenario: Scenario,
    dice: Dice,
    now: Micros,
    /// Events by time and by number, so that equal times keep their order.
    queue: BTreeMap<(Micros, u64), Event>,
    scheduled: u64,
    group: LeaseGroup,
    processes: BTreeMap<WorkerId, Process>,
    next_worker: u32,
    batches: Vec<Vec<SlotFragment>>,
    /// Seen from outside: env steps in grants, and fragments that were committed.
    granted: u64,
    committed: BTreeSet<(u32, u64)>,
    /// Leases whose end was seen from outside: nothing of them may be committed any more.
    over: BTreeSet<LeaseId>,
    /// The leases that each worker was granted.
    granted_to: BTreeMap<WorkerId, Vec<LeaseId>>,
    /// Iterations that have begun.
    begun: u64,
    log: String,
}

impl SimNet {
    /// Sets up a run.
    ///
    /// # Panics
    /// If the scenario has no slots.
    #[must_use]
    pub fn new(scenario: Scenario) -> Self {
        let config = GroupConfig {
            max_slots_per_lease: scenario.max_slots_per_lease,
            ..GroupConfig::new(scenario.num_slots, scenario.length)
        };
        let group = LeaseGroup::new(config).expect("slots");
        let mut net = Self {
            dice: Dice::new(scenario.seed ^ 0x5eed),
            now: Micros(0),
            queue: BTreeMap::new(),
            scheduled: 0,
            group,
            processes: BTreeMap::new(),
            next_worker: 1,
            batches: Vec::new(),
            granted: 0,
            committed: BTreeSet::new(),
            over: BTreeSet::new(),
            granted_to: BTreeMap::new(),
            begun: 0,
            log: String::new(),
            scenario,
        };
        for us_per_step in net.scenario.workers.clone() {
            let delay = net.delay();
            net.after(delay, Event::Join { us_per_step });
        }
        net.after(Micros::from_millis(1), Event::BeginIteration);
        if net.scenario.faults.blow_every_ms > 0 {
            net.after(Micros(0), Event::Blow);
        }
        let until = net.scenario.faults.until;
        if until > Micros(0) {
            // However the chaos ends, one sound worker is there afterwards.
            net.after(until, Event::Join { us_per_step: 1_000 });
        }
        net
    }

    /// Runs until the last batch is there.
    ///
    /// # Panics
    /// If a promise of the group is broken.
    #[must_use]
    pub fn run(mut self) -> Report {
        while (self.batches.len() as u64) < self.scenario.iterations {
            let ((at, _), event) = self.queue.pop_first().expect("something is left to happen");
            assert!(at < TOO_LATE, "no progress: {} of {} iterations", self.batches.len(), self.scenario.iterations);
            self.now = at;
            self.happen(event);
        }
        Report { batches: self.batches, ledger: *self.group.ledger(), finished_at: self.now, log: self.log }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ToGroup { from, said, corrupted } => self.group_hears(from, said, corrupted),
            Event::ToWorker { to, told } => self.worker_hears(to, told),
            Event::Tick(worker) => self.tick(worker),
            Event::Blow => self.blow(),
            Event::Timer if self.group.poll_timeout().is_none_or(|at| at > self.now) => return,
            Event::Timer => {
                self.group.handle_timeout(self.now);
                assert!(self.group.poll_timeout().is_none_or(|at| at > self.now), "the timer would spin");
            }
            Event::Join { us_per_step } => self.join(us_per_step),
            Event::Lost(worker) => {
                self.note(format_args!("worker {worker} left"));
                self.group.handle_left(worker, self.now);
                self.over.extend(self.granted_to.remove(&worker).into_iter().flatten());
            }
            Event::BeginIteration => {
                while self.begun < self.scenario.iterations && self.group.may_begin(self.next_version()) {
                    self.begin();
                }
            }
            Event::Resume => self.group.resume(self.now),
        }
        self.drain();
        self.check();
    }

    fn next_version(&self) -> WeightsVersion {
        WeightsVersion(self.begun / self.scenario.per_version)
    }

    fn begin(&mut self) {
        let fragment = self.group.begin_iteration(self.next_version(), self.now).expect("the one before is over");
        assert_eq!(fragment.0, self.begun);
        self.begun += 1;
    }

    fn join(&mut self, us_per_step: u64) {
        let worker = WorkerId(self.next_worker);
        self.next_worker += 1;
        self.note(format_args!("worker {worker} joins"));
        let machine = FakeWorker::new(self.scenario.length, self.scenario.per_version > 1);
        let never = Micros(0);
        let process = Process { machine, us_per_step, ticking: false, frozen_until: never, cut_off_until: never };
        self.processes.insert(worker, process);
        self.group.handle_joined(worker, WorkerProfile::NATIVE, self.now);
    }

    fn group_hears(&mut self, from: WorkerId, said: Said, corrupted: bool) {
        let now = self.now;
        match said {
            Said::Progress(lease, env_steps) => self.group.handle_progress(from, lease, env_steps, now),
            Said::Refused(lease) => {
                self.note(format_args!("worker {from} refuses lease {lease}"));
                self.group.handle_refused(from, lease, now);
                self.over.insert(lease);
            }
            Said::Upload(lease, _) if corrupted => {
                self.group.handle_invalid(from, lease, now);
                self.over.insert(lease);
            }
            Said::Upload(lease, fragments) => {
                let numbers: Vec<_> = fragments.iter().map(|fragment| fragment.fragment).collect();
                let receipt = self.group.handle_fragments(from, lease, fragments, now);
                self.note(format_args!("worker {from} uploads lease {lease}: {receipt:?}"));
                self.count_commits(lease, &receipt, &numbers);
            }
        }
    }

    fn count_commits(&mut self, lease: LeaseId, receipt: &Receipt, numbers: &[FragmentNo]) {
        for ((slot, outcome), number) in receipt.outcomes.iter().zip(numbers) {
            if *outcome == Outcome::Committed {
                assert!(!self.over.contains(&lease), "lease {lease} is over, and yet slot {slot} was committed");
                assert!(self.committed.insert((slot.0, number.0)), "slot {slot}, fragment {number}: committed twice");
            }
        }
    }

    fn worker_hears(&mut self, to: WorkerId, told: Told) {
        let Some(process) = self.processes.get(&to) else { return };
        if process.frozen_until > self.now {
            let thaw = process.frozen_until.since(self.now);
            return self.after(thaw, Event::ToWorker { to, told });
        }
        let refuses =
            matches!(told, Told::Grant(_)) && self.is_chaos() && self.dice.chance(self.scenario.faults.refused);
        let Some(process) = self.processes.get_mut(&to) else { return };
        let mut answer = process.machine.hear(told);
        if refuses {
            answer = process.machine.refuse();
        }
        if let Some(said) = answer {
            self.send_to_group(to, said);
        }
        self.keep_ticking(to);
    }

    fn tick(&mut self, worker: WorkerId) {
        let Some(process) = self.processes.get_mut(&worker) else { return };
        if process.frozen_until > self.now {
            let thaw = process.frozen_until.since(self.now);
            return self.after(thaw, Event::Tick(worker));
        }
        process.ticking = false;
        if let Some(said) = process.machine.work(CHUNK) {
            self.send_to_group(worker, said);
        }
        self.keep_ticking(worker);
    }

    /// Lets a busy worker come to the end of its next chunk.
    fn keep_ticking(&mut self, worker: WorkerId) {
        let Some(process) = self.processes.get_mut(&worker) else { return };
        if process.machine.is_busy() && !process.ticking {
            process.ticking = true;
            let took = Micros(process.us_per_step * CHUNK);
            self.after(took, Event::Tick(worker));
        }
    }

    fn blow(&mut self) {
        if !self.is_chaos() {
            return;
        }
        let next = self.scenario.faults.blow_every_ms;
        let next = self.dice.within_ms(2 * next);
        self.after(next, Event::Blow);
        let blow = Scenario::blow(&mut self.dice);
        let victims: Vec<WorkerId> = self.processes.keys().copied().collect();
        if victims.is_empty() {
            return;
        }
        let victim = victims[self.dice.between(0, victims.len() as u64 - 1) as usize];
        self.note(format_args!("worker {victim} is hit: {blow:?}"));
        let Some(process) = self.processes.get_mut(&victim) else { return };
        match blow {
            Blow::Freeze(span) => process.frozen_until = self.now + span,
            Blow::Partition(span) => process.cut_off_until = self.now + span,
            Blow::Crash(noticed, restarted) => {
                let us_per_step = process.us_per_step;
                self.processes.remove(&victim);
                self.after(noticed, Event::Lost(victim));
                self.after(restarted, Event::Join { us_per_step });
            }
            Blow::Remove(replaced) => {
                let us_per_step = process.us_per_step;
                self.group.remove_worker(victim, self.now);
                self.after(replaced, Event::Join { us_per_step });
            }
            Blow::Pause(span) => {
                self.group.pause();
                self.after(span, Event::Resume);
            }
        }
    }

    fn drain(&mut self) {
        while let Some(command) = self.group.poll_command() {
            self.note(format_args!("to worker {}: {}", command.worker(), summary(&command)));
            match command {
                GroupCommand::Grant { worker, lease } => {
                    self.granted += lease.slots.len() as u64 * u64::from(self.scenario.length);
                    self.granted_to.entry(worker).or_default().push(lease.id);
                    self.send_to_worker(worker, Told::Grant(lease));
                }
                GroupCommand::Revoke { worker, lease } => {
                    self.over.insert(lease);
                    self.send_to_worker(worker, Told::Revoke(lease));
                }
                GroupCommand::Dismiss { worker } => {
                    self.processes.remove(&worker);
                    let delay = self.delay();
                    self.after(delay, Event::Lost(worker));
                }
            }
        }
        while let Some(event) = self.group.poll_event() {
            self.note(format_args!("{event}"));
        }
        if let Some(batch) = self.group.poll_batch() {
            self.note(format_args!("batch {} is complete", self.batches.len()));
            self.batches.push(batch);
            self.after(Micros::from_millis(20), Event::BeginIteration);
        }
        if let Some(at) = self.group.poll_timeout() {
            self.after(at.since(self.now), Event::Timer);
        }
    }

    fn check(&self) {
        let ledger = self.group.ledger();
        assert!(ledger.balances(), "{ledger:?}");
        assert_eq!(ledger.granted, self.granted, "every grant is told once");
        assert_eq!(ledger.committed, self.committed.len() as u64 * u64::from(self.scenario.length));
    }

    fn send_to_group(&mut self, from: WorkerId, said: Said) {
        let corrupted = self.is_chaos() && self.dice.chance(self.scenario.faults.corrupted);
        for delay in self.deliveries(from) {
            self.after(delay, Event::ToGroup { from, said: said.clone(), corrupted });
        }
    }

    fn send_to_worker(&mut self, to: WorkerId, told: Told) {
        for delay in self.deliveries(to) {
            self.after(delay, Event::ToWorker { to, told: told.clone() });
        }
    }

    /// The delays after which a message arrives: none, one or two.
    fn deliveries(&mut self, worker: WorkerId) -> Vec<Micros> {
        let faults = self.scenario.faults.clone();
        let cut_off = self.processes.get(&worker).map_or(Micros(0), |process| process.cut_off_until.since(self.now));
        let lost = self.is_chaos() && (self.dice.chance(faults.lost) || cut_off > Micros(0) && self.dice.chance(500));
        let copies = if self.is_chaos() && self.dice.chance(faults.duplicated) { 2 } else { 1 };
        (0..if lost { 0 } else { copies }).map(|_| cut_off + self.delay()).collect()
    }

    fn delay(&mut self) -> Micros {
        let chaos = if self.is_chaos() { self.scenario.faults.delay_ms } else { 0 };
        Micros(200) + self.dice.within_ms(chaos)
    }

    fn is_chaos(&self) -> bool {
        self.now < self.scenario.faults.until
    }

    fn after(&mut self, span: Micros, event: Event) {
        self.scheduled += 1;
        self.queue.insert((self.now + span, self.scheduled), event);
    }

    fn note(&mut self, what: std::fmt::Arguments<'_>) {
        writeln!(self.log, "{} {what}", self.now).expect("a string takes everything");
    }
}

fn summary(command: &GroupCommand) -> String {
    match command {
        GroupCommand::Grant { lease, .. } => {
            let slots: Vec<u32> = lease.slots.iter().map(|leased| leased.slot.0).collect();
            format!("lease {} of fragment {} of slots {slots:?}", lease.id, lease.fragment)
        }
        GroupCommand::Revoke { lease, .. } => format!("revoke {lease}"),
        GroupCommand::Dismiss { .. } => "dismiss".into(),
    }
}
