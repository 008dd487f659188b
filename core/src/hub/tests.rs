//! A hub with one run and a queue for every peer.

mod clips;
mod sweeps;

use core::{
    cell::{Cell, RefCell},
    net::SocketAddr,
};
use std::rc::Rc;

use super::*;
use crate::{
    batch::codec,
    env::render::Film,
    ids::{FragmentNo, WeightsVersion},
    prelude::*,
    protocol::{
        Inability, InabilityKind, Kind, Message, MessageFrame, Outbox, Phase, RefusalCode, Role, Token, TokenGrant,
        convert,
        handshake::Identity,
        message::{
            CallResult, EnvClip, EvaluationPoint, HubCertificate, Infer, Inferred, Iteration, NamedMetrics,
            RecentFragmentRequest, Request, RunAnswer, RunStatus, WorkerRow,
        },
    },
    run::{Inference, RunConfig},
    time::Micros,
    weights::{Tensor, Weights},
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

impl PeerConnection for Queue {
    fn send_frame(&self, frame: MessageFrame) {
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
    join_with(hub, role, token(role))
}

fn join_with(hub: &mut Hub<Queue, Run>, role: Role, token: Token) -> Result<(u32, Queue), RefusalCode> {
    let Message::Hello(hello) = Identity::new(role, token, "native", "it", "cpu").hello() else { panic!("Hello") };
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

    // The effects of an upload on its worker precede those of the batch that it completes.
    runner.begin(convert::lease(grant, &config).expect("a lease")).expect("it can be run");
    let Advance::Done { lease, fragments } = runner.advance(8) else { panic!("8 steps are a fragment") };
    hub.handle_decoded(id, DecodedUpload::new(lease, fragments));
    assert_eq!(effects(&mut hub), ["Delivered", "Consume"]);
    hub.run.as_mut().expect("a run").0.handle_taken(Micros(0));
    hub.course.handle_counted();
    assert_eq!(effects(&mut hub), ["End"]);
}

#[test]
fn worker_with_a_revoked_token_is_disconnected_without_its_queued_messages_and_not_readmitted() {
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
fn weights_are_sent_to_a_relay_once_for_each_notice_that_it_requests_them_for() {
    use crate::protocol::message::WeightsRequest;
    let mut hub = hub_with_run();
    let (id, link) = join(&mut hub, Role::Relay).expect("it is admitted");
    assert_eq!(link.kinds(), [Kind::Welcome, Kind::WeightsNotice, Kind::WeightsUpdate]);
    let request = || Message::WeightsRequest(WeightsRequest { run: 1 });
    for sent in [&[Kind::WeightsUpdate][..], &[]] {
        assert_eq!(hub.handle_message(id, request()), None);
        assert_eq!(link.kinds(), sent);
    }
    hub.send_newest_weights(id);
    assert_eq!(hub.handle_message(id, request()), None);
    assert_eq!(link.kinds().last(), Some(&Kind::WeightsUpdate));
}

#[test]
fn dashboards_of_a_hub_that_encrypts_get_its_certificate() {
    let sent = |certificate| {
        let mut hub = hub();
        hub.setup.certificate = certificate;
        join(&mut hub, Role::Viewer).expect("it is admitted").1.take()
    };
    let certificate = HubCertificate { sha256: [7; 32] };
    assert!(sent(Some(certificate)).contains(&Message::HubCertificate(certificate)));
    assert!(!sent(None).iter().any(|message| message.kind() == Kind::HubCertificate));
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
    // A hub that leaves sends the last of it, however much is queued.
    (0..20).for_each(|_| hub.peers[&id].link.send(&filler).expect("it fits"));
    hub.num_worker_restarts = 2;
    hub.send_last_states();
    let queued = link.kinds();
    assert!(queued.len() > 20 && queued.last() == Some(&Kind::LedgerReport), "{queued:?}");
    // A dashboard that reads no answers at all is expelled.
    let many = limits::MAX_BACKLOG_BYTES / 4_000 + 1;
    (0..many).for_each(|_| hub.peers[&id].link.send(&filler).expect("it fits"));
    assert_eq!(hub.handle_message(id, Message::Pause(Request { request: 8 })), None);
    assert!(link.is_closed());
}

#[test]
fn dashboard_that_keeps_up_again_gets_missed_states_and_clips_though_each_refresh_has_an_iteration() {
    let mut hub = hub();
    let (id, link) = join(&mut hub, Role::Operator).expect("it is admitted");
    let mut iteration = 0;
    let mut refresh = |hub: &mut Hub<Queue, Run>, clip: Option<EnvClip>| {
        iteration += 1;
        hub.dashboards.add_iteration(Iteration { run: 1, iteration, ..Iteration::default() }, NamedMetrics::default());
        clip.into_iter().for_each(|clip| hub.dashboards.set_clip(clip));
        hub.refresh_dashboards();
    };
    let fill = |hub: &Hub<Queue, Run>| {
        let filler = Message::RunStatus(RunStatus { env: "x".repeat(4_000), ..Default::default() });
        (0..20).for_each(|_| hub.peers[&id].link.send(&filler).expect("it fits"));
    };
    for is_last in [false, true] {
        let _ = link.take();
        fill(&hub);
        hub.num_worker_restarts += 1;
        refresh(&mut hub, Some(EnvClip { run: 1, ..EnvClip::default() }));
        if is_last {
            // A hub that leaves waits for no queue.
            hub.send_last_states();
        } else {
            let kinds = link.kinds();
            assert!(!kinds.contains(&Kind::SlotClip) && !kinds.contains(&Kind::LedgerReport), "{kinds:?}");
            refresh(&mut hub, None);
        }
        let kinds = link.kinds();
        assert!(kinds.contains(&Kind::SlotClip) && kinds.contains(&Kind::LedgerReport), "{kinds:?}");
    }
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
fn stop_without_a_run_removes_the_first_waiting_one_and_returns_its_number() {
    let mut hub = hub();
    let (id, link) = join(&mut hub, Role::Operator).expect("it is admitted");
    (5..7).for_each(|number| hub.queue.push(WaitingRun { number, config: config() }));
    assert_eq!(hub.handle_message(id, Message::Stop(Request { request: 3 })), None);
    let sent = link.take();
    let Some(Message::Reply(reply)) = sent.last() else { panic!("{sent:?}") };
    assert_eq!((reply.request, &*reply.error, reply.run), (3, "", 5));
    assert!(!hub.queue.contains(5) && hub.queue.contains(6));
}

#[test]
fn rate_of_a_called_worker_counts_env_steps_since_its_first_row() {
    let mut hub = hub();
    let mut rate_at = |second, env_steps| {
        hub.set_time(Micros::from_secs(second), 0);
        hub.show_called(vec![WorkerRow { worker: 7, kind: "native".into(), env_steps, ..WorkerRow::default() }]);
        hub.with_called(Vec::new())[0].steps_per_s
    };
    assert_eq!((rate_at(1, 1_000_000), rate_at(2, 1_000_100)), (0.0, 100.0));
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

/// A hub with a run whose workers let others act.
fn hub_with_servers() -> Hub<Queue, Run> {
    let mut hub = hub_with_run();
    let config = RunConfig { inference: Inference::Server, ..config() };
    let parts = builder().learning_parts(&config).expect("a run");
    let mut parts = RunLoopConfig::sampling(1, config, &parts).expect("weights");
    parts.weights = parts.weights.with_version(WeightsVersion(3));
    hub.run = Some(Run(RunLoop::new(parts, Micros(0)).expect("slots")));
    hub
}

/// Lets a worker join that samples.
fn sampling_worker(hub: &mut Hub<Queue, Run>) -> (u32, Queue) {
    let (id, link) = join(hub, Role::Worker).expect("it is admitted");
    hub.handle_message(id, Message::RunAnswer(RunAnswer::new(1, Ok(()))));
    link.take();
    (id, link)
}

/// Lets a worker join that acts for others.
fn acting_worker(hub: &mut Hub<Queue, Run>) -> (u32, Queue) {
    let (id, link) = join(hub, Role::Worker).expect("it is admitted");
    let acts = Inability::new(InabilityKind::ActsForOthers, "");
    hub.handle_message(id, Message::RunAnswer(RunAnswer::new(1, Err(&acts))));
    (id, link)
}

fn request(ask: u64) -> Message {
    Message::Infer(Infer { ask, rows: 1, version: 3, ..Infer::default() })
}

fn outputs(ask: u64) -> Message {
    Message::Inferred(Inferred { ask, version: 3, ..Inferred::default() })
}

/// Returns the numbers of the requests that a worker was sent.
fn asked(link: &Queue) -> Vec<u64> {
    let of = |message| if let Message::Infer(infer) = message { Some(infer.ask) } else { None };
    link.take().into_iter().filter_map(of).collect()
}

/// Returns the errors of the answers that a worker was sent.
fn errors(link: &Queue) -> Vec<String> {
    let of = |message| if let Message::Inferred(answer) = message { Some(answer.error) } else { None };
    link.take().into_iter().filter_map(of).collect()
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
fn rows_go_to_an_inference_worker_and_to_another_one_when_it_leaves() {
    let mut hub = hub_with_servers();
    assert!(hub.needs_own_server());
    let ((sampler, to_sampler), (first, to_first), (second, to_second)) =
        (sampling_worker(&mut hub), acting_worker(&mut hub), acting_worker(&mut hub));
    assert!(!hub.needs_own_server() && hub.acts_for_others(first) && !hub.acts_for_others(sampler));
    assert_eq!(hub.worker_rows().iter().filter(|row| row.reason == "it acts for the other workers").count(), 2);

    // Requests have numbers of the hub's own, and go to the worker with the fewest.
    for ask in [70, 71] {
        hub.handle_message(sampler, request(ask));
    }
    assert_eq!((asked(&to_first), asked(&to_second)), (vec![1], vec![2]));
    hub.handle_message(second, outputs(1));
    assert!(to_sampler.take().is_empty(), "the other one was asked");
    hub.handle_message(second, outputs(2));
    assert_eq!(to_sampler.take(), [outputs(71)]);

    // The requests of a disconnected server go to the other one, and wait for a third when that is disconnected, too.
    hub.handle_left(first, PeerEnd { reason: "gone", is_fault: false, denied: None });
    assert_eq!(asked(&to_second), [1]);
    hub.expel(second, "for a test");
    assert!(hub.needs_own_server());
    let (third, to_third) = acting_worker(&mut hub);
    assert_eq!(asked(&to_third), [1]);
    hub.handle_message(third, outputs(1));
    assert_eq!(to_sampler.take(), [outputs(70)]);
    assert_eq!(hub.state().expect("a run").inferred_rows(), 2);

    // A worker has a few requests open at most; the rest, and all when the run ends, are answered with an error.
    for ask in 0..=limits::MAX_INFERS as u64 {
        hub.handle_message(sampler, request(ask));
    }
    hub.forget_run();
    let answers = errors(&to_sampler);
    assert_eq!(answers[0], "too many rows of this worker wait for their outputs");
    assert_eq!(answers[1..], ["the run is over"; 4]);
    // Late answers are no offence, however many.
    (0..1_000).for_each(|ask| _ = hub.handle_message(third, outputs(ask)));
    assert!(!to_third.is_closed());
}

#[test]
fn requests_of_a_hung_inference_server_go_to_another_one() {
    let mut hub = hub_with_servers();
    let ((sampler, to_sampler), (server, to_server)) = (sampling_worker(&mut hub), acting_worker(&mut hub));
    hub.begin_iteration();
    assert!(!effects(&mut hub).is_empty());
    assert!(to_sampler.kinds().contains(&Kind::LeaseGrant));
    hub.handle_message(sampler, request(70));
    assert_eq!(asked(&to_server), [1]);
    let wait = |hub: &mut Hub<Queue, Run>, ms: u64| {
        hub.set_time(Micros::from_millis(ms), 0);
        hub.handle_timeout();
        effects(hub);
    };
    assert_eq!(hub.poll_timeout(), Some(Micros::from_secs(1)));
    wait(&mut hub, 1_000);
    assert!(!hub.needs_own_server());
    wait(&mut hub, 2_000);
    assert!(hub.needs_own_server(), "it is passed over");
    // Without any other the request waits, and the worker that sent it is not called hung.
    (3..6).for_each(|second| wait(&mut hub, second * 1_000));
    assert!(hub.hung.is_empty());
    let (_, to_other) = acting_worker(&mut hub);
    assert_eq!(asked(&to_other), [1]);
    // The first answer counts, from any worker, and shows that a worker answers again.
    hub.handle_message(server, outputs(1));
    assert_eq!(to_sampler.take(), [outputs(70)]);
    hub.handle_message(sampler, request(71));
    assert_eq!((asked(&to_server), asked(&to_other)), (vec![2], vec![]));

    // None answers: the request is answered in time, and the worker that gets on with nothing else hangs after all.
    (7..30).for_each(|second| wait(&mut hub, second * 1_000));
    assert_eq!(errors(&to_sampler), ["no worker that acts for others has answered within 15 s"]);
    assert!(hub.hung.contains_key(&sampler));
}

#[test]
fn requests_have_limits_and_too_many_that_are_refused_are_an_offence() {
    let mut hub = hub_with_servers();
    let ((sampler, to_sampler), (_, to_server)) = (sampling_worker(&mut hub), acting_worker(&mut hub));
    // No such weights are on their way: a server would keep the rows for ever.
    let early = Message::Infer(Infer { version: 4, rows: 1, ..Infer::default() });
    hub.handle_message(sampler, early.clone());
    assert_eq!((errors(&to_sampler), asked(&to_server)), (vec!["the run has no such weights yet".into()], vec![]));
    (0..=Offences::MAX).for_each(|_| _ = hub.handle_message(sampler, early.clone()));
    assert!(to_sampler.is_closed());

    // All requests together have a limit in bytes.
    let large = Message::Infer(Infer { version: 3, rows: 1, obs: vec![0; 128 << 10], ..Infer::default() });
    let samplers: Vec<_> =
        (0..limits::MAX_INFER_BYTES / (4 * (128 << 10)) + 1).map(|_| sampling_worker(&mut hub)).collect();
    for (id, _) in &samplers {
        (0..4).for_each(|_| _ = hub.handle_message(*id, large.clone()));
    }
    let refused: Vec<String> = samplers.iter().flat_map(|(_, link)| errors(link)).collect();
    assert_eq!(refused, ["too many rows of all workers wait for their outputs"; 4]);
    // A peer whose requests are dropped frees its share.
    hub.handle_left(samplers[0].0, PeerEnd { reason: "gone", is_fault: false, denied: None });
    let (last, link) = samplers.last().expect("many");
    hub.handle_message(*last, large);
    assert!(errors(link).is_empty());

    // If no worker acts for others, requests are an offence, too.
    let mut hub = hub_with_run();
    let (worker, link) = join(&mut hub, Role::Worker).expect("it is admitted");
    (0..=Offences::MAX).for_each(|_| _ = hub.handle_message(worker, request(1)));
    assert!(link.is_closed());
}

#[test]
fn worker_that_takes_no_outputs_is_disconnected() {
    let mut hub = hub_with_servers();
    let ((sampler, to_sampler), (server, to_server)) = (sampling_worker(&mut hub), acting_worker(&mut hub));
    let large = |ask| Message::Inferred(Inferred { ask, version: 3, outputs: vec![0; 256_000], ..Inferred::default() });
    for ask in 1..=limits::MAX_INFER_BACKLOG_BYTES as u64 / 256_000 + 2 {
        assert!(!to_sampler.is_closed(), "{ask}");
        hub.handle_message(sampler, request(ask));
        to_server.take();
        hub.handle_message(server, large(ask));
    }
    assert!(to_sampler.is_closed());
}

#[test]
fn weights_that_fit_into_no_message_are_refused_when_the_run_is_made() {
    let parts = builder().learning_parts(&config()).expect("a run");
    let mut parts = RunLoopConfig::sampling(1, config(), &parts).expect("weights");
    let values = vec![0.0; 1 << 24];
    let tensor = Tensor { name: "w".into(), shape: vec![1 << 12, 1 << 12], values };
    parts.weights = Weights::new(WeightsVersion(0), vec![tensor]).expect("a tensor");
    let error = RunLoop::new(parts, Micros(0)).expect_err("64 MiB and a header").to_string();
    assert!(error.starts_with("the weights of this run cannot be sent to its workers: WeightsUpdate of "), "{error}");
    assert!(error.contains("`fcnet_hiddens`, `conv_filters`"), "{error}");
}
