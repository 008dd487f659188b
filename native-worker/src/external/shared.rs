//! The state shared by drivers and sampler, and their synchronisation.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use rollmesh_core::env::{BaseEnv as _, ExternalEpisodes, ExternalError};

/// Episodes shared between threads.
pub(super) struct SharedEpisodes {
    state: Mutex<EpisodesState>,
    /// Notified when a driver has passed something.
    pub(super) said: Condvar,
}

pub(super) struct EpisodesState {
    pub(super) episodes: ExternalEpisodes,
    /// Tasks waiting for changes, by lane.
    waiting: Vec<Vec<Waker>>,
    /// Number of drivers' handles.
    drivers: usize,
    /// Number of driving threads.
    threads: usize,
    /// The reason that the environment has lost its drivers.
    pub(super) undriven: Option<String>,
    /// The next number to try for an episode without a chosen one.
    next_id: u64,
    /// True if the sampler's side exists.
    pub(super) sampled: bool,
}

impl SharedEpisodes {
    pub(super) fn new(episodes: ExternalEpisodes) -> Self {
        let lanes = episodes.num_envs();
        let state = EpisodesState {
            episodes,
            waiting: vec![Vec::new(); lanes],
            drivers: 0,
            threads: 0,
            undriven: None,
            next_id: 0,
            sampled: false,
        };
        Self { state: Mutex::new(state), said: Condvar::new() }
    }

    /// Locks the state. No code panics while holding the lock, except for lack of memory.
    pub(super) fn lock(&self) -> MutexGuard<'_, EpisodesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a driver's call and notifies the sampler.
    pub(super) fn say<T>(
        &self,
        say: impl FnOnce(&mut ExternalEpisodes) -> Result<T, ExternalError>,
    ) -> Result<T, ExternalError> {
        let said = say(&mut self.lock().episodes)?;
        self.said.notify_one();
        Ok(said)
    }

    /// Works like [`say`](Self::say), as soon as the queue has space.
    pub(super) fn poll_say<T>(
        &self,
        id: u64,
        context: &mut Context<'_>,
        say: impl FnOnce(&mut ExternalEpisodes) -> Result<T, ExternalError>,
    ) -> Poll<Result<T, ExternalError>> {
        let mut state = self.lock();
        match say(&mut state.episodes) {
            Err(ExternalError::QueueFull { .. }) => {
                state.wait(id, context);
                Poll::Pending
            }
            said => {
                drop(state);
                self.said.notify_one();
                Poll::Ready(said)
            }
        }
    }

    /// Abandons an episode, and wakes the tasks that wait in it.
    pub(super) fn abandon(&self, id: u64) -> Result<(), ExternalError> {
        let mut woken = Vec::new();
        let mut state = self.lock();
        let lane = state.episodes.lane_of(id)?;
        state.episodes.abandon(id)?;
        state.take_waiting(lane, &mut woken);
        drop(state);
        self.said.notify_one();
        woken.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Stops the environment: drivers and sampler get errors from now on.
    pub(super) fn stop(&self) {
        let mut woken = Vec::new();
        let mut state = self.lock();
        // An environment without processes cannot fail to stop.
        let _ = state.episodes.stop();
        (0..state.waiting.len()).for_each(|lane| state.take_waiting(lane, &mut woken));
        drop(state);
        self.said.notify_all();
        woken.into_iter().for_each(Waker::wake);
    }

    /// Records that the environment has lost its drivers, and abandons its episodes.
    fn end(&self, mut state: MutexGuard<'_, EpisodesState>, why: String) {
        let mut woken = Vec::new();
        let open: Vec<(u64, usize)> = state.episodes.open_episodes().collect();
        for (id, lane) in open {
            // It is open, unless the environment has been stopped.
            let _ = state.episodes.abandon(id);
            state.take_waiting(lane, &mut woken);
        }
        state.undriven.get_or_insert(why);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        self.said.notify_all();
    }
}

impl EpisodesState {
    /// Registers the task to be woken after a change in the episode's lane.
    pub(super) fn wait(&mut self, id: u64, context: &Context<'_>) {
        let lane = self.episodes.lane_of(id).ok();
        let Some(waiting) = lane.and_then(|lane| self.waiting.get_mut(lane)) else {
            return context.waker().wake_by_ref();
        };
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
    }

    /// Takes the wakers of a lane, to be woken without the lock: waking may drop a task, and a driver with it.
    pub(super) fn take_waiting(&mut self, lane: usize, woken: &mut Vec<Waker>) {
        if let Some(waiting) = self.waiting.get_mut(lane) {
            woken.append(waiting);
        }
    }

    /// Returns a number that no open episode has.
    pub(super) fn next_id(&mut self) -> u64 {
        loop {
            let id = self.next_id;
            self.next_id = id.wrapping_add(1);
            if !self.episodes.is_open(id) {
                return id;
            }
        }
    }
}

/// A driver's handle.
pub(super) struct Driver(Arc<SharedEpisodes>);

impl Driver {
    pub(super) fn new(shared: Arc<SharedEpisodes>) -> Self {
        shared.lock().drivers += 1;
        Self(shared)
    }

    pub(super) fn shared(&self) -> &Arc<SharedEpisodes> {
        &self.0
    }
}

impl Clone for Driver {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.drivers -= 1;
        if state.drivers == 0 {
            self.0.end(state, "all its handles were dropped".into());
        }
    }
}

/// A driving thread, from its start to its end.
pub(super) struct Serving {
    shared: Arc<SharedEpisodes>,
    last_words: String,
}

impl Serving {
    pub(super) fn new(shared: Arc<SharedEpisodes>) -> Self {
        let mut state = shared.lock();
        state.threads += 1;
        // The environment has a driver again.
        state.undriven = None;
        drop(state);
        Self { shared, last_words: "the serving thread was never started".into() }
    }

    /// Ends the thread's service with this reason.
    pub(super) fn end(mut self, last_words: String) {
        self.last_words = last_words;
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.threads -= 1;
        if state.threads == 0 {
            self.shared.end(state, std::mem::take(&mut self.last_words));
        }
    }
}
