//! The engine of an evaluation worker: executes one evaluation at a time, in slices.

use super::{EvalCommand, EvalDone, EvalMakers};
use crate::{
    evaluation::{EvalWorkerError, EvaluationRequest, Evaluator, Ticket},
    prelude::*,
    weights::Weights,
    worker::Guard,
};

/// Executes evaluations in slices, between which its caller can handle messages. After an error it is to be replaced.
pub struct EvalEngine {
    evaluator: Evaluator,
    guard: Guard,
    playing: Option<Ticket>,
}

impl EvalEngine {
    /// Creates environments and policy. The engine waits for its first order.
    ///
    /// # Errors
    /// As [`EvalMakers::evaluator`].
    pub fn start(makers: &EvalMakers) -> Result<Self, EvalWorkerError> {
        let evaluator = guarded(makers.guard(), "evaluation worker", || makers.evaluator())?;
        Ok(Self { evaluator, guard: makers.guard(), playing: None })
    }

    /// Returns the evaluation in progress.
    #[must_use]
    pub fn playing(&self) -> Option<Ticket> {
        self.playing
    }

    /// Returns the env steps of the evaluation in progress.
    #[must_use]
    pub fn env_steps(&self) -> u64 {
        self.evaluator.env_steps()
    }

    /// Begins or cancels an evaluation, or without an order continues the one in progress for at most `max_rounds` rounds, in
    /// each of which every sub-environment takes a step. Returns the result if that ended it. The caller must not order an
    /// evaluation during another one.
    pub fn work(&mut self, mut order: Option<EvalCommand>, max_rounds: u32) -> Option<EvalDone> {
        let ticket = match &order {
            Some(EvalCommand::Evaluate { ticket, .. } | EvalCommand::Cancel(ticket)) => *ticket,
            None => self.playing?,
        };
        let guard = self.guard;
        let work = || match order.take() {
            Some(EvalCommand::Evaluate { weights, request, .. }) => {
                self.begin(weights.as_ref(), request)?;
                self.playing = Some(ticket);
                Ok(None)
            }
            Some(EvalCommand::Cancel(_)) => Ok(self.playing.take_if(|playing| *playing == ticket).map(|_| {
                self.evaluator.cancel();
                None
            })),
            None => self.evaluator.advance(max_rounds).map(|found| found.map(Some)).map_err(EvalWorkerError::failed),
        };
        let result = guarded(guard, "evaluation", work).transpose()?;
        self.playing = None;
        Some(EvalDone { ticket, result })
    }

    fn begin(&mut self, weights: Option<&Weights>, request: EvaluationRequest) -> Result<(), EvalWorkerError> {
        if let Some(weights) = weights {
            self.evaluator.set_weights(weights).map_err(|error| EvalWorkerError::Weights(error.to_string()))?;
        }
        self.evaluator.begin(request).map_err(EvalWorkerError::failed)
    }
}

impl Drop for EvalEngine {
    /// Releases the environments' resources. Those that cannot be released are dropped all the same.
    fn drop(&mut self) {
        let _ = guarded(self.guard, "environment", || self.evaluator.stop().map_err(EvalWorkerError::failed));
    }
}

/// Runs a closure under a guard: a panic becomes an error.
pub(super) fn guarded<T>(
    guard: Guard,
    part: &str,
    mut work: impl FnMut() -> Result<T, EvalWorkerError>,
) -> Result<T, EvalWorkerError> {
    let mut result = None;
    let panicked = guard(&mut || result = Some(work())).err();
    let words = panicked.unwrap_or_else(|| "was not done".into());
    result.unwrap_or_else(|| Err(EvalWorkerError::failed(format!("the {part} {words}"))))
}

impl core::fmt::Debug for EvalEngine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EvalEngine").field("playing", &self.playing).finish_non_exhaustive()
    }
}
