//! Checks that the steps of episodes are in order.

use std::{collections::BTreeMap, mem};

use rollmesh_core::batch::SampleBatch;

use super::Steps;

/// Episode, agent and policy.
type Trajectory = (i64, i64, Option<String>);

/// The relation of a step to the last one of its trajectory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The next step, or the first step of an episode.
    Follows,
    /// The episode had already ended.
    AfterEnd,
    /// Not the next step.
    OutOfOrder { t: i64, before: i64 },
}

/// The last steps of trajectories. Ids are unique within a run only: an episode that restarts belongs to another run.
///
/// Trajectories without recent steps are dropped, so that memory is bounded.
#[derive(Debug, Default)]
pub(super) struct Order {
    /// The last `t`, and whether the episode has ended: the recent half, and the earlier half.
    recent: BTreeMap<Trajectory, Last>,
    earlier: BTreeMap<Trajectory, Last>,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    t: Option<i64>,
    ended: bool,
}

impl Order {
    /// Minimum number of trajectories to keep, those with the latest steps; the maximum is twice as many.
    const LEAST: usize = 1 << 16;

    /// Drops episodes that restart in a batch, with all of their agents, since agents need not act in the first step.
    pub(super) fn begin_runs<'a>(&mut self, policies: impl Iterator<Item = &'a SampleBatch>) {
        for steps in policies.map(Steps::of).filter(|steps| steps.has_ids) {
            for (row, (id, _)) in steps.keys.iter().enumerate() {
                let before = row.checked_sub(1).and_then(|before| steps.keys.get(before));
                if steps.t(row) == Some(0) && before.is_none_or(|(before, _)| before != id) {
                    self.forget(*id);
                }
            }
        }
    }

    fn forget(&mut self, id: i64) {
        let all = (id, i64::MIN, None)..(id.saturating_add(1), i64::MIN, None);
        for of in [&mut self.recent, &mut self.earlier] {
            of.extract_if(all.clone(), |_, _| true).for_each(drop);
        }
    }

    /// Checks the next step of a trajectory in the data. With `gaps`, one of several agents need not act at every step.
    pub(super) fn step(&mut self, trajectory: Trajectory, t: Option<i64>, end: bool, gaps: bool) -> Step {
        let earlier = self.earlier.remove(&trajectory);
        let last = self.recent.insert(trajectory, Last { t, ended: end }).or(earlier);
        if self.recent.len() > Self::LEAST {
            self.earlier = mem::take(&mut self.recent);
        }
        let Some(last) = last else { return Step::Follows };
        match (last.t, t) {
            (Some(before), Some(t)) if last.ended => match t > before {
                true => Step::AfterEnd,
                false => Step::Follows,
            },
            _ if last.ended => Step::AfterEnd,
            (Some(before), Some(t)) => match t == 0 || before.checked_add(1) == Some(t) || gaps && t > before {
                true => Step::Follows,
                false => Step::OutOfOrder { t, before },
            },
            _ => Step::Follows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollmesh_core::{
        batch::{EPS_ID, T},
        column::ColumnData,
    };

    /// Returns the relation of each step of one agent in one episode to the last one.
    fn steps(gaps: bool, of: &[(i64, bool)]) -> Vec<Step> {
        let mut order = Order::default();
        of.iter().map(|(t, end)| order.step((7, 0, None), Some(*t), *end, gaps)).collect()
    }

    #[test]
    fn single_agents_act_at_every_step() {
        use Step::{AfterEnd, Follows, OutOfOrder};
        assert_eq!(steps(false, &[(3, false), (4, false), (5, true)]), [Follows; 3], "a piece of an episode");
        assert_eq!(steps(false, &[(0, false), (2, false)]), [Follows, OutOfOrder { t: 2, before: 0 }]);
        assert_eq!(steps(false, &[(4, false), (3, false)]), [Follows, OutOfOrder { t: 3, before: 4 }]);
        assert_eq!(steps(false, &[(0, true), (1, false), (2, true)]), [Follows, AfterEnd, Follows]);
        // Another run, after an end and without one.
        assert_eq!(steps(false, &[(0, false), (1, true), (0, false), (1, false), (0, true)]), [Follows; 5]);
        let mut order = Order::default();
        let ends = [false, true, false].map(|end| order.step((7, 0, None), None, end, false));
        assert_eq!(ends, [Follows, Follows, AfterEnd], "without t");
    }

    #[test]
    fn several_agents_take_turns() {
        use Step::{AfterEnd, Follows, OutOfOrder};
        assert_eq!(steps(true, &[(4, false), (9, false), (14, true)]), [Follows; 3]);
        assert_eq!(steps(true, &[(4, false), (4, true)]), [Follows, OutOfOrder { t: 4, before: 4 }]);
        assert_eq!(steps(true, &[(4, true), (9, false)]), [Follows, AfterEnd]);
        // In another run, where other agents begin.
        let mut order = Order::default();
        let step = |order: &mut Order, t| order.step((7, 1, None), Some(t), false, true);
        assert_eq!((step(&mut order, 1), step(&mut order, 3)), (Follows, Follows));
        let column = |values: &[i64]| ColumnData::scalars(values.to_vec());
        let begins = |t| SampleBatch::new().with(EPS_ID, column(&[7])).unwrap().with(T, column(&[t])).unwrap();
        order.begin_runs([begins(4)].iter());
        assert_eq!(step(&mut order, 1), OutOfOrder { t: 1, before: 3 });
        order.begin_runs([begins(0)].iter());
        assert_eq!(step(&mut order, 1), Follows);
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let mut order = Order::default();
        let many = 3 * Order::LEAST as i64;
        // The lowest ids are the latest.
        for id in (0..many).rev() {
            order.step((id, 0, None), Some(0), false, false);
        }
        assert!(order.recent.len() + order.earlier.len() <= 2 * Order::LEAST + 1);
        for id in [0, Order::LEAST as i64 / 2, Order::LEAST as i64 - 1] {
            assert_eq!(order.step((id, 0, None), Some(5), false, false), Step::OutOfOrder { t: 5, before: 0 }, "{id}");
        }
        assert_eq!(order.step((many - 1, 0, None), Some(5), false, false), Step::Follows, "forgotten");
    }
}
