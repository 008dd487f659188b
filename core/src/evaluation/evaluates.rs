//! The interface with which a worker evaluates.

use super::{EvalDesk, EvalWorkerError, Evaluation, EvaluationRequest, Ticket};
use crate::weights::Weights;

/// The result of an evaluation, or why there is none.
pub type EvalOutcome = Result<Evaluation, EvalWorkerError>;

/// Executes the evaluations of a worker's calls, sequentially and in order: in slices of the caller's thread, or in another
/// thread or process.
///
/// Weights stay: an evaluation without weights uses the latest ones that any call has given.
pub trait Evaluates {
    /// Accesses the queue.
    fn at_desk(&mut self, work: &mut dyn FnMut(&mut EvalDesk));

    /// Ends the evaluations of all callers.
    fn stop(&mut self);

    /// Creates environments and policy, if they belong to the caller's thread.
    ///
    /// # Errors
    /// [`EvalWorkerError::Setup`]; the next evaluation retries.
    fn begin(&mut self) -> Result<(), EvalWorkerError> {
        Ok(())
    }

    /// Returns true if [`work`](Self::work) has something to do now, which it never has in another thread or process.
    fn has_work(&self) -> bool {
        false
    }

    /// Works for at most `max_rounds` rounds, in each of which every sub-environment takes a step.
    fn work(&mut self, _max_rounds: u32) {}

    /// Queues an evaluation.
    ///
    /// # Errors
    /// [`EvalWorkerError::Stopped`].
    fn submit(&mut self, weights: Option<Weights>, request: EvaluationRequest) -> Result<Ticket, EvalWorkerError> {
        let (mut job, mut submitted) = (Some((weights, request)), Err(EvalWorkerError::Stopped));
        self.at_desk(&mut |desk| {
            if let Some((weights, request)) = job.take() {
                submitted = desk.submit(weights, request);
            }
        });
        submitted
    }

    /// Cancels an evaluation, whether it is queued, running or over: its result is dropped. Its weights stay.
    fn cancel(&mut self, ticket: Ticket) {
        self.at_desk(&mut |desk| desk.cancel(ticket));
    }

    /// Returns the outcome of an evaluation that is over, once.
    fn take(&mut self, ticket: Ticket) -> Option<EvalOutcome> {
        let mut outcome = None;
        self.at_desk(&mut |desk| outcome = desk.take(ticket));
        outcome
    }
}
