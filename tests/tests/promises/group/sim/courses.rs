//! Hubs and their runs under all faults at the same time: runs wait, begin, are saved, rolled back and evaluated, and
//! end, and workers are started, replaced and ended, by the rules of [`RunRules`]. The checker detects every fault that
//! is planted in the hub's shell.

use rollmesh_core::hub::RunEnd;
use rollmesh_tests::runsim::{Plant, RunEvent, RunReport, RunRules, RunScenario, RunSim};

use super::{SEEDS, Seed, seeds};

fn run(scenario: &RunScenario) -> (RunReport, Result<(), String>) {
    let report = RunSim::new(scenario.clone()).run();
    let checked = RunRules(scenario).check(&report);
    (report, checked)
}

#[test]
fn runs_keep_the_rules_under_any_faults() {
    let (mut ends, mut rollbacks, mut crashes) = ([0; 3], 0, 0);
    for seed in seeds(SEEDS) {
        let _on_failure = Seed(seed);
        let (report, checked) = run(&RunScenario::chaotic(seed));
        if let Err(broken) = checked {
            panic!("{broken}");
        }
        let end = match report.history.0.last() {
            Some((_, RunEvent::Ended(RunEnd::Finished))) => 0,
            Some((_, RunEvent::Ended(RunEnd::Stopped))) => 1,
            _ => 2,
        };
        ends[end] += 1;
        (rollbacks, crashes) = (rollbacks + report.rollbacks, crashes + report.crashes);
    }
    let is_chaos = ends.iter().all(|&runs| runs > 50) && rollbacks > 50 && crashes > 50;
    assert!(seeds(SEEDS).count() < 300 || is_chaos, "{ends:?}, {rollbacks} rollbacks, {crashes} crashes");
}

#[test]
fn checker_finds_every_fault_that_is_planted() {
    for plant in Plant::ALL {
        let mut planted = (0..200).map(|seed| RunScenario::planted(seed, plant));
        let found = planted.find(|scenario| run(scenario).1.is_err());
        let scenario = found.unwrap_or_else(|| panic!("{plant:?} is never found"));
        // Without the planted fault the run violates no rule.
        let (seed, (_, checked)) = (scenario.seed, run(&RunScenario { plant: None, ..scenario }));
        assert_eq!(checked, Ok(()), "{plant:?} was found with seed {seed}, whose run breaks a rule without it, too");
    }
}
