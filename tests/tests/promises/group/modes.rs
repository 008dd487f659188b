//! Groups whose slots advance independently, one situation at a time: batches of ready fragments, deadlines, bounded
//! staleness, journals; and restored groups. The simulator in `sim` mixes them.

use rollmesh_core::{
    batch::SlotFragment,
    group::{
        BeginError, FragmentOutcome, GroupCommand, GroupConfig, GroupConfigError, GroupEvent, GroupState, JournalEntry,
        JournalError, LeaseGroup, Ledger, RejectReason, SamplingMode, WorkerProfile, WorkerState,
    },
    ids::{FragmentNo, LeaseId, SlotId, WeightsVersion, WorkerId},
    lease::{Lease, SlotSource},
    time::Micros,
};
use rollmesh_tests::{
    fake_rows::{FakeState, calm_batches},
    join,
};

const LENGTH: u32 = 4;
const A: WorkerId = WorkerId(1);
const B: WorkerId = WorkerId(2);

fn ms(millis: u64) -> Micros {
    Micros::from_millis(millis)
}

fn asynchronous(fragments: u64, max_staleness: u64) -> SamplingMode {
    SamplingMode::Asynchronous { batch_env_steps: fragments * u64::from(LENGTH), max_staleness }
}

fn deadline(after: u64, max_staleness: u64) -> SamplingMode {
    SamplingMode::Deadline { after: ms(after), max_staleness }
}

/// Returns a group with two workers, whose first iteration began at 0 ms.
fn group(num_slots: u32, mode: SamplingMode) -> LeaseGroup {
    let mut group = LeaseGroup::new(GroupConfig { mode, ..GroupConfig::new(num_slots, LENGTH) }).unwrap();
    for worker in [A, B] {
        join(&mut group, worker, WorkerProfile::NATIVE, ms(0));
    }
    group.begin_iteration(WeightsVersion(0), ms(0)).unwrap();
    group
}

/// Takes the next command, which must grant a lease to this worker.
#[track_caller]
fn grant(group: &mut LeaseGroup, to: WorkerId) -> Lease {
    match group.poll_command() {
        Some(GroupCommand::Grant { worker, lease }) if worker == to => lease,
        other => panic!("no grant to worker {to}: {other:?}"),
    }
}

fn slots(lease: &Lease) -> Vec<u32> {
    lease.slots.iter().map(|leased| leased.slot.0).collect()
}

/// Returns the parts of a batch's fragments that determine its rows.
fn names(batch: &[SlotFragment]) -> Vec<(u32, u64, u64)> {
    batch.iter().map(|made| (made.slot.0, made.fragment.0, made.weights_version.0)).collect()
}

/// Fake workers, which compute rows from the slots' states.
#[derive(Default)]
struct Rows(std::collections::BTreeMap<SlotId, FakeState>);

impl Rows {
    fn make(&mut self, lease: &Lease) -> Vec<SlotFragment> {
        let mut made = Vec::new();
        for leased in &lease.slots {
            let start = match &leased.source {
                SlotSource::State(bytes) => FakeState::decode(bytes),
                SlotSource::New => FakeState::new(leased.slot),
                SlotSource::Held => self.0[&leased.slot],
            };
            let fragment = start.fragment(lease.weights_version, LENGTH);
            self.0.insert(leased.slot, FakeState::decode(&fragment.state));
            made.push(fragment);
        }
        made
    }

    #[track_caller]
    fn deliver(&mut self, group: &mut LeaseGroup, worker: WorkerId, lease: &Lease, now: Micros) {
        let receipt = group.handle_fragments(worker, lease.id, self.make(lease), now);
        assert_eq!(receipt.count(FragmentOutcome::Committed), lease.slots.len(), "{receipt:?}");
    }
}

#[test]
fn batch_does_not_wait_for_a_straggler_with_later_fragments() {
    let (mut group, mut rows) = (group(4, asynchronous(4, 1)), Rows::default());
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    assert_eq!((slots(&a), slots(&b)), (vec![0, 1], vec![2, 3]));
    rows.deliver(&mut group, A, &a, ms(10));
    let next = grant(&mut group, A);
    assert_eq!((slots(&next), next.fragment), (vec![0, 1], FragmentNo(1)), "it continues immediately");
    assert!(next.slots.iter().all(|leased| leased.source == SlotSource::Held));
    assert_eq!(group.poll_batch(), None);
    rows.deliver(&mut group, A, &next, ms(20));
    assert_eq!(names(&group.poll_batch().unwrap()), [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]);
    assert_eq!(group.begin_iteration(WeightsVersion(1), ms(30)), Ok(FragmentNo(1)));
    let newer = grant(&mut group, A);
    rows.deliver(&mut group, B, &b, ms(40));
    rows.deliver(&mut group, A, &newer, ms(40));
    let second = group.poll_batch().unwrap();
    assert_eq!(names(&second), [(0, 2, 0), (1, 2, 0), (2, 0, 0), (3, 0, 0)], "the late fragment, and the first one");
    let Ledger { committed, consumed, queued, .. } = *group.ledger();
    assert_eq!((committed, consumed, queued), (32, 32, 0));
}

#[test]
fn new_leases_have_the_newest_weights_and_old_ones_their_own() {
    let (mut group, mut rows) = (group(2, asynchronous(1, 5)), Rows::default());
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    rows.deliver(&mut group, A, &a, ms(1));
    assert_eq!(names(&group.poll_batch().unwrap()), [(0, 0, 0)]);
    group.begin_iteration(WeightsVersion(3), ms(2)).unwrap();
    let old = grant(&mut group, A);
    assert_eq!(old.weights_version, WeightsVersion(0), "it began before the newer ones came");
    rows.deliver(&mut group, B, &b, ms(3));
    assert_eq!(names(&group.poll_batch().unwrap()), [(1, 0, 0)]);
    group.begin_iteration(WeightsVersion(3), ms(3)).unwrap();
    assert_eq!(grant(&mut group, B).weights_version, WeightsVersion(3));
    let older = BeginError::Older { newest: WeightsVersion(3), asked: WeightsVersion(2) };
    rows.deliver(&mut group, A, &old, ms(3));
    assert!(group.poll_batch().is_some());
    assert_eq!(group.begin_iteration(WeightsVersion(2), ms(4)), Err(older));
}

#[test]
fn stale_fragment_is_rejected_without_a_strike_for_its_worker() {
    let (mut group, mut rows) = (group(2, asynchronous(1, 1)), Rows::default());
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    rows.deliver(&mut group, A, &a, ms(1));
    for version in 1..=2 {
        assert!(group.poll_batch().is_some());
        group.begin_iteration(WeightsVersion(version), ms(version)).unwrap();
        let next = grant(&mut group, A);
        rows.deliver(&mut group, A, &next, ms(version));
    }
    for _ in 0..5 {
        while group.poll_command().is_some() {}
        let receipt = group.handle_fragments(B, b.id, rows.make(&b), ms(9));
        let reason = receipt.outcomes[0].1;
        assert!(matches!(reason, FragmentOutcome::Rejected(RejectReason::Stale | RejectReason::Late)), "{receipt:?}");
    }
    let ledger = *group.ledger();
    assert_eq!((ledger.rejected.stale, ledger.uninvited.rejected.late), (4, 4));
    assert!(group.workers(ms(9)).all(|worker| worker.state != WorkerState::Quarantined));
    assert!(group.poll_batch().is_some());
    let again = std::iter::from_fn(|| group.poll_command()).next();
    let Some(GroupCommand::Grant { lease, .. }) = again else { panic!("{again:?}") };
    assert_eq!((slots(&lease), lease.fragment, lease.weights_version), (vec![1], FragmentNo(0), WeightsVersion(2)));
}

#[test]
fn stale_fragments_in_the_queue_are_dropped_and_their_slots_continue() {
    let (mut group, mut rows) = (group(4, asynchronous(1, 0)), Rows::default());
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    rows.deliver(&mut group, A, &a, ms(1));
    rows.deliver(&mut group, B, &b, ms(1));
    assert_eq!(names(&group.poll_batch().unwrap()), [(0, 0, 0)]);
    group.begin_iteration(WeightsVersion(1), ms(2)).unwrap();
    let Ledger { committed, consumed, queued, dropped_stale, .. } = *group.ledger();
    assert_eq!((committed, consumed, queued, dropped_stale), (16, 4, 0, 12));
    let events: Vec<GroupEvent> = std::iter::from_fn(|| group.poll_event()).collect();
    assert_eq!(events, [GroupEvent::FragmentsDropped { fragments: 3, newest: WeightsVersion(1) }]);
    assert_eq!(grant(&mut group, A).fragment, FragmentNo(1));
}

#[test]
fn no_lease_is_granted_while_a_complete_batch_waits() {
    let (mut group, mut rows) = (group(2, asynchronous(2, 1)), Rows::default());
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    rows.deliver(&mut group, A, &a, ms(1));
    let next = grant(&mut group, A);
    rows.deliver(&mut group, B, &b, ms(2));
    assert_eq!(group.poll_command(), None, "two fragments wait");
    assert_eq!(group.fragment(), None);
    assert!(group.poll_batch().is_some());
    assert_eq!(slots(&grant(&mut group, B)), [1], "the queue has capacity again, while the learner is busy");
    rows.deliver(&mut group, A, &next, ms(3));
    assert_eq!(slots(&grant(&mut group, A)), [0]);
    assert_eq!(group.poll_batch(), None, "no other batch was requested");
}

#[test]
fn slots_of_a_lost_worker_do_not_starve() {
    let (mut group, mut rows) = (group(4, asynchronous(4, 9)), Rows::default());
    let (a, _) = (grant(&mut group, A), grant(&mut group, B));
    group.handle_left(B, ms(1));
    let (mut lease, mut now) = (a, 2);
    let mut made = [0; 4];
    for _ in 0..20 {
        rows.deliver(&mut group, A, &lease, ms(now));
        slots(&lease).into_iter().for_each(|slot| made[slot as usize] += 1);
        if group.poll_batch().is_some() {
            group.begin_iteration(WeightsVersion(0), ms(now)).unwrap();
        }
        lease = grant(&mut group, A);
        now += 1;
    }
    let (least, most) = (made.iter().min().unwrap(), made.iter().max().unwrap());
    assert!(most - least <= 2, "{made:?}");
}

#[test]
fn deadline_closes_the_batch_and_later_fragments_join_the_next_one() {
    let (mut group, mut rows) = (group(4, deadline(50, 1)), Rows::default());
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    assert_eq!(group.poll_timeout(), Some(ms(50)));
    rows.deliver(&mut group, A, &a, ms(10));
    assert_eq!((group.poll_batch(), group.poll_command()), (None, None), "one fragment of a slot is enough");
    group.handle_timeout(ms(50));
    assert_eq!(names(&group.poll_batch().unwrap()), [(0, 0, 0), (1, 0, 0)]);
    group.begin_iteration(WeightsVersion(1), ms(60)).unwrap();
    let a = grant(&mut group, A);
    assert_eq!((slots(&a), a.weights_version, group.poll_command()), (vec![0, 1], WeightsVersion(1), None));
    rows.deliver(&mut group, B, &b, ms(70));
    rows.deliver(&mut group, A, &a, ms(80));
    let second = group.poll_batch().expect("all slots are there before the time is up");
    assert_eq!(names(&second), [(0, 1, 1), (1, 1, 1), (2, 0, 0), (3, 0, 0)]);
    assert_eq!(group.ledger().consumed, group.ledger().granted);
}

#[test]
fn a_deadline_waits_for_the_first_fragment() {
    let (mut group, mut rows) = (group(2, deadline(50, 0)), Rows::default());
    let (a, _) = (grant(&mut group, A), grant(&mut group, B));
    group.handle_timeout(ms(50));
    assert_eq!(group.poll_batch(), None);
    assert!(group.poll_timeout() > Some(ms(50)), "it was noted");
    rows.deliver(&mut group, A, &a, ms(400));
    assert_eq!(names(&group.poll_batch().unwrap()), [(0, 0, 0)]);
}

#[test]
fn overdue_leases_are_not_hedged_where_others_need_not_wait() {
    let mut group = group(2, asynchronous(2, 1));
    let _ = (grant(&mut group, A), grant(&mut group, B));
    join(&mut group, WorkerId(3), WorkerProfile::NATIVE, ms(1));
    group.handle_timeout(ms(2_000));
    assert_eq!(group.poll_command(), None);
}

#[test]
fn a_refusal_of_weights_that_were_overtaken_is_no_failure() {
    let (mut group, mut rows) = (group(2, asynchronous(1, 9)), Rows::default());
    let (mut a, mut b) = (grant(&mut group, A), grant(&mut group, B));
    for version in 1..8 {
        rows.deliver(&mut group, A, &a, ms(version));
        assert!(group.poll_batch().is_some());
        group.begin_iteration(WeightsVersion(version), ms(version)).unwrap();
        group.handle_refused(B, b.id, "no", ms(version));
        for command in std::iter::from_fn(|| group.poll_command()) {
            match command {
                GroupCommand::Grant { worker: A, lease } => a = lease,
                GroupCommand::Grant { lease, .. } => b = lease,
                other => panic!("{other:?}"),
            }
        }
    }
    assert!(group.workers(ms(9)).all(|worker| worker.state == WorkerState::Sampling));
}

#[test]
fn modes_without_work_are_refused() {
    let empty = GroupConfig { mode: asynchronous(0, 1), ..GroupConfig::new(1, 1) };
    assert_eq!(LeaseGroup::new(empty).unwrap_err(), GroupConfigError::EmptyBatches);
}

/// Returns the journal of two batches, with a dropped fragment between them.
fn journal() -> Vec<JournalEntry> {
    let began = |version| JournalEntry::Began { weights_version: WeightsVersion(version) };
    let committed = |slot, fragment, version| JournalEntry::Committed {
        slot: SlotId(slot),
        fragment: FragmentNo(fragment),
        weights_version: WeightsVersion(version),
    };
    let batch = JournalEntry::Batch { fragments: 1 };
    vec![began(0), committed(1, 0, 0), committed(0, 0, 0), batch, began(1), committed(1, 1, 1), batch]
}

#[test]
fn journal_records_the_order_and_replays_the_same_batches() {
    let mode = asynchronous(1, 0);
    let (mut group, mut rows) = (group(2, mode), Rows::default());
    let (a, b) = (grant(&mut group, A), grant(&mut group, B));
    rows.deliver(&mut group, B, &b, ms(1));
    rows.deliver(&mut group, A, &a, ms(1));
    let first = group.poll_batch().unwrap();
    group.begin_iteration(WeightsVersion(1), ms(2)).unwrap();
    let _ = grant(&mut group, A);
    let b = grant(&mut group, B);
    rows.deliver(&mut group, B, &b, ms(3));
    let second = group.poll_batch().unwrap();
    let written: Vec<JournalEntry> = std::iter::from_fn(|| group.poll_journal()).collect();
    assert_eq!(written, journal());

    // The replay has one worker, which delivers in the opposite order.
    let mut again =
        LeaseGroup::new(GroupConfig { mode, max_slots_per_lease: 1, ..GroupConfig::new(2, LENGTH) }).unwrap();
    again.replay(written).unwrap();
    join(&mut again, A, WorkerProfile::NATIVE, ms(0));
    let wrong = again.begin_iteration(WeightsVersion(7), ms(0));
    let expected = BeginError::NotJournalled { journalled: WeightsVersion(0), asked: WeightsVersion(7) };
    assert_eq!(wrong, Err(expected));
    again.begin_iteration(WeightsVersion(0), ms(0)).unwrap();
    let mut rows = Rows::default();
    for slot in [0, 1] {
        assert_eq!(again.poll_batch(), None);
        let lease = grant(&mut again, A);
        assert_eq!(slots(&lease), [slot]);
        rows.deliver(&mut again, A, &lease, ms(1));
    }
    assert_eq!(again.poll_batch().as_ref(), Some(&first));
    again.begin_iteration(WeightsVersion(1), ms(2)).unwrap();
    let lease = grant(&mut again, A);
    rows.deliver(&mut again, A, &lease, ms(3));
    assert_eq!(again.poll_batch().as_ref(), Some(&second));
    assert_eq!(again.ledger().dropped_stale, 4);
    assert_eq!(again.poll_journal(), None);
    // The journal has ended; from here on the group decides.
    again.begin_iteration(WeightsVersion(5), ms(4)).unwrap();
    assert_eq!(again.poll_journal(), Some(JournalEntry::Began { weights_version: WeightsVersion(5) }));
}

#[test]
fn a_journal_that_cannot_be_is_refused() {
    let new = |mode| LeaseGroup::new(GroupConfig { mode, ..GroupConfig::new(2, LENGTH) }).unwrap();
    assert_eq!(new(SamplingMode::Synchronous).replay(journal()), Err(JournalError::Synchronous));
    assert_eq!(group(2, asynchronous(1, 0)).replay(journal()), Err(JournalError::Begun));
    assert_eq!(new(asynchronous(1, 0)).replay(journal()), Ok(()));
    assert_eq!(new(asynchronous(1, 0)).replay(Vec::new()), Ok(()));
    for missing in [0, 1, 3, 4, 5] {
        let mut journal = journal();
        journal.remove(missing);
        let refused = new(asynchronous(1, 0)).replay(journal);
        assert!(matches!(refused, Err(JournalError::Impossible(_))), "without entry {missing}: {refused:?}");
    }
    for (index, slot, fragment, version) in
        [(1, 2, 0, 0), (1, 1, 1, 0), (1, 1, u64::MAX, 0), (1, 1, 0, 1), (5, 1, 1, 0)]
    {
        let (slot, fragment, weights_version) = (SlotId(slot), FragmentNo(fragment), WeightsVersion(version));
        let mut journal = journal();
        journal[index] = JournalEntry::Committed { slot, fragment, weights_version };
        let refused = new(asynchronous(1, 0)).replay(journal);
        assert_eq!(refused, Err(JournalError::Impossible(index as u64)));
    }
}

#[test]
fn journal_continues_after_the_group_is_restored() {
    let config = GroupConfig { mode: asynchronous(1, 0), max_slots_per_lease: 1, ..GroupConfig::new(2, LENGTH) };
    let drain = |group: &mut LeaseGroup| std::iter::from_fn(|| group.poll_journal()).collect::<Vec<_>>();
    let mut group = LeaseGroup::new(config).unwrap();
    [A, B].into_iter().for_each(|worker| join(&mut group, worker, WorkerProfile::NATIVE, ms(0)));
    group.begin_iteration(WeightsVersion(0), ms(0)).unwrap();
    let (mut rows, a, b) = (Rows::default(), grant(&mut group, A), grant(&mut group, B));
    rows.deliver(&mut group, B, &b, ms(1));
    rows.deliver(&mut group, A, &a, ms(1));
    let first = group.poll_batch().unwrap();
    assert_eq!(group.ledger().queued, u64::from(LENGTH), "the other one is in the journal already");
    let mut journal = drain(&mut group);

    let mut restored = LeaseGroup::restore(config, group.state()).unwrap();
    join(&mut restored, A, WorkerProfile::NATIVE, ms(2));
    restored.begin_iteration(WeightsVersion(0), ms(2)).unwrap();
    // An iteration has begun, and the group is restored again.
    journal.extend(drain(&mut restored));
    let mut restored = LeaseGroup::restore(config, restored.state()).unwrap();
    join(&mut restored, A, WorkerProfile::NATIVE, ms(3));
    restored.begin_iteration(WeightsVersion(0), ms(3)).unwrap();
    let lease = grant(&mut restored, A);
    Rows::default().deliver(&mut restored, A, &lease, ms(4));
    let second = restored.poll_batch().unwrap();
    journal.extend(drain(&mut restored));
    assert_eq!(journal.iter().filter(|entry| **entry == JournalEntry::Restored).count(), 2);

    let (mut again, mut rows) = (LeaseGroup::new(config).unwrap(), Rows::default());
    again.replay(journal).unwrap();
    join(&mut again, A, WorkerProfile::NATIVE, ms(0));
    for expected in [first, second] {
        again.begin_iteration(WeightsVersion(0), ms(1)).unwrap();
        let lease = grant(&mut again, A);
        rows.deliver(&mut again, A, &lease, ms(1));
        assert_eq!(again.poll_batch(), Some(expected));
    }
    assert_eq!(again.poll_journal(), None);
}

#[test]
fn restored_group_resumes_bit_identically() {
    let config = GroupConfig::new(4, LENGTH);
    let calm = calm_batches(4, LENGTH, 4);
    let (mut group, mut rows) = (LeaseGroup::new(config).unwrap(), Rows::default());
    join(&mut group, A, WorkerProfile::NATIVE, ms(0));
    let mut make_batch = |group: &mut LeaseGroup, version| {
        group.begin_iteration(WeightsVersion(version), ms(version)).unwrap();
        let lease = grant(group, A);
        rows.deliver(group, A, &lease, ms(version));
        group.poll_batch().unwrap()
    };
    assert_eq!(make_batch(&mut group, 0), calm[0]);
    assert_eq!(make_batch(&mut group, 1), calm[1]);
    // The beginning of the third iteration does not change the state.
    let before = group.state();
    group.begin_iteration(WeightsVersion(2), ms(2)).unwrap();
    let lost = grant(&mut group, A);
    let state = GroupState::decode(&group.state().encode()).unwrap();
    assert_eq!(state.next_fragment(), FragmentNo(2));
    assert_eq!(state.ledger().regenerated, 16);
    assert_eq!(Ledger { regenerated: 0, ..*state.ledger() }, *before.ledger());

    let mut restored = LeaseGroup::restore(config, state).unwrap();
    assert!(restored.next_lease_id() > LeaseId(u64::from(u32::MAX)));
    join(&mut restored, A, WorkerProfile::NATIVE, ms(0));
    assert_eq!(restored.begin_iteration(WeightsVersion(2), ms(2)), Ok(FragmentNo(2)));
    let lease = grant(&mut restored, A);
    assert!(lease.slots.iter().all(|leased| matches!(leased.source, SlotSource::State(_))));
    let zombie = restored.handle_fragments(A, lost.id, Rows::default().make(&lease), ms(3));
    assert_eq!(zombie.count(FragmentOutcome::Rejected(RejectReason::Late)), 4, "{zombie:?}");
    let mut rows = Rows::default();
    rows.deliver(&mut restored, A, &lease, ms(3));
    assert_eq!(restored.poll_batch().unwrap(), calm[2]);
    restored.count_regenerated(4);
    assert_eq!((restored.ledger().consumed, restored.ledger().regenerated), (48, 20));
}

#[test]
fn ledger_is_exported_under_its_names() {
    let ledger = Ledger { granted: 8, committed: 8, queued: 8, ..Ledger::default() };
    let json = serde_json::to_value(ledger).unwrap();
    let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
    let sums = [
        "abandoned_episodes",
        "committed",
        "consumed",
        "dropped_stale",
        "expired",
        "granted",
        "outstanding",
        "queued",
        "regenerated",
    ];
    assert_eq!(names, [&sums[..], &["rejected", "superseded", "uninvited"]].concat());
    assert_eq!(json["rejected"].as_object().unwrap().len(), 9);
    assert_eq!(serde_json::from_value::<Ledger>(json).unwrap(), ledger);
    let entry = serde_json::to_string(&journal()[1]).unwrap();
    assert_eq!(entry, r#"{"committed":{"slot":1,"fragment":0,"weights_version":0}}"#);
}
