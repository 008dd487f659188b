//! The parts of the state that the views show. After a change of the state each part is computed, and its signal is set only if
//! it differs: only views whose value changed are updated.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

use leptos::prelude::*;

use crate::state::State;

/// A function that computes a part of the state. Boxed, so that the compiler generates code for each type of part and
/// not for each part.
pub(crate) type StatePart<T> = Box<dyn Fn(&State) -> T>;
/// A function that computes a part, and sets its signal if the value differs.
type Update = Box<dyn Fn(&State)>;
/// The worker of a part that depends on a single worker, and the number of the part.
pub(crate) type PartKey = (Option<u32>, u32);

/// The parts that are shown now.
#[derive(Default)]
pub(crate) struct Parts {
    all: RefCell<BTreeMap<PartKey, Update>>,
    next: Cell<u32>,
}

impl Parts {
    /// Adds a part, until its key is [removed](Self::remove).
    pub(crate) fn add<T: PartialEq + Send + Sync + 'static>(
        &self,
        worker: Option<u32>,
        state: &State,
        part: StatePart<T>,
    ) -> (PartKey, RwSignal<T>) {
        let shown = RwSignal::new(part(state));
        let update = move |state: &State| {
            let now = part(state);
            if shown.try_with_untracked(|shown| *shown != now) == Some(true) {
                shown.set(now);
            }
        };
        let key = (worker, self.next.replace(self.next.get().wrapping_add(1)));
        self.all.borrow_mut().insert(key, Box::new(update));
        (key, shown)
    }

    /// Removes a part that is no longer shown.
    pub(crate) fn remove(&self, key: PartKey) {
        self.all.borrow_mut().remove(&key);
    }

    /// Updates the parts after a change of the state: those of the given workers, and those that do not belong to a
    /// worker.
    pub(crate) fn update(&self, state: &State, workers: &BTreeSet<u32>) {
        let all = self.all.borrow();
        for worker in [None].into_iter().chain(workers.iter().copied().map(Some)) {
            all.range((worker, 0)..=(worker, u32::MAX)).for_each(|(_, update)| update(state));
        }
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::message::WorkerRow;

    use super::*;

    #[test]
    fn part_of_a_worker_is_computed_only_after_a_change_of_that_worker() {
        let owner = Owner::new();
        owner.set();
        let (parts, mut state) = (Parts::default(), State::default());
        let slots = |worker: u32| move |state: &State| state.workers.get(&worker).map_or(0, |row| row.slots);
        let (_, first) = parts.add(Some(1), &state, Box::new(slots(1)));
        let (key, second) = parts.add(Some(2), &state, Box::new(slots(2)));
        let (_, all) = parts.add(None, &state, Box::new(|state| state.workers.len()));
        let shown = || (first.get_untracked(), second.get_untracked(), all.get_untracked());
        for worker in [1, 2] {
            state.workers.insert(worker, WorkerRow { worker, slots: 4, ..WorkerRow::default() });
        }
        parts.update(&state, &[2].into());
        assert_eq!(shown(), (0, 4, 2));
        parts.remove(key);
        state.workers.clear();
        parts.update(&state, &[1, 2].into());
        assert_eq!(shown(), (0, 4, 0));
    }
}
