//! The queue of the simulated hub: runs that operators start, of which one is in progress at a time, and whose parts
//! take time to build.

use rollmesh_core::{
    hub::{HubRun as _, RunLoopConfig, RunTurn, WaitingRun},
    protocol::{Kind, Message, message::StartRun},
    time::Micros,
};

use super::{
    Event, Plant, QueuedRun, RunEvent, RunScenario, RunSim,
    hub::SimHub,
    run::{Snapshots, parts},
};

/// A run whose parts are being built.
#[derive(Clone, Copy, Debug)]
pub(super) struct MakingRun {
    number: u32,
    /// The request of a run that has not waited, which is answered once the run has begun.
    request: Option<u32>,
}

impl RunSim {
    /// Starts a further run for an operator.
    pub(super) fn start_run(&mut self, run: QueuedRun, request: u32) {
        self.starts_left -= 1;
        let operator = self.hub.operator();
        let message = Message::StartRun(StartRun { request, settings: String::new() });
        let left = self.hub.core.handle_message(operator, message);
        assert!(matches!(left, Some(Message::StartRun(_))), "only the shell starts runs");
        let config = parts(&self.scenario, run.iterations).config;
        match self.hub.core.turn_of_run() {
            Ok(RunTurn::Now) => {
                let number = self.hub.core.begin_start(config);
                self.queue(number, run);
                self.make(number, Some(request));
            }
            Ok(RunTurn::Later) => {
                let number = self.hub.core.queue_run(config);
                self.queue(number, run);
                self.reply(request, Ok(number));
                if self.scenario.plant == Some(Plant::RotateQueue) {
                    let first = self.hub.core.queue.pop().expect("a run waits");
                    self.hub.core.queue.push(first);
                }
            }
            Err(refusal) => self.reply(request, Err(refusal.to_string())),
        }
    }

    fn queue(&mut self, number: u32, run: QueuedRun) {
        self.hub.queued.insert(number, run);
        self.record(RunEvent::Queued { number });
    }

    fn reply(&mut self, request: u32, done: Result<u32, String>) {
        let operator = self.hub.operator();
        self.hub.core.reply(operator, Kind::StartRun, request, done);
    }

    /// Begins to build the parts of the run that has waited longest.
    pub(super) fn make_waiting(&mut self, WaitingRun { number, .. }: &WaitingRun) {
        if self.scenario.plant != Some(Plant::ForgetWaiting) {
            self.make(*number, None);
        }
    }

    fn make(&mut self, number: u32, request: Option<u32>) {
        self.record(RunEvent::Making { number });
        self.hub.making = Some(MakingRun { number, request });
        let took = Micros::from_millis(self.hub.queued[&number].make_ms);
        self.after(took, Event::Made { crashes: self.hub.crashes, number });
    }

    /// Cancels the start of the run whose parts are being built, since an operator has removed it.
    pub(super) fn give_up_start(&mut self) {
        if self.scenario.plant == Some(Plant::BeginRemoved) {
            return;
        }
        let made = self.hub.making.take();
        if let Some(request) = made.and_then(|made| made.request) {
            self.reply(request, Err("the run was removed".into()));
        }
    }

    /// Drops all waiting runs, since the program is about to exit.
    pub(super) fn drop_waiting(&mut self) {
        self.give_up_start();
        self.hub.core.drop_waiting();
    }

    /// Begins the run whose parts are built, or reports that they cannot be built.
    pub(super) fn handle_made(&mut self, number: u32) {
        let Some(MakingRun { request, .. }) = self.hub.making.take_if(|making| making.number == number) else { return };
        let QueuedRun { iterations, fails, .. } = self.hub.queued[&number];
        let listed = self.hub.core.end_start();
        let failed = || "its environment cannot be made".to_owned();
        if fails {
            self.record(RunEvent::NotBegun { number });
            match (request, listed) {
                (Some(request), _) => self.reply(request, Err(failed())),
                (None, Some(waiting)) => self.hub.core.fail_waiting(&waiting, failed()),
                (None, None) => {}
            }
            return;
        }
        self.hub.begin_queued(number, parts(&self.scenario, iterations), &self.scenario, self.now);
        self.record(RunEvent::Begun { number, iterations });
        request.into_iter().for_each(|request| self.reply(request, Ok(number)));
    }

    /// Returns true once no run is in progress and none will begin.
    pub(super) fn is_done(&self) -> bool {
        let core = &self.hub.core;
        let is_over = core.run.as_ref().is_some_and(|run| run.state().is_over());
        let is_queue_done = core.queue.is_empty() && self.hub.making.is_none() && self.starts_left == 0;
        is_over && (core.is_leaving || is_queue_done)
    }
}

impl SimHub {
    /// Begins a further run.
    fn begin_queued(&mut self, number: u32, parts: RunLoopConfig, scenario: &RunScenario, now: Micros) {
        self.parts = parts;
        self.life += 1;
        self.runs.push(Vec::new());
        self.begin(number, None, Snapshots::new(), scenario, now);
    }
}
