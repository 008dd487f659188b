//! Data exchanged between environments and samplers.

use crate::{
    env::{
        EnvError,
        multi_agent::{AgentRows, Turn},
    },
    prelude::*,
};

/// The result of a poll, in reused memory.
#[derive(Debug, Default)]
pub struct EnvUpdates {
    entries: Vec<EnvUpdate>,
    len: usize,
}

/// Updates of one sub-environment.
#[derive(Debug, Default)]
pub struct EnvUpdate {
    /// The sub-environment.
    pub env: usize,
    /// The turn; after a reset the first observations.
    pub turn: Turn,
    /// Off-policy actions that agents took instead of those they were sent.
    pub off_policy_actions: AgentRows,
    /// The failure of the sub-environment, if any. It was restarted, its episode is lost, `turn` is empty, and it must
    /// be reset; or, with [`EnvError::GivenUp`], these are its last updates, see
    /// [`BaseEnv::quarantine`](super::BaseEnv::quarantine).
    pub fault: Option<EnvError>,
}

/// Actions for one sub-environment.
#[derive(Clone, Debug, Default)]
pub struct EnvActions {
    /// The sub-environment.
    pub env: usize,
    /// The actions of the agents that had an observation.
    pub actions: AgentRows,
}

impl EnvUpdates {
    /// Creates an empty list of updates.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Clears the updates and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds an empty update of a sub-environment.
    pub fn add(&mut self, env: usize) -> &mut EnvUpdate {
        if self.len == self.entries.len() {
            self.entries.push(EnvUpdate::default());
        }
        let entry = &mut self.entries[self.len];
        self.len += 1;
        entry.env = env;
        entry.turn.clear();
        entry.off_policy_actions.clear();
        entry.fault = None;
        entry
    }

    /// Removes entries that `keep` rejects; the others stay in order.
    pub fn retain(&mut self, keep: impl Fn(&EnvUpdate) -> bool) {
        let mut kept = 0;
        for at in 0..self.len {
            if keep(&self.entries[at]) {
                self.entries.swap(kept, at);
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// Returns the updates in the order in which they were added.
    #[must_use]
    pub fn entries(&self) -> &[EnvUpdate] {
        &self.entries[..self.len]
    }

    /// Returns the updates mutably.
    pub fn entries_mut(&mut self) -> &mut [EnvUpdate] {
        &mut self.entries[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{env::RowsRef, ids::AgentId};

    #[test]
    fn reused_entries_are_empty() {
        let mut updates = EnvUpdates::new();
        for env in [3, 5] {
            updates.clear();
            let entry = updates.add(env);
            assert!(entry.turn.obs().is_empty() && entry.off_policy_actions.is_empty() && entry.fault.is_none());
            entry.turn.observe(&AgentId::SINGLE, RowsRef::I64(&[1]));
            entry.off_policy_actions.set(&AgentId::SINGLE, RowsRef::I64(&[1]));
            entry.fault = Some(EnvError::Stopped);
            assert_eq!(updates.entries().iter().map(|entry| entry.env).collect::<Vec<_>>(), [env]);
        }
    }

    #[test]
    fn retained_entries_keep_their_order() {
        let mut updates = EnvUpdates::new();
        for env in 0..5 {
            updates.add(env);
        }
        updates.retain(|entry| entry.env % 3 != 0);
        assert_eq!(updates.entries().iter().map(|entry| entry.env).collect::<Vec<_>>(), [1, 2, 4]);
    }
}
