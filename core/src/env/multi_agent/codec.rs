//! Encoding of rows and turns, for environments of other processes.
//!
//! Everything is little-endian. An agent is 0 and its number (1, 4), or 1, the length of its name and the name (1, 4). Rows
//! are the number of agents (4), and for each the agent, the element type (1, as in batches: 1 to 6), the number of elements
//! (4) and those. A turn is its flags (1: all terminated, 2: all truncated, 4: common info), the observations, the number of
//! outcomes (4), each an agent, a reward (8) and flags (1: terminated, 2: truncated), the number of infos (4), each an
//! agent, a length (4) and bytes, and the common info (4 and bytes), if there is one.

use super::{AgentRows, Turn};
use crate::{
    column::DType,
    env::{EnvError, SnapshotReader, put_rows},
    ids::AgentId,
    prelude::*,
};

/// The bytes do not decode as expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these {len} bytes are no {what}")]
pub struct BadBytes {
    /// `rows of agents` or `turn`.
    pub what: &'static str,
    /// Number of bytes.
    pub len: usize,
}

/// Each element type and its number.
const TYPES: [(DType, u8); 6] =
    [(DType::F32, 1), (DType::F64, 2), (DType::I32, 3), (DType::I64, 4), (DType::U8, 5), (DType::Bool, 6)];

/// Agents of an environment are numbered with 16 bits.
const MAX_AGENTS: u32 = 1 << 16;

const TERMINATED: u8 = 1;
const TRUNCATED: u8 = 2;
const HAS_INFO: u8 = 4;

impl AgentRows {
    /// Encodes the rows. Lengths of 2^32 and more, which no space allows, are not written.
    pub fn write(&self, out: &mut Vec<u8>) {
        put_count(out, self.len());
        for (agent, row) in self.iter() {
            put_agent(out, agent);
            out.extend(TYPES.iter().find(|(dtype, _)| *dtype == row.dtype()).map(|(_, number)| number));
            put_count(out, row.len());
            put_rows(out, row);
        }
    }

    /// Decodes what [`write`](Self::write) has written, reusing the memory: nothing is allocated for agents in the same
    /// order with rows of the same length as before. The bytes are untrusted, and allocations are bounded by their number.
    ///
    /// # Errors
    /// [`BadBytes`] unless the bytes are exactly that; the rows are empty then.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), BadBytes> {
        let mut reader = SnapshotReader::new(bytes);
        let read = self.read_from(&mut reader).and_then(|()| reader.finish());
        read.map_err(|_| {
            self.clear();
            BadBytes { what: "rows of agents", len: bytes.len() }
        })
    }

    fn read_from(&mut self, reader: &mut SnapshotReader<'_>) -> Result<(), EnvError> {
        self.clear();
        let count = agents(reader)?;
        for _ in 0..count {
            let agent = agent(reader, |name| self.known(name))?;
            let number = reader.u8()?;
            let (dtype, _) = *TYPES.iter().find(|(_, known)| *known == number).ok_or_else(|| reader.bad())?;
            let len = reader.u32()? as usize;
            if len.checked_mul(dtype.size()).is_none_or(|size| size > reader.rest().len()) {
                return Err(reader.bad());
            }
            reader.rows(self.row_mut(&agent, dtype, len))?;
        }
        if self.len() == count as usize { Ok(()) } else { Err(reader.bad()) }
    }
}

impl Turn {
    /// Encodes the turn. Lengths of 2^32 and more are not written.
    pub fn write(&self, out: &mut Vec<u8>) {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let has_info = flag(self.common_info.is_some(), HAS_INFO);
        out.push(flag(self.all_terminated, TERMINATED) | flag(self.all_truncated, TRUNCATED) | has_info);
        self.obs.write(out);
        put_count(out, self.outcomes.len());
        for (agent, outcome) in self.outcomes.iter() {
            put_agent(out, agent);
            out.extend(outcome.reward.to_le_bytes());
            out.push(flag(outcome.terminated, TERMINATED) | flag(outcome.truncated, TRUNCATED));
        }
        put_count(out, self.infos.len());
        for (agent, info) in self.infos.iter() {
            put_agent(out, agent);
            put_bytes(out, info);
        }
        if let Some(info) = &self.common_info {
            put_bytes(out, info);
        }
    }

    /// Decodes what [`write`](Self::write) has written, as [`AgentRows::read`] does. Infos are allocated.
    ///
    /// # Errors
    /// [`BadBytes`] unless the bytes are exactly that; the turn is empty then.
    pub fn read(&mut self, bytes: &[u8]) -> Result<(), BadBytes> {
        let mut reader = SnapshotReader::new(bytes);
        let read = self.read_from(&mut reader).and_then(|()| reader.finish());
        read.map_err(|_| {
            self.clear();
            BadBytes { what: "turn", len: bytes.len() }
        })
    }

    fn read_from(&mut self, reader: &mut SnapshotReader<'_>) -> Result<(), EnvError> {
        self.clear();
        let flags = reader.below(HAS_INFO << 1)?;
        (self.all_terminated, self.all_truncated) = (flags & TERMINATED > 0, flags & TRUNCATED > 0);
        self.obs.read_from(reader)?;
        let count = agents(reader)?;
        for _ in 0..count {
            let agent = agent(reader, |name| self.outcomes.known(name))?;
            let reward = f64::from_bits(reader.u64()?);
            let flags = reader.below(TRUNCATED << 1)?;
            let outcome = self.outcomes.entry(&agent);
            outcome.reward = reward;
            (outcome.terminated, outcome.truncated) = (flags & TERMINATED > 0, flags & TRUNCATED > 0);
        }
        if self.outcomes.len() != count as usize {
            return Err(reader.bad());
        }
        let count = agents(reader)?;
        for _ in 0..count {
            let agent = agent(reader, |name| self.infos.known(name))?;
            self.infos.entry(&agent).extend_from_slice(bytes(reader)?);
        }
        if self.infos.len() != count as usize {
            return Err(reader.bad());
        }
        if flags & HAS_INFO > 0 {
            self.common_info = Some(bytes(reader)?.to_vec());
        }
        Ok(())
    }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend(u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

fn put_agent(out: &mut Vec<u8>, agent: &AgentId) {
    match agent {
        AgentId::Index(index) => {
            out.push(0);
            out.extend(index.to_le_bytes());
        }
        AgentId::Name(name) => {
            out.push(1);
            put_bytes(out, name.as_bytes());
        }
    }
}

fn agents(reader: &mut SnapshotReader<'_>) -> Result<u32, EnvError> {
    let count = reader.u32()?;
    if count <= MAX_AGENTS { Ok(count) } else { Err(reader.bad()) }
}

/// Reads the next agent; shares a name that is already known.
fn agent(reader: &mut SnapshotReader<'_>, known: impl FnOnce(&str) -> Option<AgentId>) -> Result<AgentId, EnvError> {
    if !reader.bool()? {
        return reader.u32().map(AgentId::Index);
    }
    let name = core::str::from_utf8(bytes(reader)?).map_err(|_| reader.bad())?;
    Ok(known(name).unwrap_or_else(|| AgentId::name(name)))
}

fn bytes<'a>(reader: &mut SnapshotReader<'a>) -> Result<&'a [u8], EnvError> {
    let len = reader.u32()? as usize;
    reader.bytes(len)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::env::RowsRef;

    /// Turns as environments may return them: numbered and named agents, rows of two types, rewards of any bits.
    fn turns() -> impl Strategy<Value = Turn> {
        let name = |agent: u32| if agent < 4 { AgentId::Index(agent) } else { AgentId::name(&format!("car_{agent}")) };
        let rows = prop::collection::vec((0u32..8, prop::collection::vec(any::<u32>(), 0..5), any::<bool>()), 0..6);
        let outcomes = prop::collection::vec((0u32..8, any::<u64>(), 0u8..4), 0..6);
        let infos = prop::collection::vec((0u32..9, prop::collection::vec(any::<u8>(), 0..5)), 0..4);
        (rows, outcomes, infos, 0u8..4).prop_map(move |(rows, outcomes, infos, flags)| {
            let mut turn = Turn::new();
            for (agent, values, floats) in rows {
                let reals: Vec<f32> = values.iter().map(|bits| f32::from_bits(*bits)).collect();
                let integers: Vec<i64> = values.iter().map(|bits| i64::from(*bits)).collect();
                let row = if floats { RowsRef::F32(&reals) } else { RowsRef::I64(&integers) };
                turn.observe(&name(agent), row);
            }
            for (agent, reward, flags) in outcomes {
                turn.outcomes.entry(&name(agent)).reward = f64::from_bits(reward);
                if flags & 1 > 0 {
                    turn.terminate(&name(agent));
                }
                if flags & 2 > 0 {
                    turn.truncate(&name(agent));
                }
            }
            for (agent, info) in infos {
                match agent {
                    8 => turn.common_info(info),
                    _ => turn.info(&name(agent), info),
                }
            }
            (turn.all_terminated, turn.all_truncated) = (flags & 1 > 0, flags & 2 > 0);
            turn
        })
    }

    fn written(turn: &Turn) -> Vec<u8> {
        let mut bytes = Vec::new();
        turn.write(&mut bytes);
        bytes
    }

    proptest! {
        /// Encoding is lossless, whatever the memory contained before: decoding and encoding again gives the same bytes.
        #[test]
        fn turn_round_trips(first in turns(), second in turns()) {
            let mut read = Turn::new();
            for turn in [&first, &second, &first] {
                let bytes = written(turn);
                prop_assert_eq!(read.read(&bytes), Ok(()));
                prop_assert_eq!(written(&read), bytes);
                prop_assert!(read.obs().iter().map(|(agent, _)| agent).eq(turn.obs().iter().map(|(agent, _)| agent)));
                prop_assert_eq!(read.is_over(), turn.is_over());
            }
        }

        /// Damaged bytes are an error or another turn.
        #[test]
        fn damaged_bytes_do_no_harm(turn in turns(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
            let mut bytes = written(&turn);
            let at = at.index(bytes.len());
            if cut { bytes.truncate(at) } else { bytes[at] = byte }
            let mut read = turn.clone();
            match read.read(&bytes) {
                Ok(()) => prop_assert_eq!(written(&read), bytes),
                Err(error) => {
                    prop_assert_eq!(error, BadBytes { what: "turn", len: bytes.len() });
                    prop_assert_eq!(written(&read), written(&Turn::new()));
                }
            }
        }

        #[test]
        fn noise_is_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut rows = AgentRows::new();
            if rows.read(&bytes).is_ok() {
                let mut again = Vec::new();
                rows.write(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn lengths_are_checked_before_allocating() {
        let mut rows = AgentRows::new();
        // One agent, number 0, that claims four billion 64-bit floats.
        let claim = [1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0xFF, 0xFF, 0xFF, 0xFF];
        let error = rows.read(&claim).unwrap_err();
        assert_eq!(error.to_string(), "these 14 bytes are no rows of agents");
        // The same agent twice.
        let one = [0, 3, 0, 0, 0, 5, 1, 0, 0, 0, 9];
        assert!(rows.read(&[&[2, 0, 0, 0][..], &one, &one].concat()).is_err());
        assert!(rows.read(&[&[1, 0, 0, 0][..], &one].concat()).is_ok());
        assert_eq!(rows.row_of::<u8>(&AgentId::Index(3)), Some(&[9][..]));
        assert!(rows.read(&[0xFF; 4]).is_err() && rows.is_empty());
    }
}
