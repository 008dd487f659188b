//! A rollout worker on its thread.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
use rollmesh::{NativeWorker as _, native};
use rollmesh_core::{
    batch::AnyBatch,
    episode::{EpisodeSummary, GlobalVars},
    filter::Filter,
    ids::PolicyId,
    time::Micros,
    worker::{NewPolicy, RolloutConfig, RolloutError, RolloutWorker, RolloutWorkerBuilder, WorkerMetrics},
};
use serde_json::{Value, json};

use crate::{
    batch::Batch,
    column,
    failure::Failure,
    functions::{self, Function},
    owned::Owned,
    policy::{self, Before, BeforeArgs, PyActed, Tensors},
};

/// How long a sample continues until the interpreter's signals are checked; the next call continues it.
const SLICE: Micros = Micros(50_000);

/// Samples batches of experience.
#[pyclass(frozen)]
pub(crate) struct Worker {
    worker: Owned<RolloutWorker>,
    /// A batch that the caller, interrupted by Ctrl-C, has not received yet.
    ready: Arc<Mutex<Option<AnyBatch>>>,
}

/// Settings as JSON, with RLlib's defaults for what they leave out.
pub(crate) fn rollout_config(config: &Bound<'_, PyDict>) -> PyResult<RolloutConfig> {
    Ok(column::to_json(config)?.parse::<RolloutConfig>().map_err(Failure::from)?)
}

fn lock(ready: &Mutex<Option<AnyBatch>>) -> MutexGuard<'_, Option<AnyBatch>> {
    ready.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymethods]
impl Worker {
    #[new]
    fn new(py: Python<'_>, config: &Bound<'_, PyDict>, functions: Vec<Function>) -> PyResult<Self> {
        let (config, registry) = (rollout_config(config)?, native(functions::registry(functions)?));
        let make = move || RolloutWorkerBuilder::new(registry).config(config).native().build();
        Ok(Self { worker: Owned::new(py, "RolloutWorker", make)?, ready: Arc::default() })
    }

    fn config<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let config = self.worker.call(py, |worker| Ok::<_, Failure>(serde_json::to_value(worker.creation_args())?))?;
        column::json(py, &config)
    }

    fn sample(&self, py: Python<'_>) -> PyResult<Batch> {
        loop {
            let ready = Arc::clone(&self.ready);
            self.worker.call(py, move |worker| {
                if lock(&ready).is_none() {
                    let sampled = worker.sample_within(SLICE)?;
                    *lock(&ready) = sampled;
                }
                Ok::<_, RolloutError>(())
            })?;
            py.check_signals()?;
            if let Some(batch) = lock(&self.ready).take() {
                return Ok(batch.into());
            }
        }
    }

    fn learn_on_batch<'py>(&self, py: Python<'py>, batch: Batch) -> PyResult<Bound<'py, PyAny>> {
        let learned = self.worker.call(py, move |worker| {
            let learned = worker.learn_on_batch(&batch.batch)?;
            Ok::<_, Failure>(serde_json::to_value(learned)?)
        })?;
        column::json(py, &learned)
    }

    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let metrics = self.worker.call(py, |worker| Ok::<_, RolloutError>(worker.metrics()))?;
        column::json(py, &metrics_json(&metrics))
    }

    fn filters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        column::json(py, &filters_json(&self.worker.call(py, |worker| worker.filters(false))?))
    }

    #[getter]
    fn num_envs(&self, py: Python<'_>) -> PyResult<usize> {
        self.worker.call(py, |worker| Ok::<_, RolloutError>(worker.num_envs()))
    }

    #[getter]
    fn policies(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.worker.call(py, |worker| Ok::<_, RolloutError>(worker.policies().ids().map(ToString::to_string).collect()))
    }

    fn spaces<'py>(&self, py: Python<'py>, policy: String) -> PyResult<Bound<'py, PyAny>> {
        let spaces = self.worker.call(py, move |worker| {
            let spaces = worker.spaces().remove(&PolicyId::new(policy));
            Ok::<_, RolloutError>(spaces.as_ref().map(policy::spaces_json))
        })?;
        column::json(py, &spaces)
    }

    fn add_policy(&self, py: Python<'_>, id: String, kind: &str, config: &Bound<'_, PyDict>) -> PyResult<()> {
        let config = column::to_json(config)?.parse().map_err(Failure::from)?;
        let new = NewPolicy { config, ..NewPolicy::named(kind) };
        self.worker.call(py, move |worker| worker.add_policy(PolicyId::new(id), new, None, None).map(|_| ()))
    }

    fn remove_policy(&self, py: Python<'_>, id: String) -> PyResult<()> {
        self.worker.call(py, move |worker| worker.remove_policy(&PolicyId::new(id), None, None))
    }

    fn export_policy<'py>(&self, py: Python<'py>, id: String) -> PyResult<Bound<'py, PyBytes>> {
        let state = self.worker.call(py, move |worker| worker.export_policy(&PolicyId::new(id)))?;
        Ok(PyBytes::new(py, &state))
    }

    fn import_policy(&self, py: Python<'_>, id: String, state: Vec<u8>) -> PyResult<()> {
        self.worker.call(py, move |worker| worker.import_policy(&PolicyId::new(id), &state))
    }

    fn weights(&self, py: Python<'_>, policies: Option<Vec<String>>) -> PyResult<Vec<(String, Tensors)>> {
        let ids = policy::ids(policies);
        let weights = self.worker.call(py, move |worker| worker.weights(ids.as_deref()))?;
        Ok(policy::of_weights(py, &weights))
    }

    fn set_weights(&self, py: Python<'_>, weights: Vec<(String, Tensors)>, timestep: Option<u64>) -> PyResult<()> {
        let weights = policy::to_weights(py, weights)?;
        let vars = timestep.map(|timestep| GlobalVars { timestep, ..GlobalVars::default() });
        self.worker.call(py, move |worker| worker.set_weights(&weights, vars.as_ref(), None))
    }

    /// Acts with a policy of the worker on rows of observations.
    fn act<'py>(
        &self,
        py: Python<'py>,
        id: String,
        obs: &Bound<'_, PyAny>,
        before: BeforeArgs<'_>,
        explore: bool,
        t: u32,
    ) -> PyResult<PyActed<'py>> {
        let (obs, before) = (column::of_python(obs)?, Before::of_python(before)?);
        let acted =
            self.worker.call(py, move |worker| policy::act(worker, &PolicyId::new(id), obs, before, explore, t))?;
        policy::into_python(acted, py)
    }

    fn get_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let state = self.worker.call(py, RolloutWorker::save)?;
        Ok(PyBytes::new(py, &state))
    }

    fn set_state(&self, py: Python<'_>, state: Vec<u8>) -> PyResult<()> {
        let ready = Arc::clone(&self.ready);
        self.worker.call(py, move |worker| {
            worker.restore(&state)?;
            // It precedes the restored state.
            *lock(&ready) = None;
            Ok::<_, Failure>(())
        })
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        // The step of an environment in this process cannot be ended.
        self.worker.end_or_leave(py, || {}, |mut worker| worker.stop())
    }
}

fn metrics_json(metrics: &WorkerMetrics) -> Value {
    let episodes = metrics.episodes.iter().map(|episode| {
        json!({
            "episode_id": episode.episode_id, "env": episode.env, "episode_length": episode.length,
            "episode_return": episode.episode_return, "faulty": episode.faulty,
        })
    });
    json!({
        "episodes": episodes.collect::<Vec<_>>(),
        "summary": summary_json(&metrics.summary()),
        "discarded_env_steps": metrics.discarded_env_steps,
        "discarded_agent_steps": metrics.discarded_agent_steps,
        "warnings": metrics.warnings.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

/// The statistics of the observations of each policy, `null` without a filter.
pub(crate) fn filters_json(filters: &BTreeMap<PolicyId, Filter>) -> Value {
    let statistics = |filter: &Filter| {
        let seen = filter.mean_std()?.running();
        Some(json!({"count": seen.n(), "mean": seen.mean(), "std": seen.std().collect::<Vec<_>>()}))
    };
    filters.iter().map(|(id, filter)| (id.to_string(), statistics(filter).unwrap_or_default())).collect()
}

/// Under RLlib's names; NaN, where there are no episodes, as null.
pub(crate) fn summary_json(summary: &EpisodeSummary) -> Value {
    json!({
        "episodes_this_iter": summary.episodes,
        "num_faulty_episodes": summary.faulty_episodes,
        "episode_reward_min": summary.episode_return.min,
        "episode_reward_mean": summary.episode_return.mean,
        "episode_reward_max": summary.episode_return.max,
        "episode_len_mean": summary.length.mean,
        "policy_reward_mean": summary.policy_reward.iter().map(|(id, spread)| (id.to_string(), spread.mean)).collect::<BTreeMap<_, _>>(),
        "custom_metrics": summary.custom_metrics,
    })
}

/// Handles of batches.
pub(crate) fn handles(batches: Vec<AnyBatch>) -> Vec<Batch> {
    batches.into_iter().map(|batch| Batch { batch }).collect()
}
