//! Untrusted workers: the audits detect a divergent one and undo its fragments, and no other worker fails an audit.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use rollmesh_core::{
    batch::SlotFragment,
    group::{
        AuditPolicy, AuditTask, FailedAudit, FragmentOutcome, GroupCommand, GroupConfig, GroupEvent, GroupState,
        LeaseGroup, Ledger, Principal, RejectReason, SamplingMode, Verdict, WorkerProfile, WorkerState,
    },
    ids::{FragmentNo, SlotId, WeightsVersion, WorkerId},
    lease::{Lease, SlotSource},
    time::Micros,
};
use rollmesh_tests::{
    fake_rows::{FakeState, calm_batches, flip_a_reward_bit, flip_a_state_bit},
    fake_worker::{FakeWorker, WorkerInput, WorkerOutput},
    join,
    scenario::Dice,
};

const LENGTH: u32 = 4;

/// Returns the verdict of an honest replay.
fn replay(task: &AuditTask) -> Verdict {
    let lease = task.lease();
    let [leased] = &lease.slots[..] else { panic!("one slot") };
    let start = match &leased.source {
        SlotSource::State(bytes) => FakeState::decode(bytes),
        _ => FakeState::new(leased.slot),
    };
    task.verdict(&start.fragment(lease.weights_version, LENGTH))
}

/// Recomputes a fragment, and returns the failed audit if there is one.
fn judge(group: &mut LeaseGroup, task: &AuditTask, now: Micros) -> Option<FailedAudit> {
    group.handle_audited(task, replay(task), now);
    group.poll_failed_audit()
}

/// A group with workers that answer immediately.
struct Rig {
    config: GroupConfig,
    group: LeaseGroup,
    workers: BTreeMap<WorkerId, FakeWorker>,
    /// The divergent worker, and the number per thousand of its fragments in which it flips a reward.
    divergent: Option<(WorkerId, u64)>,
    false_fragments: u64,
    policy: (AuditPolicy, u64),
    dice: Dice,
    failed_audits: Vec<FailedAudit>,
    batches: Vec<Vec<SlotFragment>>,
    /// The states after every batch, for roll-backs.
    saved: Vec<GroupState>,
    now: Micros,
}

impl Rig {
    /// Creates a group in which all workers but the first are untrusted, each with its own principal.
    fn new(slots: u32, workers: u32, policy: AuditPolicy, secret: u64) -> Self {
        let config = GroupConfig::new(slots, LENGTH);
        let group = LeaseGroup::new(config).unwrap();
        let mut rig = Self {
            config,
            saved: vec![group.state()],
            group,
            workers: BTreeMap::new(),
            divergent: None,
            false_fragments: 0,
            policy: (policy, secret),
            dice: Dice::new(secret),
            failed_audits: Vec::new(),
            batches: Vec::new(),
            now: Micros(0),
        };
        rig.group.set_audits(policy, secret).unwrap();
        (1..=workers).for_each(|worker| rig.join(WorkerId(worker)));
        rig
    }

    fn join(&mut self, worker: WorkerId) {
        if worker != WorkerId(1) {
            self.group.distrust(worker, Principal(u64::from(worker.0)));
        }
        join(&mut self.group, worker, WorkerProfile::NATIVE, self.now);
        self.workers.insert(worker, FakeWorker::new(LENGTH, false));
    }

    /// Samples the next batch. Verdicts arrive now and then, in any order, and the rest after the batch.
    fn next_batch(&mut self) {
        self.group.begin_iteration(WeightsVersion(self.batches.len() as u64), self.now).unwrap();
        let mut waiting = Vec::new();
        let batch = loop {
            self.work();
            waiting.extend(std::iter::from_fn(|| self.group.poll_audit()));
            if let Some(batch) = self.group.poll_batch() {
                break batch;
            }
            if self.dice.chance(300) {
                self.judge(&mut waiting);
            }
            self.now = self.now + Micros::from_millis(1);
            self.group.handle_timeout(self.now);
        };
        self.batches.push(batch);
        self.saved.push(self.group.state());
        self.judge(&mut waiting);
        assert!(self.group.ledger().balances());
    }

    fn judge(&mut self, waiting: &mut Vec<AuditTask>) {
        for task in waiting.drain(..) {
            self.group.handle_audited(&task, replay(&task), self.now);
            self.failed_audits.extend(self.group.poll_failed_audit());
        }
    }

    fn work(&mut self) {
        while let Some(command) = self.group.poll_command() {
            let Some(worker) = self.workers.get_mut(&command.worker()) else { continue };
            let (id, input) = match command {
                GroupCommand::Grant { worker, lease } => (worker, WorkerInput::Grant(lease)),
                GroupCommand::Revoke { worker, lease } => (worker, WorkerInput::Revoke(lease)),
                GroupCommand::Dismiss { .. } => continue,
            };
            if let Some(WorkerOutput::Refused(lease)) = worker.receive(input) {
                self.group.handle_refused(id, lease, "no", self.now);
            }
        }
        for (&id, worker) in &mut self.workers {
            if let Some(WorkerOutput::Upload(lease, mut fragments)) = worker.work(1_000) {
                for fragment in &mut fragments {
                    if self
                        .divergent
                        .is_some_and(|(divergent, per_mille)| divergent == id && self.dice.chance(per_mille))
                    {
                        flip_a_reward_bit(fragment);
                        self.false_fragments += 1;
                    }
                }
                self.group.handle_fragments(id, lease, fragments, self.now);
            }
        }
    }

    /// Rolls back to the state before the first doubtful batch, without the worker that failed the audit.
    fn roll_back(&mut self, failed_audit: &FailedAudit) {
        for worker in &failed_audit.workers {
            self.workers.remove(worker);
            self.group.handle_left(*worker, self.now);
        }
        let Some(FragmentNo(first)) = failed_audit.first_doubtful else { return };
        let first = first as usize;
        self.batches.truncate(first);
        self.saved.truncate(first + 1);
        let first_lease = self.group.next_lease_id();
        let state = self.saved.last().unwrap().clone();
        self.group = LeaseGroup::restore(GroupConfig { first_lease, ..self.config }, state).unwrap();
        let (policy, secret) = self.policy;
        self.group.set_audits(policy, secret + 1).unwrap();
        let workers: Vec<WorkerId> = self.workers.keys().copied().collect();
        workers.into_iter().for_each(|worker| self.join(worker));
    }
}

#[test]
fn three_hundred_divergent_fragments_are_caught_in_99_of_100_runs() {
    const RUNS: u64 = 400;
    let policy = AuditPolicy { first_fragments: 0, ..AuditPolicy::default() };
    let escapes = (0..RUNS).filter(|&secret| {
        let mut group = LeaseGroup::new(GroupConfig::new(1, LENGTH)).unwrap();
        group.set_audits(policy, secret).unwrap();
        group.distrust(WorkerId(1), Principal(0));
        join(&mut group, WorkerId(1), WorkerProfile::NATIVE, Micros(0));
        let mut state = FakeState::new(SlotId(0));
        let is_caught = |version| {
            group.begin_iteration(WeightsVersion(version), Micros(0)).unwrap();
            let Some(GroupCommand::Grant { worker, lease }) = group.poll_command() else { panic!("no lease") };
            let mut fragment = state.fragment(WeightsVersion(version), LENGTH);
            state = FakeState::decode(&fragment.state);
            flip_a_reward_bit(&mut fragment);
            group.handle_fragments(worker, lease.id, vec![fragment], Micros(0));
            group.poll_batch().unwrap();
            let Some(task) = group.poll_audit() else { return false };
            group.handle_audited(&task, replay(&task), Micros(0));
            let failed_audit = group.poll_failed_audit().expect("it differs");
            assert_eq!((failed_audit.principal, failed_audit.first_doubtful), (Principal(0), Some(FragmentNo(0))));
            true
        };
        !(0..300).any(is_caught)
    });
    let escapes = escapes.count() as u64;
    assert!(escapes * 100 <= RUNS, "{escapes} of {RUNS} were not caught");
    assert!((1.0 - AuditPolicy::DEFAULT_SHARE).powi(300) < 0.01);
}

#[test]
fn worker_that_flips_one_reward_in_a_hundred_fragments_is_caught_and_leaves_no_trace() {
    const MOST: usize = 3_000;
    let calm = calm_batches(6, LENGTH, MOST as u64);
    let mut undone = 0;
    for secret in 0..10 {
        let mut rig = Rig::new(6, 4, AuditPolicy { share: 0.3, first_fragments: 0 }, secret);
        rig.divergent = Some((WorkerId(3), 10));
        while rig.failed_audits.is_empty() {
            assert!(
                rig.batches.len() < MOST - 10,
                "seed {secret}: {} false fragments and none caught",
                rig.false_fragments
            );
            rig.next_batch();
        }
        let failed_audit = rig.failed_audits.pop().unwrap();
        assert_eq!(
            (failed_audit.principal, &failed_audit.workers[..]),
            (Principal(3), &[WorkerId(3)][..]),
            "seed {secret}"
        );
        let before = rig.batches.len();
        rig.roll_back(&failed_audit);
        undone += before - rig.batches.len();
        (0..10).for_each(|_| rig.next_batch());
        assert!(
            rig.false_fragments > 0 && rig.batches[..] == calm[..rig.batches.len()],
            "seed {secret}: a false fragment is left"
        );
        assert_eq!(rig.failed_audits, [], "seed {secret}: another worker failed");
    }
    assert!(undone > 0);
}

#[test]
fn honest_workers_pass_every_audit() {
    let mut rig = Rig::new(8, 4, AuditPolicy { share: 0.5, first_fragments: 16 }, 7);
    (0..2_000).for_each(|_| rig.next_batch());
    assert_eq!(rig.failed_audits, []);
    assert!(rig.group.workers(rig.now).all(|worker| worker.state == WorkerState::Idle && worker.env_steps > 0));
    assert_eq!(rig.batches, calm_batches(8, LENGTH, 2_000));
}

/// Returns a group with a lease of both slots for worker 2, which is untrusted, and a hedge of it for worker 1.
fn hedged() -> (LeaseGroup, [Lease; 2]) {
    let mut group = LeaseGroup::new(GroupConfig::new(2, LENGTH)).unwrap();
    group.set_audits(AuditPolicy::NONE, 1).unwrap();
    group.distrust(WorkerId(2), Principal(2));
    join(&mut group, WorkerId(2), WorkerProfile::BROWSER, Micros(0));
    group.begin_iteration(WeightsVersion(0), Micros(0)).unwrap();
    join(&mut group, WorkerId(1), WorkerProfile::NATIVE, Micros(0));
    group.handle_timeout(Micros::from_secs(20));
    let leases = [(); 2].map(|()| match group.poll_command() {
        Some(GroupCommand::Grant { lease, .. }) => lease,
        other => panic!("{other:?}"),
    });
    (group, leases)
}

#[test]
fn slots_that_cannot_be_recomputed_are_neither_hedged_nor_audited() {
    let config = GroupConfig { reproducible: false, audited: false, ..GroupConfig::new(2, LENGTH) };
    let mut group = LeaseGroup::new(config).unwrap();
    group.set_audits(AuditPolicy { share: 1.0, ..AuditPolicy::NONE }, 1).unwrap();
    group.distrust(WorkerId(2), Principal(2));
    join(&mut group, WorkerId(2), WorkerProfile::BROWSER, Micros(0));
    group.begin_iteration(WeightsVersion(0), Micros(0)).unwrap();
    join(&mut group, WorkerId(1), WorkerProfile::NATIVE, Micros(0));
    group.handle_timeout(Micros::from_secs(20));
    let Some(GroupCommand::Grant { worker: WorkerId(2), lease }) = group.poll_command() else { panic!("no lease") };
    assert_eq!(group.poll_command(), None, "an overdue lease of a reproducible run would be granted to worker 1, too");
    let receipt = group.handle_fragments(WorkerId(2), lease.id, fragments(), Micros::from_secs(21));
    assert_eq!((receipt.count(FragmentOutcome::Committed), group.poll_audit()), (2, None));
    assert_eq!(group.poll_batch(), Some(fragments()));
}

fn fragments() -> Vec<SlotFragment> {
    [0, 1].map(|slot| FakeState::new(SlotId(slot)).fragment(WeightsVersion(0), LENGTH)).to_vec()
}

#[test]
fn honest_worker_that_comes_second_fails_no_audit() {
    let (mut group, [first, second]) = hedged();
    let now = Micros::from_secs(21);
    let mut false_fragments = fragments();
    flip_a_reward_bit(&mut false_fragments[1]);
    group.handle_fragments(WorkerId(2), first.id, false_fragments, now);
    assert_eq!(group.poll_audit(), None, "no audit is due by itself");
    let receipt = group.handle_fragments(WorkerId(1), second.id, fragments(), now);
    assert_eq!(receipt.count(FragmentOutcome::Rejected(RejectReason::Audit)), 2);
    let quarantined = |group: &mut LeaseGroup| {
        let events = std::iter::from_fn(|| group.poll_event());
        let of = |event| if let GroupEvent::WorkerQuarantined { worker, .. } = event { Some(worker) } else { None };
        events.filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(quarantined(&mut group), []);

    let task = group.poll_audit().unwrap();
    let failed_audit = judge(&mut group, &task, now).unwrap();
    assert_eq!(quarantined(&mut group), [WorkerId(2)]);
    assert_eq!((failed_audit.slot, failed_audit.dropped, failed_audit.first_doubtful), (SlotId(1), 2, None));
    let Ledger { committed, rejected, .. } = *group.ledger();
    assert_eq!((committed, rejected.audit), (0, 2 * u64::from(LENGTH)));
    // Both slots are open again, for the remaining worker.
    while let Some(command) = group.poll_command() {
        if let GroupCommand::Grant { worker, lease } = command {
            assert_eq!((worker, lease.slots.len()), (WorkerId(1), 2));
            group.handle_fragments(worker, lease.id, fragments(), now);
        }
    }
    assert_eq!(group.poll_batch(), Some(fragments()));
}

#[test]
fn fragment_that_cannot_be_recomputed_fails_no_audit_and_stays_unconfirmed() {
    let mut rig = Rig::new(1, 1, AuditPolicy { share: 1.0, first_fragments: 0 }, 1);
    rig.group.handle_left(WorkerId(1), rig.now);
    rig.workers.clear();
    rig.join(WorkerId(2));
    rig.divergent = Some((WorkerId(2), 1_000));
    let next = |rig: &mut Rig, version| {
        rig.group.begin_iteration(WeightsVersion(version), rig.now).unwrap();
        rig.work();
        rig.work();
        rig.group.poll_batch().unwrap();
        rig.group.poll_audit().unwrap()
    };
    let tasks = [0, 1, 2].map(|version| next(&mut rig, version));
    rig.group.handle_audited(&tasks[0], Verdict::Agrees, rig.now);
    rig.group.handle_audited(&tasks[1], Verdict::Unknown, rig.now);
    assert_eq!(rig.group.poll_failed_audit(), None);
    let failed_audit = judge(&mut rig.group, &tasks[2], rig.now).unwrap();
    assert_eq!((failed_audit.dropped, failed_audit.first_doubtful), (0, Some(FragmentNo(1))));
    assert_eq!(judge(&mut rig.group, &tasks[2], rig.now), None, "once is enough");
}

#[test]
fn divergent_fragment_that_no_batch_has_taken_is_undone_where_slots_do_not_keep_step() {
    let asynchronous = SamplingMode::Asynchronous { batch_env_steps: 3 * u64::from(LENGTH), max_staleness: 1 };
    let deadline = SamplingMode::Deadline { after: Micros::from_secs(1), max_staleness: 1 };
    for mode in [asynchronous, deadline] {
        let config = GroupConfig { mode, max_slots_per_lease: 1, ..GroupConfig::new(3, LENGTH) };
        let mut group = LeaseGroup::new(config).unwrap();
        group.set_audits(AuditPolicy { share: 1.0, first_fragments: 0 }, 1).unwrap();
        group.distrust(WorkerId(2), Principal(2));
        join(&mut group, WorkerId(2), WorkerProfile::NATIVE, Micros(0));
        group.begin_iteration(WeightsVersion(0), Micros(0)).unwrap();
        let Some(GroupCommand::Grant { worker, lease }) = group.poll_command() else { panic!("no lease") };
        let mut false_fragment = FakeState::new(lease.slots[0].slot).fragment(WeightsVersion(0), LENGTH);
        flip_a_reward_bit(&mut false_fragment);
        group.handle_fragments(worker, lease.id, vec![false_fragment], Micros(0));
        assert_eq!((group.poll_batch(), group.ledger().queued), (None, u64::from(LENGTH)));
        let task = group.poll_audit().unwrap();
        let failed_audit = judge(&mut group, &task, Micros(0)).unwrap();
        assert_eq!((failed_audit.dropped, failed_audit.first_doubtful), (0, Some(FragmentNo(0))), "{mode:?}");
        let state = group.state();
        assert_eq!((state.next_fragment(), state.ledger().committed), (FragmentNo(0), 0));
    }
}

#[test]
fn worker_that_contradicts_correct_rows_is_caught_without_double_work() {
    for verdict in [Verdict::Agrees, Verdict::Unknown] {
        let (mut group, [first, second]) = hedged();
        let now = Micros::from_secs(21);
        group.handle_fragments(WorkerId(2), first.id, fragments(), now);
        let mut false_fragments = fragments();
        flip_a_reward_bit(&mut false_fragments[1]);
        let contradict = |group: &mut LeaseGroup| {
            let receipt = group.handle_fragments(WorkerId(1), second.id, false_fragments.clone(), now);
            assert_eq!(receipt.count(FragmentOutcome::Rejected(RejectReason::Audit)), 2);
            group.poll_audit()
        };
        let task = contradict(&mut group).unwrap();
        assert_eq!((task.principal, contradict(&mut group)), (Principal(2), None), "it is being recomputed");
        let is_quarantined = |group: &LeaseGroup| {
            let mut workers = group.workers(now);
            workers.any(|worker| worker.worker == WorkerId(1) && worker.state == WorkerState::Quarantined)
        };
        assert!(!is_quarantined(&group), "no audit has failed yet");
        group.handle_audited(&task, verdict, now);
        assert_eq!(group.poll_failed_audit(), None, "a trusted worker's audit does not fail");
        assert_eq!(is_quarantined(&group), verdict == Verdict::Agrees);
        assert_eq!(contradict(&mut group), None, "what came of it is known");
        assert_eq!(is_quarantined(&group), verdict == Verdict::Agrees);
    }
}

/// Returns a group in which worker 3, which is untrusted, has sampled the first batch and disconnected. The next batch
/// is leased to worker 2, which is untrusted, too, and as a hedge to another worker of worker 3's principal.
fn hedged_by_a_principal_that_was_here_before() -> (LeaseGroup, [Lease; 2], Vec<SlotFragment>) {
    let (principal, start) = (Principal(3), Micros(0));
    let mut group = LeaseGroup::new(GroupConfig::new(2, LENGTH)).unwrap();
    group.set_audits(AuditPolicy::NONE, 1).unwrap();
    let join = |group: &mut LeaseGroup, worker, principal| {
        group.distrust(worker, principal);
        join(group, worker, WorkerProfile::NATIVE, start);
    };
    let grant = |group: &mut LeaseGroup| match group.poll_command() {
        Some(GroupCommand::Grant { lease, .. }) => lease,
        other => panic!("{other:?}"),
    };
    join(&mut group, WorkerId(3), principal);
    group.begin_iteration(WeightsVersion(0), start).unwrap();
    let lease = grant(&mut group);
    group.handle_fragments(WorkerId(3), lease.id, fragments(), start);
    group.poll_batch().unwrap();
    group.handle_left(WorkerId(3), start);
    join(&mut group, WorkerId(2), Principal(2));
    group.begin_iteration(WeightsVersion(1), start).unwrap();
    let first = grant(&mut group);
    join(&mut group, WorkerId(4), principal);
    group.handle_timeout(Micros::from_secs(1));
    let second = grant(&mut group);
    let next =
        fragments().into_iter().map(|before| FakeState::decode(&before.state).fragment(WeightsVersion(1), LENGTH));
    (group, [first, second], next.collect())
}

#[test]
fn contradicted_worker_fails_its_audit_after_a_recomputation() {
    let now = Micros::from_secs(1);
    // The contradiction arrives before the replay is done, from a worker that disconnects meanwhile, and after the
    // replay.
    for (is_closed, is_known) in [(false, false), (true, false), (false, true)] {
        let (mut group, [first, second], right) = hedged_by_a_principal_that_was_here_before();
        let mut false_fragments = right.clone();
        flip_a_reward_bit(&mut false_fragments[1]);
        group.handle_fragments(WorkerId(2), first.id, right, now);
        group.handle_fragments(WorkerId(4), second.id, false_fragments.clone(), now);
        let task = group.poll_audit().unwrap();
        assert_eq!((task.worker, group.poll_failed_audit()), (WorkerId(2), None), "no audit has failed yet");
        if is_closed {
            group.handle_left(WorkerId(4), now);
        }
        group.handle_audited(&task, replay(&task), now);
        let mut failed_audit = group.poll_failed_audit().unwrap();
        if is_known {
            // The same fragments arrive from a worker of another principal.
            group.distrust(WorkerId(5), Principal(5));
            join(&mut group, WorkerId(5), WorkerProfile::NATIVE, now);
            group.handle_fragments(WorkerId(5), second.id, false_fragments, now);
            failed_audit = group.poll_failed_audit().unwrap();
        }
        let (principal, workers, doubtful) = match (is_closed, is_known) {
            (_, true) => (Principal(5), vec![WorkerId(5)], None),
            (true, false) => (Principal(3), vec![], Some(FragmentNo(0))),
            (false, false) => (Principal(3), vec![WorkerId(4)], Some(FragmentNo(0))),
        };
        assert_eq!((failed_audit.principal, &failed_audit.workers), (principal, &workers));
        assert_eq!((failed_audit.slot, failed_audit.fragment), (SlotId(1), FragmentNo(1)));
        // The worker's committed fragments were never recomputed, and are in a batch.
        assert_eq!((failed_audit.dropped, failed_audit.first_doubtful), (0, doubtful));
        assert_eq!(group.poll_failed_audit(), None);
        let honest = group.workers(now).find(|worker| worker.worker == WorkerId(2)).unwrap();
        assert!(honest.state != WorkerState::Quarantined && group.ledger().balances());
    }
}

#[test]
fn contradicting_a_trusted_worker_fails_no_audit() {
    let (mut group, [first, second]) = hedged();
    let now = Micros::from_secs(21);
    group.handle_fragments(WorkerId(1), second.id, fragments(), now);
    let mut false_fragments = fragments();
    flip_a_reward_bit(&mut false_fragments[1]);
    group.handle_fragments(WorkerId(2), first.id, false_fragments, now);
    // Nothing was recomputed, so the only consequence for the worker is that it gets no more leases.
    assert_eq!((group.poll_audit(), group.poll_failed_audit()), (None, None));
    let divergent = group.workers(now).find(|worker| worker.worker == WorkerId(2)).unwrap();
    assert_eq!(divergent.state, WorkerState::Quarantined);
}

#[test]
fn fragments_waiting_to_be_replayed_are_limited() {
    let mut rig = Rig::new(1, 1, AuditPolicy { share: 1.0, first_fragments: 0 }, 1);
    rig.group.handle_left(WorkerId(1), rig.now);
    rig.workers.clear();
    rig.join(WorkerId(2));
    let next = |rig: &mut Rig, version| {
        rig.group.begin_iteration(WeightsVersion(version), rig.now).unwrap();
        rig.work();
        rig.work();
        rig.group.poll_batch().unwrap();
        rig.group.poll_audit()
    };
    let tasks: Vec<_> = (0..4_100).filter_map(|version| next(&mut rig, version)).collect();
    assert_eq!(tasks.len(), 4_096, "polled or not, they count towards the limit");
    rig.group.handle_audited(&tasks[0], Verdict::Agrees, rig.now);
    assert!(next(&mut rig, 4_100).is_some() && next(&mut rig, 4_101).is_none());
}

#[test]
fn doubts_outlive_the_process_and_a_return_to_an_earlier_batch() {
    let mut rig = Rig::new(6, 3, AuditPolicy { share: 0.0, first_fragments: 0 }, 1);
    rig.divergent = Some((WorkerId(3), 1_000));
    (0..10).for_each(|_| rig.next_batch());
    assert!(rig.false_fragments > 0);
    // Another worker fails an audit and the run is rolled back to before the sixth batch, or its hub is restarted.
    let state = GroupState::decode(&rig.saved[5].encode()).unwrap();
    let mut group = LeaseGroup::restore(rig.config, state).unwrap();
    assert_eq!(group.doubtful().min(), Some(FragmentNo(0)));
    group.set_audits(AuditPolicy { share: 1.0, first_fragments: 0 }, 1).unwrap();
    group.distrust(WorkerId(1), Principal(3));
    join(&mut group, WorkerId(1), WorkerProfile::NATIVE, rig.now);
    group.begin_iteration(WeightsVersion(5), rig.now).unwrap();
    let Some(GroupCommand::Grant { worker, lease }) = group.poll_command() else { panic!("no lease") };
    let false_fragments = lease.slots.iter().map(|leased| {
        let SlotSource::State(bytes) = &leased.source else { panic!("no state") };
        let mut false_fragment = FakeState::decode(bytes).fragment(WeightsVersion(5), LENGTH);
        flip_a_reward_bit(&mut false_fragment);
        false_fragment
    });
    group.handle_fragments(worker, lease.id, false_fragments.collect(), rig.now);
    let task = group.poll_audit().unwrap();
    let failed_audit = judge(&mut group, &task, rig.now).unwrap();
    assert_eq!(failed_audit.first_doubtful, Some(FragmentNo(0)), "its earlier false fragments are still there");
}

#[test]
fn worker_that_resumes_from_divergent_state_passes_its_audit() {
    let mut group = LeaseGroup::new(GroupConfig { max_slots_per_lease: 1, ..GroupConfig::new(2, LENGTH) }).unwrap();
    let now = Micros(0);
    group.set_audits(AuditPolicy { share: 1.0, first_fragments: 0 }, 1).unwrap();
    group.distrust(WorkerId(1), Principal(1));
    (1..=2).for_each(|worker| join(&mut group, WorkerId(worker), WorkerProfile::NATIVE, now));
    (0..2).for_each(|_| _ = group.begin_iteration(WeightsVersion(0), now).unwrap());
    let grants = |group: &mut LeaseGroup| {
        let commands = std::iter::from_fn(|| group.poll_command());
        let of =
            |command| if let GroupCommand::Grant { worker, lease } = command { Some((worker, lease)) } else { None };
        commands.filter_map(of).collect::<Vec<_>>()
    };
    let start = |lease: &Lease| match &lease.slots[0].source {
        SlotSource::State(bytes) => FakeState::decode(bytes),
        _ => FakeState::new(lease.slots[0].slot),
    };
    let mut first = grants(&mut group);
    let (of_other, first) = (first.remove(1), first.remove(0));
    assert_eq!((first.0, of_other.0, of_other.1.fragment), (WorkerId(1), WorkerId(2), FragmentNo(0)));
    let other = start(&of_other.1).fragment(WeightsVersion(0), LENGTH);
    group.handle_fragments(WorkerId(2), of_other.1.id, vec![other], now);
    let mut false_fragment = start(&first.1).fragment(WeightsVersion(0), LENGTH);
    flip_a_state_bit(&mut false_fragment);
    group.handle_fragments(WorkerId(1), first.1.id, vec![false_fragment], now);
    // The divergent worker disconnects, and an honest worker resumes from its divergent state until the audit detects
    // it.
    group.handle_left(WorkerId(1), now);
    join(&mut group, WorkerId(3), WorkerProfile::NATIVE, now);
    let (worker, from_divergence) = grants(&mut group).pop().unwrap();
    assert_eq!(from_divergence.fragment, FragmentNo(1));
    let late = start(&from_divergence).fragment(WeightsVersion(0), LENGTH);
    let task = group.poll_audit().unwrap();
    assert_eq!(judge(&mut group, &task, now).unwrap().dropped, 1);
    // Both fragments are recomputed before the honest worker's upload arrives.
    let mut state = FakeState::new(SlotId(0));
    let mut leases = VecDeque::new();
    while state.next < FragmentNo(2) {
        leases.extend(grants(&mut group));
        let (worker, lease) = leases.pop_front().unwrap();
        let fragment = state.fragment(WeightsVersion(0), LENGTH);
        state = FakeState::decode(&fragment.state);
        let receipt = group.handle_fragments(worker, lease.id, vec![fragment], now);
        assert_eq!(receipt.count(FragmentOutcome::Committed), 1);
    }
    group.handle_fragments(worker, from_divergence.id, vec![late], now);
    assert!(group.workers(now).all(|worker| worker.state != WorkerState::Quarantined));
}

#[test]
fn worker_that_disconnects_is_not_counted_as_untrusted() {
    let mut rig = Rig::new(1, 2, AuditPolicy::default(), 1);
    rig.join(WorkerId(2));
    assert!(rig.group.has_untrusted());
    rig.group.handle_left(WorkerId(2), rig.now);
    assert!(!rig.group.has_untrusted());
}

#[test]
fn divergent_fragments_from_before_a_restart_count_once() {
    let mut group = LeaseGroup::new(GroupConfig::new(1, LENGTH)).unwrap();
    group.count_taken_back(8);
    let state = GroupState::decode(&group.state().encode()).unwrap();
    let mut restored = LeaseGroup::restore(GroupConfig::new(1, LENGTH), state).unwrap();
    // The group had counted 12 at the end, and 8 of them when its state was saved.
    restored.count_taken_back(12);
    assert_eq!((restored.ledger().rejected.audit, restored.ledger().granted), (12, 12));
    assert!(restored.ledger().balances());
}

proptest! {
    #[test]
    fn shares_are_checked(share in any::<f64>()) {
        let checked = AuditPolicy { share, first_fragments: 0 }.check();
        prop_assert_eq!(checked.is_ok(), (0.0..=1.0).contains(&share));
    }
}
