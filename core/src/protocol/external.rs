//! Bodies of messages between clients that drive episodes and the hub. Like those of [`message`](super::message), where they
//! are public; their contents are untrusted.
//!
//! Rows of several agents are one byte string: for each agent its number, two little-endian bytes, and then its row. How
//! long a row is, and of which type its elements are, follows from the spaces, see
//! [`convert::AgentTable`](super::convert::AgentTable).

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// Announces the environment's agents and spaces to a client: the first message after the welcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spaces {
    /// Most episodes that may be open at the same time, over all clients.
    pub max_episodes: u32,
    /// The agents with their spaces as JSON text. An agent's number is its place in this list.
    pub agents: String,
}

/// Begins an episode. The answer is sent when it has begun: without a free lane the client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartEpisode {
    /// The client's number for it, different from those of its open episodes.
    pub episode: u32,
    /// Whether its rows are training data.
    pub training: bool,
}

/// Requests the actions of the agents that have observed something. [`Actions`] is the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetAction {
    /// The episode.
    pub episode: u32,
    /// Rows of observations.
    #[serde(with = "crate::lists::bytes")]
    pub observations: Vec<u8>,
}

/// Logs actions that the client has chosen by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogAction {
    /// The episode.
    pub episode: u32,
    /// Rows of observations.
    #[serde(with = "crate::lists::bytes")]
    pub observations: Vec<u8>,
    /// Rows of the actions taken by the same agents.
    #[serde(with = "crate::lists::bytes")]
    pub actions: Vec<u8>,
}

/// Logs the results of the latest actions. Answered only if something is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogReturns {
    /// The episode.
    pub episode: u32,
    /// For each agent its number, its reward as a 64-bit float, and a byte: 1 if it has terminated, 2 if it was truncated.
    #[serde(with = "crate::lists::bytes")]
    pub returns: Vec<u8>,
    /// For each agent that has an info: its number, the info's length in four bytes, and the info.
    #[serde(with = "crate::lists::bytes")]
    pub infos: Vec<u8>,
}

/// Ends the episode for all agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndEpisode {
    /// The episode.
    pub episode: u32,
    /// Whether it ends for another reason than a terminal state.
    pub truncated: bool,
    /// Rows of the last observations.
    #[serde(with = "crate::lists::bytes")]
    pub observations: Vec<u8>,
}

/// Abandons the episode: what the sampler has not read of it is discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbandonEpisode {
    /// The episode.
    pub episode: u32,
}

/// The answer to [`GetAction`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actions {
    /// The episode.
    pub episode: u32,
    /// Rows of the actions to take.
    #[serde(with = "crate::lists::bytes")]
    pub actions: Vec<u8>,
}

/// Confirms that a message was handled, or gives the reason why not. The connection stays open either way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeReply {
    /// The episode.
    pub episode: u32,
    /// Wire form of the [`Kind`](super::Kind) of the message that this answers.
    pub about: u8,
    /// Wire form of [`EpisodeCode`](super::EpisodeCode).
    pub code: u8,
    /// The error, as text; empty if the message was handled.
    pub reason: String,
}
