//! Bodies of what is asked of workers that evaluate, by their names, and answered through the hub. As those of
//! [`message`](super::message), where they are public; nothing in here is trusted.

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// A worker asks another one, which evaluates under a name. Without a body it asks whether there is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Id of the sender's choice.
    pub ask: u64,
    /// Name of the worker that evaluates.
    pub name: String,
    /// What is to be done, as in [`Call`](super::message::Call): an evaluation, or an end of all.
    #[serde(with = "super::bytes")]
    pub body: Vec<u8>,
}

/// The answer is not wanted any more. It does not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskCancel {
    /// Id of what was asked.
    pub ask: u64,
}

/// What came of something that was asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Its id.
    pub ask: u64,
    /// Wire form of [`AskOutcome`](super::AskOutcome).
    pub outcome: u8,
    /// The worker's answer or error, as in [`CallResult`](super::message::CallResult); else empty.
    #[serde(with = "super::bytes")]
    pub body: Vec<u8>,
}
