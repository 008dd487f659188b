//! The events of a simulated run, and the rules that they must follow.

use std::collections::BTreeSet;

use rollmesh_core::{batch::SlotFragment, group::Principal, hub::RunEnd, protocol::AskOutcome, time::Micros};

use super::{EvaluationEnd, Request, RunReport, RunScenario, ask_rules::AskModel, launch_rules::LaunchModel};
use crate::fake_rows::calm_batches;

/// The time within which the leases of a draining run end, and within which the audits at the end of a run do.
const PATIENCE: Micros = Micros::from_secs(10);
/// The time for everything else that a hub does before a run ends.
const SLACK: Micros = Micros::from_secs(1);
/// The time from the last fault and the last request within which every run ends. The longest timeout for a worker is
/// 96 s.
const HEALED_WITHIN: Micros = Micros::from_secs(300);

/// All events of a run with their times, in order.
#[derive(Clone, Debug, Default)]
pub struct RunHistory(pub Vec<(Micros, RunEvent)>);

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunEvent {
    /// A user or program sent a request.
    Asked(Request),
    /// A worker was admitted.
    Admitted {
        /// Its principal, if it is untrusted.
        principal: Option<Principal>,
    },
    /// An iteration began.
    Began,
    /// A lease was granted.
    Granted {
        /// The worker's principal, if it is untrusted.
        principal: Option<Principal>,
    },
    /// The learner took a batch.
    Batch {
        /// Its number, from 0.
        number: u64,
    },
    /// The learner has finished with the batch.
    Counted {
        /// The batches so far.
        iteration: u64,
    },
    /// An evaluation of weights is due, which decides whether the run continues.
    EvaluationDue {
        /// Their iteration.
        iteration: u64,
    },
    /// An evaluation began.
    Evaluating {
        /// The iteration of the weights.
        iteration: u64,
    },
    /// An evaluation ended.
    Evaluated {
        /// The iteration of the weights.
        iteration: u64,
        /// The end of the evaluation.
        end: EvaluationEnd,
    },
    /// A checkpoint was taken.
    Saved {
        /// The batches that it contains.
        iteration: u64,
    },
    /// A principal failed an audit.
    AuditFailed {
        /// The principal.
        principal: Principal,
        /// The first doubtful batch, whose rows may be false, if there is one.
        first: Option<u64>,
    },
    /// The run was rolled back.
    RolledBack {
        /// The first doubtful batch, which is rolled back.
        before: u64,
        /// The number of batches that remain.
        to: u64,
    },
    /// The hub crashed and resumed the run with the given number of batches.
    Restarted {
        /// The number of batches.
        to: u64,
    },
    /// The run ended.
    Ended(RunEnd),
    /// The process of a local worker was started.
    LocalStarted {
        /// Its number.
        number: u32,
    },
    /// The process of a local worker has exited.
    LocalExited {
        /// Its number.
        number: u32,
    },
    /// A launcher has connected.
    LauncherConnected {
        /// Its place in the scenario.
        launcher: usize,
    },
    /// A launcher has lost its connection.
    LauncherLost {
        /// Its place in the scenario.
        launcher: usize,
    },
    /// A launcher has started a worker.
    LauncherStarted {
        /// The launcher's place in the scenario.
        launcher: usize,
        /// The worker's id: the hub's life, and the worker's number.
        worker: u64,
    },
    /// The process of a launcher's worker has exited.
    LauncherEnded {
        /// The launcher's place in the scenario.
        launcher: usize,
        /// The worker's id.
        worker: u64,
        /// Whether the launcher is connected, and can report it.
        is_heard: bool,
    },
    /// A program requested an evaluation from an evaluation worker.
    AskSent {
        /// The program.
        asker: usize,
        /// The worker.
        evaluator: usize,
        /// The number of the request.
        ask: u64,
    },
    /// A program cancelled its request.
    AskCancelled {
        /// The request.
        ask: u64,
    },
    /// An evaluation worker has finished an evaluation.
    AskEvaluated {
        /// The request.
        ask: u64,
    },
    /// A program got an answer.
    AskAnswered {
        /// The request.
        ask: u64,
        /// The outcome of the request.
        outcome: AskOutcome,
        /// Whether the answer belongs to this request.
        is_own: bool,
    },
    /// A program has lost its connection.
    AskerLost {
        /// The program.
        asker: usize,
    },
    /// An evaluation worker has lost its connection.
    EvaluatorLost {
        /// The worker.
        evaluator: usize,
    },
    /// A further run was queued.
    Queued {
        /// The number.
        number: u32,
    },
    /// The hub builds the parts of a queued run.
    Making {
        /// The number.
        number: u32,
    },
    /// An operator has removed a queued run.
    Removed {
        /// The number.
        number: u32,
    },
    /// A queued run has begun.
    Begun {
        /// The number.
        number: u32,
        /// The number of iterations of the run.
        iterations: u64,
    },
    /// The hub could not build the parts of a queued run.
    NotBegun {
        /// The number.
        number: u32,
    },
}

/// The rules that a history is checked against.
#[derive(Clone, Copy, Debug)]
pub struct RunRules<'a>(pub &'a RunScenario);

/// The checker's model of the hub's runs, of which one is in progress at a time.
#[derive(Debug, Default)]
struct Model {
    /// The number of queued runs that have begun.
    run: usize,
    begun_at: Micros,
    iterations: u64,
    /// The waiting runs, and the one of them that is about to begin.
    waiting: BTreeSet<u32>,
    making: Option<u32>,
    /// The processes of local workers.
    local: BTreeSet<u32>,
    launched: LaunchModel,
    counted: u64,
    /// Whether an iteration has begun whose batch is not counted.
    is_open: bool,
    is_consuming: bool,
    is_paused: bool,
    draining_since: Option<Micros>,
    /// Whether the program is about to exit.
    is_leaving: bool,
    /// The time of the first request to stop, and the number of such requests.
    stopping_since: Option<Micros>,
    stops: u32,
    may_step: bool,
    /// The iteration whose evaluation is due and has not begun, and the one that is being evaluated.
    to_evaluate: Option<u64>,
    /// The latest iteration whose evaluation was due.
    due: Option<u64>,
    evaluating: Option<u64>,
    /// Whether the latest evaluation hung.
    has_evaluation_hung: bool,
    /// Whether the run has at some time since the latest batch, or since its evaluation was due, not had to wait for an
    /// evaluation.
    is_released: bool,
    /// The iterations whose weights were evaluated.
    evaluated: BTreeSet<u64>,
    /// The first doubtful batch, which must be rolled back.
    doubt: Option<u64>,
    restarts: u64,
    /// The principals that failed an audit.
    failed_audit_of: BTreeSet<Principal>,
    ended: Option<RunEnd>,
}

impl RunRules<'_> {
    /// Checks a run.
    ///
    /// # Errors
    /// The first violated rule.
    pub fn check(self, report: &RunReport) -> Result<(), String> {
        let Self(scenario) = self;
        let mut model = Model { iterations: scenario.iterations, ..Model::default() };
        let mut asks = AskModel::default();
        for (at, event) in &report.history.0 {
            self.step(&mut model, *at, event).map_err(|rule| format!("{at}: {event:?}: {rule}"))?;
            asks.step(event, *at).map_err(|rule| format!("{at}: {event:?}: {rule}"))?;
            if let RunEvent::Ended(end) = event {
                self.check_ended(&model, end, *at, &report.runs)?;
            }
        }
        let Some(end) = model.ended.filter(|_| report.is_over) else { return Err("a run never ends".into()) };
        model.launched.check_noticed(report.finished_at).map_err(str::to_owned)?;
        asks.check_answered(report.finished_at).map_err(str::to_owned)?;
        if !model.waiting.is_empty() && !model.is_leaving {
            return Err(format!("runs never begin: {:?}", model.waiting));
        }
        if report.unanswered > 0 || report.shown != Some(end.phase()) {
            return Err(format!("{} requests without a reply; {:?} was shown last", report.unanswered, report.shown));
        }
        Ok(())
    }

    /// Checks the time at which a run has ended, and the batches that it has learned from.
    fn check_ended(
        self,
        model: &Model,
        end: &RunEnd,
        ended_at: Micros,
        runs: &[Vec<Vec<SlotFragment>>],
    ) -> Result<(), String> {
        let Self(scenario) = self;
        let last = scenario.requests.iter().map(|(at, _)| *at).max().unwrap_or_default().max(scenario.until);
        let last = last.max(model.begun_at);
        let learning = Micros::from_millis(scenario.learner_ms) + SLACK;
        let limits = [
            Some(last + HEALED_WITHIN),
            model.stopping_since.map(|since| since + learning + PATIENCE),
            model.draining_since.map(|since| since + learning + PATIENCE + PATIENCE),
        ];
        if let Some(limit) = limits.into_iter().flatten().find(|limit| *limit < ended_at) {
            return Err(format!("it ends at {ended_at}, and should have by {limit}"));
        }
        // A stopped run does not wait for audits, and a restarted hub has lost the list of audits that were due.
        let is_audited = *end != RunEnd::Stopped && model.stops == 0 && model.restarts == 0;
        let used = &runs[model.run][..model.counted as usize];
        let calm = calm_batches(scenario.num_slots, scenario.length, model.counted);
        if is_audited && used != calm {
            return Err("a batch has rows that no honest worker makes".into());
        }
        Ok(())
    }

    fn step(self, model: &mut Model, at: Micros, event: &RunEvent) -> Result<(), &'static str> {
        let Self(scenario) = self;
        let must = |rule: bool, text| if rule { Ok(()) } else { Err(text) };
        let is_of_run = matches!(
            event,
            RunEvent::Began
                | RunEvent::Granted { .. }
                | RunEvent::Batch { .. }
                | RunEvent::Counted { .. }
                | RunEvent::EvaluationDue { .. }
                | RunEvent::Evaluating { .. }
                | RunEvent::Evaluated { .. }
                | RunEvent::Saved { .. }
                | RunEvent::RolledBack { .. }
                | RunEvent::Ended(_)
        );
        must(!is_of_run || model.ended.is_none(), "the run has ended")?;
        model.launched.step(scenario, event, &model.local, at)?;
        match *event {
            RunEvent::Asked(request) => model.ask(request, at),
            RunEvent::Admitted { principal } => {
                must(principal.is_none_or(|it| !model.failed_audit_of.contains(&it)), "its token is revoked")?;
                must(!model.is_leaving, "the hub is about to exit")?;
            }
            RunEvent::Began => {
                must(!model.is_open && !model.is_consuming, "the iteration before is not over")?;
                must(model.draining_since.is_none(), "the run is draining")?;
                must(model.stopping_since.is_none(), "the run is to stop")?;
                must(model.is_released, "an evaluation decides whether the run continues")?;
                let is_known = model.evaluated.contains(&model.counted) || model.due == Some(model.counted);
                must(is_known || !scenario.is_evaluated(model.counted), "the weights are not evaluated")?;
                must(model.counted < model.iterations, "the run is finished")?;
                must(
                    !scenario.stepwise || model.run > 0 || std::mem::take(&mut model.may_step),
                    "the program has not asked for it",
                )?;
                model.is_open = true;
            }
            RunEvent::Granted { principal } => {
                must(principal.is_none_or(|it| !model.failed_audit_of.contains(&it)), "the worker's token is revoked")?;
                must(model.is_open, "no iteration is open")?;
                must(!model.is_paused && model.draining_since.is_none(), "the run is paused or draining")?;
            }
            RunEvent::Batch { number } => {
                must(model.is_open && !model.is_consuming && number == model.counted, "it is not the next batch")?;
                model.is_consuming = true;
            }
            RunEvent::Counted { iteration } => {
                must(model.is_consuming && iteration == model.counted + 1, "it is not the batch that was taken")?;
                (model.counted, model.is_open, model.is_consuming) = (iteration, false, false);
                model.is_released = false;
            }
            RunEvent::EvaluationDue { iteration } => {
                must(iteration == model.counted && scenario.is_evaluated(iteration), "it is not due")?;
                must(!model.evaluated.contains(&iteration), "it was evaluated before")?;
                (model.to_evaluate, model.due, model.is_released) = (Some(iteration), Some(iteration), false);
            }
            RunEvent::Evaluating { iteration } => {
                must(model.evaluating.is_none(), "another evaluation is in progress")?;
                must(model.to_evaluate.take() == Some(iteration), "other weights are due")?;
                model.evaluating = Some(iteration);
            }
            RunEvent::Evaluated { iteration, end } => {
                must(model.evaluating.take() == Some(iteration), "it is not being evaluated")?;
                model.has_evaluation_hung = end == EvaluationEnd::Hung;
                if let EvaluationEnd::Found(version) = end {
                    must(version == iteration, "other weights were evaluated")?;
                    model.evaluated.insert(iteration);
                }
            }
            RunEvent::Saved { iteration } => {
                must(!model.is_open && !model.is_consuming, "the next iteration has begun")?;
                must(model.is_released || model.stops > 0, "its evaluation is not over")?;
                must(iteration == model.counted, "the checkpoint has other batches")?;
            }
            RunEvent::AuditFailed { principal, first } => {
                model.failed_audit_of.insert(principal);
                model.doubt = model.doubt.into_iter().chain(first).min();
            }
            RunEvent::RolledBack { before, to } => {
                must(model.doubt.take() == Some(before), "it is another batch that is in doubt")?;
                must(to <= before, "the batch in doubt stays")?;
                model.may_step |= model.is_open;
                model.go_back(to);
            }
            RunEvent::Restarted { to } => {
                must(to <= model.counted, "there was no such batch")?;
                let Model { run, begun_at, iterations, .. } = *model;
                let evaluated = std::mem::take(&mut model.evaluated);
                let (restarts, failed_audit_of) = (model.restarts + 1, std::mem::take(&mut model.failed_audit_of));
                let launched = std::mem::take(&mut model.launched);
                *model = Model {
                    run,
                    begun_at,
                    iterations,
                    restarts,
                    failed_audit_of,
                    launched,
                    evaluated,
                    ..Model::default()
                };
                model.go_back(to);
            }
            RunEvent::Ended(ref end) => {
                self.check_end(model, end, at)?;
                model.ended = Some(end.clone());
            }
            RunEvent::LocalStarted { number } => {
                must(model.local.insert(number), "its number is not new")?;
                let places = scenario.workers.iter().filter(|worker| worker.falsification.is_none()).count();
                must(model.local.len() <= places, "every place has a worker")?;
            }
            RunEvent::LocalExited { number } => must(model.local.remove(&number), "it has exited before")?,
            // The models of launchers and of requests for evaluations check them.
            RunEvent::AskSent { .. }
            | RunEvent::AskCancelled { .. }
            | RunEvent::AskEvaluated { .. }
            | RunEvent::AskAnswered { .. }
            | RunEvent::AskerLost { .. }
            | RunEvent::EvaluatorLost { .. }
            | RunEvent::LauncherConnected { .. }
            | RunEvent::LauncherLost { .. }
            | RunEvent::LauncherStarted { .. }
            | RunEvent::LauncherEnded { .. } => {}
            RunEvent::Queued { number } => {
                must(!model.is_leaving, "the hub is about to exit")?;
                must(model.waiting.last().is_none_or(|last| *last < number), "its number is not new")?;
                model.waiting.insert(number);
            }
            RunEvent::Making { number } => {
                must(model.ended.is_some() && model.making.is_none(), "another run is in progress")?;
                must(model.waiting.first() == Some(&number), "it is not the run that has waited longest")?;
                model.making = Some(number);
            }
            RunEvent::Removed { number } => {
                must(model.waiting.remove(&number), "it does not wait")?;
                model.making.take_if(|making| *making == number);
            }
            RunEvent::Begun { number, iterations } => {
                must(model.waiting.remove(&number) && model.making == Some(number), "it was not about to begin")?;
                let (run, waiting) = (model.run + 1, std::mem::take(&mut model.waiting));
                let (local, launched) = (std::mem::take(&mut model.local), std::mem::take(&mut model.launched));
                let failed_audit_of = std::mem::take(&mut model.failed_audit_of);
                *model = Model {
                    run,
                    begun_at: at,
                    iterations,
                    waiting,
                    local,
                    launched,
                    failed_audit_of,
                    ..Model::default()
                };
            }
            RunEvent::NotBegun { number } => {
                must(model.waiting.remove(&number) && model.making == Some(number), "it was not about to begin")?;
                model.making = None;
            }
        }
        // The run decides once after a batch; an evaluation that hung may end, and the next one begin, while it is throttled.
        model.is_released |= !model.awaits_evaluation();
        Ok(())
    }

    fn check_end(self, model: &Model, end: &RunEnd, at: Micros) -> Result<(), &'static str> {
        let Self(scenario) = self;
        let must = |rule: bool, text| if rule { Ok(()) } else { Err(text) };
        match end {
            RunEnd::Finished => {
                must(model.counted == model.iterations, "it is not finished")?;
                let is_awaited = model.to_evaluate.is_some() || model.evaluating.is_some();
                let is_hurried = model.stops > 0 || model.draining_since.is_some();
                must(!is_awaited || is_hurried, "its last evaluation is not over")?;
            }
            RunEnd::Stopped => must(model.stops > 0, "it was not asked to stop")?,
            RunEnd::Drained => must(model.draining_since.is_some(), "it was not asked to drain")?,
            RunEnd::Failed(_) => must(scenario.are_unable, "its workers are able")?,
            RunEnd::Solved | RunEnd::Unbalanced(_) => must(false, "it cannot end so")?,
        }
        must(model.stops > 0 || model.doubt.is_none(), "rows in doubt are not taken back")?;
        let is_late = model.draining_since.is_some_and(|since| at >= since + PATIENCE);
        let may_drop = is_late || model.stops > 1 || model.stops == 1 && !scenario.has_files;
        must(!model.is_consuming || may_drop, "the learner is not done with its last batch")
    }
}

impl Model {
    fn ask(&mut self, request: Request, at: Micros) {
        match request {
            Request::Pause => self.is_paused |= self.draining_since.is_none(),
            Request::Resume => self.is_paused = false,
            Request::Stop => {
                self.stopping_since.get_or_insert(at);
                self.stops += 1;
            }
            Request::Drain => _ = self.draining_since.get_or_insert(at),
            Request::Exit => {
                self.draining_since.get_or_insert(at);
                self.is_leaving = true;
                self.waiting.clear();
                self.making = None;
            }
            Request::Step => self.may_step = true,
            // Their effects follow from the hub's answers.
            Request::Start(_) | Request::RemoveRun(_) => {}
        }
    }

    /// Resets the model to the given number of batches.
    fn go_back(&mut self, to: u64) {
        (self.counted, self.is_open, self.is_consuming) = (to, false, false);
        (self.to_evaluate, self.evaluating, self.has_evaluation_hung) = (None, None, false);
        self.due = None;
        self.evaluated.retain(|evaluated| *evaluated <= to);
    }

    fn awaits_evaluation(&self) -> bool {
        (self.to_evaluate.is_some() || self.evaluating.is_some()) && !self.has_evaluation_hung
    }
}
