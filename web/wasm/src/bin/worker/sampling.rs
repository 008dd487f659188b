//! This tab as a worker of the hub's run.

use std::cell::Cell;

use rollmesh_core::{
    kernels::Kernels,
    protocol::{RefusalCode, Role, handshake::Identity},
    time::Micros,
    worker::{RolloutWorkerBuilder, SessionState, WorkerSession, core_fingerprint},
};
use rollmesh_web_registry::registry;

use crate::{
    page::{Status, Task},
    scope,
    socket::Socket,
    work::Work,
};

/// Steps of all slots of a lease between two looks at the clock.
const VECTOR_STEPS: u32 = 16;

/// Runs leases.
pub(crate) struct Sampling {
    identity: Identity,
    /// None between two connections.
    session: Option<WorkerSession>,
    /// Env steps and leases of connections that are gone.
    earlier: (u64, u64),
    /// Since it was last asked how it goes.
    has_sampled: Cell<bool>,
}

impl Sampling {
    pub(crate) fn new(task: &Task) -> Self {
        let fingerprint = core_fingerprint(Kernels::PORTABLE);
        let identity = task.identity(Role::Worker, fingerprint);
        Self { identity, session: None, earlier: (0, 0), has_sampled: false.into() }
    }

    /// Env steps and leases over all connections.
    fn counts(&self) -> (u64, u64) {
        let counters = self.session.as_ref().map(WorkerSession::counters).unwrap_or_default();
        (self.earlier.0 + counters.env_steps, self.earlier.1 + counters.leases_done)
    }
}

impl Work for Sampling {
    fn connect(&mut self) {
        // With a clock, samples are made in spans, between which messages are heard and sent.
        let session = WorkerSession::new(self.identity.clone(), registry(), Kernels::PORTABLE)
            .with_workers(|| RolloutWorkerBuilder::new(registry()).clock(scope::now));
        self.session = Some(session);
    }

    fn disconnect(&mut self) {
        self.earlier = self.counts();
        self.session = None;
    }

    fn handle_frame(&mut self, frame: &[u8]) {
        let Some(session) = &mut self.session else { return };
        session.handle_frame(frame);
        if let Some(resume) = session.resume_id() {
            self.identity.resume = Some(resume);
        }
    }

    fn send_next(&mut self, socket: &Socket) -> bool {
        let frame = self.session.as_mut().and_then(WorkerSession::poll_frame);
        frame.inspect(|frame| socket.send(frame)).is_some()
    }

    fn has_work(&self) -> bool {
        self.session.as_ref().is_some_and(WorkerSession::has_work)
    }

    fn work(&mut self, now: Micros) {
        if let Some(session) = &mut self.session {
            session.work(VECTOR_STEPS, now);
            self.has_sampled.set(true);
        }
    }

    fn is_welcome(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.resume_id().is_some())
    }

    fn end(&self) -> Option<String> {
        match self.session.as_ref()?.state() {
            SessionState::Refused { code, reason } if *code != Some(RefusalCode::Busy) => Some(reason.clone()),
            SessionState::Closed { reason } => Some(reason.clone()),
            SessionState::Connecting | SessionState::Ready | SessionState::Refused { .. } => None,
        }
    }

    fn status(&self) -> Status {
        let session = self.session.as_ref();
        let inability = session.and_then(WorkerSession::inability);
        let state = match session.map(WorkerSession::state) {
            Some(SessionState::Ready) if inability.is_some() => "unable",
            Some(SessionState::Ready) if self.has_sampled.take() => "sampling",
            Some(SessionState::Ready) => "idle",
            Some(_) | None => "connecting",
        };
        let (env_steps, fragments) = self.counts();
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
