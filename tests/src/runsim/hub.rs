//! The hub of a simulated run: what executes the steps of its course.

use std::collections::{BTreeMap, BTreeSet};

use rollmesh_core::{
    batch::SlotFragment,
    group::{AuditPolicy, AuditTask, GroupCommand, GroupState, Party, Verdict},
    hub::{
        BatchConsumer, BatchWork, HubTokens, Observed, RunCourse, RunEnd, RunFacts, RunLoop, RunLoopConfig,
        RunProgress, RunStep,
    },
    ids::{LeaseId, WeightsVersion, WorkerId},
    policy::Postprocessing,
    protocol::{Phase, Role, Token, TokenGrant, TokenId},
    run::RunConfig,
    time::Micros,
    worker::{Registry, RolloutWorkerBuilder},
};

use super::{Event, Plant, Request, RunEvent, RunScenario, RunSim, RunWorker, workers::SimWorker};
use crate::{
    fake_worker::{Said, Told},
    simnet::replay,
};

/// Every fragment of an untrusted worker is recomputed.
const AUDITS: AuditPolicy = AuditPolicy { share: 1.0, first_fragments: 0 };

pub(super) struct SimHub {
    parts: RunLoopConfig,
    pub(super) run: RunLoop,
    course: RunCourse,
    /// How often the run, or the hub, was restarted.
    pub(super) life: u32,
    /// The batches that were taken; the last one may be in the learner's hands.
    pub(super) batches: Vec<Vec<SlotFragment>>,
    /// Snapshots by iteration, and when they are complete.
    snapshots: BTreeMap<u64, (Snapshot, Micros)>,
    /// Checkpoints by iteration, and when they are on disk.
    checkpoints: BTreeMap<u64, (Snapshot, Micros)>,
    /// Audits that are going on.
    num_unaudited: u64,
    /// Outlives the hub's process.
    tokens: HubTokens,
    /// The token of each place of the scenario.
    token_of: Vec<TokenId>,
    evaluating_until: Micros,
    is_done: bool,
    pub(super) rollbacks: u64,
    pub(super) crashes: u64,
}

/// A state from which the run can go on.
#[derive(Clone)]
struct Snapshot {
    group: Vec<u8>,
    iteration: u64,
    env_steps: u64,
}

/// Returns what a run of the scenario is made of. Its rows are made up, so the environment does not matter.
fn parts(scenario: &RunScenario) -> RunLoopConfig {
    let steps = scenario.iterations * u64::from(scenario.num_slots) * u64::from(scenario.length);
    let config = RunConfig::sampling("CartPole-v1", scenario.num_slots)
        .rollout_fragment_length(scenario.length)
        .fcnet_hiddens(&[1])
        .stop_after(steps);
    let parts = RolloutWorkerBuilder::new(Registry::builtin()).learning_parts(&config).expect("a run");
    let pace = Micros::from_millis(scenario.pace_ms);
    let consumer = BatchConsumer::Learner(Postprocessing::None);
    RunLoopConfig { pace, consumer, ..RunLoopConfig::sampling(1, config, &parts).expect("weights") }
}

/// The number of the token that several workers have.
const SHARED: usize = 0;

fn token(number: usize) -> Token {
    Token::new([number as u8; 32])
}

fn add_token(tokens: &mut HubTokens, place: usize, worker: &RunWorker) -> TokenId {
    let token = token(if worker.shares_token { SHARED } else { place + 1 });
    tokens.add(&token, TokenGrant { role: Role::Worker, child: None, expires: None })
}

impl SimHub {
    pub(super) fn new(scenario: &RunScenario) -> Self {
        let (parts, mut tokens) = (parts(scenario), HubTokens::default());
        let places = scenario.workers.iter().enumerate();
        let token_of = places.map(|(place, worker)| add_token(&mut tokens, place, worker)).collect();
        tokens.share(&token(SHARED));
        let mut hub = Self {
            run: RunLoop::new(parts.clone(), Micros(0)).expect("slots"),
            parts,
            course: RunCourse::default(),
            life: 0,
            batches: Vec::new(),
            snapshots: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            num_unaudited: 0,
            token_of,
            tokens,
            evaluating_until: Micros(0),
            is_done: false,
            rollbacks: 0,
            crashes: 0,
        };
        hub.begin(scenario);
        hub
    }

    /// Sets up the audits of a run that begins, and its turns.
    fn begin(&mut self, scenario: &RunScenario) {
        let secret = scenario.seed ^ u64::from(self.life) << 32;
        self.run.group.set_audits(AUDITS, secret).expect("a share");
        self.num_unaudited = 0;
        self.evaluating_until = Micros(0);
    }

    pub(super) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Returns whether the token of a worker is valid.
    pub(super) fn admits(&self, place: usize) -> bool {
        self.tokens.table().is_valid(self.token_of[place], 0)
    }

    pub(super) fn principal(&self, place: usize, connection: u64) -> Party {
        self.tokens.principal(self.token_of[place], connection)
    }

    /// Keeps a snapshot if untrusted workers may commit fragments, and those from before batches in doubt.
    pub(super) fn keep_snapshot(&mut self, now: Micros, save_ms: u64) {
        if !self.run.group.has_untrusted() {
            return;
        }
        let iteration = self.run.iteration();
        if !self.run.is_consuming() && !self.snapshots.contains_key(&iteration) {
            self.snapshots.insert(iteration, (self.snapshot(), now + Micros::from_millis(save_ms)));
        }
        let newest_before = |batch: u64| self.snapshots.range(..=batch).next_back().map(|(iteration, _)| *iteration);
        let mut kept: BTreeSet<u64> = self.run.group.doubtful().filter_map(|batch| newest_before(batch.0)).collect();
        kept.insert(iteration);
        self.snapshots.retain(|iteration, _| kept.contains(iteration));
    }

    fn snapshot(&self) -> Snapshot {
        let (iteration, env_steps) = (self.run.iteration(), self.run.env_steps());
        Snapshot { group: self.run.group.state().encode(), iteration, env_steps }
    }

    /// Restarts the run from a snapshot, or from its beginning.
    fn restart(&mut self, from: Option<Snapshot>, scenario: &RunScenario, now: Micros) -> u64 {
        self.life += 1;
        let (iteration, group) = from
            .as_ref()
            .map_or((0, None), |from| (from.iteration, Some(GroupState::decode(&from.group).expect("what was saved"))));
        let parts = RunLoopConfig {
            number: self.life + 1,
            first_lease: LeaseId(u64::from(self.life) << 40),
            weights: self.parts.weights.with_version(WeightsVersion(iteration)),
            group,
            ..self.parts.clone()
        };
        self.run = RunLoop::new(parts, now).expect("the same run");
        if let Some(Snapshot { iteration, env_steps, .. }) = from {
            self.run.resume_from(RunProgress { iteration, env_steps, ..RunProgress::default() }, now);
        }
        self.batches.truncate(iteration as usize);
        self.begin(scenario);
        iteration
    }
}

impl RunSim {
    /// Executes everything that follows from an event, as the hub's own task does.
    pub(super) fn settle(&mut self) {
        loop {
            self.convict_liars();
            self.execute_commands();
            self.take_batch();
            self.audit();
            while self.hub.run.group.poll_event().is_some() || self.hub.run.group.poll_journal().is_some() {}
            let facts = self.facts();
            let Some(step) = self.hub.course.poll(&self.hub.run, &facts, self.now) else { break };
            self.take_step(step);
            if self.hub.is_done {
                return;
            }
        }
        assert!(self.hub.run.group.ledger().balances(), "{:?}", self.hub.run.group.ledger());
        let timeouts = [
            self.hub.run.group.poll_timeout(),
            self.hub.course.poll_timeout(&self.hub.run, self.now),
            Some(self.hub.evaluating_until).filter(|at| *at > self.now),
        ];
        if let Some(at) = timeouts.into_iter().flatten().min() {
            self.after(at.since(self.now).max(Micros(1)), Event::Wake);
        }
    }

    fn facts(&self) -> RunFacts {
        let SimHub { course, snapshots, .. } = &self.hub;
        let is_complete = |before: u64| {
            snapshots.range(..=before).next_back().is_none_or(|(_, (_, complete_at))| *complete_at <= self.now)
        };
        let forgets = |plant| self.scenario.plant == Some(plant);
        RunFacts {
            num_workers: self.scenario.workers.len() as u32,
            keeps_last_batch: self.scenario.has_files,
            awaits_evaluation: self.now < self.hub.evaluating_until && !forgets(Plant::ForgetEvaluations),
            num_unaudited: if forgets(Plant::ForgetAudits) { 0 } else { self.hub.num_unaudited },
            may_be_undone: course.roll_back_before().is_some_and(|before| is_complete(before.0)),
            ..RunFacts::default()
        }
    }

    fn take_step(&mut self, step: RunStep) {
        let plant = self.scenario.plant;
        match step {
            RunStep::RollBack(_) if plant == Some(Plant::IgnoreRollBack) => {}
            RunStep::RollBack(before) => self.roll_back(before.0),
            RunStep::End(end) => {
                let end = self.hub.course.end(end);
                self.note(RunEvent::Ended(end.clone()));
                if plant == Some(Plant::EndTwice) && end == RunEnd::Finished {
                    self.begin_iteration();
                }
                self.hub.run.end(&end, self.now);
                self.hub.is_done = true;
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
        self.note(RunEvent::Began);
        self.hub.run.poll_weights().expect("small weights");
        self.hub.run.begin_iteration(self.now).expect("the iteration before is over");
    }

    fn save(&mut self) {
        let iteration = self.hub.run.iteration();
        let is_busy = self.hub.checkpoints.values().any(|(_, complete_at)| *complete_at > self.now);
        if self.scenario.has_files && !is_busy {
            self.note(RunEvent::Saved { iteration });
            let on_disk = self.now + Micros::from_millis(self.scenario.save_ms);
            self.hub.checkpoints.insert(iteration, (self.hub.snapshot(), on_disk));
        }
    }

    fn execute_commands(&mut self) {
        while let Some(command) = self.hub.run.group.poll_command() {
            match command {
                GroupCommand::Grant { worker, lease } => {
                    let principal = self.principal(worker);
                    self.note(RunEvent::Granted { principal });
                    let _ = self.hub.run.grant(worker, lease.clone());
                    self.send_to_worker(worker, Told::Grant(lease));
                }
                GroupCommand::Revoke { worker, lease } => self.send_to_worker(worker, Told::Revoke(lease)),
                GroupCommand::Dismiss { .. } => {}
            }
        }
    }

    fn take_batch(&mut self) {
        if !self.hub.course.may_take_batch(&self.hub.run) {
            return;
        }
        match self.hub.run.poll_batch() {
            None => {}
            Some(Ok(BatchWork::Learn(rows))) => {
                self.note(RunEvent::Batch { number: self.hub.batches.len() as u64 });
                self.hub.batches.push(rows.fragments().to_vec());
                let took = Micros::from_millis(self.scenario.learner_ms);
                self.after(took, Event::Learned { life: self.hub.life });
            }
            Some(other) => panic!("{other:?}"),
        }
    }

    pub(super) fn learned(&mut self) {
        let SimHub { run, course, .. } = &mut self.hub;
        let version = WeightsVersion(run.weights().version().0 + 1);
        run.handle_learned(run.weights().with_version(version), Observed::default(), self.now);
        let iteration = run.iteration();
        course.handle_counted();
        self.note(RunEvent::Counted { iteration });
        self.hub.keep_snapshot(self.now, self.scenario.save_ms);
        let every = self.scenario.evaluation_every;
        if every > 0 && iteration.is_multiple_of(every) {
            self.hub.evaluating_until = self.now + Micros::from_millis(self.scenario.evaluation_ms);
            self.note(RunEvent::Evaluating { until: self.hub.evaluating_until });
        }
    }

    pub(super) fn hub_hears(&mut self, from: WorkerId, life: u32, said: Said) {
        let (is_of_this_run, now) = (life == self.hub.life, self.now);
        let group = &mut self.hub.run.group;
        match said {
            // The answer belongs to the run before it was rolled back.
            Said::Answer(_) if !is_of_this_run => {}
            Said::Answer(answer) => _ = group.handle_answer(from, answer, now),
            Said::Progress(lease, env_steps) => group.handle_progress(from, lease, env_steps, now),
            Said::Refused(lease) => group.handle_refused(from, lease, "no", now),
            Said::Upload(lease, fragments) => _ = group.handle_fragments(from, lease, fragments, now),
        }
    }

    pub(super) fn ask(&mut self, request: Request) {
        self.note(RunEvent::Asked(request));
        let (facts, plant) = (self.facts(), self.scenario.plant);
        let SimHub { run, course, .. } = &mut self.hub;
        let step = match request {
            Request::Pause if plant == Some(Plant::IgnorePause) => None,
            // A draining run is neither paused nor resumed.
            Request::Pause => run.pause(self.now).err().and(None),
            Request::Resume => run.resume(self.now).err().and(None),
            Request::Stop if plant == Some(Plant::ForgetStop) => None,
            Request::Stop => course.stop(run, &facts, self.now),
            Request::Drain => {
                run.drain();
                course.drain(run, self.now);
                None
            }
            Request::Step => {
                course.take_turn();
                None
            }
        };
        step.into_iter().for_each(|step| self.take_step(step));
    }

    /// Submits the audits that the group asks for.
    fn audit(&mut self) {
        while let Some(task) = self.hub.run.group.poll_audit() {
            let verdict = match self.scenario.plant {
                Some(Plant::BlindAudits) => Verdict::Agrees,
                _ => replay(&task, self.scenario.length),
            };
            self.hub.num_unaudited += 1;
            let took = self.dice.within_ms(self.scenario.audit_ms);
            self.after(took, Event::Audited { life: self.hub.life, task: Box::new(task), verdict });
        }
    }

    pub(super) fn audited(&mut self, task: &AuditTask, verdict: Verdict) {
        self.hub.num_unaudited -= 1;
        self.hub.run.group.handle_audited(task, verdict, self.now);
    }

    fn convict_liars(&mut self) {
        while let Some(conviction) = self.hub.run.group.poll_conviction() {
            let principal = conviction.party;
            let keeps = self.scenario.plant == Some(Plant::KeepTokens);
            let revoked = self.hub.tokens.of_principal(principal).filter(|_| !keeps);
            revoked.into_iter().for_each(|token| _ = self.hub.tokens.revoke(token));
            for worker in conviction.workers {
                self.hub.run.group.handle_left(worker, self.now);
                if let Some(SimWorker { place, .. }) = self.workers.remove(&worker) {
                    // It does not know yet that it is not wanted any more.
                    self.after(Micros::from_secs(1), Event::Join(place));
                }
            }
            let first = conviction.first_doubtful.map(|first| first.0);
            self.note(RunEvent::Convicted { principal, first });
            if let Some(first) = conviction.first_doubtful {
                self.hub.course.roll_back(first);
            }
        }
    }

    fn roll_back(&mut self, before: u64) {
        let (phase, hub) = (self.hub.run.phase(), &mut self.hub);
        let too_little = self.scenario.plant == Some(Plant::RollBackTooLittle);
        if !too_little {
            hub.snapshots.retain(|iteration, _| *iteration <= before);
            hub.checkpoints.retain(|iteration, _| *iteration <= before);
        }
        let from = hub.snapshots.pop_last().map(|(_, (snapshot, _))| snapshot);
        let to = hub.restart(from, &self.scenario, self.now);
        hub.rollbacks += 1;
        self.note(RunEvent::RolledBack { before, to });
        match phase {
            Phase::Paused => self.hub.run.pause(self.now).expect("it is running"),
            Phase::Draining => {
                self.hub.run.drain();
                self.hub.course.drain(&self.hub.run, self.now);
            }
            _ => {}
        }
        self.rejoin();
    }

    /// Restarts the hub's process from its latest checkpoint. What was asked of it is forgotten.
    pub(super) fn crash_hub(&mut self) {
        let SimHub { checkpoints, snapshots, course, crashes, .. } = &mut self.hub;
        checkpoints.retain(|_, (_, on_disk)| *on_disk <= self.now);
        snapshots.clear();
        *course = RunCourse::default();
        *crashes += 1;
        let from = checkpoints.last_key_value().map(|(_, (snapshot, _))| snapshot.clone());
        let to = self.hub.restart(from, &self.scenario, self.now);
        self.set_turns();
        self.note(RunEvent::Restarted { to });
        for (_, worker) in std::mem::take(&mut self.workers) {
            let back = self.dice.within_ms(1_000);
            self.after(back, Event::Join(worker.place));
        }
    }

    /// All connected workers take part in the run that has just begun.
    fn rejoin(&mut self) {
        let connected: Vec<WorkerId> = self.workers.keys().copied().collect();
        connected.into_iter().for_each(|worker| self.bring_into_run(worker));
    }

    pub(super) fn set_turns(&mut self) {
        let stepwise = self.scenario.stepwise && self.scenario.plant != Some(Plant::ForgetTurns);
        self.hub.course.set_stepwise(stepwise);
    }
}
