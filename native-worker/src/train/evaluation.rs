//! Evaluation beside a run: a process of its own plays with the weights of every so many iterations.

use std::{collections::VecDeque, num::NonZeroU32, path::Path, thread, time::Duration};

use rollmesh_core::{
    episode::RolloutMetrics,
    evaluation::{Earlier, EpisodeTrace, EvaluatedEpisode, Evaluation, EvaluationRequest, Ticket},
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
pub(crate) struct EvaluationMetrics {
    /// Iterations behind the weights.
    pub(crate) iteration: u64,
    /// Env steps behind them.
    pub(crate) env_steps: u64,
    pub(crate) episode_return_mean: Option<f64>,
    pub(crate) episode_return_min: Option<f64>,
    pub(crate) episode_return_max: Option<f64>,
    pub(crate) episode_len_mean: Option<f64>,
    pub(crate) episodes: u32,
    pub(crate) unfinished: u32,
    pub(crate) partial_return_mean: Option<f64>,
}

/// What is known of a run's evaluation that is over.
pub(crate) struct Evaluated {
    pub(crate) metrics: EvaluationMetrics,
    pub(crate) episodes: Vec<RolloutMetrics>,
    /// The latest episode.
    pub(crate) trace: Option<EpisodeTrace>,
}

/// Weights of a run to be evaluated, and how far it was with them.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) iteration: u64,
    pub(crate) env_steps: u64,
    pub(crate) weights: Weights,
}

/// The evaluations of a run, one after the other. Only a poll waits, for as long as it is told to.
pub(crate) struct RunEvaluation {
    run: RunConfig,
    request: EvaluationRequest,
    /// None before the first evaluation, and after the worker could not be started.
    worker: Option<EvalWorker>,
    /// The evaluation that is being done.
    current: Option<(Ticket, Candidate)>,
    /// Those after it, the earliest first.
    waiting: VecDeque<Candidate>,
    /// The latest one came to no end in time.
    hangs: bool,
}

impl RunEvaluation {
    /// Evaluates the run's policy as the request says.
    pub(crate) fn new(mut run: RunConfig, request: EvaluationRequest) -> Self {
        run.host.evaluator_is_nice = true;
        let episodes = request.episodes.map_or(u32::MAX, NonZeroU32::get);
        run.evaluation.num_envs = run.evaluation.num_envs.min(episodes);
        Self { run, request, worker: None, current: None, waiting: VecDeque::new(), hangs: false }
    }

    /// None if the run is not to be evaluated.
    pub(super) fn of(run: &RunConfig) -> Option<Self> {
        let episodes = NonZeroU32::new(run.evaluation.episodes).filter(|_| !run.evaluation.is_off())?;
        let episodes = EvaluationRequest::of_episodes(episodes, MAX_STEPS);
        Some(Self::new(run.clone(), EvaluationRequest { trace: true, ..episodes }))
    }

    /// Has weights evaluated after those before them, from the next poll on.
    pub(crate) fn offer(&mut self, candidate: Candidate) {
        self.waiting.push_back(candidate);
    }

    /// As [`offer`](Self::offer), in the place of those that wait: the run does not wait for its evaluations.
    pub(super) fn offer_latest(&mut self, candidate: Candidate) {
        self.waiting.clear();
        self.offer(candidate);
    }

    /// True if the latest one that was begun came to no end in time.
    pub(crate) fn hangs(&self) -> bool {
        self.hangs
    }

    /// Does without the earliest that has not begun.
    pub(crate) fn skip(&mut self) -> Option<Candidate> {
        self.waiting.pop_front()
    }

    /// True if the next poll begins an evaluation.
    pub(crate) fn begins(&self) -> bool {
        self.current.is_none() && !self.waiting.is_empty()
    }

    /// What was offered and has come to no end, the earliest first.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = &Candidate> {
        self.current.iter().map(|(_, candidate)| candidate).chain(&self.waiting)
    }

    /// What came of the next evaluation, if it is over within that time.
    pub(crate) fn poll(&mut self, program: &Path, timeout: Duration) -> Option<Result<Evaluated, EvalWorkerError>> {
        if self.current.is_none()
            && let Err(error) = self.begin(program)
        {
            return Some(Err(error));
        }
        let (about, outcome) = self.worker.as_mut()?.poll_ticket(timeout)?;
        let Some(about) = about else { return outcome.err().map(Err) };
        let (_, candidate) = self.current.take_if(|(ticket, _)| *ticket == about)?;
        self.hangs = matches!(outcome, Err(EvalWorkerError::Overdue { .. }));
        if self.hangs {
            // Each of those that wait may hang as long: only the latest is tried.
            self.waiting.drain(..self.waiting.len().saturating_sub(1));
        }
        Some(outcome.map(|found| Evaluated::of(&candidate, found)))
    }

    fn begin(&mut self, program: &Path) -> Result<(), EvalWorkerError> {
        let Some(candidate) = self.waiting.pop_front() else { return Ok(()) };
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
        let episodes = found.episodes.iter().map(EvaluatedEpisode::metrics).collect();
        Self { metrics, episodes, trace: found.trace }
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
