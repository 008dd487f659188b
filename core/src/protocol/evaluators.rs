//! Bodies of what evaluators tell a hub, and each other through it. As those of [`message`](super::message), where they
//! are public; nothing in here is trusted.
//!
//! An evaluator either serves under a name or asks for one who does. What the two say to each other is a stream of bytes
//! in each direction, of which the hub knows nothing.

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// The most bytes of an evaluator's name.
pub const MAX_EVALUATOR_NAME_BYTES: usize = 64;
/// The most bytes of one [`EvaluatorBytes`].
pub const MAX_EVALUATOR_BYTES: usize = 128 << 10;
/// Bytes that may be on their way from one evaluator to another: so many were not [taken](EvaluatorTaken) yet.
pub const EVALUATOR_WINDOW: usize = 1 << 20;

/// An evaluator takes a name, or asks who has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluatorName {
    /// The name: 1 to 64 printable ASCII characters.
    pub name: String,
    /// It is to be the sender's, until that leaves.
    pub serves: bool,
}

/// Who has a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluatorFound {
    /// The name.
    pub name: String,
    /// Number of the peer; 0 if nobody has it.
    pub peer: u32,
}

/// The next bytes from one evaluator to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluatorBytes {
    /// To the hub: who is to get them. From the hub: whose they are.
    pub peer: u32,
    /// The bytes, at least one.
    #[serde(with = "super::bytes")]
    pub data: Vec<u8>,
}

/// So many more bytes were read, and as many may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluatorTaken {
    /// To the hub: whose bytes they were. From the hub: who has read them.
    pub peer: u32,
    /// How many.
    pub bytes: u32,
}

/// An evaluator has left, or was never there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvaluatorGone {
    /// Number of the peer.
    pub peer: u32,
}
