//! [`AgentTable`]: the agents of an external environment and the encoding of their rows.

use serde::{Deserialize, Serialize};

use crate::{
    column::{DType, LittleEndian},
    env::{
        EnvSpaces, RowsMut,
        multi_agent::{AgentRows, Outcome},
        put_rows,
    },
    ids::AgentId,
    prelude::*,
    protocol::{Kind, message::Spaces},
};

/// The agents of an external environment. On the wire an agent is a number: its index in this table.
///
/// A row is the agent's number, two little-endian bytes, and the elements of its observation or action, little-endian,
/// as many as the space has and of the type that goes with it. Rows of several agents follow each other in any order.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentTable {
    agents: Vec<(AgentId, EnvSpaces)>,
    numbers: BTreeMap<AgentId, u16>,
}

/// The reason why these agents cannot form a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AgentTableError {
    /// There are no agents, or more than two bytes can count.
    #[error("{0} agents: there must be at least one and at most {max}", max = u16::MAX)]
    Count(usize),
    /// An agent occurs more than once.
    #[error("agent {0} is there twice")]
    Twice(AgentId),
    /// One row of every agent does not fit into a message.
    #[error("observations and actions of all agents have {bytes} bytes together, a message at most {max}", max = max_row_bytes())]
    TooLarge {
        /// Bytes of the rows.
        bytes: u64,
    },
    /// The JSON text of the spaces does not fit into a message.
    #[error("the spaces of all agents are {0} bytes of text, more than a message may have")]
    LongText(usize),
    /// The text is not a list of agents with their spaces.
    #[error("the spaces cannot be read: {0}")]
    NoSpaces(String),
}

/// The content of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowKind {
    /// An observation.
    Observation,
    /// An action.
    Action,
}

/// The reason why bytes are not rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AgentRowsError {
    /// No agent has this number.
    #[error("there is no agent number {number}, the last one is {last}")]
    NoAgent {
        /// The number.
        number: u16,
        /// The largest one.
        last: u16,
    },
    /// An agent has two rows.
    #[error("agent {0} is there twice")]
    Twice(AgentId),
    /// The bytes end before the row does.
    #[error("the bytes of agent {agent} need {wanted} bytes, {found} are left")]
    Short {
        /// The agent.
        agent: AgentId,
        /// Bytes that the row needs.
        wanted: usize,
        /// Remaining bytes.
        found: usize,
    },
    /// The bytes end within an agent's number.
    #[error("a single byte is left at the end, an agent's number has two")]
    HalfNumber,
    /// An element is infinite or not a number.
    #[error("element {element} of agent {agent} is not finite")]
    NotFinite {
        /// The agent.
        agent: AgentId,
        /// Index of the element in the row.
        element: usize,
    },
    /// A boolean is neither 0 nor 1.
    #[error("element {element} of agent {agent} is {value}, a truth value is 0 or 1")]
    NotBool {
        /// The agent.
        agent: AgentId,
        /// Index of the element in the row.
        element: usize,
        /// Its value.
        value: u8,
    },
    /// The flags byte has unknown bits.
    #[error("the flags of agent {agent} are {flags}; 1 is terminated, 2 truncated, 3 both")]
    Flags {
        /// The agent.
        agent: AgentId,
        /// The flags byte.
        flags: u8,
    },
    /// An info is too long.
    #[error("the info of agent {agent} has {found} bytes, it may have {max}", max = AgentTable::MAX_INFO_BYTES)]
    LongInfo {
        /// The agent.
        agent: AgentId,
        /// Length of the info in bytes.
        found: usize,
    },
    /// A row to send is not a point of its space.
    #[error("the row of agent {0} has not the type and length of its space, or the agent is not in the table")]
    OtherSpace(AgentId),
}

/// The result of a step for one agent.
#[derive(Clone, Debug, PartialEq)]
pub struct AgentReturn {
    /// The agent.
    pub agent: AgentId,
    /// Its reward, which is finite, and whether its episode ended.
    pub outcome: Outcome,
}

/// Bytes of an agent's number.
const NUMBER: usize = 2;
/// Bytes of a step's result: reward and flags.
const RETURN: usize = 9;

/// Returns how many bytes of a message rows may take, next to its other fields.
const fn max_row_bytes() -> u64 {
    Kind::LogAction.body_cap() as u64 - 32
}

/// An agent as JSON.
#[derive(Serialize, Deserialize)]
struct AgentForm {
    agent: NameForm,
    #[serde(flatten)]
    spaces: EnvSpaces,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "an agent is an index or a name")]
enum NameForm {
    Index(u32),
    Name(String),
}

impl AgentTable {
    /// Most bytes of an info. Many infos may be queued for the sampler, which keeps them until the end of their fragment.
    pub const MAX_INFO_BYTES: usize = 16 * 1024;

    /// Creates a table of agents in this order.
    ///
    /// # Errors
    /// [`AgentTableError`] if messages could not represent them.
    pub fn new(agents: impl IntoIterator<Item = (AgentId, EnvSpaces)>) -> Result<Self, AgentTableError> {
        let agents: Vec<(AgentId, EnvSpaces)> = agents.into_iter().collect();
        if agents.is_empty() || agents.len() > usize::from(u16::MAX) {
            return Err(AgentTableError::Count(agents.len()));
        }
        let mut numbers = BTreeMap::new();
        for (number, (agent, _)) in (0..).zip(&agents) {
            if numbers.insert(agent.clone(), number).is_some() {
                return Err(AgentTableError::Twice(agent.clone()));
            }
        }
        let table = Self { agents, numbers };
        let bytes = (table.row_bytes(RowKind::Observation) + table.row_bytes(RowKind::Action)) as u64;
        if bytes > max_row_bytes() { Err(AgentTableError::TooLarge { bytes }) } else { Ok(table) }
    }

    /// Returns the bytes of one row of every agent.
    #[must_use]
    pub fn row_bytes(&self, kind: RowKind) -> usize {
        // A space has at most 2^24 elements and there are at most 2^16 agents, so nothing overflows.
        let row = |(dtype, len): (DType, usize)| NUMBER + len * dtype.size();
        self.agents.iter().map(|(_, spaces)| row(layout(spaces, kind))).sum()
    }

    /// Returns the agents in order of their numbers.
    #[must_use]
    pub fn agents(&self) -> &[(AgentId, EnvSpaces)] {
        &self.agents
    }

    /// Returns the message that announces the table to clients.
    ///
    /// # Errors
    /// [`AgentTableError::LongText`].
    pub fn spaces(&self, max_episodes: u32) -> Result<Spaces, AgentTableError> {
        let form = |(agent, spaces): &(AgentId, EnvSpaces)| AgentForm {
            agent: match agent {
                AgentId::Index(index) => NameForm::Index(*index),
                AgentId::Name(name) => NameForm::Name(name.as_ref().into()),
            },
            spaces: spaces.clone(),
        };
        let forms: Vec<AgentForm> = self.agents.iter().map(form).collect();
        let agents = serde_json::to_string(&forms).map_err(|error| AgentTableError::NoSpaces(error.to_string()))?;
        let room = Kind::Spaces.body_cap() as usize - 32;
        if agents.len() > room {
            return Err(AgentTableError::LongText(agents.len()));
        }
        Ok(Spaces { max_episodes, agents })
    }

    /// Decodes the table that a hub has announced.
    ///
    /// # Errors
    /// [`AgentTableError`] names what is wrong.
    pub fn of(spaces: &Spaces) -> Result<Self, AgentTableError> {
        let forms: Vec<AgentForm> =
            serde_json::from_str(&spaces.agents).map_err(|error| AgentTableError::NoSpaces(error.to_string()))?;
        let agent = |form: AgentForm| {
            let agent = match form.agent {
                NameForm::Index(index) => AgentId::Index(index),
                NameForm::Name(name) => AgentId::name(&name),
            };
            (agent, form.spaces)
        };
        Self::new(forms.into_iter().map(agent))
    }

    /// Reads rows into `rows`, which must be empty. Does not check whether they are points of their spaces.
    ///
    /// # Errors
    /// [`AgentRowsError`]; `rows` may contain some rows then.
    pub fn read_rows(&self, kind: RowKind, mut bytes: &[u8], rows: &mut AgentRows) -> Result<(), AgentRowsError> {
        while !bytes.is_empty() {
            let (agent, spaces) = self.take_agent(&mut bytes)?;
            if rows.get(agent).is_some() {
                return Err(AgentRowsError::Twice(agent.clone()));
            }
            let (dtype, len) = layout(spaces, kind);
            let row = take(&mut bytes, agent, len * dtype.size())?;
            read_row(agent, row, rows.row_mut(agent, dtype, len))?;
        }
        Ok(())
    }

    /// Appends rows to `out`.
    ///
    /// # Errors
    /// [`AgentRowsError::OtherSpace`].
    pub fn write_rows(&self, kind: RowKind, rows: &AgentRows, out: &mut Vec<u8>) -> Result<(), AgentRowsError> {
        for (agent, row) in rows.iter() {
            let number = self.number(agent)?;
            let spaces = self.agents.get(usize::from(number)).map(|(_, spaces)| spaces);
            if spaces.map(|spaces| layout(spaces, kind)) != Some((row.dtype(), row.len())) {
                return Err(AgentRowsError::OtherSpace(agent.clone()));
            }
            out.extend_from_slice(&number.to_le_bytes());
            put_rows(out, row);
        }
        Ok(())
    }

    /// Reads the results of a step, agent by agent.
    ///
    /// # Errors
    /// [`AgentRowsError`].
    pub fn read_returns(&self, mut bytes: &[u8]) -> Result<Vec<AgentReturn>, AgentRowsError> {
        let mut returns: Vec<AgentReturn> = Vec::with_capacity(bytes.len() / (NUMBER + RETURN));
        let mut seen = BTreeSet::new();
        while !bytes.is_empty() {
            let (agent, _) = self.take_agent(&mut bytes)?;
            if !seen.insert(agent) {
                return Err(AgentRowsError::Twice(agent.clone()));
            }
            let reward = f64::read_le(take(&mut bytes, agent, RETURN - 1)?).first().copied().unwrap_or_default();
            if !reward.is_finite() {
                return Err(AgentRowsError::NotFinite { agent: agent.clone(), element: 0 });
            }
            let (terminated, truncated) = match take(&mut bytes, agent, 1)?.first() {
                Some(flags @ 0..=3) => (flags & 1 != 0, flags & 2 != 0),
                flags => {
                    let flags = flags.copied().unwrap_or_default();
                    return Err(AgentRowsError::Flags { agent: agent.clone(), flags });
                }
            };
            returns.push(AgentReturn { agent: agent.clone(), outcome: Outcome { reward, terminated, truncated } });
        }
        Ok(returns)
    }

    /// Appends the result of a step for one agent.
    ///
    /// # Errors
    /// [`AgentRowsError::OtherSpace`] for an agent that is not in the table.
    pub fn write_return(&self, of: &AgentReturn, out: &mut Vec<u8>) -> Result<(), AgentRowsError> {
        out.extend_from_slice(&self.number(&of.agent)?.to_le_bytes());
        out.extend_from_slice(&of.outcome.reward.to_le_bytes());
        out.push(u8::from(of.outcome.terminated) | u8::from(of.outcome.truncated) << 1);
        Ok(())
    }

    /// Reads infos, agent by agent.
    ///
    /// # Errors
    /// [`AgentRowsError`].
    pub fn read_infos<'a>(&self, mut bytes: &'a [u8]) -> Result<Vec<(AgentId, &'a [u8])>, AgentRowsError> {
        let mut infos = Vec::new();
        let mut seen = BTreeSet::new();
        while !bytes.is_empty() {
            let (agent, _) = self.take_agent(&mut bytes)?;
            if !seen.insert(agent) {
                return Err(AgentRowsError::Twice(agent.clone()));
            }
            let length = u32::read_le(take(&mut bytes, agent, 4)?).first().copied().unwrap_or_default();
            let info = take(&mut bytes, agent, length as usize)?;
            if info.len() > Self::MAX_INFO_BYTES {
                return Err(AgentRowsError::LongInfo { agent: agent.clone(), found: info.len() });
            }
            infos.push((agent.clone(), info));
        }
        Ok(infos)
    }

    /// Appends an agent's info of at most [`MAX_INFO_BYTES`](Self::MAX_INFO_BYTES) bytes.
    ///
    /// # Errors
    /// [`AgentRowsError::OtherSpace`] for an agent that is not in the table.
    pub fn write_info(&self, agent: &AgentId, info: &[u8], out: &mut Vec<u8>) -> Result<(), AgentRowsError> {
        out.extend_from_slice(&self.number(agent)?.to_le_bytes());
        out.extend_from_slice(&(info.len() as u32).to_le_bytes());
        out.extend_from_slice(info);
        Ok(())
    }

    fn number(&self, agent: &AgentId) -> Result<u16, AgentRowsError> {
        self.numbers.get(agent).copied().ok_or_else(|| AgentRowsError::OtherSpace(agent.clone()))
    }

    fn take_agent(&self, bytes: &mut &[u8]) -> Result<(&AgentId, &EnvSpaces), AgentRowsError> {
        let (number, rest) = bytes.split_first_chunk::<NUMBER>().ok_or(AgentRowsError::HalfNumber)?;
        *bytes = rest;
        let number = u16::from_le_bytes(*number);
        let last = (self.agents.len().saturating_sub(1)) as u16;
        let found = self.agents.get(usize::from(number));
        found.map(|(agent, spaces)| (agent, spaces)).ok_or(AgentRowsError::NoAgent { number, last })
    }
}

/// Returns the element type and length of a row.
fn layout(spaces: &EnvSpaces, kind: RowKind) -> (DType, usize) {
    match kind {
        RowKind::Observation => (spaces.observation_type, spaces.observation.shape().elements()),
        RowKind::Action => (spaces.action_type, spaces.action.shape().elements()),
    }
}

/// Splits off the first `count` bytes.
fn take<'a>(bytes: &mut &'a [u8], agent: &AgentId, count: usize) -> Result<&'a [u8], AgentRowsError> {
    let found = bytes.len();
    let short = || AgentRowsError::Short { agent: agent.clone(), wanted: count, found };
    let (taken, rest) = bytes.split_at_checked(count).ok_or_else(short)?;
    *bytes = rest;
    Ok(taken)
}

/// Reads a row in place; the number of bytes matches.
fn read_row(agent: &AgentId, bytes: &[u8], mut row: RowsMut<'_>) -> Result<(), AgentRowsError> {
    row.read_le(bytes).map_err(|(element, value)| AgentRowsError::NotBool { agent: agent.clone(), element, value })?;
    match row.as_rows().first_not_finite() {
        None => Ok(()),
        Some(element) => Err(AgentRowsError::NotFinite { agent: agent.clone(), element }),
    }
}

#[cfg(test)]
mod tests;
