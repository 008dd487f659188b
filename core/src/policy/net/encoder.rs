//! Observations as rows of floats.

use crate::{
    env::RowsRef,
    policy::PolicyError,
    prelude::*,
    preprocess::{PreprocessError, Preprocessor},
    space::{Scalar, Space},
};

/// Turns observations of one space into what a model takes: rows of 32-bit floats.
///
/// Points of `Discrete` and `MultiDiscrete` spaces become one-hot vectors, in tuples and dicts too; numbers of boxes and
/// multi-binaries stay what they are, of whatever type they come.
///
/// ```
/// use rollmesh_core::{env::RowsRef, policy::ObsEncoder, space::Space};
///
/// let encoder = ObsEncoder::for_space(&Space::discrete(3)?)?;
/// let mut scratch = Vec::new();
/// assert_eq!(encoder.encode(RowsRef::I64(&[2, 0]), 2, &mut scratch)?, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ObsEncoder {
    space: Space,
    len: usize,
    /// For spaces with parts that are no vectors.
    one_hot: Option<Preprocessor>,
}

#[allow(clippy::len_without_is_empty)]
impl ObsEncoder {
    /// The encoder for a space.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for invalid spaces.
    pub fn for_space(space: &Space) -> Result<Self, PolicyError> {
        let unsupported =
            |found: String| PolicyError::Unsupported { wanted: "observations of a valid space".into(), found };
        space.validate().map_err(|error| unsupported(error.to_string()))?;
        let (len, one_hot) = match space {
            Space::Box(_) | Space::MultiBinary { .. } => (space.shape().elements(), None),
            Space::Discrete { .. } | Space::MultiDiscrete { .. } | Space::Tuple(_) | Space::Dict(_) => {
                let one_hot = Preprocessor::for_space(space).map_err(|error| unsupported(error.to_string()))?;
                (one_hot.output_len(), Some(one_hot))
            }
        };
        Ok(Self { space: space.clone(), len, one_hot })
    }

    /// Elements of an encoded observation; at least one.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Encodes `rows` observations: the rows themselves where they are floats already, else in `scratch`, which allocates
    /// nothing once it is as large as they are.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for another number of elements, and for a row of a discrete space that is not in it.
    pub fn encode<'a>(
        &self,
        obs: RowsRef<'a>,
        rows: usize,
        scratch: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], PolicyError> {
        if rows.checked_mul(self.space.shape().elements()) != Some(obs.len()) {
            return Err(PolicyError::Unsupported {
                wanted: format!("{rows} observations of {}", self.space),
                found: format!("{} values of {}", obs.len(), obs.dtype()),
            });
        }
        match obs {
            RowsRef::F32(values) if self.one_hot.is_none() => return Ok(values),
            RowsRef::F32(values) => self.write(values, scratch),
            RowsRef::F64(values) => self.write(values, scratch),
            RowsRef::I32(values) => self.write(values, scratch),
            RowsRef::I64(values) => self.write(values, scratch),
            RowsRef::U8(values) => self.write(values, scratch),
            RowsRef::Bool(values) => self.write(values, scratch),
        }?;
        Ok(scratch)
    }

    fn write<T: Scalar>(&self, values: &[T], scratch: &mut Vec<f32>) -> Result<(), PolicyError> {
        scratch.clear();
        let Some(one_hot) = &self.one_hot else {
            scratch.extend(values.iter().map(|x| x.to_f64() as f32));
            return Ok(());
        };
        let elements = self.space.shape().elements().max(1);
        scratch.resize((values.len() / elements).saturating_mul(self.len), 0.0);
        let rows = values.chunks_exact(elements).zip(scratch.chunks_exact_mut(self.len.max(1)));
        let outside = |error: PreprocessError| PolicyError::Unsupported {
            wanted: format!("observations of {}", self.space),
            found: error.to_string(),
        };
        rows.into_iter().try_for_each(|(row, out)| one_hot.transform_row(row, out).map_err(outside))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::column::{DType, RowShape};

    fn encode(space: &Space, obs: RowsRef<'_>, rows: usize) -> Result<Vec<f32>, PolicyError> {
        ObsEncoder::for_space(space)?.encode(obs, rows, &mut vec![9.0; 3]).map(<[f32]>::to_vec)
    }

    #[test]
    fn numbers_of_every_type_stay_what_they_are() {
        let space = Space::uniform(DType::U8, RowShape::vector(2), 0.0, 255.0);
        assert_eq!(encode(&space, RowsRef::U8(&[0, 255, 3, 4]), 2).unwrap(), [0.0, 255.0, 3.0, 4.0]);
        assert_eq!(encode(&space, RowsRef::F64(&[0.5, 1e300]), 1).unwrap(), [0.5, f32::INFINITY]);
        assert_eq!(encode(&space, RowsRef::I64(&[-7, 1]), 1).unwrap(), [-7.0, 1.0]);
        assert_eq!(encode(&space, RowsRef::F32(&[-7.5, 1.0]), 1).unwrap(), [-7.5, 1.0]);
        assert_eq!(encode(&Space::MultiBinary { n: 2 }, RowsRef::Bool(&[true, false]), 1).unwrap(), [1.0, 0.0]);
    }

    #[test]
    fn discrete_points_become_one_hot() {
        let space = Space::MultiDiscrete { nvec: vec![2, 3] };
        assert_eq!(encode(&space, RowsRef::I64(&[1, 0]), 1).unwrap(), [0.0, 1.0, 1.0, 0.0, 0.0]);
        let error = encode(&space, RowsRef::I64(&[1, 3]), 1).unwrap_err().to_string();
        assert!(
            error.starts_with("the policy takes observations of MultiDiscrete([2 3]), not bad observation"),
            "{error}"
        );
        assert!(encode(&space, RowsRef::F32(&[1.0, 2.0]), 1).is_err());
    }

    #[test]
    fn parts_of_a_dict_are_joined() {
        let spaces = [("b", Space::Discrete { n: 2 }), ("a", Space::vector(&[0.0], &[9.0]))];
        let space = Space::dict(spaces).unwrap();
        let encoded = encode(&space, RowsRef::F32(&[4.5, 1.0, 0.5, 0.0]), 2).unwrap();
        assert_eq!(encoded, [4.5, 0.0, 1.0, 0.5, 1.0, 0.0]);
        assert!(encode(&space, RowsRef::F32(&[4.5, 2.0]), 1).is_err());
    }

    #[test]
    fn invalid_spaces_are_refused() {
        for space in [Space::Discrete { n: 0 }, Space::Discrete { n: u32::MAX }] {
            let error = ObsEncoder::for_space(&space).unwrap_err().to_string();
            assert!(error.starts_with("the policy takes observations of a valid space"), "{error}");
        }
        let error = encode(&Space::Discrete { n: 2 }, RowsRef::I64(&[1]), usize::MAX).unwrap_err().to_string();
        assert!(error.ends_with("not 1 values of int64"), "{error}");
    }
}
