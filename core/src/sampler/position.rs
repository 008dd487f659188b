//! Where a reader is in what it reads.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::SampleError;
use crate::prelude::*;

/// Where an [`InputReader`](super::InputReader) is in what it reads, as bytes that only such a reader understands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position(Vec<u8>);

impl Position {
    /// What a reader needs to know.
    #[must_use]
    pub fn new(what: &impl Serialize) -> Self {
        // Writing into memory that grows cannot fail.
        Self(postcard::to_extend(what, Vec::new()).unwrap_or_default())
    }

    /// The same, for the reader.
    ///
    /// # Errors
    /// [`SampleError::Input`] for the position of another reader, and for damaged ones.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, SampleError> {
        match postcard::take_from_bytes(&self.0) {
            Ok((what, [])) => Ok(what),
            _ => Err(SampleError::Input("the position is that of another input, or damaged".into())),
        }
    }

    /// As it is stored.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// From storage, and so from anybody.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}
