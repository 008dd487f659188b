//! What a host makes for one environment of the program.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollmesh_core::env::{EnvContext, EnvError, Frame};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{
    PythonSettings,
    host::{Host, Pending},
};
use crate::envs::remote::wire::Request;

/// An unanswered request. It keeps the host locked: environments on other threads may share its process.
pub(super) struct Exchange<'a> {
    host: MutexGuard<'a, Host>,
    pending: Pending,
}

/// Environments that a host has made. If its process ends, the next one makes them again when they are asked for something.
pub(super) struct HostOrder {
    name: String,
    host: Arc<Mutex<Host>>,
    /// Its number in the host.
    number: u32,
    /// The order as JSON.
    text: Vec<u8>,
    /// The process that made them.
    epoch: Option<u64>,
}

impl HostOrder {
    /// Lets the host of this thread with the number `host` make environments. Returns what the host says of them.
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
        let host = Host::of_thread(settings, context.limits, host);
        let mut held = lock(&host);
        let number = held.next_order();
        let text = json!({
            "order": number,
            "env": name,
            "config": context.config,
            "lanes": lanes,
            "memory_mb": held.memory_mb(),
        });
        let text = text.to_string().into_bytes();
        let made = ask_to_make(&mut held, name, &text, |reply| serde_json::from_slice(reply).ok())?;
        let epoch = held.epoch();
        drop(held);
        Ok((Self { name: name.into(), host, number, text, epoch }, made))
    }

    /// Returns whether the host still has the environments as they were left.
    pub(super) fn is_there(&self) -> bool {
        self.is_in(&lock(&self.host))
    }

    fn is_in(&self, host: &Host) -> bool {
        self.epoch.is_some() && host.epoch() == self.epoch
    }

    /// Makes the environments again if their process has ended. Returns whether that was so: they have no episodes then.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub(super) fn revive(&mut self) -> Result<bool, EnvError> {
        let mut host = lock(&self.host);
        if self.is_in(&host) {
            return Ok(false);
        }
        self.epoch = None;
        ask_to_make(&mut host, &self.name, &self.text, |_| Some(()))?;
        self.epoch = host.epoch();
        Ok(true)
    }

    /// Asks for something of a lane, and the lanes that follow if `body` says so; `take` reads the answer.
    ///
    /// # Errors
    /// As [`Host::ask`].
    pub(super) fn ask<T>(
        &self,
        ask: (&'static str, Request),
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
        ask: (&'static str, Request),
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
    /// As [`Host::receive`].
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
        self.ask(("for a picture", Request::Render), lane, |_| {}, take).unwrap_or(false)
    }
}

impl Drop for HostOrder {
    fn drop(&mut self) {
        // What keeps them from ending ends with the process, at the latest.
        let _ = self.ask(("to close", Request::Close), 0, |_| {}, |_| Some(()));
    }
}

fn lock(host: &Mutex<Host>) -> MutexGuard<'_, Host> {
    host.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ask_to_make<M>(
    host: &mut Host,
    name: &str,
    text: &[u8],
    take: impl FnOnce(&[u8]) -> Option<M>,
) -> Result<M, EnvError> {
    let body = |request: &mut Vec<u8>| request.extend_from_slice(text);
    host.ask(name, ("to make its environments", Request::Make), body, take)
}
