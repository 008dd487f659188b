//! A worker group on its thread.

use std::{path::PathBuf, time::Duration};

use pyo3::{exceptions::PyTypeError, prelude::*, types::PyDict};
use rollmesh::worker_group::{
    Evaluation, FailureSettings, ForEachWorker, GroupError, GroupStopper, LOCAL_WORKER, ParallelSample, Placement,
    SyncFilters, SyncWeights, WorkerGroup, WorkerTask,
};
use rollmesh_core::{
    calls::CallError,
    episode::GlobalVars,
    group::SamplingMode,
    ids::{PolicyId, WorkerId},
    worker::{PolicyConfig, PolicyRoles},
};
use serde_json::json;

use crate::{
    batch::Batch,
    column,
    failure::{Failure, Kind},
    functions::{self, Function},
    owned::Owned,
    policy::{self, Tensors},
    worker::{Worker, handles, rollout_config, summary_json},
};

/// A local worker and others, commanded together.
#[pyclass(frozen)]
pub(crate) struct Group(Owned<WorkerGroup>, GroupStopper);

/// Converts the error of a call to one worker.
fn call_failure(error: GroupError) -> Failure {
    match error {
        // Like the error of a worker without a group.
        GroupError::Worker { worker: LOCAL_WORKER, error } => error.into(),
        GroupError::NoLocalWorker(_) => {
            Failure::new(Kind::Group, "the group has no local worker: make it with local_worker=True")
        }
        GroupError::NotInProcess(id) => Failure::new(
            Kind::Group,
            format!("worker {id} is in another process: ask the local worker, or place workers on threads"),
        ),
        GroupError::Unhealthy(_) | GroupError::Call { error: CallError::Lost(_) | CallError::NotThere, .. } => {
            Failure::new(Kind::LostWorker, error)
        }
        error => error.into(),
    }
}

/// Reads a setting of `settings` into a variable, if it is there.
fn read<'py, T: for<'a> FromPyObject<'a, 'py, Error = PyErr>>(
    settings: &Bound<'py, PyDict>,
    name: &str,
    into: &mut T,
) -> PyResult<()> {
    if let Some(value) = settings.get_item(name)? {
        let named = |error: PyErr| PyTypeError::new_err(format!("{name}: {}", error.value(settings.py())));
        *into = value.extract().map_err(named)?;
    }
    Ok(())
}

/// Converts seconds of Python; infinity becomes the longest timeout, 136 years.
pub(crate) fn seconds(value: f64) -> Result<Duration, Failure> {
    if value == f64::INFINITY {
        return Ok(Duration::from_secs(u32::MAX.into()));
    }
    Duration::try_from_secs_f64(value).map_err(|error| Failure::new(Kind::Config, format!("{value} seconds: {error}")))
}

fn failures(settings: &Bound<'_, PyDict>) -> PyResult<FailureSettings> {
    let mut failures = FailureSettings::default();
    read(settings, "ignore_env_runner_failures", &mut failures.ignore_worker_failures)?;
    read(settings, "restart_failed_env_runners", &mut failures.recreate_failed_workers)?;
    read(settings, "max_num_env_runner_restarts", &mut failures.max_worker_restarts)?;
    let spans: [(&str, &mut Duration); 3] = [
        ("delay_between_env_runner_restarts_s", &mut failures.restart_delay),
        ("env_runner_health_probe_timeout_s", &mut failures.health_probe_timeout),
        ("env_runner_restore_timeout_s", &mut failures.restore_timeout),
    ];
    for (name, span) in spans {
        let mut value = span.as_secs_f64();
        read(settings, name, &mut value)?;
        *span = seconds(value)?;
    }
    Ok(failures)
}

/// Returns the mode of sampling by its name, with its settings.
fn sampling_mode(settings: &Bound<'_, PyDict>) -> PyResult<SamplingMode> {
    let (mut name, mut batch_env_steps, mut after_s, mut max_staleness) = ("synchronous".to_owned(), 0, 0.0, u64::MAX);
    read(settings, "sampling_mode", &mut name)?;
    read(settings, "batch_env_steps", &mut batch_env_steps)?;
    read(settings, "deadline_s", &mut after_s)?;
    read(settings, "max_staleness", &mut max_staleness)?;
    Ok(match &*name {
        "synchronous" => SamplingMode::Synchronous,
        "asynchronous" => SamplingMode::Asynchronous { batch_env_steps, max_staleness },
        "deadline" => SamplingMode::Deadline { after: seconds(after_s)?.into(), max_staleness },
        _ => {
            let why = format!("sampling_mode is '{name}'; it is 'synchronous', 'asynchronous' or 'deadline'");
            return Err(Failure::new(Kind::Config, why).into());
        }
    })
}

impl Group {
    /// Sends a command to one of the workers; the local one's id is 0.
    pub(crate) fn ask<T: WorkerTask<Answer: Send> + Send + 'static>(
        &self,
        py: Python<'_>,
        id: WorkerId,
        task: T,
    ) -> PyResult<T::Answer> {
        self.0.call(py, move |group| group.call_worker(id, task).map_err(call_failure))
    }
}

#[pymethods]
impl Group {
    #[new]
    fn new(
        py: Python<'_>,
        config: &Bound<'_, PyDict>,
        num_workers: u32,
        local_worker: bool,
        settings: &Bound<'_, PyDict>,
        functions: Vec<Function>,
    ) -> PyResult<Self> {
        let mut placement = "threads".to_owned();
        read(settings, "placement", &mut placement)?;
        let placement = match &*placement {
            "threads" => Placement::Threads,
            "processes" => Placement::Processes(None),
            "remote" => Placement::Remote,
            _ => {
                let why = format!("placement is '{placement}'; it is 'threads', 'processes' or 'remote'");
                return Err(Failure::new(Kind::Config, why).into());
            }
        };
        let mut builder = WorkerGroup::builder(rollout_config(config)?)
            .registry(functions::registry(functions)?)
            .num_workers(num_workers)
            .local_worker(local_worker)
            .placement(placement)
            .failures(failures(settings)?)
            .sampling_mode(sampling_mode(settings)?);
        let mut in_evaluation = false;
        read(settings, "in_evaluation", &mut in_evaluation)?;
        if in_evaluation {
            builder = builder.evaluation(Evaluation { num_workers, ..Evaluation::default() });
        }
        if let Some(listen) = settings.get_item("listen")? {
            let text: String = listen.extract()?;
            let refused = |error| Failure::new(Kind::Config, format!("listen is '{text}', not ADDRESS:PORT: {error}"));
            builder = builder.listen(text.parse().map_err(refused)?);
        }
        let mut dashboard = false;
        read(settings, "dashboard", &mut dashboard)?;
        builder = builder.dashboard(dashboard);
        if let Some(page) = settings.get_item("page")? {
            builder = match page.extract::<Option<PathBuf>>()? {
                Some(page) => builder.page(page),
                None => builder,
            };
        }
        let group = Owned::new(py, "WorkerGroup", move || builder.build())?;
        let stopper = group.call(py, |group| Ok::<_, GroupError>(group.stopper()))?;
        Ok(Self(group, stopper))
    }

    /// Returns the next batches, according to the mode of sampling.
    fn sample(&self, py: Python<'_>) -> PyResult<Vec<Batch>> {
        self.0.call(py, WorkerGroup::sample).map(handles)
    }

    fn synchronous_parallel_sample(
        &self,
        py: Python<'_>,
        max_agent_steps: Option<usize>,
        max_env_steps: Option<usize>,
        timeout_s: Option<f64>,
    ) -> PyResult<Vec<Batch>> {
        let timeout = timeout_s.map(seconds).transpose()?;
        let sample = ParallelSample { max_agent_steps, max_env_steps, timeout };
        self.0.call(py, move |group| group.synchronous_parallel_sample(sample)).map(handles)
    }

    /// Sends weights to all healthy workers: the given ones, or those of the local worker.
    fn sync_weights(
        &self,
        py: Python<'_>,
        weights: Option<Vec<(String, Tensors)>>,
        policies: Option<Vec<String>>,
        to_worker_indices: Option<Vec<u32>>,
        timestep: Option<u64>,
        timeout_s: f64,
    ) -> PyResult<()> {
        let weights = weights.map(|weights| policy::to_weights(py, weights)).transpose()?;
        let (policies, timeout) = (policy::ids(policies), seconds(timeout_s)?);
        let to: Option<Vec<WorkerId>> = to_worker_indices.map(|ids| ids.into_iter().map(WorkerId).collect());
        let vars = timestep.map(|timestep| GlobalVars { timestep, ..GlobalVars::default() });
        self.0.call(py, move |group| {
            let sync = weights.as_ref().map_or_else(SyncWeights::default, SyncWeights::from_weights);
            group.sync_weights(SyncWeights {
                policies: policies.as_deref(),
                to_worker_indices: to.as_deref(),
                global_vars: vars.as_ref(),
                timeout,
                ..sync
            })
        })
    }

    /// Adds a policy of a registered kind to all workers.
    fn add_policy(&self, py: Python<'_>, id: String, kind: &str, config: &Bound<'_, PyDict>) -> PyResult<()> {
        let config = column::to_json(config)?.parse().map_err(Failure::from)?;
        let (id, policy) = (PolicyId::new(id), PolicyConfig::new(kind).with_config(config));
        let all = ForEachWorker::default();
        self.0.call(py, move |group| group.add_policy(&all, id, policy, None, PolicyRoles::default()))
    }

    fn remove_policy(&self, py: Python<'_>, id: String) -> PyResult<()> {
        let (id, all) = (PolicyId::new(id), ForEachWorker::default());
        self.0.call(py, move |group| group.remove_policy(&all, id, PolicyRoles::default()))
    }

    fn sync_filters(
        &self,
        py: Python<'_>,
        use_worker_filter_stats: bool,
        update_worker_filter_stats: bool,
        env_steps_sampled: Option<u64>,
        timeout_s: f64,
    ) -> PyResult<()> {
        let timeout = seconds(timeout_s)?;
        let sync = SyncFilters { use_worker_filter_stats, update_worker_filter_stats, env_steps_sampled, timeout };
        self.0.call(py, move |group| group.sync_filters(&sync))
    }

    /// Returns the spaces of the policies.
    fn spaces<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        column::json(py, &policy::all_spaces_json(&self.0.call(py, WorkerGroup::spaces)?))
    }

    /// Returns one of the workers; the local one's id is 0.
    fn worker(slf: Bound<'_, Self>, id: u32) -> Worker {
        Worker::member(slf.unbind(), WorkerId(id))
    }

    /// Replaces the other workers by this many new ones.
    fn reset(&self, py: Python<'_>, number: u32) -> PyResult<()> {
        self.0.call(py, move |group| group.reset(number))
    }

    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        column::json(py, &summary_json(&self.0.call(py, WorkerGroup::metrics)?))
    }

    fn probe_unhealthy_workers(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        let ids = self.0.call(py, WorkerGroup::probe_unhealthy_workers)?;
        Ok(ids.into_iter().map(|id| id.0).collect())
    }

    fn wait_for_workers(&self, py: Python<'_>, number: usize, timeout_s: f64) -> PyResult<bool> {
        let timeout = seconds(timeout_s)?;
        self.0.call(py, move |group| group.wait_for_workers(number, timeout))
    }

    fn add_workers(&self, py: Python<'_>, number: u32) -> PyResult<()> {
        self.0.call(py, move |group| group.add_workers(number, true))
    }

    /// Returns the group's workers and its address for other workers: `worker_address` and `invite` are secrets.
    fn facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let facts = self.0.call(py, |group| {
            // Some of them may have been lost since the last call.
            group.take_notifications();
            Ok::<_, GroupError>(json!({
                "healthy_worker_ids": group.healthy_worker_ids(),
                "num_remote_workers": group.num_remote_workers(),
                "worker_pids": group.worker_pids(),
                "worker_address": group.worker_url().zip(group.worker_token().map(|token| token.to_hex())),
                "dashboard_url": group.dashboard_url(),
                "invite": group.invite(),
            }))
        })?;
        column::json(py, &facts)
    }

    fn next_notice(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.0.call(py, |group| Ok::<_, GroupError>(group.next_notice()))
    }

    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        let stop = |mut group: WorkerGroup| {
            group.stop();
            Ok::<_, GroupError>(())
        };
        self.0.end_or_leave(py, || self.1.stop(), stop)
    }
}
