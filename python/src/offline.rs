//! Logged experience: readers and writers of files, and off-policy estimators.

use pyo3::{prelude::*, types::PyDict};
use rollmesh::offline::{self, logged::Logged};
use rollmesh_core::{
    callbacks::WorkerInfo,
    config::Config,
    estimate::Estimator,
    sampler::{IoContext, OutputWriter},
};
use rollmesh_data::dataset::BatchStream as _;
use serde_json::json;

use crate::{
    batch::Batch,
    column,
    failure::{Failure, Kind},
    owned::Owned,
};

/// Reads all batches of files once and in order, in any format.
#[pyclass(frozen)]
pub(crate) struct Reader(Owned<Logged>);

#[pymethods]
impl Reader {
    #[new]
    fn new(py: Python<'_>, inputs: Vec<String>, buffer_size: Option<usize>) -> PyResult<Self> {
        Ok(Self(Owned::new(py, "reader", move || offline::open_logged(&inputs, buffer_size))?))
    }

    /// Returns the next batch; `None` at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let found =
            self.0.call(py, |logged| logged.next_batch().map_err(|error| Failure::new(Kind::Offline, error)))?;
        Ok(found.map(Batch::from))
    }

    /// Returns the number of damaged lines that were skipped.
    #[getter]
    fn corrupt_lines(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.call(py, |logged| Ok::<_, Failure>(logged.corrupt_lines()))
    }
}

/// Writes batches to files of a directory.
#[pyclass(frozen)]
pub(crate) struct Writer(Owned<Box<dyn OutputWriter>>);

#[pymethods]
impl Writer {
    #[new]
    fn new(py: Python<'_>, path: String, settings: &Bound<'_, PyDict>) -> PyResult<Self> {
        let config: Config = column::to_json(settings)?.parse().map_err(Failure::from)?;
        Ok(Self(Owned::new(py, "writer", move || {
            offline::open_output(&path, &mut IoContext::new(WorkerInfo::default(), config, None))
        })?))
    }

    fn write(&self, py: Python<'_>, batch: Batch) -> PyResult<()> {
        self.0.call(py, move |writer| writer.write(&batch.batch))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.0.end(py, |mut writer| writer.close()).map(|_| ())
    }
}

/// Estimates a policy's value from the episodes of a batch, or from its rows.
#[pyfunction]
pub(crate) fn estimate<'py>(
    py: Python<'py>,
    name: &str,
    batch: &Batch,
    gamma: f64,
    split_batch_by_episode: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let estimator = Estimator::ALL.into_iter().find(|estimator| estimator.name() == name);
    let estimator = estimator.ok_or_else(|| Failure::new(Kind::Offline, format!("there is no estimator '{name}'")))?;
    let rows = batch.batch.single().map_err(Failure::from)?;
    let found = py.detach(|| estimator.estimate(rows, gamma, split_batch_by_episode)).map_err(Failure::from)?;
    let found = json!({
        "v_behavior": found.v_behavior, "v_behavior_std": found.v_behavior_std, "v_target": found.v_target,
        "v_target_std": found.v_target_std, "v_gain": found.v_gain, "v_delta": found.v_delta,
    });
    column::json(py, &found)
}
