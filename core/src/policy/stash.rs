//! Policies stashed as bytes.

use serde::{Deserialize, Serialize};

use super::{PolicyError, PolicyId};
use crate::{
    hash::{seal, unseal},
    lists::bytes,
    prelude::*,
};

/// Something that a [`PolicyMap`](super::PolicyMap) can stash as bytes and restore.
pub trait Stash {
    /// Returns the specification from which a factory makes another one of the same kind and shape, for example a
    /// registered name and its arguments. Of two with the same specification, either can become the other by
    /// [`restore`](Self::restore). Empty when unknown; then it never becomes another one.
    fn spec(&self) -> &str;

    /// Returns false for a policy without a registered kind, which cannot be recreated: it stays resident, also beyond
    /// the limits.
    fn may_leave(&self) -> bool {
        true
    }

    /// Returns the bytes that it occupies in memory, for limits.
    fn size_bytes(&self) -> usize;

    /// Encodes the state that would be lost with the object.
    ///
    /// # Errors
    /// [`StashError`] when it cannot be encoded; it then stays resident.
    fn stash(&self) -> Result<Vec<u8>, StashError>;

    /// Replaces the whole state by `state`.
    ///
    /// # Errors
    /// [`StashError`] for bytes of something else. The object is not used again then.
    fn restore(&mut self, state: &[u8]) -> Result<(), StashError>;
}

/// The reason why a policy could not be stashed or restored.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StashError {
    /// Too many bytes.
    #[error("a stashed policy has at most {max} bytes, this one {0}", max = Stashed::MAX_BYTES)]
    TooLarge(usize),
    /// Written by another version.
    #[error("it was stashed by version {0} of the format, this program reads {wanted}", wanted = Stashed::VERSION)]
    Version(u8),
    /// Not a stashed policy, or damaged.
    #[error("the stashed policy is damaged")]
    Damaged,
    /// These are the bytes of another policy.
    #[error("these are the bytes of policy '{0}'")]
    OtherPolicy(PolicyId),
    /// The policy does not take its state, or could not be made.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// The entry of a [`PolicyStore`](super::PolicyStore): the policy's id, its specification and its state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stashed<'a> {
    /// The id of the policy.
    pub id: PolicyId,
    /// See [`Stash::spec`].
    #[serde(borrow)]
    pub spec: Cow<'a, str>,
    /// See [`Stash::stash`].
    #[serde(borrow, serialize_with = "bytes::serialize")]
    pub state: Cow<'a, [u8]>,
}

impl<'a> Stashed<'a> {
    /// Version of the encoding, its first byte.
    pub const VERSION: u8 = 1;
    /// The maximum size of an encoding that is written or read.
    pub const MAX_BYTES: usize = 1 << 30;

    /// Returns the entry for `item`.
    ///
    /// # Errors
    /// [`StashError`] of the item.
    pub fn of(id: &PolicyId, item: &'a impl Stash) -> Result<Self, StashError> {
        Ok(Self { id: id.clone(), spec: item.spec().into(), state: item.stash()?.into() })
    }

    /// Encodes the entry: the version, the fields in postcard's encoding, and the [hash](crate::hash::bytes_hash) of
    /// all that.
    ///
    /// # Errors
    /// [`StashError::TooLarge`].
    pub fn encode(&self) -> Result<Vec<u8>, StashError> {
        let bytes = seal(vec![Self::VERSION], self);
        if bytes.len() > Self::MAX_BYTES { Err(StashError::TooLarge(bytes.len())) } else { Ok(bytes) }
    }

    /// Decodes untrusted bytes. Allocates only for the id.
    ///
    /// # Errors
    /// [`StashError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, StashError> {
        if bytes.len() > Self::MAX_BYTES {
            return Err(StashError::TooLarge(bytes.len()));
        }
        match bytes.first() {
            Some(&Self::VERSION) => unseal(bytes, 1).ok_or(StashError::Damaged),
            Some(&version) => Err(StashError::Version(version)),
            None => Err(StashError::Damaged),
        }
    }

    /// Decodes an entry like [`decode`](Self::decode), and checks its id.
    ///
    /// # Errors
    /// [`StashError`], also for an entry of another policy.
    pub fn decode_of(id: &PolicyId, bytes: &'a [u8]) -> Result<Self, StashError> {
        let stashed = Self::decode(bytes)?;
        if stashed.id == *id { Ok(stashed) } else { Err(StashError::OtherPolicy(stashed.id)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::bytes_hash;

    #[test]
    fn damage_is_found_and_named() {
        let id = PolicyId::new("p");
        let stashed = Stashed { id: id.clone(), spec: "s".into(), state: (&[7, 8][..]).into() };
        let bytes = stashed.encode().unwrap();
        assert_eq!(bytes[..8], [1, 1, b'p', 1, b's', 2, 7, 8]);
        assert_eq!(Stashed::decode_of(&id, &bytes), Ok(stashed));
        for at in 1..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(Stashed::decode(&damaged), Err(StashError::Damaged), "byte {at}");
            assert_eq!(Stashed::decode(&bytes[..at]), Err(StashError::Damaged));
        }
        assert_eq!(Stashed::decode(&[]), Err(StashError::Damaged));
        assert_eq!(Stashed::decode(&[9]), Err(StashError::Version(9)));
        let error = Stashed::decode_of(&PolicyId::DEFAULT, &bytes).unwrap_err();
        assert_eq!(error.to_string(), "these are the bytes of policy 'p'");
    }

    #[test]
    fn false_lengths_are_damage() {
        // With a hash that fits, as only an attacker would write it.
        for lengths in [&[0xff, 0xff, 0xff, 0xff, 0x0f][..], &[0, 0x80, 0x80, 0x04], &[5], &[1, b'a', 4]] {
            let mut bytes = vec![Stashed::VERSION];
            bytes.extend_from_slice(lengths);
            bytes.extend_from_slice(b"abc");
            bytes.extend_from_slice(&bytes_hash(&bytes).0);
            assert_eq!(Stashed::decode(&bytes), Err(StashError::Damaged), "{lengths:?}");
        }
    }
}
