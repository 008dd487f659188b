//! Named tensors of a policy, with a version and a content hash.
//!
//! ```
//! use rollmesh_core::{ids::WeightsVersion, weights::{Tensor, Weights}};
//!
//! let bias = Tensor { name: "policy.0.bias".into(), shape: vec![2], values: vec![0.5, -0.5] };
//! let weights = Weights::new(WeightsVersion(3), vec![bias])?;
//! assert_eq!(weights.tensor("policy.0.bias").map(|tensor| tensor.values.len()), Some(2));
//!
//! let inconsistent = Tensor { name: "w".into(), shape: vec![3], values: vec![1.0] };
//! assert!(Weights::new(WeightsVersion(0), vec![inconsistent]).is_err());
//! # Ok::<(), rollmesh_core::weights::WeightsError>(())
//! ```

mod file;
mod half;

pub use file::WeightsFileError;
pub(crate) use half::{from_half, is_half, to_half};

use core::iter;

use serde::{Deserialize, Serialize};

use crate::{
    ids::{PolicyId, WeightsVersion},
    prelude::*,
};

/// Name prefix of a policy's observation statistics among its weights. Every sampler that uses the weights normalises with
/// them.
pub const FILTER_PREFIX: &str = "filter";

/// One named tensor of 32-bit floats, row-major.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    /// Name within the policy, for example `policy.0.weight`.
    pub name: String,
    /// Dimensions, outermost first.
    pub shape: Vec<u32>,
    /// The values; as many as the product of the dimensions.
    pub values: Vec<f32>,
}

/// All tensors of a policy. Cheap to clone.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    version: WeightsVersion,
    tensors: Arc<[Tensor]>,
}

/// The reason why tensors are not valid weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The values do not fill the shape.
    #[error("tensor '{name}' has {values} values for shape {shape:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<u32>,
        /// Its number of values.
        values: usize,
    },
    /// A value is infinite or NaN.
    #[error("tensor '{0}' holds a value that is not finite")]
    NotFinite(String),
    /// Two tensors have the same name.
    #[error("tensor '{0}' is there twice")]
    Duplicate(String),
    /// A tensor belongs to none of the run's policies.
    #[error("tensor '{0}' belongs to no policy of the run")]
    NoPolicy(String),
    /// The tensor has another shape than the policy's.
    #[error("tensor '{name}' has shape {found:?}; the policy's has shape {wanted:?}")]
    OtherShape {
        /// The tensor.
        name: String,
        /// The policy's shape.
        wanted: Vec<u32>,
        /// The tensor's shape.
        found: Vec<u32>,
    },
    /// A tensor of the policy is missing.
    #[error("tensor '{name}' is missing; the policy's has shape {wanted:?}")]
    NotThere {
        /// The tensor.
        name: String,
        /// Its shape.
        wanted: Vec<u32>,
    },
    /// The policy does not have the tensor.
    #[error("tensor '{name}' of shape {found:?} is none of the policy's, which are {known}")]
    Unknown {
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<u32>,
        /// The policy's tensors.
        known: String,
    },
    /// The weights lack tensors that the policy needs.
    #[error("the policy wants tensor '{wanted}'")]
    Missing {
        /// Name and shape of the missing tensors.
        wanted: String,
    },
}

impl Weights {
    /// Checks the tensors and sorts them by name.
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

    /// Creates weights as [`new`](Self::new) does, from values that are known to be finite.
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

    /// Creates weights from tensors that this crate created and knows to be valid.
    pub(crate) fn sorted(version: WeightsVersion, mut tensors: Vec<Tensor>) -> Self {
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        Self { version, tensors: tensors.into() }
    }

    /// Returns the version: the number of learner updates before it.
    #[must_use]
    pub fn version(&self) -> WeightsVersion {
        self.version
    }

    /// Returns the same tensors with another version. Copies nothing.
    #[must_use]
    pub fn with_version(&self, version: WeightsVersion) -> Self {
        Self { version, tensors: self.tensors.clone() }
    }

    /// Combines the weights of a run's policies under one version. With the default policy alone, tensors keep their names;
    /// otherwise a policy's tensors are called `{policy}/{tensor}`.
    ///
    /// # Errors
    /// [`WeightsError::Duplicate`] for policies whose names give equal tensor names.
    pub fn of_run<'a>(
        version: WeightsVersion,
        policies: impl IntoIterator<Item = (&'a PolicyId, &'a Self)>,
    ) -> Result<Self, WeightsError> {
        let policies: Vec<(&PolicyId, &Self)> = policies.into_iter().collect();
        if let [(id, weights)] = policies[..]
            && *id == PolicyId::DEFAULT
        {
            return Ok(weights.with_version(version));
        }
        let named = |id: &PolicyId, tensor: &Tensor| Tensor { name: format!("{id}/{}", tensor.name), ..tensor.clone() };
        let tensors = policies.iter().flat_map(|(id, weights)| weights.tensors.iter().map(|tensor| named(id, tensor)));
        Self::of_finite(version, tensors.collect())
    }

    /// Splits weights of [`of_run`](Self::of_run) into those of each of a run's policies.
    ///
    /// # Errors
    /// [`WeightsError::NoPolicy`] for a tensor of another policy.
    pub fn of_policies(&self, ids: &[PolicyId]) -> Result<BTreeMap<PolicyId, Self>, WeightsError> {
        if ids == [PolicyId::DEFAULT] {
            return Ok(iter::once((PolicyId::DEFAULT, self.clone())).collect_ordered());
        }
        let mut tensors: BTreeMap<&PolicyId, Vec<Tensor>> = ids.iter().map(|id| (id, Vec::new())).collect_ordered();
        for tensor in self.tensors() {
            let name_under = |id: &PolicyId| tensor.name.strip_prefix(id.as_str())?.strip_prefix('/');
            // The longest matching name: a policy's name may begin with another's.
            let owner = ids.iter().filter(|id| name_under(id).is_some()).max_by_key(|id| id.as_str().len());
            let owned = owner.and_then(|id| Some((tensors.get_mut(id)?, name_under(id)?)));
            let (of_policy, name) = owned.ok_or_else(|| WeightsError::NoPolicy(tensor.name.clone()))?;
            of_policy.push(Tensor { name: name.into(), ..tensor.clone() });
        }
        tensors
            .into_iter()
            .map(|(id, tensors)| Ok((id.clone(), Self::of_finite(self.version, tensors)?)))
            .try_collect_ordered()
    }

    /// Checks that these weights have the names and shapes of the tensors of `wanted`.
    ///
    /// # Errors
    /// [`WeightsError::Unknown`], [`WeightsError::NotThere`] or [`WeightsError::OtherShape`] for the first tensor that
    /// differs.
    pub fn check_like(&self, wanted: &Self) -> Result<(), WeightsError> {
        for Tensor { name, shape, .. } in wanted.tensors() {
            match self.tensor(name) {
                None => return Err(WeightsError::NotThere { name: name.clone(), wanted: shape.clone() }),
                Some(found) if found.shape != *shape => {
                    let (name, wanted, found) = (name.clone(), shape.clone(), found.shape.clone());
                    return Err(WeightsError::OtherShape { name, wanted, found });
                }
                Some(_) => {}
            }
        }
        match self.tensors.iter().find(|tensor| wanted.tensor(&tensor.name).is_none()) {
            Some(Tensor { name, shape, .. }) => {
                let known: Vec<&str> = wanted.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
                Err(WeightsError::Unknown { name: name.clone(), found: shape.clone(), known: known.join(", ") })
            }
            None => Ok(()),
        }
    }

    /// Returns the bytes of all values together.
    pub(crate) fn value_bytes(&self) -> usize {
        self.tensors.iter().map(|tensor| size_of_val(&tensor.values[..])).sum()
    }

    /// Returns the tensors, sorted by name.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Returns a tensor by name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.tensors.binary_search_by(|tensor| tensor.name.as_str().cmp(name)).ok().map(|i| &self.tensors[i])
    }
}

/// Checks blocks of values: stopping at the first non-finite number would cost more than checking the next thousand.
fn are_finite(values: &[f32]) -> bool {
    values.chunks(1024).all(|piece| piece.iter().fold(true, |finite, value| finite & value.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_policies_come_apart_as_they_were_put_together() {
        let weights = |name: &str, value: f32| {
            let tensor = Tensor { name: name.into(), shape: vec![1], values: vec![value] };
            Weights::new(WeightsVersion(2), vec![tensor]).unwrap()
        };
        let ids = ["car", "car/fast", "light"].map(PolicyId::new);
        let policies: BTreeMap<PolicyId, Weights> =
            ids.iter().zip(1..).map(|(id, n)| (id.clone(), weights("w.bias", n as f32))).collect();
        let joined = Weights::of_run(WeightsVersion(2), &policies).unwrap();
        assert_eq!(joined.tensor("car/fast/w.bias").map(|tensor| &tensor.values[..]), Some(&[2.0][..]));
        assert_eq!(joined.of_policies(&ids), Ok(policies));
        assert_eq!(joined.of_policies(&ids[..1]), Err(WeightsError::NoPolicy("light/w.bias".into())));
        let single = BTreeMap::from([(PolicyId::DEFAULT, weights("w.bias", 1.0))]);
        assert_eq!(Weights::of_run(WeightsVersion(2), &single), Ok(weights("w.bias", 1.0)));
        assert_eq!(weights("w.bias", 1.0).of_policies(&[PolicyId::DEFAULT]), Ok(single));
    }

    #[test]
    fn other_names_and_shapes_are_named() {
        let weights = |tensors: &[(&str, u32)]| {
            let tensor = |&(name, dim): &(&str, u32)| Tensor {
                name: name.into(),
                shape: vec![dim],
                values: vec![0.0; dim as usize],
            };
            Weights::new(WeightsVersion(0), tensors.iter().map(tensor).collect()).unwrap()
        };
        let wanted = weights(&[("a", 2), ("b", 3)]);
        let error = |tensors: &[(&str, u32)]| weights(tensors).check_like(&wanted).unwrap_err().to_string();
        assert_eq!(wanted.check_like(&wanted), Ok(()));
        assert_eq!(error(&[("a", 2)]), "tensor 'b' is missing; the policy's has shape [3]");
        assert_eq!(error(&[("a", 2), ("b", 4)]), "tensor 'b' has shape [4]; the policy's has shape [3]");
        let unknown = "tensor 'c' of shape [1] is none of the policy's, which are a, b";
        assert_eq!(error(&[("a", 2), ("b", 3), ("c", 1)]), unknown);
    }
}
