//! This tab as an evaluation worker, found by its name at the hub.

use rollmesh_core::{
    eval_worker::{EvalMakers, EvalSession, FrameLimits, InlineEvalWorker},
    evaluation::{Evaluates as _, check_name},
    kernels::Kernels,
    protocol::{RefusalCode, Role, handshake::Identity},
    run::RunConfig,
    time::Micros,
    worker::SessionState,
};
use rollmesh_web_registry::registry;

use crate::{
    page::{Status, Task},
    socket::Socket,
    work::Work,
};

/// Rounds of all sub-environments between two looks at the clock.
const ROUNDS: u32 = 1;
/// The most that an asker may say at once: weights larger than these are more than a tab plays with.
const LIMITS: FrameLimits = FrameLimits { text: 1 << 20, bytes: 256 << 20 };

/// Evaluates for whoever asks.
pub(crate) struct Evaluating {
    identity: Identity,
    worker: InlineEvalWorker,
    /// None between two connections.
    session: Option<EvalSession>,
    /// It had its name at the hub before.
    has_served: bool,
}

impl Evaluating {
    /// Evaluates the policy of a run. Fails with what is wrong with its description.
    pub(crate) fn new(task: &Task, run: &RunConfig) -> Result<Self, String> {
        check_name(&task.name).map_err(|error| error.to_string())?;
        run.refuse_host_settings().map_err(|error| format!("a tab has no process of its own: {error}"))?;
        let makers = EvalMakers::of_run(run, &registry(), Kernels::PORTABLE).map_err(|error| error.to_string())?;
        Ok(Self {
            // Only workers are asked for a fingerprint.
            identity: task.identity(Role::Evaluator, [0; 16]),
            worker: InlineEvalWorker::new(makers),
            session: None,
            has_served: false,
        })
    }
}

impl Work for Evaluating {
    fn connect(&mut self) {
        self.session = Some(EvalSession::new(self.identity.clone(), &self.identity.name, LIMITS));
    }

    fn disconnect(&mut self) {
        let gone = self.session.take();
        gone.into_iter().for_each(|session| session.end(&mut self.worker.desk));
    }

    fn handle_frame(&mut self, frame: &[u8], now: Micros) {
        let Some(session) = &mut self.session else { return };
        session.handle_frame(frame, &mut self.worker.desk, now);
        self.has_served |= session.has_name() == Some(true);
        if session.wants_shutdown() {
            self.worker.desk.stop();
        }
    }

    fn send_next(&mut self, socket: &Socket, now: Micros) -> bool {
        let Some(session) = &mut self.session else { return false };
        let frame = session.poll_frame(&mut self.worker.desk, now);
        frame.inspect(|frame| socket.send(frame)).is_some()
    }

    fn has_work(&self) -> bool {
        self.worker.has_work()
    }

    fn work(&mut self, _: Micros) {
        self.worker.work(ROUNDS);
    }

    fn is_welcome(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.has_name() == Some(true))
    }

    fn end(&self) -> Option<String> {
        if self.worker.desk.is_stopped() {
            return Some("somebody who evaluates with it has shut it down".into());
        }
        let session = self.session.as_ref()?;
        match session.state() {
            SessionState::Refused { code, reason } if *code != Some(RefusalCode::Busy) => Some(reason.clone()),
            // Of one that comes back, the hub may not have noticed yet that it was gone.
            SessionState::Closed { reason } if session.has_name() == Some(false) && !self.has_served => {
                Some(reason.clone())
            }
            // A hub that ends may be started again.
            SessionState::Connecting
            | SessionState::Ready
            | SessionState::Refused { .. }
            | SessionState::Closed { .. } => None,
        }
    }

    fn status(&self) -> Status {
        let state = match (self.is_welcome(), self.worker.is_playing()) {
            (false, _) => "connecting",
            (true, true) => "evaluating",
            (true, false) => "idle",
        };
        let (env_steps, evaluations) = (self.worker.env_steps(), self.worker.evaluations());
        Status { state, env_steps, evaluations, ..Status::default() }
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::{
        Message, Token,
        message::{EvaluatorFound, Welcome},
    };

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

    /// Connects to a hub that gives the name to this peer, 0 for nobody.
    fn meet(evaluating: &mut Evaluating, peer: u32) {
        let (resume_id, credit) = ([1; 16], u32::MAX);
        let welcome = Welcome { protocol: 1, peer: 3, resume_id, credit, server: "hub".into() };
        evaluating.connect();
        evaluating.handle_frame(&Message::Welcome(welcome).encode(), Micros(0));
        let found = EvaluatorFound { name: "judge".into(), peer };
        evaluating.handle_frame(&Message::EvaluatorFound(found).encode(), Micros(0));
    }

    #[test]
    fn a_name_that_is_taken_is_tried_again_only_by_who_had_it() {
        let new = || Evaluating::new(&task("judge"), &RunConfig::new("CartPole-v1")).unwrap();
        let mut late = new();
        meet(&mut late, 0);
        assert_eq!(late.end().as_deref(), Some("the name 'judge' is taken"));
        let mut back = new();
        meet(&mut back, 3);
        assert!(back.is_welcome() && back.end().is_none());
        back.disconnect();
        meet(&mut back, 0);
        assert!(!back.is_welcome() && back.end().is_none());
    }
}
