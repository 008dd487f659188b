//! The core's results compared with those of RLlib 2.9.3: `golden/conformance/` holds cases with RLlib's results, and
//! with this project's where they differ deliberately (`"fixed"` names the reason, see `docs/rllib-differences.md`).

use std::{fs, path::Path};

use rollmesh_tests::conformance::{answer, answer_in, judge::judge};
use serde_json::Value;

/// Runs all cases of an area, whose number is checked.
fn area(name: &str, cases: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/conformance");
    let path = folder.join(name).with_extension("jsonl");
    let text = fs::read_to_string(&path).expect("the cases are in the repository");
    let mut failures = Vec::new();
    for line in text.lines() {
        let mut case: Value = serde_json::from_str(line).expect("a case is JSON");
        if let Some(file) = case["expect"]["ok_file"].as_str() {
            let expected = fs::read_to_string(folder.join(file)).expect("expected values are in the repository");
            case["expect"]["ok"] = serde_json::from_str(&expected).expect("expected values are JSON");
        }
        let answer: Value = serde_json::from_str(&answer_in(&folder, line)).expect("an answer is JSON");
        assert_eq!(answer["id"], case["id"]);
        if let Err(difference) = judge(&case, &answer) {
            failures.push(format!("{} ({}): {difference}", case["id"], case["op"]));
        }
    }
    assert!(failures.is_empty(), "{} of {} fail:\n{}", failures.len(), cases, failures.join("\n"));
    assert_eq!(text.lines().count(), cases);
}

macro_rules! areas {
    ($($name:ident: $cases:literal,)+) => {
        $(#[test]
        fn $name() {
            area(stringify!($name), $cases);
        })+
    };
}

areas! {
    actions: 20,
    batch: 157,
    data_bin: 13,
    data_json: 55,
    filter: 28,
    multi_agent: 44,
    ope: 24,
    policy_map: 14,
    postprocess: 44,
    sampler: 61,
    sequencing: 17,
    views: 15,
    worker: 17,
}

#[test]
fn an_operation_that_is_not_there_is_an_error() {
    let answer: Value = serde_json::from_str(&answer(r#"{"id": "x", "op": "nothing.run"}"#)).unwrap();
    assert_eq!(answer["err"], "unknown_operation");
    assert_eq!(answer["id"], "x");
}

#[test]
fn a_case_that_makes_no_sense_is_an_error() {
    for line in ["{", r#"{"id": 1, "op": "batch.concat"}"#, r#"{"id": 1, "op": "filter.ops", "in": {"ops": 3}}"#] {
        let answer: Value = serde_json::from_str(&answer(line)).unwrap();
        assert_eq!(answer["err"], "bad_case", "{line}");
    }
}
