//! Batches as candle tensors, for learners.
//!
//! ```
//! use rollmesh_learner::tensors::{ToDevice as _, candle_core::Device};
//! use rollmesh_core::{batch::{REWARDS, SampleBatch}, column::ColumnData};
//!
//! let batch = SampleBatch::new().with(REWARDS, ColumnData::scalars(vec![1.0, 2.0]))?;
//! let tensors = batch.to_device(&Device::Cpu)?;
//! assert_eq!(tensors.column("rewards").map(|rewards| rewards.to_vec1::<f32>()).transpose()?, Some(vec![1.0, 2.0]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

/// The crate that devices and tensors are from. A program that uses them needs no version of its own.
pub use candle_core;
use candle_core::{Device, Tensor, WithDType};
use rollmesh_core::{
    batch::SampleBatch,
    column::{Column, ColumnData, ColumnName, Element},
};

/// The columns of a batch as tensors on one device.
#[derive(Clone, Debug)]
pub struct TensorBatch {
    columns: Vec<(ColumnName, Tensor)>,
    /// Steps of each sequence, `[sequences]`, i32; `None` for a batch that is not divided into sequences.
    pub seq_lens: Option<Tensor>,
    /// The maximum length of a sequence.
    pub max_seq_len: Option<usize>,
    /// Rows are time steps, `[time, trajectories, …]`.
    pub time_major: bool,
    /// Sequences are padded with zeros to `max_seq_len` rows each.
    pub zero_padded: bool,
    /// The batch is for learning.
    pub is_training: bool,
}

impl TensorBatch {
    /// Returns a column by name.
    #[must_use]
    pub fn column(&self, name: &str) -> Option<&Tensor> {
        self.iter().find_map(|(n, tensor)| (n == name).then_some(tensor))
    }

    /// Returns names and tensors in the order of the batch.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Tensor)> {
        self.columns.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }
}

/// An error of copying a batch to a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToDeviceError {
    /// A column has to be decompressed first.
    #[error("column '{0}' is compressed: call decompress_if_needed first")]
    Compressed(ColumnName),
    /// The device is out of memory, or does not support such tensors.
    #[error("column '{name}': {source}")]
    Device {
        /// The column.
        name: ColumnName,
        /// The device's error.
        source: candle_core::Error,
    },
}

/// Copying [`SampleBatch`]es to a device.
pub trait ToDevice {
    /// Copies all columns to a device: `[rows, …]`, each in its own type, but 64-bit floats as 32-bit ones, as RLlib does,
    /// and truth values as bytes. Ragged columns, such as `infos`, are not copied.
    ///
    /// # Errors
    /// [`ToDeviceError`], which names the column.
    fn to_device(&self, device: &Device) -> Result<TensorBatch, ToDeviceError>;
}

impl ToDevice for SampleBatch {
    fn to_device(&self, device: &Device) -> Result<TensorBatch, ToDeviceError> {
        let mut columns = Vec::new();
        for (name, column) in self.iter() {
            let name = || ColumnName::from(name.to_owned());
            let tensor = match column {
                Column::F32(data) => tensor(data, data.values(), device),
                Column::F64(data) => tensor(data, &convert(data, |x| x as f32), device),
                Column::I32(data) => tensor(data, data.values(), device),
                Column::I64(data) => tensor(data, data.values(), device),
                Column::U8(data) => tensor(data, data.values(), device),
                Column::Bool(data) => tensor(data, &convert(data, u8::from), device),
                Column::Bytes(_) => continue,
                Column::Compressed(_) => return Err(ToDeviceError::Compressed(name())),
            };
            columns.push((name(), tensor.map_err(|source| ToDeviceError::Device { name: name(), source })?));
        }
        let seq_lens = self.seq_lens().map(|lens| Tensor::from_slice(lens, lens.len(), device)).transpose();
        Ok(TensorBatch {
            columns,
            seq_lens: seq_lens.map_err(|source| ToDeviceError::Device { name: "seq_lens".into(), source })?,
            max_seq_len: self.max_seq_len(),
            time_major: self.time_major(),
            zero_padded: self.zero_padded(),
            is_training: self.is_training(),
        })
    }
}

fn convert<T: Element, U>(data: &ColumnData<T>, to: impl Fn(T) -> U) -> Vec<U> {
    data.values().iter().map(|&value| to(value)).collect()
}

/// Returns values in the shape of a column.
fn tensor<T: Element, U: WithDType>(
    data: &ColumnData<T>,
    values: &[U],
    device: &Device,
) -> Result<Tensor, candle_core::Error> {
    let shape = data.shape();
    let dims: Vec<usize> = std::iter::once(data.rows()).chain(shape.dims().iter().map(|&dim| dim as usize)).collect();
    Tensor::from_slice(values, dims, device)
}

#[cfg(test)]
mod tests {
    use candle_core::DType;
    use rollmesh_core::{
        batch::{ACTIONS, BatchParts, INFOS, OBS, TERMINATEDS},
        column::{BytesColumn, Granularity, RowShape},
    };

    use super::*;

    #[test]
    fn to_device() {
        let obs = ColumnData::new(vec![1.0f32, 2.0, 3.0, 4.0], RowShape::vector(2)).unwrap();
        let mut batch = SampleBatch::new()
            .with(OBS, obs)
            .and_then(|batch| batch.with(ACTIONS, ColumnData::scalars(vec![7, -1])))
            .and_then(|batch| batch.with(TERMINATEDS, ColumnData::scalars(vec![true, false])))
            .unwrap();
        batch.insert("wide", ColumnData::scalars(vec![0.5f64, 0.25])).unwrap();
        batch.insert(INFOS, BytesColumn::json(["{}", "{}"]).unwrap()).unwrap();
        let tensors = batch.to_device(&Device::Cpu).unwrap();
        let names: Vec<&str> = tensors.iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["obs", "actions", "terminateds", "wide"]);
        let column = |name| tensors.column(name).unwrap();
        assert_eq!(column("obs").to_vec2::<f32>().unwrap(), [[1.0, 2.0], [3.0, 4.0]]);
        assert_eq!(column("actions").to_vec1::<i64>().unwrap(), [7, -1]);
        assert_eq!(column("terminateds").to_vec1::<u8>().unwrap(), [1, 0]);
        assert_eq!(column("wide").to_vec1::<f32>().unwrap(), [0.5, 0.25]);
        assert!(tensors.seq_lens.is_none());
    }

    #[test]
    fn sequences_go_along() {
        let parts = BatchParts {
            columns: vec![("a".into(), ColumnData::scalars(vec![1i64, 2, 3]).into())],
            seq_lens: Some(ColumnData::scalars(vec![1, 2])),
            is_training: true,
            ..BatchParts::default()
        };
        let tensors = SampleBatch::from_parts(parts).unwrap().to_device(&Device::Cpu).unwrap();
        let seq_lens = tensors.seq_lens.unwrap();
        assert_eq!((seq_lens.dtype(), seq_lens.to_vec1::<i32>().unwrap()), (DType::I32, vec![1, 2]));
        assert_eq!((tensors.max_seq_len, tensors.is_training), (Some(2), true));
    }

    #[test]
    fn compressed_columns_are_refused_by_name() {
        let mut batch = SampleBatch::new().with(OBS, ColumnData::scalars(vec![1.0])).unwrap();
        batch.compress(Granularity::Bulk).unwrap();
        let error = batch.to_device(&Device::Cpu).unwrap_err();
        assert_eq!(error.to_string(), "column 'obs' is compressed: call decompress_if_needed first");
    }
}
