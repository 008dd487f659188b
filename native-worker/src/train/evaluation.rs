//! Evaluation alongside a run: a separate process plays with the weights of every n-th iteration.

use std::{
    fs,
    num::NonZeroU32,
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
    time::Duration,
};

use rollmesh_core::{
    evaluation::{Earlier, EpisodeTrace, Evaluation, EvaluationRequest, Ticket},
    protocol::message::{EnvTrace, EvaluationPoint},
    run::RunConfig,
    weights::Weights,
};
use serde::{Deserialize, Serialize};

use super::RunRequest;
use crate::{
    checkpoint::replace,
    eval::{EvalWorker, EvalWorkerError, MAX_STEPS},
    monitor::EpisodeGif,
};

/// Subdirectory of a run's directory for GIFs of episodes.
const GIFS_DIR: &str = "gifs";

/// A line of `metrics.jsonl` with the result of an evaluation.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct EvaluationLine<M> {
    pub(crate) evaluation: M,
}

/// The result of an evaluation of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationMetrics {
    /// Iteration of the weights.
    pub iteration: u64,
    /// Env steps that the weights were learned from.
    pub env_steps: u64,
    /// Mean return of the finished episodes; `None` without any, as for the next three.
    pub episode_return_mean: Option<f64>,
    /// Minimum return.
    pub episode_return_min: Option<f64>,
    /// Maximum return.
    pub episode_return_max: Option<f64>,
    /// Their mean length in env steps.
    pub episode_len_mean: Option<f64>,
    /// Number of finished episodes.
    pub episodes: u32,
    /// Number of episodes that were cut short.
    pub unfinished: u32,
    /// Mean partial return of those; `None` without any.
    pub partial_return_mean: Option<f64>,
    /// GIF of the first episode, relative to the run's directory, if it was drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gif: Option<String>,
}

/// The result of an evaluation with its episode.
pub(crate) struct Evaluated {
    pub(crate) metrics: EvaluationMetrics,
    /// The latest episode.
    pub(crate) trace: Option<EpisodeTrace>,
    /// Why the first episode could not be drawn.
    pub(crate) fault: Option<String>,
}

/// Weights of a run to evaluate, with their iteration and env steps.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) iteration: u64,
    pub(super) env_steps: u64,
    pub(super) weights: Weights,
}

/// The evaluations of a run, one after the other. Only a poll waits, for its timeout.
pub(super) struct RunEvaluation {
    run: RunConfig,
    request: EvaluationRequest,
    /// `None` before the first evaluation, and after the worker could not be started.
    worker: Option<EvalWorker>,
    /// The evaluation in progress.
    current: Option<(Ticket, Candidate)>,
    /// The next one.
    waiting: Option<Candidate>,
    /// A finished evaluation whose first episode is being drawn.
    drawing: Option<JoinHandle<Evaluated>>,
    /// The run's directory, if first episodes are drawn.
    gifs: Option<PathBuf>,
    /// True if the latest evaluation exceeded its timeout.
    hangs: bool,
}

impl RunEvaluation {
    /// Returns the evaluation of a run, `None` if it is off. A run that reads its input is always evaluated: its rows do not
    /// show how good its policy is.
    pub(super) fn of(RunRequest { config: run, run_dir, .. }: &RunRequest) -> Option<Self> {
        let is_wanted = run.reads_input() || !run.evaluation.is_off();
        let episodes = NonZeroU32::new(run.evaluation.episodes).filter(|_| is_wanted)?;
        let gifs = run_dir.clone().filter(|_| run.evaluation.render);
        let request = EvaluationRequest::of_episodes(episodes, MAX_STEPS);
        let request = EvaluationRequest { trace: true, render: gifs.is_some(), ..request };
        let mut run = run.clone();
        run.host.evaluator_is_nice = true;
        run.evaluation.num_envs = run.evaluation.num_envs.min(episodes.get());
        Some(Self { run, request, worker: None, current: None, waiting: None, drawing: None, gifs, hangs: false })
    }

    /// Queues weights to be evaluated from the next poll on; they replace queued ones.
    pub(super) fn offer(&mut self, candidate: Candidate) {
        self.waiting = Some(candidate);
    }

    /// True if the latest evaluation exceeded its timeout.
    pub(super) fn hangs(&self) -> bool {
        self.hangs
    }

    /// True if no evaluation is in progress or queued.
    pub(super) fn is_idle(&self) -> bool {
        self.current.is_none() && self.waiting.is_none() && self.drawing.is_none()
    }

    /// Returns the next result, if it arrives within the timeout.
    pub(super) fn poll(&mut self, program: &Path, timeout: Duration) -> Option<Result<Evaluated, EvalWorkerError>> {
        if let Some(drawn) = self.drawing.take_if(|drawing| drawing.is_finished()) {
            return Some(drawn.join().map_err(|_| EvalWorkerError::failed("drawing the first episode panicked")));
        }
        if self.current.is_none()
            && self.drawing.is_none()
            && let Err(error) = self.begin(program)
        {
            return Some(Err(error));
        }
        let (about, outcome) = self.worker.as_mut()?.poll_ticket(timeout)?;
        let Some(about) = about else { return outcome.err().map(Err) };
        let (_, candidate) = self.current.take_if(|(ticket, _)| *ticket == about)?;
        self.hangs = matches!(outcome, Err(EvalWorkerError::Overdue { .. }));
        let found = match outcome {
            Ok(found) => found,
            Err(error) => return Some(Err(error)),
        };
        let Some(dir) = self.gifs.clone() else { return Some(Ok(Evaluated::of(&candidate, found))) };
        if found.frames.is_none() {
            // The user is notified once.
            (self.gifs, self.request.render) = (None, false);
        }
        // Encoding a GIF takes long enough to block the caller noticeably.
        let draw = move || Evaluated::drawn(&candidate, found, &dir);
        match thread::Builder::new().name("evaluation-gif".into()).spawn(draw) {
            Ok(drawing) => self.drawing = Some(drawing),
            Err(error) => return Some(Err(EvalWorkerError::failed(error))),
        }
        None
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

    /// Ends evaluations. Does not wait for the end of the process, which the operating system may delay.
    pub(super) fn end(self) {
        // Without a thread it is dropped here.
        let _ = thread::Builder::new().name("evaluation-end".into()).spawn(move || drop(self));
    }
}

impl EvaluationMetrics {
    /// Returns the point of the curve.
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
            gif: None,
        };
        Self { metrics, trace: found.trace, fault: None }
    }

    /// Like [`of`](Self::of), with a GIF of the first episode in the run's directory.
    fn drawn(candidate: &Candidate, found: Evaluation, dir: &Path) -> Self {
        let gif = format!("{GIFS_DIR}/iteration-{}.gif", candidate.iteration);
        let drawn = match EpisodeGif::of(&found) {
            None => Err("the environment has no picture: leave evaluation.render out".to_owned()),
            Some(drawn) => drawn
                .and_then(|film| {
                    fs::create_dir_all(dir.join(GIFS_DIR))?;
                    replace(&dir.join(&gif), &film.gif)
                })
                .map_err(|error| format!("{gif} could not be written: {error}")),
        };
        let mut evaluated = Self::of(candidate, found);
        match drawn {
            Ok(()) => evaluated.metrics.gif = Some(gif),
            Err(error) => evaluated.fault = Some(error),
        }
        evaluated
    }

    /// Returns the latest episode for dashboards.
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
