//! Observations as rows of floats.

use crate::{
    column::{Element, by_type},
    env::RowsRef,
    policy::PolicyError,
    prelude::*,
    space::{Space, SpaceError},
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
#[derive(Clone, Debug, PartialEq)]
pub struct ObsEncoder {
    space: Space,
    len: usize,
    /// Whether rows are vectors already.
    is_plain: bool,
}

#[allow(clippy::len_without_is_empty)]
impl ObsEncoder {
    /// Creates the encoder for a space.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for invalid spaces, and for those whose vectors would be too long.
    pub fn for_space(space: &Space) -> Result<Self, PolicyError> {
        let unsupported =
            |found: String| PolicyError::Unsupported { wanted: "observations of a valid space".into(), found };
        space.validate().map_err(|error| unsupported(error.to_string()))?;
        let elements = space.flat_dim();
        if elements > Space::MAX_ELEMENTS {
            return Err(unsupported(SpaceError::TooLarge { elements }.to_string()));
        }
        let is_plain = matches!(space, Space::Box(_) | Space::MultiBinary { .. });
        Ok(Self { space: space.clone(), len: elements as usize, is_plain })
    }

    /// Returns the number of elements of an encoded observation; at least one.
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
        self.encode_as("observations", obs, rows, scratch)
    }

    /// Does the same as [`encode`](Self::encode), with a name for the rows in errors.
    pub(in crate::policy) fn encode_as<'a>(
        &self,
        what: &str,
        obs: RowsRef<'a>,
        rows: usize,
        scratch: &'a mut Vec<f32>,
    ) -> Result<&'a [f32], PolicyError> {
        if rows.checked_mul(self.space.shape().elements()) != Some(obs.len()) {
            return Err(PolicyError::Unsupported {
                wanted: format!("{rows} {what} of {}", self.space),
                found: format!("{} values of {}", obs.len(), obs.dtype()),
            });
        }
        if let (true, RowsRef::F32(values)) = (self.is_plain, obs) {
            return Ok(values);
        }
        by_type!(RowsRef, obs, values => self.write(what, values, scratch))?;
        Ok(scratch)
    }

    fn write<T: Element>(&self, what: &str, values: &[T], scratch: &mut Vec<f32>) -> Result<(), PolicyError> {
        scratch.clear();
        if self.is_plain {
            scratch.extend(values.iter().map(|x| x.to_f64() as f32));
            return Ok(());
        }
        let unsupported =
            |found: String| PolicyError::Unsupported { wanted: format!("{what} of {}", self.space), found };
        self.space.check_type(T::DTYPE).map_err(|error| unsupported(error.to_string()))?;
        let mut rest = values;
        while !rest.is_empty() {
            push(&self.space, &mut rest, scratch).map_err(|Outside(text)| unsupported(text))?;
        }
        Ok(())
    }
}

/// A discrete element that is not in its space.
struct Outside(String);

/// Moves a row from the front of `rest` to the end of `out`: discrete elements as one-hot vectors, all others as they are.
fn push<T: Element>(space: &Space, rest: &mut &[T], out: &mut Vec<f32>) -> Result<(), Outside> {
    match space {
        Space::Tuple(parts) => parts.iter().try_for_each(|part| push(part, rest, out)),
        Space::Dict(parts) => parts.values().try_for_each(|part| push(part, rest, out)),
        _ => {
            let row = rest.split_off(..space.shape().elements()).unwrap_or_default();
            match space {
                Space::Discrete { n } => push_one_hot(space, row, &[*n], out),
                Space::MultiDiscrete { nvec } => push_one_hot(space, row, nvec, out),
                _ => {
                    out.extend(row.iter().map(|x| x.to_f64() as f32));
                    Ok(())
                }
            }
        }
    }
}

fn push_one_hot<T: Element>(space: &Space, row: &[T], nvec: &[u32], out: &mut Vec<f32>) -> Result<(), Outside> {
    for (x, n) in row.iter().zip(nvec) {
        let (number, begin) = (x.to_f64(), out.len());
        let hot = Some(number as u32).filter(|hot| hot < n && f64::from(*hot) == number);
        let hot = hot.ok_or_else(|| Outside(format!("{number} outside of {space}")))?;
        out.resize(begin + *n as usize, 0.0);
        out[begin + hot as usize] = 1.0;
    }
    Ok(())
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
        assert!(error.starts_with("the policy takes observations of MultiDiscrete([2 3]), not 3 outside"), "{error}");
        assert!(encode(&space, RowsRef::F32(&[1.0, 2.0]), 1).is_err());
    }

    #[test]
    fn parts_of_a_dict_are_joined() {
        let spaces = [("b", Space::Discrete { n: 2 }), ("a", Space::vector(&[0.0], &[9.0]))];
        let space = Space::dict(spaces).unwrap();
        let encoded = encode(&space, RowsRef::F32(&[4.5, 1.0, 0.5, 0.0]), 2).unwrap();
        assert_eq!(encoded, [4.5, 0.0, 1.0, 0.5, 1.0, 0.0]);
        // Those of boxes stay what they are, also out of their bounds: normalised ones are.
        assert_eq!(encode(&space, RowsRef::F32(&[-1.5, 0.0]), 1).unwrap(), [-1.5, 1.0, 0.0]);
        assert!(encode(&space, RowsRef::F32(&[4.5, 2.0]), 1).is_err());
        assert!(encode(&space, RowsRef::F32(&[4.5, 0.5]), 1).is_err());
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
