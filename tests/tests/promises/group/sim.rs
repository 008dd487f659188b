//! The group's guarantees under all faults at the same time, over many seeds.
//!
//! A failure prints its seed; `ROLLMESH_SIM_SEED=17 cargo test -p rollmesh-tests --test promises sim::` runs only that
//! one. `ROLLMESH_SIM_SEEDS=10000` runs that many seeds of every mode, and in proportion of the slower tests; `cargo
//! xtask test simulator` does that.

use std::ops::Range;

use rollmesh_core::{
    group::{Ledger, SamplingMode},
    time::Micros,
};
use rollmesh_tests::{
    fake_rows::{calm_batches, calm_batches_of},
    scenario::{FaultKind, Faults, Scenario},
    simnet::{Report, SimNet},
};

mod courses;
mod divergent;

/// The number of seeds of each mode.
const SEEDS: u64 = 1_000;

/// The virtual time from the end of the faults within which every run ends. The longest timeout for a worker is 96 s.
const HEALED_WITHIN: Micros = Micros::from_secs(120);

/// A guard that prints on failure how to repeat it.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat it with ROLLMESH_SIM_SEED={}", self.0);
        }
    }
}

/// Returns the seeds to run: the requested one, else `few` for every [`SEEDS`] of each mode.
fn seeds(few: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    match number("ROLLMESH_SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..(number("ROLLMESH_SIM_SEEDS").unwrap_or(SEEDS) * few).div_ceil(SEEDS),
    }
}

/// Runs a scenario and checks its history.
fn run(scenario: &Scenario) -> Report {
    let report = SimNet::new(scenario.clone()).run();
    report.check(scenario);
    let healed = scenario.faults.until + HEALED_WITHIN;
    assert!(scenario.faults.until == Micros(0) || report.finished_at <= healed, "over at {} only", report.finished_at);
    let Ledger { rejected, uninvited, .. } = report.ledger;
    assert_eq!(rejected.audit + uninvited.rejected.audit, 0, "every worker is honest");
    report
}

/// Runs a scenario for many seeds, and sums up the ledgers.
fn run_all(few: u64, scenario: impl Fn(u64) -> Scenario, check: impl Fn(&Scenario, &Report)) -> Ways {
    let mut ways = Ways::default();
    for seed in seeds(few) {
        let _on_failure = Seed(seed);
        let scenario = scenario(seed);
        let report = run(&scenario);
        check(&scenario, &report);
        ways.add(&report.ledger);
    }
    ways
}

/// The env steps per kind of loss.
#[derive(Debug, Default)]
struct Ways(std::collections::BTreeMap<&'static str, u64>);

impl Ways {
    fn add(&mut self, ledger: &Ledger) {
        let Ledger { superseded, rejected, expired, dropped_stale, regenerated, uninvited, .. } = *ledger;
        for (way, times) in [
            ("superseded", superseded),
            ("corrupt", rejected.corrupt),
            ("early", rejected.early),
            ("stale", rejected.stale),
            ("dropped_stale", dropped_stale),
            ("timed_out", expired.timed_out),
            ("left", expired.left),
            ("refused", expired.refused),
            ("revoked", expired.revoked),
            ("regenerated", regenerated),
            ("late", uninvited.rejected.late),
            ("duplicate", uninvited.rejected.duplicate),
            ("uninvited", uninvited.superseded),
        ] {
            *self.0.entry(way).or_default() += times;
        }
    }

    /// Asserts that each of these kinds of loss occurred many times.
    fn assert_taken(&self, ways: &[&str]) {
        let is_taken = |way: &&str| self.0.get(*way).is_some_and(|&times| times > 50);
        assert!(seeds(SEEDS).count() < 300 || ways.iter().all(is_taken), "{self:?}");
    }
}

/// The kinds of loss that occur in every mode.
const COMMON: [&str; 7] = ["corrupt", "timed_out", "left", "refused", "late", "duplicate", "revoked"];

#[test]
fn chaos_changes_no_batch_and_loses_no_step() {
    let ways = run_all(SEEDS, Scenario::chaotic, |scenario, report| {
        let calm = calm_batches(scenario.num_slots, scenario.length, scenario.iterations);
        assert!(report.batches == calm, "a batch differs from the calm run's");
        let steps = scenario.iterations * u64::from(scenario.num_slots) * u64::from(scenario.length);
        let Ledger { committed, consumed, outstanding, queued, .. } = report.ledger;
        assert_eq!((committed, consumed, outstanding, queued), (steps, steps, 0, 0));
        // The faults do not change the statistics of a filter either.
        let peaceful = Scenario { faults: Faults::default(), ..scenario.clone() };
        assert!(scenario.seed % 10 > 0 || run(&peaceful).weights == report.weights, "other statistics");
    });
    ways.assert_taken(&COMMON[..6]);
    ways.assert_taken(&["superseded", "uninvited"]);
}

#[test]
fn environments_that_fail_are_restarted_at_the_same_steps_in_chaos() {
    let scenario = |seed| Scenario::chaotic(seed).with_weights_for(1 + seed % 3).fragile();
    run_all(SEEDS / 4, scenario, |scenario, report| {
        let peaceful = Scenario { faults: Faults::default(), workers: vec![100], ..scenario.clone() };
        assert!(run(&peaceful).batches == report.batches, "a batch differs from the peaceful run's");
        let &Scenario { num_slots, length, iterations, per_version, .. } = scenario;
        assert!(report.batches != calm_batches_of(num_slots, length, iterations, per_version), "no restart");
    });
}

#[test]
fn chaos_changes_no_batch_while_two_iterations_are_open() {
    let scenario = |seed| Scenario::chaotic(seed).with_weights_for(2 + seed % 9);
    let ways = run_all(SEEDS, scenario, |scenario, report| {
        let &Scenario { num_slots, length, iterations, per_version, .. } = scenario;
        assert!(report.batches == calm_batches_of(num_slots, length, iterations, per_version));
        let steps = iterations * u64::from(num_slots) * u64::from(length);
        assert_eq!((report.ledger.consumed, report.ledger.outstanding), (steps, 0));
    });
    ways.assert_taken(&COMMON);
    ways.assert_taken(&["superseded", "early", "regenerated"]);
}

#[test]
fn chaos_loses_no_step_in_asynchronous_mode() {
    let ways = run_all(SEEDS, |seed| Scenario::chaotic(seed).asynchronous(), |_, _| {});
    ways.assert_taken(&COMMON[..6]);
    ways.assert_taken(&["stale", "dropped_stale", "regenerated"]);
}

#[test]
fn chaos_loses_no_step_under_deadlines() {
    let ways = run_all(SEEDS, |seed| Scenario::chaotic(seed).with_deadlines(), |_, _| {});
    ways.assert_taken(&COMMON[..6]);
    ways.assert_taken(&["stale", "regenerated"]);
}

#[test]
fn journal_replays_the_same_batches_with_any_workers() {
    for seed in seeds(SEEDS / 4) {
        let _on_failure = Seed(seed);
        let of_mode = |scenario: Scenario| match seed % 2 {
            0 => scenario.asynchronous(),
            _ => scenario.with_deadlines(),
        };
        let first = of_mode(Scenario::chaotic(seed));
        let original = run(&first);
        // The same run, but with other workers, other slots per lease and other faults.
        let other = Scenario::chaotic(seed + 1_000_000);
        let mut again = Scenario { workers: other.workers, faults: other.faults, ..first };
        again.max_slots_per_lease = other.max_slots_per_lease;
        again.seed = other.seed;
        // A group that replays a journal does not replay it after a restart.
        again.faults.kinds.retain(|&kind| kind != FaultKind::HubCrash);
        let replayed = SimNet::replaying(again, original.journal).run();
        assert!(replayed.batches == original.batches, "a batch differs from the journalled one");
        assert!(replayed.journal.is_empty(), "what was journalled is not journalled again");
    }
}

#[test]
fn chaos_with_unable_workers_leases_them_nothing_and_changes_no_batch() {
    let scenario = |seed| {
        let mut scenario = Scenario::chaotic(seed);
        scenario.faults.unable = 500;
        scenario
    };
    let unable = std::cell::Cell::new(0);
    let ways = run_all(SEEDS / 4, scenario, |scenario, report| {
        let calm = calm_batches(scenario.num_slots, scenario.length, scenario.iterations);
        assert!(report.batches == calm, "a batch differs from the calm run's");
        unable.set(unable.get() + report.log.matches("cannot run this, and gets no lease of it").count());
    });
    ways.assert_taken(&["superseded", "timed_out", "left"]);
    assert!(seeds(SEEDS).count() < 300 || unable.get() > 50, "{}", unable.get());
    for mode in [Scenario::asynchronous, Scenario::with_deadlines] {
        run_all(SEEDS / 10, |seed| mode(scenario(seed)), |_, _| {});
    }
}

#[test]
fn crashed_hub_resumes_bit_identically() {
    for seed in seeds(SEEDS / 10) {
        let _on_failure = Seed(seed);
        let calm = Scenario { seed, save_every: 1 + seed as usize % 3, ..Scenario::calm(6, 2) };
        let crashing = calm.clone().with_only(FaultKind::HubCrash, 60, Micros::from_millis(900));
        let (calm, crashed) = (run(&calm), run(&crashing));
        assert!(crashed.log.contains("the hub crashes"), "nothing was tried");
        assert!(crashed.batches == calm.batches);
        assert_eq!(Ledger { regenerated: 0, ..crashed.ledger }, calm.ledger);
    }
}

#[test]
fn no_lease_expires_for_clock_jumps_or_a_suspended_hub() {
    for seed in seeds(SEEDS / 10) {
        for kind in [FaultKind::Clock, FaultKind::HubFreeze] {
            let _on_failure = Seed(seed);
            let mut scenario = Scenario { seed, ..Scenario::calm(6, 3) }.with_only(kind, 500, Micros::from_secs(20));
            scenario.workers.fill(20_000);
            let report = run(&scenario);
            assert_eq!(
                report.ledger.expired.total() + report.ledger.rejected.total(),
                0,
                "{kind:?}: {:?}",
                report.ledger
            );
            assert_eq!(report.batches, calm_batches(6, scenario.length, scenario.iterations));
        }
    }
}

#[test]
fn two_hundred_workers_may_all_reconnect_together() {
    for seed in seeds(3) {
        let _on_failure = Seed(seed);
        let storms = |mut scenario: Scenario| {
            (scenario.seed, scenario.iterations) = (seed, 6);
            scenario.workers.fill(5_000);
            scenario.with_only(FaultKind::Storm, 300, Micros::from_secs(5))
        };
        let synchronous = storms(Scenario::calm(256, 200));
        assert_eq!(run(&synchronous).batches, calm_batches(256, synchronous.length, 6));
        run(&storms(Scenario::calm(256, 200).asynchronous()));
    }
}

#[test]
fn synchronous_batch_waits_for_no_unneeded_straggler() {
    let time = |mode| {
        let mut scenario = Scenario::calm(8, 4);
        (scenario.mode, scenario.length) = (mode, 20);
        scenario.workers = vec![1_000, 1_000, 1_000, 300_000];
        (scenario.faults.until, scenario.per_version) = (Micros(0), 1_000);
        run(&scenario).finished_at.0
    };
    let asynchronous = time(SamplingMode::Asynchronous { batch_env_steps: 8 * 20, max_staleness: 1 });
    let deadline = time(SamplingMode::Deadline { after: Micros::from_millis(60), max_staleness: 1 });
    // 20 batches of 160 env steps by three workers, which do 3,000 of them per second, with 20 ms between two batches.
    assert!(asynchronous < 1_600_000, "{asynchronous} us");
    assert!(deadline < 20 * 85_000, "{deadline} us");
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
    // The learner takes 20 ms for a batch, as do the workers for an iteration, so that no worker waits.
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
        let chaotic = Scenario::chaotic(seed);
        for scenario in [chaotic.clone(), chaotic.clone().asynchronous(), chaotic.with_deadlines()] {
            assert_eq!(run(&scenario).log, run(&scenario).log);
        }
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
