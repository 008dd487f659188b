//! The evaluations of a run: which weights are evaluated next, and what follows from the outcome.

use crate::{
    evaluation::{EvalOutcome, EvalWorkerError, Evaluation, Ticket},
    weights::Weights,
};

/// Weights of a run to evaluate, with their iteration and env steps.
#[derive(Clone, Debug)]
pub struct EvaluationCandidate {
    /// The iteration.
    pub iteration: u64,
    /// Env steps that the weights were learned from.
    pub env_steps: u64,
    /// The weights.
    pub weights: Weights,
}

/// Schedules the evaluations of a run without I/O: one after the other; of weights that wait, the latest replace the earlier.
#[derive(Debug, Default)]
pub struct EvaluationSchedule {
    current: Option<CurrentEvaluation>,
    waiting: Option<EvaluationCandidate>,
    /// Weights whose evaluation failed with pictures, and is repeated without.
    retry: Option<(EvaluationCandidate, EvalWorkerError)>,
    /// True once an evaluation has failed with pictures and succeeded without.
    is_without_pictures: bool,
    /// True if the latest evaluation exceeded its timeout.
    hangs: bool,
    begun: u64,
}

/// An evaluation in progress.
#[derive(Debug)]
struct CurrentEvaluation {
    /// `None` until it is submitted.
    ticket: Option<Ticket>,
    candidate: EvaluationCandidate,
    has_pictures: bool,
    /// The reason why the attempt with pictures failed; this is the one without.
    failed: Option<EvalWorkerError>,
}

/// An evaluation to submit to a worker.
#[derive(Clone, Debug)]
pub struct EvaluationStart {
    /// The iteration of the weights.
    pub iteration: u64,
    /// The weights.
    pub weights: Weights,
    /// Whether the first sub-environment is rendered.
    pub render: bool,
}

/// A finished evaluation.
#[derive(Debug)]
pub struct EvaluatedCandidate {
    /// The evaluated candidate.
    pub candidate: EvaluationCandidate,
    /// The result.
    pub found: Evaluation,
    /// The reason why an earlier attempt failed, with pictures: later evaluations have none.
    pub failed: Option<EvalWorkerError>,
}

impl EvaluationSchedule {
    /// Queues weights; they replace queued ones.
    pub fn offer(&mut self, candidate: EvaluationCandidate) {
        self.waiting = Some(candidate);
    }

    /// Returns the number of evaluations that have begun.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns whether a run that depends on its evaluations waits for one: also for weights that are queued, but not after an
    /// evaluation that hung, except at the end of the run.
    #[must_use]
    pub fn is_awaited(&self, is_at_end: bool) -> bool {
        let is_idle = self.current.is_none() && self.waiting.is_none() && self.retry.is_none();
        !is_idle && (!self.hangs || is_at_end)
    }

    /// Returns the evaluation that begins now, if there is one: [`handle_submitted`](Self::handle_submitted) follows. It is
    /// rendered if that is enabled and has not failed before.
    pub fn poll_start(&mut self, wants_pictures: bool) -> Option<EvaluationStart> {
        if self.current.is_some() {
            return None;
        }
        let (candidate, failed) = match self.retry.take() {
            Some((candidate, failed)) => (candidate, Some(failed)),
            None => (self.waiting.take()?, None),
        };
        let render = wants_pictures && !self.is_without_pictures && failed.is_none();
        let start = EvaluationStart { iteration: candidate.iteration, weights: candidate.weights.clone(), render };
        self.current = Some(CurrentEvaluation { ticket: None, candidate, has_pictures: render, failed });
        Some(start)
    }

    /// Handles that the evaluation was submitted under this ticket, or could not be: then it is over.
    ///
    /// # Errors
    /// The error of the worker.
    pub fn handle_submitted(&mut self, ticket: Result<Ticket, EvalWorkerError>) -> Result<(), EvalWorkerError> {
        match ticket {
            Ok(ticket) => {
                if let Some(current) = &mut self.current {
                    self.begun += u64::from(current.failed.is_none());
                    current.ticket = Some(ticket);
                }
                Ok(())
            }
            Err(error) => {
                self.current = None;
                Err(error)
            }
        }
    }

    /// Returns the ticket of the evaluation in progress.
    #[must_use]
    pub fn ticket(&self) -> Option<Ticket> {
        self.current.as_ref()?.ticket
    }

    /// Handles the outcome of an evaluation. Returns `None` if it is repeated without pictures, or is not the current one: the
    /// environment's `render` may have failed, or not returned.
    pub fn handle_outcome(
        &mut self,
        about: Ticket,
        outcome: EvalOutcome,
    ) -> Option<Result<EvaluatedCandidate, EvalWorkerError>> {
        let current = self.current.take_if(|current| current.ticket == Some(about))?;
        let CurrentEvaluation { candidate, has_pictures, failed, .. } = current;
        match outcome {
            Err(error @ (EvalWorkerError::Failed(_) | EvalWorkerError::Overdue { .. } | EvalWorkerError::Ended(_)))
                if has_pictures =>
            {
                self.retry = Some((candidate, error));
                None
            }
            outcome => {
                self.hangs = matches!(outcome, Err(EvalWorkerError::Overdue { .. }));
                self.is_without_pictures |= outcome.is_ok() && failed.is_some();
                Some(outcome.map(|found| EvaluatedCandidate { candidate, found, failed }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ids::WeightsVersion, prelude::*};

    fn offer(schedule: &mut EvaluationSchedule, iteration: u64) {
        let weights = Weights::new(WeightsVersion(iteration), Vec::new()).expect("no tensors");
        schedule.offer(EvaluationCandidate { iteration, env_steps: 0, weights });
    }

    fn start(schedule: &mut EvaluationSchedule, ticket: u64) -> Option<(u64, bool)> {
        let start = schedule.poll_start(true)?;
        schedule.handle_submitted(Ok(Ticket(ticket))).expect("it is submitted");
        Some((start.iteration, start.render))
    }

    #[test]
    fn latest_weights_replace_those_that_wait() {
        let mut schedule = EvaluationSchedule::default();
        offer(&mut schedule, 1);
        assert_eq!(start(&mut schedule, 1), Some((1, true)));
        (2..4).for_each(|iteration| offer(&mut schedule, iteration));
        assert_eq!(start(&mut schedule, 2), None, "one after the other");
        let found = schedule.handle_outcome(Ticket(1), Ok(Evaluation::default()));
        assert_eq!(found.expect("an outcome").expect("a result").candidate.iteration, 1);
        assert_eq!((start(&mut schedule, 2), schedule.begun()), (Some((3, true)), 2));
    }

    #[test]
    fn evaluation_that_fails_with_pictures_is_repeated_without() {
        let mut schedule = EvaluationSchedule::default();
        offer(&mut schedule, 1);
        assert_eq!(start(&mut schedule, 1), Some((1, true)));
        let failed = EvalWorkerError::failed("it cannot be rendered");
        assert!(schedule.handle_outcome(Ticket(1), Err(failed.clone())).is_none());
        assert_eq!((start(&mut schedule, 2), schedule.begun()), (Some((1, false)), 1));
        let found = schedule.handle_outcome(Ticket(2), Ok(Evaluation::default()));
        assert_eq!(found.expect("an outcome").expect("a result").failed, Some(failed));
        offer(&mut schedule, 2);
        assert_eq!(start(&mut schedule, 3), Some((2, false)), "later ones have none");
    }

    #[test]
    fn run_waits_for_evaluation_unless_the_latest_one_hung() {
        let mut schedule = EvaluationSchedule::default();
        assert!(!schedule.is_awaited(true));
        offer(&mut schedule, 1);
        assert!(schedule.is_awaited(false) && schedule.poll_start(false).is_some() && schedule.is_awaited(false));
        schedule.handle_submitted(Ok(Ticket(1))).expect("it is submitted");
        let overdue = EvalWorkerError::Overdue { doing: "stepping".into(), limit_ms: 1 };
        assert!(schedule.handle_outcome(Ticket(1), Err(overdue)).is_some_and(|outcome| outcome.is_err()));
        offer(&mut schedule, 2);
        assert_eq!([false, true].map(|is_at_end| schedule.is_awaited(is_at_end)), [false, true]);
    }
}
