//! What a tab does at a hub, whatever the socket is doing.

use rollmesh_core::{
    kernels::Kernels,
    protocol::{RefusalCode, Role, handshake::Identity},
    time::Micros,
    worker::{SessionState, WorkerSession, core_fingerprint},
};

use crate::{
    evaluating::Evaluating,
    page::{Status, Task},
    sampling::Sampling,
    socket::Socket,
};

/// Work at a hub: sampling for its run, or evaluating for its peers. Done in short pieces, between which messages are
/// heard.
pub(crate) trait Work {
    /// Begins a session on a new connection.
    fn session(&self, identity: Identity) -> WorkerSession;
    /// Keeps what outlives a session, whose connection is gone.
    fn keep(&mut self, _session: &WorkerSession) {}
    /// Does a piece of the work, which takes a fraction of a slice.
    fn work(&mut self, session: &mut WorkerSession, now: Micros);
    /// Why another connection would not help after this state of the session, if so.
    fn end(&self, state: &SessionState) -> Option<String>;
    /// How it goes. The state is that of a tab with a connection.
    fn status(&self, session: Option<&WorkerSession>) -> Status;
}

/// A tab's work and its present session at the hub.
pub(crate) struct AtHub {
    /// With what resumes the latest session, if the hub has let the tab in before.
    identity: Identity,
    work: Box<dyn Work>,
    /// None between two connections.
    session: Option<WorkerSession>,
}

impl AtHub {
    pub(crate) fn new(task: &Task) -> Result<Self, String> {
        let work: Box<dyn Work> = match &task.run {
            None => Box::new(Sampling::default()),
            Some(run) => Box::new(Evaluating::new(task, run)?),
        };
        let identity = task.identity(Role::Worker, core_fingerprint(Kernels::PORTABLE));
        Ok(Self { identity, work, session: None })
    }

    /// Begins a session on a new connection.
    pub(crate) fn connect(&mut self) {
        self.session = Some(self.work.session(self.identity.clone()));
    }

    /// The connection is gone.
    pub(crate) fn disconnect(&mut self) {
        if let Some(mut session) = self.session.take() {
            session.leave("the connection is lost");
            self.work.keep(&session);
        }
    }

    /// Takes a frame from the hub.
    pub(crate) fn handle_frame(&mut self, frame: &[u8]) {
        let Some(session) = &mut self.session else { return };
        session.handle_frame(frame);
        self.identity.resume = session.resume_id().or(self.identity.resume);
    }

    /// Sends the next frame, if there is one now.
    pub(crate) fn send_next(&mut self, socket: &Socket) -> bool {
        let frame = self.session.as_mut().and_then(WorkerSession::poll_frame);
        frame.inspect(|frame| socket.send(frame)).is_some()
    }

    /// True while there is something to do.
    pub(crate) fn has_work(&self) -> bool {
        self.session.as_ref().is_some_and(WorkerSession::has_work)
    }

    /// Does a piece of the work.
    pub(crate) fn work(&mut self, now: Micros) {
        self.session.iter_mut().for_each(|session| self.work.work(session, now));
    }

    /// True once the hub wants this tab.
    pub(crate) fn is_welcome(&self) -> bool {
        self.session.as_ref().is_some_and(|session| *session.state() == SessionState::Ready)
    }

    /// Why another connection would not help, if so.
    pub(crate) fn end(&self) -> Option<String> {
        let state = self.session.as_ref()?.state();
        match state {
            // Of one that comes back, the hub may not have noticed yet that it was gone.
            SessionState::Refused { code: Some(RefusalCode::NameTaken), .. } if self.identity.resume.is_some() => None,
            SessionState::Refused { code, reason } if *code != Some(RefusalCode::Busy) => Some(reason.clone()),
            _ => self.work.end(state),
        }
    }

    /// How it goes.
    pub(crate) fn status(&self) -> Status {
        self.work.status(self.session.as_ref())
    }
}
