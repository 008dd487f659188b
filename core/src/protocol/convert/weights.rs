//! Converts [`Weights`] to a [`WeightsUpdate`] and back.

use super::weights_reader::{MAX_NAME_BYTES, MAX_RANK, MAX_TENSORS, WeightsReader, check_table, read_values};
use crate::{
    column::append_le,
    prelude::*,
    protocol::{
        DecodeError, Kind, Message, MessageFrame, TooLarge, codec::push_length, header, message::WeightsUpdate,
    },
    weights::{Weights, WeightsError},
};

/// The reason why an update contains no valid weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsUpdateError {
    /// It has too many tensors.
    #[error("{0} tensors are more than {MAX_TENSORS}")]
    TooMany(usize),
    /// A name is too long, or there are more or fewer names than tensors.
    #[error("{names} names of at most {MAX_NAME_BYTES} bytes are needed for {tensors} tensors")]
    Names {
        /// Number of usable names.
        names: usize,
        /// Number of tensors.
        tensors: usize,
    },
    /// A tensor's dimensions are missing, or too many.
    #[error("the dimensions of tensor '{0}' are missing or more than {MAX_RANK}")]
    Dims(String),
    /// Dimensions follow that belong to no tensor.
    #[error("{0} dimensions belong to no tensor")]
    ExtraDims(usize),
    /// The values end before the tensor does.
    #[error("the values of tensor '{0}' are missing")]
    Values(String),
    /// Values follow that belong to no tensor.
    #[error("{0} bytes of values belong to no tensor")]
    ExtraValues(usize),
    /// There are more or fewer element types than tensors.
    #[error("{halves} element types for {tensors} tensors")]
    Halves {
        /// Number of element types.
        halves: usize,
        /// Number of tensors.
        tensors: usize,
    },
    /// The tensors do not form weights.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The bytes are not a message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Encodes weights.
#[must_use]
pub fn weights_update(run: u32, weights: &Weights) -> WeightsUpdate {
    let mut update = table(run, weights);
    update.values.reserve(weights.value_bytes());
    weights.tensors().iter().for_each(|tensor| append_le(&mut update.values, &tensor.values));
    update
}

/// Encodes as [`weights_update`] does, but returns an error for weights that a receiver would reject.
///
/// # Errors
/// [`WeightsUpdateError`] names the tensor that is wrong.
pub fn readable_weights_update(run: u32, weights: &Weights) -> Result<WeightsUpdate, WeightsUpdateError> {
    let update = weights_update(run, weights);
    check_table(&update)?;
    Ok(update)
}

/// Returns the frame of that message, which shares the weights' memory.
///
/// # Errors
/// [`TooLarge`] for weights that no receiver accepts.
pub fn weights_frame(run: u32, weights: &Weights) -> Result<MessageFrame, TooLarge> {
    let mut head = Message::WeightsUpdate(table(run, weights)).encode();
    // The values come last: replace the length 0 of the empty values with theirs.
    head.pop();
    push_length(&mut head, weights.value_bytes());
    MessageFrame::of_weights(head, weights)
}

/// Returns the message without values.
pub(super) fn table(run: u32, weights: &Weights) -> WeightsUpdate {
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

/// Decodes weights. Does not check whether they fit a policy.
///
/// # Errors
/// [`WeightsUpdateError`] names the tensor that is wrong.
pub fn weights(update: &WeightsUpdate) -> Result<Weights, WeightsUpdateError> {
    read_values(update)
}

/// Decodes the weights of a run from a message's bytes, without an intermediate copy. `None` for other messages, and for
/// weights of other runs.
///
/// # Errors
/// [`WeightsUpdateError`] names what is wrong.
pub fn weights_in(bytes: &[u8], run: u32) -> Result<Option<Weights>, WeightsUpdateError> {
    let (kind, body) = header::read(bytes)?;
    if kind != Kind::WeightsUpdate {
        return Ok(None);
    }
    if body.len() > kind.body_cap() as usize {
        return Err(DecodeError::TooLarge { kind, bytes: body.len() }.into());
    }
    let mut reader = WeightsReader::new(run, bytes.len());
    reader.read(bytes)?;
    reader.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ids::WeightsVersion,
        protocol::{CHUNK_BYTES, Inbox, Outbox, Received, Role},
        weights::Tensor,
    };

    /// A change, and the expected error.
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
    fn frame_written_without_copies_equals_encoded_message() {
        let none = Weights::new(WeightsVersion(0), vec![]).unwrap();
        let values = vec![0.5; 5_000];
        let large = Tensor { name: "w".into(), shape: vec![5_000], values };
        for weights in [sample(), none, Weights::new(WeightsVersion(1 << 40), vec![large]).unwrap()] {
            let frame = weights_frame(3, &weights).unwrap();
            let message = Message::WeightsUpdate(weights_update(3, &weights));
            assert_eq!(frame, MessageFrame::new(&message).unwrap());
            let bytes = message.encode();
            assert_eq!(weights_in(&bytes, 3), Ok(Some(weights)));
            assert_eq!(weights_in(&bytes, 4), Ok(None));
            let cut = weights_in(&bytes[..bytes.len() - 1], 3).unwrap_err();
            assert_eq!(cut.to_string(), "the body of WeightsUpdate does not decode");
            let long = weights_in(&[&bytes[..], &[0]].concat(), 3).unwrap_err();
            assert_eq!(long.to_string(), "WeightsUpdate is followed by 1 bytes that do not belong to it");
        }
        let other = Message::Credit(crate::protocol::message::Credit { bytes: 1 }).encode();
        assert_eq!(weights_in(&other, 3), Ok(None));
    }

    /// Sends a frame to a worker of run 3.
    fn transport(frame: MessageFrame) -> Vec<Option<(u32, Weights)>> {
        let (mut outbox, mut inbox) = (Outbox::default(), Inbox::of_peer(Role::Worker));
        outbox.push_frame(frame);
        let mut heard = vec![];
        while let Some(frame) = outbox.poll_frame() {
            heard.push(match inbox.receive(&frame, Some(3)).unwrap() {
                Some(Received::Weights { run, weights }) => Some((run, weights)),
                Some(other) => panic!("{other:?}"),
                None => None,
            });
            inbox.take_credit_due().into_iter().for_each(|credit| outbox.grant(credit.bytes));
        }
        heard
    }

    #[test]
    fn large_weights_are_read_while_they_arrive() {
        let tensor = |name: &str, shape: &[u32]| Tensor {
            name: name.into(),
            shape: shape.to_vec(),
            values: (0..shape.iter().product::<u32>()).map(|i| i as f32 - 0.5).collect(),
        };
        let tensors = vec![tensor("a", &[400, 1_000]), tensor("b", &[0]), tensor("odd", &[7]), tensor("z", &[300_000])];
        let large = Weights::new(WeightsVersion(7), tensors).unwrap();
        let heard = transport(weights_frame(3, &large).unwrap());
        let chunks = (4 * 700_007usize).div_ceil(CHUNK_BYTES as usize);
        assert_eq!(heard.len(), chunks);
        assert!(heard[..chunks - 1].iter().all(Option::is_none));
        assert_eq!(heard[chunks - 1], Some((3, large.clone())));
        assert!(transport(weights_frame(4, &large).unwrap()).iter().all(Option::is_none), "another run's");
        let mut joined = Inbox::of_peer(Role::Worker);
        let mut outbox = Outbox::new(u32::MAX);
        outbox.push_frame(weights_frame(3, &large).unwrap());
        let messages: Vec<_> = core::iter::from_fn(|| outbox.poll_frame())
            .filter_map(|frame| {
                let heard = joined.handle_frame(&frame).unwrap();
                joined.take_credit_due();
                heard
            })
            .collect();
        assert_eq!(messages, [Message::WeightsUpdate(weights_update(3, &large))]);
    }

    #[test]
    fn pieces_of_any_size_make_the_same_weights() {
        let bytes = Message::WeightsUpdate(weights_update(3, &sample())).encode();
        for size in 1..=bytes.len() {
            let mut reader = WeightsReader::new(3, bytes.len());
            bytes.chunks(size).for_each(|piece| reader.read(piece).unwrap());
            assert_eq!(reader.finish(), Ok(Some(sample())));
        }
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
