//! Limits of frames, and which kinds of messages may be split.

use super::Kind;

/// Messages larger than this many bytes, header included, are sent in chunks, and no chunk is larger.
pub const CHUNK_BYTES: u32 = 256 * 1024;

/// Longest frame: a whole chunk with its header and its numbers. Sockets reject longer ones before they buffer them.
pub const MAX_FRAME_BYTES: u32 = CHUNK_BYTES + 64;

/// Longest frame of an unauthenticated peer, which bounds its memory.
pub const PRE_AUTH_FRAME_BYTES: u32 = 4 * 1024;

/// Longest frame of a dashboard.
pub const DASHBOARD_FRAME_BYTES: u32 = 64 * 1024;

impl Kind {
    /// Returns whether a message of this kind may be sent in chunks. All others fit into one frame.
    #[must_use]
    pub const fn may_be_split(self) -> bool {
        self.is_of_weights()
            || self.is_upload()
            || matches!(self, Self::LeaseGrant | Self::Ask | Self::Asked)
            || self.is_of_calls()
    }

    /// Returns whether a message of this kind has weights: a newer one replaces an older one that waits.
    #[must_use]
    pub const fn is_of_weights(self) -> bool {
        matches!(self, Self::WeightsUpdate | Self::HalfWeightsUpdate)
    }

    /// Returns whether a message of this kind has fragments of a lease.
    #[must_use]
    pub const fn is_upload(self) -> bool {
        matches!(self, Self::FragmentUpload | Self::AgentUpload | Self::CompressedUpload)
    }

    /// Returns whether this message must not overtake one of kind `before`, whatever their sizes: calls are done in the
    /// order in which they started; a lease may continue the one before it, and so may its fragments.
    pub(super) const fn keeps_its_place_behind(self, before: Self) -> bool {
        match self {
            Self::LeaseGrant => matches!(before, Self::LeaseGrant),
            Self::FragmentUpload | Self::AgentUpload | Self::CompressedUpload => before.is_upload(),
            Self::Ask => matches!(before, Self::Ask),
            _ => self.is_of_calls() && before.is_of_calls(),
        }
    }

    const fn is_of_calls(self) -> bool {
        matches!(self, Self::WorkerSetup | Self::Call | Self::CallResult)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Role, allow},
        *,
    };
    use crate::prelude::*;

    #[test]
    fn numbers_lead_back_to_their_kinds_and_no_others_do() {
        for byte in 0..=u8::MAX {
            match Kind::try_from(byte) {
                Ok(kind) => assert_eq!(kind.to_wire(), byte),
                Err(error) => assert!(Kind::ALL.iter().all(|kind| kind.to_wire() != byte), "{error}"),
            }
        }
        assert_eq!(Kind::try_from(0x7f).unwrap_err().to_string(), "0x7f is no kind of message that this version knows");
    }

    #[test]
    fn whatever_a_dashboard_may_say_fits_in_its_frames() {
        for &role in Role::ALL {
            let largest =
                Kind::ALL.iter().filter(|kind| allow(role, **kind)).map(|kind| kind.body_cap()).max().unwrap();
            let fits = largest + super::super::HEADER_BYTES as u32 <= role.frame_cap();
            assert_eq!(fits, role != Role::Worker, "{role:?}: what is larger comes in chunks");
        }
    }

    #[test]
    fn whatever_may_not_be_split_fits_in_a_frame() {
        for kind in Kind::ALL {
            let frame = kind.body_cap() + super::super::HEADER_BYTES as u32;
            let largest = if *kind == Kind::Chunk { MAX_FRAME_BYTES } else { CHUNK_BYTES };
            assert_eq!(frame > largest, kind.may_be_split(), "{kind:?}");
        }
    }
}
