//! Positions of readers in their data.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::SampleError;
use crate::{encoding, prelude::*};

/// The position of an [`InputReader`](super::InputReader) in its data, as opaque bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position(Vec<u8>);

impl Position {
    /// Serialises a reader's position.
    #[must_use]
    pub fn new(what: &impl Serialize) -> Self {
        Self(encoding::encode(what))
    }

    /// Deserialises it for the reader.
    ///
    /// # Errors
    /// [`SampleError::Input`] for the position of another reader, and for damaged ones.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, SampleError> {
        let damaged = || SampleError::Input("the position is that of another input, or damaged".into());
        encoding::decode(&self.0).ok_or_else(damaged)
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Wraps untrusted bytes from storage.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}
