//! Inference for other workers: one worker, with a GPU for example, computes the outputs of the networks of many that sample.
//!
//! A worker that samples acts by a [`Forward`](crate::policy::Forward) that [sends its rows](forward_by) and waits for the
//! answer; encoding before and drawing after stay with it. An [`InferenceServer`] puts the rows of many workers together.
//! Every request and every answer name the version of the weights, and rows are never computed with another one.

mod batcher;
mod remote;
mod server;
#[cfg(test)]
mod tests;

use batcher::Batcher;
pub use remote::forward_by;
pub use server::InferenceServer;

/// Most bytes of rows, or of their outputs, in a message: the rest is for its header, names and lengths.
const MAX_ROW_BYTES: usize = crate::protocol::CHUNK_BYTES as usize - 1_024;
