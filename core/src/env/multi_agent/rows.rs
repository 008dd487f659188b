//! Rows of several agents, of whatever element types, in buffers that are used again.

use crate::{
    column::DType,
    env::{RowElement as _, RowsRef},
    ids::AgentId,
    prelude::*,
};

/// One row per agent: their observations, or their actions. Filling it again allocates nothing once it has been full.
#[derive(Clone, Debug, Default)]
pub struct AgentRows {
    entries: Vec<Entry>,
    f32s: Vec<f32>,
    f64s: Vec<f64>,
    i32s: Vec<i32>,
    i64s: Vec<i64>,
    u8s: Vec<u8>,
    bools: Vec<bool>,
}

#[derive(Clone, Debug)]
struct Entry {
    agent: AgentId,
    dtype: DType,
    start: usize,
    len: usize,
}

impl AgentRows {
    /// No rows.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.f32s.clear();
        self.f64s.clear();
        self.i32s.clear();
        self.i64s.clear();
        self.u8s.clear();
        self.bools.clear();
    }

    /// Sets an agent's row. A row that the agent has already is replaced.
    pub fn set(&mut self, agent: &AgentId, row: RowsRef<'_>) {
        macro_rules! append {
            ($values:ident, $row:ident) => {{
                let start = self.$values.len();
                self.$values.extend_from_slice($row);
                start
            }};
        }
        let start = match row {
            RowsRef::F32(row) => append!(f32s, row),
            RowsRef::F64(row) => append!(f64s, row),
            RowsRef::I32(row) => append!(i32s, row),
            RowsRef::I64(row) => append!(i64s, row),
            RowsRef::U8(row) => append!(u8s, row),
            RowsRef::Bool(row) => append!(bools, row),
        };
        let (dtype, len) = (row.dtype(), row.len());
        match self.entries.iter_mut().find(|entry| entry.agent == *agent) {
            Some(entry) => (entry.dtype, entry.start, entry.len) = (dtype, start, len),
            None => self.entries.push(Entry { agent: agent.clone(), dtype, start, len }),
        }
    }

    /// An agent's row, if it has one.
    #[must_use]
    pub fn get(&self, agent: &AgentId) -> Option<RowsRef<'_>> {
        self.entries.iter().find(|entry| entry.agent == *agent).map(|entry| self.row(entry))
    }

    /// Forgets an agent's row.
    pub fn remove(&mut self, agent: &AgentId) {
        self.entries.retain(|entry| entry.agent != *agent);
    }

    /// All rows in the order in which their agents came.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&AgentId, RowsRef<'_>)> {
        self.entries.iter().map(|entry| (&entry.agent, self.row(entry)))
    }

    /// Number of agents with a row.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn row(&self, entry: &Entry) -> RowsRef<'_> {
        // `set` made the range from the very buffer.
        macro_rules! part {
            ($values:ident) => {
                self.$values.get(entry.start..entry.start + entry.len).unwrap_or_default()
            };
        }
        match entry.dtype {
            DType::F32 => f32::erase_rows(part!(f32s)),
            DType::F64 => f64::erase_rows(part!(f64s)),
            DType::I32 => i32::erase_rows(part!(i32s)),
            DType::I64 => i64::erase_rows(part!(i64s)),
            DType::U8 => u8::erase_rows(part!(u8s)),
            DType::Bool => bool::erase_rows(part!(bools)),
        }
    }
}
