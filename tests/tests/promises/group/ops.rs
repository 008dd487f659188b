//! Random sequences of calls of the group, valid or not: it never panics, its ledger balances, and its history is that
//! of a correct run.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rollmesh_core::{
    batch::SlotFragment,
    group::{FragmentOutcome, GroupCommand, GroupConfig, GroupState, LeaseGroup, Ledger, SamplingMode, WorkerProfile},
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion, WorkerId},
    lease::{Lease, SlotSource},
    protocol::{FailureKind, FragmentFailure, Inability, InabilityKind},
    time::Micros,
};
use rollmesh_tests::{
    fake_rows::FakeState,
    history::{Happened, History, Rules},
    scenario::Scenario,
};

const LENGTH: u32 = 3;

/// A call of the group. The numbers select existing objects, or name objects that do not exist.
#[derive(Clone, Debug)]
enum Op {
    Join(u32),
    /// The answer of a worker whether it is able.
    Answer(u32, bool),
    Left(u32),
    Remove(u32),
    /// An upload for one of the latest leases, by its worker or another one, with the given number of its slots.
    Upload(usize, Option<u32>, usize),
    /// An upload without a lease.
    Nonsense {
        worker: u32,
        lease: usize,
        slot: u32,
        ahead: u64,
        version: u64,
        length: u32,
    },
    Progress(usize, u64),
    Refused(usize, Option<u32>),
    /// A failure of the fragment of the lease's first slot, in this step.
    Failed(usize, Option<u32>, u32),
    Invalid(usize, Option<u32>),
    Applied(u32, u64),
    Pass(u64),
    Begin(u64),
    Take,
    Pause,
    Resume,
    Restart,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let worker = || 0..5u32;
    let lease = || 0..6usize;
    let other = || proptest::option::weighted(0.1, 0..5u32);
    let nonsense = (worker(), lease(), 0..9u32, 1..3u64, 0..4u64, 1..5u32).prop_map(
        |(worker, lease, slot, ahead, version, length)| Op::Nonsense { worker, lease, slot, ahead, version, length },
    );
    let op = prop_oneof![
        12 => worker().prop_map(Op::Join),
        14 => (worker(), proptest::bool::weighted(0.8)).prop_map(|(worker, able)| Op::Answer(worker, able)),
        1 => worker().prop_map(Op::Left),
        1 => worker().prop_map(Op::Remove),
        60 => (lease(), other(), 1..6usize).prop_map(|(lease, other, slots)| Op::Upload(lease, other, slots)),
        1 => nonsense,
        4 => (lease(), 0..40u64).prop_map(|(lease, steps)| Op::Progress(lease, steps)),
        1 => (lease(), other()).prop_map(|(lease, other)| Op::Refused(lease, other)),
        2 => (lease(), other(), 0..3u32).prop_map(|(lease, other, t)| Op::Failed(lease, other, t)),
        1 => (lease(), other()).prop_map(|(lease, other)| Op::Invalid(lease, other)),
        1 => (worker(), any::<u64>()).prop_map(|(worker, version)| Op::Applied(worker, version)),
        12 => prop_oneof![0..400u64, 0..9_000u64].prop_map(Op::Pass),
        16 => (0..3u64).prop_map(Op::Begin),
        16 => Just(Op::Take),
        1 => Just(Op::Pause),
        6 => Just(Op::Resume),
        1 => Just(Op::Restart),
    ];
    proptest::collection::vec(op, 1..300)
}

fn modes() -> impl Strategy<Value = SamplingMode> {
    prop_oneof![
        Just(SamplingMode::Synchronous),
        (1..40u64, 0..3u64)
            .prop_map(|(batch_env_steps, max_staleness)| SamplingMode::Asynchronous { batch_env_steps, max_staleness }),
        (0..500u64, 0..3u64).prop_map(|(after, max_staleness)| SamplingMode::Deadline {
            after: Micros::from_millis(after),
            max_staleness
        }),
    ]
}

/// A group and the test's model of it.
struct Bench {
    config: GroupConfig,
    group: LeaseGroup,
    now: Micros,
    newest: u64,
    /// The latest leases, newest first.
    leases: Vec<(WorkerId, Lease)>,
    /// The initial states of the slots' fragments, as committed so far.
    starts: BTreeMap<(SlotId, FragmentNo), FakeState>,
    saved: GroupState,
    /// The workers that have answered that they are able.
    able: BTreeSet<WorkerId>,
    lives: u64,
    history: History,
}

impl Bench {
    fn new(config: GroupConfig) -> Self {
        let group = LeaseGroup::new(config).unwrap();
        let saved = group.state();
        let starts = (0..config.num_slots).map(SlotId).map(|slot| ((slot, FragmentNo(0)), FakeState::new(slot)));
        let history = History(vec![Happened::Saved]);
        let (starts, able) = (starts.collect(), BTreeSet::new());
        Self { config, group, now: Micros(0), newest: 0, leases: Vec::new(), starts, saved, able, lives: 0, history }
    }

    fn call(&mut self, op: Op) {
        let now = self.now;
        match op {
            Op::Join(worker) => {
                self.group.handle_joined(WorkerId(worker), WorkerProfile::NATIVE, now);
                self.able.remove(&WorkerId(worker));
                self.history.0.push(Happened::Left { worker: WorkerId(worker) });
            }
            Op::Answer(worker, able) => {
                let answer = able.then_some(()).ok_or_else(|| Inability::new(InabilityKind::Other, "no"));
                if self.group.handle_answer(WorkerId(worker), answer, now) && able {
                    self.able.insert(WorkerId(worker));
                }
            }
            Op::Left(worker) => {
                self.group.handle_left(WorkerId(worker), now);
                self.history.0.push(Happened::Left { worker: WorkerId(worker) });
            }
            Op::Remove(worker) => _ = self.group.remove_worker(WorkerId(worker), now),
            Op::Upload(lease, other, slots) => self.upload(lease, other, slots),
            Op::Nonsense { worker, lease, slot, ahead, version, length } => {
                let id = self.leases.get(lease).map_or(LeaseId(u64::MAX), |(_, lease)| lease.id);
                let mut fragment = FakeState::new(SlotId(slot)).fragment(WeightsVersion(version), length);
                fragment.fragment = FragmentNo(self.newest + 1_000 * ahead);
                let receipt = self.group.handle_fragments(WorkerId(worker), id, vec![fragment], now);
                assert_eq!(receipt.count(FragmentOutcome::Committed), 0);
            }
            Op::Progress(lease, env_steps) => {
                if let Some((worker, lease)) = self.leases.get(lease) {
                    self.group.handle_progress(*worker, lease.id, env_steps, now);
                }
            }
            Op::Refused(lease, other) => {
                if let Some((worker, lease)) = self.sender(lease, other) {
                    self.group.handle_refused(worker, lease.id, "no", now);
                }
            }
            Op::Failed(lease, other, t) => {
                if let Some((worker, lease)) = self.sender(lease, other) {
                    let slot = lease.slots.first().map(|leased| leased.slot);
                    let failure = FragmentFailure::new(FailureKind::Env, slot, (0, t), "no");
                    self.group.handle_failed(worker, lease.id, failure, now);
                }
            }
            Op::Invalid(lease, other) => {
                if let Some((worker, lease)) = self.sender(lease, other) {
                    self.group.handle_invalid(worker, lease.id, now);
                }
            }
            Op::Applied(worker, version) => {
                self.group.handle_weights_applied(WorkerId(worker), WeightsVersion(version));
            }
            Op::Pass(millis) => {
                self.now = now + Micros::from_millis(millis);
                self.group.handle_timeout(self.now);
                assert!(self.group.poll_timeout().is_none_or(|at| at > self.now), "the timer would spin");
            }
            Op::Begin(newer) => self.begin(WeightsVersion(self.newest + newer)),
            Op::Take => {
                if let Some(fragments) = self.group.poll_batch() {
                    self.history.0.push(Happened::Batch { fragments });
                    self.ledger();
                    self.saved = self.group.state();
                    self.history.0.push(Happened::Saved);
                }
            }
            Op::Pause => self.group.pause(),
            Op::Resume => self.group.resume(now),
            Op::Restart => self.restart(),
        }
        self.ledger();
    }

    fn sender(&self, lease: usize, other: Option<u32>) -> Option<(WorkerId, Lease)> {
        let (worker, lease) = self.leases.get(lease)?;
        Some((other.map_or(*worker, WorkerId), lease.clone()))
    }

    fn upload(&mut self, lease: usize, other: Option<u32>, slots: usize) {
        let Some((worker, lease)) = self.sender(lease, other) else { return };
        let make = |slot| {
            let start: &FakeState = self.starts.get(&(slot, lease.fragment))?;
            Some(start.fragment(lease.weights_version, LENGTH))
        };
        let fragments: Vec<SlotFragment> =
            lease.slots.iter().take(slots).filter_map(|leased| make(leased.slot)).collect();
        let receipt = self.group.handle_fragments(worker, lease.id, fragments.clone(), self.now);
        for ((_, outcome), fragment) in receipt.outcomes.iter().zip(fragments) {
            if *outcome == FragmentOutcome::Committed {
                let next = (fragment.slot, FragmentNo(fragment.fragment.0 + 1));
                self.starts.insert(next, FakeState::decode(&fragment.state));
                let fragment = Box::new(fragment);
                self.history.0.push(Happened::Committed { worker, lease: lease.id, fragment });
            }
        }
    }

    fn begin(&mut self, weights_version: WeightsVersion) {
        let may_begin = self.group.may_begin(weights_version);
        let begun = self.group.begin_iteration(weights_version, self.now);
        assert_eq!(begun.is_ok(), may_begin);
        if begun.is_ok() {
            self.newest = weights_version.0;
            self.history.0.push(Happened::Began { weights_version });
        }
    }

    fn restart(&mut self) {
        self.lives += 1;
        let state = GroupState::decode(&self.saved.encode()).unwrap();
        let config = GroupConfig { first_lease: LeaseId(self.lives << 40), ..self.config };
        self.group = LeaseGroup::restore(config, state).unwrap();
        self.able.clear();
        self.history.0.push(Happened::Restored);
        // Recomputed fragments begin with the states in their leases.
        self.leases.clear();
        self.starts.clear();
    }

    /// Records the group's commands and its ledger.
    fn ledger(&mut self) {
        while let Some(command) = self.group.poll_command() {
            match command {
                GroupCommand::Grant { worker, lease } => {
                    assert!(self.able.contains(&worker), "worker {worker} has not said that it is able");
                    for leased in &lease.slots {
                        if let SlotSource::State(bytes) = &leased.source {
                            self.starts.insert((leased.slot, lease.fragment), FakeState::decode(bytes));
                        } else if lease.fragment == FragmentNo(0) {
                            self.starts.insert((leased.slot, lease.fragment), FakeState::new(leased.slot));
                        }
                    }
                    self.history.0.push(Happened::granted(worker, &lease));
                    self.leases.insert(0, (worker, lease));
                    self.leases.truncate(6);
                }
                GroupCommand::Revoke { lease, .. } => self.history.0.push(Happened::Over { lease }),
                GroupCommand::Dismiss { .. } => {}
            }
        }
        while self.group.poll_event().is_some() {}
        while self.group.poll_journal().is_some() {}
        let ledger: Ledger = *self.group.ledger();
        self.history.0.push(Happened::Ledger(Box::new(ledger)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_calls_leaves_a_sound_history(
        ops in ops(),
        mode in modes(),
        (num_slots, max_slots_per_lease) in (1..7u32, 1..7u32),
        restart_failed in any::<bool>(),
    ) {
        let config = GroupConfig { mode, max_slots_per_lease, restart_failed, ..GroupConfig::new(num_slots, LENGTH) };
        let mut bench = Bench::new(config);
        for op in ops {
            bench.call(op);
        }
        let scenario = Scenario { length: LENGTH, mode, ..Scenario::calm(num_slots, 1) };
        let checked = bench.history.check(Rules::of(&scenario));
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
    }
}
