//! The shell of the simulated hub, which executes the effects of its state machine.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};

use rollmesh_core::{
    batch::SlotFragment,
    group::{AuditTask, Verdict},
    hub::{
        Arrival, BatchWork, Hub, HubEffect, HubRun as _, HubSetup, HubTokens, Observed, RunEnd, RunLoopConfig, RunStep,
    },
    ids::{LeaseId, WeightsVersion, WorkerId},
    protocol::{
        Message, Phase, Role, Token, TokenGrant, TokenId, convert,
        handshake::{Accepted, Identity},
        message::{RemoveRun, Request as Asked},
    },
    time::Micros,
};

use super::{
    Event, Plant, QueuedRun, Request, RunEvent, RunScenario, RunSim,
    link::SimLink,
    local::{session_of, token_of_child},
    queue::MakingRun,
    run::{SimRun, Snapshot, Snapshots, parts},
};
use crate::{fake_worker::WorkerInput, simnet::replay};

pub(super) struct SimHub {
    pub(super) parts: RunLoopConfig,
    pub(super) core: Hub<SimLink, SimRun>,
    /// The peer and the connection of the operator, who is always connected.
    operator: (u32, SimLink),
    /// The number of restarts of runs and of the hub.
    pub(super) life: u32,
    /// The batches taken, per run; the learner may still be using the last one.
    pub(super) runs: Vec<Vec<Vec<SlotFragment>>>,
    /// The iterations of the current run with evaluated weights.
    pub(super) evaluated: BTreeSet<u64>,
    /// The checkpoints by iteration, and the times at which they are on disk.
    checkpoints: Snapshots,
    /// The runs that were started, by number.
    pub(super) queued: BTreeMap<u32, QueuedRun>,
    /// The run whose parts are being built.
    pub(super) making: Option<MakingRun>,
    pub(super) rollbacks: u64,
    pub(super) crashes: u64,
    /// The number of requests sent, and the unanswered requests.
    pub(super) asked: u32,
    pub(super) open: BTreeMap<u32, Request>,
    /// The latest phase in the operator's dashboard.
    pub(super) shown: Option<Phase>,
}

/// The numbers of tokens: the operator's, the token that several workers share, and the first of the workers' own
/// tokens.
const OPERATOR: u8 = 0;
const SHARED: u8 = 1;
const OWN: u8 = 2;

fn token(number: u8) -> Token {
    Token::new([number; 32])
}

fn from() -> std::net::SocketAddr {
    ([127, 0, 0, 1], 1).into()
}

impl SimHub {
    pub(super) fn new(scenario: &RunScenario) -> Self {
        let mut tokens = HubTokens::default();
        tokens.add(&token(OPERATOR), TokenGrant { role: Role::Operator, child: None, expires: None });
        // Trusted workers are local, and get their tokens when they are started.
        for place in (0..scenario.workers.len()).filter(|place| scenario.workers[*place].falsification.is_some()) {
            let grant = TokenGrant { role: Role::Worker, child: None, expires: None };
            tokens.add(&Self::token_of(scenario, place), grant);
        }
        tokens.share(&token(SHARED));
        let mut hub = Self {
            parts: parts(scenario, scenario.iterations),
            core: Self::process(tokens, 0),
            operator: (0, SimLink::default()),
            life: 0,
            runs: vec![Vec::new()],
            evaluated: BTreeSet::new(),
            checkpoints: BTreeMap::new(),
            queued: BTreeMap::new(),
            making: None,
            rollbacks: 0,
            crashes: 0,
            asked: 0,
            open: BTreeMap::new(),
            shown: None,
        };
        hub.begin(1, None, Snapshots::new(), scenario, Micros(0));
        hub
    }

    fn token_of(scenario: &RunScenario, place: usize) -> Token {
        let worker = &scenario.workers[place];
        token(if worker.shares_token { SHARED } else { OWN + place as u8 })
    }

    /// Returns the hub of a new process. Tokens survive restarts.
    fn process(tokens: HubTokens, crashes: u64) -> Hub<SimLink, SimRun> {
        let life = crashes as u32 + 1;
        let setup = HubSetup { life, distrusts_remote: true, rolls_back: true, ..HubSetup::default() };
        let mut hub = Hub::new(setup, tokens);
        hub.keeps_queue = true;
        hub
    }

    /// Begins a run of this number from a snapshot, or from its beginning. Returns the iteration.
    pub(super) fn begin(
        &mut self,
        number: u32,
        from: Option<Snapshot>,
        kept: Snapshots,
        scenario: &RunScenario,
        now: Micros,
    ) -> u64 {
        if self.core.peers.is_empty() {
            let link = SimLink::default();
            let accepted = self.check_as(Role::Operator, token(OPERATOR), "it").expect("the operator's token stays");
            self.operator = (self.admit(accepted, link.clone(), [1; 16], String::new()), link);
        }
        let run = SimRun::new(&self.parts, scenario, (number, self.life), (from, kept), now);
        let iteration = run.state().iteration();
        if iteration == 0 {
            self.checkpoints.clear();
        }
        self.batches().truncate(iteration as usize);
        self.evaluated.retain(|evaluated| *evaluated <= iteration);
        self.core.count_run(number);
        self.core.run = Some(run);
        self.core.dashboards.begin_run();
        self.core.bring_all_into_run();
        iteration
    }

    /// Returns the accepted identity of a peer of this name, unless the hub refuses it.
    pub(super) fn check_as(&self, role: Role, token: Token, name: &str) -> Option<Accepted> {
        let Message::Hello(hello) = Identity::new(role, token, "native", name, "cpu").hello() else { return None };
        self.core.check(&hello).ok()
    }

    /// Admits a peer, which the launcher of this name has started. Returns its id.
    pub(super) fn admit(&mut self, accepted: Accepted, link: SimLink, session: [u8; 16], launcher: String) -> u32 {
        self.core.admit(accepted, Arrival { from: from(), link, session, launcher, is_spare: false })
    }

    /// Returns the peer of the operator.
    pub(super) fn operator(&self) -> u32 {
        self.operator.0
    }

    /// Returns the batches of the current run.
    fn batches(&mut self) -> &mut Vec<Vec<SlotFragment>> {
        self.runs.last_mut().expect("a run")
    }

    pub(super) fn run(&mut self) -> &mut SimRun {
        self.core.run.as_mut().expect("a run")
    }
}

impl RunSim {
    /// Connects a worker to the hub. Returns its id and its connection, unless the hub refuses it.
    pub(super) fn admit(&mut self, place: usize) -> Option<(u32, SimLink)> {
        let (link, process) = (SimLink::default(), self.processes.in_place(place));
        let own = process.map(|number| token_of_child(number, self.hub.crashes));
        let token = own.unwrap_or_else(|| SimHub::token_of(&self.scenario, place));
        let mut accepted = self.hub.check_as(Role::Worker, token, "it");
        if self.scenario.plant == Some(Plant::AdmitAnyone) {
            accepted = accepted.or_else(|| self.accepted.get(&place).cloned());
        }
        let accepted = accepted?;
        let (token, launchers) = (accepted.token, &mut self.launchers.hub);
        let launched = process.filter(|number| self.processes.launched(*number).is_some());
        if let Some(number) = launched {
            let resume = self.processes.join(number);
            assert!(launchers.may_join(token, resume), "its token admits the process that was started");
            assert!(!launchers.may_join(token, Some([0xff; 16])) || resume.is_none(), "and no other one");
            launchers.handle_joined(token, session_of(number));
        }
        let launcher = launchers.name(token).unwrap_or_default();
        self.accepted.insert(place, accepted.clone());
        let session = process.map_or([1; 16], session_of);
        let id = self.hub.admit(accepted, link.clone(), session, launcher);
        process.into_iter().for_each(|number| self.processes.local.handle_connected(number, id));
        let principal = self.hub.core.principal(id);
        self.record(RunEvent::Admitted { principal });
        Some((id, link))
    }

    /// Executes everything that follows from an event, as the hub's own task does.
    pub(super) fn settle(&mut self) {
        self.deliver();
        self.tend_evaluations();
        while let Some(effect) = self.hub.core.poll_effect() {
            self.execute(effect);
            self.deliver();
            self.tend_evaluations();
        }
        self.deliver();
        let run = self.hub.run();
        assert!(run.state().group.ledger().balances(), "{:?}", run.state().group.ledger());
        let local = self.processes.local.poll_timeout();
        if let Some(at) = self.hub.core.poll_timeout().into_iter().chain(local).min() {
            let at = at.max(self.now + Micros(1));
            if self.wake_at.is_none_or(|earlier| at < earlier) {
                self.wake_at = Some(at);
                self.after(at.since(self.now), Event::Wake);
            }
        }
    }

    fn execute(&mut self, effect: HubEffect<SimLink>) {
        match effect {
            HubEffect::Left { id, peer, .. } if peer.role == Role::Launcher => {
                self.launchers.hub.handle_lost(id, self.now);
            }
            HubEffect::Left { id, peer, .. } => {
                let child = peer.child;
                child.into_iter().for_each(|child| self.processes.local.handle_disconnected(child, id, self.now));
                if let Some(worker) = self.workers.remove(&WorkerId(id)) {
                    // The peer does not know yet that it was removed, and reconnects.
                    self.after(Micros::from_secs(1), Event::Join(worker.place, child.unwrap_or(0)));
                }
            }
            HubEffect::Child { child, fate } => self.decide_on_local(child, fate),
            HubEffect::Hung { child, .. } => self.end_local(child),
            HubEffect::Quarantine { principal, tokens, first_doubtful } => {
                let first = first_doubtful.map(|first| first.0);
                self.record(RunEvent::AuditFailed { principal, first });
                self.revoke(tokens);
            }
            HubEffect::Consume(Ok(BatchWork::Learn(rows))) => {
                let number = self.hub.batches().len() as u64;
                self.record(RunEvent::Batch { number });
                self.hub.batches().push(rows.fragments().to_vec());
                let took = Micros::from_millis(self.scenario.learner_ms);
                self.after(took, Event::Learned { life: self.hub.life });
            }
            HubEffect::Consume(other) => panic!("{other:?}"),
            HubEffect::Audit { run, task, .. } => {
                let verdict = match self.scenario.plant {
                    Some(Plant::BlindAudits) => Verdict::Agrees,
                    _ => replay(&task, self.scenario.length),
                };
                let took = self.dice.within_ms(self.scenario.audit_ms);
                self.after(took, Event::Audited { crashes: self.hub.crashes, run, task, verdict });
            }
            HubEffect::Reply { peer, kind, request } => self.hub.core.reply(peer, kind, request, Ok(0)),
            HubEffect::Step(step) => self.take_step(step),
            HubEffect::MakeRun(waiting) => self.make_waiting(&waiting),
            HubEffect::GiveUpStart => self.give_up_start(),
            // The audit log, the terminal and processes are not simulated.
            _ => {}
        }
    }

    fn revoke(&mut self, tokens: Vec<TokenId>) {
        if self.scenario.plant != Some(Plant::KeepTokens) {
            tokens.into_iter().for_each(|token| _ = self.hub.core.tokens.revoke(token));
            self.hub.core.expel_invalid();
        }
    }

    /// Sends what the hub has queued for its peers.
    fn deliver(&mut self) {
        self.deliver_to_launchers();
        self.deliver_to_ask_peers();
        let closed = self.workers.iter().filter(|(_, worker)| worker.link.is_closed()).map(|(id, _)| *id);
        closed.collect::<Vec<_>>().into_iter().for_each(|id| self.break_connection(id));
        for (id, link) in self.workers.iter().map(|(id, worker)| (*id, worker.link.clone())).collect::<Vec<_>>() {
            while let Some(message) = link.poll() {
                match message {
                    Message::RunStart(start) => self.announce(id, start.run),
                    Message::LeaseGrant(grant) => {
                        let lease = convert::lease(&grant, &self.hub.parts.config).expect("a lease of the hub");
                        self.record(RunEvent::Granted { principal: self.hub.core.principal(id.0) });
                        self.send_to_worker(id, WorkerInput::Grant(lease));
                    }
                    Message::Revoke(revoke) => self.send_to_worker(id, WorkerInput::Revoke(LeaseId(revoke.lease))),
                    _ => {}
                }
            }
        }
        while let Some(message) = self.hub.operator.1.poll() {
            match message {
                Message::Reply(reply) => {
                    let asked = self.hub.open.remove(&reply.request);
                    let removed = match asked {
                        Some(Request::RemoveRun(number)) if reply.error.is_empty() => Some(number),
                        Some(Request::Stop) if reply.error.is_empty() && reply.run > 0 => Some(reply.run),
                        _ => None,
                    };
                    removed.into_iter().for_each(|number| self.record(RunEvent::Removed { number }));
                }
                Message::RunStatus(status) => self.hub.shown = Phase::try_from(status.phase).ok(),
                _ => {}
            }
        }
    }

    fn take_step(&mut self, step: RunStep) {
        let plant = self.scenario.plant;
        match step {
            RunStep::RollBack(_) if plant == Some(Plant::IgnoreRollBack) => {}
            RunStep::RollBack(before) => self.roll_back(before.0),
            RunStep::End(end) => {
                let end = self.hub.core.course.end(end);
                self.record(RunEvent::Ended(end.clone()));
                if plant == Some(Plant::EndTwice) && end == RunEnd::Finished {
                    self.begin_iteration();
                }
                let now = self.now;
                self.hub.run().state_mut().end(&end, now);
                self.hub.core.announce_end();
                self.hub.core.add_past_run();
                if plant != Some(Plant::ForgetDashboards) {
                    self.hub.core.refresh_dashboards();
                }
            }
            RunStep::Save if plant == Some(Plant::SaveLate) => {}
            RunStep::Save => self.save(),
            RunStep::Begin => {
                self.begin_iteration();
                if plant == Some(Plant::SaveLate) {
                    self.save();
                }
            }
        }
    }

    fn begin_iteration(&mut self) {
        self.record(RunEvent::Began);
        self.hub.core.begin_iteration();
    }

    fn save(&mut self) {
        let (iteration, snapshot) = (self.hub.run().state().iteration(), self.hub.run().snapshot());
        let is_busy = self.hub.checkpoints.values().any(|(_, complete_at)| *complete_at > self.now);
        if self.scenario.has_files && !is_busy {
            self.record(RunEvent::Saved { iteration });
            let on_disk = self.now + Micros::from_millis(self.scenario.save_ms);
            self.hub.checkpoints.insert(iteration, (snapshot, on_disk));
        }
    }

    pub(super) fn learned(&mut self) {
        let now = self.now;
        let run = self.hub.run();
        let state = run.state_mut();
        if state.is_over() {
            return;
        }
        let version = WeightsVersion(state.weights().version().0 + 1);
        state.handle_learned(state.weights().with_version(version), Observed::default(), now);
        let iteration = state.iteration();
        run.keep_for_undoing(now);
        self.record(RunEvent::Counted { iteration });
        self.offer_evaluation();
        self.hub.core.course.handle_counted();
    }

    pub(super) fn ask(&mut self, request: Request) {
        self.record(RunEvent::Asked(request));
        let plant = self.scenario.plant;
        let (number, asked) = (self.hub.asked, Asked { request: self.hub.asked });
        let message = match request {
            Request::Pause if plant == Some(Plant::IgnorePause) => return,
            Request::Stop if plant == Some(Plant::ForgetStop) => return,
            Request::Pause => Message::Pause(asked),
            Request::Resume => Message::Resume(asked),
            Request::Stop => Message::Stop(asked),
            Request::Drain => Message::Drain(asked),
            Request::Exit => {
                self.hub.core.is_leaving = plant != Some(Plant::ForgetExit);
                self.drop_waiting();
                return self.hub.core.drain_run();
            }
            Request::Step => return self.hub.core.course.take_turn(),
            Request::RemoveRun(run) => Message::RemoveRun(RemoveRun { request: number, run }),
            Request::Start(run) => {
                self.hub.asked += 1;
                self.hub.open.insert(number, request);
                return self.start_run(run, number);
            }
        };
        self.hub.asked += 1;
        self.hub.open.insert(number, request);
        let left = self.hub.core.handle_message(self.hub.operator.0, message);
        assert_eq!(left, None, "the shell has no part in it");
    }

    pub(super) fn audited(&mut self, run: u32, task: &AuditTask, verdict: Verdict) {
        if self.scenario.plant != Some(Plant::ForgetAudits) {
            self.hub.core.handle_audited(run, task, verdict);
        }
    }

    /// Reschedules an evaluation that had not finished when the state of the resumed run was saved.
    fn evaluate_again(&mut self, iteration: u64) {
        if !self.hub.evaluated.contains(&iteration) {
            self.offer_evaluation();
        }
    }

    fn roll_back(&mut self, before: u64) {
        let SimHub { core, checkpoints, .. } = &mut self.hub;
        core.forget_run();
        let audits = core.take_audits().expect("a run");
        let run = core.run.take().expect("a run");
        let (phase, mut snapshots) = (run.state().phase(), run.snapshots);
        if self.scenario.plant != Some(Plant::RollBackTooLittle) {
            snapshots.retain(|iteration, _| *iteration <= before);
            checkpoints.retain(|iteration, _| *iteration <= before);
        }
        let from = snapshots.pop_last().map(|(_, (snapshot, _))| snapshot);
        self.hub.life += 1;
        let number = self.hub.core.take_run_number();
        let to = self.hub.begin(number, from, snapshots, &self.scenario, self.now);
        self.hub.rollbacks += 1;
        if self.scenario.plant != Some(Plant::LoseAudits) {
            self.hub.core.continue_audits(audits);
        }
        self.record(RunEvent::RolledBack { before, to });
        self.evaluate_again(to);
        let now = self.now;
        match phase {
            Phase::Paused => self.hub.run().state_mut().pause(now).expect("it is running"),
            Phase::Draining => self.hub.core.drain_run(),
            _ => {}
        }
    }

    /// Restarts the hub's process from the run's latest checkpoint. Earlier requests are lost.
    pub(super) fn crash_hub(&mut self) {
        if self.hub.run().state().is_over() {
            // There is no run to resume.
            return;
        }
        for (_, worker) in mem::take(&mut self.workers) {
            if !self.is_local(worker.place) {
                let back = self.dice.within_ms(1_000);
                self.after(back, Event::Join(worker.place, 0));
            }
        }
        self.crash_launchers();
        self.crash_ask_peers();
        let SimHub { core, checkpoints, crashes, life, .. } = &mut self.hub;
        checkpoints.retain(|_, (_, on_disk)| *on_disk <= self.now);
        (*crashes, *life) = (*crashes + 1, *life + 1);
        *core = SimHub::process(mem::take(&mut core.tokens), *crashes);
        core.set_time(self.now, 0);
        let from = checkpoints.last_key_value().map(|(_, (snapshot, _))| snapshot.clone());
        let to = self.hub.begin(1, from, Snapshots::new(), &self.scenario, self.now);
        if self.hub.runs.len() == 1 {
            self.set_turns();
        }
        self.record(RunEvent::Restarted { to });
        self.evaluate_again(to);
        // The processes of the hub's workers have ended with it.
        self.start_all_local();
    }

    pub(super) fn set_turns(&mut self) {
        let stepwise = self.scenario.stepwise && self.scenario.plant != Some(Plant::ForgetTurns);
        self.hub.core.course.set_stepwise(stepwise);
    }
}
