//! This tab as a worker that evaluates, found by its name at the hub.

use std::{cell::RefCell, rc::Rc};

use rollmesh_core::{
    eval_worker::{EvalMakers, InlineEvalWorker},
    evaluation::check_name,
    kernels::Kernels,
    protocol::{RefusalCode, Role, handshake::Identity},
    run::RunConfig,
    time::Micros,
    worker::{SessionState, WorkerSession, core_fingerprint},
};
use rollmesh_web_registry::registry;

use crate::{
    page::{Status, Task},
    socket::Socket,
    work::Work,
};

/// Evaluates for handles at the hub.
pub(crate) struct Evaluating {
    identity: Identity,
    /// Outlives connections, with its weights.
    worker: Rc<RefCell<InlineEvalWorker>>,
    /// None between two connections.
    session: Option<WorkerSession>,
    /// The hub has let it in before.
    has_served: bool,
}

impl Evaluating {
    /// Evaluates the policy of a run. Fails with what is wrong with its description.
    pub(crate) fn new(task: &Task, run: &RunConfig) -> Result<Self, String> {
        check_name(&task.name).map_err(|error| error.to_string())?;
        run.refuse_host_settings().map_err(|error| format!("a tab has no process of its own: {error}"))?;
        let makers = EvalMakers::of_run(run, &registry(), Kernels::PORTABLE).map_err(|error| error.to_string())?;
        Ok(Self {
            identity: task.identity(Role::Worker, core_fingerprint(Kernels::PORTABLE)),
            worker: Rc::new(RefCell::new(InlineEvalWorker::new(makers))),
            session: None,
            has_served: false,
        })
    }
}

impl Work for Evaluating {
    fn connect(&mut self) {
        let session = WorkerSession::new(self.identity.clone(), registry(), Kernels::PORTABLE);
        self.session = Some(session.with_evaluator(Box::new(self.worker.clone())));
    }

    fn disconnect(&mut self) {
        let gone = self.session.take();
        gone.into_iter().for_each(|mut session| session.leave("the connection is lost"));
    }

    fn handle_frame(&mut self, frame: &[u8]) {
        let Some(session) = &mut self.session else { return };
        session.handle_frame(frame);
        self.has_served |= session.resume_id().is_some();
    }

    fn send_next(&mut self, socket: &Socket) -> bool {
        let frame = self.session.as_mut().and_then(WorkerSession::poll_frame);
        frame.inspect(|frame| socket.send(frame)).is_some()
    }

    fn has_work(&self) -> bool {
        self.session.as_ref().is_some_and(WorkerSession::has_work)
    }

    fn work(&mut self, now: Micros) {
        self.session.iter_mut().for_each(|session| session.work(1, now));
    }

    fn is_welcome(&self) -> bool {
        self.session.as_ref().is_some_and(|session| *session.state() == SessionState::Ready)
    }

    fn end(&self) -> Option<String> {
        if self.worker.borrow().desk.is_stopped() {
            return Some("a handle has shut it down".into());
        }
        match self.session.as_ref()?.state() {
            // Of one that comes back, the hub may not have noticed yet that it was gone.
            SessionState::Refused { code: Some(RefusalCode::NameTaken), .. } if self.has_served => None,
            SessionState::Refused { code, reason } if *code != Some(RefusalCode::Busy) => Some(reason.clone()),
            // A hub that ends may be started again.
            SessionState::Connecting
            | SessionState::Ready
            | SessionState::Refused { .. }
            | SessionState::Closed { .. } => None,
        }
    }

    fn status(&self) -> Status {
        let worker = self.worker.borrow();
        let state = match (self.is_welcome(), worker.is_playing()) {
            (false, _) => "connecting",
            (true, true) => "evaluating",
            (true, false) => "idle",
        };
        Status { state, env_steps: worker.env_steps(), evaluations: worker.evaluations(), ..Status::default() }
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::{Message, Token, handshake::name_taken, message::Welcome};

    use super::*;

    fn task(name: &str) -> Task {
        Task { url: "ws://127.0.0.1:1/ws".into(), token: Token::new([1; 32]), name: name.into(), run: None }
    }

    #[test]
    fn what_a_tab_cannot_be_is_refused_by_name() {
        let mut run = RunConfig::new("CartPole-v1");
        let refused = |name: &str, run: &RunConfig| Evaluating::new(&task(name), run).err().unwrap_or_default();
        assert_eq!(refused("judge", &run), "");
        assert!(refused("no name", &run).starts_with("'no name' cannot be the name of an evaluation worker"));
        run.host.evaluator.cpus = 1;
        assert!(refused("judge", &run).starts_with("a tab has no process of its own: host"));
        assert!(refused("judge", &RunConfig::new("Nowhere-v0")).contains("there is no environment 'Nowhere-v0'"));
    }

    /// Connects to a hub that answers this.
    fn meet(evaluating: &mut Evaluating, answer: Message) {
        evaluating.connect();
        evaluating.handle_frame(&answer.encode());
    }

    #[test]
    fn a_name_that_is_taken_is_tried_again_only_by_who_had_it() {
        let new = || Evaluating::new(&task("judge"), &RunConfig::new("CartPole-v1")).unwrap();
        let taken = || Message::Refused(name_taken("judge"));
        let mut late = new();
        meet(&mut late, taken());
        assert_eq!(late.end().as_deref(), Some("the name 'judge' is taken"));
        let mut back = new();
        let (resume_id, credit) = ([1; 16], u32::MAX);
        meet(&mut back, Message::Welcome(Welcome { protocol: 1, peer: 3, resume_id, credit, server: "hub".into() }));
        assert!(back.is_welcome() && back.end().is_none());
        back.disconnect();
        meet(&mut back, taken());
        assert!(!back.is_welcome() && back.end().is_none());
    }
}
