//! Batches: handles of those of the core, which share their columns until they are written.

use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict},
};
use rollmesh_core::{
    batch::{AnyBatch, BatchError, BatchParts, EpisodeKey, MultiAgentBatch, SampleBatch, SliceBy, codec},
    column::{Column, ColumnData, ColumnName, Granularity},
    hash::BatchHasher,
    ids::{PolicyId, SlotId},
    rng::{Purpose, Streams},
};

use crate::{
    column,
    failure::{Failure, Kind},
};

/// Rows of one policy or of several. Methods for the rows of one policy return an error for those of several.
#[pyclass(frozen, from_py_object)]
#[derive(Clone)]
pub(crate) struct Batch {
    pub(crate) batch: AnyBatch,
}

impl<B: Into<AnyBatch>> From<B> for Batch {
    fn from(batch: B) -> Self {
        Self { batch: batch.into() }
    }
}

impl Batch {
    fn single(&self) -> PyResult<&SampleBatch> {
        Ok(self.batch.single().map_err(Failure::from)?)
    }

    /// Changes a copy, without the interpreter's lock.
    fn with(
        &self,
        py: Python<'_>,
        change: impl FnOnce(&mut SampleBatch) -> Result<(), BatchError> + Send,
    ) -> PyResult<Self> {
        let mut batch = self.single()?.clone();
        py.detach(|| change(&mut batch)).map_err(Failure::from)?;
        Ok(batch.into())
    }
}

fn all(batches: impl IntoIterator<Item = impl Into<AnyBatch>>) -> Vec<Batch> {
    batches.into_iter().map(Into::into).map(|batch| Batch { batch }).collect()
}

#[pymethods]
impl Batch {
    /// Creates a batch of columns by name with equally many rows, and the lengths of sequences.
    #[staticmethod]
    #[pyo3(signature = (columns, seq_lens=None, max_seq_len=None, zero_padded=false, time_major=false, is_training=false, num_grad_updates=None))]
    fn of_columns(
        columns: Vec<(String, Bound<'_, PyAny>)>,
        seq_lens: Option<Vec<i32>>,
        max_seq_len: Option<usize>,
        zero_padded: bool,
        time_major: bool,
        is_training: bool,
        num_grad_updates: Option<f64>,
    ) -> PyResult<Self> {
        let columns = columns.into_iter().map(|(name, value)| Ok((ColumnName::from(name), column::of_python(&value)?)));
        let columns = columns.collect::<PyResult<Vec<_>>>()?;
        let seq_lens = seq_lens.map(ColumnData::scalars);
        let parts =
            BatchParts { columns, seq_lens, max_seq_len, zero_padded, time_major, is_training, num_grad_updates };
        Ok(SampleBatch::from_parts(parts).map_err(Failure::from)?.into())
    }

    /// Creates a batch of several policies from their batches.
    #[staticmethod]
    fn of_policies(batches: Vec<(String, Self)>, env_steps: usize) -> PyResult<Self> {
        let batches = batches.into_iter().map(|(id, batch)| Ok((PolicyId::new(id), batch.single()?.clone())));
        Ok(MultiAgentBatch::new(batches.collect::<PyResult<_>>()?, env_steps).into())
    }

    #[getter]
    fn is_multi(&self) -> bool {
        matches!(self.batch, AnyBatch::Multi(_))
    }

    #[getter]
    fn env_steps(&self) -> usize {
        self.batch.env_steps()
    }

    #[getter]
    fn agent_steps(&self) -> usize {
        self.batch.agent_steps()
    }

    #[getter]
    fn size_bytes(&self) -> usize {
        self.batch.size_bytes()
    }

    #[getter]
    fn policies(&self) -> Vec<(String, Self)> {
        let batches = self.batch.as_multi_agent().policy_batches.into_iter();
        batches.map(|(id, batch)| (id.to_string(), batch.into())).collect()
    }

    #[getter]
    fn names(&self) -> PyResult<Vec<String>> {
        Ok(self.single()?.iter().map(|(name, _)| name.to_owned()).collect())
    }

    /// Returns the names of compressed columns.
    #[getter]
    fn compressed(&self) -> PyResult<Vec<String>> {
        let compressed = self.single()?.iter().filter(|(_, column)| matches!(column, Column::Compressed(_)));
        Ok(compressed.map(|(name, _)| name.to_owned()).collect())
    }

    /// Returns a column of that name, if there is one.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.single()?.column(name).map(|found| column::to_python(py, found)).transpose()
    }

    /// Returns the batch with a column added, or replaced if it has one of that name.
    fn with_column(&self, py: Python<'_>, name: String, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let column = column::of_python(value)?;
        self.with(py, |batch| batch.insert(name, column))
    }

    fn without_column(&self, name: &str) -> PyResult<Self> {
        let mut batch = self.single()?.clone();
        batch.remove(name);
        Ok(batch.into())
    }

    /// Returns `terminateds` or `truncateds`.
    fn dones(&self) -> PyResult<Vec<bool>> {
        Ok(self.single()?.dones().map_err(Failure::from)?)
    }

    #[getter]
    fn seq_lens(&self) -> PyResult<Option<Vec<i32>>> {
        Ok(self.single()?.seq_lens().map(<[i32]>::to_vec))
    }

    #[getter]
    fn flags<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let batch = self.single()?;
        let flags = PyDict::new(py);
        flags.set_item("max_seq_len", batch.max_seq_len())?;
        flags.set_item("zero_padded", batch.zero_padded())?;
        flags.set_item("time_major", batch.time_major())?;
        flags.set_item("is_training", batch.is_training())?;
        flags.set_item("num_grad_updates", batch.num_grad_updates())?;
        Ok(flags)
    }

    fn set_training(&self, training: bool) -> PyResult<Self> {
        let mut batch = self.single()?.clone();
        batch.set_training(training);
        Ok(batch.into())
    }

    fn is_terminated_or_truncated(&self) -> PyResult<bool> {
        Ok(self.single()?.is_terminated_or_truncated().map_err(Failure::from)?)
    }

    fn is_single_trajectory(&self) -> PyResult<bool> {
        Ok(self.single()?.is_single_trajectory().map_err(Failure::from)?)
    }

    /// Returns the rows from `start` to `stop`, only whole sequences if there are sequences.
    fn index_slice(&self, start: usize, stop: usize) -> PyResult<Self> {
        Ok(self.single()?.index_slice(start..stop).into())
    }

    #[pyo3(signature = (start, end, states=None))]
    fn slice(&self, start: i64, end: usize, states: Option<(usize, usize)>) -> PyResult<Self> {
        let batch = self.single()?;
        let slice = match states {
            None => batch.slice(start, end),
            Some((first, last)) => batch.slice_with_states(start, end, first..last),
        };
        Ok(slice.map_err(Failure::from)?.into())
    }

    fn split_by_episode(&self, key: Option<&str>) -> PyResult<Vec<Self>> {
        let key = key.map(str::parse::<EpisodeKey>).transpose().map_err(Failure::from)?;
        Ok(all(self.single()?.split_by_episode(key).map_err(Failure::from)?))
    }

    /// Returns slices of `size` steps, of one policy or of several; or `num_slices` slices, of one policy.
    fn timeslices(&self, size: Option<usize>, num_slices: Option<usize>) -> PyResult<Vec<Self>> {
        let by = match (size, num_slices) {
            (Some(size), None) => SliceBy::Size(size),
            (None, Some(slices)) => SliceBy::NumSlices(slices),
            _ => return Err(Failure::new(Kind::Batch, "give either size or num_slices").into()),
        };
        if let (AnyBatch::Multi(batch), SliceBy::Size(size)) = (&self.batch, by) {
            return Ok(all(batch.timeslices(size).map_err(Failure::from)?));
        }
        Ok(all(self.single()?.timeslices(by).map_err(Failure::from)?))
    }

    /// Returns the same rows, or sequences, in an order that the seed determines.
    fn shuffled(&self, py: Python<'_>, seed: u64) -> PyResult<Self> {
        self.with(py, |batch| batch.shuffle(&mut Streams::new(seed, Purpose::Shuffle).at(SlotId(0), 0, 0, 0)))
    }

    fn right_zero_pad(&self, py: Python<'_>, max_seq_len: usize) -> PyResult<Self> {
        let batch = self.single()?;
        Ok(py.detach(|| batch.right_zero_pad(max_seq_len)).map_err(Failure::from)?.into())
    }

    #[pyo3(signature = (names, bulk=false))]
    fn compress(&self, py: Python<'_>, names: Option<Vec<String>>, bulk: bool) -> PyResult<Self> {
        let granularity = if bulk { Granularity::Bulk } else { Granularity::Rows };
        self.with(py, |batch| match &names {
            None => batch.compress(granularity),
            Some(names) => batch.compress_columns(granularity, &names.iter().map(String::as_str).collect::<Vec<_>>()),
        })
    }

    fn decompress_if_needed(&self, py: Python<'_>) -> PyResult<Self> {
        self.with(py, SampleBatch::decompress_if_needed)
    }

    /// Encodes the batch in the core's format.
    fn encode<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| codec::encode_any(&self.batch)))
    }

    #[staticmethod]
    fn decode(py: Python<'_>, bytes: &[u8]) -> PyResult<Self> {
        Ok(py.detach(|| codec::decode_any(bytes)).map_err(Failure::from)?.into())
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.batch == other.batch
    }

    fn __repr__(&self) -> String {
        match &self.batch {
            AnyBatch::Single(batch) => batch.to_string(),
            AnyBatch::Multi(batch) => batch.to_string(),
        }
    }
}

/// Joins batches, by policy if one of them has several.
#[pyfunction]
pub(crate) fn concat(py: Python<'_>, batches: Vec<Batch>) -> PyResult<Batch> {
    let joined = py.detach(|| AnyBatch::concat(batches.iter().map(|handle| &handle.batch)));
    Ok(joined.map_err(Failure::from)?.into())
}

/// Returns the hash of batches, one after the other, as 32 hexadecimal digits.
#[pyfunction]
pub(crate) fn batch_hash(py: Python<'_>, batches: Vec<Batch>) -> PyResult<String> {
    let mut hasher = BatchHasher::new();
    py.detach(|| batches.iter().try_for_each(|handle| hasher.add(&handle.batch))).map_err(Failure::from)?;
    Ok(hasher.finish().to_string())
}
