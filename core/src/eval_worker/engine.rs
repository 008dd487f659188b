//! What plays: one evaluation at a time, as long as it is let.

use crate::{
    evaluation::{EvalWorkerError, Evaluation, EvaluationRequest, Evaluator, Ticket},
    prelude::*,
    weights::Weights,
};

/// What an engine is told.
#[derive(Debug)]
pub enum EvalOrder {
    /// An evaluation, with other weights if there are some.
    Evaluate {
        /// Which one.
        ticket: Ticket,
        /// None for those that the engine has.
        weights: Option<Weights>,
        /// What is to be done.
        request: EvaluationRequest,
    },
    /// This evaluation is not wanted any more.
    Cancel(Ticket),
}

impl EvalOrder {
    /// The evaluation that it is about.
    #[must_use]
    pub fn ticket(&self) -> Ticket {
        match self {
            Self::Evaluate { ticket, .. } | Self::Cancel(ticket) => *ticket,
        }
    }
}

/// An evaluation that is over.
#[derive(Debug, PartialEq)]
pub struct EvalDone {
    /// Which one.
    pub ticket: Ticket,
    /// What was found; none if it was cancelled.
    pub result: Result<Option<Evaluation>, EvalWorkerError>,
}

/// Plays what it is told, in slices, between which its caller hears what else there is.
pub struct EvalEngine {
    evaluator: Evaluator,
    playing: Option<Ticket>,
}

impl EvalEngine {
    /// An engine that waits for its first order.
    #[must_use]
    pub fn new(evaluator: Evaluator) -> Self {
        Self { evaluator, playing: None }
    }

    /// The evaluation that is going on.
    #[must_use]
    pub fn playing(&self) -> Option<Ticket> {
        self.playing
    }

    /// Env steps of the evaluation that is going on.
    #[must_use]
    pub fn env_steps(&self) -> u64 {
        self.evaluator.env_steps()
    }

    /// Begins or cancels an evaluation; says so if that was the end of one. Nobody orders an evaluation while there is one.
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

    /// Goes on for so many rounds, in each of which every sub-environment takes a step; what was found if that was the end.
    pub fn advance(&mut self, max_rounds: u32) -> Option<EvalDone> {
        let ticket = self.playing?;
        let found = self.evaluator.advance(max_rounds).transpose()?;
        self.playing = None;
        Some(EvalDone { ticket, result: found.map(Some).map_err(EvalWorkerError::failed) })
    }

    /// Releases what the environments hold.
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
