//! `rollmesh schema`.

use std::process::Command;

/// After a change of a setting: `rollmesh schema > native-worker/tests/golden/schema.json`.
#[test]
fn schema_command_prints_the_golden_schema() {
    let output = Command::new(env!("CARGO_BIN_EXE_rollmesh")).arg("schema").output().unwrap();
    assert!(output.status.success());
    let (printed, golden) = (String::from_utf8(output.stdout).unwrap(), include_str!("golden/schema.json"));
    for (at, (found, wanted)) in printed.lines().zip(golden.lines()).enumerate() {
        assert_eq!(found, wanted, "line {}", at + 1);
    }
    assert_eq!(printed.lines().count(), golden.lines().count());
}
