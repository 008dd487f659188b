//! Training runs and evaluations on their threads.

use std::{num::NonZeroU32, path::PathBuf};

use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
use rollmesh::{
    Registry,
    checkpoint::PolicyCheckpoint,
    eval::EvalWorker,
    hub::{HubConfig, RunStopper},
    train::{self, AlgorithmError, RunConfig, RunRequest},
};
use rollmesh_core::{
    config::Config,
    evaluation::{Earlier, EvalWorkerError, Evaluation, EvaluationRequest},
    ids::{PolicyId, WeightsVersion},
    weights::Weights,
};

use crate::{
    column,
    failure::Failure,
    group::seconds,
    owned::Owned,
    policy::{self, Tensors},
};

fn run_config(settings: &Bound<'_, PyDict>) -> PyResult<RunConfig> {
    let settings: Config = column::to_json(settings)?.parse().map_err(Failure::from)?;
    Ok(RunConfig::of_settings(&settings).map_err(Failure::from)?)
}

/// Returns all settings of a run, with defaults for omitted ones.
#[pyfunction(name = "run_config")]
pub(crate) fn whole_run_config<'py>(py: Python<'py>, settings: &Bound<'py, PyDict>) -> PyResult<Bound<'py, PyAny>> {
    column::json(py, &run_config(settings)?)
}

/// A training run, iteration by iteration.
#[pyclass(frozen)]
pub(crate) struct Algorithm(Owned<train::Algorithm>, RunStopper);

impl Algorithm {
    fn owned(
        py: Python<'_>,
        make: impl FnOnce() -> Result<train::Algorithm, AlgorithmError> + Send + 'static,
    ) -> PyResult<Self> {
        let algorithm = Owned::new(py, "Algorithm", make)?;
        let stopper = algorithm.call(py, |algorithm| Ok::<_, AlgorithmError>(algorithm.stopper()))?;
        Ok(Self(algorithm, stopper))
    }
}

#[pymethods]
impl Algorithm {
    #[new]
    fn new(py: Python<'_>, settings: &Bound<'_, PyDict>, run_dir: Option<PathBuf>) -> PyResult<Self> {
        let request = RunRequest { run_dir, ..RunRequest::from(run_config(settings)?) };
        Self::owned(py, move || train::Algorithm::on(HubConfig::local()?, request, &Registry::builtin()))
    }

    #[staticmethod]
    fn restore(py: Python<'_>, run_dir: PathBuf) -> PyResult<Self> {
        Self::owned(py, move || train::Algorithm::restore(run_dir, &Registry::builtin()))
    }

    /// Returns the metrics of an iteration; `None` once the run has reached one of its stop conditions.
    fn step<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let metrics = self.0.call(py, train::Algorithm::step)?;
        column::json(py, &metrics)
    }

    /// Returns the latest of the run's own evaluations; `None` before the first.
    fn evaluated<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let evaluated = self.0.call(py, |algorithm| Ok::<_, AlgorithmError>(algorithm.evaluated()))?;
        column::json(py, &evaluated)
    }

    fn save(&self, py: Python<'_>) -> PyResult<PathBuf> {
        self.0.call(py, |algorithm| algorithm.save().map(ToOwned::to_owned))
    }

    fn evaluate<'py>(&self, py: Python<'py>, episodes: NonZeroU32) -> PyResult<Bound<'py, PyAny>> {
        let found = self.0.call(py, move |algorithm| algorithm.evaluate(episodes))?;
        column::json(py, &found)
    }

    fn weights(&self, py: Python<'_>) -> PyResult<Vec<(String, Tensors)>> {
        let checkpoint = self.0.call(py, |algorithm| algorithm.policy())?;
        let weights = checkpoint.weights.of_policies(&checkpoint.policies).map_err(Failure::from)?;
        Ok(policy::of_weights(py, &weights))
    }

    /// Returns the settings of a worker that acts with the run's policies.
    fn rollout_config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let checkpoint: PolicyCheckpoint = self.0.call(py, |algorithm| algorithm.policy())?;
        column::json(py, &checkpoint.run.rollout)
    }

    fn weights_hash(&self, py: Python<'_>) -> PyResult<String> {
        self.0.call(py, |algorithm| Ok::<_, AlgorithmError>(algorithm.policy()?.weights_hash().to_string()))
    }

    /// Stops the run and returns its summary; `None` if it was stopped before.
    fn stop<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let summary = self.0.interrupt_and_end(py, || self.1.stop(), train::Algorithm::stop)?;
        column::json(py, &summary)
    }
}

type PyEvaluation<'py> = (Bound<'py, PyAny>, f64, Option<([usize; 4], Bound<'py, PyBytes>)>);

/// An evaluation worker in a separate process.
#[pyclass(frozen)]
pub(crate) struct Evaluations(Owned<EvalWorker>);

#[pymethods]
impl Evaluations {
    #[new]
    fn new(py: Python<'_>, settings: &Bound<'_, PyDict>, name: Option<String>) -> PyResult<Self> {
        let run = run_config(settings)?;
        Ok(Self(Owned::new(py, "EvalWorker", move || match name {
            None => EvalWorker::in_process(&run),
            Some(name) => EvalWorker::named(&name, &run),
        })?))
    }

    #[staticmethod]
    fn from_name(py: Python<'_>, name: String) -> PyResult<Self> {
        Ok(Self(Owned::new(py, "EvalWorker", move || EvalWorker::from_name(&name))?))
    }

    fn submit(
        &self,
        py: Python<'_>,
        weights: Option<Vec<(String, Tensors)>>,
        max_steps: u32,
        deterministic: bool,
        break_when_any_done: bool,
        render: bool,
    ) -> PyResult<()> {
        let weights = weights.map(|weights| policy::to_weights(py, weights)).transpose()?;
        let weights = weights
            .map(|weights| Weights::of_run(WeightsVersion(0), weights.iter().collect::<Vec<(&PolicyId, &Weights)>>()));
        let weights = weights.transpose().map_err(Failure::from)?;
        let request = EvaluationRequest::new(max_steps);
        let request = EvaluationRequest { deterministic, break_when_any_done, render, ..request };
        self.0.call(py, move |worker| worker.submit_request(weights.as_ref(), request, Earlier::Cancel).map(|_| ()))
    }

    /// Returns the evaluation once it has ended, its reward, and the shape and bytes of its pictures.
    fn poll<'py>(&self, py: Python<'py>, timeout_s: f64) -> PyResult<Option<PyEvaluation<'py>>> {
        let timeout = seconds(timeout_s)?;
        let found: Option<Evaluation> = self.0.call(py, move |worker| worker.poll(timeout))?;
        let to_python = |found: Evaluation| {
            let frames = found.frames.as_ref().map(|frames| (frames.shape(), PyBytes::new(py, frames.rgb())));
            Ok((column::json(py, &found)?, found.reward(), frames))
        };
        found.map(to_python).transpose()
    }

    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let end = |mut worker: EvalWorker| {
            worker.shutdown();
            Ok::<_, EvalWorkerError>(())
        };
        self.0.end(py, end).map(|_| ())
    }
}
