//! A hub with one run and a queue for every peer.

use core::{
    cell::{Cell, RefCell},
    net::SocketAddr,
};
use std::rc::Rc;

use super::*;
use crate::{
    batch::codec,
    env::render::Film,
    ids::FragmentNo,
    prelude::*,
    protocol::{
        Frame, Kind, Message, Outbox, Phase, RefusalCode, Role, Token, TokenGrant, convert,
        handshake::Identity,
        message::{CallResult, EnvClip, Iteration, NamedMetrics, RecentFragmentRequest, Request, RunAnswer, RunStatus},
    },
    run::RunConfig,
    time::Micros,
    worker::{Advance, Registry, RolloutWorkerBuilder, SlotRunner},
};

#[derive(Clone, Debug, Default)]
struct Queue(Rc<(RefCell<Outbox>, Cell<bool>)>);

impl Queue {
    fn take(&self) -> Vec<Message> {
        let mut outbox = self.0.0.borrow_mut();
        let frames = core::iter::from_fn(|| outbox.poll_frame());
        frames.map(|bytes| Message::decode(&bytes).expect("what was sent")).collect()
    }

    fn kinds(&self) -> Vec<Kind> {
        self.take().iter().map(Message::kind).collect()
    }

    fn is_closed(&self) -> bool {
        self.0.1.get()
    }
}

impl Connection for Queue {
    fn send_frame(&self, frame: Frame) {
        self.0.0.borrow_mut().push_frame(frame);
    }

    fn queued_bytes(&self) -> usize {
        self.0.0.borrow().queued_bytes()
    }

    fn close(&self, _: CloseReason, _: &str) {
        self.0.1.set(true);
    }

    fn expel(&self, _: &str) {
        self.hang_up();
    }

    fn hang_up(&self) {
        self.0.0.take();
        self.0.1.set(true);
    }
}

struct Run(RunLoop);

impl HubRun for Run {
    fn state(&self) -> &RunLoop {
        &self.0
    }

    fn state_mut(&mut self) -> &mut RunLoop {
        &mut self.0
    }

    fn facts(&mut self, _: Option<FragmentNo>, _: Micros) -> RunFacts {
        RunFacts { num_workers: 1, ..RunFacts::default() }
    }

    fn keep_for_undoing(&mut self, _: Micros) {}
}

fn token(role: Role) -> Token {
    Token::new([role.to_wire(); 32])
}

fn hub() -> Hub<Queue, Run> {
    let mut tokens = HubTokens::default();
    for &role in Role::ALL {
        tokens.add(&token(role), TokenGrant { role, child: None, expires: None });
    }
    Hub::new(HubSetup { life: 1, ..HubSetup::default() }, tokens)
}

fn config() -> RunConfig {
    RunConfig::sampling("CartPole-v1", 2).rollout_fragment_length(8).fcnet_hiddens(&[4]).stop_after(16)
}

fn builder() -> RolloutWorkerBuilder {
    RolloutWorkerBuilder::new(Registry::builtin())
}

fn hub_with_run() -> Hub<Queue, Run> {
    let parts = builder().learning_parts(&config()).expect("a run");
    let parts = RunLoopConfig::sampling(1, config(), &parts).expect("weights");
    let mut hub = hub();
    hub.run = Some(Run(RunLoop::new(parts, Micros(0)).expect("slots")));
    hub
}

fn join(hub: &mut Hub<Queue, Run>, role: Role) -> Result<(u32, Queue), RefusalCode> {
    let Message::Hello(hello) = Identity::new(role, token(role), "native", "it", "cpu").hello() else {
        panic!("Hello")
    };
    let accepted = hub.check(&hello).map_err(|refused| RefusalCode::try_from(refused.code).expect("a code"))?;
    let (link, from) = (Queue::default(), SocketAddr::from(([127, 0, 0, 1], 1)));
    let arrival = Arrival { from, link: link.clone(), session: [1; 16], launcher: String::new(), is_spare: false };
    Ok((hub.admit(accepted, arrival), link))
}

/// Returns the effects that are due, as the first word of each. Steps of the run are taken.
fn effects(hub: &mut Hub<Queue, Run>) -> Vec<String> {
    let word = |effect: &HubEffect<Queue>| match effect {
        HubEffect::Record(record) => format!("{record:?}"),
        HubEffect::Step(step) => format!("{step:?}"),
        HubEffect::Consume(work) => format!("{work:?}").replace("Ok(", "Consume "),
        other => format!("{other:?}"),
    };
    let mut words = Vec::new();
    while let Some(effect) = hub.poll_effect() {
        words.push(word(&effect).split([' ', '(', '{']).next().unwrap_or_default().to_owned());
        match effect {
            HubEffect::Step(RunStep::Begin) => hub.begin_iteration(),
            HubEffect::Step(RunStep::End(end)) => hub.run.as_mut().expect("a run").0.end(&end, Micros(0)),
            HubEffect::Reply { peer, kind, request } => hub.reply(peer, kind, request, Ok(0)),
            _ => {}
        }
    }
    words
}

#[test]
fn effects_of_an_event_come_in_the_order_of_the_transitions() {
    let config = config();
    let mut runner = SlotRunner::new(&config, builder()).expect("a runner");
    let mut hub = hub_with_run();
    assert!(effects(&mut hub).is_empty());

    // The worker is announced to the user before it gets work, and gets none before it has answered.
    let (id, link) = join(&mut hub, Role::Worker).expect("it is admitted");
    assert_eq!(effects(&mut hub), ["Admitted", "Notice", "Joined"]);
    assert_eq!(link.kinds(), [Kind::Welcome, Kind::RunStart, Kind::WeightsUpdate]);
    assert_eq!(hub.handle_message(id, Message::RunAnswer(RunAnswer::new(1, Ok(())))), None);
    assert_eq!(effects(&mut hub), ["Begin", "LeaseGranted"]);
    let sent = link.take();
    let [Message::LeaseGrant(grant)] = &sent[..] else { panic!("{sent:?}") };

    // What an upload shows about the worker precedes the batch that it completes.
    runner.begin(convert::lease(grant, &config).expect("a lease")).expect("it can be run");
    let Advance::Done { lease, fragments } = runner.advance(8) else { panic!("8 steps are a fragment") };
    hub.handle_decoded(id, DecodedUpload::new(lease, fragments));
    assert_eq!(effects(&mut hub), ["Delivered", "Consume"]);
    hub.run.as_mut().expect("a run").0.handle_taken(Micros(0));
    hub.course.handle_counted();
    assert_eq!(effects(&mut hub), ["End"]);
}

#[test]
fn worker_with_a_revoked_token_is_expelled_with_all_that_it_has_sent_and_not_admitted_again() {
    let mut hub = hub();
    let (id, link) = join(&mut hub, Role::Worker).expect("it is admitted");
    let token = hub.peers[&id].token;
    hub.tokens.revoke(token);
    hub.expel_invalid();
    assert!(link.is_closed() && hub.peers.is_empty());
    assert_eq!(join(&mut hub, Role::Worker).err(), Some(RefusalCode::Token));
    let late = Message::CallResult(CallResult { call: 1, ok: true, body: Vec::new() });
    assert_eq!(hub.handle_message(id, late), None);
    assert_eq!(effects(&mut hub), ["Admitted", "Notice", "Joined", "Left", "Notice", "Left"]);
}

#[test]
fn slow_dashboard_misses_states_but_no_answer_and_catches_up() {
    let mut hub = hub();
    let (id, link) = join(&mut hub, Role::Operator).expect("it is admitted");
    let snapshot = link.kinds();
    assert_eq!((snapshot[1], snapshot.last()), (Kind::RunSchema, Some(&Kind::LedgerReport)));
    let filler = Message::RunStatus(RunStatus { env: "x".repeat(4_000), ..Default::default() });
    (0..20).for_each(|_| hub.peers[&id].link.send(&filler).expect("it fits"));
    hub.num_worker_restarts = 1;
    hub.refresh_dashboards();
    assert_eq!(hub.handle_message(id, Message::Pause(Request { request: 7 })), None);
    let queued = link.kinds();
    assert_eq!((queued.len(), queued[20]), (21, Kind::Reply), "the ledger was skipped");
    hub.refresh_dashboards();
    assert_eq!(link.kinds().last(), Some(&Kind::LedgerReport));
    hub.refresh_dashboards();
    assert!(link.kinds().is_empty(), "nothing has changed");
    // What takes no answers at all is expelled.
    (0..=limits::MAX_BACKLOG_BYTES / 4_000).for_each(|_| hub.peers[&id].link.send(&filler).expect("it fits"));
    assert_eq!(hub.handle_message(id, Message::Pause(Request { request: 8 })), None);
    assert!(link.is_closed());
}

#[test]
fn stop_is_answered_once_the_run_has_ended() {
    let mut hub = hub_with_run();
    let (id, link) = join(&mut hub, Role::Operator).expect("it is admitted");
    let _ = (link.take(), effects(&mut hub));
    assert_eq!(hub.handle_message(id, Message::Stop(Request { request: 3 })), None);
    assert!(link.take().is_empty());
    assert_eq!(effects(&mut hub), ["End", "Reply", "Command"]);
    let sent = link.take();
    let [Message::RunStatus(status), .., Message::Reply(reply)] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!((status.phase, reply.request), (Phase::Stopped.to_wire(), 3));
}

#[test]
fn requests_of_the_shell_are_handed_over_and_others_are_answered() {
    let mut hub = hub();
    let (id, link) = join(&mut hub, Role::Operator).expect("it is admitted");
    let _ = (link.take(), effects(&mut hub));
    let checkpoint = Message::Checkpoint(Request { request: 1 });
    assert_eq!(hub.handle_message(id, checkpoint.clone()), Some(checkpoint));
    for (number, message) in [Message::Stop, Message::Drain, Message::Pause, Message::Resume].into_iter().enumerate() {
        let request = number as u32;
        assert_eq!(hub.handle_message(id, message(Request { request })), None);
        let sent = link.take();
        let Some(Message::Reply(reply)) = sent.last() else { panic!("{sent:?}") };
        assert!(reply.request == request && reply.error.starts_with("there is no run to "), "{reply:?}");
        assert_eq!(effects(&mut hub), ["Command"]);
    }
}

#[test]
fn watched_slot_is_drawn_for_a_dashboard_that_connects_after_the_run() {
    let config = config();
    let mut runner = SlotRunner::new(&config, builder()).expect("a runner");
    let mut hub = hub_with_run();
    let (id, link) = join(&mut hub, Role::Worker).expect("it is admitted");
    hub.handle_message(id, Message::RunAnswer(RunAnswer::new(1, Ok(()))));
    effects(&mut hub);
    let sent = link.take();
    let Some(Message::LeaseGrant(grant)) = sent.last() else { panic!("{sent:?}") };
    runner.begin(convert::lease(grant, &config).expect("a lease")).expect("it can be run");
    let Advance::Done { lease, fragments } = runner.advance(8) else { panic!("8 steps are a fragment") };
    hub.handle_decoded(id, DecodedUpload::new(lease, fragments));
    assert_eq!(effects(&mut hub), ["Delivered", "Consume"], "no dashboard watches");
    hub.run.as_mut().expect("a run").0.handle_taken(Micros(0));
    hub.course.handle_counted();
    assert_eq!(effects(&mut hub), ["End"]);

    let (viewer, shown) = join(&mut hub, Role::Viewer).expect("it is admitted");
    let mut all = core::iter::from_fn(|| hub.poll_effect());
    let Some(HubEffect::Draw(job)) = all.find(|effect| matches!(effect, HubEffect::Draw(_))) else { panic!("a job") };
    let clip = job.draw(&mut SlotRunner::new(&config, builder()).expect("a runner"));
    assert_eq!((clip.steps().collect::<Vec<_>>(), &*clip.reason), ((0..8).map(|t| (0, t)).collect(), ""));
    let mut film = Film::read(clip.width, clip.height, &clip.film).expect("a film");
    assert!(film.len() == 8 && film.picture(0).cloned() != film.picture(7).cloned());
    assert_eq!(codec::decode(&clip.batch).expect("rows").len(), 8);
    hub.handle_clip(clip.clone());
    hub.refresh_dashboards();
    assert!(shown.take().contains(&Message::SlotClip(clip.clone())));
    assert!(effects(&mut hub).is_empty(), "it is drawn once");
    let (_, later) = join(&mut hub, Role::Viewer).expect("it is admitted");
    assert!(later.take().contains(&Message::SlotClip(clip)), "it stays");

    let mut ask = |slot| {
        hub.handle_message(viewer, Message::RecentFragmentRequest(RecentFragmentRequest { request: 9, slot, back: 0 }));
        shown.take().pop()
    };
    assert!(matches!(ask(0), Some(Message::FragmentReport(report)) if report.rows == 8 && report.worker == id));
    let kept = "of slot 1 since a dashboard is connected";
    assert!(
        matches!(ask(1), Some(Message::Reply(reply)) if reply.error.contains(kept)),
        "only the watched slot's was kept"
    );
}

#[test]
fn clips_follow_a_history_that_fills_the_queue_of_a_new_dashboard() {
    let mut hub = hub_with_run();
    hub.handle_clip(EnvClip { run: 1, film: vec![7; EnvClip::MAX_FILM_BYTES], ..EnvClip::default() });
    for iteration in 1..=4_000 {
        let point = Iteration { run: 1, iteration, ..Iteration::default() };
        hub.dashboards.add_iteration(point, NamedMetrics::new(1, iteration, [("lag_mean".into(), 0.5)]));
    }
    let (_, link) = join(&mut hub, Role::Viewer).expect("it is admitted");
    let has_clip = |kinds: &[Kind]| kinds.contains(&Kind::SlotClip);
    let first = link.kinds();
    assert!(first.contains(&Kind::LedgerReport) && !has_clip(&first));
    hub.refresh_dashboards();
    assert!(has_clip(&link.kinds()), "its queue is empty again");
}

#[test]
fn operators_are_not_shown_records_that_unauthenticated_peers_cause() {
    let mut hub = hub();
    let from = SocketAddr::from(([127, 0, 0, 1], 9));
    hub.record(Record::Stopped);
    (0..1_000).for_each(|_| hub.record(Record::Refused { from, why: "no Hello" }));
    let (_, link) = join(&mut hub, Role::Operator).expect("it is admitted");
    let logs = link.take().into_iter().filter_map(|message| match message {
        Message::WorkerLog(log) if log.worker == u32::MAX => Some(log),
        _ => None,
    });
    let texts: Vec<String> = logs.flat_map(|log| log.lines).map(|line| line.text).collect();
    assert!(texts.iter().any(|text| text.contains("stopped")), "{texts:?}");
    assert!(texts.iter().all(|text| !text.contains("no Hello")), "{texts:?}");
}

#[test]
fn rows_go_to_a_worker_that_acts_for_others_and_to_another_one_when_it_leaves() {
    use crate::{
        protocol::{
            Inability, InabilityKind,
            message::{Infer, Inferred},
        },
        run::Inference,
    };
    let mut hub = hub_with_run();
    let config = RunConfig { inference: Inference::Server, ..config() };
    let parts = builder().learning_parts(&config).expect("a run");
    let parts = RunLoopConfig::sampling(1, config, &parts).expect("weights");
    hub.run = Some(Run(RunLoop::new(parts, Micros(0)).expect("slots")));
    assert!(hub.needs_own_server());
    let mut worker = |answer: Result<(), &Inability>| {
        let (id, link) = join(&mut hub, Role::Worker).expect("it is admitted");
        hub.handle_message(id, Message::RunAnswer(RunAnswer::new(1, answer)));
        link.take();
        (id, link)
    };
    let acts = Inability::new(InabilityKind::ActsForOthers, "");
    let ((sampler, to_sampler), (first, to_first), (second, to_second)) =
        (worker(Ok(())), worker(Err(&acts)), worker(Err(&acts)));
    assert!(!hub.needs_own_server() && hub.acts_for_others(first) && !hub.acts_for_others(sampler));
    assert_eq!(hub.worker_rows().iter().filter(|row| row.reason == "it acts for the other workers").count(), 2);

    // Requests have numbers of the hub's own, and go to the worker with the fewest.
    let request = |ask| Message::Infer(Infer { ask, rows: 1, ..Infer::default() });
    for ask in [70, 71] {
        hub.handle_message(sampler, request(ask));
    }
    let asked = |link: &Queue| {
        let of = |message: Message| if let Message::Infer(infer) = message { infer.ask } else { panic!("{message:?}") };
        link.take().into_iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!((asked(&to_first), asked(&to_second)), (vec![1], vec![2]));
    let answer = |ask| Message::Inferred(Inferred { ask, version: 3, ..Inferred::default() });
    hub.handle_message(second, answer(1));
    assert!(to_sampler.take().is_empty(), "the other one was asked");
    hub.handle_message(second, answer(2));
    assert_eq!(to_sampler.take(), [Message::Inferred(Inferred { ask: 71, version: 3, ..Inferred::default() })]);

    // What one had goes to the other, and waits for a third when that has left, too.
    hub.handle_left(first, PeerEnd { reason: "gone", is_fault: false, denied: None });
    assert_eq!(asked(&to_second), [1]);
    hub.expel(second, "for a test");
    assert!(hub.needs_own_server());
    let (third, to_third) = join(&mut hub, Role::Worker).expect("it is admitted");
    to_third.take();
    hub.handle_message(third, Message::RunAnswer(RunAnswer::new(1, Err(&acts))));
    assert_eq!(asked(&to_third), [1]);
    hub.handle_message(third, answer(1));
    assert_eq!(to_sampler.take(), [Message::Inferred(Inferred { ask: 70, version: 3, ..Inferred::default() })]);

    // A worker has a few requests open at most; the rest, and all when the run ends, are answered with an error.
    for ask in 0..=limits::MAX_INFERS as u64 {
        hub.handle_message(sampler, request(ask));
    }
    hub.forget_run();
    let errors = |link: &Queue| {
        let of = |message| if let Message::Inferred(answer) = message { Some(answer.error) } else { None };
        link.take().into_iter().filter_map(of).collect::<Vec<_>>()
    };
    let answers = errors(&to_sampler);
    assert_eq!(answers[0], "too many rows of this worker wait for their outputs");
    assert_eq!(answers[1..], ["the run is over"; 4]);
}
