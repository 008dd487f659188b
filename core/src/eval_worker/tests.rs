//! An evaluation worker at a hub that the tests play, with askers that they are.

use super::{
    EvalAnswer, EvalAsk, EvalMakers, EvalSession, FrameLimits, FrameReader, InlineEvalWorker, frame_start,
    weights_to_bytes,
};
use crate::{
    evaluation::{Earlier, EvalWorkerError, Evaluates as _, Evaluation, EvaluationRequest},
    ids::WeightsVersion,
    kernels::Kernels,
    policy::{NetPolicy, Policy as _, PolicyContext},
    prelude::*,
    protocol::{
        Message, RefusalCode, Role, Token,
        handshake::{Identity, busy},
        message::{
            EVALUATOR_WINDOW, EvaluatorBytes, EvaluatorFound, EvaluatorGone, EvaluatorTaken, MAX_EVALUATOR_BYTES,
            Welcome,
        },
    },
    run::RunConfig,
    time::Micros,
    weights::Weights,
    worker::{Registry, SessionState},
};

const LIMITS: FrameLimits = FrameLimits { text: 1 << 16, bytes: 1 << 24 };

fn worker() -> InlineEvalWorker {
    let mut run = RunConfig::new("CartPole-v1").seed(7);
    run.evaluation.num_envs = 2;
    InlineEvalWorker::new(EvalMakers::of_run(&run, &Registry::builtin(), Kernels::PORTABLE).unwrap())
}

fn session() -> EvalSession {
    let identity = Identity {
        role: Role::Evaluator,
        token: Token::new([1; 32]),
        resume: None,
        core_fingerprint: [0; 16],
        kind: "browser".into(),
        name: "judge".into(),
        device: "wasm".into(),
    };
    EvalSession::new(identity, "judge", LIMITS)
}

/// A hub with one worker under a name, and the worker.
struct Hub {
    session: EvalSession,
    worker: InlineEvalWorker,
    /// Bytes for each asker, and how many of them it has not taken.
    said: BTreeMap<u32, (Vec<u8>, usize)>,
}

impl Hub {
    fn start(worker: InlineEvalWorker) -> Self {
        let mut hub = Self { session: session(), worker, said: BTreeMap::new() };
        assert!(matches!(hub.next(), Some(Message::Hello(hello)) if hello.role == Role::Evaluator.to_wire()));
        assert!(hub.next().is_none(), "the hub speaks next");
        hub.tell(&Message::Welcome(Welcome {
            protocol: 1,
            peer: 3,
            resume_id: [1; 16],
            credit: u32::MAX,
            server: "hub".into(),
        }));
        assert!(matches!(hub.next(), Some(Message::EvaluatorName(wish)) if wish.serves && wish.name == "judge"));
        assert_eq!((hub.session.state(), hub.session.has_name()), (&SessionState::Ready, None));
        hub.tell(&Message::EvaluatorFound(EvaluatorFound { name: "judge".into(), peer: 3 }));
        assert_eq!(hub.session.has_name(), Some(true));
        hub
    }

    fn next(&mut self) -> Option<Message> {
        let frame = self.session.poll_frame(&mut self.worker.desk, Micros(0))?;
        Some(Message::decode(&frame).unwrap())
    }

    fn tell(&mut self, message: &Message) {
        self.session.handle_frame(&message.encode(), &mut self.worker.desk, Micros(0));
    }

    /// Takes what the worker says, and never lets it wait for room if `takes`.
    fn listen(&mut self, takes: bool) {
        while let Some(message) = self.next() {
            match message {
                Message::EvaluatorBytes(EvaluatorBytes { peer, data }) => {
                    assert!((1..=MAX_EVALUATOR_BYTES).contains(&data.len()));
                    let (said, open) = self.said.entry(peer).or_default();
                    said.extend_from_slice(&data);
                    *open += data.len();
                    assert!(*open <= EVALUATOR_WINDOW);
                }
                Message::EvaluatorTaken(_) | Message::Goodbye(_) => {}
                other => panic!("{other:?}"),
            }
            if takes {
                let taken: Vec<(u32, usize)> = self.said.iter().map(|(&peer, (_, open))| (peer, *open)).collect();
                for (peer, open) in taken {
                    self.said.get_mut(&peer).unwrap().1 = 0;
                    self.tell(&Message::EvaluatorTaken(EvaluatorTaken { peer, bytes: open as u32 }));
                }
            }
        }
    }

    fn ask(&mut self, peer: u32, ask: &EvalAsk, bytes: &[u8]) {
        let stream = [&frame_start(ask, bytes).unwrap()[..], bytes].concat();
        for data in stream.chunks(MAX_EVALUATOR_BYTES) {
            self.tell(&Message::EvaluatorBytes(EvaluatorBytes { peer, data: data.to_vec() }));
            self.listen(true);
        }
    }

    /// The one answer that an asker has got.
    fn answer(&mut self, peer: u32) -> Option<(EvalAnswer, Vec<u8>)> {
        self.listen(true);
        let (said, _) = self.said.remove(&peer)?;
        let mut reader = FrameReader::new(FrameLimits::MAX);
        assert_eq!(reader.push(&said), Ok(said.len()));
        Some(reader.take().unwrap().expect("a whole answer"))
    }

    fn work(&mut self) {
        while self.worker.has_work() {
            self.worker.work(1);
            self.listen(true);
        }
    }
}

fn submit(request: &EvaluationRequest) -> EvalAsk {
    EvalAsk::Submit { request: request.clone(), earlier: Earlier::Cancel }
}

const POLL: EvalAsk = EvalAsk::Poll { timeout_ms: 1_000 };

/// Other weights than those that the policy begins with.
fn weights() -> Weights {
    let spaces = Registry::builtin().envs.spec("CartPole-v1").unwrap().spaces().unwrap();
    let policy = NetPolicy::for_context(&PolicyContext::new(spaces, 99, Kernels::PORTABLE)).unwrap();
    policy.weights().with_version(WeightsVersion(12))
}

/// What the same weights come to without a hub.
fn alone(weights: Weights, request: &EvaluationRequest) -> Evaluation {
    let mut worker = worker();
    let ticket = worker.submit(Some(weights), request.clone()).unwrap();
    while worker.has_work() {
        worker.work(64);
    }
    worker.take(ticket).unwrap().unwrap()
}

#[test]
fn askers_get_what_an_evaluation_elsewhere_finds_bit_for_bit() {
    let mut hub = Hub::start(worker());
    // More pictures than may be on their way at a time.
    let request = EvaluationRequest { deterministic: false, ..EvaluationRequest::new(50) };
    let bytes = weights_to_bytes(Some(&weights())).unwrap();
    hub.ask(8, &submit(&request), &bytes);
    assert!(matches!(hub.answer(8), Some((EvalAnswer::Ticket(_), _))));
    hub.ask(8, &POLL, &[]);
    assert!(hub.answer(8).is_none() && hub.session.deadline() == Some(Micros::from_secs(1)));
    // Another one has nothing to wait for; both are heard while it plays.
    hub.worker.work(1);
    hub.ask(9, &POLL, &[]);
    assert!(matches!(hub.answer(9), Some((EvalAnswer::Nothing, _))));
    while hub.worker.has_work() {
        hub.worker.work(1);
    }
    hub.listen(false);
    assert_eq!(hub.said[&8].1, EVALUATOR_WINDOW, "the rest waits for room");
    let open = hub.said.get_mut(&8).map(|(_, open)| core::mem::take(open)).unwrap() as u32;
    hub.tell(&Message::EvaluatorTaken(EvaluatorTaken { peer: 8, bytes: open }));
    let Some((EvalAnswer::Found(found), bytes)) = hub.answer(8) else { panic!("a result") };
    let (_, found) = found.read(bytes);
    let found = found.unwrap().unwrap();
    assert!(found.frames.as_ref().is_some_and(|frames| frames.rgb().len() > EVALUATOR_WINDOW));
    assert_eq!((found.weights_version, hub.worker.evaluations()), (WeightsVersion(12), 1));
    assert_eq!(found, alone(weights(), &request));
}

#[test]
fn what_a_gone_asker_wanted_is_cancelled_and_the_desk_outlives_the_session() {
    let mut hub = Hub::start(worker());
    let request = EvaluationRequest { break_when_any_done: false, render: false, ..EvaluationRequest::new(u32::MAX) };
    hub.ask(8, &submit(&request), &weights_to_bytes(Some(&weights())).unwrap());
    hub.worker.work(1);
    assert!(hub.worker.is_playing());
    hub.tell(&Message::EvaluatorGone(EvaluatorGone { peer: 8 }));
    hub.work();
    assert!(!hub.worker.is_playing());
    // The same when the connection is lost; weights stay.
    hub.ask(9, &submit(&request), &[]);
    hub.worker.work(1);
    let Hub { session, mut worker, .. } = hub;
    session.end(&mut worker.desk);
    while worker.has_work() {
        worker.work(1);
    }
    let mut hub = Hub::start(worker);
    let request = EvaluationRequest { render: false, ..EvaluationRequest::new(50) };
    hub.ask(8, &submit(&request), &[]);
    hub.work();
    hub.answer(8);
    hub.ask(8, &POLL, &[]);
    let Some((EvalAnswer::Found(found), bytes)) = hub.answer(8) else { panic!("a result") };
    assert_eq!(found.read(bytes).1, Ok(Some(alone(weights(), &request))));
}

#[test]
fn a_name_that_is_taken_and_a_hub_that_refuses_end_the_session() {
    let mut worker = worker();
    let mut hub = Hub::start(worker);
    hub.tell(&Message::EvaluatorFound(EvaluatorFound { name: "judge".into(), peer: 0 }));
    assert_eq!(hub.session.has_name(), Some(false));
    let reason = String::from("the name 'judge' is taken");
    assert_eq!(hub.session.state(), &SessionState::Closed { reason: reason.clone() });
    assert!(matches!(hub.next(), Some(Message::Goodbye(goodbye)) if goodbye.reason == reason));

    worker = hub.worker;
    let mut refused = session();
    let busy = Message::Refused(busy("full")).encode();
    refused.handle_frame(&busy, &mut worker.desk, Micros(0));
    let code = Some(RefusalCode::Busy);
    assert_eq!(refused.state(), &SessionState::Refused { code, reason: "full".into() });
}

#[test]
fn askers_have_room_for_one_long_question_together() {
    let mut hub = Hub::start(worker());
    let question = |bytes: usize| {
        let bytes = vec![0; bytes];
        [&frame_start(&submit(&EvaluationRequest::new(5)), &bytes).unwrap()[..], &bytes].concat()
    };
    let longest = question(LIMITS.bytes as usize);
    let say = |hub: &mut Hub, peer, stream: &[u8]| {
        for data in stream.chunks(MAX_EVALUATOR_BYTES) {
            hub.tell(&Message::EvaluatorBytes(EvaluatorBytes { peer, data: data.to_vec() }));
            hub.listen(true);
        }
    };
    let (most, rest) = longest.split_at(longest.len() - 1);
    say(&mut hub, 8, most);
    say(&mut hub, 9, &question(EVALUATOR_WINDOW));
    assert!(matches!(hub.answer(9), Some((EvalAnswer::Trouble(EvalWorkerError::Failed(_)), _))), "it has room");
    say(&mut hub, 9, &question(4 * EVALUATOR_WINDOW));
    let Some((EvalAnswer::Trouble(EvalWorkerError::Io(reason)), _)) = hub.answer(9) else { panic!("a refusal") };
    assert!(reason.contains("ask again later"), "{reason}");
    // Who was first is heard to the end; zeros are no weights.
    say(&mut hub, 8, rest);
    assert!(matches!(hub.answer(8), Some((EvalAnswer::Trouble(EvalWorkerError::Failed(_)), _))));
    say(&mut hub, 7, &longest);
    assert!(matches!(hub.answer(7), Some((EvalAnswer::Trouble(EvalWorkerError::Failed(_)), _))));
}

#[test]
fn one_asker_can_end_the_worker() {
    let mut hub = Hub::start(worker());
    hub.ask(8, &EvalAsk::Shutdown, &[]);
    assert!(hub.session.wants_shutdown() && matches!(hub.answer(8), Some((EvalAnswer::Done, _))));
}

proptest::proptest! {
    /// Whatever askers and a hub say: no panic, and no more is kept than there is room for.
    #[test]
    fn nothing_that_is_said_does_harm(
        pieces in proptest::collection::vec((0u32..3, proptest::collection::vec(proptest::num::u8::ANY, 0..40)), 0..30),
    ) {
        let mut hub = Hub::start(worker());
        for (peer, data) in pieces {
            match data.first() {
                Some(0..8) => hub.session.handle_frame(&data, &mut hub.worker.desk, Micros(0)),
                Some(8..16) => hub.tell(&Message::EvaluatorGone(EvaluatorGone { peer })),
                Some(16..24) => {
                    let bytes = u32::from(data.len() as u8) << 24;
                    hub.tell(&Message::EvaluatorTaken(EvaluatorTaken { peer, bytes }));
                }
                Some(24..32) => hub.ask(peer, &POLL, &data),
                _ => hub.tell(&Message::EvaluatorBytes(EvaluatorBytes { peer, data })),
            }
            while hub.session.poll_frame(&mut hub.worker.desk, Micros(0)).is_some() {}
        }
    }
}
