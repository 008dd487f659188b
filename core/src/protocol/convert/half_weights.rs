//! Converts weights with 16-bit values to a [`HalfWeightsUpdate`] and back.

use sha2::{Digest as _, Sha256};

use super::{WeightsUpdateError, weights, weights::table};
use crate::{
    column::append_le,
    prelude::*,
    protocol::{
        Message,
        message::{HalfWeightsUpdate, WeightsNotice, WeightsUpdate},
    },
    weights::{Weights, from_half, is_half, to_half},
};

/// Encodes weights, tensors whose values are all 16-bit floats with 16 bits, without loss.
#[must_use]
pub fn half_weights_update(run: u32, weights: &Weights) -> HalfWeightsUpdate {
    let WeightsUpdate { run, version, names, ranks, dims, mut values } = table(run, weights);
    let mut halves = Vec::with_capacity(ranks.len());
    for tensor in weights.tensors() {
        let fits = tensor.values.iter().all(|value| is_half(*value));
        halves.push(u8::from(fits));
        match fits {
            true => values.extend(tensor.values.iter().flat_map(|value| to_half(*value).to_le_bytes())),
            false => append_le(&mut values, &tensor.values),
        }
    }
    HalfWeightsUpdate { run, version, names, ranks, dims, halves, values }
}

/// Decodes weights. Does not check whether they fit a policy.
///
/// # Errors
/// [`WeightsUpdateError`] names the tensor that is wrong.
pub fn half_weights(update: &HalfWeightsUpdate) -> Result<Weights, WeightsUpdateError> {
    let HalfWeightsUpdate { run, version, names, ranks, dims, halves, values: bytes } = update;
    if halves.len() != ranks.len() {
        return Err(WeightsUpdateError::Halves { halves: halves.len(), tensors: ranks.len() });
    }
    let (mut values, mut dims_left, mut left) = (Vec::with_capacity(2 * bytes.len()), &dims[..], &bytes[..]);
    // Where dimensions or values are missing, the decoder of the wider values names the tensor.
    for (&rank, &is_half) in ranks.iter().zip(halves) {
        let Some((shape, dims)) = dims_left.split_at_checked(rank.into()) else { break };
        let width = if is_half == 1 { 2 } else { 4 };
        let bytes = shape.iter().try_fold(width, |bytes: usize, &dim| bytes.checked_mul(dim as usize));
        let Some((own, rest)) = bytes.and_then(|bytes| left.split_at_checked(bytes)) else { break };
        (dims_left, left) = (dims, rest);
        match is_half {
            1 => values
                .extend(own.as_chunks().0.iter().flat_map(|half| from_half(u16::from_le_bytes(*half)).to_le_bytes())),
            _ => values.extend_from_slice(own),
        }
    }
    values.extend_from_slice(left);
    let (names, ranks, dims) = (names.clone(), ranks.clone(), dims.clone());
    weights(&WeightsUpdate { run: *run, version: *version, names, ranks, dims, values })
}

/// Decodes the message of a notice; `None` if it is not that message, or has no valid weights.
pub(crate) fn weights_of_notice(notice: &WeightsNotice, message: &[u8]) -> Option<Weights> {
    let is_it = message.len() == notice.bytes as usize && <[u8; 32]>::from(Sha256::digest(message)) == notice.hash;
    match is_it.then(|| Message::decode(message))?.ok()? {
        Message::WeightsUpdate(update) => weights(&update).ok(),
        Message::HalfWeightsUpdate(update) => half_weights(&update).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ids::WeightsVersion, weights::Tensor};

    fn sample() -> Weights {
        let tensor = |name: &str, shape: &[u32], values: &[f32]| Tensor {
            name: name.into(),
            shape: shape.to_vec(),
            values: values.to_vec(),
        };
        let tensors =
            vec![tensor("a", &[2, 2], &[0.5, -1.0, 3.25, 0.0]), tensor("b", &[1], &[0.1]), tensor("c", &[0], &[])];
        Weights::new(WeightsVersion(9), tensors).unwrap()
    }

    #[test]
    fn tensors_of_halves_take_half_the_bytes_and_all_keep_their_bits() {
        let update = half_weights_update(3, &sample());
        assert_eq!((update.values.len(), &update.halves[..]), (4 * 2 + 4, &[1, 0, 1][..]));
        assert_eq!(half_weights(&update), Ok(sample()));
    }

    #[test]
    fn wrong_updates_are_named() {
        type Case<'a> = (&'a dyn Fn(&mut HalfWeightsUpdate), &'a str);
        let cases: [Case<'_>; 5] = [
            (&|u| u.halves = vec![1], "1 element types for 3 tensors"),
            (&|u| _ = u.values.pop(), "the values of tensor 'b' are missing"),
            (&|u| u.values.push(0), "1 bytes of values belong to no tensor"),
            (&|u| _ = u.dims.pop(), "the dimensions of tensor 'c' are missing or more than 8"),
            (
                &|u| u.values[..2].copy_from_slice(&0x7c00u16.to_le_bytes()),
                "tensor 'a' holds a value that is not finite",
            ),
        ];
        for (change, wanted) in cases {
            let mut update = half_weights_update(3, &sample());
            change(&mut update);
            assert_eq!(half_weights(&update).unwrap_err().to_string(), wanted);
        }
    }
}
