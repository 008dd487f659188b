//! The policy's own episodes, now and then, in a process beside the run.

use std::{env, num::NonZeroU32, path::PathBuf, time::Duration};

use rollmesh_core::{eval_worker::EvalWorkerError, evaluation::EvaluationRequest};

use crate::{
    Registry,
    cli::exit::Failure,
    eval::{EvalMakers, steps_of_episodes},
    kernels,
    train::{Candidate, Evaluated, RunConfig, RunEvaluation},
};

/// The most evaluations that a run is ahead of: their weights are in memory and in its checkpoints. Told in docs/command-line.md.
const MAX_UNFINISHED: usize = 16;

/// Evaluates a run's policy, with the most likely actions. What it finds depends on nothing but the weights: every
/// evaluation has the same episodes.
pub(super) struct Evaluator {
    /// What is started as the process of the evaluations.
    program: PathBuf,
    /// None where no episodes are wanted.
    evaluation: Option<RunEvaluation>,
}

impl Evaluator {
    pub(super) fn new(config: &RunConfig, registry: &Registry) -> Result<Self, Failure> {
        let program = env::current_exe();
        let program = program.map_err(|error| Failure::other(format!("this program is not found: {error}")))?;
        let episodes = NonZeroU32::new(config.evaluation.episodes);
        let evaluation = episodes.map(|episodes| evaluation(config, registry, episodes)).transpose()?;
        Ok(Self { program, evaluation })
    }

    /// Has weights evaluated after those before them, from the next poll on.
    pub(super) fn offer(&mut self, candidate: Candidate) {
        if let Some(evaluation) = &mut self.evaluation {
            evaluation.offer(candidate);
        }
    }

    /// True if the next poll begins an evaluation.
    pub(super) fn begins(&self) -> bool {
        self.evaluation.as_ref().is_some_and(RunEvaluation::begins)
    }

    /// What was offered and has come to no end, the earliest first.
    pub(super) fn unfinished(&self) -> impl Iterator<Item = &Candidate> {
        self.evaluation.iter().flat_map(RunEvaluation::unfinished)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.unfinished().next().is_none()
    }

    pub(super) fn is_full(&self) -> bool {
        self.unfinished().count() >= MAX_UNFINISHED
    }

    /// True if the latest one that was begun came to no end in time.
    pub(super) fn hangs(&self) -> bool {
        self.evaluation.as_ref().is_some_and(RunEvaluation::hangs)
    }

    /// Does without the earliest that has not begun.
    pub(super) fn skip(&mut self) -> Option<Candidate> {
        self.evaluation.as_mut()?.skip()
    }

    /// What came of the earliest that is unfinished, if it comes to its end within that time.
    pub(super) fn poll(&mut self, timeout: Duration) -> Option<Result<Evaluated, EvalWorkerError>> {
        self.evaluation.as_mut()?.poll(&self.program, timeout)
    }
}

fn evaluation(config: &RunConfig, registry: &Registry, episodes: NonZeroU32) -> Result<RunEvaluation, Failure> {
    // Before anything is learned.
    let makers = EvalMakers::of_run(config, registry, kernels::AUTO).map_err(Failure::usage)?;
    let steps = steps_of_episodes(&makers, config.evaluation.num_envs, episodes).unwrap_or(u32::MAX);
    let mut run = config.clone();
    // The process that learns calls them.
    run.rollout.callbacks.clear();
    Ok(RunEvaluation::new(run, EvaluationRequest::of_episodes(episodes, steps)))
}
