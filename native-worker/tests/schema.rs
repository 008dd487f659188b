//! `rollmesh schema`.

use std::{
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Command, Stdio},
};

/// Compares the schema with its golden file. After a change of a setting: `rollmesh schema >
/// native-worker/tests/golden/schema.json`.
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

#[test]
fn commands_end_silently_when_their_output_is_closed() {
    for command in
        [&["schema"][..], &["hub", "--print-limits"], &["envs", "--json"], &["policies"], &["runs", ".", "--json"]]
    {
        let (output, reader) = UnixStream::pair().unwrap();
        drop(reader);
        let mut program = Command::new(env!("CARGO_BIN_EXE_rollmesh"));
        let program = program.args(command).stdout(Stdio::from(OwnedFd::from(output))).stderr(Stdio::piped());
        let end = program.output().unwrap();
        assert_eq!((end.status.code(), String::from_utf8_lossy(&end.stderr).as_ref()), (Some(141), ""), "{command:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn full_output_device_is_reported() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let end = Command::new(env!("CARGO_BIN_EXE_rollmesh")).arg("schema").stdout(full).output().unwrap();
    let said = "error: standard output: No space left on device (os error 28)\n";
    assert_eq!((end.status.code(), String::from_utf8_lossy(&end.stderr).as_ref()), (Some(1), said));
}
