//! A simulation of a group, its workers and their network on a virtual clock.
//!
//! The scenario determines everything: the same scenario gives the same log, byte for byte. The simulator checks the ledger
//! after every call of the group, and the [history](crate::history) of the run at the end.

mod audits;
mod hub;
mod injected;
mod workers;

use std::{collections::BTreeMap, fmt::Write as _};

use rollmesh_core::{
    batch::SlotFragment,
    group::{AuditTask, GroupConfig, JournalEntry, Ledger, Verdict},
    ids::WorkerId,
    time::Micros,
    weights::Weights,
};

pub use self::audits::Watched;
pub(crate) use self::audits::replay;
use self::{
    hub::Hub,
    workers::{Process, Who},
};
use crate::{
    fake_worker::{WorkerInput, WorkerOutput},
    history::{Happened, History, Rules},
    scenario::{Dice, Scenario},
};

/// The virtual time after which an unfinished run counts as stuck.
const TOO_LATE: Micros = Micros::from_secs(3_600);

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The batches, one for each iteration.
    pub batches: Vec<Vec<SlotFragment>>,
    /// The group's ledger at the end.
    pub ledger: Ledger,
    /// The group's journal over all its lives, as far as it was saved.
    pub journal: Vec<JournalEntry>,
    /// The weights after the last batch: only the statistics of a filter over all observations.
    pub weights: Weights,
    /// The time of the last batch.
    pub finished_at: Micros,
    /// The externally visible events.
    pub history: History,
    /// The results for untrusted workers.
    pub watched: Watched,
    /// The log of all events.
    pub log: String,
}

#[derive(Debug)]
enum Event {
    ToGroup { from: Peer, said: WorkerOutput, corrupted: bool },
    ToWorker { to: Peer, input: WorkerInput },
    Join(Who),
    Audited { life: u32, task: Box<AuditTask>, verdict: Verdict },
    Lost(Peer),
    Tick(Peer),
    Timer,
    BeginIteration,
    Resume,
    InjectFault,
}

/// A connection of a worker: its id in one life of the hub. Ids restart from 1 in the next life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Peer {
    life: u32,
    worker: WorkerId,
}

/// A run in progress.
pub struct SimNet {
    scenario: Scenario,
    dice: Dice,
    now: Micros,
    /// The events by time and number, so that events at equal times keep their order.
    queue: BTreeMap<(Micros, u64), Event>,
    scheduled: u64,
    hub: Hub,
    processes: BTreeMap<Peer, Process>,
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
            mode: scenario.mode,
            restart_failed: scenario.is_fragile,
            ..GroupConfig::new(scenario.num_slots, scenario.length)
        };
        let mut net = Self {
            dice: Dice::new(scenario.seed ^ 0x5eed),
            now: Micros(0),
            queue: BTreeMap::new(),
            scheduled: 0,
            hub: Hub::new(config),
            processes: BTreeMap::new(),
            log: String::new(),
            scenario,
        };
        net.hub.watch(net.scenario.watch.as_ref().map(|watch| (watch.audits, net.scenario.seed)));
        for (place, us_per_step) in net.scenario.workers.clone().into_iter().enumerate() {
            let delay = net.delay();
            let principal = net.scenario.watch.and_then(|watch| watch.principal(place));
            net.after(delay, Event::Join(Who { us_per_step, principal }));
        }
        net.after(Micros::from_millis(1), Event::BeginIteration);
        if net.scenario.faults.every_ms > 0 {
            net.after(Micros(0), Event::InjectFault);
        }
        let until = net.scenario.faults.until;
        if until > Micros(0) {
            // After all faults, at least one healthy worker is available.
            net.after(until, Event::Join(Who { us_per_step: 1_000, principal: None }));
        }
        net
    }

    /// Sets up a run that replays another run's journal.
    ///
    /// # Panics
    /// If no run of such a scenario can have written the journal.
    #[must_use]
    pub fn replaying(scenario: Scenario, journal: Vec<JournalEntry>) -> Self {
        let mut net = Self::new(scenario);
        net.hub.group.replay(journal).expect("a journal of this run");
        net
    }

    /// Runs until the last batch.
    ///
    /// # Panics
    /// If the group's ledger is wrong or it makes no progress.
    #[must_use]
    pub fn run(mut self) -> Report {
        while (self.hub.batches.len() as u64) < self.scenario.iterations {
            let ((at, _), event) = self.queue.pop_first().expect("something is left to happen");
            assert!(at < TOO_LATE, "no progress: {} of {} batches", self.hub.batches.len(), self.scenario.iterations);
            self.now = at;
            self.happen(event);
        }
        assert_eq!(self.hub.observed(), self.hub.group.ledger().consumed, "every consumed observation counts once");
        let Hub { group, batches, history, journal, weights, watched, .. } = self.hub;
        let (ledger, finished_at) = (*group.ledger(), self.now);
        Report { batches, ledger, journal, weights, finished_at, history, watched, log: self.log }
    }

    fn happen(&mut self, event: Event) {
        let Some(event) = self.wait_for_hub(event) else { return };
        match event {
            Event::ToGroup { from, said, corrupted } => self.group_receives(from, said, corrupted),
            Event::ToWorker { to, input } => self.worker_receives(to, input),
            Event::Tick(worker) => self.tick(worker),
            Event::InjectFault => self.inject_fault(),
            Event::Timer if self.hub.group.poll_timeout().is_none_or(|at| at > self.now) => return,
            Event::Timer => {
                self.hub.group.handle_timeout(self.now);
                assert!(self.hub.group.poll_timeout().is_none_or(|at| at > self.now), "the timer would spin");
            }
            Event::Join(who) => self.join(who),
            Event::Audited { life, task, verdict } => self.audited(life, &task, verdict),
            Event::Lost(peer) => self.lose(peer),
            Event::BeginIteration => self.begin_iterations(),
            Event::Resume => self.hub.group.resume(self.now),
        }
        if let Some(fatal) = self.hub.group.fatal_failure() {
            // Five attempts may fail by chance, silent ones among them; then the user resumes the run.
            assert!(!fatal.is_repeated, "{fatal}");
            self.restart_hub(u64::MAX);
        }
        self.drain();
        self.hub.check();
    }

    /// Delays events of a stopped hub. Messages that arrived in the meantime come before its timers.
    fn wait_for_hub(&mut self, event: Event) -> Option<Event> {
        let thaw = self.hub.frozen_until.since(self.now);
        let is_for_hub = !matches!(event, Event::ToWorker { .. } | Event::Tick(_) | Event::InjectFault);
        if thaw == Micros(0) || !is_for_hub {
            return Some(event);
        }
        let late = if matches!(event, Event::Timer) { Micros(1) } else { Micros(0) };
        self.after(thaw + late, event);
        None
    }

    fn is_chaos(&self) -> bool {
        self.now < self.scenario.faults.until
    }

    fn after(&mut self, span: Micros, event: Event) {
        self.scheduled += 1;
        self.queue.insert((self.now + span, self.scheduled), event);
    }

    fn log(&mut self, what: std::fmt::Arguments<'_>) {
        writeln!(self.log, "{} {what}", self.now).expect("a string takes everything");
    }
}

impl Report {
    /// Checks the history against the rules of the scenario.
    ///
    /// # Panics
    /// If the history violates a rule.
    pub fn check(&self, scenario: &Scenario) {
        if let Err(violation) = self.history.check(Rules::of(scenario)) {
            panic!("{violation}");
        }
        let kept = |happened: &Happened| matches!(happened, Happened::Batch { .. });
        assert!(self.history.0.iter().any(kept), "a run without a batch shows nothing");
    }
}
