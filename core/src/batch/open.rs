//! Episodes that go on from batch to batch.

use super::{AGENT_INDEX, BatchError, SampleBatch, T, TERMINATEDS};
use crate::{column::Column, prelude::*};

/// An episode's id, and the agent whose rows they are.
pub type TrajectoryKey = (i64, i64);

/// Tells whether rows go on with an episode of earlier batches, and keeps something about each that may go on.
///
/// Ids are unique within a run only: where rows say their step, `t`, those that do not follow on the last one are of another
/// episode with the same id, and whatever is kept of the abandoned one comes back.
///
/// ```
/// use rollmesh_core::batch::{Continuation, OpenEpisodes};
///
/// let mut open = OpenEpisodes::default();
/// assert_eq!(open.place((7, 0), Some(0), false), Continuation::Begins);
/// open.leave((7, 0), Some(1), "Monday");
/// assert_eq!(open.place((7, 0), Some(1), false), Continuation::GoesOn("Monday"));
/// open.leave((7, 0), Some(2), "Monday");
/// assert_eq!(open.place((7, 0), Some(0), false), Continuation::Instead("Monday"), "of another run");
/// ```
#[derive(Clone, Debug)]
pub struct OpenEpisodes<V> {
    open: BTreeMap<TrajectoryKey, (Option<i64>, V)>,
}

/// What a row is to what was known before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuation<V> {
    /// It goes on with this one.
    GoesOn(V),
    /// It begins an episode.
    Begins,
    /// It begins an episode, and this one of the same id will not go on.
    Instead(V),
}

impl<V> Default for OpenEpisodes<V> {
    fn default() -> Self {
        Self { open: BTreeMap::new() }
    }
}

impl<V> OpenEpisodes<V> {
    /// Whether a row at step `t` follows on what was left open. Agents among several need not act at every step: with
    /// `gaps` any later step follows.
    #[must_use]
    pub fn follows(&self, key: TrajectoryKey, t: Option<i64>, gaps: bool) -> Option<bool> {
        let (next, _) = self.open.get(&key)?;
        Some(match (*next, t) {
            (Some(next), Some(t)) => t == next || gaps && t > next,
            _ => true,
        })
    }

    /// Takes out what a row at step `t` goes on with. Whoever expects more of it [leaves](Self::leave) it again.
    pub fn place(&mut self, key: TrajectoryKey, t: Option<i64>, gaps: bool) -> Continuation<V> {
        let follows = self.follows(key, t, gaps);
        match (follows, self.open.remove(&key)) {
            (Some(true), Some((_, value))) => Continuation::GoesOn(value),
            (_, Some((_, value))) => Continuation::Instead(value),
            (_, None) => Continuation::Begins,
        }
    }

    /// More may come, from this step on.
    pub fn leave(&mut self, key: TrajectoryKey, next: Option<i64>, value: V) {
        self.open.insert(key, (next, value));
    }

    /// Another file begins: where rows do not say their step, nobody knows whether it goes on with what was left open.
    /// That is given up and comes back.
    pub fn begin_file(&mut self) -> Vec<V> {
        let unknown = self.open.extract_if(.., |_, (next, _)| next.is_none());
        unknown.map(|(_, (_, value))| value).collect()
    }

    /// Forgets all agents of an episode.
    pub fn forget(&mut self, id: i64) {
        self.open.retain(|key, _| key.0 != id);
    }

    /// Whether any agent of an episode may go on.
    #[must_use]
    pub fn has(&self, id: i64) -> bool {
        self.open.range((id, i64::MIN)..=(id, i64::MAX)).next().is_some()
    }

    /// Episodes that may go on; of several agents, each one's own.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Gives up the one with the least id.
    pub fn pop_first(&mut self) -> Option<V> {
        self.open.pop_first().map(|(_, (_, value))| value)
    }

    /// All of them, by their ids.
    pub fn into_values(self) -> impl Iterator<Item = V> {
        self.open.into_values().map(|(_, value)| value)
    }
}

impl SampleBatch {
    /// Cuts the batch into rows that follow on each other: as [`split_by_episode`](Self::split_by_episode), and also where
    /// an episode ends, another agent's rows begin, or `t` does not go on by one, as far as there are such columns.
    ///
    /// # Errors
    /// As [`split_by_episode`](Self::split_by_episode).
    pub fn split_by_trajectory(&self) -> Result<Vec<Self>, BatchError> {
        let mut pieces = Vec::new();
        for piece in self.split_by_episode(None)? {
            // Sequences and padding have their own order.
            let plain = piece.seq_lens().is_none() && !piece.time_major();
            let cuts = if plain { piece.breaks()? } else { Vec::new() };
            if cuts.is_empty() {
                pieces.push(piece);
                continue;
            }
            let mut start = 0;
            for end in cuts.into_iter().chain([piece.len()]) {
                pieces.push(piece.slice_rows(start..end));
                start = end;
            }
        }
        Ok(pieces)
    }

    /// The rows that do not follow on the one before.
    fn breaks(&self) -> Result<Vec<usize>, BatchError> {
        let whole = |name: &str| match self.column(name)? {
            Column::I64(data) => Some(data.values().to_vec()),
            Column::I32(data) => Some(data.values().iter().copied().map(i64::from).collect()),
            _ => None,
        };
        let (steps, agents) = (whole(T.name()), whole(AGENT_INDEX.name()));
        let ends = if self.column(TERMINATEDS.name()).is_some() { self.dones()? } else { Vec::new() };
        let breaks = |row: &usize| {
            let pair = |column: &Option<Vec<i64>>| {
                let rows = column.as_ref()?;
                Some((*rows.get(row - 1)?, *rows.get(*row)?))
            };
            ends.get(row - 1) == Some(&true)
                || pair(&steps).is_some_and(|(before, t)| before.checked_add(1) != Some(t))
                || pair(&agents).is_some_and(|(before, agent)| before != agent)
        };
        Ok((1..self.len()).filter(breaks).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        batch::{EPS_ID, REWARDS},
        column::ColumnData,
    };

    #[test]
    fn what_does_not_follow_is_another_episode() {
        let mut open = OpenEpisodes::default();
        open.leave((1, 0), Some(5), 'a');
        open.leave((1, 1), None, 'b');
        let follows = |t, gaps| open.follows((1, 0), t, gaps);
        assert_eq!(
            [follows(Some(5), false), follows(Some(6), false), follows(Some(6), true)].map(Option::unwrap),
            [true, false, true]
        );
        assert_eq!((follows(Some(4), true), follows(None, false)), (Some(false), Some(true)));
        assert_eq!(open.follows((2, 0), Some(0), true), None);
        assert_eq!(open.place((1, 0), Some(0), true), Continuation::Instead('a'));
        assert_eq!(open.place((1, 0), Some(0), true), Continuation::Begins);
        assert_eq!((open.begin_file(), open.len(), open.has(1)), (vec!['b'], 0, false));
    }

    #[test]
    fn batches_are_cut_where_steps_do_not_follow() {
        let column = |values: &[i64]| ColumnData::scalars(values.to_vec());
        let batch = SampleBatch::new()
            .with(EPS_ID, column(&[4, 4, 4, 4, 4, 5]))
            .and_then(|batch| batch.with(T, column(&[0, 1, 3, 4, 5, 6])))
            .and_then(|batch| batch.with(REWARDS, ColumnData::scalars(vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0])))
            .unwrap();
        let rows = |batch: &SampleBatch| {
            let pieces = batch.split_by_trajectory().unwrap();
            pieces.iter().map(|piece| piece.get(REWARDS).unwrap().to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(rows(&batch), [vec![0.0, 1.0], vec![2.0, 3.0, 4.0], vec![5.0]]);
        let ends = ColumnData::scalars(vec![false, false, false, true, false, false]);
        let batch = batch.with(TERMINATEDS, ends).unwrap();
        assert_eq!(rows(&batch), [vec![0.0, 1.0], vec![2.0, 3.0], vec![4.0], vec![5.0]]);
        let batch = batch.with(AGENT_INDEX, column(&[0, 1, 1, 1, 1, 1])).unwrap();
        assert_eq!(rows(&batch), [vec![0.0], vec![1.0], vec![2.0, 3.0], vec![4.0], vec![5.0]]);
        assert!(
            SampleBatch::new().with(REWARDS, ColumnData::scalars(vec![0.0])).unwrap().split_by_trajectory().is_err()
        );
    }
}
