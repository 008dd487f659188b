//! The sampler's side of an external environment.

use std::{
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use rollmesh_core::{
    env::{BaseEnv, EnvActions, EnvError, EnvSpaces, EnvUpdates, Reset, multi_agent::Turn},
    ids::AgentId,
};

use super::shared::SharedEpisodes;

/// The time for which a poll waits for drivers before it returns with nothing, so that its caller can check for an
/// interruption.
const SLICE: Duration = Duration::from_millis(50);

/// The shared episodes as the sampler's [`BaseEnv`].
pub(super) struct Sampled {
    shared: Arc<SharedEpisodes>,
    /// True once a sampler has polled it.
    polled: bool,
    /// Reused buffer for the tasks to wake.
    woken: Vec<Waker>,
}

impl Sampled {
    /// Returns the sampler's side, of which there can be only one.
    pub(super) fn new(shared: Arc<SharedEpisodes>) -> Result<Self, EnvError> {
        let mut state = shared.lock();
        if std::mem::replace(&mut state.sampled, true) {
            let reason = "the external environment has a sampler already: make one for each worker";
            return Err(EnvError::Failed(reason.into()));
        }
        drop(state);
        Ok(Self { shared, polled: false, woken: Vec::new() })
    }

    fn wake(&mut self) {
        self.woken.drain(..).for_each(Waker::wake);
    }

    /// Resets a lane and wakes its driver.
    fn in_lane<T>(
        &mut self,
        env: usize,
        act: impl FnOnce(&mut dyn BaseEnv) -> Result<T, EnvError>,
    ) -> Result<T, EnvError> {
        let mut state = self.shared.lock();
        let done = act(&mut state.episodes);
        state.take_waiting(env, &mut self.woken);
        drop(state);
        self.wake();
        done
    }
}

impl BaseEnv for Sampled {
    fn num_envs(&self) -> usize {
        self.shared.lock().episodes.num_envs()
    }

    fn agents(&self) -> Vec<AgentId> {
        self.shared.lock().episodes.agents()
    }

    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        self.shared.lock().episodes.spaces(agent)
    }

    fn poll(&mut self, updates: &mut EnvUpdates) -> Result<(), EnvError> {
        self.polled = true;
        let start = Instant::now();
        let mut state = self.shared.lock();
        loop {
            state.episodes.poll(updates)?;
            if !updates.entries().is_empty() {
                break;
            }
            if let Some(why) = &state.undriven {
                return Err(EnvError::Undriven(why.clone()));
            }
            let Some(left) = SLICE.checked_sub(start.elapsed()).filter(|left| !left.is_zero()) else { return Ok(()) };
            let waited = self.shared.said.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        // The queues of these lanes are not full.
        updates.entries().iter().for_each(|entry| state.take_waiting(entry.env, &mut self.woken));
        drop(state);
        self.wake();
        Ok(())
    }

    /// Returns true: drivers decide when something happens.
    fn may_be_idle(&self) -> bool {
        true
    }

    fn send_actions(&mut self, actions: &[EnvActions]) -> Result<(), EnvError> {
        let mut state = self.shared.lock();
        state.episodes.send_actions(actions)?;
        actions.iter().for_each(|answer| state.take_waiting(answer.env, &mut self.woken));
        drop(state);
        self.wake();
        Ok(())
    }

    fn try_reset(&mut self, env: usize, turn: &mut Turn) -> Result<Reset, EnvError> {
        self.in_lane(env, |episodes| episodes.try_reset(env, turn))
    }

    fn try_restart(&mut self, env: usize) -> Result<(), EnvError> {
        self.in_lane(env, |episodes| episodes.try_restart(env))
    }

    fn stop(&mut self) -> Result<(), EnvError> {
        self.shared.stop();
        Ok(())
    }
}

impl Drop for Sampled {
    fn drop(&mut self) {
        self.shared.lock().sampled = false;
        if self.polled {
            // No sampler will answer the waiting drivers.
            self.shared.stop();
        }
    }
}
