//! Evaluation beside a run: a process of its own plays with the weights of every so many iterations.

use std::{num::NonZeroU32, path::Path, time::Duration};

use rollmesh_core::{
    config::Config,
    evaluation::{Earlier, EpisodeTrace, Evaluation, EvaluationRequest, Ticket},
    protocol::message::{EnvTrace, EvaluationPoint},
    run::RunSpec,
    weights::Weights,
};
use serde::{Deserialize, Serialize};

use crate::eval::{EvalSpec, EvalWorker, EvalWorkerError};

/// Sub-environments of an evaluation.
const NUM_ENVS: u32 = 4;
/// The most env steps of each of them, so that an evaluation comes to an end whatever the policy does.
const MAX_STEPS: u32 = 1_000_000;

/// When and how long a run is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluationConfig {
    /// Iterations between two evaluations; 0 for none.
    #[doc(alias = "evaluation_interval")]
    pub interval: u64,
    /// Episodes of an evaluation, with the most likely actions.
    #[doc(alias = "evaluation_duration")]
    pub episodes: NonZeroU32,
}

impl Default for EvaluationConfig {
    /// None; of 20 episodes if there were some.
    fn default() -> Self {
        Self { interval: 0, episodes: const { NonZeroU32::new(20).unwrap() } }
    }
}

impl EvaluationConfig {
    pub(super) fn is_off(&self) -> bool {
        self.interval == 0
    }
}

/// A line of `metrics.jsonl`: what an evaluation has found.
#[derive(Debug, Serialize)]
pub(crate) struct EvaluationLine<'a> {
    pub(crate) evaluation: &'a EvaluationMetrics,
}

/// What an evaluation of a run has found.
#[derive(Clone, Debug, PartialEq, Serialize)]
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
    /// The latest episode.
    pub(crate) trace: Option<EpisodeTrace>,
}

/// The evaluations of a run. Never waits for any.
pub(crate) struct RunEvaluation {
    config: EvaluationConfig,
    spec: EvalSpec,
    /// None before the first evaluation, and after the worker could not be started.
    worker: Option<EvalWorker>,
    /// The evaluation that is being done.
    pending: Option<(Ticket, Version)>,
    /// Weights that came meanwhile. Only the latest are evaluated.
    next: Option<(Weights, Version)>,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    iteration: u64,
    env_steps: u64,
}

impl RunEvaluation {
    /// None if the run is not to be evaluated.
    pub(super) fn of(config: EvaluationConfig, run: &RunSpec) -> Option<Self> {
        if config.is_off() {
            return None;
        }
        // A number of numbers can always be written.
        let model = serde_json::json!({ "model": { "fcnet_hiddens": run.hidden } });
        let spec = EvalSpec {
            env_config: run.env_config.clone(),
            num_envs: NUM_ENVS.min(config.episodes.get()),
            seed: run.seed,
            policy_config: Config::of(&model).unwrap_or_default(),
            is_nice: true,
            ..EvalSpec::new(run.env.clone())
        };
        Some(Self { config, spec, worker: None, pending: None, next: None })
    }

    /// The run has new weights. They are evaluated if it is time, as soon as the evaluation before is over.
    pub(super) fn offer(
        &mut self,
        program: &Path,
        weights: &Weights,
        (iteration, env_steps): (u64, u64),
    ) -> Result<(), EvalWorkerError> {
        if !iteration.is_multiple_of(self.config.interval) {
            return Ok(());
        }
        self.next = Some((weights.clone(), Version { iteration, env_steps }));
        if self.pending.is_some() { Ok(()) } else { self.begin(program) }
    }

    fn begin(&mut self, program: &Path) -> Result<(), EvalWorkerError> {
        let Some((weights, version)) = self.next.take() else { return Ok(()) };
        let worker = match &mut self.worker {
            Some(worker) => worker,
            None => self.worker.insert(EvalWorker::in_process_of(program, &self.spec)?),
        };
        let request =
            EvaluationRequest { trace: true, ..EvaluationRequest::of_episodes(self.config.episodes, MAX_STEPS) };
        let ticket = worker.submit_request(Some(&weights), request, Earlier::Keep)?;
        self.pending = Some((ticket, version));
        Ok(())
    }

    /// What came of the evaluation, if it is over.
    pub(super) fn poll(&mut self, program: &Path) -> Option<Result<Evaluated, EvalWorkerError>> {
        let (_, outcome) = self.worker.as_mut()?.poll_ticket(Duration::ZERO)?;
        let (_, version) = self.pending.take()?;
        let found = outcome.map(|found| Evaluated::of(version, found));
        Some(found.and_then(|found| self.begin(program).map(|()| found)))
    }
}

impl Evaluated {
    fn of(Version { iteration, env_steps }: Version, found: Evaluation) -> Self {
        let returns = || found.episodes.iter().map(|episode| episode.episode_return);
        let metrics = EvaluationMetrics {
            iteration,
            env_steps,
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

    /// The point of the curve.
    pub(crate) fn point(&self, run: u32) -> EvaluationPoint {
        let metrics = &self.metrics;
        let number = |number: Option<f64>| number.map_or(f32::NAN, |number| number as f32);
        EvaluationPoint {
            run,
            iteration: metrics.iteration,
            env_steps: metrics.env_steps,
            episodes: metrics.episodes,
            unfinished: metrics.unfinished,
            episode_return_mean: number(metrics.episode_return_mean.or(metrics.partial_return_mean)),
            episode_return_min: number(metrics.episode_return_min),
            episode_return_max: number(metrics.episode_return_max),
            episode_len_mean: number(metrics.episode_len_mean),
        }
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
