//! Encodes statistics as tensors, so that they can be sent with the weights.
//!
//! Tensors hold finite 32-bit floats, statistics 64-bit ones. Three floats encode a 64-bit number: its lower 24 bits, the
//! next 24 and the upper 16, each as a whole number, which a 32-bit float holds exactly.

use super::{Filter, MeanStdConfig, MeanStdFilter, RunningStat};
use crate::{
    column::RowShape,
    prelude::*,
    weights::{Tensor, Weights},
};

/// Number of floats that encode one number.
const PARTS: usize = 3;

/// Length of a filter's configuration: subtract the mean, divide, in training, whether to clip, and the parts of the clip.
const CONFIG: usize = 4 + PARTS;

/// The reason why tensors do not hold statistics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FilterTensorError {
    /// A tensor is missing or has another shape.
    #[error("the filter wants tensor '{name}' of shape {shape:?}")]
    Missing {
        /// The tensor.
        name: String,
        /// The expected shape.
        shape: Vec<u32>,
    },
    /// The numbers do not encode statistics.
    #[error("tensors '{0}.*' hold no statistics of rows")]
    Damaged(String),
}

impl RunningStat {
    /// Encodes the statistics as the tensors `{prefix}.n` of shape `[3]`, and `{prefix}.mean` and `{prefix}.m2` of a row's
    /// shape with one more dimension of 3. Keeps every bit.
    #[must_use]
    pub fn to_tensors(&self, prefix: &str) -> Vec<Tensor> {
        let tensor =
            |name: &str, shape: Vec<u32>, values: Vec<f32>| Tensor { name: name_of(prefix, name), shape, values };
        let floats = |values: &[f64]| values.iter().flat_map(|x| split(x.to_bits())).collect();
        let shape = tensor_shape(self.shape());
        vec![
            tensor("n", vec![PARTS as u32], split(self.n()).to_vec()),
            tensor("mean", shape.clone(), floats(self.mean())),
            tensor("m2", shape, floats(self.m2())),
        ]
    }

    /// Decodes the tensors of [`to_tensors`](Self::to_tensors) among all weights.
    ///
    /// # Errors
    /// [`FilterTensorError`] when they are missing, do not fit `shape`, or do not hold statistics.
    pub fn from_tensors(weights: &Weights, prefix: &str, shape: RowShape) -> Result<Self, FilterTensorError> {
        let damaged = || FilterTensorError::Damaged(prefix.into());
        let numbers = |name: &str, wanted: Vec<u32>| {
            let name = name_of(prefix, name);
            match weights.tensor(&name).filter(|tensor| tensor.shape == wanted) {
                Some(tensor) => {
                    tensor.values.as_chunks().0.iter().map(join).collect::<Option<Vec<u64>>>().ok_or_else(damaged)
                }
                None => Err(FilterTensorError::Missing { name, shape: wanted }),
            }
        };
        let floats = |name| Ok(numbers(name, tensor_shape(shape))?.into_iter().map(f64::from_bits).collect());
        let n = numbers("n", vec![PARTS as u32])?.first().copied().unwrap_or(0);
        Self::from_parts(shape, n, floats("mean")?, floats("m2")?).ok_or_else(damaged)
    }
}

impl Weights {
    /// Returns these weights with a filter, which replaces any other with this prefix: the tensor `{prefix}.config` of shape
    /// `[7]`, and the statistics' tensors `{prefix}.running.*` and `{prefix}.buffer.*`, see [`RunningStat::to_tensors`].
    /// Adds no tensors for [`Filter::NoFilter`]. Keeps every bit.
    #[must_use]
    pub fn with_filter(&self, prefix: &str, filter: &Filter) -> Self {
        let mut tensors = self.without(prefix);
        if let Filter::MeanStdFilter(filter) = filter {
            let MeanStdConfig { demean, destd, clip } = filter.config();
            let flags = [demean, destd, filter.is_training(), clip.is_some()].map(|flag| f32::from(u8::from(flag)));
            let values = [&flags[..], &split(clip.unwrap_or(0.0).to_bits())].concat();
            tensors.push(Tensor { name: name_of(prefix, "config"), shape: vec![CONFIG as u32], values });
            tensors.extend(filter.running().to_tensors(&name_of(prefix, "running")));
            tensors.extend(filter.buffer().to_tensors(&name_of(prefix, "buffer")));
        }
        Self::sorted(self.version(), tensors)
    }

    /// Returns the filter that [`with_filter`](Self::with_filter) added to these weights, and the weights without it. The
    /// filter is [`Filter::NoFilter`] if there is none with this prefix.
    ///
    /// # Errors
    /// [`FilterTensorError`] when tensors are missing or do not hold a filter.
    pub fn split_filter(&self, prefix: &str) -> Result<(Self, Filter), FilterTensorError> {
        let filter = Filter::from_weights(self, prefix)?;
        Ok((Self::sorted(self.version(), self.without(prefix)), filter))
    }

    fn without(&self, prefix: &str) -> Vec<Tensor> {
        self.tensors().iter().filter(|tensor| !is_of(prefix, &tensor.name)).cloned().collect()
    }
}

impl Filter {
    /// Returns the filter that [`Weights::with_filter`] added to the weights, see [`Weights::split_filter`].
    ///
    /// # Errors
    /// [`FilterTensorError`] when tensors are missing or do not hold a filter.
    pub fn from_weights(weights: &Weights, prefix: &str) -> Result<Self, FilterTensorError> {
        if !weights.tensors().iter().any(|tensor| is_of(prefix, &tensor.name)) {
            return Ok(Self::NoFilter);
        }
        let missing = |name: &str, shape: &[u32]| FilterTensorError::Missing {
            name: name_of(prefix, name),
            shape: shape.to_vec(),
        };
        let damaged = || FilterTensorError::Damaged(prefix.into());
        let values = |name: &str| weights.tensor(&name_of(prefix, name));
        let config = values("config").and_then(|tensor| <[f32; CONFIG]>::try_from(&*tensor.values).ok());
        let [demean, destd, training, clipped, low, middle, high] =
            config.ok_or_else(|| missing("config", &[CONFIG as u32]))?;
        let dims = values("running.mean").and_then(|tensor| tensor.shape.strip_suffix(&[PARTS as u32]));
        let shape = RowShape::new(dims.ok_or_else(|| missing("running.mean", &[PARTS as u32]))?);
        let shape = shape.map_err(|_| damaged())?;
        let flag = |value: f32| [0.0, 1.0].iter().position(|known| *known == value).map(|at| at == 1);
        let flags = (flag(demean), flag(destd), flag(training), flag(clipped));
        let (Some(demean), Some(destd), Some(training), Some(clipped)) = flags else { return Err(damaged()) };
        let clip = f64::from_bits(join(&[low, middle, high]).ok_or_else(damaged)?);
        let config = MeanStdConfig { demean, destd, clip: clipped.then_some(clip) };
        let stat = |name| RunningStat::from_tensors(weights, &name_of(prefix, name), shape);
        let mut filter = MeanStdFilter::from_parts(config, stat("running")?, stat("buffer")?).map_err(|_| damaged())?;
        if !training {
            filter.in_eval();
        }
        Ok(Self::MeanStdFilter(filter))
    }
}

fn is_of(prefix: &str, name: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'))
}

fn name_of(prefix: &str, name: &str) -> String {
    format!("{prefix}.{name}")
}

fn tensor_shape(shape: RowShape) -> Vec<u32> {
    [shape.dims(), &[PARTS as u32]].concat()
}

fn split(bits: u64) -> [f32; PARTS] {
    [bits & 0xFF_FFFF, bits >> 24 & 0xFF_FFFF, bits >> 48].map(|part| part as f32)
}

fn join(parts: &[f32; PARTS]) -> Option<u64> {
    let mut bits = 0;
    for (&part, (at, end)) in parts.iter().zip([(0, 24), (24, 48), (48, 64)]) {
        // The cast saturates, and converts NaN to 0: the comparison finds both.
        let whole = part as u64;
        if whole as f32 != part || whole >> (end - at) != 0 {
            return None;
        }
        bits |= whole << at;
    }
    Some(bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::WeightsVersion;

    #[test]
    fn every_bit_survives() {
        for bits in [0, 1, u64::MAX, f64::MIN_POSITIVE.to_bits(), 0.1_f64.to_bits(), (-1e300_f64).to_bits(), 1 << 53] {
            let parts = split(bits);
            assert_eq!(join(&parts), Some(bits));
            assert!(parts.iter().all(|part| part.is_finite()));
        }
        for parts in [[0.5, 0.0, 0.0], [-1.0, 0.0, 0.0], [16_777_216.0, 0.0, 0.0], [0.0, 0.0, 65_536.0], [f32::NAN; 3]]
        {
            assert_eq!(join(&parts), None, "{parts:?}");
        }
    }

    #[test]
    fn filter_with_missing_or_invalid_tensors_is_refused() {
        let mut filter = MeanStdFilter::new(RowShape::vector(2), MeanStdConfig::default()).unwrap();
        filter.filter_rows(&mut [0.1, 0.2], true).unwrap();
        let plain = Weights::new(WeightsVersion(1), vec![]).unwrap();
        let whole = plain.with_filter("f", &Filter::MeanStdFilter(filter));
        assert_eq!(whole.with_filter("f", &Filter::NoFilter), plain);
        assert_eq!(plain.split_filter("f"), Ok((plain.clone(), Filter::NoFilter)));
        // Removes each of its tensors, and replaces each value by an invalid one.
        for at in 0..whole.tensors().len() {
            let mut tensors = whole.tensors().to_vec();
            let removed = tensors.remove(at);
            let error = Weights::new(WeightsVersion(1), tensors.clone()).unwrap().split_filter("f").unwrap_err();
            assert!(matches!(error, FilterTensorError::Missing { .. }), "{error}");
            tensors.push(Tensor { values: vec![0.5; removed.values.len()], ..removed });
            let error = Weights::new(WeightsVersion(1), tensors).unwrap().split_filter("f").unwrap_err();
            assert!(matches!(error, FilterTensorError::Damaged(_)), "{error}");
        }
    }

    #[test]
    fn statistics_travel_among_weights() {
        let shape = RowShape::vector(2);
        let mut stat = RunningStat::new(shape).unwrap();
        [[0.1, 1e-300], [0.7, -1e99], [1.0 / 3.0, 5.0]].iter().for_each(|row| stat.push(row).unwrap());
        let mut tensors = stat.to_tensors("filter.p");
        tensors.push(Tensor { name: "policy.0.bias".into(), shape: vec![1], values: vec![0.5] });
        let weights = Weights::new(WeightsVersion(3), tensors.clone()).unwrap();
        assert_eq!(RunningStat::from_tensors(&weights, "filter.p", shape), Ok(stat));
        let error = RunningStat::from_tensors(&weights, "filter.q", shape).unwrap_err();
        assert_eq!(error.to_string(), "the filter wants tensor 'filter.q.n' of shape [3]");
        let error = RunningStat::from_tensors(&weights, "filter.p", RowShape::SCALAR).unwrap_err();
        assert_eq!(error.to_string(), "the filter wants tensor 'filter.p.mean' of shape [3]");
        tensors[0].values = vec![0.0; 3];
        let weights = Weights::new(WeightsVersion(3), tensors).unwrap();
        let error = RunningStat::from_tensors(&weights, "filter.p", shape).unwrap_err();
        assert_eq!(error.to_string(), "tensors 'filter.p.*' hold no statistics of rows");
    }
}
