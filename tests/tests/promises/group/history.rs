//! The checker of histories detects violations: divergent workers, and histories of correct runs that were changed in
//! one place, in every way in which a group could be broken.

use rollmesh_core::{
    batch::SlotFragment,
    group::Ledger,
    ids::{FragmentNo, LeaseId, WeightsVersion, WorkerId},
};
use rollmesh_tests::{
    fake_rows::flip_a_reward_bit,
    history::{Happened, History, Rules},
    scenario::Scenario,
    simnet::SimNet,
};

/// Returns a chaotic run of each mode.
fn scenarios(seed: u64) -> [Scenario; 3] {
    let chaotic = Scenario::chaotic(seed);
    [chaotic.clone(), chaotic.clone().asynchronous(), chaotic.with_deadlines()]
}

/// Changes a history in one place, in the middle of the entries that `change` replaces. Returns `None` if it replaces
/// none.
fn changed(history: &History, change: impl Fn(&Happened) -> Option<Vec<Happened>>) -> Option<History> {
    let places: Vec<(usize, Vec<Happened>)> =
        history.0.iter().enumerate().filter_map(|(at, happened)| Some((at, change(happened)?))).collect();
    let (at, others) = places.get(places.len() / 2)?.clone();
    let mut entries = history.0.clone();
    entries.splice(at..=at, others);
    Some(History(entries))
}

/// Asserts that the checker detects a change in every mode whose histories have such an entry.
fn assert_found(what: &str, change: impl Fn(&Happened) -> Option<Vec<Happened>>) {
    let mut found = 0;
    for seed in 0..12 {
        for scenario in scenarios(seed) {
            let history = SimNet::new(scenario.clone()).run().history;
            let rules = Rules::of(&scenario);
            assert!(history.check(rules).is_ok());
            if let Some(wrong) = changed(&history, &change) {
                assert!(wrong.check(rules).is_err(), "{what}: not found in a run of {scenario:?}");
                found += 1;
            }
        }
    }
    assert!(found >= 12, "{what}: only {found} histories have such a place");
}

fn committed(happened: &Happened) -> Option<(WorkerId, LeaseId, SlotFragment)> {
    match happened {
        Happened::Committed { worker, lease, fragment } => Some((*worker, *lease, (**fragment).clone())),
        _ => None,
    }
}

fn batch(happened: &Happened, least: usize) -> Option<Vec<SlotFragment>> {
    match happened {
        Happened::Batch { fragments } if fragments.len() >= least => Some(fragments.clone()),
        _ => None,
    }
}

#[test]
fn divergent_worker_is_seen_in_the_history() {
    for mut scenario in (0..5).flat_map(scenarios) {
        scenario.faults.falsification = 500;
        let violation = SimNet::new(scenario.clone()).run().history.check(Rules::of(&scenario)).unwrap_err();
        assert!(violation.what.contains("has other rows than it must have"), "{violation}");
    }
}

#[test]
fn lost_and_doubled_commits_are_found() {
    assert_found("a commit is missing", |happened| committed(happened).map(|_| Vec::new()));
    assert_found("a commit comes twice", |happened| {
        committed(happened).map(|_| vec![happened.clone(), happened.clone()])
    });
}

#[test]
fn commits_of_the_wrong_thing_are_found() {
    type Change = fn(&mut (WorkerId, LeaseId, SlotFragment));
    let changes: [(&str, Change); 6] = [
        ("of another worker", |(worker, ..)| worker.0 += 1_000),
        ("for another lease", |(_, lease, _)| lease.0 += 1_000_000),
        ("of another number", |(.., fragment)| fragment.fragment = FragmentNo(fragment.fragment.0 + 1)),
        ("with other weights", |(.., fragment)| fragment.weights_version.0 += 1),
        ("with other rows", |(.., fragment)| flip_a_reward_bit(fragment)),
        ("of another slot", |(.., fragment)| fragment.slot.0 += 1),
    ];
    for (what, change) in changes {
        assert_found(what, |happened| {
            let mut parts = committed(happened)?;
            change(&mut parts);
            let (worker, lease, fragment) = parts;
            let fragment = Box::new(fragment);
            Some(vec![Happened::Committed { worker, lease, fragment }])
        });
    }
}

#[test]
fn late_commits_are_found() {
    assert_found("its lease is over", |happened| {
        let (_, lease, _) = committed(happened)?;
        Some(vec![Happened::Over { lease }, happened.clone()])
    });
    assert_found("its worker has left", |happened| {
        let (worker, ..) = committed(happened)?;
        Some(vec![Happened::Left { worker }, happened.clone()])
    });
    assert_found("the hub came back in between", |happened| {
        committed(happened).map(|_| vec![Happened::Restored, happened.clone()])
    });
}

#[test]
fn weights_out_of_order_are_found() {
    let newer = Happened::Began { weights_version: WeightsVersion(1_000) };
    assert_found("weights jump before a commit", |happened| {
        committed(happened).map(|_| vec![newer.clone(), happened.clone()])
    });
    assert_found("weights go back", |happened| {
        let Happened::Began { weights_version: WeightsVersion(1..) } = happened else { return None };
        let older = Happened::Began { weights_version: WeightsVersion(0) };
        Some(vec![happened.clone(), older])
    });
}

#[test]
fn batches_of_the_wrong_fragments_are_found() {
    assert_found("a fragment is missing", |happened| {
        let mut fragments = batch(happened, 1)?;
        fragments.pop();
        Some(vec![Happened::Batch { fragments }])
    });
    assert_found("a fragment comes twice", |happened| {
        let mut fragments = batch(happened, 1)?;
        fragments.push(fragments[0].clone());
        Some(vec![Happened::Batch { fragments }])
    });
    assert_found("the order is wrong", |happened| {
        let mut fragments = batch(happened, 2)?;
        fragments.reverse();
        Some(vec![Happened::Batch { fragments }])
    });
    assert_found("a bit is wrong", |happened| {
        let mut fragments = batch(happened, 1)?;
        flip_a_reward_bit(&mut fragments[0]);
        Some(vec![Happened::Batch { fragments }])
    });
    assert_found("it comes twice", |happened| batch(happened, 1).map(|_| vec![happened.clone(), happened.clone()]));
    assert_found("it never comes", |happened| batch(happened, 1).map(|_| Vec::new()));
}

#[test]
fn leases_that_are_not_new_are_found() {
    assert_found("a lease comes twice", |happened| {
        matches!(happened, Happened::Granted { .. }).then(|| vec![happened.clone(), happened.clone()])
    });
}

#[test]
fn wrong_ledger_is_found() {
    type Change = fn(&mut Ledger);
    let changes: [(&str, Change); 6] = [
        ("more outstanding", |ledger| ledger.outstanding += 1),
        ("more of both", |ledger| (ledger.granted, ledger.outstanding) = (ledger.granted + 1, ledger.outstanding + 1)),
        ("more committed", |ledger| {
            (ledger.granted, ledger.committed, ledger.queued) =
                (ledger.granted + 1, ledger.committed + 1, ledger.queued + 1);
        }),
        ("less queued", |ledger| {
            (ledger.queued, ledger.consumed) = (ledger.queued + 1, ledger.consumed.wrapping_sub(1))
        }),
        ("more dropped", |ledger| ledger.dropped_stale += 1),
        ("more regenerated", |ledger| ledger.regenerated += 1),
    ];
    for (what, change) in changes {
        assert_found(what, |happened| {
            let Happened::Ledger(ledger) = happened else { return None };
            let mut ledger = ledger.clone();
            change(&mut ledger);
            Some(vec![Happened::Ledger(ledger)])
        });
    }
}
