//! The protocol between a worker and the process of a sub-environment.
//!
//! A message is a number (8 bytes), the length of the body (4), a kind (1), three zeros, and the body. Requests are numbered
//! from a random start, so an answer must repeat the number. One-off content is JSON, the content of every step is binary.
//! The bodies here are those of a process with one environment; those of a host of many Python environments are in
//! [`python`](crate::envs::python).

use rollmesh_core::{
    env::{EnvError, EnvSpaces},
    ids::AgentId,
    worker::RemoteEnvSpec,
};
use serde::{Deserialize, Serialize};

/// Length of the head in bytes.
pub(super) const HEAD: usize = 16;

/// Maximum length of a body. The largest allowed observation is 128 MiB; a step has at most one of that size.
pub(super) const MAX_BODY: usize = 160 << 20;

/// Kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::envs) enum ChildRequest {
    /// Make an environment: [`MakeRequest`].
    Make = 1,
    /// Reset to an episode: its number (4).
    Reset = 2,
    /// Step: 1 if owed rewards and ends have been delivered, else 0 (1), and actions.
    Step = 3,
    /// Render a picture.
    Render = 4,
    /// Exit.
    Stop = 5,
    /// For a host of Python environments: close a group's environments.
    Close = 6,
    /// For a host: the state of a lane's simulator.
    Save = 7,
    /// For a host: continue a lane from such a state.
    Restore = 8,
    /// For a host: the fingerprint of an environment.
    Fingerprint = 9,
}

/// Kinds of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in crate::envs) enum ChildReply {
    /// The environment was made: [`MadeEnv`].
    Made = 1,
    /// A turn: its length (4), that of the owed part (4), both, and the spaces of new agents as JSON.
    Turn = 2,
    /// A picture: width and height (4 each), and pixels. Empty if there is none.
    Picture = 3,
    /// The environment has failed, or cannot do what was requested: [`ChildError`].
    Failed = 4,
}

impl ChildRequest {
    pub(super) fn of(byte: u8) -> Option<Self> {
        // Processes of one environment get no others.
        [Self::Make, Self::Reset, Self::Step, Self::Render, Self::Stop].into_iter().find(|kind| *kind as u8 == byte)
    }
}

impl ChildReply {
    pub(super) fn of(byte: u8) -> Option<Self> {
        [Self::Made, Self::Turn, Self::Picture, Self::Failed].into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// The head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) number: u64,
    pub(super) len: usize,
    pub(super) kind: u8,
}

impl Head {
    /// Decodes a head; `None` if it is invalid.
    pub(super) fn read(bytes: [u8; HEAD]) -> Option<Self> {
        let [n0, n1, n2, n3, n4, n5, n6, n7, l0, l1, l2, l3, kind, 0, 0, 0] = bytes else { return None };
        let number = u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        (len <= MAX_BODY).then_some(Self { number, len, kind })
    }
}

/// Encodes a message into a reused buffer. `None` if the body is too long.
pub(super) fn message(out: &mut Vec<u8>, number: u64, kind: u8, body: impl FnOnce(&mut Vec<u8>)) -> Option<()> {
    out.clear();
    out.extend(number.to_le_bytes());
    out.extend([0, 0, 0, 0, kind, 0, 0, 0]);
    body(out);
    let len = out.len() - HEAD;
    let len = u32::try_from(len).ok().filter(|_| len <= MAX_BODY)?;
    out[8..12].copy_from_slice(&len.to_le_bytes());
    Some(())
}

/// Splits off a part whose length is in the first four bytes.
pub(in crate::envs) fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
}

/// Appends the bytes that `write` writes, preceded by their length.
pub(in crate::envs) fn put_part(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend([0; 4]);
    write(out);
    let len = u32::try_from(out.len() - at - 4).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&len.to_le_bytes());
}

/// Describes the environment that a process makes.
#[derive(Serialize, Deserialize)]
pub(super) struct MakeRequest {
    pub(super) spec: RemoteEnvSpec,
    /// Memory limit in MiB; 0 for none.
    pub(super) memory_mb: u32,
}

/// Describes an environment that was made.
#[derive(Serialize, Deserialize)]
pub(super) struct MadeEnv {
    pub(super) is_wrapped: bool,
    /// The agents that are known beforehand.
    pub(super) agents: Vec<SpacesOf>,
}

/// The spaces of an agent.
#[derive(Serialize, Deserialize)]
pub(in crate::envs) struct SpacesOf {
    pub(in crate::envs) agent: AgentId,
    #[serde(flatten)]
    pub(in crate::envs) spaces: EnvSpaces,
}

/// An error of the environment, without an index: it is the only one of its process.
#[derive(Serialize, Deserialize)]
pub(super) enum ChildError {
    Failed(String),
    InvalidAction(String),
    BadObservation { agent: AgentId, reason: String },
    BadReward { agent: AgentId, reward: String },
    UnknownAgent { agent: AgentId },
    BadAction { agent: AgentId, reason: String },
}

impl From<EnvError> for ChildError {
    fn from(error: EnvError) -> Self {
        match error {
            EnvError::Failed(reason) => Self::Failed(reason),
            EnvError::InvalidAction { action, .. } => Self::InvalidAction(action),
            EnvError::BadObservation { agent, reason, .. } => Self::BadObservation { agent, reason },
            EnvError::BadReward { agent, reward, .. } => Self::BadReward { agent, reward },
            EnvError::UnknownAgent { agent, .. } => Self::UnknownAgent { agent },
            EnvError::BadAction { agent, reason, .. } => Self::BadAction { agent, reason },
            other => Self::Failed(other.to_string()),
        }
    }
}

impl ChildError {
    /// Converts it to the error of a sub-environment of the worker.
    pub(super) fn of(self, env: usize) -> EnvError {
        match self {
            Self::Failed(reason) => EnvError::Failed(format!("{reason} (in the process of environment {env})")),
            Self::InvalidAction(action) => EnvError::InvalidAction { lane: env, action },
            Self::BadObservation { agent, reason } => EnvError::BadObservation { env, agent, reason },
            Self::BadReward { agent, reward } => EnvError::BadReward { env, agent, reward },
            Self::UnknownAgent { agent } => EnvError::UnknownAgent { env, agent },
            Self::BadAction { agent, reason } => EnvError::BadAction { env, agent, reason },
        }
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::env::EnvRegistry;

    use super::*;

    #[test]
    fn heads_that_promise_too_much_are_none() {
        let mut bytes = Vec::new();
        message(&mut bytes, 7, ChildReply::Turn as u8, |out| out.extend([1, 2, 3])).unwrap();
        let head: [u8; HEAD] = bytes[..HEAD].try_into().unwrap();
        assert_eq!(Head::read(head), Some(Head { number: 7, len: 3, kind: 2 }));
        assert_eq!(Head::read([0xFF; HEAD]), None);
        let mut long = head;
        long[8..12].copy_from_slice(&(MAX_BODY as u32 + 1).to_le_bytes());
        assert_eq!(Head::read(long), None);
    }

    #[test]
    fn spaces_of_all_environments_round_trip() {
        for spec in EnvRegistry::builtin().iter() {
            let spaces = spec.spaces().unwrap();
            let text = serde_json::to_string(&SpacesOf { agent: AgentId::SINGLE, spaces: spaces.clone() }).unwrap();
            let read: SpacesOf = serde_json::from_str(&text).unwrap();
            assert_eq!((read.agent, read.spaces), (AgentId::SINGLE, spaces), "{}", spec.name);
        }
    }

    #[test]
    fn parts_end_where_they_say() {
        let mut out = Vec::new();
        put_part(&mut out, |out| out.extend([7, 8]));
        out.push(9);
        assert_eq!(part(&out), Some((&[7, 8][..], &[9][..])));
        assert_eq!((part(&out[..5]), part(&[1])), (None, None));
    }
}
