//! Rows of several agents, of any element types, in reused buffers.

use super::roster::Roster;
use crate::{
    column::{DType, Element, RowBuffer},
    env::{RowsMut, RowsRef},
    ids::AgentId,
};

/// One row per agent: their observations, or their actions. Refilling it allocates nothing.
#[derive(Clone, Debug)]
pub struct AgentRows {
    spans: Roster<RowSpan>,
    /// The elements, by type: that of a `DType` is at its number.
    buffers: [RowBuffer; 6],
}

/// The range of a row in the buffer of its element type.
#[derive(Clone, Copy, Debug)]
struct RowSpan {
    dtype: DType,
    start: usize,
    len: usize,
}

impl Default for RowSpan {
    fn default() -> Self {
        Self { dtype: DType::F32, start: 0, len: 0 }
    }
}

impl Default for AgentRows {
    fn default() -> Self {
        Self { spans: Roster::default(), buffers: DType::ALL.map(RowBuffer::new) }
    }
}

impl AgentRows {
    /// Creates it without rows.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the row of an environment's only agent.
    #[must_use]
    pub fn single(row: RowsRef<'_>) -> Self {
        let mut rows = Self::new();
        rows.set(&AgentId::SINGLE, row);
        rows
    }

    /// Removes all rows and keeps the memory.
    pub fn clear(&mut self) {
        self.spans.clear();
        self.buffers.iter_mut().for_each(|buffer| buffer.resize(0));
    }

    /// Sets an agent's row. A row that the agent has already is replaced.
    pub fn set(&mut self, agent: &AgentId, row: RowsRef<'_>) {
        let buffer = &mut self.buffers[row.dtype() as usize];
        let start = buffer.len();
        buffer.push(row);
        *self.spans.entry(agent) = RowSpan { dtype: row.dtype(), start, len: row.len() };
    }

    /// Sets an agent's row to `len` zeros, and returns it mutably.
    pub fn row_mut(&mut self, agent: &AgentId, dtype: DType, len: usize) -> RowsMut<'_> {
        let buffer = &mut self.buffers[dtype as usize];
        let start = buffer.len();
        buffer.push_zeros(len);
        *self.spans.entry(agent) = RowSpan { dtype, start, len };
        buffer.part_mut(start..start + len)
    }

    /// Returns an agent's row, if it has one.
    #[must_use]
    pub fn get(&self, agent: &AgentId) -> Option<RowsRef<'_>> {
        self.get_near(agent, 0)
    }

    /// Does the same as [`get`](Self::get), without a search if the agent was added as number `hint`.
    pub(crate) fn get_near(&self, agent: &AgentId, hint: usize) -> Option<RowsRef<'_>> {
        self.spans.get(agent, hint).map(|span| self.row(span))
    }

    /// Returns an agent's row, if it has one of this element type: `row_of::<i64>(agent)`.
    #[must_use]
    pub fn row_of<T: Element>(&self, agent: &AgentId) -> Option<&[T]> {
        self.get(agent).and_then(T::rows)
    }

    /// Returns an agent of that name that has or had a row.
    pub(super) fn known(&self, name: &str) -> Option<AgentId> {
        self.spans.known(name)
    }

    /// Removes an agent's row.
    pub fn remove(&mut self, agent: &AgentId) {
        self.spans.remove(agent);
    }

    /// Iterates over all rows in the order in which their agents were added.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&AgentId, RowsRef<'_>)> {
        self.spans.iter().map(|(agent, span)| (agent, self.row(span)))
    }

    /// Returns the number of agents with a row.
    #[must_use]
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns true without rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn row(&self, span: &RowSpan) -> RowsRef<'_> {
        // The span refers to this very buffer.
        self.buffers[span.dtype as usize].part(span.start..span.start + span.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    #[test]
    fn rows_of_every_type_round_trip() {
        let agents: Vec<AgentId> = (0..6).map(AgentId::Index).collect();
        let mut rows = AgentRows::new();
        for _ in 0..2 {
            rows.clear();
            rows.set(&agents[0], RowsRef::F32(&[1.5]));
            rows.set(&agents[1], RowsRef::F64(&[2.5, 3.5]));
            rows.set(&agents[2], RowsRef::I32(&[-4]));
            rows.set(&agents[3], RowsRef::I64(&[5, 6]));
            rows.set(&agents[4], RowsRef::U8(&[7]));
            rows.set(&agents[5], RowsRef::Bool(&[true]));
            assert_eq!(rows.row_of::<f32>(&agents[0]), Some(&[1.5][..]));
            assert_eq!(rows.row_of::<f64>(&agents[1]), Some(&[2.5, 3.5][..]));
            assert_eq!(rows.row_of::<i32>(&agents[2]), Some(&[-4][..]));
            assert_eq!(rows.row_of::<i64>(&agents[3]), Some(&[5, 6][..]));
            assert_eq!(rows.row_of::<u8>(&agents[4]), Some(&[7][..]));
            assert_eq!(rows.row_of::<bool>(&agents[5]), Some(&[true][..]));
            assert_eq!(rows.row_of::<i64>(&agents[0]), None);
            assert!(rows.iter().map(|(agent, _)| agent).eq(&agents));
        }
    }

    #[test]
    fn a_row_is_replaced_forgotten_and_written_in_place() {
        let [a, b] = [AgentId::name("a"), AgentId::name("b")];
        let mut rows = AgentRows::new();
        rows.set(&a, RowsRef::I64(&[1]));
        rows.set(&b, RowsRef::I64(&[2]));
        rows.set(&a, RowsRef::F32(&[3.0, 4.0]));
        assert_eq!((rows.len(), rows.row_of::<f32>(&a)), (2, Some(&[3.0, 4.0][..])));
        let RowsMut::I64(row) = rows.row_mut(&b, DType::I64, 3) else { panic!("not int64") };
        row[1] = 9;
        assert_eq!(rows.row_of::<i64>(&b), Some(&[0, 9, 0][..]));
        rows.remove(&a);
        assert!(rows.get(&a).is_none() && rows.len() == 1 && !rows.is_empty());
    }
}
