//! A run's evaluations.

use std::{path::Path, time::Duration};

use rollmesh_core::{hub::EvaluationCandidate, time::Micros};

use super::{
    super::evaluation::{Evaluated, EvaluationMetrics},
    Run,
};
use crate::{eval::EvalWorkerError, lines::LineNotice};

impl Run {
    /// Starts an evaluation of the weights if one is due.
    pub(crate) fn evaluate_if_due(&mut self, now: Micros) {
        let state = &self.state;
        if let (true, Some(evaluation)) = (state.is_evaluation_due(now), &mut self.evaluation) {
            let (iteration, env_steps, weights) = (state.iteration(), state.env_steps(), state.weights().clone());
            evaluation.offer(EvaluationCandidate { iteration, env_steps, weights });
        }
    }

    /// Returns true while the run waits for an evaluation. A run that reads waits for every evaluation, since only
    /// these show how good its policy is; but not after one that hung, except at its end.
    pub(crate) fn awaits_evaluation(&self, now: Micros) -> bool {
        let is_at_end = self.state.is_used_up(now);
        self.config().reads_input() && self.evaluation.as_ref().is_some_and(|it| it.is_awaited(is_at_end))
    }

    /// Returns a notice for the end of a run that is to be evaluated and has no result.
    pub(crate) fn without_evaluation(&self) -> Option<String> {
        let begun = self.evaluation.as_ref().filter(|_| self.evaluated.is_none())?.begun();
        Some(format!(
            "no evaluation had finished when the run ended, {begun} had begun: `rollmesh evaluate` evaluates its policy"
        ))
    }

    /// Returns the latest result.
    pub(crate) fn evaluated(&self) -> Option<&EvaluationMetrics> {
        self.evaluated.as_ref()
    }

    /// Returns the result of a finished evaluation. `program` is the program of local workers; the next evaluation has pictures
    /// if a dashboard watches.
    pub(crate) fn poll_evaluation(
        &mut self,
        program: &Path,
        is_watched: bool,
    ) -> Option<Result<Evaluated, EvalWorkerError>> {
        let evaluation = self.evaluation.as_mut()?;
        evaluation.set_watched(is_watched);
        evaluation.poll(program, Duration::ZERO)
    }

    /// Keeps the result, and writes a line of metrics, if the run has files.
    pub(crate) fn write_evaluation(&mut self, evaluated: &Evaluated) -> Vec<LineNotice> {
        self.state.handle_evaluated(evaluated.metrics.episode_return_mean);
        self.evaluated = Some(evaluated.metrics.clone());
        self.files.as_mut().map_or_else(Vec::new, |files| files.dir.add_evaluation(&evaluated.metrics))
    }
}
