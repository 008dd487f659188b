//! A worker's place in its run.

use crate::ids::{HomeIndex, SlotId};

/// A worker's place in its run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerPlace {
    /// 0 for the local worker, others count from 1.
    pub worker_index: u32,
    /// Number of the run's workers, without the local one.
    pub num_workers: u32,
    /// Whether it replaces a lost worker.
    pub recreated_worker: bool,
    /// Whether it evaluates: then its episodes differ from those of training.
    pub in_evaluation: bool,
}

impl WorkerPlace {
    /// The only worker.
    pub const LOCAL: Self = Self { worker_index: 0, num_workers: 0, recreated_worker: false, in_evaluation: false };

    /// Returns the place of the `worker_index`-th of `num_workers` workers, from 1.
    #[must_use]
    pub const fn remote(worker_index: u32, num_workers: u32) -> Self {
        Self { worker_index, num_workers, ..Self::LOCAL }
    }

    /// Returns the slot of an environment, with `num_envs` per worker. Those of the first worker come first; a local worker
    /// alongside others has the last ones. `None` if slot numbers overflow.
    #[must_use]
    pub fn slot(self, num_envs: u32, vector_index: u32) -> Option<SlotId> {
        let worker = if self.worker_index == 0 { self.num_workers } else { self.worker_index - 1 };
        let first = u64::from(worker) * u64::from(num_envs);
        u32::try_from(first + u64::from(vector_index)).ok().map(SlotId)
    }

    /// Returns the place that an environment sees.
    #[must_use]
    pub fn home(self, vector_index: u32) -> HomeIndex {
        HomeIndex { worker_index: self.worker_index, vector_index }
    }

    /// Returns the seed of this worker's random streams: evaluation has another one.
    #[must_use]
    pub fn seed(self, seed: u64) -> u64 {
        // As in RLlib 2.9.3.
        if self.in_evaluation { seed.wrapping_add(10_000) } else { seed }
    }

    /// Returns whether a worker at this place has environments.
    #[must_use]
    pub fn has_envs(self, create_env_on_local_worker: bool) -> bool {
        self.worker_index > 0 || self.num_workers == 0 || create_env_on_local_worker
    }

    /// Most environments of a worker.
    pub(crate) const MAX_ENVS: u32 = SlotId::MAX_PER_RUN;

    /// Most steps of a sample, over all environments.
    pub(crate) const MAX_STEPS_PER_SAMPLE: u64 = 1 << 26;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;

    #[test]
    fn every_environment_of_a_run_has_a_slot_of_its_own() {
        let places = [WorkerPlace::remote(0, 2), WorkerPlace::remote(1, 2), WorkerPlace::remote(2, 2)];
        let slots: BTreeSet<SlotId> =
            places.iter().flat_map(|place| (0..4).map(|index| place.slot(4, index).unwrap())).collect();
        assert_eq!(slots.into_iter().map(|slot| slot.0).collect::<Vec<_>>(), (0..12).collect::<Vec<_>>());
        assert_eq!(WorkerPlace::LOCAL.slot(4, 3), Some(SlotId(3)));
        assert_eq!(WorkerPlace::remote(u32::MAX, u32::MAX).slot(4, 3), None);
    }

    #[test]
    fn local_worker_alongside_others_has_no_environments_unless_wanted() {
        assert!(WorkerPlace::LOCAL.has_envs(false) && WorkerPlace::remote(1, 2).has_envs(false));
        assert!(!WorkerPlace::remote(0, 2).has_envs(false) && WorkerPlace::remote(0, 2).has_envs(true));
    }
}
