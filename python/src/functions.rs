//! Policies, callbacks, mapping and observation functions in Python, which the threads of workers call. Their Python
//! side, `python/rollmesh/_functions.py`, converts arguments and results.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use pyo3::prelude::*;
use rollmesh::Registry;
use rollmesh_core::{
    batch::{AnyBatch, SampleBatch},
    callbacks::{CallbackError, Callbacks, EpisodeHook, PolicyMappingFn, TrajectoryHook, WorkerInfo},
    column::{Column, RowShape},
    env::{
        EnvError, RowsRef,
        multi_agent::{AgentRows, Turn},
    },
    episode::Episode,
    ids::{AgentId, PolicyId},
    policy::{LearnInfo, PolicySpec},
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    batch::Batch,
    column,
    failure::{self, Failure, Kind},
    python_policy::PythonPolicy,
};

/// A function of Python: its kind, the name by which settings refer to it, and the object.
pub(crate) type Function = (String, String, Py<PyAny>);

/// Returns the built-in registry with these functions.
pub(crate) fn registry(functions: Vec<Function>) -> Result<Registry, Failure> {
    functions.into_iter().try_fold(Registry::builtin(), |registry, (kind, name, object)| match &*kind {
        "policies" => Ok(registry
            .with_policy(PolicySpec::new(name, move |context| Ok(Box::new(PythonPolicy::make(&object, context)?))))),
        "callbacks" => Ok(registry.with_callbacks(name, move |_| Ok(Box::new(PythonCallbacks::make(&object)?)))),
        "policy_mapping_fn" => {
            let mapping = mapping(object);
            Ok(registry
                .with_policy_mapping_fn(name, move |agent, episode, worker, rng| mapping(agent, episode, worker, rng)))
        }
        "observation_fn" => Ok(registry.with_observation_fn(name, move |obs, hook| observe(&object, obs, hook))),
        _ => Err(Failure::new(Kind::Config, format!("'{kind}' is no kind of function"))),
    })
}

/// Returns the mapping of agents to policies by a Python function.
pub(crate) fn mapping(object: Py<PyAny>) -> PolicyMappingFn {
    Arc::new(move |agent, episode, worker, _| {
        // A mapping function cannot return an error, so the name of a policy that does not exist contains it.
        PolicyId::new(mapped(&object, agent, episode, worker).unwrap_or_else(|error| error.to_string()))
    })
}

/// Calls Python; `hook` names the function in errors.
pub(crate) fn call<R>(hook: &str, f: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R, CallbackError> {
    let called = Python::try_attach(|py| {
        f(py).map_err(|error| {
            let text = described(py, &error);
            failure::keep_cause(text.clone(), error);
            text
        })
    });
    let ended = || Err("the Python interpreter is shutting down".into());
    called.unwrap_or_else(ended).map_err(|message: String| CallbackError::new(hook, message))
}

/// Formats an exception in one line, with its place.
fn described(py: Python<'_>, error: &PyErr) -> String {
    // With its traceback.
    let value = error.clone_ref(py).into_value(py);
    let described = py.import("rollmesh._functions").and_then(|module| module.call_method1("described", (value,)));
    described.and_then(|text| text.extract()).unwrap_or_else(|_| error.to_string())
}

fn mapped(
    object: &Py<PyAny>,
    agent: &AgentId,
    episode: &Episode,
    worker: &WorkerInfo,
) -> Result<String, CallbackError> {
    call("policy_mapping_fn", |py| {
        object.call1(py, (agent_of(agent).into_python(py)?, episode_text(episode), worker_text(worker)))?.extract(py)
    })
}

/// Rewrites observations; every row keeps its type and length.
fn observe(object: &Py<PyAny>, obs: &mut AgentRows, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
    const NAME: &str = "observation_fn";
    let (text, written) = call(NAME, |py| {
        let rows = rows_of(py, obs, hook)?;
        let arguments = (rows, episode_text(hook.episode), worker_text(hook.worker));
        let (text, written): (String, Vec<Bound<'_, PyAny>>) = object.call1(py, arguments)?.extract(py)?;
        Ok((text, written.iter().map(column::of_python).collect::<PyResult<Vec<Column>>>()?))
    })?;
    let agents: Vec<AgentId> = obs.iter().map(|(agent, _)| agent.clone()).collect();
    for (agent, column) in agents.iter().zip(&written) {
        let row = column.array().map_err(|error| CallbackError::new(NAME, error.to_string()))?;
        obs.set(agent, row);
    }
    write(NAME, hook.episode, &text)
}

/// Callbacks whose hooks a Python object has.
struct PythonCallbacks {
    object: Py<PyAny>,
    hooks: BTreeSet<String>,
}

impl PythonCallbacks {
    fn make(factory: &Py<PyAny>) -> Result<Self, CallbackError> {
        call("callbacks", |py| {
            let object = factory.call0(py)?;
            let hooks = object.getattr(py, "hooks")?.extract(py)?;
            Ok(Self { object, hooks })
        })
    }

    fn episode_hook(
        &self,
        name: &str,
        hook: &mut EpisodeHook<'_>,
        fault: Option<&EnvError>,
    ) -> Result<(), CallbackError> {
        if !self.hooks.contains(name) {
            return Ok(());
        }
        let text: String = call(name, |py| {
            let (rows, outcomes) = (rows_of(py, hook.turn.obs(), hook)?, outcomes_text(hook.turn));
            let fault = fault.map(ToString::to_string);
            let arguments = (name, episode_text(hook.episode), worker_text(hook.worker), rows, outcomes, fault);
            self.object.call_method1(py, "episode", arguments)?.extract(py)
        })?;
        write(name, hook.episode, &text)
    }

    /// Calls a hook that may return rows instead of those that it was given.
    fn rows_hook(
        &self,
        name: &str,
        batch: impl Into<AnyBatch>,
        arguments: &Value,
    ) -> Result<Option<AnyBatch>, CallbackError> {
        if !self.hooks.contains(name) {
            return Ok(None);
        }
        call(name, |py| {
            let arguments = (name, Batch { batch: batch.into() }, arguments.to_string());
            let changed: Option<Batch> = self.object.call_method1(py, "rows", arguments)?.extract(py)?;
            Ok(changed.map(|changed| changed.batch))
        })
    }
}

fn single(name: &str, batch: &AnyBatch) -> Result<SampleBatch, CallbackError> {
    batch.single().cloned().map_err(|error| CallbackError::new(name, error.to_string()))
}

impl Callbacks for PythonCallbacks {
    fn on_episode_created(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        self.episode_hook("on_episode_created", hook, None)
    }

    fn on_episode_start(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        self.episode_hook("on_episode_start", hook, None)
    }

    fn on_episode_step(&mut self, hook: &mut EpisodeHook<'_>) -> Result<(), CallbackError> {
        self.episode_hook("on_episode_step", hook, None)
    }

    fn on_episode_end(&mut self, hook: &mut EpisodeHook<'_>, fault: Option<&EnvError>) -> Result<(), CallbackError> {
        self.episode_hook("on_episode_end", hook, fault)
    }

    fn on_postprocess_trajectory(&mut self, hook: &mut TrajectoryHook<'_>) -> Result<(), CallbackError> {
        const NAME: &str = "on_postprocess_trajectory";
        let arguments = json!({
            "worker": worker_json(hook.worker),
            "episode": episode_json(hook.episode),
            "agent_id": agent_of(hook.agent),
            "policy_id": hook.policy.to_string(),
        });
        if let Some(changed) = self.rows_hook(NAME, hook.trajectory.clone(), &arguments)? {
            *hook.trajectory = single(NAME, &changed)?;
        }
        Ok(())
    }

    fn on_sample_end(&mut self, worker: &WorkerInfo, samples: &mut AnyBatch) -> Result<(), CallbackError> {
        let arguments = json!({ "worker": worker_json(worker) });
        if let Some(changed) = self.rows_hook("on_sample_end", samples.clone(), &arguments)? {
            *samples = changed;
        }
        Ok(())
    }

    fn on_learn_on_batch(
        &mut self,
        id: &PolicyId,
        batch: &mut SampleBatch,
        _info: &mut LearnInfo,
    ) -> Result<(), CallbackError> {
        const NAME: &str = "on_learn_on_batch";
        if let Some(changed) = self.rows_hook(NAME, batch.clone(), &json!({ "policy_id": id.to_string() }))? {
            *batch = single(NAME, &changed)?;
        }
        Ok(())
    }
}

/// An agent as Python has it: its index or its name.
#[derive(serde::Serialize)]
#[serde(untagged)]
enum PythonAgent<'a> {
    Index(u32),
    Name(&'a str),
}

fn agent_of(agent: &AgentId) -> PythonAgent<'_> {
    match agent {
        AgentId::Index(index) => PythonAgent::Index(*index),
        AgentId::Name(name) => PythonAgent::Name(name),
    }
}

impl PythonAgent<'_> {
    fn into_python(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        Ok(match self {
            Self::Index(index) => index.into_pyobject(py)?.into_any(),
            Self::Name(name) => name.into_pyobject(py)?.into_any(),
        })
    }
}

fn worker_json(worker: &WorkerInfo) -> Value {
    json!({
        "worker_index": worker.worker_index,
        "num_workers": worker.num_workers,
        "recreated_worker": worker.recreated_worker,
        "config": worker.config,
    })
}

fn worker_text(worker: &WorkerInfo) -> String {
    worker_json(worker).to_string()
}

fn episode_json(episode: &Episode) -> Value {
    let agents = episode.agents().iter().map(|record| json!([agent_of(&record.agent), record.policy, record.reward]));
    let user_data = episode.user_data.iter().map(|(name, value)| (name, String::from_utf8_lossy(value)));
    json!({
        "episode_id": episode.id(),
        "env_index": episode.env(),
        "length": episode.length(),
        "total_reward": episode.total_reward(),
        "agents": agents.collect::<Vec<_>>(),
        "custom_metrics": episode.custom_metrics,
        "hist_data": episode.hist_data,
        "user_data": user_data.collect::<BTreeMap<_, _>>(),
    })
}

fn episode_text(episode: &Episode) -> String {
    episode_json(episode).to_string()
}

fn outcomes_text(turn: &Turn) -> String {
    let outcomes = turn
        .outcomes()
        .map(|(agent, outcome)| json!([agent_of(agent), outcome.reward, outcome.terminated, outcome.truncated]));
    Value::from(outcomes.collect::<Vec<_>>()).to_string()
}

/// Returns agents with their rows, in the shape of their spaces.
fn rows_of<'py>(
    py: Python<'py>,
    rows: &AgentRows,
    hook: &EpisodeHook<'_>,
) -> PyResult<Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    let row = |(agent, row): (&AgentId, RowsRef<'_>)| {
        // 32 bits count the elements of a row.
        let flat = || RowShape::vector(row.len() as u32);
        let shape = hook.env.spaces(agent).map_or_else(flat, |spaces| spaces.observation.shape());
        let row = row.to_column(shape).map_err(Failure::from)?;
        Ok((agent_of(agent).into_python(py)?, column::to_python(py, &row)?))
    };
    rows.iter().map(row).collect()
}

/// The parts of an episode that hooks may change.
#[derive(Deserialize)]
struct Written {
    custom_metrics: BTreeMap<String, f64>,
    hist_data: BTreeMap<String, Vec<f64>>,
    user_data: BTreeMap<String, String>,
}

fn write(hook: &str, episode: &mut Episode, text: &str) -> Result<(), CallbackError> {
    let written: Written = serde_json::from_str(text).map_err(|error| CallbackError::new(hook, error.to_string()))?;
    episode.custom_metrics = written.custom_metrics;
    episode.hist_data = written.hist_data;
    episode.user_data = written.user_data.into_iter().map(|(name, value)| (name, value.into_bytes())).collect();
    Ok(())
}
