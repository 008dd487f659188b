//! What is found about a run's weights beside it.

use std::{path::Path, time::Duration};

use super::{
    super::evaluation::{Candidate, Evaluated, EvaluationLine},
    Run,
};
use crate::{eval::EvalWorkerError, lines::LineNews};

impl Run {
    /// Has the weights evaluated, if it is time.
    pub(crate) fn evaluate_if_due(&mut self) {
        let is_due = !self.has_taker() && self.config().evaluation.is_due(self.iteration);
        if let (true, Some(evaluation)) = (is_due, &mut self.evaluation) {
            let (iteration, env_steps, weights) = (self.iteration, self.env_steps, self.weights.clone());
            evaluation.offer_latest(Candidate { iteration, env_steps, weights });
        }
    }

    /// What came of an evaluation that is over. `program` is what local workers are.
    pub(crate) fn poll_evaluation(&mut self, program: &Path) -> Option<Result<Evaluated, EvalWorkerError>> {
        self.evaluation.as_mut()?.poll(program, Duration::ZERO)
    }

    /// Writes a line of metrics, if the run has files.
    pub(crate) fn write_evaluation(&mut self, evaluated: &Evaluated) -> Option<LineNews> {
        let line = EvaluationLine { evaluation: &evaluated.metrics };
        self.files.as_mut()?.dir.add_metrics(&line)
    }
}
