//! Serialised state of a slot, from which its future follows.

use core::ops::Range;

use crate::{
    encoding::{decode, encode_after},
    prelude::*,
};

/// State of a slot between two fragments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SlotState {
    /// Number of the open episode.
    pub episode: u32,
    /// Number of its next step.
    pub t: u32,
    /// Sum of its raw rewards so far.
    pub episode_return: f64,
    /// Snapshot of the environment.
    pub env: Vec<u8>,
    /// The policy's recurrent states before the next step, one after the other. Empty for a policy without memory, and at
    /// the start of an episode.
    pub recurrent: Vec<f32>,
}

/// The reason why bytes are not a slot state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The bytes exceed the limit.
    #[error("a slot state has at most {max} bytes, this one {0}", max = SlotState::MAX_BYTES)]
    TooLarge(usize),
    /// The state was written by another version.
    #[error("the slot state has version {0}, this program reads 1 and 2")]
    Version(u8),
    /// The bytes are damaged, or not a slot state.
    #[error("the slot state is damaged")]
    Damaged,
}

impl SlotState {
    /// Version of the encoding, its first byte.
    pub const VERSION: u8 = 1;
    /// Version of the encoding of a state with recurrent states.
    pub const WITH_MEMORY: u8 = 2;
    /// Most elements of recurrent states.
    pub const MAX_RECURRENT: usize = 1 << 16;
    /// Upper bound of `t`, so that the next step does not overflow.
    pub const MAX_T: u32 = 1 << 31;
    /// Largest encoding that is decoded.
    pub const MAX_BYTES: usize = 1 << 20;

    /// Encodes the state: the version, then the fields as postcard writes them; recurrent states only if there are any.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let version = if self.recurrent.is_empty() { Self::VERSION } else { Self::WITH_MEMORY };
        let bytes = encode_after(vec![version], &(self.episode, self.t, self.episode_return, &self.env));
        if version == Self::VERSION { bytes } else { encode_after(bytes, &self.recurrent) }
    }

    /// Decodes untrusted bytes.
    ///
    /// # Errors
    /// [`StateError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        if bytes.len() > Self::MAX_BYTES {
            return Err(StateError::TooLarge(bytes.len()));
        }
        let (&version, body) = bytes.split_first().ok_or(StateError::Damaged)?;
        if version != Self::VERSION && version != Self::WITH_MEMORY {
            return Err(StateError::Version(version));
        }
        Self::read(version, body).ok_or(StateError::Damaged)
    }

    /// Returns the range of the environment's snapshot in an encoded state.
    pub(super) fn env_range(bytes: &[u8]) -> Option<Range<usize>> {
        let (version, body) = bytes.split_first()?;
        let known = [Self::VERSION, Self::WITH_MEMORY].contains(version);
        let ((_, _, _, len), rest) = postcard::take_from_bytes::<(u32, u32, f64, u64)>(body).ok().filter(|_| known)?;
        let start = bytes.len() - rest.len();
        Some(start..start.checked_add(usize::try_from(len).ok()?).filter(|end| *end <= bytes.len())?)
    }

    /// Returns whether the recurrent states in an encoded state are finite, without a copy of the environment's snapshot.
    /// Also true for a state without any, and for invalid bytes, which do not decode either.
    pub(crate) fn has_finite_recurrent(bytes: &[u8]) -> bool {
        let Some((&Self::WITH_MEMORY, body)) = bytes.split_first() else { return true };
        let state = decode::<(u32, u32, f64, &[u8], Vec<f32>)>(body);
        state.is_none_or(|(.., recurrent)| recurrent.iter().all(|value| value.is_finite()))
    }

    fn read(version: u8, body: &[u8]) -> Option<Self> {
        let (episode, t, episode_return, env, recurrent) = match version {
            Self::WITH_MEMORY => decode::<(u32, u32, f64, Vec<u8>, Vec<f32>)>(body)?,
            _ => {
                let (episode, t, episode_return, env) = decode(body)?;
                (episode, t, episode_return, env, Vec::new())
            }
        };
        // Each state has exactly one encoding.
        let has_memory = !recurrent.is_empty() && recurrent.len() <= Self::MAX_RECURRENT;
        let valid = episode_return.is_finite()
            && t < Self::MAX_T
            && has_memory == (version == Self::WITH_MEMORY)
            && recurrent.iter().all(|value| value.is_finite());
        valid.then_some(Self { episode, t, episode_return, env, recurrent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_damage() {
        let state = SlotState { episode: 3, t: 70_000, episode_return: -1.5, env: vec![1, 2, 3], recurrent: vec![] };
        let bytes = state.encode();
        assert_eq!(bytes, [1, 3, 0xF0, 0xA2, 4, 0, 0, 0, 0, 0, 0, 0xF8, 0xBF, 3, 1, 2, 3]);
        assert_eq!(SlotState::decode(&bytes), Ok(state));
        assert_eq!(SlotState::decode(&bytes[..bytes.len() - 1]), Err(StateError::Damaged));
        assert_eq!(SlotState::decode(&[&bytes[..], &[0]].concat()), Err(StateError::Damaged));
        assert_eq!(SlotState::decode(&[3]), Err(StateError::Version(3)));
        assert_eq!(SlotState::decode(&[]), Err(StateError::Damaged));
        let endless = SlotState { t: u32::MAX, ..SlotState::default() };
        assert_eq!(SlotState::decode(&endless.encode()), Err(StateError::Damaged));
    }

    #[test]
    fn recurrent_states_are_finite_and_bounded() {
        let with = |recurrent| SlotState { episode: 1, env: vec![9], recurrent, ..SlotState::default() };
        let state = with(vec![0.5, -2.0]);
        let bytes = state.encode();
        assert_eq!(bytes, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 9, 2, 0, 0, 0, 0x3F, 0, 0, 0, 0xC0]);
        assert_eq!(SlotState::decode(&bytes), Ok(state));
        assert!(SlotState::has_finite_recurrent(&bytes) && SlotState::has_finite_recurrent(&with(vec![]).encode()));
        assert!(!SlotState::has_finite_recurrent(&with(vec![0.5, f32::INFINITY]).encode()));
        let without = [&[2], &with(vec![]).encode()[1..], &[0]].concat();
        let unread = [&[1], &bytes[1..]].concat();
        let large = with(vec![0.0; SlotState::MAX_RECURRENT + 1]).encode();
        for bytes in [&bytes[..20], &with(vec![f32::NAN]).encode(), &without, &unread, &large] {
            assert_eq!(SlotState::decode(bytes), Err(StateError::Damaged));
        }
        assert!(SlotState::decode(&with(vec![0.0; SlotState::MAX_RECURRENT]).encode()).is_ok());
    }
}
