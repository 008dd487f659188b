//! Driving episodes for a hub's clients: many episodes in one task.

use std::{fmt, task::Context};

use rollmesh_core::env::ExternalEpisodes;

use super::ExternalMultiAgentEnv;

impl ExternalMultiAgentEnv {
    /// Calls the episodes' methods and notifies the sampler.
    pub(crate) fn say<T>(&self, say: impl FnOnce(&mut ExternalEpisodes) -> T) -> T {
        let shared = self.driver.shared();
        let said = say(&mut shared.lock().episodes);
        shared.said.notify_one();
        said
    }

    /// Polls episodes: `look` adds those that still wait to `waiting`, and returns whether to notify the sampler. The task
    /// is woken when another poll may succeed.
    pub(crate) fn look(
        &self,
        context: &Context<'_>,
        waiting: &mut Vec<u64>,
        look: impl FnOnce(&mut ExternalEpisodes, &mut Vec<u64>) -> bool,
    ) {
        let shared = self.driver.shared();
        waiting.clear();
        let mut state = shared.lock();
        let has_said = look(&mut state.episodes, waiting);
        waiting.iter().for_each(|id| state.wait(*id, context));
        drop(state);
        if has_said {
            shared.said.notify_one();
        }
    }
}

impl fmt::Debug for ExternalMultiAgentEnv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalMultiAgentEnv").field("agents", &self.agents()).finish_non_exhaustive()
    }
}
