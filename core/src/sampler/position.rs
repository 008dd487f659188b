//! Positions of readers in their data.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::SampleError;
use crate::prelude::*;

/// The position of an [`InputReader`](super::InputReader) in its data, as opaque bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position(Vec<u8>);

impl Position {
    /// Serialises a reader's position.
    #[must_use]
    pub fn new(what: &impl Serialize) -> Self {
        // Writing into growing memory cannot fail.
        Self(postcard::to_extend(what, Vec::new()).unwrap_or_default())
    }

    /// Deserialises it for the reader.
    ///
    /// # Errors
    /// [`SampleError::Input`] for the position of another reader, and for damaged ones.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, SampleError> {
        match postcard::take_from_bytes(&self.0) {
            Ok((what, [])) => Ok(what),
            _ => Err(SampleError::Input("the position is that of another input, or damaged".into())),
        }
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
