//! An evaluation worker at a hub that the tests simulate.

use super::{EvalMakers, InlineEvalWorker};
use crate::{
    evaluation::{EvalOutcome, EvalWorkerError, Evaluates as _, Evaluation, EvaluationRequest},
    ids::{CallId, WeightsVersion},
    kernels::Kernels,
    policy::{NetPolicy, Policy as _, PolicyContext},
    prelude::*,
    protocol::{
        Inbox, Message, Outbox, Role, Token,
        handshake::Identity,
        message::{CallCancel, Welcome},
    },
    run::RunConfig,
    time::Micros,
    weights::Weights,
    worker::{CommandError, CommandErrorKind, Registry, WorkerAnswer, WorkerCommand, WorkerSession},
};

type Result = core::result::Result<WorkerAnswer, CommandError>;

fn worker() -> InlineEvalWorker {
    let mut run = RunConfig::new("CartPole-v1").seed(7);
    run.evaluation.num_envs = 2;
    InlineEvalWorker::new(EvalMakers::of_run(&run, &Registry::builtin(), Kernels::PORTABLE).unwrap())
}

/// A hub with one evaluation worker.
struct Hub {
    session: WorkerSession,
    worker: InlineEvalWorker,
    inbox: Inbox,
    outbox: Outbox,
    results: Vec<(u64, Result)>,
    progress: Vec<u64>,
    now: Micros,
}

impl Hub {
    fn start(worker: InlineEvalWorker) -> Self {
        let identity = Identity::new(Role::Worker, Token::new([1; 32]), "browser", "judge", "wasm");
        let session = WorkerSession::new(identity, Registry::builtin(), Kernels::PORTABLE);
        let session = session.with_evaluator(Box::new(worker.clone()));
        let (inbox, outbox) = (Inbox::of_hub(), Outbox::default());
        let mut hub =
            Self { session, worker, inbox, outbox, results: vec![], progress: vec![], now: Micros::from_secs(1) };
        hub.exchange();
        hub.inbox.admit(Role::Worker);
        let server = "hub".into();
        hub.say(&Message::Welcome(Welcome { protocol: 1, peer: 3, resume_id: [1; 16], credit: 1 << 20, server }));
        assert!(hub.session.connection().is_ready());
        hub
    }

    /// Transfers frames until neither side has any.
    fn exchange(&mut self) {
        loop {
            let (heard, said) = (self.outbox.poll_frame(), self.session.poll_frame());
            if heard.is_none() && said.is_none() {
                return;
            }
            heard.into_iter().for_each(|frame| self.session.handle_frame(&frame));
            let message = said.and_then(|frame| self.inbox.handle_frame(&frame).unwrap());
            match message {
                Some(Message::CallResult(result)) => self.results.push((result.call, WorkerAnswer::read(&result))),
                Some(Message::CallProgress(progress)) => self.progress.push(progress.call),
                Some(Message::Credit(credit)) => self.outbox.grant(credit.bytes),
                Some(Message::Hello(hello)) => assert_eq!(hello.role, Role::Worker.to_wire()),
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            if let Some(credit) = self.inbox.take_credit_due() {
                self.outbox.push(&Message::Credit(credit)).unwrap();
            }
        }
    }

    fn say(&mut self, message: &Message) {
        self.outbox.push(message).unwrap();
        self.exchange();
    }

    fn ask(&mut self, call: u64, command: &WorkerCommand) {
        self.say(&command.message(CallId(call)).unwrap());
    }

    fn evaluate(&mut self, call: u64, weights: Option<Weights>, request: &EvaluationRequest) {
        self.ask(call, &WorkerCommand::Evaluate { weights, request: request.clone() });
    }

    fn cancel(&mut self, call: u64) {
        self.say(&Message::CallCancel(CallCancel { call }));
    }

    fn work(&mut self, slices: usize) {
        for _ in 0..slices {
            self.now = self.now + Micros::from_millis(100);
            self.session.work(1, self.now);
            self.exchange();
        }
    }

    fn work_on(&mut self) {
        while self.session.has_work() {
            self.work(1);
        }
    }

    /// Returns the only result that has arrived.
    fn result(&mut self) -> (u64, Result) {
        assert_eq!(self.results.len(), 1, "{:?}", self.results);
        self.results.remove(0)
    }

    fn found(&mut self, call: u64) -> Evaluation {
        match self.result() {
            (of, Ok(WorkerAnswer::Evaluated(outcome))) if of == call => outcome.unwrap(),
            other => panic!("{other:?}"),
        }
    }
}

fn start() -> Hub {
    Hub::start(worker())
}

fn request(steps: u32) -> EvaluationRequest {
    EvaluationRequest { render: false, ..EvaluationRequest::new(steps) }
}

/// Returns a request that runs until it is cancelled.
fn endless() -> EvaluationRequest {
    EvaluationRequest { break_when_any_done: false, ..request(u32::MAX) }
}

/// Returns weights other than the policy's first ones.
fn weights() -> Weights {
    let spaces = Registry::builtin().envs.spec("CartPole-v1").unwrap().spaces().unwrap();
    let policy = NetPolicy::for_context(&PolicyContext::new(spaces, 99, Kernels::PORTABLE)).unwrap();
    policy.weights().with_version(WeightsVersion(12))
}

/// Returns the outcome without a hub.
fn alone(weights: Weights, request: &EvaluationRequest) -> EvalOutcome {
    let mut worker = worker();
    let ticket = worker.submit(Some(weights), request.clone()).unwrap();
    while worker.has_work() {
        worker.work(64);
    }
    worker.take(ticket).unwrap()
}

#[test]
fn evaluation_by_call_is_bit_identical_to_one_without_a_hub() {
    let mut hub = start();
    let request = EvaluationRequest { deterministic: false, ..EvaluationRequest::new(50) };
    hub.evaluate(8, Some(weights()), &request);
    hub.work(1);
    assert!(hub.worker.is_playing() && hub.results.is_empty());
    // A ping is answered in between.
    hub.ask(9, &WorkerCommand::Ping);
    assert_eq!(hub.result(), (9, Ok(WorkerAnswer::Pong)));
    hub.work_on();
    let found = hub.found(8);
    assert!(found.frames.as_ref().is_some_and(|frames| frames.rgb().len() > 1 << 20));
    assert_eq!((found.weights_version, hub.worker.evaluations()), (WeightsVersion(12), 1));
    assert_eq!(Ok(found), alone(weights(), &request));
    // Every quarter of a second.
    assert!(!hub.progress.is_empty() && hub.progress.iter().all(|call| *call == 8));
}

#[test]
fn cancelled_call_ends_immediately_and_the_next_one_starts() {
    let mut hub = start();
    hub.evaluate(1, Some(weights()), &endless());
    hub.evaluate(2, None, &endless());
    hub.evaluate(3, None, &request(50));
    hub.work(3);
    for call in [2, 1] {
        hub.cancel(call);
        let (of, result) = hub.result();
        assert_eq!((of, result.unwrap_err().kind), (call, CommandErrorKind::Cancelled));
    }
    hub.work_on();
    assert_eq!(Ok(hub.found(3)), alone(weights(), &request(50)));
    // A cancellation that overtakes its call.
    hub.cancel(5);
    assert!(hub.results.is_empty());
    hub.evaluate(5, None, &endless());
    assert_eq!(hub.result().1.unwrap_err().kind, CommandErrorKind::Cancelled);
    assert!(!hub.session.has_work());
}

#[test]
fn evaluator_outlives_the_session_with_its_weights() {
    let mut hub = start();
    hub.evaluate(1, Some(weights()), &endless());
    hub.work(2);
    hub.session.leave("the hub has disconnected");
    let worker = hub.worker.clone();
    drop(hub);
    let mut hub = Hub::start(worker);
    hub.work_on();
    assert!(!hub.worker.is_playing(), "what a session that is over has asked for is cancelled");
    hub.evaluate(1, None, &request(50));
    hub.work_on();
    assert_eq!(Ok(hub.found(1)), alone(weights(), &request(50)));
}

#[test]
fn commands_that_are_no_evaluation_are_refused_and_stop_ends_all() {
    let mut hub = start();
    hub.ask(1, &WorkerCommand::Sample);
    assert_eq!(hub.result().1.unwrap_err().kind, CommandErrorKind::NotSetUp);
    hub.ask(2, &WorkerCommand::AssertHealthy);
    assert_eq!(hub.result(), (2, Ok(WorkerAnswer::Done)));
    hub.ask(3, &WorkerCommand::Stop);
    assert_eq!(hub.result(), (3, Ok(WorkerAnswer::Done)));
    hub.evaluate(4, None, &request(5));
    assert_eq!(hub.result(), (4, Ok(WorkerAnswer::Evaluated(Box::new(Err(EvalWorkerError::Stopped))))));
}
