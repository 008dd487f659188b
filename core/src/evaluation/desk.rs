//! The queue of an evaluation worker: the next evaluation, its weights, and the outcomes of the others.

use super::{EvalOutcome, EvalWorkerError, Evaluation, EvaluationRequest, Ticket};
use crate::{prelude::*, weights::Weights};

/// An order for an engine.
#[derive(Debug)]
pub enum EvalCommand {
    /// Executes an evaluation, with other weights if there are some.
    Evaluate {
        /// Its ticket.
        ticket: Ticket,
        /// The weights; `None` for those that the engine has.
        weights: Option<Weights>,
        /// The request.
        request: EvaluationRequest,
    },
    /// Cancels this evaluation.
    Cancel(Ticket),
}

/// A finished evaluation.
#[derive(Debug, PartialEq)]
pub struct EvalDone {
    /// Its ticket.
    pub ticket: Ticket,
    /// The result; `None` if it was cancelled.
    pub result: Result<Option<Evaluation>, EvalWorkerError>,
}

/// A queued evaluation.
#[derive(Debug)]
struct Job {
    ticket: Ticket,
    weights: Option<Given>,
    request: EvaluationRequest,
}

/// Weights, and the evaluation that they were given with.
#[derive(Clone, Debug)]
struct Given {
    with: Ticket,
    weights: Weights,
}

/// The evaluation in progress on the engine.
#[derive(Debug)]
struct Current {
    ticket: Ticket,
    weights: Option<Given>,
    is_cancelled: bool,
    /// Whether the request was sent to the engine.
    is_notified: bool,
}

/// The result of polling for a handle.
#[derive(Debug, PartialEq)]
pub enum Polled {
    /// An outcome; without a ticket it is an error of the worker itself.
    Found(Option<Ticket>, EvalOutcome),
    /// No outcome yet.
    NotYet,
    /// No outcome, and none is pending.
    Nothing,
}

/// An evaluation worker without its [engine](crate::eval_worker::EvalEngine), which the caller creates, gives [commands](Self::next_command),
/// and replaces when it fails.
///
/// Evaluations are executed sequentially, in order. Weights stay with the worker: an evaluation without weights uses the
/// latest ones that were given, even if the evaluation they came with was cancelled. Weights that the policy rejects are
/// dropped, and those of the last successful evaluation apply again.
///
/// ```
/// use rollmesh_core::{eval_worker::{EvalDesk, EvalDone, EvalCommand}, evaluation::{Evaluation, EvaluationRequest}};
///
/// let mut desk = EvalDesk::new();
/// let [first, second] = [5, 7].map(|steps| desk.submit(None, EvaluationRequest::new(steps)).unwrap());
/// assert!(matches!(desk.next_command(), Some(EvalCommand::Evaluate { ticket, .. }) if ticket == first));
/// desk.cancel(first);
/// assert!(matches!(desk.next_command(), Some(EvalCommand::Cancel(ticket)) if ticket == first));
/// assert!(!desk.finish(EvalDone { ticket: first, result: Ok(None) }));
/// assert!(matches!(desk.next_command(), Some(EvalCommand::Evaluate { ticket, .. }) if ticket == second));
/// assert!(!desk.finish(EvalDone { ticket: second, result: Ok(Some(Evaluation::default())) }));
/// assert!(desk.take(first).is_none() && desk.take(second).is_some());
/// ```
#[derive(Debug, Default)]
pub struct EvalDesk {
    latest: u64,
    waiting: VecDeque<Job>,
    current: Option<Current>,
    results: BTreeMap<Ticket, EvalOutcome>,
    /// The evaluation with which the engine's weights were given.
    engine_has: Option<Ticket>,
    /// The error with which the engine failed while no evaluation was queued.
    trouble: Option<EvalWorkerError>,
    has_begun: bool,
    /// The latest weights that were given.
    weights: Option<Given>,
    /// The weights of the last successful evaluation.
    accepted: Option<Given>,
    is_stopped: bool,
}

impl EvalDesk {
    /// Creates a desk without evaluations.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Queues an evaluation.
    ///
    /// # Errors
    /// [`EvalWorkerError::Stopped`].
    pub fn submit(&mut self, weights: Option<Weights>, request: EvaluationRequest) -> Result<Ticket, EvalWorkerError> {
        if self.is_stopped {
            return Err(EvalWorkerError::Stopped);
        }
        self.latest += 1;
        let ticket = Ticket(self.latest);
        if let Some(weights) = weights {
            self.weights = Some(Given { with: ticket, weights });
        }
        // The desk's latest weights instead of the engine's: another engine may execute this evaluation.
        self.waiting.push_back(Job { ticket, weights: self.weights.clone(), request });
        // This evaluation shows whether the error persists.
        self.trouble = None;
        Ok(ticket)
    }

    /// Cancels an evaluation, whether it is queued, running or over.
    pub fn cancel(&mut self, ticket: Ticket) {
        self.waiting.retain(|job| job.ticket != ticket);
        self.results.remove(&ticket);
        if let Some(current) = self.current.as_mut().filter(|current| current.ticket == ticket) {
            current.is_cancelled = true;
        }
    }

    /// Returns the outcome of an evaluation that is over, once.
    pub fn take(&mut self, ticket: Ticket) -> Option<EvalOutcome> {
        self.results.remove(&ticket)
    }

    /// Returns the outcome of an evaluation that a handle waits for, if there is one; or the error with which the engine failed
    /// while no evaluation was queued.
    pub fn poll(&mut self, awaited: Option<Ticket>) -> Polled {
        if let Some((ticket, outcome)) = awaited.and_then(|ticket| self.results.remove_entry(&ticket)) {
            return Polled::Found(Some(ticket), outcome);
        }
        if let Some(trouble) = self.trouble.take() {
            return Polled::Found(None, Err(trouble));
        }
        if self.is_stopped || (self.has_begun && awaited.is_none()) { Polled::Nothing } else { Polled::NotYet }
    }

    /// Ends all evaluations.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Returns true once it is [stopped](Self::stop).
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Returns true while the engine has something to do.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.current.is_some()
    }

    /// Returns true if an evaluation is queued.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the engine's next order, if there is one; with weights only if the engine does not have them.
    pub fn next_command(&mut self) -> Option<EvalCommand> {
        if self.is_stopped {
            return None;
        }
        if let Some(current) = &mut self.current {
            let is_notified = core::mem::replace(&mut current.is_notified, current.is_cancelled);
            return (current.is_cancelled && !is_notified).then_some(EvalCommand::Cancel(current.ticket));
        }
        let Job { ticket, weights, request } = self.waiting.pop_front()?;
        self.current = Some(Current { ticket, weights: weights.clone(), is_cancelled: false, is_notified: false });
        let new = weights.filter(|given| self.engine_has.replace(given.with) != Some(given.with));
        Some(EvalCommand::Evaluate { ticket, weights: new.map(|given| given.weights), request })
    }

    /// Records that the engine is ready.
    pub fn engine_ready(&mut self) {
        self.has_begun = true;
    }

    /// Records that the engine exited while it was idle. The next one has no weights.
    pub fn engine_exited(&mut self) {
        self.engine_has = None;
    }

    /// Records that the engine has failed: the error is the outcome of the evaluation in progress, else of the worker.
    /// Queued evaluations are executed by the next engine.
    pub fn engine_failed(&mut self, error: EvalWorkerError) {
        self.has_begun = true;
        self.engine_exited();
        match self.current.take() {
            Some(current) => self.close(current, Err(error)),
            None if !self.has_waiting() => self.trouble = Some(error),
            None => {}
        }
    }

    /// Records that an evaluation is over. Returns true if the engine must be replaced: after an error its environment and
    /// policy may be in any state.
    #[must_use]
    pub fn finish(&mut self, done: EvalDone) -> bool {
        let EvalDone { ticket, result } = done;
        let Some(current) = self.current.take_if(|current| current.ticket == ticket) else { return false };
        match &result {
            Ok(Some(_)) => self.accepted.clone_from(&current.weights),
            Err(EvalWorkerError::Weights(_)) => {
                let with = |given: &Option<Given>| given.as_ref().map(|given| given.with);
                if with(&self.weights) == with(&current.weights) {
                    self.weights = self.accepted.clone();
                }
            }
            Ok(None) | Err(_) => {}
        }
        let has_failed = result.is_err();
        if has_failed {
            self.engine_exited();
        }
        let cancelled = || EvalWorkerError::failed("it was cancelled");
        self.close(current, result.and_then(|found| found.ok_or_else(cancelled)));
        has_failed
    }

    fn close(&mut self, current: Current, outcome: EvalOutcome) {
        if !current.is_cancelled {
            self.results.insert(current.ticket, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluations are queued in order, and a failed one does not affect the next one.
    #[test]
    fn engine_that_fails_ends_only_the_evaluation_it_does() {
        let mut desk = EvalDesk::new();
        desk.engine_failed(EvalWorkerError::failed("no engine"));
        assert!(matches!(desk.poll(None), Polled::Found(None, Err(_))) && desk.poll(None) == Polled::Nothing);
        let [first, second] = [1, 2].map(|steps| desk.submit(None, EvaluationRequest::new(steps)).unwrap());
        desk.engine_failed(EvalWorkerError::failed("before any request"));
        assert!(desk.next_command().is_some() && desk.next_command().is_none() && desk.poll(None) == Polled::Nothing);
        desk.engine_failed(EvalWorkerError::failed("it burns"));
        assert_eq!(desk.take(first), Some(Err(EvalWorkerError::failed("it burns"))));
        assert!(matches!(desk.next_command(), Some(EvalCommand::Evaluate { ticket, .. }) if ticket == second));
        desk.stop();
        assert_eq!(desk.submit(None, EvaluationRequest::new(1)), Err(EvalWorkerError::Stopped));
        assert!(desk.next_command().is_none());
    }

    #[test]
    fn weights_of_a_cancelled_evaluation_stay() {
        let mut desk = EvalDesk::new();
        let weights = Weights::new(crate::ids::WeightsVersion(3), Vec::new()).unwrap();
        let first = desk.submit(Some(weights.clone()), EvaluationRequest::new(1)).unwrap();
        desk.cancel(first);
        desk.submit(None, EvaluationRequest::new(1)).unwrap();
        let Some(EvalCommand::Evaluate { ticket, weights: Some(given), .. }) = desk.next_command() else {
            panic!("an order")
        };
        assert_eq!((ticket, given), (Ticket(2), weights));
    }

    proptest::proptest! {
        /// For any order of events: each outcome belongs to its evaluation and is returned once, and none is returned for a
        /// cancelled one.
        #[test]
        fn outcomes_are_given_once_and_never_after_cancel(
            steps in proptest::collection::vec((0u8..4, proptest::num::usize::ANY), 0..200),
        ) {
            let mut desk = EvalDesk::new();
            let (mut wanted, mut playing) = (Vec::new(), None);
            for (what, which) in steps {
                let at = which.checked_rem(wanted.len()).unwrap_or(0);
                match what {
                    0 => wanted.push(desk.submit(None, EvaluationRequest::new(1)).unwrap()),
                    1 => while let Some(order) = desk.next_command() {
                        if let EvalCommand::Evaluate { ticket, .. } = order {
                            playing = Some(ticket);
                        }
                    },
                    2 => if let Some(ticket) = playing.take() {
                        let found = Evaluation { env_steps: ticket.0, ..Evaluation::default() };
                        let is_broken = desk.finish(EvalDone { ticket, result: Ok(Some(found)) });
                        proptest::prop_assert!(!is_broken);
                    },
                    _ if wanted.is_empty() => {}
                    _ if which % 2 == 0 => {
                        let ticket = wanted.remove(at);
                        desk.cancel(ticket);
                        proptest::prop_assert!(desk.take(ticket).is_none());
                    }
                    _ => if let Some(outcome) = desk.take(wanted[at]) {
                        let ticket = wanted.remove(at);
                        proptest::prop_assert_eq!(outcome.unwrap().env_steps, ticket.0);
                        proptest::prop_assert!(desk.take(ticket).is_none());
                    },
                }
            }
        }
    }
}
