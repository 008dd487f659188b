//! Messages of evaluation workers: some JSON, and bytes that are no JSON. Whatever is read may come from anybody.

use std::io::{self, ErrorKind, Read, Write};

use rollmesh_core::{
    evaluation::{Evaluation, EvaluationRequest, Frames, Ticket},
    ids::WeightsVersion,
    weights::Weights,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::EvalWorkerError;
use crate::checkpoint::weights_file;

/// The most bytes of the JSON.
const MAX_TEXT: u64 = 256 << 20;
/// The most bytes of what is none: weights or pictures.
const MAX_BYTES: u64 = 2 << 30;

/// Sends a message: the lengths of its two parts, and those.
pub(super) fn send(mut to: impl Write, message: &impl Serialize, bytes: &[u8]) -> io::Result<()> {
    let text = serde_json::to_vec(message)?;
    let mut head = [0; 16];
    head[..8].copy_from_slice(&(text.len() as u64).to_le_bytes());
    head[8..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    let mut start = Vec::with_capacity(head.len() + text.len());
    start.extend_from_slice(&head);
    start.extend_from_slice(&text);
    to.write_all(&start)?;
    to.write_all(bytes)?;
    to.flush()
}

/// The next message. Memory is taken as its bytes come, not as its lengths say.
pub(super) fn receive<M: DeserializeOwned>(mut from: impl Read) -> io::Result<(M, Vec<u8>)> {
    let mut head = [[0; 8]; 2];
    from.read_exact(head.as_flattened_mut())?;
    let [text, bytes] = head.map(u64::from_le_bytes);
    if text > MAX_TEXT || bytes > MAX_BYTES {
        return Err(io::Error::new(ErrorKind::InvalidData, "a message is too long"));
    }
    let mut part = |len: u64| {
        let mut part = Vec::new();
        match (&mut from).take(len).read_to_end(&mut part) {
            Ok(read) if read as u64 == len => Ok(part),
            Ok(_) => Err(io::Error::from(ErrorKind::UnexpectedEof)),
            Err(error) => Err(error),
        }
    };
    let text = part(text)?;
    let bytes = part(bytes)?;
    Ok((serde_json::from_slice(&text)?, bytes))
}

/// What an evaluation needs, but for the weights' bytes.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Wanted {
    pub(super) request: EvaluationRequest,
    /// None for the weights that are there.
    weights_version: Option<u64>,
}

impl Wanted {
    /// The request, and the bytes that go with it.
    pub(super) fn of(
        request: EvaluationRequest,
        weights: Option<&Weights>,
    ) -> Result<(Self, Vec<u8>), EvalWorkerError> {
        let bytes = weights.map(weights_file::to_bytes).transpose().map_err(EvalWorkerError::failed)?;
        let weights_version = weights.map(|weights| weights.version().0);
        Ok((Self { request, weights_version }, bytes.unwrap_or_default()))
    }

    pub(super) fn weights(&self, bytes: &[u8]) -> Result<Option<Weights>, EvalWorkerError> {
        let read = |version| weights_file::from_bytes(bytes, WeightsVersion(version)).map_err(EvalWorkerError::failed);
        self.weights_version.map(read).transpose()
    }
}

/// What was found, but for the bytes of pictures and observations.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Found {
    pub(super) ticket: Ticket,
    result: Result<Option<(Evaluation, Option<Film>)>, EvalWorkerError>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Film {
    width: u32,
    height: u32,
    is_cut: bool,
    /// The observations come after so many.
    bytes: usize,
}

impl Found {
    /// What was found, and the bytes that go with it.
    pub(super) fn of(ticket: Ticket, result: Result<Option<Evaluation>, EvalWorkerError>) -> (Self, Vec<u8>) {
        let mut bytes = Vec::new();
        let result = result.map(|found| {
            found.map(|mut found| {
                let film = found.frames.take().map(|frames| {
                    let [_, height, width, _] = frames.shape().map(|n| u32::try_from(n).unwrap_or(0));
                    let film = Film { width, height, is_cut: frames.is_cut, bytes: frames.rgb().len() };
                    bytes = frames.into_rgb();
                    film
                });
                // JSON knows neither NaN nor infinities, and environments show what they like.
                let obs = found.trace.as_mut().map(|trace| std::mem::take(&mut trace.obs)).unwrap_or_default();
                bytes.extend(obs.iter().flat_map(|value| value.to_le_bytes()));
                (found, film)
            })
        });
        (Self { ticket, result }, bytes)
    }

    pub(super) fn read(self, mut bytes: Vec<u8>) -> (Ticket, Result<Option<Evaluation>, EvalWorkerError>) {
        let result = self.result.map(|found| {
            found.map(|(mut found, film)| {
                let pictures = film.as_ref().map_or(0, |film| film.bytes.min(bytes.len()));
                let obs = bytes.split_off(pictures);
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
    use rollmesh_core::evaluation::EpisodeTrace;

    use super::*;

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
        let mut pipe = Vec::new();
        send(&mut pipe, &message, &bytes).unwrap();
        let (read, bytes): (Found, Vec<u8>) = receive(&pipe[..]).unwrap();
        let (ticket, read) = read.read(bytes);
        let read = read.unwrap().unwrap();
        assert_eq!((ticket, read.env_steps, &read.frames), (Ticket(3), 7, &found.frames));
        assert_eq!((bits(&read), bits(&read).len()), (bits(&found), 4));
        for end in 0..pipe.len() {
            assert!(receive::<Found>(&pipe[..end]).is_err());
        }
    }

    #[test]
    fn lengths_that_nobody_sends_take_no_memory() {
        let mut pipe = [0xFF; 16];
        assert_eq!(receive::<Found>(&pipe[..]).unwrap_err().kind(), ErrorKind::InvalidData);
        pipe[..8].copy_from_slice(&MAX_TEXT.to_le_bytes());
        pipe[8..].copy_from_slice(&0u64.to_le_bytes());
        assert_eq!(receive::<Found>(&pipe[..]).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
}
