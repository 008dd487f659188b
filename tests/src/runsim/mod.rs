//! A simulation of a hub and its runs on a virtual clock: admission, tokens, messages, the queue and the course of
//! runs, a learner, snapshots and checkpoints, audits, evaluations, an operator with a dashboard, launchers, local
//! workers that are replaced, and workers behind a bad network.
//!
//! The [`RunScenario`] determines everything. The events are recorded in a [`RunHistory`], whose checker shares no code
//! with the hub.

mod ask_rules;
mod asks;
mod evaluation;
mod history;
mod hub;
mod launch_rules;
mod launchers;
mod link;
mod local;
mod queue;
mod run;
mod scenario;
mod workers;

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::SlotFragment,
    evaluation::Ticket,
    group::{AuditTask, Verdict},
    ids::WorkerId,
    protocol::{Message, Phase, handshake::Accepted},
    time::Micros,
};

use self::{asks::SimAsks, hub::SimHub, launchers::SimLaunchers, local::LocalProcesses, workers::SimWorker};
pub use self::{
    evaluation::EvaluationEnd,
    history::{RunEvent, RunHistory, RunRules},
    scenario::{Plant, QueuedRun, Request, RunScenario, RunWorker},
};
use crate::{
    fake_worker::{WorkerInput, WorkerOutput},
    scenario::Dice,
};

/// The virtual time after which a run that has not ended counts as stuck.
const TOO_LATE: Micros = Micros::from_secs(1_200);
/// The interval between two sweeps for workers without progress.
const SWEEP_EVERY: Micros = Micros::from_millis(500);

/// An event of the simulation. An event of a run contains its `life`, the number of earlier restarts of runs and of the
/// hub. An event of a connection contains the number of earlier crashes of the hub.
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
    /// The worker at this place of the scenario connects, in the process of this number if it is local.
    Join(usize, u32),
    /// The process of a local worker has exited.
    Exited {
        crashes: u64,
        number: u32,
    },
    /// An operator adds a local worker.
    AddLocal {
        crashes: u64,
        place: usize,
    },
    ToLauncher {
        crashes: u64,
        peer: u32,
        message: Message,
    },
    FromLauncher {
        crashes: u64,
        peer: u32,
        message: Message,
    },
    /// A launcher connects.
    ConnectLauncher(usize),
    /// A launcher has not reconnected in time after the given number of lost connections.
    LauncherAbsent {
        index: usize,
        losses: u32,
    },
    /// The deadline for the report of the end of a launcher's worker has passed.
    KilledLate {
        crashes: u64,
        worker: u64,
    },
    ToAskPeer {
        crashes: u64,
        peer: u32,
        index: usize,
        message: Message,
    },
    FromAskPeer {
        crashes: u64,
        peer: u32,
        message: Message,
    },
    /// An evaluation worker, or a program that requests evaluations, connects.
    ConnectAskPeer(usize),
    /// A program requests an evaluation.
    AskNext(usize),
    CancelAsk {
        index: usize,
        ask: u64,
    },
    /// An evaluation worker has finished the evaluation with the number `begun`.
    CallDone {
        index: usize,
        begun: u64,
    },
    /// A sweep for workers that make no progress is due.
    Sweep,
    Lost {
        worker: WorkerId,
        crashes: u64,
    },
    Learned {
        life: u32,
    },
    EvaluationEnds {
        life: u32,
        ticket: Ticket,
        end: EvaluationEnd,
    },
    Audited {
        crashes: u64,
        run: u32,
        task: Box<AuditTask>,
        verdict: Verdict,
    },
    /// The parts of a run are built.
    Made {
        crashes: u64,
        number: u32,
    },
    /// The deadline of a timer has passed.
    Wake,
    Ask(Request),
    Fault,
}

/// The result of a simulated run.
#[derive(Debug)]
pub struct RunReport {
    /// The batches that the learner has used, per run.
    pub runs: Vec<Vec<Vec<SlotFragment>>>,
    /// The events.
    pub history: RunHistory,
    /// The time at which the simulation ended.
    pub finished_at: Micros,
    /// Whether all runs ended.
    pub is_over: bool,
    /// The number of times that a run was rolled back.
    pub rollbacks: u64,
    /// The number of restarts of the hub's process.
    pub crashes: u64,
    /// The number of requests of the operator without a reply.
    pub unanswered: usize,
    /// The latest phase of the run in the operator's dashboard.
    pub shown: Option<Phase>,
}

/// A run in progress.
pub struct RunSim {
    scenario: RunScenario,
    dice: Dice,
    now: Micros,
    /// The events by time and number, so that events at equal times keep their order.
    queue: BTreeMap<(Micros, u64), Event>,
    scheduled: u64,
    /// The time of the next [`Event::Wake`].
    wake_at: Option<Micros>,
    /// The number of runs still to be started.
    starts_left: usize,
    hub: SimHub,
    workers: BTreeMap<WorkerId, SimWorker>,
    processes: LocalProcesses,
    launchers: SimLaunchers,
    asks: SimAsks,
    /// The accepted identities of workers, by place of the scenario.
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
            wake_at: None,
            starts_left: scenario.requests.iter().filter(|(_, it)| matches!(it, Request::Start(_))).count(),
            hub: SimHub::new(&scenario),
            workers: BTreeMap::new(),
            processes: LocalProcesses::default(),
            launchers: SimLaunchers::new(scenario.launchers.len()),
            asks: SimAsks::default(),
            accepted: BTreeMap::new(),
            history: RunHistory::default(),
            scenario,
        };
        sim.set_turns();
        sim.connect_launchers();
        sim.start_all_local();
        sim.connect_all_asks();
        for place in 0..sim.scenario.workers.len() {
            if !sim.is_local(place) {
                let delay = sim.delay();
                sim.after(delay, Event::Join(place, 0));
            }
        }
        sim.after(SWEEP_EVERY, Event::Sweep);
        for (at, request) in sim.scenario.requests.clone() {
            sim.after(at, Event::Ask(request));
        }
        if sim.scenario.fault_every_ms > 0 {
            sim.after(Micros(0), Event::Fault);
        }
        sim
    }

    /// Runs the simulation until all runs have ended, or one is stuck, and no program waits for an answer that is not
    /// overdue.
    #[must_use]
    pub fn run(mut self) -> RunReport {
        while !self.is_done() || self.awaits_answer() {
            let Some(((at, _), event)) = self.queue.pop_first().filter(|((at, _), _)| *at < TOO_LATE) else { break };
            self.now = at;
            self.hub.core.set_time(at, 0);
            self.handle(event);
            self.settle();
        }
        let (is_over, finished_at, history) = (self.is_done(), self.now, self.history);
        let SimHub { runs, rollbacks, crashes, open, shown, .. } = self.hub;
        RunReport { runs, history, finished_at, is_over, rollbacks, crashes, unanswered: open.len(), shown }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ToHub { from, crashes, run, said } if crashes == self.hub.crashes => {
                self.hub_receives(from, run, said)
            }
            Event::ToWorker { to, life, input } => self.worker_receives(to, life, input),
            Event::Tick(worker) => self.tick(worker),
            Event::Join(place, process) => self.join(place, process),
            Event::Exited { crashes, number } if crashes == self.hub.crashes => self.handle_exited(number),
            Event::AddLocal { crashes, place } if crashes == self.hub.crashes => self.add_local(place),
            Event::ToLauncher { crashes, peer, message } if crashes == self.hub.crashes => {
                self.launcher_receives(peer, message)
            }
            Event::FromLauncher { crashes, peer, message } if crashes == self.hub.crashes => {
                self.hub_receives_from_launcher(peer, message);
            }
            Event::ConnectLauncher(index) => self.connect_launcher(index),
            Event::LauncherAbsent { index, losses } => self.handle_launcher_absent(index, losses),
            Event::KilledLate { crashes, worker } if crashes == self.hub.crashes => self.give_up_launched(worker),
            Event::ToAskPeer { crashes, peer, index, message } if crashes == self.hub.crashes => {
                self.ask_peer_receives(index, peer, message);
            }
            Event::FromAskPeer { crashes, peer, message } if crashes == self.hub.crashes => {
                self.hub_receives_from_ask_peer(peer, message);
            }
            Event::ConnectAskPeer(index) => self.connect_ask_peer(index),
            Event::AskNext(index) => self.ask_next(index),
            Event::CancelAsk { index, ask } => self.cancel_ask(index, ask),
            Event::CallDone { index, begun } => self.finish_call(index, begun),
            Event::Sweep => self.sweep(),
            Event::Lost { worker, crashes } if crashes == self.hub.crashes => self.handle_lost(worker),
            Event::Learned { life } if life == self.hub.life => self.learned(),
            Event::EvaluationEnds { life, ticket, end } if life == self.hub.life => {
                self.handle_evaluation_end(ticket, end);
            }
            Event::Audited { crashes, run, task, verdict } if crashes == self.hub.crashes => {
                self.audited(run, &task, verdict);
            }
            Event::Made { crashes, number } if crashes == self.hub.crashes => self.handle_made(number),
            // Events of an earlier life have no effect.
            Event::ToHub { .. }
            | Event::Lost { .. }
            | Event::Learned { .. }
            | Event::EvaluationEnds { .. }
            | Event::Audited { .. }
            | Event::Made { .. }
            | Event::Exited { .. }
            | Event::ToLauncher { .. }
            | Event::ToAskPeer { .. }
            | Event::FromAskPeer { .. }
            | Event::FromLauncher { .. }
            | Event::KilledLate { .. }
            | Event::AddLocal { .. } => {}
            Event::Wake => {
                self.wake_at.take_if(|at| *at <= self.now);
                self.hub.core.handle_timeout();
                self.tend_local();
            }
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
