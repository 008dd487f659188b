//! Audits detect divergent workers and undo their fragments in every mode under all other faults, and honest workers
//! pass.

use rollmesh_core::group::Ledger;
use rollmesh_tests::{
    fake_rows::calm_batches_of,
    scenario::{Faults, Scenario},
    simnet::{Report, SimNet},
};

use super::{HEALED_WITHIN, SEEDS, Seed, seeds};

/// Runs a scenario with divergent workers for many seeds. Returns the number of failed audits, of those with a
/// roll-back, and of those that discarded only the open batch.
fn run_watched(scenario: impl Fn(u64) -> Scenario, check: impl Fn(&Scenario, &Report)) -> [u64; 3] {
    let mut caught = [0; 3];
    for seed in seeds(SEEDS / 4) {
        let _on_failure = Seed(seed);
        let scenario = scenario(seed).watched();
        let report = SimNet::new(scenario.clone()).run();
        // Every failed audit discards the later batches.
        let healed = scenario.faults.until + HEALED_WITHIN.times(3);
        assert!(report.finished_at <= healed, "over at {} only", report.finished_at);
        if report.check_honesty(&scenario) {
            check(&scenario, &report);
        }
        let went_back = report.watched.failed_audit_of.iter().filter(|(_, first)| first.is_some()).count();
        caught[0] += report.watched.failed_audit_of.len() as u64;
        caught[1] += went_back as u64;
        caught[2] += report.watched.of_open_batches;
    }
    caught
}

fn assert_caught(caught: [u64; 3], at_least: [u64; 3]) {
    let is_enough = caught.iter().zip(at_least).all(|(&caught, least)| caught >= least);
    assert!(seeds(SEEDS).count() < 300 || is_enough, "{caught:?}");
}

/// Asserts that honest workers that replay the journal sample the same batches.
fn follow(scenario: &Scenario, report: &Report) {
    let calm = Scenario { faults: Faults::default(), watch: None, ..scenario.clone() };
    let again = SimNet::replaying(calm, report.journal.clone()).run();
    assert!(again.batches == report.batches, "a batch differs from what its journal says");
}

#[test]
fn divergent_fragments_leave_no_trace_in_synchronous_mode() {
    for per_version in [1, 3] {
        let scenario = |seed| Scenario::chaotic(seed).with_weights_for(per_version);
        let caught = run_watched(scenario, |scenario, report| {
            let &Scenario { num_slots, length, iterations, .. } = scenario;
            assert!(report.batches == calm_batches_of(num_slots, length, iterations, per_version));
            let steps = iterations * u64::from(num_slots) * u64::from(length);
            let Ledger { committed, consumed, .. } = report.ledger;
            assert_eq!((committed, consumed), (steps, steps));
        });
        assert_caught(caught, [100, 50, 0]);
    }
}

#[test]
fn divergent_fragments_leave_no_trace_in_asynchronous_mode() {
    let caught = run_watched(|seed| Scenario::chaotic(seed).asynchronous(), follow);
    assert_caught(caught, [100, 100, 10]);
}

#[test]
fn divergent_fragments_leave_no_trace_under_deadlines() {
    let caught = run_watched(|seed| Scenario::chaotic(seed).with_deadlines(), follow);
    assert_caught(caught, [100, 100, 10]);
}
