//! Agreement between the learners of all ranks, so that together they are one learner of all their rows.
//!
//! The rows of all ranks stand one after the other, in the order of ranks, as in a batch that was joined from theirs;
//! so do the units, single rows or sequences, that may be put into any order. Every rank shuffles the numbers of all
//! units in the same way, and a minibatch is what one learner of the joined batch would take: each rank has its own
//! part of it, perhaps none. Sums over its rows, gradients among them, are then sums over ranks of sums over own rows.

use rollmesh_core::{
    hash::{bytes_hash, weights_hash},
    policy::{AllReduce, AllReduceError},
};
use serde::{Deserialize, Serialize};

use super::{
    error::LearnError,
    rows::TrainRows,
    stale::LagStats,
    stats::{Moments, explained_variance},
    update::Learner,
};

/// The ranks that learn together, or one learner by itself.
pub(super) struct Ranks<'a>(Option<&'a mut dyn AllReduce>);

/// The data of all ranks that an update needs before its first step. A learner by itself has only its own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Joined {
    /// Rows of all ranks.
    pub(super) rows: u64,
    /// Units of all ranks.
    pub(super) units: usize,
    /// The index of the first own unit among them.
    first_unit: usize,
    own_units: usize,
    pub(super) logp_gap: f64,
    pub(super) explained_variance: f64,
    /// Rank 0's seed of shuffles, and its clock of annealing and adaptive coefficient before the update.
    pub(super) seed: u64,
    pub(super) env_steps: u64,
    pub(super) adaptive: f64,
    /// The lag of the own rows.
    pub(super) lag: LagStats,
}

impl Joined {
    /// Returns the own ones of these units of all ranks, by their own numbers.
    pub(super) fn own(&self, units: &[u32]) -> Vec<u32> {
        let own = |unit: &u32| (*unit as usize).checked_sub(self.first_unit).filter(|&own| own < self.own_units);
        units.iter().filter_map(own).map(|own| own as u32).collect()
    }
}

impl<'a> Ranks<'a> {
    pub(super) fn alone() -> Self {
        Self(None)
    }

    /// Returns the ranks of a group; a group of one rank is a learner by itself.
    pub(super) fn of(group: &'a mut dyn AllReduce) -> Self {
        Self(Some(group).filter(|group| group.world_size() > 1))
    }

    /// Returns the group, if there are other ranks.
    pub(super) fn others(&mut self) -> Option<&mut (dyn AllReduce + 'a)> {
        self.0.as_deref_mut()
    }

    pub(super) fn are_there(&self) -> bool {
        self.0.is_some()
    }

    /// Agrees on an update with the other ranks. This rank has these rows or none.
    pub(super) fn meet(&mut self, learner: &Learner, rows: Option<&TrainRows>) -> Result<Joined, LearnError> {
        let own = Plan::of(learner, rows, self.are_there())?;
        let lag = rows.map(|rows| rows.lag).unwrap_or_default();
        let Some(group) = self.others() else { return Ok(Joined { lag, ..Plan::join(&[own], 0)? }) };
        let plans = group.gather("beginning of an update", &own, Plan::MAX_BYTES)?;
        let differs = plans.iter().position(|plan| plan.identity != plans[0].identity);
        if let Some(rank) = differs {
            return Err(AllReduceError::Diverged { rank: rank as u32 }.into());
        }
        Ok(Joined { lag, ..Plan::join(&plans, group.rank() as usize)? })
    }

    /// Returns the mean and standard deviation of the advantages of each minibatch of all ranks, from the own parts of
    /// minibatches. A learner by itself has `None` instead.
    pub(super) fn normals(
        &mut self,
        rows: Option<&TrainRows>,
        parts: impl ExactSizeIterator<Item = Vec<u32>>,
    ) -> Result<Vec<Option<Normal>>, LearnError> {
        let Some(group) = self.others() else { return Ok(vec![None; parts.len()]) };
        let (n, advantages) = (parts.len(), rows.map(TrainRows::advantages).transpose()?.unwrap_or_default());
        let own: Vec<Moments> = parts
            .map(|units| {
                let order = rows.map_or_else(Vec::new, |rows| rows.order(&units));
                Moments::of(order.iter().map(|&row| f64::from(advantages[row as usize])))
            })
            .collect();
        let of_ranks = group.gather("advantages", &own, n * size_of::<Moments>() + 10)?;
        for (rank, moments) in (0..).zip(&of_ranks) {
            if moments.len() != n {
                let reason = format!("advantages of {} minibatches instead of {n}", moments.len());
                return Err(AllReduceError::Protocol { rank, reason }.into());
            }
        }
        let joined = (0..n).map(|i| Moments::join(of_ranks.iter().map(|moments| moments[i])));
        Ok(joined.map(|moments| Some(Normal { mean: moments.mean, std: moments.variance().sqrt() })).collect())
    }
}

/// The mean and standard deviation by which advantages are normalised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Normal {
    pub(super) mean: f64,
    pub(super) std: f64,
}

/// One rank's message before the first step of an update.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Plan {
    rows: u64,
    units: u64,
    seed: u64,
    env_steps: u64,
    adaptive: f64,
    logp_gap: f64,
    /// The moments of the value targets, and of the acting values' errors.
    values: [Moments; 2],
    /// The hash of the weights, their version and the optimiser's state.
    identity: [u8; 16],
}

impl Plan {
    /// Maximum length of its encoding: 10 bytes for an integer, 8 for a float.
    const MAX_BYTES: usize = 4 * 10 + 8 * 8 + 16;

    /// Describes a rank's part of an update. Only other ranks need the identity.
    fn of(learner: &Learner, rows: Option<&TrainRows>, are_others: bool) -> Result<Self, LearnError> {
        let mut identity = [0; 16];
        if are_others {
            let mut bytes = weights_hash(learner.weights()).0.to_vec();
            bytes.extend(learner.weights().version().0.to_le_bytes());
            bytes.extend(bytes_hash(&learner.optimizer_bytes()?).0);
            identity = bytes_hash(&bytes).0;
        }
        let values = rows.map(TrainRows::values).transpose()?.flatten();
        let nothing = [Moments::default(); 2];
        let values = values.map_or(nothing, |(vf_preds, targets)| {
            let errors = targets.iter().zip(&vf_preds).map(|(&target, &value)| f64::from(target) - f64::from(value));
            [Moments::of(targets.iter().map(|&target| f64::from(target))), Moments::of(errors)]
        });
        Ok(Self {
            rows: rows.map_or(0, |rows| rows.len() as u64),
            units: rows.map_or(0, |rows| rows.units() as u64),
            seed: learner.seed,
            env_steps: learner.env_steps,
            adaptive: learner.adaptive,
            logp_gap: rows.map_or(0.0, |rows| rows.logp_gap.into()),
            values,
            identity,
        })
    }

    /// Joins the plans of all ranks.
    fn join(plans: &[Self], own: usize) -> Result<Joined, LearnError> {
        let sum =
            |of: fn(&Self) -> u64, ranks: &[Self]| ranks.iter().try_fold(0u64, |sum, plan| sum.checked_add(of(plan)));
        let [rows, units] = [sum(|plan| plan.rows, plans), sum(|plan| plan.units, plans)];
        // Numbers of units have 32 bits, and no rank has more units than rows.
        let few = |sum: Option<u64>| sum.filter(|&n| u32::try_from(n).is_ok()).ok_or(LearnError::TooManyRows);
        let (rows, units) = (few(rows)?, few(units)? as usize);
        if rows == 0 || units == 0 {
            return Err(LearnError::EmptyBatch);
        }
        let before = few(sum(|plan| plan.units, &plans[..own]))?;
        let first = plans[0];
        let [targets, errors] = [0, 1].map(|i| Moments::join(plans.iter().map(|plan| plan.values[i])));
        Ok(Joined {
            rows,
            units,
            first_unit: before as usize,
            own_units: plans[own].units as usize,
            logp_gap: plans
                .iter()
                .fold(first.logp_gap, |gap, plan| if plan.logp_gap > gap { plan.logp_gap } else { gap }),
            explained_variance: explained_variance(targets, errors),
            seed: first.seed,
            env_steps: first.env_steps,
            adaptive: first.adaptive,
            lag: LagStats::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::encoding;

    use super::*;

    fn plan(rows: u64, units: u64) -> Plan {
        let values = [Moments::of([1.0, 2.0].into_iter()), Moments::of([0.5, 0.1].into_iter())];
        Plan { rows, units, seed: 7, env_steps: 9, adaptive: 0.3, logp_gap: 0.1, values, identity: [5; 16] }
    }

    #[test]
    fn plans_survive_the_round_trip() {
        let plan = Plan { seed: u64::MAX, env_steps: u64::MAX, ..plan(u64::MAX, u64::MAX) };
        let bytes = encoding::encode(&plan);
        assert_eq!(bytes.len(), Plan::MAX_BYTES);
        assert_eq!(encoding::decode(&bytes), Some(plan));
        assert_eq!(encoding::decode::<Plan>(&bytes[..bytes.len() - 1]), None);
    }

    #[test]
    fn units_stand_one_after_the_other() {
        let plans = [plan(4, 2), plan(0, 0), plan(9, 3)];
        let joined = |own| Plan::join(&plans, own).unwrap();
        assert_eq!((joined(0).rows, joined(0).units), (13, 5));
        let units = [4, 0, 3, 1, 2];
        assert_eq!([0, 1, 2].map(|rank| joined(rank).own(&units)), [vec![0, 1], vec![], vec![2, 1, 0]]);
    }

    #[test]
    fn more_rows_than_numbers_for_them_are_refused() {
        let many = [plan(u64::MAX, 1), plan(u64::MAX, 1)];
        assert!(matches!(Plan::join(&many, 1), Err(LearnError::TooManyRows)));
        assert!(matches!(Plan::join(&[plan(0, 0), plan(0, 0)], 0), Err(LearnError::EmptyBatch)));
    }
}
