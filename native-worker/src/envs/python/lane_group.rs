//! The environments that a host makes for one environment of the program.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use rollmesh_core::{
    config::Config,
    env::{EnvContext, EnvError, Frame},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    FINGERPRINT, PythonSettings,
    host::{Pending, PythonHost},
};
use crate::envs::remote::wire::ChildRequest;

/// The text before the hash of random episodes in a fingerprint.
const EPISODES: &str = ", random episodes ";

/// An unanswered request. It keeps the host locked: environments on other threads may share its process.
pub(super) struct Exchange<'a> {
    host: MutexGuard<'a, PythonHost>,
    pending: Pending,
}

/// Environments that a host has made. If its process ends, the next one rebuilds them at the next request.
pub(super) struct LaneGroup {
    name: String,
    host: Arc<Mutex<PythonHost>>,
    /// Its number in the host.
    number: u32,
    /// The request for them as JSON.
    text: Vec<u8>,
    /// The process that made them.
    epoch: Option<u64>,
}

impl LaneGroup {
    /// Lets the host of this thread with the number `host` make environments. Returns the host's description of them.
    ///
    /// # Errors
    /// [`EnvError::Unavailable`] without an interpreter, package or environment of that name, [`EnvError::Failed`].
    pub(super) fn make<M: DeserializeOwned>(
        name: &str,
        context: &EnvContext,
        lanes: usize,
        settings: &PythonSettings,
        host: usize,
    ) -> Result<(Self, M), EnvError> {
        let host = PythonHost::of_thread(settings, context.limits, host);
        let mut held = lock(&host);
        let number = held.next_group();
        let text = request_for(name, &context.config, number, lanes, held.memory_mb());
        let made = ask_to_make(&mut held, name, &text, |reply| serde_json::from_slice(reply).ok())?;
        let epoch = held.epoch();
        drop(held);
        Ok((Self { name: name.into(), host, number, text, epoch }, made))
    }

    /// Returns whether the process that made the environments is still running.
    pub(super) fn is_there(&self) -> bool {
        self.is_in(&lock(&self.host))
    }

    fn is_in(&self, host: &PythonHost) -> bool {
        self.epoch.is_some() && host.epoch() == self.epoch
    }

    /// Recreates the environments if their process has ended, and returns the host's description of the new ones, which
    /// have no episodes.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub(super) fn revive<M: DeserializeOwned>(&mut self) -> Result<Option<M>, EnvError> {
        let mut host = lock(&self.host);
        if self.is_in(&host) {
            return Ok(None);
        }
        self.epoch = None;
        let made = ask_to_make(&mut host, &self.name, &self.text, |reply| serde_json::from_slice(reply).ok())?;
        self.epoch = host.epoch();
        Ok(Some(made))
    }

    /// Checks that this machine has the fingerprint in the settings of the environment, if there is one. For an
    /// environment that is not deterministic the run's fingerprint leaves out its episodes: then only versions are
    /// compared. Returns false for such an environment.
    ///
    /// # Errors
    /// [`EnvError::Unavailable`] with both, [`EnvError::Failed`] for a setting of another form, and as [`ask`](Self::ask).
    pub(super) fn check_fingerprint(&self, config: &Config) -> Result<bool, EnvError> {
        let wanted = match config.get::<Value>(FINGERPRINT).ok().flatten() {
            None | Some(Value::Null | Value::Bool(false)) => return Ok(true),
            Some(Value::String(wanted)) => wanted,
            Some(other) => {
                let form = "it is the fingerprint that a run has written, or false for none";
                return Err(EnvError::Failed(format!("{}: {FINGERPRINT} is {other}: {form}", self.name)));
            }
        };
        let found = fingerprint(&mut lock(&self.host), &self.name, &self.text)?;
        let is_deterministic = has_episodes(&wanted);
        let versions = found.split(EPISODES).next().filter(|_| !is_deterministic);
        if versions.unwrap_or(&found) == wanted {
            return Ok(is_deterministic);
        }
        Err(EnvError::Unavailable(format!(
            "{} may have other bits on this machine than where the run began: here it has {found}; there it had {wanted}; \
             install the same versions, or begin the run with {FINGERPRINT} = false in env_config if bits may differ",
            self.name
        )))
    }

    /// Asks for something of a lane, and the lanes that follow if `body` says so; `take` reads the answer.
    ///
    /// # Errors
    /// As [`PythonHost::ask`].
    pub(super) fn ask<T>(
        &self,
        ask: (&'static str, ChildRequest),
        lane: usize,
        body: impl FnOnce(&mut Vec<u8>),
        take: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, EnvError> {
        let exchange = self.send(ask, lane, body)?;
        self.receive(exchange, take)
    }

    /// Asks without waiting for the answer, which [`receive`](Self::receive) returns. A caller that asks several hosts asks
    /// them in the order of their numbers, so that two threads never wait for each other's hosts.
    ///
    /// # Errors
    /// [`EnvError::Failed`] if the process of the environments has ended.
    pub(super) fn send(
        &self,
        ask: (&'static str, ChildRequest),
        lane: usize,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Result<Exchange<'_>, EnvError> {
        let whole = |request: &mut Vec<u8>| {
            request.extend(self.number.to_le_bytes());
            // Lanes are counted with 32 bits.
            request.extend((lane as u32).to_le_bytes());
            body(request);
        };
        let mut host = lock(&self.host);
        // An exchange of environments on another thread may have ended the process after the last look.
        if !self.is_in(&host) {
            return Err(EnvError::Failed(format!("{}: its Python process has ended", self.name)));
        }
        let pending = host.send(&self.name, ask, whole)?;
        Ok(Exchange { host, pending })
    }

    /// Waits for the answer of a request, which `take` decodes.
    ///
    /// # Errors
    /// As [`PythonHost::receive`].
    pub(super) fn receive<T>(
        &self,
        Exchange { mut host, pending }: Exchange<'_>,
        take: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, EnvError> {
        host.receive(&self.name, pending, take)
    }

    /// Draws a lane; `render_mode` must be `rgb_array` in the run's `env_config`.
    pub(super) fn render(&self, lane: usize, frame: &mut Frame) -> bool {
        let take = |reply: &[u8]| {
            let Some((width, rest)) = reply.split_first_chunk() else { return Some(false) };
            let (height, pixels) = rest.split_first_chunk()?;
            Some(frame.set(u32::from_le_bytes(*width), u32::from_le_bytes(*height), pixels))
        };
        let drawn = self.ask(("for a picture", ChildRequest::Render), lane, |_| {}, take);
        drawn.unwrap_or_else(|error| frame.fail(error.to_string()))
    }
}

impl Drop for LaneGroup {
    fn drop(&mut self) {
        // If closing fails, the environments end with the process.
        let _ = self.ask(("to close", ChildRequest::Close), 0, |_| {}, |_| Some(()));
    }
}

/// Returns a request for a group of lanes as JSON.
fn request_for(name: &str, config: &Config, number: u32, lanes: usize, memory_mb: u32) -> Vec<u8> {
    let request = json!({"group": number, "env": name, "config": config, "lanes": lanes, "memory_mb": memory_mb});
    request.to_string().into_bytes()
}

/// Returns the settings of an environment with the fingerprint that it has on this machine.
///
/// # Errors
/// [`EnvError::Unavailable`] without an interpreter, package or environment of that name, [`EnvError::Failed`].
pub(super) fn with_fingerprint(
    name: &str,
    context: &EnvContext,
    settings: &PythonSettings,
) -> Result<Config, EnvError> {
    let compute = || {
        let host = PythonHost::of_thread(settings, context.limits, 0);
        let mut host = lock(&host);
        let text = request_for(name, &context.config, 0, 1, host.memory_mb());
        fingerprint(&mut host, name, &text)
    };
    // On a thread of its own, with which its host ends.
    let found = thread::scope(|scope| {
        let computing = thread::Builder::new().name("fingerprint".into()).spawn_scoped(scope, compute);
        let computing =
            computing.map_err(|error| EnvError::Failed(format!("{name}: no thread for its fingerprint: {error}")))?;
        computing.join().unwrap_or_else(|_| Err(EnvError::Failed(format!("{name}: its fingerprint panicked"))))
    })?;
    let config = context.config.clone().with(FINGERPRINT, found);
    config.map_err(|error| EnvError::Failed(format!("{name}: {error}")))
}

/// Returns false for the fingerprint of an environment whose episodes differ each time.
pub(super) fn has_episodes(fingerprint: &str) -> bool {
    fingerprint.contains(EPISODES)
}

fn lock(host: &Mutex<PythonHost>) -> MutexGuard<'_, PythonHost> {
    host.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the fingerprint of an environment on this machine: versions of packages, and the hash of random episodes.
///
/// # Errors
/// As [`PythonHost::ask`].
pub(super) fn fingerprint(host: &mut PythonHost, name: &str, text: &[u8]) -> Result<String, EnvError> {
    let body = |request: &mut Vec<u8>| request.extend_from_slice(text);
    let take = |reply: &[u8]| String::from_utf8(reply.to_vec()).ok();
    host.ask(name, ("for its fingerprint", ChildRequest::Fingerprint), body, take)
}

fn ask_to_make<M>(
    host: &mut PythonHost,
    name: &str,
    text: &[u8],
    take: impl FnOnce(&[u8]) -> Option<M>,
) -> Result<M, EnvError> {
    let body = |request: &mut Vec<u8>| request.extend_from_slice(text);
    host.ask(name, ("to make its environments", ChildRequest::Make), body, take)
}
