//! Named tensors of a policy, with a version and a content hash.
//!
//! ```
//! use rollmesh_core::{ids::WeightsVersion, weights::{Tensor, Weights}};
//!
//! let bias = Tensor { name: "policy.0.bias".into(), shape: vec![2], values: vec![0.5, -0.5] };
//! let weights = Weights::new(WeightsVersion(3), vec![bias])?;
//! assert_eq!(weights.tensor("policy.0.bias").map(|tensor| tensor.values.len()), Some(2));
//!
//! let lying = Tensor { name: "w".into(), shape: vec![3], values: vec![1.0] };
//! assert!(Weights::new(WeightsVersion(0), vec![lying]).is_err());
//! # Ok::<(), rollmesh_core::weights::WeightsError>(())
//! ```

use crate::{ids::WeightsVersion, prelude::*};

/// One named tensor of 32-bit floats, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Name within the policy, for example `policy.0.weight`.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<u32>,
    /// The values; as many as the product of the dimensions.
    pub values: Vec<f32>,
}

/// Everything a policy needs to act. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    version: WeightsVersion,
    tensors: Arc<[Tensor]>,
}

/// Why tensors do not make weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsError {
    /// The values do not fill the shape.
    #[error("tensor '{name}' has {values} values for shape {shape:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<u32>,
        /// How many values it has.
        values: usize,
    },
    /// A value is infinite or not a number.
    #[error("tensor '{0}' holds a value that is not finite")]
    NotFinite(String),
    /// Two tensors have one name.
    #[error("tensor '{0}' is there twice")]
    Duplicate(String),
    /// The policy has no use for these tensors.
    #[error("the policy wants tensor '{wanted}'")]
    Missing {
        /// Name and shape of what is missing.
        wanted: String,
    },
}

impl Weights {
    /// Checks and sorts the tensors by name.
    ///
    /// # Errors
    /// [`WeightsError`] when a shape is not filled, a value is not finite or a name occurs twice.
    pub fn new(version: WeightsVersion, tensors: Vec<Tensor>) -> Result<Self, WeightsError> {
        let weights = Self::of_finite(version, tensors)?;
        match weights.tensors.iter().find(|tensor| !are_finite(&tensor.values)) {
            Some(tensor) => Err(WeightsError::NotFinite(tensor.name.clone())),
            None => Ok(weights),
        }
    }

    /// [`new`](Self::new) of values that are known to be finite.
    pub(crate) fn of_finite(version: WeightsVersion, mut tensors: Vec<Tensor>) -> Result<Self, WeightsError> {
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        for tensor in &tensors {
            let wanted = tensor.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d as usize));
            if wanted != Some(tensor.values.len()) {
                return Err(WeightsError::Shape {
                    name: tensor.name.clone(),
                    shape: tensor.shape.clone(),
                    values: tensor.values.len(),
                });
            }
        }
        if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(WeightsError::Duplicate(pair[0].name.clone()));
        }
        Ok(Self { version, tensors: tensors.into() })
    }

    /// Tensors that this crate made itself and knows to be sound.
    pub(crate) fn sorted(version: WeightsVersion, mut tensors: Vec<Tensor>) -> Self {
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        Self { version, tensors: tensors.into() }
    }

    /// The version: the number of learner updates behind it.
    #[must_use]
    pub fn version(&self) -> WeightsVersion {
        self.version
    }

    /// The same tensors under another version. Copies nothing.
    #[must_use]
    pub fn with_version(&self, version: WeightsVersion) -> Self {
        Self { version, tensors: self.tensors.clone() }
    }

    /// Bytes of all values together.
    pub(crate) fn value_bytes(&self) -> usize {
        self.tensors.iter().map(|tensor| size_of_val(&tensor.values[..])).sum()
    }

    /// The tensors, sorted by name.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// A tensor by name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok().map(|i| &self.tensors[i])
    }
}

/// Looked at in pieces: to stop at the first number that is not finite costs more than to look at the next thousand.
fn are_finite(values: &[f32]) -> bool {
    values.chunks(1024).all(|piece| piece.iter().fold(true, |finite, value| finite & value.is_finite()))
}
