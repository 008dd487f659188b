//! The evaluations of a simulated run: their schedule, the queue of an evaluation worker, and engines that fail and hang.

use rollmesh_core::{
    evaluation::{EvalCommand, EvalDesk, EvalDone, EvalWorkerError, Evaluation, EvaluationRequest, Polled, Ticket},
    hub::{EvaluationCandidate, EvaluationSchedule, HubRun as _},
    time::Micros,
};

use super::{Event, Plant, RunEvent, RunSim};

/// The time without progress after which an engine is replaced.
const TIMEOUT: Micros = Micros::from_secs(3);

/// The evaluations of a run.
#[derive(Debug, Default)]
pub(super) struct SimEvaluations {
    pub(super) schedule: EvaluationSchedule,
    desk: EvalDesk,
    /// The version of the engine's weights.
    engine_has: Option<u64>,
    /// The evaluation in progress, by ticket, and its iteration.
    current: Option<(Ticket, u64)>,
}

/// The end of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluationEnd {
    /// The engine has evaluated the weights of this version.
    Found(u64),
    /// The engine failed.
    Failed,
    /// The engine made no progress until the deadline.
    Hung,
}

impl RunSim {
    /// Queues the weights of the latest iteration if their evaluation is due.
    pub(super) fn offer_evaluation(&mut self) {
        let now = self.now;
        let run = self.hub.run();
        let state = run.state();
        if state.is_evaluation_due(now) && run.plant != Some(Plant::ForgetToEvaluate) {
            let (iteration, env_steps, weights) = (state.iteration(), state.env_steps(), state.weights().clone());
            run.evaluations.schedule.offer(EvaluationCandidate { iteration, env_steps, weights });
            self.record(RunEvent::EvaluationDue { iteration });
        }
    }

    /// Begins evaluations, and handles their outcomes.
    pub(super) fn tend_evaluations(&mut self) {
        if self.hub.run().state().is_over() {
            return;
        }
        loop {
            let evaluations = &mut self.hub.run().evaluations;
            if let Some(start) = evaluations.schedule.poll_start(false) {
                let ticket = evaluations.desk.submit(Some(start.weights), EvaluationRequest::new(1));
                evaluations.current = ticket.as_ref().ok().map(|ticket| (*ticket, start.iteration));
                evaluations.schedule.handle_submitted(ticket).expect("one evaluation waits at most");
                self.record(RunEvent::Evaluating { iteration: start.iteration });
            }
            while let Some(command) = self.hub.run().evaluations.desk.next_command() {
                self.execute_evaluation(command);
            }
            let evaluations = &mut self.hub.run().evaluations;
            let awaited = evaluations.schedule.ticket();
            let Polled::Found(Some(ticket), outcome) = evaluations.desk.poll(awaited) else { return };
            let iteration = evaluations.current.take_if(|(current, _)| *current == ticket).map_or(0, |(_, it)| it);
            let end = match &outcome {
                Ok(found) => EvaluationEnd::Found(found.env_steps),
                Err(EvalWorkerError::Overdue { .. }) => EvaluationEnd::Hung,
                Err(_) => EvaluationEnd::Failed,
            };
            if self.scenario.plant == Some(Plant::LoseEvaluations) {
                continue;
            }
            let evaluated = self.hub.run().evaluations.schedule.handle_outcome(ticket, outcome);
            if let Some(Ok(evaluated)) = evaluated {
                self.hub.evaluated.insert(evaluated.candidate.iteration);
            }
            self.record(RunEvent::Evaluated { iteration, end });
        }
    }

    fn execute_evaluation(&mut self, command: EvalCommand) {
        let EvalCommand::Evaluate { ticket, weights, .. } = command else { return };
        let evaluations = &mut self.hub.run().evaluations;
        evaluations.engine_has = weights.map(|weights| weights.version().0).or(evaluations.engine_has);
        let version = evaluations.engine_has.expect("an engine gets weights first");
        let end = match self.dice.chance(self.scenario.failed_evaluations) {
            false => EvaluationEnd::Found(version),
            true => self.dice.one_of(&[EvaluationEnd::Failed, EvaluationEnd::Hung]),
        };
        let took = match end {
            EvaluationEnd::Hung if self.scenario.plant == Some(Plant::ForgetDeadline) => return,
            EvaluationEnd::Hung => TIMEOUT,
            _ => Micros::from_millis(self.scenario.evaluation_ms),
        };
        self.after(took, Event::EvaluationEnds { life: self.hub.life, ticket, end });
    }

    /// Handles the result of an engine, or its deadline.
    pub(super) fn handle_evaluation_end(&mut self, ticket: Ticket, end: EvaluationEnd) {
        let evaluations = &mut self.hub.run().evaluations;
        let result = match end {
            EvaluationEnd::Found(version) => Ok(Some(Evaluation { env_steps: version, ..Evaluation::default() })),
            EvaluationEnd::Failed => Err(EvalWorkerError::failed("it was made to fail")),
            EvaluationEnd::Hung => {
                let limit_ms = TIMEOUT.0 / 1_000;
                evaluations.desk.engine_failed(EvalWorkerError::Overdue { doing: "stepping".into(), limit_ms });
                evaluations.engine_has = None;
                return;
            }
        };
        if evaluations.desk.finish(EvalDone { ticket, result }) {
            // Another engine replaces it.
            evaluations.engine_has = None;
        }
    }
}
