//! [`Weights`] and [`WeightsUpdate`].

use crate::{
    column::{LittleEndian as _, append_le},
    ids::WeightsVersion,
    prelude::*,
    protocol::message::WeightsUpdate,
    weights::{Tensor, Weights, WeightsError},
};

/// The most tensors of one set of weights.
const MAX_TENSORS: usize = 1024;
/// The most bytes of a tensor's name.
const MAX_NAME_BYTES: usize = 128;
/// The most dimensions of a tensor.
const MAX_RANK: u8 = 8;

/// Why an update brings no weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightsUpdateError {
    /// Too many tensors.
    #[error("{0} tensors are more than {MAX_TENSORS}")]
    TooMany(usize),
    /// A name is too long, or there are more or fewer names than tensors.
    #[error("{names} names of at most {MAX_NAME_BYTES} bytes are needed for {tensors} tensors")]
    Names {
        /// Usable names.
        names: usize,
        /// Tensors.
        tensors: usize,
    },
    /// A tensor's dimensions are not there, or too many.
    #[error("the dimensions of tensor '{0}' are missing or more than {MAX_RANK}")]
    Dims(String),
    /// There are dimensions that belong to no tensor.
    #[error("{0} dimensions belong to no tensor")]
    ExtraDims(usize),
    /// The values end before the tensor does.
    #[error("the values of tensor '{0}' are missing")]
    Values(String),
    /// There are values that belong to no tensor.
    #[error("{0} bytes of values belong to no tensor")]
    ExtraValues(usize),
    /// The tensors do not make weights.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

/// Puts weights into a message.
#[must_use]
pub fn weights_update(run: u32, weights: &Weights) -> WeightsUpdate {
    let tensors = weights.tensors();
    let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    let mut values = Vec::with_capacity(tensors.iter().map(|tensor| 4 * tensor.values.len()).sum());
    for tensor in tensors {
        append_le(&mut values, &tensor.values);
    }
    WeightsUpdate {
        run,
        version: weights.version().0,
        names: names.join("\n"),
        ranks: tensors.iter().map(|tensor| tensor.shape.len() as u8).collect(),
        dims: tensors.iter().flat_map(|tensor| tensor.shape.iter().copied()).collect(),
        values,
    }
}

/// Takes weights out of a message. Whether they fit the policy is for the policy to say.
///
/// # Errors
/// [`WeightsUpdateError`] names the tensor that is wrong.
pub fn weights(update: &WeightsUpdate) -> Result<Weights, WeightsUpdateError> {
    let count = update.ranks.len();
    if count > MAX_TENSORS {
        return Err(WeightsUpdateError::TooMany(count));
    }
    let names = || update.names.split('\n').filter(|name| (1..=MAX_NAME_BYTES).contains(&name.len()));
    if names().count() != count {
        return Err(WeightsUpdateError::Names { names: names().count(), tensors: count });
    }
    let (mut dims, mut values) = (&update.dims[..], &update.values[..]);
    let mut tensors = Vec::with_capacity(count);
    for (name, &rank) in names().zip(&update.ranks) {
        let shape = split(&mut dims, usize::from(rank))
            .filter(|_| rank <= MAX_RANK)
            .ok_or_else(|| WeightsUpdateError::Dims(name.into()))?;
        let bytes = shape.iter().try_fold(4usize, |bytes, &dim| bytes.checked_mul(dim as usize));
        let bytes =
            bytes.and_then(|bytes| split(&mut values, bytes)).ok_or_else(|| WeightsUpdateError::Values(name.into()))?;
        tensors.push(Tensor { name: name.into(), shape: shape.to_vec(), values: f32::read_le(bytes) });
    }
    if !dims.is_empty() {
        return Err(WeightsUpdateError::ExtraDims(dims.len()));
    }
    if !values.is_empty() {
        return Err(WeightsUpdateError::ExtraValues(values.len()));
    }
    Ok(Weights::new(WeightsVersion(update.version), tensors)?)
}

/// Takes the first `count` items off a slice, if it has as many.
fn split<'a, T>(items: &mut &'a [T], count: usize) -> Option<&'a [T]> {
    let (first, rest) = items.split_at_checked(count)?;
    *items = rest;
    Some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change, and what is then said.
    type Case<'a> = (&'a dyn Fn(&mut WeightsUpdate), &'a str);

    fn sample() -> Weights {
        let tensor = |name: &str, shape: &[u32], first: f32| Tensor {
            name: name.into(),
            shape: shape.to_vec(),
            values: (0..shape.iter().product::<u32>()).map(|i| first + i as f32).collect(),
        };
        let tensors = vec![tensor("b.bias", &[3], 0.5), tensor("a.weight", &[2, 3], -1.0), tensor("c", &[], 7.0)];
        Weights::new(WeightsVersion(12), tensors).unwrap()
    }

    #[test]
    fn weights_travel_unchanged() {
        assert_eq!(weights(&weights_update(3, &sample())), Ok(sample()));
        let none = Weights::new(WeightsVersion(0), vec![]).unwrap();
        assert_eq!(weights(&weights_update(3, &none)), Ok(none));
    }

    #[test]
    fn whatever_is_wrong_is_named() {
        let cases: [Case<'_>; 9] = [
            (&|u| u.ranks = vec![0; 1025], "1025 tensors are more than 1024"),
            (&|u| u.names.push_str("\nd"), "4 names of at most 128 bytes are needed for 3 tensors"),
            (
                &|u| u.names = format!("a\nb\n{}", "c".repeat(129)),
                "2 names of at most 128 bytes are needed for 3 tensors",
            ),
            (&|u| u.ranks[2] = 1, "the dimensions of tensor 'c' are missing or more than 8"),
            (&|u| u.dims.push(9), "1 dimensions belong to no tensor"),
            (&|u| u.dims = vec![u32::MAX; 3], "the values of tensor 'a.weight' are missing"),
            (&|u| u.values.push(0), "1 bytes of values belong to no tensor"),
            (
                &|u| u.values[..4].copy_from_slice(&f32::NAN.to_le_bytes()),
                "tensor 'a.weight' holds a value that is not finite",
            ),
            (&|u| u.names = "a\na\nc".into(), "tensor 'a' is there twice"),
        ];
        for (change, message) in cases {
            let mut update = weights_update(3, &sample());
            change(&mut update);
            assert_eq!(weights(&update).unwrap_err().to_string(), message);
        }
    }
}
