//! Bodies with which dashboards and operators ask a hub, and its answers, as they are on the wire.

use serde::{Deserialize, Serialize};

use super::{
    Token,
    dashboard::{EvaluationPoint, Iteration},
};
use crate::prelude::*;

/// A command without arguments, which its kind names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the sender; the reply repeats it.
    pub request: u32,
}

/// A request about one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRequest {
    /// Chosen by the sender; the reply repeats it.
    pub request: u32,
    /// The worker's id.
    pub worker: u32,
}

/// Watches the environment of another slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// Chosen by the sender; the reply repeats it.
    pub request: u32,
    /// The slot.
    pub slot: u32,
}

/// Removes a run from the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveRun {
    /// Chosen by the sender; the reply repeats it.
    pub request: u32,
    /// The run's number.
    pub run: u32,
}

/// Requests the curves and settings of a run that has begun. Answered with [`RunHistory`], or with [`Reply`] and a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunHistoryRequest {
    /// Chosen by the sender; the answer repeats it.
    pub request: u32,
    /// The run's number.
    pub run: u32,
}

/// The curves and settings of a run, for comparison with others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunHistory {
    /// The request's number.
    pub request: u32,
    /// The run's number.
    pub run: u32,
    /// Its description, as in [`RunStart`](super::message::RunStart).
    pub config: String,
    /// Its iterations, at most [`MAX_ITERATIONS`](Self::MAX_ITERATIONS) of them.
    #[serde(with = "crate::lists::AtMost::<{ RunHistory::MAX_ITERATIONS }>")]
    pub iterations: Vec<Iteration>,
    /// Its evaluations, at most [`MAX_EVALUATIONS`](Self::MAX_EVALUATIONS) of them.
    #[serde(with = "crate::lists::AtMost::<{ RunHistory::MAX_EVALUATIONS }>")]
    pub evaluations: Vec<EvaluationPoint>,
}

impl RunHistory {
    /// Maximum number of iterations, so that a message is not too large.
    pub const MAX_ITERATIONS: usize = 2048;
    /// Maximum number of evaluations.
    pub const MAX_EVALUATIONS: usize = 512;
}

/// Begins a run, or queues it behind the active one, if the hub has a queue. The [`RunList`](super::message::RunList) before the reply includes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartRun {
    /// Chosen by the sender; the reply repeats it.
    pub request: u32,
    /// Settings of a [`RunConfig`](crate::run::RunConfig) as a JSON object; missing ones have their defaults.
    pub settings: String,
}

/// Answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The request's number.
    pub request: u32,
    /// Empty if it was executed, else the reason.
    pub error: String,
    /// Number of the run that [`StartRun`] has begun or queued, or that [`Stop`](super::Kind::Stop) has removed from the queue
    /// because none was in progress; else 0.
    pub run: u32,
}

/// Answer to a request for a worker token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerToken {
    /// The request's number.
    pub request: u32,
    /// A token of the worker role.
    pub token: Token,
}

/// Lists, creates, revokes or rotates tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManageTokens {
    /// Chosen by the sender; the reply repeats it.
    pub request: u32,
    /// Wire form of [`TokenAction`](super::TokenAction).
    pub action: u8,
    /// Wire form of the [`Role`](super::Role) of a token to create; else 0.
    pub role: u8,
    /// Id of the token to revoke or rotate; else 0.
    pub token: u32,
    /// Lifetime of a token to create, in seconds, 0 for one that never expires; for a rotation, how long the old one stays
    /// valid.
    pub seconds: u64,
}

/// The tokens of a hub, except those of its local workers: tables with an entry per token.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRows {
    /// The request's number.
    pub request: u32,
    /// Ids.
    pub ids: Vec<u32>,
    /// Wire forms of the roles.
    pub roles: Vec<u8>,
    /// Seconds since 1970 at which they expire; 0 for never.
    pub expires: Vec<u64>,
    /// Number of connections opened with them.
    pub connections: Vec<u32>,
}

/// A token that was just created. It is sent only once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewToken {
    /// The request's number.
    pub request: u32,
    /// Wire form of its role.
    pub role: u8,
    /// Second since 1970 at which it expires; 0 for never.
    pub expires: u64,
    /// The token.
    pub token: Token,
}
