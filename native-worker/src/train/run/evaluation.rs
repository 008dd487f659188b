//! What is found about a run's weights beside it.

use std::{path::Path, time::Duration};

use super::{
    super::evaluation::{Candidate, Evaluated, EvaluationLine},
    Run,
};
use crate::{eval::EvalWorkerError, lines::LineNews};

/// Updates between two evaluations that decide on the end of a run, if it does not say how many.
const JUDGED_EVERY: u64 = 10;

impl Run {
    /// Has the weights evaluated, if it is time.
    pub(crate) fn evaluate_if_due(&mut self) {
        let is_due = !self.has_taker() && (self.interval_is_over() || self.config().reads_input() && self.is_used_up());
        if let (true, Some(evaluation)) = (is_due, &mut self.evaluation) {
            let (iteration, env_steps, weights) = (self.iteration, self.env_steps, self.weights.clone());
            evaluation.offer(Candidate { iteration, env_steps, weights });
        }
    }

    fn interval_is_over(&self) -> bool {
        match (self.config().evaluation.interval, self.is_judged_by_evaluations()) {
            (0, true) => self.iteration > 0 && self.iteration.is_multiple_of(JUDGED_EVERY),
            _ => self.config().evaluation.is_due(self.iteration),
        }
    }

    /// Whether the policy's own episodes decide on the end: those that a run reads say nothing of it.
    pub(super) fn is_judged_by_evaluations(&self) -> bool {
        self.config().reads_input() && self.terms.stop_return.is_some()
    }

    /// True while the run waits for what is found about its weights. One that reads waits for every evaluation, which are all
    /// that is known of its policy; not after one that hung, except at its end.
    pub(crate) fn awaits_evaluation(&self) -> bool {
        let evaluation = self.evaluation.as_ref().filter(|evaluation| !evaluation.is_idle());
        self.config().reads_input() && evaluation.is_some_and(|evaluation| !evaluation.hangs() || self.is_used_up())
    }

    /// What came of an evaluation that is over. `program` is what local workers are.
    pub(crate) fn poll_evaluation(&mut self, program: &Path) -> Option<Result<Evaluated, EvalWorkerError>> {
        self.evaluation.as_mut()?.poll(program, Duration::ZERO)
    }

    /// Keeps what was found, and writes a line of metrics, if the run has files.
    pub(crate) fn write_evaluation(&mut self, evaluated: &Evaluated) -> Option<LineNews> {
        self.evaluated = Some(evaluated.metrics.clone());
        let line = EvaluationLine { evaluation: &evaluated.metrics };
        self.files.as_mut()?.dir.add_metrics(&line)
    }
}
