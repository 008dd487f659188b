//! Everything that the rest of a slot's life depends on, as bytes.

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// State of a slot between two fragments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlotState {
    /// Number of the open episode.
    pub episode: u32,
    /// Its next step.
    pub t: u32,
    /// Sum of its raw rewards so far.
    pub episode_return: f64,
    /// Snapshot of the environment.
    pub env: Vec<u8>,
}

/// Bytes that are no slot state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Too many bytes.
    #[error("a slot state has at most {max} bytes, this one {0}", max = SlotState::MAX_BYTES)]
    TooLarge(usize),
    /// Written by another version.
    #[error("the slot state has version {0}, this program reads {wanted}", wanted = SlotState::VERSION)]
    Version(u8),
    /// Not a slot state, or damaged.
    #[error("the slot state is damaged")]
    Damaged,
}

impl SlotState {
    /// Version of the encoding, its first byte.
    pub const VERSION: u8 = 1;
    /// No episode is that long; and a step later is still a number.
    pub const MAX_T: u32 = 1 << 31;
    /// The largest encoding that is read.
    pub const MAX_BYTES: usize = 1 << 20;

    /// As bytes: the version, then the fields as postcard writes them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        // Writing into memory that grows cannot fail.
        postcard::to_extend(self, vec![Self::VERSION]).unwrap_or_default()
    }

    /// From bytes, which may come from anybody.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        if bytes.len() > Self::MAX_BYTES {
            return Err(StateError::TooLarge(bytes.len()));
        }
        let (&version, body) = bytes.split_first().ok_or(StateError::Damaged)?;
        if version != Self::VERSION {
            return Err(StateError::Version(version));
        }
        match postcard::take_from_bytes::<Self>(body) {
            Ok((state, [])) if state.episode_return.is_finite() && state.t < Self::MAX_T => Ok(state),
            _ => Err(StateError::Damaged),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_damage() {
        let state = SlotState { episode: 3, t: 70_000, episode_return: -1.5, env: vec![1, 2, 3] };
        let bytes = state.encode();
        assert_eq!(bytes, [1, 3, 0xF0, 0xA2, 4, 0, 0, 0, 0, 0, 0, 0xF8, 0xBF, 3, 1, 2, 3]);
        assert_eq!(SlotState::decode(&bytes), Ok(state));
        assert_eq!(SlotState::decode(&bytes[..bytes.len() - 1]), Err(StateError::Damaged));
        assert_eq!(SlotState::decode(&[&bytes[..], &[0]].concat()), Err(StateError::Damaged));
        assert_eq!(SlotState::decode(&[2]), Err(StateError::Version(2)));
        assert_eq!(SlotState::decode(&[]), Err(StateError::Damaged));
        let endless = SlotState { episode: 0, t: u32::MAX, episode_return: 0.0, env: vec![] };
        assert_eq!(SlotState::decode(&endless.encode()), Err(StateError::Damaged));
    }
}
