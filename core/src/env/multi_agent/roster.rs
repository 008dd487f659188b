//! Values by agent, in reused memory.

use crate::{ids::AgentId, prelude::*};

/// Most entries of former agents that [`Roster::clear`] keeps, in addition to as many as there were agents.
const SPARE: usize = 64;

/// One value per agent, in the order in which the agents were added.
///
/// After clearing, the former order is kept as a hint: agents that are added in the same order again, as in consecutive
/// steps, are found without a search.
#[derive(Clone, Debug)]
pub(in crate::env) struct Roster<T> {
    /// Every agent once: first the present ones, then former ones.
    entries: Vec<(AgentId, T)>,
    len: usize,
}

impl<T> Default for Roster<T> {
    fn default() -> Self {
        Self { entries: Vec::new(), len: 0 }
    }
}

impl<T: Default> Roster<T> {
    /// Removes all agents and keeps the memory.
    pub(in crate::env) fn clear(&mut self) {
        // Bounds the number of former agents, in case names are always new.
        self.entries.truncate(self.len.saturating_mul(2).saturating_add(SPARE));
        self.len = 0;
    }

    /// Returns the agent's value; adds the agent with the default value if it is new.
    pub(in crate::env) fn entry(&mut self, agent: &AgentId) -> &mut T {
        let at = if self.entries.get(self.len).is_some_and(|(guess, _)| guess == agent) {
            self.admit(self.len)
        } else if let Some(at) = self.entries[..self.len].iter().rposition(|(other, _)| other == agent) {
            at
        } else if let Some(at) = self.entries.iter().position(|(other, _)| other == agent) {
            self.admit(at)
        } else {
            self.entries.push((agent.clone(), T::default()));
            self.admit(self.entries.len() - 1)
        };
        &mut self.entries[at].1
    }

    /// Returns a present or former agent of that name, checking the next expected one first.
    pub(in crate::env) fn known(&self, name: &str) -> Option<AgentId> {
        let is_it = |agent: &AgentId| matches!(agent, AgentId::Name(known) if **known == *name);
        let guess = self.entries.get(self.len).filter(|(agent, _)| is_it(agent));
        let (agent, _) = guess.or_else(|| self.entries.iter().find(|(agent, _)| is_it(agent)))?;
        Some(agent.clone())
    }

    /// Adds the former agent at `at`.
    fn admit(&mut self, at: usize) -> usize {
        let place = self.len;
        self.entries.swap(place, at);
        self.entries[place].1 = T::default();
        self.len += 1;
        place
    }

    /// Returns the agent's value. If agents are requested in the order in which they were added, `hint`, the number of the
    /// request, avoids a search.
    pub(in crate::env) fn get(&self, agent: &AgentId, hint: usize) -> Option<&T> {
        self.position(agent, hint).map(|at| &self.entries[at].1)
    }

    pub(in crate::env) fn contains(&self, agent: &AgentId, hint: usize) -> bool {
        self.position(agent, hint).is_some()
    }

    fn position(&self, agent: &AgentId, hint: usize) -> Option<usize> {
        let here = &self.entries[..self.len];
        match here.get(hint) {
            Some((other, _)) if other == agent => Some(hint),
            _ => here.iter().position(|(other, _)| other == agent),
        }
    }

    /// Removes an agent and returns its value.
    pub(in crate::env) fn remove(&mut self, agent: &AgentId) -> Option<T> {
        let at = self.position(agent, 0)?;
        let value = core::mem::take(&mut self.entries[at].1);
        self.entries[at..self.len].rotate_left(1);
        self.len -= 1;
        Some(value)
    }

    /// Removes the agents for which `wanted` returns true, given their index and id, and passes their values on. The others
    /// stay in order.
    pub(in crate::env) fn take_where(
        &mut self,
        wanted: impl Fn(usize, &AgentId) -> bool,
        mut take: impl FnMut(&AgentId, T),
    ) {
        let mut kept = 0;
        for at in 0..self.len {
            if wanted(at, &self.entries[at].0) {
                let value = core::mem::take(&mut self.entries[at].1);
                take(&self.entries[at].0, value);
            } else {
                self.entries.swap(kept, at);
                kept += 1;
            }
        }
        self.len = kept;
    }

    pub(in crate::env) fn iter(&self) -> impl ExactSizeIterator<Item = (&AgentId, &T)> {
        self.entries[..self.len].iter().map(|(agent, value)| (agent, value))
    }

    pub(in crate::env) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Behaves like a plain list for all operations.
        #[test]
        fn is_a_list_without_repetitions(ops in prop::collection::vec((0u8..8, 0u32..6, 1u32..100), 0..60)) {
            let mut roster = Roster::<u32>::default();
            let mut list: Vec<(AgentId, u32)> = Vec::new();
            for (op, agent, value) in ops {
                let agent = AgentId::Index(agent);
                match op {
                    0 => (roster.clear(), list.clear()).1,
                    1 => {
                        let mut taken = Vec::new();
                        roster.take_where(|_, other| *other >= agent, |other, value| taken.push((other.clone(), value)));
                        let (removed, kept) = list.drain(..).partition(|(other, _)| *other >= agent);
                        list = kept;
                        let removed: Vec<(AgentId, u32)> = removed;
                        prop_assert_eq!(taken, removed);
                    }
                    2 => {
                        let removed = list.iter().position(|(other, _)| *other == agent).map(|at| list.remove(at).1);
                        prop_assert_eq!(roster.remove(&agent), removed);
                    }
                    _ => {
                        *roster.entry(&agent) += value;
                        match list.iter_mut().find(|(other, _)| *other == agent) {
                            Some((_, sum)) => *sum += value,
                            None => list.push((agent, value)),
                        }
                    }
                }
                let found: Vec<_> = roster.iter().map(|(agent, value)| (agent.clone(), *value)).collect();
                prop_assert_eq!(&found, &list);
                for index in 0..6 {
                    let agent = AgentId::Index(index);
                    let wanted = list.iter().find(|(other, _)| *other == agent).map(|(_, value)| value);
                    prop_assert_eq!(roster.get(&agent, value as usize % 4), wanted);
                }
            }
        }
    }

    #[test]
    fn agents_with_ever_new_names_do_not_pile_up() {
        let mut roster = Roster::<u8>::default();
        for agent in 0..10_000 {
            roster.clear();
            *roster.entry(&AgentId::Index(agent)) = 1;
        }
        assert!(roster.entries.len() <= SPARE + 3, "{}", roster.entries.len());
    }
}
