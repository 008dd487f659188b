//! Policies put aside as bytes.

use super::{PolicyError, PolicyId};
use crate::{hash::bytes_hash, prelude::*};

/// Something that a [`PolicyMap`](super::PolicyMap) can put aside as bytes and have again.
pub trait Stash {
    /// What a factory needs to know to make another one of the same kind and shape, for example a registered name and
    /// its arguments. Of two with the same specification, either can become the other by [`restore`](Self::restore).
    /// Empty when unknown; such a one never becomes another.
    fn spec(&self) -> &str;

    /// False for one that nobody could make again: it stays, also beyond the limits.
    fn may_leave(&self) -> bool {
        true
    }

    /// Bytes that it occupies in memory, for limits.
    fn size_bytes(&self) -> usize;

    /// Everything that would be lost with it.
    ///
    /// # Errors
    /// [`StashError`] when it has no bytes; it then stays where it is.
    fn stash(&self) -> Result<Vec<u8>, StashError>;

    /// Becomes what `state` was taken from, with nothing left of what it was.
    ///
    /// # Errors
    /// [`StashError`] for bytes of something else. It is not used again then.
    fn restore(&mut self, state: &[u8]) -> Result<(), StashError>;
}

/// Why a policy could not be put aside or come back.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StashError {
    /// Too many bytes.
    #[error("a policy put aside has at most {max} bytes, this one {0}", max = Stashed::MAX_BYTES)]
    TooLarge(usize),
    /// Written by another version.
    #[error("it was put aside by version {0} of the format, this program reads {wanted}", wanted = Stashed::VERSION)]
    Version(u8),
    /// Not what was put aside, or damaged.
    #[error("what was put aside is damaged")]
    Damaged,
    /// These are the bytes of another policy.
    #[error("these are the bytes of policy '{0}'")]
    OtherPolicy(PolicyId),
    /// The policy does not take its state, or could not be made.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// Length of the hash at the end.
const HASH_BYTES: usize = 16;

/// What is put into a [`PolicyStore`](super::PolicyStore): whose it is, what it is, and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stashed<'a> {
    /// Whose state it is.
    pub id: PolicyId,
    /// See [`Stash::spec`].
    pub spec: Cow<'a, str>,
    /// See [`Stash::stash`].
    pub state: Cow<'a, [u8]>,
}

impl<'a> Stashed<'a> {
    /// Version of the encoding, its first byte.
    pub const VERSION: u8 = 1;
    /// The largest encoding that is written or read.
    pub const MAX_BYTES: usize = 1 << 30;

    /// What is to be put aside of `item`.
    ///
    /// # Errors
    /// [`StashError`] of the item.
    pub fn of(id: &PolicyId, item: &'a impl Stash) -> Result<Self, StashError> {
        Ok(Self { id: id.clone(), spec: item.spec().into(), state: item.stash()?.into() })
    }

    /// As bytes: the version, the lengths of id and specification (32 bits, little-endian), both, the state, and the
    /// [hash](bytes_hash) of all that.
    ///
    /// # Errors
    /// [`StashError::TooLarge`].
    pub fn encode(&self) -> Result<Vec<u8>, StashError> {
        let id = self.id.as_str();
        let parts = [id.as_bytes(), self.spec.as_bytes(), &self.state];
        let total: usize = 1 + 8 + parts.iter().map(|part| part.len()).sum::<usize>() + HASH_BYTES;
        if total > Self::MAX_BYTES {
            return Err(StashError::TooLarge(total));
        }
        let mut bytes = Vec::with_capacity(total);
        bytes.push(Self::VERSION);
        bytes.extend_from_slice(&(id.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(self.spec.len() as u32).to_le_bytes());
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        bytes.extend_from_slice(&bytes_hash(&bytes).0);
        Ok(bytes)
    }

    /// From bytes, which may come from anybody. Takes no memory but for the id.
    ///
    /// # Errors
    /// [`StashError`].
    pub fn decode(bytes: &'a [u8]) -> Result<Self, StashError> {
        if bytes.len() > Self::MAX_BYTES {
            return Err(StashError::TooLarge(bytes.len()));
        }
        match bytes.first() {
            Some(&Self::VERSION) => Self::read(bytes).ok_or(StashError::Damaged),
            Some(&version) => Err(StashError::Version(version)),
            None => Err(StashError::Damaged),
        }
    }

    /// [`decode`](Self::decode) of what was put aside under this id.
    ///
    /// # Errors
    /// [`StashError`], also when it is another policy's.
    pub fn decode_of(id: &PolicyId, bytes: &'a [u8]) -> Result<Self, StashError> {
        let stashed = Self::decode(bytes)?;
        if stashed.id == *id { Ok(stashed) } else { Err(StashError::OtherPolicy(stashed.id)) }
    }

    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (body, hash) = bytes.split_last_chunk::<HASH_BYTES>()?;
        if bytes_hash(body).0 != *hash {
            return None;
        }
        let mut reader = Reader(body.get(1..)?);
        let (id_len, spec_len) = (reader.u32()?, reader.u32()?);
        let (id, spec) = (reader.text(id_len)?, reader.text(spec_len)?);
        Some(Self { id: PolicyId::new(id.to_owned()), spec: spec.into(), state: reader.0.into() })
    }
}

/// Takes bytes off the front, if they are there.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(first)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    pub(super) fn text(&mut self, bytes: u32) -> Option<&'a str> {
        str::from_utf8(self.take(bytes as usize)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_found_and_named() {
        let id = PolicyId::new("p");
        let stashed = Stashed { id: id.clone(), spec: "s".into(), state: (&[7, 8][..]).into() };
        let bytes = stashed.encode().unwrap();
        assert_eq!(bytes[..13], [1, 1, 0, 0, 0, 1, 0, 0, 0, b'p', b's', 7, 8]);
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
    fn lengths_that_lie_are_damage() {
        // With a hash that fits, as only somebody who means harm would write it.
        for (id, spec) in [(u32::MAX, u32::MAX), (0, u32::MAX), (5, 0), (1, 4)] {
            let mut bytes = vec![Stashed::VERSION];
            bytes.extend_from_slice(&id.to_le_bytes());
            bytes.extend_from_slice(&spec.to_le_bytes());
            bytes.extend_from_slice(b"abcd");
            bytes.extend_from_slice(&bytes_hash(&bytes).0);
            assert_eq!(Stashed::decode(&bytes), Err(StashError::Damaged), "{id} {spec}");
        }
    }
}
