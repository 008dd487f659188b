//! The engine of an evaluation worker: executes one evaluation at a time, in slices.

use crate::{
    evaluation::{EvalWorkerError, Evaluation, EvaluationRequest, Evaluator, Ticket},
    prelude::*,
    weights::Weights,
};

/// An order for an engine.
#[derive(Debug)]
pub enum EvalOrder {
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

impl EvalOrder {
    /// Returns the evaluation that it is about.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        match self {
            Self::Evaluate { ticket, .. } | Self::Cancel(ticket) => *ticket,
        }
    }
}

/// A finished evaluation.
#[derive(Debug, PartialEq)]
pub struct EvalDone {
    /// Its ticket.
    pub ticket: Ticket,
    /// The result; `None` if it was cancelled.
    pub result: Result<Option<Evaluation>, EvalWorkerError>,
}

/// Executes evaluations in slices, between which its caller can handle messages.
pub struct EvalEngine {
    evaluator: Evaluator,
    playing: Option<Ticket>,
}

impl EvalEngine {
    /// Creates an engine that waits for its first order.
    #[must_use]
    pub fn new(evaluator: Evaluator) -> Self {
        Self { evaluator, playing: None }
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

    /// Begins or cancels an evaluation; returns its result if that ended it. The caller must not order an evaluation during
    /// another one.
    pub fn obey(&mut self, order: EvalOrder) -> Option<EvalDone> {
        match order {
            EvalOrder::Evaluate { ticket, weights, request } => {
                let begun = self.begin(weights.as_ref(), request);
                self.playing = begun.is_ok().then_some(ticket);
                begun.err().map(|error| EvalDone { ticket, result: Err(error) })
            }
            EvalOrder::Cancel(ticket) => {
                self.playing.take_if(|playing| *playing == ticket)?;
                self.evaluator.cancel();
                Some(EvalDone { ticket, result: Ok(None) })
            }
        }
    }

    fn begin(&mut self, weights: Option<&Weights>, request: EvaluationRequest) -> Result<(), EvalWorkerError> {
        if let Some(weights) = weights {
            self.evaluator.set_weights(weights).map_err(|error| EvalWorkerError::Weights(error.to_string()))?;
        }
        self.evaluator.begin(request).map_err(EvalWorkerError::failed)
    }

    /// Continues for at most `max_rounds` rounds, in each of which every sub-environment takes a step; returns the result if
    /// that was the end.
    pub fn advance(&mut self, max_rounds: u32) -> Option<EvalDone> {
        let ticket = self.playing?;
        let found = self.evaluator.advance(max_rounds).transpose()?;
        self.playing = None;
        Some(EvalDone { ticket, result: found.map(Some).map_err(EvalWorkerError::failed) })
    }

    /// Releases the environments' resources.
    ///
    /// # Errors
    /// [`EvalWorkerError::Failed`].
    pub fn stop(&mut self) -> Result<(), EvalWorkerError> {
        self.playing = None;
        self.evaluator.stop().map_err(EvalWorkerError::failed)
    }
}

impl core::fmt::Debug for EvalEngine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EvalEngine").field("playing", &self.playing).finish_non_exhaustive()
    }
}
