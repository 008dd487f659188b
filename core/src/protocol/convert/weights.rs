//! [`Weights`] and [`WeightsUpdate`].

use crate::{
    column::{LittleEndian as _, append_le},
    ids::WeightsVersion,
    prelude::*,
    protocol::{
        DecodeError, Frame, Kind, Message, TooLarge,
        codec::decode_body,
        header,
        message::{WeightsUpdate, WeightsUpdateRef},
    },
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
    /// The bytes are no message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Puts weights into a message.
#[must_use]
pub fn weights_update(run: u32, weights: &Weights) -> WeightsUpdate {
    let mut update = table(run, weights);
    update.values.reserve(value_bytes(weights));
    weights.tensors().iter().for_each(|tensor| append_le(&mut update.values, &tensor.values));
    update
}

/// The frame of that message, without a copy on the way.
///
/// # Errors
/// [`TooLarge`] for weights that no receiver accepts.
pub fn weights_frame(run: u32, weights: &Weights) -> Result<Frame, TooLarge> {
    let mut bytes = Message::WeightsUpdate(table(run, weights)).encode();
    // The values stand last: their length takes the place of that of none.
    bytes.pop();
    let len = value_bytes(weights);
    bytes.reserve(len + 10);
    let mut rest = len;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    weights.tensors().iter().for_each(|tensor| append_le(&mut bytes, &tensor.values));
    Frame::of_bytes(Kind::WeightsUpdate, bytes)
}

fn value_bytes(weights: &Weights) -> usize {
    weights.tensors().iter().map(|tensor| 4 * tensor.values.len()).sum()
}

/// The message without values.
fn table(run: u32, weights: &Weights) -> WeightsUpdate {
    let tensors = weights.tensors();
    let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    WeightsUpdate {
        run,
        version: weights.version().0,
        names: names.join("\n"),
        ranks: tensors.iter().map(|tensor| tensor.shape.len() as u8).collect(),
        dims: tensors.iter().flat_map(|tensor| tensor.shape.iter().copied()).collect(),
        values: Vec::new(),
    }
}

/// Takes weights out of a message. Whether they fit the policy is for the policy to say.
///
/// # Errors
/// [`WeightsUpdateError`] names the tensor that is wrong.
pub fn weights(update: &WeightsUpdate) -> Result<Weights, WeightsUpdateError> {
    let WeightsUpdate { run, version, names, ranks, dims, values } = update;
    let (ranks, dims) = (ranks.clone(), dims.clone());
    read(&WeightsUpdateRef { run: *run, version: *version, names, ranks, dims, values })
}

/// Takes the weights of a run out of the bytes of a message, without a copy on the way. None for other messages, and
/// for weights of other runs.
///
/// # Errors
/// [`WeightsUpdateError`] names what is wrong.
pub fn weights_in(bytes: &[u8], run: u32) -> Result<Option<Weights>, WeightsUpdateError> {
    let (kind, body) = header::read(bytes)?;
    if kind != Kind::WeightsUpdate {
        return Ok(None);
    }
    let update: WeightsUpdateRef<'_> = decode_body(kind, body)?;
    if update.run == run { read(&update).map(Some) } else { Ok(None) }
}

fn read(update: &WeightsUpdateRef<'_>) -> Result<Weights, WeightsUpdateError> {
    let count = update.ranks.len();
    if count > MAX_TENSORS {
        return Err(WeightsUpdateError::TooMany(count));
    }
    let names = || update.names.split('\n').filter(|name| (1..=MAX_NAME_BYTES).contains(&name.len()));
    if names().count() != count {
        return Err(WeightsUpdateError::Names { names: names().count(), tensors: count });
    }
    let (mut dims, mut values) = (&update.dims[..], update.values);
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
    fn what_is_not_copied_is_the_same() {
        let none = Weights::new(WeightsVersion(0), vec![]).unwrap();
        let values = vec![0.5; 5_000];
        let large = Tensor { name: "w".into(), shape: vec![5_000], values };
        for weights in [sample(), none, Weights::new(WeightsVersion(1 << 40), vec![large]).unwrap()] {
            let frame = weights_frame(3, &weights).unwrap();
            assert_eq!(frame, Frame::new(&Message::WeightsUpdate(weights_update(3, &weights))).unwrap());
            assert_eq!(weights_in(frame.bytes(), 3), Ok(Some(weights)));
            assert_eq!(weights_in(frame.bytes(), 4), Ok(None));
            let cut = weights_in(&frame.bytes()[..frame.bytes().len() - 1], 3).unwrap_err();
            assert_eq!(cut.to_string(), "the body of WeightsUpdate does not decode");
        }
        let other = Message::Credit(crate::protocol::message::Credit { bytes: 1 }).encode();
        assert_eq!(weights_in(&other, 3), Ok(None));
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
