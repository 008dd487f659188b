//! Evaluation alongside a run: a separate process plays with the weights of every n-th iteration.

use std::{
    fs,
    num::NonZeroU32,
    path::{Path, PathBuf},
    thread::{self, JoinHandle},
    time::Duration,
};

use rollmesh_core::{
    env::Frame,
    evaluation::{Earlier, Evaluation, EvaluationRequest, Frames, Ticket},
    hub::{EvaluatedCandidate, EvaluationCandidate, EvaluationSchedule, EvaluationStart, Reel},
    protocol::message::{EnvClip, EvaluationPoint},
    run::RunConfig,
};
use serde::{Deserialize, Serialize};

use super::RunRequest;
use crate::{
    checkpoint::replace,
    envs::with_pictures,
    eval::{EvalWorker, EvalWorkerError, MAX_STEPS, Pictures},
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

/// The numbers of evaluations alongside a run by their outcome. Of the time before the run was resumed or rolled back,
/// only those with a result count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EvaluationCounts {
    /// All that were due: the sum of the others.
    pub due: u64,
    /// Those with a result.
    pub done: u64,
    /// Those that a later one replaced before they began, and those that had not finished when the run ended.
    pub skipped: u64,
    /// Those that failed or exceeded their timeout.
    pub failed: u64,
}

impl EvaluationCounts {
    pub(super) fn is_empty(&self) -> bool {
        self.due == 0
    }
}

/// The result of an evaluation with its episode.
pub(crate) struct Evaluated {
    pub(crate) metrics: EvaluationMetrics,
    /// The first episodes, if they have pictures.
    pub(crate) clip: Option<EnvClip>,
    /// The reason that the first episode could not be drawn.
    pub(crate) fault: Option<String>,
}

/// The evaluations of a run, one after the other. Only a poll waits, for its timeout.
pub(super) struct RunEvaluation {
    run: RunConfig,
    request: EvaluationRequest,
    /// `None` before the first evaluation, and after the worker could not be started.
    worker: Option<EvalWorker>,
    /// Decides which weights are evaluated next.
    schedule: EvaluationSchedule,
    /// A finished evaluation whose first episode is being drawn.
    drawing: Option<JoinHandle<Evaluated>>,
    /// The run's directory, if GIFs of first episodes are written there.
    gifs: Option<PathBuf>,
    /// True if a dashboard shows pictures.
    is_watched: bool,
    due: u64,
    done: u64,
    failed: u64,
}

impl RunEvaluation {
    /// Returns the evaluation of a run, `None` if it is off. A run that reads its input is always evaluated: its rows do not
    /// show how good its policy is.
    pub(super) fn of(RunRequest { config: run, run_dir, .. }: &RunRequest) -> Option<Self> {
        let is_wanted = run.reads_input() || !run.evaluation.is_off();
        let episodes = NonZeroU32::new(run.evaluation.episodes).filter(|_| is_wanted)?;
        let gifs = run_dir.clone().filter(|_| run.evaluation.render);
        let request = EvaluationRequest::of_episodes(episodes, MAX_STEPS);
        let mut run = run.clone();
        if gifs.is_some() {
            run.rollout.env_config = with_pictures(run.env(), &run.rollout.env_config);
        }
        run.host.evaluator_is_nice = true;
        run.evaluation.num_envs = run.evaluation.num_envs.min(episodes.get());
        let (worker, schedule, drawing, is_watched) = (None, EvaluationSchedule::default(), None, false);
        let (due, done, failed) = (0, 0, 0);
        Some(Self { run, request, worker, schedule, drawing, gifs, is_watched, due, done, failed })
    }

    /// Sets whether a dashboard is to be shown pictures of the evaluations that begin from now on.
    pub(super) fn set_watched(&mut self, is_watched: bool) {
        self.is_watched = is_watched;
    }

    /// Queues weights to be evaluated from the next poll on; they replace queued ones.
    pub(super) fn offer(&mut self, candidate: EvaluationCandidate) {
        self.due += 1;
        self.schedule.offer(candidate);
    }

    /// Counts the evaluations whose results the run had before it was resumed or rolled back.
    pub(super) fn count_earlier(&mut self, done: u64) {
        self.due += done;
        self.done += done;
    }

    /// Returns the counts if the run ends now.
    pub(super) fn counts(&self) -> EvaluationCounts {
        let Self { due, done, failed, .. } = *self;
        EvaluationCounts { due, done, skipped: due - done - failed, failed }
    }

    /// Returns the number of evaluations that have begun.
    pub(super) fn begun(&self) -> u64 {
        self.schedule.begun()
    }

    /// Returns whether a run that depends on its evaluations waits for one.
    pub(super) fn is_awaited(&self, is_at_end: bool) -> bool {
        self.drawing.is_some() || self.schedule.is_awaited(is_at_end)
    }

    /// Returns the next result, if it arrives within the timeout.
    pub(super) fn poll(&mut self, program: &Path, timeout: Duration) -> Option<Result<Evaluated, EvalWorkerError>> {
        let polled = self.poll_next(program, timeout)?;
        self.done += u64::from(polled.is_ok());
        Some(polled)
    }

    fn poll_next(&mut self, program: &Path, timeout: Duration) -> Option<Result<Evaluated, EvalWorkerError>> {
        if let Some(drawn) = self.drawing.take_if(|drawing| drawing.is_finished()) {
            return match drawn.join() {
                Ok(evaluated) => Some(Ok(evaluated)),
                Err(_) => self.fail(EvalWorkerError::failed("drawing the first episode panicked")),
            };
        }
        if self.drawing.is_none()
            && let Err(error) = self.begin_next(program)
        {
            return self.fail(error);
        }
        let (about, outcome) = self.worker.as_mut()?.poll_ticket(timeout)?;
        // A process that ends between two evaluations fails none.
        let Some(about) = about else { return outcome.err().map(Err) };
        let Some(evaluated) = self.schedule.handle_outcome(about, outcome) else {
            // It may begin again without pictures.
            return self.begin_next(program).err().and_then(|error| self.fail(error));
        };
        let EvaluatedCandidate { candidate, found, failed } = match evaluated {
            Ok(evaluated) => evaluated,
            Err(error) => return self.fail(error),
        };
        if let Some(error) = failed {
            self.gifs = None;
            let fault = format!("evaluations have no more pictures, since with them one failed: {error}");
            return Some(Ok(Evaluated { fault: Some(fault), ..Evaluated::of(&candidate, found) }));
        }
        let dir = match found.frames {
            // The user is notified once.
            None => self.gifs.take(),
            Some(_) => self.gifs.clone(),
        };
        if dir.is_none() && found.frames.is_none() {
            return Some(Ok(Evaluated::of(&candidate, found)));
        }
        // Encoding pictures takes long enough to block the caller noticeably.
        let draw = move || match &dir {
            Some(dir) => Evaluated::drawn(&candidate, found, dir),
            None => Evaluated::of(&candidate, found),
        };
        match thread::Builder::new().name("evaluation-gif".into()).spawn(draw) {
            Ok(drawing) => self.drawing = Some(drawing),
            Err(error) => return self.fail(EvalWorkerError::failed(error)),
        }
        None
    }

    /// Counts a failed evaluation, and returns its error.
    fn fail(&mut self, error: EvalWorkerError) -> Option<Result<Evaluated, EvalWorkerError>> {
        self.failed += 1;
        Some(Err(error))
    }

    /// Begins the next evaluation, if there is one.
    fn begin_next(&mut self, program: &Path) -> Result<(), EvalWorkerError> {
        let Some(start) = self.schedule.poll_start(self.gifs.is_some() || self.is_watched) else { return Ok(()) };
        let ticket = self.submit(program, &start);
        self.schedule.handle_submitted(ticket)
    }

    fn submit(&mut self, program: &Path, start: &EvaluationStart) -> Result<Ticket, EvalWorkerError> {
        let pictures = if self.gifs.is_some() { Pictures::All } else { Pictures::Clip };
        let worker = match &mut self.worker {
            Some(worker) => worker,
            None => self.worker.insert(EvalWorker::with_pictures(program, &self.run, pictures)?),
        };
        let request = EvaluationRequest { render: start.render, ..self.request.clone() };
        worker.submit_request(Some(&start.weights), request, Earlier::Keep)
    }

    /// Ends evaluations and returns their final counts. Does not wait for the end of the process, which the operating system
    /// may delay.
    pub(super) fn end(self) -> EvaluationCounts {
        let counts = self.counts();
        // Without a thread it is dropped here.
        let _ = thread::Builder::new().name("evaluation-end".into()).spawn(move || drop(self));
        counts
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
    fn of(candidate: &EvaluationCandidate, found: Evaluation) -> Self {
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
        let clip = found.frames.as_ref().map(|frames| clip(frames, &found, candidate.iteration));
        Self { metrics, clip, fault: None }
    }

    /// Works like [`of`](Self::of), with a GIF of the first episode in the run's directory.
    fn drawn(candidate: &EvaluationCandidate, found: Evaluation, dir: &Path) -> Self {
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
}

/// Returns the pictures of the first sub-environment for dashboards.
fn clip(frames: &Frames, found: &Evaluation, iteration: u64) -> EnvClip {
    let [_, height, width, _] = frames.shape();
    let mut lengths = found.episodes.iter().filter(|episode| episode.env == 0).map(|episode| episode.len);
    let (mut reel, mut episode, mut t, mut length) = (Reel::default(), 0, 0, lengths.next());
    for rgb in frames.iter() {
        reel.add((episode, t), &mut |frame: &mut Frame| frame.set(width as u32, height as u32, rgb));
        t += 1;
        if length.is_some_and(|length| t >= length) {
            (episode, t, length) = (episode + 1, 0, lengths.next());
        }
    }
    reel.finish(EnvClip { weights_version: iteration, ..EnvClip::default() })
}
