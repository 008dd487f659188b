//! What is found about a run's weights beside it.

use std::path::Path;

use super::{
    super::evaluation::{Evaluated, EvaluationLine},
    Run,
};
use crate::{eval::EvalWorkerError, lines::LineNews};

impl Run {
    /// Has the weights evaluated, if it is time. `program` is what local workers are.
    pub(crate) fn evaluate_if_due(&mut self, program: &Path) -> Result<(), EvalWorkerError> {
        let Some(evaluation) = &mut self.evaluation else { return Ok(()) };
        evaluation.offer(program, &self.weights, (self.iteration, self.env_steps))
    }

    /// What came of an evaluation that is over.
    pub(crate) fn poll_evaluation(&mut self, program: &Path) -> Option<Result<Evaluated, EvalWorkerError>> {
        self.evaluation.as_mut()?.poll(program)
    }

    /// Writes a line of metrics, if the run has files.
    pub(crate) fn write_evaluation(&mut self, evaluated: &Evaluated) -> Option<LineNews> {
        let line = EvaluationLine { evaluation: &evaluated.metrics };
        self.files.as_mut()?.dir.add_metrics(&line)
    }
}
