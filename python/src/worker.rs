//! A rollout worker, on a separate thread or in a group.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
use rollmesh::{
    NativeWorker as _,
    kernels::AUTO,
    learner::{FittedQ, FittedQConfig},
    native,
    worker_group::in_process,
};
use rollmesh_core::{
    batch::AnyBatch,
    episode::{EpisodeSummary, GlobalVars},
    estimate::Transitions,
    filter::Filter,
    ids::{PolicyId, WorkerId},
    time::Micros,
    worker::{
        PolicyConfig, PolicyRoles, RolloutConfig, RolloutError, RolloutWorker, RolloutWorkerBuilder, TrainedPolicies,
        WorkerAnswer, WorkerCommand, WorkerMetrics,
    },
};
use serde_json::{Value, json};

use crate::{
    batch::Batch,
    column,
    failure::{Failure, Kind},
    functions::{self, Function},
    group::Group,
    owned::Owned,
    policy::{self, Before, BeforeArgs, PyActed, Tensors},
};

/// The time that a sample takes until the interpreter's signals are checked; the next call continues it.
const SLICE: Micros = Micros(50_000);

/// Samples batches of experience.
#[pyclass(frozen)]
pub(crate) struct Worker {
    place: Place,
    /// A batch that the caller, interrupted by Ctrl-C, has not received yet.
    ready: Arc<Mutex<Option<AnyBatch>>>,
}

/// The place where a worker runs.
enum Place {
    /// On a separate thread.
    Own(Owned<RolloutWorker>),
    /// In a group, under its id.
    Member(Py<Group>, WorkerId),
}

/// Returns settings as JSON, with RLlib's defaults for omitted ones.
pub(crate) fn rollout_config(config: &Bound<'_, PyDict>) -> PyResult<RolloutConfig> {
    Ok(column::to_json(config)?.parse::<RolloutConfig>().map_err(Failure::from)?)
}

fn lock(ready: &Mutex<Option<AnyBatch>>) -> MutexGuard<'_, Option<AnyBatch>> {
    ready.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Executes a command of a worker and takes the content of its answer.
macro_rules! ask {
    ($worker:ident, $py:ident, $command:expr, $answer:pat => $found:expr) => {
        match $worker.execute($py, $command)? {
            $answer => $found,
            _ => return Err(Failure::new(Kind::Worker, "the worker gave the answer to another command").into()),
        }
    };
}

impl Worker {
    pub(crate) fn member(group: Py<Group>, id: WorkerId) -> Self {
        Self { place: Place::Member(group, id), ready: Arc::default() }
    }

    fn execute(&self, py: Python<'_>, command: WorkerCommand) -> PyResult<WorkerAnswer> {
        match &self.place {
            Place::Own(worker) => worker.call(py, |worker| worker.execute(command)),
            Place::Member(group, id) => group.get().ask(py, *id, command),
        }
    }

    /// Executes a command with a plain answer.
    fn plain<'py>(&self, py: Python<'py>, command: WorkerCommand) -> PyResult<Bound<'py, PyAny>> {
        column::json(py, &plain(self.execute(py, command)?)?)
    }

    fn done(&self, py: Python<'_>, command: WorkerCommand) -> PyResult<()> {
        self.execute(py, command).map(|_| ())
    }

    /// Calls a closure with the worker, which is in this process.
    fn with<R: Send + 'static>(
        &self,
        py: Python<'_>,
        f: impl Fn(&mut RolloutWorker) -> Result<R, Failure> + Send + Sync + 'static,
    ) -> PyResult<R> {
        match &self.place {
            Place::Own(worker) => worker.call(py, move |worker| f(worker)),
            Place::Member(group, id) => Ok(group.get().ask(py, *id, in_process(f))??),
        }
    }
}

#[pymethods]
impl Worker {
    #[new]
    fn new(py: Python<'_>, config: &Bound<'_, PyDict>, functions: Vec<Function>) -> PyResult<Self> {
        let (config, registry) = (rollout_config(config)?, native(functions::registry(functions)?));
        let make = move || RolloutWorkerBuilder::new(registry).config(config).native().build();
        Ok(Self { place: Place::Own(Owned::new(py, "RolloutWorker", make)?), ready: Arc::default() })
    }

    /// Returns the worker's answer to a command without arguments.
    fn get<'py>(&self, py: Python<'py>, what: &str) -> PyResult<Bound<'py, PyAny>> {
        let command = match what {
            "config" => WorkerCommand::CreationArgs,
            "filters" => WorkerCommand::Filters { flush_after: false },
            "hostname" => WorkerCommand::Hostname,
            "metrics" => WorkerCommand::Metrics,
            "node_ip" => WorkerCommand::NodeIp,
            "ping" => WorkerCommand::Ping,
            "spaces" => WorkerCommand::Spaces,
            _ => return Err(Failure::new(Kind::Worker, format!("there is no command '{what}'")).into()),
        };
        self.plain(py, command)
    }

    fn sample(&self, py: Python<'_>) -> PyResult<Batch> {
        let Place::Own(worker) = &self.place else {
            return Ok(ask!(self, py, WorkerCommand::Sample, WorkerAnswer::Sample(batch) => batch).into());
        };
        loop {
            let ready = Arc::clone(&self.ready);
            worker.call(py, move |worker| {
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
        self.plain(py, WorkerCommand::LearnOnBatch(batch.batch))
    }

    fn add_policy(&self, py: Python<'_>, id: String, kind: &str, config: &Bound<'_, PyDict>) -> PyResult<()> {
        let config = column::to_json(config)?.parse().map_err(Failure::from)?;
        let (id, policy) = (PolicyId::new(id), PolicyConfig::new(kind).with_config(config));
        self.done(py, WorkerCommand::AddPolicy { id, policy, state: None, roles: PolicyRoles::default() })
    }

    fn remove_policy(&self, py: Python<'_>, id: String) -> PyResult<()> {
        self.done(py, WorkerCommand::RemovePolicy { id: PolicyId::new(id), roles: PolicyRoles::default() })
    }

    fn export_policy<'py>(&self, py: Python<'py>, id: String) -> PyResult<Bound<'py, PyBytes>> {
        let id = PolicyId::new(id);
        let state = self.with(py, move |worker| Ok(worker.export_policy(&id)?))?;
        Ok(PyBytes::new(py, &state))
    }

    fn import_policy(&self, py: Python<'_>, id: String, state: Vec<u8>) -> PyResult<()> {
        let id = PolicyId::new(id);
        self.with(py, move |worker| Ok(worker.import_policy(&id, &state)?))
    }

    /// Returns the policies that are trained, on this batch if there is one.
    fn policies_to_train<'py>(&self, py: Python<'py>, batch: Option<Batch>) -> PyResult<Bound<'py, PyAny>> {
        self.plain(py, WorkerCommand::PoliciesToTrain(batch.map(|batch| batch.batch)))
    }

    /// Sets the policies that are trained; `None` for all.
    fn set_policies_to_train(&self, py: Python<'_>, policies: Option<Vec<String>>) -> PyResult<()> {
        let ids = policy::ids(policies).map(|ids| TrainedPolicies::Ids(ids.into_iter().collect()));
        self.done(py, WorkerCommand::SetPoliciesToTrain(ids.unwrap_or(TrainedPolicies::All)))
    }

    /// Maps agents to policies by a function of Python.
    fn set_policy_mapping_fn(&self, py: Python<'_>, function: Py<PyAny>) -> PyResult<()> {
        let mapping = functions::mapping(function);
        self.with(py, move |worker| Ok(worker.set_policy_mapping_fn(Some(Arc::clone(&mapping)))?))
    }

    fn weights(&self, py: Python<'_>, policies: Option<Vec<String>>) -> PyResult<Vec<(String, Tensors)>> {
        let command = WorkerCommand::Weights { policies: policy::ids(policies) };
        Ok(policy::of_weights(py, &ask!(self, py, command, WorkerAnswer::Weights(weights) => weights)))
    }

    fn set_weights(&self, py: Python<'_>, weights: Vec<(String, Tensors)>, timestep: Option<u64>) -> PyResult<()> {
        let weights = policy::to_weights(py, weights)?;
        let global_vars = timestep.map(|timestep| GlobalVars { timestep, ..GlobalVars::default() });
        self.done(py, WorkerCommand::SetWeights { weights, global_vars, weights_seq_no: None })
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
        let (id, obs, before) = (PolicyId::new(id), column::of_python(obs)?, Before::of_python(before)?);
        let acted = self.with(py, move |worker| policy::act(worker, &id, obs.clone(), before.clone(), explore, t))?;
        policy::into_python(acted, py)
    }

    /// Returns rows with the probabilities of their actions under a policy, and with a discount also with the values of
    /// a model.
    fn judged(
        &self,
        py: Python<'_>,
        id: String,
        batch: Batch,
        epsilon: f64,
        values_gamma: Option<f64>,
    ) -> PyResult<Batch> {
        let id = PolicyId::new(id);
        let rows = self.with(py, move |worker| {
            let mut rows = batch.batch.single()?.clone();
            let fit = values_gamma.map(|gamma| {
                move |rows: &Transitions| {
                    FittedQ::of_log(rows, gamma, FittedQConfig::for_log(gamma), 0, AUTO, |_| ()).map(|(model, _)| model)
                }
            });
            worker.judge(&id, &mut rows, epsilon, fit)?;
            Ok(rows)
        })?;
        Ok(rows.into())
    }

    fn get_state<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &ask!(self, py, WorkerCommand::State, WorkerAnswer::State(state) => state)))
    }

    fn set_state(&self, py: Python<'_>, state: Vec<u8>) -> PyResult<()> {
        let Place::Own(worker) = &self.place else { return self.done(py, WorkerCommand::SetState(state)) };
        let ready = Arc::clone(&self.ready);
        worker.call(py, move |worker| {
            worker.restore(&state)?;
            // It precedes the restored state.
            *lock(&ready) = None;
            Ok::<_, Failure>(())
        })
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        match &self.place {
            // The step of an environment in this process cannot be ended.
            Place::Own(worker) => worker.end_or_leave(py, || {}, |mut worker| worker.stop()),
            Place::Member(..) => self.done(py, WorkerCommand::Stop),
        }
    }
}

/// Returns the plain content of an answer.
fn plain(answer: WorkerAnswer) -> Result<Value, Failure> {
    Ok(match answer {
        WorkerAnswer::CreationArgs(config) => serde_json::to_value(config)?,
        WorkerAnswer::Filters(filters) => filters_json(&filters),
        WorkerAnswer::Learned { info, .. } => serde_json::to_value(info)?,
        WorkerAnswer::Metrics(metrics) => metrics_json(&metrics),
        WorkerAnswer::PolicyIds(ids) => serde_json::to_value(ids)?,
        WorkerAnswer::Spaces(spaces) => policy::all_spaces_json(&spaces),
        WorkerAnswer::Text(text) => text.into(),
        _ => Value::Null,
    })
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

/// Returns the statistics of the observations of each policy, `null` without a filter.
fn filters_json(filters: &BTreeMap<PolicyId, Filter>) -> Value {
    let statistics = |filter: &Filter| {
        let seen = filter.mean_std()?.running();
        Some(json!({"count": seen.n(), "mean": seen.mean(), "std": seen.std().collect::<Vec<_>>()}))
    };
    filters.iter().map(|(id, filter)| (id.to_string(), statistics(filter).unwrap_or_default())).collect()
}

/// Returns the summary under RLlib's names; NaN, if there are no episodes, becomes null.
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

/// Returns handles of batches.
pub(crate) fn handles(batches: Vec<AnyBatch>) -> Vec<Batch> {
    batches.into_iter().map(|batch| Batch { batch }).collect()
}
