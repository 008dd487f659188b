//! Statistics as tensors, so that they travel with the weights.
//!
//! Tensors hold finite 32-bit floats, statistics 64-bit ones. A number of 64 bits becomes three floats: its lower 24
//! bits, the next 24 and the upper 16, each as a whole number, which a 32-bit float holds exactly.

use super::RunningStat;
use crate::{
    column::RowShape,
    prelude::*,
    weights::{Tensor, Weights},
};

/// Floats that one number becomes.
const PARTS: usize = 3;

/// Why tensors bring no statistics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterTensorError {
    /// A tensor is not there or has another shape.
    #[error("the filter wants tensor '{name}' of shape {shape:?}")]
    Missing {
        /// The tensor.
        name: String,
        /// The shape it should have.
        shape: Vec<u32>,
    },
    /// Numbers that no statistics become.
    #[error("tensors '{0}.*' hold no statistics of rows")]
    Damaged(String),
}

impl RunningStat {
    /// As the tensors `{prefix}.n` of shape `[3]`, `{prefix}.mean` and `{prefix}.m2` of a row's shape and 3 more
    /// dimension. Keeps every bit.
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

    /// From the tensors that [`to_tensors`](Self::to_tensors) makes, among whatever else the weights hold.
    ///
    /// # Errors
    /// [`FilterTensorError`] when they are missing, do not fit `shape`, or hold no statistics.
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
        // Saturates, and NaN becomes 0: the comparison finds both.
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
