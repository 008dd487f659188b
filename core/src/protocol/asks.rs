//! Bodies of requests to evaluation workers, addressed by name and forwarded by the hub. Like those of
//! [`message`](super::message), where they are public; their contents are untrusted.

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// A worker's request to the worker that evaluates under a name. Without a body it asks whether there is such a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Id chosen by the sender.
    pub ask: u64,
    /// Name of the worker that evaluates.
    pub name: String,
    /// The request, as in [`Call`](super::message::Call): an evaluation, or the end of all evaluations.
    #[serde(with = "crate::lists::bytes")]
    pub body: Vec<u8>,
}

/// Cancels a request: it is no longer answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskCancel {
    /// Id of the request.
    pub ask: u64,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Id of the request.
    pub ask: u64,
    /// Wire form of [`AskOutcome`](super::AskOutcome).
    pub outcome: u8,
    /// The worker's answer or error, as in [`CallResult`](super::message::CallResult); else empty.
    #[serde(with = "crate::lists::bytes")]
    pub body: Vec<u8>,
}
