//! Evaluation beside a run: a process of its own plays with the weights of every so many iterations.

use std::{num::NonZeroU32, path::Path, thread, time::Duration};

use rollmesh_core::{
    evaluation::{Earlier, EpisodeTrace, Evaluation, EvaluationRequest, Ticket},
    protocol::message::{EnvTrace, EvaluationPoint},
    run::RunConfig,
    weights::Weights,
};
use serde::{Deserialize, Serialize};

use crate::eval::{EvalWorker, EvalWorkerError};

/// The most env steps of each of them, so that an evaluation comes to an end whatever the policy does.
const MAX_STEPS: u32 = 1_000_000;

/// A line of `metrics.jsonl`: what an evaluation has found.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EvaluationLine<M> {
    pub(crate) evaluation: M,
}

/// What an evaluation of a run has found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationMetrics {
    /// Iterations behind the weights.
    pub iteration: u64,
    /// Env steps behind them.
    pub env_steps: u64,
    /// Mean return of the finished episodes; none without any, as the next three.
    pub episode_return_mean: Option<f64>,
    /// The least return.
    pub episode_return_min: Option<f64>,
    /// The greatest.
    pub episode_return_max: Option<f64>,
    /// Their mean length in env steps.
    pub episode_len_mean: Option<f64>,
    /// Finished episodes.
    pub episodes: u32,
    /// Episodes that were cut short.
    pub unfinished: u32,
    /// Mean return of those so far; none without any.
    pub partial_return_mean: Option<f64>,
}

/// What is known of a run's evaluation that is over.
pub(crate) struct Evaluated {
    pub(crate) metrics: EvaluationMetrics,
    /// The latest episode.
    pub(crate) trace: Option<EpisodeTrace>,
}

/// Weights of a run to be evaluated, and how far it was with them.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) iteration: u64,
    pub(super) env_steps: u64,
    pub(super) weights: Weights,
}

/// The evaluations of a run, one after the other. Only a poll waits, for as long as it is told to.
pub(super) struct RunEvaluation {
    run: RunConfig,
    request: EvaluationRequest,
    /// None before the first evaluation, and after the worker could not be started.
    worker: Option<EvalWorker>,
    /// The evaluation that is being done.
    current: Option<(Ticket, Candidate)>,
    /// The one after it.
    waiting: Option<Candidate>,
    /// The latest one came to no end in time.
    hangs: bool,
}

impl RunEvaluation {
    /// Evaluates the run's policy as the request says.
    fn new(mut run: RunConfig, request: EvaluationRequest) -> Self {
        run.host.evaluator_is_nice = true;
        let episodes = request.episodes.map_or(u32::MAX, NonZeroU32::get);
        run.evaluation.num_envs = run.evaluation.num_envs.min(episodes);
        Self { run, request, worker: None, current: None, waiting: None, hangs: false }
    }

    /// None if the run is not to be evaluated. One that reads always is: its rows do not show how good its policy is.
    pub(super) fn of(run: &RunConfig) -> Option<Self> {
        let is_wanted = run.reads_input() || !run.evaluation.is_off();
        let episodes = NonZeroU32::new(run.evaluation.episodes).filter(|_| is_wanted)?;
        let episodes = EvaluationRequest::of_episodes(episodes, MAX_STEPS);
        Some(Self::new(run.clone(), EvaluationRequest { trace: true, ..episodes }))
    }

    /// Has weights evaluated, from the next poll on, in the place of those that wait.
    pub(super) fn offer(&mut self, candidate: Candidate) {
        self.waiting = Some(candidate);
    }

    /// True if the latest one that was begun came to no end in time.
    pub(super) fn hangs(&self) -> bool {
        self.hangs
    }

    /// True if nothing is being evaluated, nor waits for it.
    pub(super) fn is_idle(&self) -> bool {
        self.current.is_none() && self.waiting.is_none()
    }

    /// What came of the next evaluation, if it is over within that time.
    pub(super) fn poll(&mut self, program: &Path, timeout: Duration) -> Option<Result<Evaluated, EvalWorkerError>> {
        if self.current.is_none()
            && let Err(error) = self.begin(program)
        {
            return Some(Err(error));
        }
        let (about, outcome) = self.worker.as_mut()?.poll_ticket(timeout)?;
        let Some(about) = about else { return outcome.err().map(Err) };
        let (_, candidate) = self.current.take_if(|(ticket, _)| *ticket == about)?;
        self.hangs = matches!(outcome, Err(EvalWorkerError::Overdue { .. }));
        Some(outcome.map(|found| Evaluated::of(&candidate, found)))
    }

    fn begin(&mut self, program: &Path) -> Result<(), EvalWorkerError> {
        let Some(candidate) = self.waiting.take() else { return Ok(()) };
        let worker = match &mut self.worker {
            Some(worker) => worker,
            None => self.worker.insert(EvalWorker::in_process_of(program, &self.run)?),
        };
        let ticket = worker.submit_request(Some(&candidate.weights), self.request.clone(), Earlier::Keep)?;
        self.current = Some((ticket, candidate));
        Ok(())
    }

    /// No more evaluations. Does not wait for the end of the process either, which the system may not let go of.
    pub(super) fn end(self) {
        // Without a thread it is dropped here.
        let _ = thread::Builder::new().name("evaluation-end".into()).spawn(move || drop(self));
    }
}

impl EvaluationMetrics {
    /// The point of the curve.
    pub(crate) fn point(&self, run: u32) -> EvaluationPoint {
        let number = |number: Option<f64>| number.map_or(f32::NAN, |number| number as f32);
        EvaluationPoint {
            run,
            iteration: self.iteration,
            env_steps: self.env_steps,
            episodes: self.episodes,
            unfinished: self.unfinished,
            episode_return_mean: number(self.episode_return_mean.or(self.partial_return_mean)),
            episode_return_min: number(self.episode_return_min),
            episode_return_max: number(self.episode_return_max),
            episode_len_mean: number(self.episode_len_mean),
        }
    }
}

impl Evaluated {
    fn of(candidate: &Candidate, found: Evaluation) -> Self {
        let returns = || found.episodes.iter().map(|episode| episode.episode_return);
        let metrics = EvaluationMetrics {
            iteration: candidate.iteration,
            env_steps: candidate.env_steps,
            episode_return_mean: found.episode_return_mean,
            episode_return_min: returns().reduce(f64::min),
            episode_return_max: returns().reduce(f64::max),
            episode_len_mean: found.episode_len_mean,
            episodes: u32::try_from(found.episodes.len()).unwrap_or(u32::MAX),
            unfinished: found.unfinished,
            partial_return_mean: found.partial_return_mean,
        };
        Self { metrics, trace: found.trace }
    }

    /// The latest episode, as dashboards play it.
    pub(crate) fn env_trace(&self, run: u32) -> Option<EnvTrace> {
        let trace = self.trace.as_ref()?;
        let rows = trace.obs.len().checked_div(trace.obs_len as usize)?;
        let mut dones = vec![0; rows];
        if let Some(last) = dones.last_mut().filter(|_| !trace.is_cut) {
            *last = 1;
        }
        let obs = trace.obs.iter().flat_map(|value| value.to_le_bytes()).collect();
        Some(EnvTrace { run, slot: 0, episode: trace.episode, t: 0, obs_len: trace.obs_len, obs, dones })
    }
}
