//! Renumbering the episodes of several runs.

use std::collections::{BTreeMap, BTreeSet};

use rollmesh_core::{
    batch::{AnyBatch, BatchError, Continuation, EPS_ID, OpenEpisodes, SampleBatch},
    column::ColumnData,
};
use rollmesh_data::survey::Steps;

/// Numbers episodes from 0, in the order of their first rows. An episode that continues in the next file keeps its number;
/// an episode of another run gets a new one, even if it has the same id.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// The numbers of episodes that may continue, by agent.
    open: OpenEpisodes<i64>,
    /// The current number of an id, as long as any of its agents may continue.
    latest: BTreeMap<i64, i64>,
    next: i64,
}

impl Numbers {
    pub(super) fn begin_file(&mut self) {
        self.open.begin_file();
        self.latest.retain(|id, _| self.open.has(*id));
    }

    pub(super) fn renumber(&mut self, batch: &mut AnyBatch) -> Result<(), BatchError> {
        let gaps = batch.single().is_err();
        let mut policies: Vec<&mut SampleBatch> = match batch {
            AnyBatch::Single(rows) => vec![rows],
            AnyBatch::Multi(multi) => multi.policy_batches.values_mut().collect(),
        };
        let steps: Vec<Steps> = policies.iter().map(|rows| Steps::of(rows)).collect();
        self.forget_other_runs(&steps, gaps);
        let mut ended = BTreeSet::new();
        for (rows, steps) in policies.iter_mut().zip(&steps).filter(|(_, steps)| steps.has_ids) {
            let numbers = (0..rows.len()).map(|row| self.number(steps, row, gaps, &mut ended)).collect();
            rows.insert(EPS_ID.name(), ColumnData::scalars(numbers))?;
        }
        // Only now: the agents of an episode are in the batches of several policies.
        for id in ended.into_iter().filter(|id| !self.open.has(*id)) {
            self.latest.remove(&id);
        }
        Ok(())
    }

    /// Ends the numbers of episodes of another run: if one agent's rows do not continue, no other agent's do, whatever
    /// their order.
    fn forget_other_runs(&mut self, steps: &[Steps], gaps: bool) {
        for steps in steps.iter().filter(|steps| steps.has_ids) {
            let mut seen = BTreeSet::new();
            for (row, &key) in steps.keys.iter().enumerate() {
                if seen.insert(key) && self.open.follows(key, steps.t(row), gaps) == Some(false) {
                    self.open.forget(key.0);
                    self.latest.remove(&key.0);
                }
            }
        }
    }

    fn number(&mut self, steps: &Steps, row: usize, gaps: bool, ended: &mut BTreeSet<i64>) -> i64 {
        let Some(&key) = steps.keys.get(row) else { return 0 };
        let t = steps.t(row);
        let number = match self.open.place(key, t, gaps) {
            Continuation::GoesOn(number) => Some(number),
            // Another agent of an episode, unless its own has just ended.
            Continuation::Begins => self.latest.get(&key.0).copied(),
            // This agent is the first to change to another episode.
            Continuation::Instead(before) => self.latest.get(&key.0).copied().filter(|latest| *latest != before),
        };
        let number = number.unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        self.latest.insert(key.0, number);
        if steps.ends.get(row) == Some(&true) {
            ended.insert(key.0);
        } else {
            self.open.leave(key, t.map(|t| t.saturating_add(1)), number);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        batch::{AGENT_INDEX, MultiAgentBatch, T, TERMINATEDS},
        ids::PolicyId,
    };

    use super::*;

    /// Episode, agent, t, whether it ends.
    type Row = (i64, i64, i64, bool);

    fn rows(of: &[Row]) -> SampleBatch {
        let column = |f: fn(&Row) -> i64| ColumnData::scalars(of.iter().map(f).collect());
        let batch = SampleBatch::new().with(EPS_ID, column(|row| row.0)).unwrap();
        let batch = batch.with(AGENT_INDEX, column(|row| row.1)).unwrap().with(T, column(|row| row.2)).unwrap();
        batch.with(TERMINATEDS, ColumnData::scalars(of.iter().map(|row| row.3).collect())).unwrap()
    }

    fn numbers(numbers: &mut Numbers, mut batch: AnyBatch) -> Vec<Vec<i64>> {
        numbers.renumber(&mut batch).unwrap();
        batch.as_multi_agent().policy_batches.values().map(|rows| rows.get(EPS_ID).unwrap().to_vec()).collect()
    }

    #[test]
    fn episodes_continue_in_the_next_file_and_not_in_the_next_run() {
        let mut all = Numbers::default();
        let mut of = |rows_of: &[Row]| {
            all.begin_file();
            numbers(&mut all, rows(rows_of).into()).remove(0)
        };
        assert_eq!(of(&[(5, 0, 0, false), (9, 0, 0, false), (5, 0, 1, false)]), [0, 1, 0]);
        assert_eq!(of(&[(5, 0, 2, true), (9, 0, 1, false)]), [0, 1]);
        assert_eq!(of(&[(5, 0, 0, false), (9, 0, 0, false), (5, 0, 1, true)]), [2, 3, 2], "another run");
        assert_eq!(all.latest.len(), 1, "what has ended is forgotten");
    }

    #[test]
    fn agents_of_an_episode_stay_together() {
        let multi = |a: &[Row], b: &[Row]| {
            let batches = [("a", a), ("b", b)].map(|(id, of)| (PolicyId::new(id), rows(of)));
            AnyBatch::from(MultiAgentBatch::new(batches.into(), 1))
        };
        let mut all = Numbers::default();
        let first = multi(&[(5, 0, 0, false), (5, 0, 3, false)], &[(5, 1, 1, true), (5, 2, 3, false)]);
        assert_eq!(numbers(&mut all, first), [[0, 0], [0, 0]]);
        // The agent that has ended comes first in the other run.
        all.begin_file();
        let other = multi(&[(5, 1, 0, false), (5, 0, 0, true)], &[(5, 2, 0, false), (6, 0, 0, false)]);
        assert_eq!(numbers(&mut all, other), [[1, 1], [1, 2]]);
    }
}
