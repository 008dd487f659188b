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

/// The run's first weights with every value shifted, so that versions act differently.
fn weights(version: u64) -> Weights {
    let spaces = EnvRegistry::builtin().spec("CartPole-v1").unwrap().spaces().unwrap();
    let model = ModelConfig { fcnet_hiddens: vec![8], ..ModelConfig::default() };
    let first = ModelSpec::for_spaces(&spaces, &model).unwrap().init_weights(5).unwrap();
    let shift = version as f32 / 8.0;
    let shifted = |t: &Tensor| Tensor { values: t.values.iter().map(|v| v + shift).collect(), ..t.clone() };
    Weights::new(WeightsVersion(version), first.tensors().iter().map(shifted).collect()).unwrap()
}

fn lease(id: u64, fragment: u64, version: u64, slots: &[(u32, SlotSource)]) -> Lease {
    let slots = slots.iter().map(|(slot, source)| LeasedSlot { slot: SlotId(*slot), source: source.clone() });
    let (fragment, weights_version) = (FragmentNo(fragment), WeightsVersion(version));
    Lease { id: LeaseId(id), fragment, weights_version, slots: slots.collect() }
}

fn new_slots(slots: &[u32]) -> Vec<(u32, SlotSource)> {
    slots.iter().map(|&slot| (slot, SlotSource::New)).collect()
}

/// The session's answer to a revoked lease.
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

    /// A session that the hub has accepted, with an announced run.
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
fn a_slot_that_moves_goes_on_with_the_same_rows() {
    let (mut here, mut there) = (Hub::with_run(), Hub::with_run());
    let first = here.run(&lease(1, 0, 0, &new_slots(&[0, 1])));
    let stayed = here.run(&lease(2, 1, 0, &[(0, SlotSource::Held), (1, SlotSource::Held)]));
    let state = first[1].state.clone();
    let moved = there.run(&lease(3, 1, 0, &[(1, SlotSource::State(state)), (7, SlotSource::New)]));
    assert_eq!(moved[0], stayed[1]);
}

#[test]
fn where_steps_take_long_each_slot_is_handed_over_when_it_is_done() {
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
fn a_revoked_lease_is_given_up_and_its_slots_can_be_leased_again() {
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
    for (gone, rest) in [(2, "FragmentUpload"), (1, "LeaseRefused")] {
        let mut hub = Hub::with_run();
        hub.grant(&first);
        hub.session.work(10, hub.now);
        hub.grant(&second);
        hub.send(&Message::Revoke(Revoke { lease: gone }));
        let messages = hub.work();
        assert_eq!(messages[0], revoked(gone));
        assert_eq!((messages.len(), format!("{:?}", messages[1].kind())), (2, rest.into()));
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
    let mut told = vec![];
    for millis in [0, 100, 249, 250, 300, 499, 500, 1000] {
        hub.session.work(1, START + Micros::from_millis(millis));
        for message in hub.receive() {
            let Message::Progress(progress) = message else { panic!("{message:?}") };
            told.push((millis, progress.lease, progress.env_steps));
        }
    }
    assert_eq!(told, [(250, 1, 8), (500, 1, 14), (1000, 1, 16)]);
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
    assert!(refusal.starts_with("unknown environment: there is no environment 'Pong-v9'; known are: "), "{refusal}");
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
fn a_large_upload_waits_for_credit_and_holds_the_next_lease_back() {
    let mut hub = Hub::new();
    hub.spec = spec().rollout_fragment_length(10_000);
    hub.shake_hands();
    hub.send(&Message::RunStart(RunStart { run: RUN, config: hub.spec.to_wire() }));
    let slots = new_slots(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let (first, second) = (lease(1, 0, 0, &slots), lease(2, 0, 0, &slots));
    hub.grant(&first);
    while hub.session.has_work() {
        hub.session.work(u32::MAX, hub.now);
    }
    hub.grant(&second);
    assert!(!hub.session.has_work());
    assert_eq!(hub.session.counters().leases_done, 1);
    let mut messages = hub.receive();
    assert_eq!(messages, []);
    while let Some(credit) = hub.inbox.take_credit_due() {
        hub.send(&Message::Credit(credit));
        messages.extend(hub.receive());
    }
    let [Message::FragmentUpload(upload)] = &messages[..] else { panic!("{} messages", messages.len()) };
    assert!(upload.data.len() > MAX_BACKLOG_BYTES);
    assert_eq!(convert::slot_fragments(upload, RUN, &first, &limits(&hub.spec)).unwrap().len(), 8);
    assert!(hub.session.has_work());
}

#[test]
fn uploads_over_a_slow_link_are_compressed() {
    let mut hub = Hub::new();
    hub.spec = spec().rollout_fragment_length(10_000);
    hub.shake_hands();
    hub.send(&Message::RunStart(RunStart { run: RUN, config: hub.spec.to_wire() }));
    let slots = [0, 1, 2, 3, 4, 5, 6, 7];
    let mut kinds = Vec::new();
    for fragment in 0..3 {
        let source = if fragment == 0 { SlotSource::New } else { SlotSource::Held };
        let slots: Vec<_> = slots.iter().map(|&slot| (slot, source.clone())).collect();
        let lease = lease(1 + fragment, fragment, 0, &slots);
        hub.grant(&lease);
        while hub.session.has_work() {
            hub.session.work(u32::MAX, hub.now);
        }
        let mut messages = hub.receive();
        // Each credit of half a megabyte takes 50 ms.
        while let Some(credit) = hub.inbox.take_credit_due() {
            hub.now = hub.now + Micros::from_millis(50);
            hub.session.set_time(hub.now);
            hub.send(&Message::Credit(credit));
            messages.extend(hub.receive());
        }
        let [upload] = &messages[..] else { panic!("{} messages", messages.len()) };
        kinds.push(upload.kind());
        let upload = match upload {
            Message::CompressedUpload(upload) => convert::decompressed(upload).unwrap(),
            upload => upload.clone(),
        };
        let Message::FragmentUpload(upload) = upload else { panic!("{:?}", upload.kind()) };
        assert_eq!(convert::slot_fragments(&upload, RUN, &lease, &limits(&hub.spec)).unwrap().len(), 8);
    }
    use crate::protocol::Kind::{CompressedUpload, FragmentUpload};
    assert_eq!(kinds, [FragmentUpload, CompressedUpload, CompressedUpload], "the first upload shows how slow it is");
}

#[test]
fn weights_of_a_relay_act_only_if_the_hub_has_announced_them() {
    let mut hub = Hub::with_run();
    hub.receive();
    let frame = convert::weights_frame(RUN, &weights(3)).unwrap();
    let notice = WeightsNotice { run: RUN, version: 3, bytes: frame.num_bytes() as u32, hash: frame.sha256() };
    let (of_hub, other) = ([weights(3), weights(4)])
        .map(|weights| Message::WeightsUpdate(convert::weights_update(RUN, &weights)).encode())
        .into();
    let request = Message::WeightsRequest(WeightsRequest { run: RUN });
    for bad in [None, Some(&other[..]), Some(&of_hub[1..])] {
        hub.send(&Message::WeightsNotice(notice));
        assert_eq!(hub.session.poll_notice(), Some(notice));
        hub.session.take_relayed(&notice, bad);
        assert_eq!((hub.receive(), &hub.applied), (vec![request.clone()], &vec![]));
    }
    assert_eq!(hub.session.poll_notice(), None);
    hub.session.take_relayed(&WeightsNotice { run: RUN + 1, ..notice }, None);
    hub.session.take_relayed(&notice, Some(&of_hub));
    assert_eq!((hub.receive(), &hub.applied), (vec![], &vec![3]));
}

#[test]
fn weights_of_halves_act_as_they_are() {
    let mut hub = Hub::with_run();
    let halves = weights(2).in_halves();
    hub.send(&Message::HalfWeightsUpdate(convert::half_weights_update(RUN, &halves)));
    hub.receive();
    assert_eq!(hub.applied, [2]);
    hub.send(&Message::HalfWeightsUpdate(convert::half_weights_update(RUN + 1, &weights(3).in_halves())));
    hub.receive();
    assert_eq!(hub.applied, [2], "another run's");
}

#[test]
fn a_refused_worker_says_why_and_does_nothing_more() {
    let mut hub = Hub::new();
    hub.tokens = TokenTable::new();
    hub.shake_hands();
    let reason = "the token is not valid for this role".to_string();
    assert_eq!(
        hub.session.connection().end(),
        Some(&ConnectionEnd::Refused { code: Some(RefusalCode::Token), reason })
    );
    hub.send(&Message::RunStart(RunStart { run: RUN, config: spec().to_wire() }));
    assert_eq!(hub.session.run(), None);
    assert_eq!(hub.receive(), []);
}

#[test]
fn a_hub_that_breaks_the_protocol_ends_the_session() {
    let frame = |message: &Message| message.encode();
    let mut broken = convert::weights_update(RUN, &weights(1));
    broken.values.pop();
    let cases = [
        (b"HTTP/1.1".to_vec(), "a frame starts with [72, 84], not with \"RM\": this is no rollmesh peer"),
        (
            frame(&Message::Progress(Progress { lease: 1, env_steps: 1 })),
            "the hub sent Progress, which a peer with role Worker does not expect",
        ),
        (frame(&Message::Refused(handshake::busy("late"))), "Refused has no place in a session"),
        (frame(&Message::WeightsUpdate(broken)), "the values of tensor 'value.1.weight' are missing"),
    ];
    for (frame, expected) in cases {
        let mut hub = Hub::with_run();
        hub.grant(&lease(1, 0, 0, &new_slots(&[0])));
        hub.session.handle_frame(&frame);
        assert_eq!(hub.session.connection().end(), Some(&ConnectionEnd::Violated { reason: expected.into() }));
        assert_eq!(hub.work(), [Message::Goodbye(Goodbye { reason: expected.into() })]);
    }
}

#[test]
fn either_side_can_say_goodbye() {
    let mut hub = Hub::with_run();
    hub.send(&Message::Goodbye(Goodbye { reason: "the hub stops".into() }));
    assert_eq!(hub.session.connection().end(), Some(&ConnectionEnd::Closed { reason: "the hub stops".into() }));
    let mut hub = Hub::with_run();
    hub.session.leave("the tab closes");
    assert_eq!(hub.receive(), [Message::Goodbye(Goodbye { reason: "the tab closes".into() })]);
}

#[test]
fn a_wish_to_leave_waits_for_the_hub_and_for_the_leases_that_it_gave() {
    let mut hub = Hub::new();
    hub.session.leave_when_done("asked to leave");
    assert!(!hub.session.connection().is_ready());
    hub.shake_hands();
    assert_eq!(hub.receive(), [Message::Goodbye(Goodbye { reason: "asked to leave".into() })]);
    hub.send(&Message::RunStart(RunStart { run: RUN, config: spec().to_wire() }));
    hub.set_weights(1);
    assert_eq!(hub.run(&lease(1, 0, 1, &new_slots(&[0]))).len(), 1);
    hub.send(&Message::Goodbye(Goodbye { reason: "farewell".into() }));
    assert_eq!(hub.session.connection().end(), Some(&ConnectionEnd::Closed { reason: "farewell".into() }));
}

/// A call of the hub.
fn call(id: u64, command: &WorkerCommand) -> Message {
    command.message(CallId(id)).unwrap()
}

/// Returns ids and results of the session's messages, which must all be call results.
fn results(messages: &[Message]) -> Vec<(u64, Result<WorkerAnswer, CommandError>)> {
    let result = |message: &Message| match message {
        Message::CallResult(result) => (result.call, WorkerAnswer::read(result)),
        other => panic!("{other:?}"),
    };
    messages.iter().map(result).collect()
}

fn set_up(id: u64, config: RolloutConfig) -> Message {
    WorkerSetup { config, place: WorkerPlace::remote(1, 2) }.message(CallId(id)).unwrap()
}

fn cart_pole() -> RolloutConfig {
    RolloutConfig::new("CartPole-v1").num_envs(2).rollout_fragment_length(30).seed(2)
}

#[test]
fn calls_are_done_in_order_by_a_worker_that_the_hub_sets_up() {
    let mut hub = Hub::new();
    hub.shake_hands();
    hub.send(&call(1, &WorkerCommand::Sample));
    hub.send(&set_up(2, cart_pole()));
    hub.send(&call(3, &WorkerCommand::Sample));
    hub.send(&call(4, &WorkerCommand::Ping));
    assert_eq!(hub.receive(), []);
    let mut alone = RolloutWorker::from_config(cart_pole(), &Registry::builtin(), WorkerPlace::remote(1, 2)).unwrap();
    let results = results(&hub.work());
    assert_eq!((results[0].0, results[0].1.as_ref().unwrap_err().kind), (1, CommandErrorKind::NotSetUp));
    let sample = WorkerAnswer::Sample(alone.sample().unwrap());
    assert_eq!(results[1..], [(2, Ok(WorkerAnswer::Done)), (3, Ok(sample)), (4, Ok(WorkerAnswer::Pong))]);
    let counters = SessionCounters { calls_done: 3, calls_failed: 1, ..SessionCounters::default() };
    assert_eq!(hub.session.counters(), counters);
}

#[test]
fn called_worker_takes_settings_of_its_machine_only_from_the_process_that_started_it() {
    let with = |change: fn(&mut RolloutConfig)| {
        let mut config = cart_pole();
        change(&mut config);
        config
    };
    let cases = [
        ("output", with(|config| config.output = Some("/etc".into()))),
        ("log_dir", with(|config| config.log_dir = Some("/etc".into()))),
        ("monitor_path", with(|config| config.monitor_path = Some("/etc".into()))),
        ("input", with(|config| config.input = InputSource::Files(vec!["/etc/passwd".into()]))),
        ("extra_environs", with(|config| _ = config.extra_environs.insert("LD_PRELOAD".into(), "x".into()))),
    ];
    let answer = |hub: &mut Hub, config: &RolloutConfig| {
        hub.shake_hands();
        hub.send(&set_up(1, config.clone()));
        results(&hub.work()).remove(0).1
    };
    for (name, config) in cases {
        let error = answer(&mut Hub::new(), &config).unwrap_err();
        assert_eq!(error.kind, CommandErrorKind::Malformed, "{error}");
        let reason = format!("{name} belongs to one machine and is not taken from the wire");
        assert!(error.message.contains(&reason), "{error}");
    }
    let log_dir = with(|config| config.log_dir = Some("/tmp/nowhere".into()));
    let mut hub = Hub::new();
    hub.session = hub.session.with_host_settings(HostSettings::Taken);
    assert_eq!(answer(&mut hub, &log_dir), Ok(WorkerAnswer::Done));
    let below_root = |config: &RolloutConfig| {
        let mut hub = Hub::new();
        hub.session = hub.session.with_host_settings(HostSettings::Below("/tmp/nowhere".into()));
        answer(&mut hub, config)
    };
    let error = below_root(&with(|config| config.output = Some("../rows".into()))).unwrap_err();
    assert!(error.message.contains("output is \"../rows\"; it must be at most 64 letters"), "{error}");
    // A name is taken; recordings are written by a shell, which this program has not.
    let error = below_root(&with(|config| config.monitor_path = Some("films".into()))).unwrap_err();
    assert!(error.message.contains("'monitor_path' needs files"), "{error}");
}

#[test]
fn failed_commands_are_answered_and_the_session_stays_ready() {
    let mut hub = Hub::new();
    hub.shake_hands();
    hub.send(&set_up(1, RolloutConfig::new("Pong-v9")));
    hub.send(&Message::Call(message::Call { call: 2, body: vec![250, 1] }));
    let text = "{".into();
    let (worker_index, num_workers, recreated_worker, in_evaluation) = (1, 1, false, false);
    let odd =
        message::WorkerSetup { call: 3, config: text, worker_index, num_workers, recreated_worker, in_evaluation };
    hub.send(&Message::WorkerSetup(odd));
    hub.send(&call(4, &WorkerCommand::Ping));
    let results = results(&hub.work());
    let errors: Vec<CommandError> = results[..3].iter().map(|(_, result)| result.clone().unwrap_err()).collect();
    assert!(errors[0].message.starts_with("there is no environment 'Pong-v9'; known are: "), "{}", errors[0]);
    assert!(errors[1..].iter().all(|error| error.kind == CommandErrorKind::Malformed), "{errors:?}");
    assert_eq!(results[3], (4, Ok(WorkerAnswer::Pong)));
    assert!(hub.session.connection().is_ready());
}

#[test]
fn calls_are_done_between_the_slices_of_a_lease() {
    let calm = Hub::with_run().run(&lease(1, 0, 0, &new_slots(&[0])));
    let mut hub = Hub::with_run();
    hub.send(&set_up(1, cart_pole()));
    hub.work();
    hub.grant(&lease(1, 0, 0, &new_slots(&[0])));
    hub.session.work(10, hub.now);
    hub.send(&call(2, &WorkerCommand::Sample));
    hub.send(&call(3, &WorkerCommand::Ping));
    let messages = hub.work();
    let [Message::CallResult(sample), Message::CallResult(pong), Message::FragmentUpload(upload)] = &messages[..]
    else {
        panic!("{messages:?}")
    };
    assert_eq!((sample.call, pong.call), (2, 3));
    let lease = lease(1, 0, 0, &new_slots(&[0]));
    assert_eq!(convert::slot_fragments(upload, RUN, &lease, &limits(&hub.spec)).unwrap(), calm);
    // The end of a run does not affect the worker that was set up.
    hub.send(&Message::RunEnd(RunEnd { run: RUN }));
    hub.send(&call(4, &WorkerCommand::AssertHealthy));
    assert_eq!(results(&hub.work()), [(4, Ok(WorkerAnswer::Done))]);
}

#[test]
fn a_sample_is_made_in_spans_between_which_the_session_hears() {
    let mut hub = Hub::new();
    let ticks = AtomicU64::new(0);
    // Every reading of this clock is 15 ms later.
    let clock = Arc::new(move || Micros::from_millis(15 * ticks.fetch_add(1, Ordering::Relaxed)));
    hub.session = hub.session.with_workers(move || {
        let clock = clock.clone();
        RolloutWorkerBuilder::new(Registry::builtin()).clock(move || clock())
    });
    hub.shake_hands();
    hub.send(&set_up(1, RolloutConfig { callbacks: vec![], ..cart_pole() }));
    hub.work();
    hub.send(&call(2, &WorkerCommand::Sample));
    let (mut slices, mut reported) = (0, vec![]);
    let mut messages = vec![];
    while hub.session.has_work() {
        hub.session.work(1, START + Micros::from_millis(100 * slices));
        messages.extend(hub.receive());
        if let Some(Message::CallProgress(progress)) = messages.last() {
            reported.push((slices, progress.call));
            messages.pop();
        }
        slices += 1;
    }
    assert!(slices > 5, "{slices}");
    // Every quarter of a second, while there is more to do.
    let expected: Vec<(u64, u64)> = (0..slices - 1).step_by(3).map(|slice| (slice, 2)).collect();
    assert_eq!(reported, expected);
    let results = results(&messages);
    let mut alone = RolloutWorker::from_config(cart_pole(), &Registry::builtin(), WorkerPlace::remote(1, 2)).unwrap();
    assert_eq!(results, [(2, Ok(WorkerAnswer::Sample(alone.sample().unwrap())))]);
}

#[test]
fn workers_know_what_their_program_has_registered() {
    let mut hub = Hub::new();
    hub.session =
        hub.session.with_workers(|| {
            RolloutWorkerBuilder::new(Registry::builtin().with_worker_fn("place", |worker, _| {
                Ok(Config::new().with("worker_index", worker.place().worker_index)?)
            }))
        });
    hub.shake_hands();
    hub.send(&set_up(1, cart_pole()));
    hub.send(&call(2, &WorkerCommand::Apply(NamedFn::new("place"))));
    let place = Config::new().with("worker_index", 1).unwrap();
    assert_eq!(results(&hub.work())[1], (2, Ok(WorkerAnswer::Value(place))));
}

#[test]
fn a_hub_that_calls_too_often_gets_an_error() {
    let mut hub = Hub::new();
    hub.shake_hands();
    (0..2_048).for_each(|id| hub.send(&call(id, &WorkerCommand::Ping)));
    assert_eq!(hub.receive(), []);
    hub.send(&call(9_999, &WorkerCommand::Ping));
    let refused = results(&hub.receive());
    assert_eq!((refused[0].0, refused[0].1.as_ref().unwrap_err().kind), (9_999, CommandErrorKind::Busy));
    assert_eq!(results(&hub.work()).len(), 2_048);
}

#[test]
fn the_worker_ends_with_the_session() {
    let stopped = Arc::new(AtomicU64::new(0));
    let seen = stopped.clone();
    struct Output(Arc<AtomicU64>);
    impl OutputWriter for Output {
        fn write(&mut self, _batch: &AnyBatch) -> Result<(), SampleError> {
            Ok(())
        }
        fn close(&mut self) -> Result<(), SampleError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }
    let mut hub = Hub::new();
    hub.session = hub.session.with_workers(move || {
        let seen = seen.clone();
        RolloutWorkerBuilder::new(Registry::builtin().with_output("own", move |_| Ok(Box::new(Output(seen.clone())))))
    });
    hub.session = hub.session.with_host_settings(HostSettings::Taken);
    hub.shake_hands();
    hub.send(&set_up(1, RolloutConfig { output: Some("own".into()), ..cart_pole() }));
    assert_eq!(results(&hub.work()), [(1, Ok(WorkerAnswer::Done))]);
    hub.send(&set_up(2, RolloutConfig { output: Some("own".into()), ..cart_pole() }));
    assert_eq!(results(&hub.work()), [(2, Ok(WorkerAnswer::Done))]);
    assert_eq!(stopped.load(Ordering::Relaxed), 1, "another one has taken its place");
    hub.send(&call(3, &WorkerCommand::Sample));
    hub.session.leave("enough");
    assert_eq!((stopped.load(Ordering::Relaxed), hub.session.has_work()), (2, false));
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
