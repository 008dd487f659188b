//! This tab as a worker of the hub's run.

use std::cell::Cell;

use rollmesh_core::{
    kernels::Kernels,
    protocol::handshake::Identity,
    time::Micros,
    worker::{RolloutWorkerBuilder, SessionState, WorkerSession},
};
use rollmesh_web_registry::registry;

use crate::{page::Status, scope, work::Work};

/// Steps of all slots of a lease between two looks at the clock.
const VECTOR_STEPS: u32 = 16;

/// Runs leases.
#[derive(Default)]
pub(crate) struct Sampling {
    /// Env steps and leases of connections that are gone.
    earlier: (u64, u64),
    /// Since it was last asked how it goes.
    has_sampled: Cell<bool>,
}

impl Sampling {
    /// Env steps and leases over all connections.
    fn counts(&self, session: Option<&WorkerSession>) -> (u64, u64) {
        let counters = session.map(WorkerSession::counters).unwrap_or_default();
        (self.earlier.0 + counters.env_steps, self.earlier.1 + counters.leases_done)
    }
}

impl Work for Sampling {
    fn session(&self, identity: Identity) -> WorkerSession {
        // With a clock, samples are made in spans, between which messages are heard and sent.
        WorkerSession::new(identity, registry(), Kernels::PORTABLE)
            .with_workers(|| RolloutWorkerBuilder::new(registry()).clock(scope::now))
    }

    fn keep(&mut self, session: &WorkerSession) {
        self.earlier = self.counts(Some(session));
    }

    fn work(&mut self, session: &mut WorkerSession, now: Micros) {
        session.work(VECTOR_STEPS, now);
        self.has_sampled.set(true);
    }

    fn end(&self, state: &SessionState) -> Option<String> {
        match state {
            SessionState::Closed { reason } => Some(reason.clone()),
            SessionState::Connecting | SessionState::Ready | SessionState::Refused { .. } => None,
        }
    }

    fn status(&self, session: Option<&WorkerSession>) -> Status {
        let inability = session.and_then(WorkerSession::inability);
        let state = match session.map(WorkerSession::state) {
            Some(SessionState::Ready) if inability.is_some() => "unable",
            Some(SessionState::Ready) if self.has_sampled.take() => "sampling",
            Some(SessionState::Ready) => "idle",
            Some(_) | None => "connecting",
        };
        let (env_steps, fragments) = self.counts(session);
        Status {
            state,
            reason: inability.map_or_else(String::new, |(_, inability)| inability.to_string()),
            worker: session.and_then(WorkerSession::worker_id).map_or(0, |id| id.0),
            env_steps,
            fragments,
            weights_version: session.and_then(WorkerSession::weights_version).map_or(0, |version| version.0),
            ..Status::default()
        }
    }
}
