//! What handles of an evaluation worker ask, and what it answers.
//!
//! Each message is some JSON, and bytes that are no JSON: weights with a question, pictures and observations with an answer.

use serde::{Deserialize, Serialize};

use super::FrameLimits;
use crate::{
    evaluation::{Earlier, EvalWorkerError, Evaluation, EvaluationRequest, Frames, Ticket},
    prelude::*,
    protocol::{convert, message::WeightsUpdate},
    weights::Weights,
};

/// A question. Each is answered by one [`EvalAnswer`] before the next.
#[derive(Debug, Serialize, Deserialize)]
pub enum EvalAsk {
    /// First on a socket of this machine: the secret of who may ask. Hubs let in nobody else anyway.
    Hello {
        /// In hexadecimal digits.
        token: String,
    },
    /// An evaluation, with the bytes of [`weights_to_bytes`].
    Submit {
        /// What is to be done.
        request: EvaluationRequest,
        /// What becomes of those before it.
        earlier: Earlier,
    },
    /// The next result.
    Poll {
        /// How long to wait for it.
        timeout_ms: u64,
    },
    /// The worker is to end, for all.
    Shutdown,
}

/// An answer.
#[derive(Debug, Serialize, Deserialize)]
pub enum EvalAnswer {
    /// To everything else.
    Done,
    /// The evaluation has a place in the queue.
    Ticket(Ticket),
    /// There is no result so soon.
    NotYet,
    /// Nor ever: nothing was asked for.
    Nothing,
    /// A result.
    Found(Found),
    /// What is wrong with the question, or with the worker.
    Trouble(EvalWorkerError),
}

/// Weights as bytes; none for the weights that are there. Their form is the body of the protocol's `WeightsUpdate`.
///
/// # Errors
/// [`EvalWorkerError::Failed`] for weights that nobody could read, or that no message can carry.
pub fn weights_to_bytes(weights: Option<&Weights>) -> Result<Vec<u8>, EvalWorkerError> {
    let Some(weights) = weights else { return Ok(Vec::new()) };
    let update = convert::readable_weights_update(0, weights).map_err(EvalWorkerError::failed)?;
    let bytes = postcard::to_allocvec(&update).map_err(EvalWorkerError::failed)?;
    FrameLimits::MAX.check(0, bytes.len() as u64).map_err(EvalWorkerError::failed)?;
    Ok(bytes)
}

/// Reads what [`weights_to_bytes`] or anybody else has written.
///
/// # Errors
/// [`EvalWorkerError::Failed`] for any bytes that are no weights.
pub fn weights_from_bytes(bytes: &[u8]) -> Result<Option<Weights>, EvalWorkerError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    match postcard::take_from_bytes::<WeightsUpdate>(bytes) {
        Ok((update, [])) => convert::weights(&update).map(Some).map_err(EvalWorkerError::failed),
        Ok(_) | Err(_) => Err(EvalWorkerError::failed(format!("{} bytes are no weights", bytes.len()))),
    }
}

/// What was found, but for the bytes of pictures and observations.
#[derive(Debug, Serialize, Deserialize)]
pub struct Found {
    /// What was asked for.
    pub ticket: Ticket,
    result: Result<Option<(Evaluation, Option<Film>)>, EvalWorkerError>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Film {
    width: u32,
    height: u32,
    is_cut: bool,
    /// The observations come after so many.
    bytes: u64,
}

impl Found {
    /// What was found, and the bytes that go with it.
    #[must_use]
    pub fn of(ticket: Ticket, result: Result<Option<Evaluation>, EvalWorkerError>) -> (Self, Vec<u8>) {
        let mut bytes = Vec::new();
        let result = result.map(|found| {
            found.map(|mut found| {
                let film = found.frames.take().map(|frames| {
                    let [_, height, width, _] = frames.shape().map(|n| u32::try_from(n).unwrap_or(0));
                    let film = Film { width, height, is_cut: frames.is_cut, bytes: frames.rgb().len() as u64 };
                    bytes = frames.into_rgb();
                    film
                });
                // JSON knows neither NaN nor infinities, and environments show what they like.
                let obs = found.trace.as_mut().map(|trace| core::mem::take(&mut trace.obs)).unwrap_or_default();
                bytes.extend(obs.iter().flat_map(|value| value.to_le_bytes()));
                (found, film)
            })
        });
        (Self { ticket, result }, bytes)
    }

    /// Puts it together again.
    ///
    /// # Errors
    /// What the evaluation's error was.
    pub fn read(self, mut bytes: Vec<u8>) -> (Ticket, Result<Option<Evaluation>, EvalWorkerError>) {
        let result = self.result.map(|found| {
            found.map(|(mut found, film)| {
                let pictures = film.as_ref().map_or(0, |film| usize::try_from(film.bytes).unwrap_or(usize::MAX));
                let obs = bytes.split_off(pictures.min(bytes.len()));
                if let Some(trace) = &mut found.trace {
                    let (obs, _) = obs.as_chunks();
                    trace.obs = obs.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                }
                found.frames = film.and_then(|film| Frames::of(film.width, film.height, bytes, film.is_cut));
                found
            })
        });
        (self.ticket, result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{evaluation::EpisodeTrace, ids::WeightsVersion, weights::Tensor};

    #[test]
    fn results_come_back_with_their_pictures() {
        let frames = Frames::of(2, 1, vec![1, 2, 3, 4, 5, 6], true);
        let obs = vec![1.5, -0.0, f32::INFINITY, f32::from_bits(0x7fc0_1234)];
        let bits = |found: &Evaluation| {
            found.trace.iter().flat_map(|trace| &trace.obs).map(|value| value.to_bits()).collect::<Vec<u32>>()
        };
        let trace = Some(EpisodeTrace { episode: 2, obs_len: 2, obs, is_cut: false });
        let found = Evaluation { env_steps: 7, frames, trace, ..Evaluation::default() };
        let (message, bytes) = Found::of(Ticket(3), Ok(Some(found.clone())));
        let message: Found = serde_json::from_str(&serde_json::to_string(&message).unwrap()).unwrap();
        let (ticket, read) = message.read(bytes);
        let read = read.unwrap().unwrap();
        assert_eq!((ticket, read.env_steps, &read.frames), (Ticket(3), 7, &found.frames));
        assert_eq!((bits(&read), bits(&read).len()), (bits(&found), 4));
    }

    #[test]
    fn weights_come_back_bit_for_bit_and_nothing_else_does() {
        let values = vec![0.5, -0.0, f32::MIN_POSITIVE];
        let tensor = Tensor { name: "w".into(), shape: vec![3], values };
        let weights = Weights::new(WeightsVersion(300), vec![tensor]).unwrap();
        let bytes = weights_to_bytes(Some(&weights)).unwrap();
        assert_eq!(weights_from_bytes(&bytes), Ok(Some(weights)));
        assert_eq!((weights_to_bytes(None), weights_from_bytes(&[])), (Ok(vec![]), Ok(None)));
        for end in 1..bytes.len() {
            assert!(weights_from_bytes(&bytes[..end]).is_err(), "{end}");
        }
        assert!(weights_from_bytes(&[&bytes[..], &[0]].concat()).is_err());
        let long = Tensor { name: "w".repeat(129), shape: vec![0], values: vec![] };
        let unreadable = Weights::new(WeightsVersion(0), vec![long]).unwrap();
        assert!(matches!(weights_to_bytes(Some(&unreadable)), Err(EvalWorkerError::Failed(_))));
    }
}
