//! Simulates a hub and its run on a virtual clock: admission, tokens, messages, the course of the run, a learner, snapshots and
//! checkpoints, audits, an operator with a dashboard, and workers behind a bad network.
//!
//! [`RunScenario`] determines everything. The events are kept in a [`RunHistory`], whose checker shares no code with the hub.

mod history;
mod hub;
mod link;
mod run;
mod scenario;
mod workers;

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::SlotFragment,
    group::{AuditTask, Verdict},
    ids::WorkerId,
    protocol::{Phase, handshake::Accepted},
    time::Micros,
};

pub use self::{
    history::{RunEvent, RunHistory, RunRules},
    scenario::{Plant, Request, RunScenario, RunWorker},
};
use self::{hub::SimHub, workers::SimWorker};
use crate::{
    fake_worker::{WorkerInput, WorkerOutput},
    scenario::Dice,
};

/// Virtual time after which a run that has not ended counts as stuck.
const TOO_LATE: Micros = Micros::from_secs(3_600);

/// An event of the simulation. Those of a run contain its `life`: how often the hub has restarted the run, or itself, before. Those
/// of a connection contain how often the hub had crashed.
#[derive(Debug)]
enum Event {
    ToHub {
        from: WorkerId,
        crashes: u64,
        run: u32,
        said: WorkerOutput,
    },
    ToWorker {
        to: WorkerId,
        life: u32,
        input: WorkerInput,
    },
    Tick(WorkerId),
    /// The worker at this place of the scenario connects.
    Join(usize),
    Lost {
        worker: WorkerId,
        crashes: u64,
    },
    Learned {
        life: u32,
    },
    Audited {
        crashes: u64,
        run: u32,
        task: Box<AuditTask>,
        verdict: Verdict,
    },
    /// Nothing but time has passed.
    Wake,
    Ask(Request),
    Fault,
}

/// The result of a simulated run.
#[derive(Debug)]
pub struct RunReport {
    /// The batches that the learner has used.
    pub batches: Vec<Vec<SlotFragment>>,
    /// The events.
    pub history: RunHistory,
    /// When it ended; `None` if it did not.
    pub ended_at: Option<Micros>,
    /// How often the run was rolled back.
    pub rollbacks: u64,
    /// How often the hub's process was restarted.
    pub crashes: u64,
    /// Requests of the operator without a reply.
    pub unanswered: u32,
    /// The phase of the run that the operator was shown last.
    pub shown: Option<Phase>,
}

/// A run in progress.
pub struct RunSim {
    scenario: RunScenario,
    dice: Dice,
    now: Micros,
    /// Events by time and number, so that events at equal times keep their order.
    queue: BTreeMap<(Micros, u64), Event>,
    scheduled: u64,
    hub: SimHub,
    workers: BTreeMap<WorkerId, SimWorker>,
    /// How workers were admitted, by place of the scenario.
    accepted: BTreeMap<usize, Accepted>,
    history: RunHistory,
}

impl RunSim {
    /// Sets up a run.
    ///
    /// # Panics
    /// If the scenario describes no run.
    #[must_use]
    pub fn new(scenario: RunScenario) -> Self {
        let mut sim = Self {
            dice: Dice::new(scenario.seed ^ 0xc0_0e5e),
            now: Micros(0),
            queue: BTreeMap::new(),
            scheduled: 0,
            hub: SimHub::new(&scenario),
            workers: BTreeMap::new(),
            accepted: BTreeMap::new(),
            history: RunHistory::default(),
            scenario,
        };
        sim.set_turns();
        for place in 0..sim.scenario.workers.len() {
            let delay = sim.delay();
            sim.after(delay, Event::Join(place));
        }
        for (at, request) in sim.scenario.requests.clone() {
            sim.after(at, Event::Ask(request));
        }
        if sim.scenario.fault_every_ms > 0 {
            sim.after(Micros(0), Event::Fault);
        }
        sim
    }

    /// Runs until the run has ended, or is stuck.
    #[must_use]
    pub fn run(mut self) -> RunReport {
        while !self.hub.is_done() {
            let Some(((at, _), event)) = self.queue.pop_first().filter(|((at, _), _)| *at < TOO_LATE) else { break };
            self.now = at;
            self.hub.core.set_time(at, 0);
            self.handle(event);
            self.settle();
        }
        let ended_at = self.hub.is_done().then_some(self.now);
        let SimHub { batches, rollbacks, crashes, asked, answered, shown, .. } = self.hub;
        let unanswered = asked - answered;
        RunReport { batches, history: self.history, ended_at, rollbacks, crashes, unanswered, shown }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ToHub { from, crashes, run, said } if crashes == self.hub.crashes => {
                self.hub_receives(from, run, said)
            }
            Event::ToWorker { to, life, input } => self.worker_receives(to, life, input),
            Event::Tick(worker) => self.tick(worker),
            Event::Join(place) => self.join(place),
            Event::Lost { worker, crashes } if crashes == self.hub.crashes => self.handle_lost(worker),
            Event::Learned { life } if life == self.hub.life => self.learned(),
            Event::Audited { crashes, run, task, verdict } if crashes == self.hub.crashes => {
                self.audited(run, &task, verdict);
            }
            // Those of an earlier life have no effect.
            Event::ToHub { .. } | Event::Lost { .. } | Event::Learned { .. } | Event::Audited { .. } => {}
            Event::Wake => self.hub.core.handle_timeout(),
            Event::Ask(request) => self.ask(request),
            Event::Fault => self.fault(),
        }
    }

    fn after(&mut self, span: Micros, event: Event) {
        self.scheduled += 1;
        self.queue.insert((self.now + span, self.scheduled), event);
    }

    fn record(&mut self, event: RunEvent) {
        self.history.0.push((self.now, event));
    }
}
