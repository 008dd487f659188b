//! This tab as a worker that evaluates, found by its name at the hub.

use rollmesh_core::{
    eval_worker::{EvalMakers, InlineEvalWorker},
    evaluation::check_name,
    kernels::Kernels,
    protocol::handshake::Identity,
    run::RunConfig,
    time::Micros,
    worker::{SessionState, WorkerSession},
};
use rollmesh_web_registry::registry;

use crate::{
    page::{Status, Task},
    work::Work,
};

/// Evaluates for handles at the hub. The worker outlives connections, with its weights.
pub(crate) struct Evaluating(InlineEvalWorker);

impl Evaluating {
    /// Evaluates the policy of a run. Fails with what is wrong with its description.
    pub(crate) fn new(task: &Task, run: &RunConfig) -> Result<Self, String> {
        check_name(&task.name).map_err(|error| error.to_string())?;
        run.refuse_host_settings().map_err(|error| format!("a tab has no process of its own: {error}"))?;
        let makers = EvalMakers::of_run(run, &registry(), Kernels::PORTABLE).map_err(|error| error.to_string())?;
        Ok(Self(InlineEvalWorker::new(makers)))
    }
}

impl Work for Evaluating {
    fn session(&self, identity: Identity) -> WorkerSession {
        WorkerSession::new(identity, registry(), Kernels::PORTABLE).with_evaluator(Box::new(self.0.clone()))
    }

    fn work(&mut self, session: &mut WorkerSession, now: Micros) {
        session.work(1, now);
    }

    fn end(&self, _: &SessionState) -> Option<String> {
        // A hub that ends may be started again.
        self.0.is_stopped().then(|| "a handle has shut it down".into())
    }

    fn status(&self, session: Option<&WorkerSession>) -> Status {
        let is_welcome = session.is_some_and(|session| *session.state() == SessionState::Ready);
        let state = match (is_welcome, self.0.is_playing()) {
            (false, _) => "connecting",
            (true, true) => "evaluating",
            (true, false) => "idle",
        };
        Status { state, env_steps: self.0.env_steps(), evaluations: self.0.evaluations(), ..Status::default() }
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::protocol::{Message, Token, handshake::name_taken, message::Welcome};

    use super::*;
    use crate::work::AtHub;

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
    fn meet(tab: &mut AtHub, answer: Message) {
        tab.connect();
        tab.handle_frame(&answer.encode());
    }

    #[test]
    fn a_name_that_is_taken_is_tried_again_only_by_who_had_it() {
        let new = || {
            let run = Some(RunConfig::new("CartPole-v1"));
            AtHub::new(&Task { run, ..task("judge") }).unwrap()
        };
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
