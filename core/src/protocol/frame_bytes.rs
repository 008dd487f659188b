//! A frame as bytes.

use core::ops::Deref;

use ::bytes::Bytes;

/// A frame that is ready for the socket. Cheap to clone, since clones share the bytes.
///
/// A socket that sends buffers of its own takes it without a copy if they can hold any owner of bytes, as those of the crate
/// `bytes` can with `Bytes::from_owner(frame)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameBytes(pub(super) Bytes);

impl Deref for FrameBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for FrameBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
