//! Tracks episodes that continue from batch to batch.

use super::{AGENT_INDEX, BatchError, SampleBatch, T, TERMINATEDS};
use crate::{column::Column, prelude::*};

/// An episode's id, and the index of the agent.
pub type TrajectoryKey = (i64, i64);

/// Decides whether rows continue an episode of earlier batches, and keeps a value for each episode that may continue.
///
/// Ids are unique within a run only. Where rows have their step number, `t`, rows that do not follow the last known step
/// belong to another episode with the same id, and the value kept for the abandoned episode is returned.
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

/// The relation of a row to the known episodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Continuation<V> {
    /// The row continues the episode with this value.
    GoesOn(V),
    /// The row begins an episode.
    Begins,
    /// The row begins an episode; the known one with the same id and this value will not continue.
    Instead(V),
}

impl<V> Default for OpenEpisodes<V> {
    fn default() -> Self {
        Self { open: BTreeMap::new() }
    }
}

impl<V> OpenEpisodes<V> {
    /// Returns whether a row at step `t` continues an open episode. With `gaps`, any later step does, since one of several
    /// agents need not act at every step.
    #[must_use]
    pub fn follows(&self, key: TrajectoryKey, t: Option<i64>, gaps: bool) -> Option<bool> {
        let (next, _) = self.open.get(&key)?;
        Some(match (*next, t) {
            (Some(next), Some(t)) => t == next || gaps && t > next,
            _ => true,
        })
    }

    /// Removes and returns the value of the episode that a row at step `t` continues. A caller that expects more rows
    /// [leaves](Self::leave) it again.
    pub fn place(&mut self, key: TrajectoryKey, t: Option<i64>, gaps: bool) -> Continuation<V> {
        let follows = self.follows(key, t, gaps);
        match (follows, self.open.remove(&key)) {
            (Some(true), Some((_, value))) => Continuation::GoesOn(value),
            (_, Some((_, value))) => Continuation::Instead(value),
            (_, None) => Continuation::Begins,
        }
    }

    /// Keeps a value for an episode that may continue, from this step on.
    pub fn leave(&mut self, key: TrajectoryKey, next: Option<i64>, value: V) {
        self.open.insert(key, (next, value));
    }

    /// Begins another file: without step numbers, the rows of the file cannot be matched to open episodes. Abandons those
    /// episodes and returns their values.
    pub fn begin_file(&mut self) -> Vec<V> {
        let unknown = self.open.extract_if(.., |_, (next, _)| next.is_none());
        unknown.map(|(_, (_, value))| value).collect()
    }

    /// Forgets all agents of an episode.
    pub fn forget(&mut self, id: i64) {
        self.open.retain(|key, _| key.0 != id);
    }

    /// Returns whether any agent of an episode may continue.
    #[must_use]
    pub fn has(&self, id: i64) -> bool {
        self.open.range((id, i64::MIN)..=(id, i64::MAX)).next().is_some()
    }

    /// Returns the number of open episodes, counted per agent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns whether no episode is open.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Abandons the open episode with the lowest id, and returns its value.
    pub fn pop_first(&mut self) -> Option<V> {
        self.open.pop_first().map(|(_, (_, value))| value)
    }

    /// Returns all values, ordered by id.
    pub fn into_values(self) -> impl Iterator<Item = V> {
        self.open.into_values().map(|(_, value)| value)
    }
}

impl SampleBatch {
    /// Splits the batch into runs of consecutive rows: as [`split_by_episode`](Self::split_by_episode), and also where an
    /// episode ends, another agent's rows begin, or `t` does not increase by one, as far as these columns exist.
    ///
    /// # Errors
    /// The errors of [`split_by_episode`](Self::split_by_episode).
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

    /// Returns the rows that do not follow the previous row.
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
    fn step_that_does_not_follow_starts_another_episode() {
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
