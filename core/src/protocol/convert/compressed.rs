//! Uploads as blocks of LZ4, for links that are slower than the codec.

use lz4_flex::block::{compress, decompress_into};

use crate::{
    prelude::*,
    protocol::{DecodeError, HEADER_BYTES, Kind, Message, message::CompressedUpload},
};

/// The reason why a compressed upload has no fragments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressedError {
    /// It claims to be larger than an upload may be, or than its block can be.
    #[error("a compressed upload of {block} bytes claims to have {bytes}")]
    Size {
        /// The claimed length.
        bytes: u32,
        /// Length of the block.
        block: usize,
    },
    /// The block is damaged, or has another length than claimed.
    #[error("a compressed upload is damaged, or has not the {0} bytes that it claims")]
    Block(u32),
    /// It has a message of another kind.
    #[error("a compressed {0:?} has no place in an upload")]
    Kind(Kind),
    /// Its bytes are not a message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

/// Bytes that a byte of a block stands for, at most.
const MAX_RATIO: usize = 255;

/// Compresses an upload; `None` if that saves less than a twentieth of its bytes.
#[must_use]
pub fn compressed(upload: &Message) -> Option<CompressedUpload> {
    let message = upload.encode();
    let block = compress(&message);
    let saves = block.len() < message.len() - message.len() / 20;
    saves.then_some(CompressedUpload { bytes: message.len() as u32, block })
}

/// Returns the number of bytes that an upload takes once decompressed.
///
/// # Errors
/// [`CompressedError::Size`] if that is more than an upload may have, or than a block of this length can hold.
pub fn decompressed_bytes(upload: &CompressedUpload) -> Result<usize, CompressedError> {
    let (length, largest) = (upload.bytes as usize, Kind::FragmentUpload.body_cap() as usize + HEADER_BYTES);
    if length > largest || length > upload.block.len().saturating_mul(MAX_RATIO) {
        return Err(CompressedError::Size { bytes: upload.bytes, block: upload.block.len() });
    }
    Ok(length)
}

/// Decompresses an upload.
///
/// # Errors
/// [`CompressedError`].
pub fn decompressed(upload: &CompressedUpload) -> Result<Message, CompressedError> {
    let mut message = vec![0; decompressed_bytes(upload)?];
    if !decompress_into(&upload.block, &mut message).is_ok_and(|written| written == message.len()) {
        return Err(CompressedError::Block(upload.bytes));
    }
    match Message::decode(&message)? {
        upload @ (Message::FragmentUpload(_) | Message::AgentUpload(_)) => Ok(upload),
        other => Err(CompressedError::Kind(other.kind())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::message::{FragmentUpload, Progress};

    fn upload() -> Message {
        Message::FragmentUpload(FragmentUpload { run: 1, lease: 2, data: vec![7; 10_000], ..FragmentUpload::default() })
    }

    #[test]
    fn compressed_uploads_round_trip() {
        let short = compressed(&upload()).unwrap();
        assert!(short.block.len() < 200, "{}", short.block.len());
        assert_eq!(decompressed(&short), Ok(upload()));
        let noise = (0u32..2_000).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        let noise = Message::FragmentUpload(FragmentUpload { data: noise, ..FragmentUpload::default() });
        assert_eq!(compressed(&noise), None, "it would not be shorter");
    }

    #[test]
    fn wrong_uploads_are_named() {
        let short = compressed(&upload()).unwrap();
        let bytes = |bytes| CompressedUpload { bytes, ..short.clone() };
        for claim in [u32::MAX, 32 << 20, 256 * short.block.len() as u32] {
            assert_eq!(
                decompressed(&bytes(claim)),
                Err(CompressedError::Size { bytes: claim, block: short.block.len() })
            );
        }
        for claim in [short.bytes - 1, short.bytes + 1] {
            assert_eq!(decompressed(&bytes(claim)), Err(CompressedError::Block(claim)));
        }
        let progress = Message::Progress(Progress { lease: 1, env_steps: 2 }).encode();
        let other = CompressedUpload { bytes: progress.len() as u32, block: compress(&progress) };
        assert_eq!(decompressed(&other), Err(CompressedError::Kind(Kind::Progress)));
        let garbage = CompressedUpload { bytes: 3, block: compress(b"abc") };
        assert!(matches!(decompressed(&garbage), Err(CompressedError::Decode(_))));
    }
}
