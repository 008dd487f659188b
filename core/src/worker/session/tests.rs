mod calls;
mod ends;
mod transport;

use core::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{
    batch::{AnyBatch, OBS, SlotFragment},
    config::Config,
    env::EnvRegistry,
    ids::{CallId, FragmentNo, SlotId},
    lease::{Lease, LeasedSlot, SlotSource},
    policy::{ModelConfig, ModelSpec},
    protocol::{
        INITIAL_CREDIT, Inbox, Outbox, RefusalCode, Role, Token, TokenGrant, TokenHash, TokenTable,
        handshake::{self, Identity},
        message::{self, LeaseRefused, Progress, Revoke, RunEnd, Welcome},
    },
    sampler::{FragmentLayout, OutputWriter, RecurrentShape, SampleError},
    weights::{Tensor, Weights},
    worker::{
        Advance, CommandError, CommandErrorKind, InputSource, NamedFn, RolloutConfig, RolloutWorker, WorkerCommand,
        WorkerPlace, WorkerSetup,
    },
};

const RUN: u32 = 1;
const FINGERPRINT: [u8; 16] = [9; 16];
const START: Micros = Micros(1_000_000);

fn spec() -> RunConfig {
    let run = RunConfig::new("CartPole-v1").seed(5).slots(8).num_envs(4).rollout_fragment_length(40);
    RunConfig { preset: "none".into(), ..run.fcnet_hiddens(&[8]) }
}

fn limits(spec: &RunConfig) -> FragmentLimits {
    let spaces = EnvRegistry::builtin().spec(spec.env()).unwrap().spaces().unwrap();
    FragmentLimits::new(spec, &FragmentLayout::Lane { spaces, recurrent: RecurrentShape::default() })
}

/// Returns the run's first weights with every value shifted, so that versions act differently.
fn weights(version: u64) -> Weights {
    let spaces = EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap();
    let model = ModelConfig { fcnet_hiddens: vec![8], ..ModelConfig::default() };
    let first = ModelSpec::for_spaces(&spaces, &model).unwrap().init_weights(5).unwrap();
    let shift = version as f32 / 8.0;
    let shifted = |t: &Tensor| Tensor { values: t.values.iter().map(|v| v + shift).collect(), ..t.clone() };
    Weights::new(WeightsVersion(version), first.tensors().iter().map(shifted).collect()).unwrap()
}

fn lease(id: u64, fragment: u64, version: u64, slots: &[(u32, SlotSource)]) -> Lease {
    let slots = slots.iter().map(|(slot, source)| LeasedSlot::new(SlotId(*slot), source.clone()));
    let (fragment, weights_version) = (FragmentNo(fragment), WeightsVersion(version));
    Lease { id: LeaseId(id), fragment, weights_version, slots: slots.collect() }
}

fn new_slots(slots: &[u32]) -> Vec<(u32, SlotSource)> {
    slots.iter().map(|&slot| (slot, SlotSource::New)).collect()
}

/// Returns the session's answer to a revoked lease.
fn revoked(lease: u64) -> Message {
    Message::LeaseRefused(LeaseRefused { lease, reason: "revoked".into(), failed: None })
}

/// The hub's side of one connection, driven by hand.
struct Hub {
    inbox: Inbox,
    outbox: Outbox,
    tokens: TokenTable,
    session: WorkerSession,
    spec: RunConfig,
    now: Micros,
    /// Versions of weights that the session reported as applied.
    applied: Vec<u64>,
    /// The session's answers to announced runs.
    answers: Vec<Result<(), Inability>>,
}

impl Hub {
    fn new() -> Self {
        let token = Token::new([1; 32]);
        let mut tokens = TokenTable::new();
        tokens.insert(TokenHash::of(&token), TokenGrant { role: Role::Worker, child: None, expires: None });
        let identity = Identity::new(Role::Worker, token, "native", "test", "cpu");
        let identity = Identity { core_fingerprint: FINGERPRINT, ..identity };
        let session = WorkerSession::new(identity, Registry::builtin(), Kernels::PORTABLE);
        Self {
            inbox: Inbox::of_hub(),
            outbox: Outbox::default(),
            tokens,
            session,
            spec: spec(),
            now: START,
            applied: vec![],
            answers: vec![],
        }
    }

    /// Creates a session that the hub has accepted, with an announced run.
    fn with_run() -> Self {
        let mut hub = Self::new();
        hub.shake_hands();
        hub.send(&Message::RunStart(RunStart { run: RUN, config: spec().to_wire() }));
        hub
    }

    fn shake_hands(&mut self) {
        let [Message::Hello(hello)] = &self.receive()[..] else { panic!("the first message is Hello") };
        let answer = match handshake::check_hello(hello, &self.tokens, 0, FINGERPRINT) {
            Ok(accepted) => {
                self.inbox.admit(accepted.role);
                let protocol = accepted.protocol;
                let server = "test".into();
                Message::Welcome(Welcome { protocol, peer: 3, resume_id: [4; 16], credit: INITIAL_CREDIT, server })
            }
            Err(refused) => Message::Refused(refused),
        };
        self.send(&answer);
    }

    /// Sends a message to the session, in as many frames as needed.
    fn send(&mut self, message: &Message) {
        self.outbox.push(message).unwrap();
        while let Some(frame) = self.outbox.poll_frame() {
            self.session.handle_frame(&frame);
        }
    }

    fn grant(&mut self, lease: &Lease) {
        self.send(&Message::LeaseGrant(convert::lease_grant(RUN, lease)));
    }

    fn set_weights(&mut self, version: u64) {
        self.send(&Message::WeightsUpdate(convert::weights_update(RUN, &weights(version))));
    }

    /// Returns all messages that the session sends now, except applied weights and answers to runs.
    fn receive(&mut self) -> Vec<Message> {
        let mut messages = vec![];
        while let Some(frame) = self.session.poll_frame() {
            match self.inbox.handle_frame(&frame).unwrap() {
                Some(Message::WeightsApplied(WeightsApplied { run: RUN, version })) => self.applied.push(version),
                Some(Message::RunAnswer(answer)) => self.answers.push(answer.read()),
                message => messages.extend(message),
            }
        }
        messages
    }

    /// Lets the session work, a millisecond per slice, until it has nothing to do; returns its messages.
    fn work(&mut self) -> Vec<Message> {
        let mut messages = self.receive();
        while self.session.has_work() {
            self.now = self.now + Micros::from_millis(1);
            self.session.work(7, self.now);
            messages.extend(self.receive());
        }
        messages
    }

    /// Lets the session run a lease and checks the uploaded fragments.
    fn run(&mut self, lease: &Lease) -> Vec<SlotFragment> {
        self.grant(lease);
        let messages = self.work();
        let [Message::FragmentUpload(upload)] = &messages[..] else { panic!("{messages:?}") };
        convert::slot_fragments(upload, RUN, lease, &limits(&self.spec)).unwrap()
    }

    /// Returns the reason why the session refuses a lease.
    fn refusal(&mut self, lease: &Lease) -> String {
        self.grant(lease);
        let messages = self.work();
        let [Message::LeaseRefused(refused)] = &messages[..] else { panic!("{messages:?}") };
        assert_eq!(refused.lease, lease.id.0);
        refused.reason.clone()
    }
}

#[test]
fn a_session_from_hello_to_two_fragments() {
    let mut hub = Hub::new();
    assert!(!hub.session.connection().is_ready());
    hub.shake_hands();
    assert!(hub.session.connection().is_ready());
    assert_eq!(hub.session.worker_id(), Some(WorkerId(3)));
    assert!(!hub.session.has_work());

    hub.send(&Message::RunStart(RunStart { run: RUN, config: spec().to_wire() }));
    let first = hub.run(&lease(1, 0, 0, &new_slots(&[2, 5])));
    hub.set_weights(1);
    let second = hub.run(&lease(2, 1, 1, &[(2, SlotSource::Held), (5, SlotSource::Held)]));

    let mut runner = SlotRunner::new(&spec(), RolloutWorkerBuilder::new(Registry::builtin())).unwrap();
    let mut alone = |lease| {
        runner.begin(lease).unwrap();
        match runner.advance(u32::MAX) {
            Advance::Done { fragments, .. } => fragments,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(first, alone(lease(1, 0, 0, &new_slots(&[2, 5]))));
    assert_eq!(second[0].rows.get(OBS).unwrap()[..4], *first[0].final_obs.get(OBS).unwrap().last_chunk::<4>().unwrap());
    let counters = SessionCounters { env_steps: 160, leases_done: 2, ..SessionCounters::default() };
    assert_eq!(hub.session.counters(), counters);
    assert_eq!(hub.session.weights_version(), Some(WeightsVersion(1)));
}

#[test]
fn slot_that_moves_continues_with_the_same_rows() {
    let (mut here, mut there) = (Hub::with_run(), Hub::with_run());
    let first = here.run(&lease(1, 0, 0, &new_slots(&[0, 1])));
    let stayed = here.run(&lease(2, 1, 0, &[(0, SlotSource::Held), (1, SlotSource::Held)]));
    let state = first[1].state.clone();
    let moved = there.run(&lease(3, 1, 0, &[(1, SlotSource::State(state)), (7, SlotSource::New)]));
    assert_eq!(moved[0], stayed[1]);
}

#[test]
fn slow_steps_make_workers_hand_over_each_slot_when_done() {
    let leases = [
        lease(1, 0, 0, &new_slots(&[0, 1, 2])),
        lease(2, 1, 0, &[0, 1, 2].map(|slot| (slot, SlotSource::Held))),
        lease(3, 2, 0, &[0, 1, 2].map(|slot| (slot, SlotSource::Held))),
    ];
    let mut calm = Hub::with_run();
    let mut hub = Hub::with_run();
    for (lease, parts) in leases.iter().zip([1, 3, 3]) {
        hub.grant(lease);
        let mut uploads = Vec::new();
        while hub.session.has_work() {
            // Seven steps of one slot or of all.
            let slots = if parts == 1 { 3 } else { 1 };
            hub.now = hub.now + Micros(7 * slots * 600);
            hub.session.work(7, hub.now);
            uploads.extend(hub.receive().into_iter().filter_map(|message| match message {
                Message::FragmentUpload(upload) => Some(upload),
                Message::Progress(_) => None,
                other => panic!("{other:?}"),
            }));
        }
        assert_eq!(uploads.len(), parts);
        let read = |upload| convert::slot_fragments(upload, RUN, lease, &limits(&hub.spec)).unwrap();
        assert_eq!(uploads.iter().flat_map(read).collect::<Vec<_>>(), calm.run(lease));
    }
    assert_eq!(hub.session.counters(), calm.session.counters());
}

#[test]
fn a_lease_that_is_revoked_half_done_takes_all_its_states_along() {
    let mut hub = Hub::with_run();
    let slots = new_slots(&[0, 1]);
    for lease in [lease(1, 0, 0, &slots), lease(2, 0, 0, &slots)] {
        hub.grant(&lease);
        while hub.session.has_work() && !(lease.id.0 == 2 && hub.session.counters().env_steps == 120) {
            hub.now = hub.now + Micros(9_000);
            hub.session.work(7, hub.now);
        }
    }
    hub.send(&Message::Revoke(Revoke { lease: 2 }));
    hub.receive();
    let reason = hub.refusal(&lease(3, 1, 0, &[(0, SlotSource::Held)]));
    assert_eq!(reason, "the state of slot 0 is not here");
}

#[test]
fn revoked_lease_is_aborted_and_its_slots_can_be_re_granted() {
    let mut hub = Hub::with_run();
    let calm = Hub::with_run().run(&lease(1, 0, 0, &new_slots(&[0])));
    hub.grant(&lease(1, 0, 0, &new_slots(&[0])));
    hub.session.work(10, hub.now);
    assert_eq!(hub.session.lease(), Some(LeaseId(1)));
    hub.send(&Message::Revoke(Revoke { lease: 1 }));
    assert_eq!((hub.session.lease(), hub.session.has_work()), (None, false));
    assert_eq!(hub.receive(), [revoked(1)]);
    assert_eq!(hub.run(&lease(2, 0, 0, &new_slots(&[0]))), calm);
}

#[test]
fn a_lease_that_was_revoked_before_it_came_or_began_never_runs() {
    let mut hub = Hub::with_run();
    hub.send(&Message::Revoke(Revoke { lease: 1 }));
    hub.grant(&lease(1, 0, 0, &new_slots(&[0])));
    hub.grant(&lease(2, 0, 0, &new_slots(&[1])));
    hub.send(&Message::Revoke(Revoke { lease: 2 }));
    assert!(!hub.session.has_work());
    assert_eq!(hub.work(), [revoked(1), revoked(2)]);
}

#[test]
fn a_new_lease_takes_the_place_of_the_one_before() {
    let mut hub = Hub::with_run();
    hub.grant(&lease(1, 0, 0, &new_slots(&[0])));
    hub.session.work(10, hub.now);
    hub.grant(&lease(2, 0, 9, &new_slots(&[1])));
    assert_eq!((hub.session.lease(), hub.session.has_work()), (None, false));
    hub.grant(&lease(3, 0, 0, &new_slots(&[2])));
    let messages = hub.work();
    let [Message::LeaseRefused(replaced), Message::FragmentUpload(upload)] = &messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!((replaced.lease, &upload.slots[..]), (2, &[2][..]), "the one that had begun is known to be over");
}

#[test]
fn the_next_fragment_of_the_same_slots_waits_behind_the_lease() {
    let held = [(0, SlotSource::Held), (1, SlotSource::Held)];
    let (first, second) = (lease(1, 0, 0, &new_slots(&[0, 1])), lease(2, 1, 0, &held));
    let mut calm = Hub::with_run();
    let alone = [calm.run(&first), calm.run(&second)];
    for steps in [0, 10] {
        let mut hub = Hub::with_run();
        hub.grant(&first);
        hub.session.work(steps, hub.now);
        hub.grant(&second);
        hub.set_weights(1);
        let messages = hub.work();
        let [Message::FragmentUpload(one), Message::FragmentUpload(two)] = &messages[..] else {
            panic!("{messages:?}")
        };
        let read = |upload, lease| convert::slot_fragments(upload, RUN, lease, &limits(&hub.spec)).unwrap();
        assert_eq!([read(one, &first), read(two, &second)], alone);
        assert_eq!(hub.applied, [1], "after both");
    }
}

#[test]
fn either_of_two_leases_can_be_revoked() {
    let (first, second) = (lease(1, 0, 0, &new_slots(&[0])), lease(2, 1, 0, &[(0, SlotSource::Held)]));
    for (revoked_id, expected) in [(2, "FragmentUpload"), (1, "LeaseRefused")] {
        let mut hub = Hub::with_run();
        hub.grant(&first);
        hub.session.work(10, hub.now);
        hub.grant(&second);
        hub.send(&Message::Revoke(Revoke { lease: revoked_id }));
        let messages = hub.work();
        assert_eq!(messages[0], revoked(revoked_id));
        assert_eq!((messages.len(), format!("{:?}", messages[1].kind())), (2, expected.into()));
    }
}

#[test]
fn one_lease_waits_behind_another_at_most() {
    let mut hub = Hub::with_run();
    hub.grant(&lease(1, 0, 0, &new_slots(&[0])));
    hub.session.work(10, hub.now);
    hub.grant(&lease(2, 1, 0, &[(0, SlotSource::Held)]));
    hub.grant(&lease(3, 2, 0, &[(0, SlotSource::Held)]));
    assert_eq!(hub.session.lease(), None, "the hub has given both up");
    let messages = hub.work();
    let [Message::LeaseRefused(replaced), Message::LeaseRefused(refused)] = &messages[..] else {
        panic!("{messages:?}")
    };
    assert_eq!((replaced.lease, &replaced.reason[..]), (2, "another lease took its place"));
    assert_eq!((refused.lease, &refused.reason[..]), (3, "the state of slot 0 is not here"));
}

#[test]
fn a_lease_waits_for_its_weights() {
    let mut hub = Hub::with_run();
    hub.grant(&lease(1, 0, 3, &new_slots(&[0])));
    assert!(!hub.session.has_work());
    hub.set_weights(2);
    assert!(!hub.session.has_work());
    hub.set_weights(3);
    hub.set_weights(4);
    let messages = hub.work();
    assert!(matches!(&messages[..], [Message::FragmentUpload(upload)] if upload.weights_version == 3), "{messages:?}");
    hub.run(&lease(2, 1, 4, &[(0, SlotSource::Held)]));
    hub.set_weights(5);
    let reason = hub.refusal(&lease(3, 1, 3, &new_slots(&[0])));
    assert_eq!(reason, "the lease wants weights 3, which will not come any more: the newest here are 5");
}

#[test]
fn weights_act_immediately_between_leases_and_are_acknowledged() {
    let mut hub = Hub::with_run();
    hub.set_weights(1);
    assert_eq!(hub.session.weights_version(), Some(WeightsVersion(1)), "before any lease");
    hub.grant(&lease(1, 0, 1, &new_slots(&[0])));
    hub.set_weights(2);
    assert_eq!(hub.session.weights_version(), Some(WeightsVersion(1)), "a lease waits that wants these");
    hub.session.work(10, hub.now);
    hub.set_weights(3);
    assert_eq!(hub.session.weights_version(), Some(WeightsVersion(1)), "a lease is running");
    let messages = hub.work();
    assert!(matches!(&messages[..], [Message::FragmentUpload(upload)] if upload.weights_version == 1), "{messages:?}");
    assert_eq!(hub.session.weights_version(), Some(WeightsVersion(3)), "the newest, with the end of the lease");
    hub.grant(&lease(2, 0, 9, &new_slots(&[1])));
    hub.set_weights(4);
    assert_eq!(hub.session.weights_version(), Some(WeightsVersion(3)), "a lease waits for others");
    hub.send(&Message::Revoke(Revoke { lease: 2 }));
    assert_eq!(hub.receive(), [revoked(2)]);
    assert_eq!(hub.session.weights_version(), Some(WeightsVersion(4)));
    hub.set_weights(2);
    let tensor = Tensor { name: "odd".into(), shape: vec![1], values: vec![0.5] };
    let odd = Weights::new(WeightsVersion(5), vec![tensor]).unwrap();
    hub.send(&Message::WeightsUpdate(convert::weights_update(RUN, &odd)));
    assert_eq!(hub.receive(), [], "those do not fit: a lease that wants them says so");
    assert_eq!(hub.applied, [1, 3, 4]);
}

#[test]
fn progress_is_reported_every_quarter_of_a_second_and_only_of_work() {
    let mut hub = Hub::with_run();
    hub.grant(&lease(1, 0, 0, &new_slots(&[0, 1])));
    let mut progress_reports = vec![];
    for millis in [0, 100, 249, 250, 300, 499, 500, 1000] {
        hub.session.work(1, START + Micros::from_millis(millis));
        for message in hub.receive() {
            let Message::Progress(progress) = message else { panic!("{message:?}") };
            progress_reports.push((millis, progress.lease, progress.env_steps));
        }
    }
    assert_eq!(progress_reports, [(250, 1, 8), (500, 1, 14), (1000, 1, 16)]);
}

#[test]
fn impossible_leases_are_refused_with_a_reason() {
    let mut hub = Hub::with_run();
    let state = |bytes: &[u8]| SlotSource::State(bytes.to_vec());
    let cases = [
        (lease(1, 1, 0, &[(0, SlotSource::Held)]), "the state of slot 0 is not here"),
        (lease(2, 1, 0, &[(0, state(&[1, 2, 3]))]), "the slot state is damaged"),
        (lease(3, 1, 0, &[(0, state(&[7]))]), "the slot state has version 7, this program reads 1 and 2"),
        (lease(4, 0, 0, &new_slots(&[8])), "slot 8 is not ascending, or not among the run's 8"),
        (lease(5, 0, 0, &[]), "the lease has no slots"),
    ];
    for (lease, reason) in &cases {
        assert_eq!(hub.refusal(lease), *reason);
    }
    let counters = hub.session.counters();
    assert_eq!((counters.leases_refused, counters.fragments_failed), (3, 2));
    assert_eq!(hub.run(&lease(6, 0, 0, &new_slots(&[0]))).len(), 1);

    hub.send(&Message::RunEnd(RunEnd { run: RUN }));
    let after = lease(7, 0, 0, &new_slots(&[0]));
    assert_eq!(hub.refusal(&after), "run 1 is not the one in progress here");
    hub.send(&Message::RunStart(RunStart { run: RUN, config: RunConfig::new("Pong-v9").to_wire() }));
    let refusal = hub.refusal(&after);
    assert!(
        refusal.starts_with(
            "unknown environment: there is no environment 'Pong-v9'; Gymnasium's would be gym:Pong-v9; known are: "
        ),
        "{refusal}"
    );
}

#[test]
fn session_answers_each_announced_run_with_able_or_why_not() {
    let mut hub = Hub::with_run();
    assert_eq!((hub.receive(), &hub.answers[..]), (vec![], &[Ok(())][..]));
    assert_eq!(hub.session.inability(), None);
    let cases = [
        (RunConfig::new("Pong-v9"), InabilityKind::UnknownEnv),
        (spec().env_config(r#"{"bogus": 1}"#.parse().unwrap()), InabilityKind::EnvConfig),
        (spec().slots(0), InabilityKind::Description),
    ];
    for (run, (spec, kind)) in (RUN + 1..).zip(cases) {
        hub.send(&Message::RunStart(RunStart { run, config: spec.to_wire() }));
        assert_eq!(hub.receive(), []);
        let inability = hub.answers.pop().unwrap().unwrap_err();
        assert_eq!(inability.kind(), kind, "{inability}");
        assert_eq!(hub.session.inability(), Some((run, &inability)));
    }
    hub.send(&Message::RunStart(RunStart { run: 9, config: spec().to_wire() }));
    assert_eq!((hub.receive(), hub.answers.pop()), (vec![], Some(Ok(()))), "the next run is another question");
}

#[test]
fn a_lease_whose_rows_fit_into_no_upload_takes_no_memory() {
    let mut hub = Hub::with_run();
    let spec = spec().rollout_fragment_length(65_536).slots(64);
    hub.send(&Message::RunStart(RunStart { run: RUN, config: spec.to_wire() }));
    let all: Vec<u32> = (0..64).collect();
    let reason = hub.refusal(&lease(1, 0, 0, &new_slots(&all)));
    assert_eq!(reason, "FragmentUpload of 165693568 bytes is larger than the 33554432 that a receiver accepts");
}

#[test]
fn weights_that_do_not_fit_the_policy_refuse_the_lease() {
    let mut hub = Hub::with_run();
    let tensor = Tensor { name: "odd".into(), shape: vec![1], values: vec![0.5] };
    let odd = Weights::new(WeightsVersion(1), vec![tensor]).unwrap();
    hub.send(&Message::WeightsUpdate(convert::weights_update(RUN, &odd)));
    let reason = hub.refusal(&lease(1, 0, 1, &new_slots(&[0])));
    assert!(reason.contains("policy.0."), "{reason}");
}

#[test]
fn a_lease_whose_weights_were_overtaken_is_refused() {
    let mut hub = Hub::with_run();
    hub.grant(&lease(1, 0, 2, &new_slots(&[0])));
    hub.set_weights(3);
    let messages = hub.work();
    let [Message::LeaseRefused(refused)] = &messages[..] else { panic!("{messages:?}") };
    assert_eq!(refused.reason, "the lease wants weights 2, which will not come any more: the newest here are 3");
}

#[test]
fn request_whose_outputs_fit_into_no_message_does_not_end_a_server() {
    let mut hub = Hub::new();
    hub = Hub { session: hub.session.acting_for_others(), ..hub };
    hub.shake_hands();
    let run = RunConfig::new("StatelessCartPole-v1").fcnet_hiddens(&[8]);
    let run = RunConfig { preset: "none".into(), inference: Inference::Server, ..run };
    hub.send(&Message::RunStart(RunStart { run: RUN, config: run.to_wire() }));
    let parts = RolloutWorkerBuilder::new(Registry::builtin()).learning_parts(&run).unwrap();
    let weights = parts.policies.iter().map(|(id, policy)| (id, policy.weights()));
    let weights = Weights::of_run(WeightsVersion(0), weights).unwrap();
    hub.send(&Message::WeightsUpdate(convert::weights_update(RUN, &weights)));
    // A row has two numbers, and its outputs are three.
    for (rows, expected) in [(30_000, "send fewer rows at a time"), (2, "")] {
        let (policy, obs) = ("default_policy".into(), vec![0; 8 * rows as usize]);
        hub.send(&Message::Infer(Infer { policy, rows, wants: Infer::DIST_INPUTS, obs, ..Infer::default() }));
        let messages = hub.work();
        let [Message::Inferred(answer)] = &messages[..] else { panic!("{messages:?}") };
        assert!(answer.error.ends_with(expected) && answer.error.is_empty() == expected.is_empty(), "{}", answer.error);
        assert!(hub.session.connection().end().is_none());
    }
}
