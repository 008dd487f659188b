//! Promises of the group under everything that can go wrong at once, over many seeds.
//!
//! A failure prints its seed; `ROLLMESH_SIM_SEED=17 cargo test -p rollmesh-tests --test group_sim` runs that one alone,
//! `ROLLMESH_SIM_SEEDS=10000` so many.

use std::ops::Range;

use rollmesh_core::group::Ledger;
use rollmesh_tests::{
    fake_rows::{calm_batches, calm_batches_of},
    scenario::Scenario,
    simnet::{Report, SimNet},
};

/// Prints how to repeat a failure.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat it with ROLLMESH_SIM_SEED={}", self.0);
        }
    }
}

/// The seeds to run: those that a person asked for, else a few.
fn seeds(few: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect(name));
    match number("ROLLMESH_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ROLLMESH_SIM_SEEDS").unwrap_or(few),
    }
}

fn run(scenario: &Scenario) -> Report {
    SimNet::new(scenario.clone()).run()
}

#[test]
fn chaos_changes_no_batch_and_loses_no_step() {
    let mut total = Ledger::default();
    for seed in seeds(300) {
        let _on_failure = Seed(seed);
        let scenario = Scenario::chaotic(seed);
        let report = run(&scenario);
        let calm = calm_batches(scenario.num_slots, scenario.length, scenario.iterations);
        assert!(report.batches == calm, "a batch differs from the calm run's");
        let steps = scenario.iterations * u64::from(scenario.num_slots) * u64::from(scenario.length);
        assert_eq!(report.ledger.committed, steps);
        assert_eq!(report.ledger.outstanding, 0);
        assert_eq!(report.ledger.rejected.audit + report.ledger.uninvited.rejected.audit, 0, "nobody lied");
        total.superseded += report.ledger.superseded;
        total.expired.timed_out += report.ledger.expired.timed_out;
        total.expired.left += report.ledger.expired.left;
        total.expired.refused += report.ledger.expired.refused;
        total.rejected.corrupt += report.ledger.rejected.corrupt;
        total.uninvited.rejected.late += report.ledger.uninvited.rejected.late;
        total.uninvited.rejected.duplicate += report.ledger.uninvited.rejected.duplicate;
        total.uninvited.superseded += report.ledger.uninvited.superseded;
    }
    if seeds(300).count() >= 300 {
        // The chaos was chaotic: every way to lose was taken many times.
        let ways = [
            total.superseded,
            total.expired.timed_out,
            total.expired.left,
            total.expired.refused,
            total.rejected.corrupt,
            total.uninvited.rejected.late,
            total.uninvited.rejected.duplicate,
            total.uninvited.superseded,
        ];
        assert!(ways.iter().all(|&steps| steps > 50), "{total:?}");
    }
}

#[test]
fn chaos_changes_no_batch_while_two_iterations_are_open() {
    let mut total = Ledger::default();
    for seed in seeds(300) {
        let _on_failure = Seed(seed);
        let scenario = Scenario::chaotic(seed).with_weights_for(2 + seed % 9);
        let report = run(&scenario);
        let Scenario { num_slots, length, iterations, per_version, .. } = scenario;
        assert!(report.batches == calm_batches_of(num_slots, length, iterations, per_version));
        let Ledger { committed, outstanding, rejected, uninvited, .. } = report.ledger;
        assert_eq!((committed, outstanding), (iterations * u64::from(num_slots) * u64::from(length), 0));
        assert_eq!(rejected.audit + uninvited.rejected.audit, 0, "nobody lied");
        total.superseded += report.ledger.superseded;
        total.expired.revoked += report.ledger.expired.revoked;
        total.expired.left += report.ledger.expired.left;
        total.rejected.early += rejected.early;
    }
    if seeds(300).count() >= 300 {
        let ways = [total.superseded, total.expired.revoked, total.expired.left, total.rejected.early];
        assert!(ways.iter().all(|&steps| steps > 50), "{total:?}");
    }
}

#[test]
fn follow_ups_hide_how_far_away_the_group_is() {
    for workers in 1..5 {
        let calm = Scenario::calm(12, workers);
        let iterations = calm.iterations;
        let (slow, fast) = (run(&calm), run(&calm.clone().with_weights_for(iterations)));
        assert_eq!(fast.batches, calm_batches_of(12, calm.length, iterations, iterations));
        assert_eq!(fast.ledger.granted, fast.ledger.committed, "{:?}", fast.ledger);
        let leases = fast.log.matches(": lease ").count() as u64;
        assert_eq!(leases, workers as u64 * iterations, "one lease per worker and iteration");
        assert!(fast.finished_at.0 < slow.finished_at.0, "{} against {}", fast.finished_at, slow.finished_at);
    }
    // An iteration takes 20 ms to ask for, and as long to make. So nobody waits.
    let mut scenario = Scenario::calm(10, 2).with_weights_for(20);
    scenario.workers.fill(500);
    let took = run(&scenario).finished_at.0;
    let work = scenario.iterations * 5 * u64::from(scenario.length) * 500;
    assert!(took < work + work / 10, "{took} us for {work} us of work");
}

#[test]
fn balance_is_found_while_two_iterations_are_open() {
    let mut scenario = Scenario::calm(16, 2).with_weights_for(1_000);
    scenario.iterations = 60;
    scenario.length = 20;
    scenario.workers = vec![1_000, 3_000];
    let took = run(&scenario).finished_at.0;
    let even = scenario.iterations * 8 * u64::from(scenario.length) * 3_000;
    assert!(took < even * 7 / 10, "{took} us, and {even} us without balance");
}

#[test]
fn the_same_seed_gives_the_same_log_byte_for_byte() {
    for seed in seeds(20) {
        let _on_failure = Seed(seed);
        let scenario = Scenario::chaotic(seed);
        assert_eq!(run(&scenario).log, run(&scenario).log);
    }
}

#[test]
fn a_calm_run_wastes_nothing() {
    for workers in 1..5 {
        let scenario = Scenario::calm(12, workers);
        let report = run(&scenario);
        assert_eq!(report.batches, calm_batches(12, scenario.length, scenario.iterations));
        assert_eq!(report.ledger.granted, report.ledger.committed, "{:?}", report.ledger);
        let leases = report.log.matches(": lease ").count();
        assert_eq!(leases, workers * scenario.iterations as usize, "one lease per worker and iteration");
    }
}

#[test]
fn twice_the_workers_take_half_the_time() {
    let time = |workers| {
        let mut scenario = Scenario::calm(16, workers);
        scenario.workers.fill(2_000);
        run(&scenario).finished_at.0 as f64
    };
    assert!(time(2) < 0.6 * time(1), "{} against {}", time(2), time(1));
    assert!(time(4) < 0.4 * time(1), "{} against {}", time(4), time(1));
}

#[test]
fn a_worker_that_is_too_slow_for_its_deadline_gets_there_if_it_is_the_only_one() {
    let mut scenario = Scenario::calm(2, 1);
    // Five env steps between two reports take 20 s, the deadline is 3 s.
    scenario.workers.fill(4_000_000);
    scenario.iterations = 3;
    let report = run(&scenario);
    assert_eq!(report.batches, calm_batches(2, scenario.length, 3));
    assert!(report.ledger.expired.timed_out > 0, "{:?}", report.ledger);
}
