//! Tests the example as users run it.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have exited.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The group has a thread, a process and a worker that connects; with `ROLLMESH_LONG=1` the test also checks learning,
/// which needs a release build.
#[test]
fn thread_process_and_connecting_worker_sample_for_the_learner() {
    let program = env!("CARGO_BIN_EXE_rollmesh-example-worker-group");
    let mut example = Command::new(program);
    let mut example = Running(example.arg("96000").stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(example.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    let invitation = lines.next().unwrap();
    let (token, url) = invitation
        .strip_prefix("one more: ROLLMESH_TOKEN=")
        .and_then(|rest| rest.split_once(" rollmesh worker --hub "))
        .unwrap_or_else(|| panic!("{invitation}"));
    let mut worker = Command::new(program);
    worker.args(["worker", "--hub", url]).env("ROLLMESH_TOKEN", token).stderr(Stdio::null());
    let _worker = Running(worker.spawn().unwrap());
    assert!(lines.any(|line| line.contains(" of 3 workers: ")), "the worker that has connected samples, too");
    if std::env::var_os("ROLLMESH_LONG").is_some() {
        let last = lines.last().unwrap();
        let mean: f64 = last.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(mean > 60.0, "{last}");
        assert!(example.0.wait().unwrap().success());
    }
}
