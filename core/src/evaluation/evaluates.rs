//! The interface with which a worker evaluates.

use super::{EvalWorkerError, Evaluation, EvaluationRequest, Ticket};
use crate::weights::Weights;

/// The result of an evaluation, or why there is none.
pub type EvalOutcome = Result<Evaluation, EvalWorkerError>;

/// Executes the evaluations of a worker's calls, sequentially and in order: in slices of the caller's thread, or in another
/// thread or process.
///
/// Weights stay: an evaluation without weights uses the latest ones that any call has given.
pub trait Evaluates {
    /// Creates environments and policy, if they belong to the caller's thread.
    ///
    /// # Errors
    /// [`EvalWorkerError::Setup`]; the next evaluation retries.
    fn begin(&mut self) -> Result<(), EvalWorkerError>;

    /// Queues an evaluation.
    ///
    /// # Errors
    /// [`EvalWorkerError::Stopped`].
    fn submit(&mut self, weights: Option<Weights>, request: EvaluationRequest) -> Result<Ticket, EvalWorkerError>;

    /// Cancels an evaluation, whether it is queued, running or over: its result is dropped. Its weights stay.
    fn cancel(&mut self, ticket: Ticket);

    /// Returns the outcome of an evaluation that is over, once.
    fn take(&mut self, ticket: Ticket) -> Option<EvalOutcome>;

    /// Ends the evaluations of all callers.
    fn stop(&mut self);

    /// Returns true if [`work`](Self::work) has something to do now.
    fn has_work(&self) -> bool;

    /// Works for at most `max_rounds` rounds, in each of which every sub-environment takes a step.
    fn work(&mut self, max_rounds: u32);
}
