//! Bodies of what clients say that drive episodes, and of what they hear. As those of [`message`](super::message),
//! where they are public; nothing in here is trusted.
//!
//! Rows of several agents are one byte string: for each agent its number, two little-endian bytes, and then its row. How
//! long a row is, and of which type its elements are, follows from the spaces, see
//! [`convert::AgentTable`](super::convert::AgentTable).

use serde::{Deserialize, Serialize};

use crate::prelude::*;

/// What a client has to know to drive episodes: the first message after the welcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spaces {
    /// The most episodes that may be open at once, those of all clients together.
    pub max_episodes: u32,
    /// The agents with their spaces as JSON text. An agent's number is its place in this list.
    pub agents: String,
}

/// A client begins an episode. The answer says when it has begun: a client that wants more than there is room for waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartEpisode {
    /// The client's number for it, not one of an episode that it has open.
    pub episode: u32,
    /// Whether its rows are to be learned from.
    pub training: bool,
}

/// A client asks for the actions of the agents that have observed something. They are the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GetAction {
    /// The episode.
    pub episode: u32,
    /// Rows of observations.
    #[serde(with = "super::bytes")]
    pub observations: Vec<u8>,
}

/// A client has acted by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogAction {
    /// The episode.
    pub episode: u32,
    /// Rows of observations.
    #[serde(with = "super::bytes")]
    pub observations: Vec<u8>,
    /// Rows of the actions that were taken, of the same agents.
    #[serde(with = "super::bytes")]
    pub actions: Vec<u8>,
}

/// What the latest actions brought. Has no answer unless something is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogReturns {
    /// The episode.
    pub episode: u32,
    /// For each agent its number, its reward as a 64-bit float, and a byte: 1 it has terminated, 2 it was truncated.
    #[serde(with = "super::bytes")]
    pub returns: Vec<u8>,
    /// For each agent that has one its number, the info's length in four bytes, and the info.
    #[serde(with = "super::bytes")]
    pub infos: Vec<u8>,
}

/// The episode is over for all agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndEpisode {
    /// The episode.
    pub episode: u32,
    /// It ends for another reason than a terminal state.
    pub truncated: bool,
    /// Rows of the last observations.
    #[serde(with = "super::bytes")]
    pub observations: Vec<u8>,
}

/// The episode is given up: what nobody has sampled of it is discarded.
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
    /// Rows of the actions to be taken.
    #[serde(with = "super::bytes")]
    pub actions: Vec<u8>,
}

/// Something was done, or why not. The connection goes on either way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeReply {
    /// The episode.
    pub episode: u32,
    /// Wire form of the [`Kind`](super::Kind) that this is about.
    pub about: u8,
    /// Wire form of [`EpisodeCode`](super::EpisodeCode).
    pub code: u8,
    /// What is wrong, for people; empty if it was done.
    pub reason: String,
}
