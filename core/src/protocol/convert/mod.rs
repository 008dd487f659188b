//! Conversion between message bodies and the types that the rest of the crate trusts: the only place where it happens.
//!
//! Everything that a peer claims is validated here, once: table lengths against each other, byte strings against their
//! tables, numbers against their ranges, floats for being finite. Values that pass need no more checks; anything else
//! is an error that names the place. Allocations are bounded by the bytes received, not by the lengths that a message
//! claims.

mod agent_episodes;
mod agent_fragments;
mod agents;
mod compressed;
mod delta;
mod elements;
mod fragment;
#[cfg(test)]
mod fragment_tests;
mod half_weights;
mod lease;
mod limits;
mod pieces;
mod upload;
mod upload_error;
mod weights;
mod weights_reader;

pub use agent_fragments::{agent_fragments, agent_upload};
pub use agents::{AgentReturn, AgentRowsError, AgentTable, AgentTableError, RowKind};
pub use compressed::{CompressedError, compressed, decompressed, decompressed_bytes};
pub(crate) use delta::without_known;
pub use delta::{complete_states, has_deltas};
pub use elements::ValueFault;
pub use fragment::slot_fragments;
pub(crate) use half_weights::weights_of_notice;
pub use half_weights::{half_weights, half_weights_update};
pub use lease::{LeaseGrantError, lease, lease_grant};
pub use limits::FragmentLimits;
pub(super) use pieces::WireCut;
pub use upload::{EncodeError, fragment_upload};
pub use upload_error::{CutFault, EpisodeFault, UploadError};
pub use weights::{WeightsUpdateError, readable_weights_update, weights, weights_frame, weights_in, weights_update};
pub(super) use weights_reader::WeightsReader;
