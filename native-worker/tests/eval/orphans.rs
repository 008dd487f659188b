//! Every kind of child process ends when its parent is killed.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rollmesh::eval::EvalNames;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::{
    alongside::program,
    contract::LONG,
    failures::{pids, until_exited},
    lab::lab,
};

/// Parent and child, the command, and what the settings say besides the environment that hangs.
const CASES: [(&str, &str, &str); 5] = [
    ("hub and worker", "train", "num_workers = 1"),
    ("worker and sub-environment", "train", "num_workers = 1\nnum_envs = 2\nremote_worker_envs = true"),
    ("program and sub-environment", "sample", "num_envs = 2\nremote_worker_envs = true"),
    ("hub and evaluation", "train", "num_workers = 0\nevaluation.interval = 1\nenv_config.only_in = 'eval-engine'"),
    (
        "hub and evaluation that has no thread yet",
        "train",
        "num_workers = 0\nevaluation.interval = 1\nenv_config.does = ''",
    ),
];

/// A module that every Python host imports.
const HANGING_NUMPY: &str = "
import os, time
with open(os.environ['HANGING'] + '.tmp', 'w') as file:
    file.write(str(os.getpid()))
os.rename(os.environ['HANGING'] + '.tmp', os.environ['HANGING'])
time.sleep(1000)
";

/// Checks children that hang, most with a child process of their own. In every other case the parent is stopped, too.
pub(crate) fn no_child_outlives_a_parent_that_is_killed_even_hung_or_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let lab_program = program(dir.path(), "lab");
    for (number, (name, command, settings)) in CASES.into_iter().enumerate() {
        let dir = dir.path().join(number.to_string());
        fs::create_dir(&dir).unwrap();
        let pid = dir.join("pid");
        let does = if settings.contains("does") { "" } else { "env_config.does = 'hang'\n" };
        let init =
            if does.is_empty() { "evaluation.init = { name = 'hang', arguments = { pid = 'PID' } }\n" } else { "" };
        let common = format!("env = 'Lab-v0'\nenv_config.pid = 'PID'\n{does}{init}{settings}\n");
        let file = dir.join("settings.toml");
        fs::write(&file, common.replace("PID", pid.to_str().unwrap())).unwrap();
        let mut program = Command::new(&lab_program);
        program.arg(command).arg("--config").arg(&file);
        if command == "train" {
            program.arg("--no-dashboard").arg("--run-dir").arg(dir.join("run"));
        }
        check(name, &mut program, &dir, number % 2 == 1);
    }
    python_host(&lab_program, dir.path());
    named_evaluator(dir.path());
}

/// Checks a worker that outlives the program that has created it: its evaluation ends with it.
fn named_evaluator(dir: &Path) {
    let names = EvalNames::new(dir);
    let mut worker = names.create("judge", &lab(json!({ "does": "hang", "pid": dir.join("pid") }))).unwrap();
    worker.submit(None, 100, true, true).unwrap();
    wait_for(&dir.join("pid"), "named evaluator and evaluation");
    let address: Value = serde_json::from_str(&fs::read_to_string(dir.join("judge.json")).unwrap()).unwrap();
    let root = address["pid"].as_u64().unwrap().try_into().unwrap();
    kill_parent(root, pids(dir)[0], true);
}

fn python_host(program: &Path, dir: &Path) {
    let dir = dir.join("python");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("numpy.py"), HANGING_NUMPY).unwrap();
    let mut sample = Command::new(program);
    sample.args(["sample", "--env", "gym:Any-v0", "--python", "python3"]);
    sample.env("PYTHONPATH", &dir).env("HANGING", dir.join("pid"));
    check("program and Python host", &mut sample, &dir, true);
}

/// Starts a program, kills the parent of the process that hangs, and waits for the end of all processes.
fn check(name: &str, program: &mut Command, dir: &Path, is_stopped: bool) {
    let mut root = program.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for(&dir.join("pid"), name);
    kill_parent(root.id(), pids(dir)[0], is_stopped);
    root.wait().unwrap();
}

fn kill_parent(root: u32, hung: u32, is_stopped: bool) {
    let mut family = family(root);
    assert!(family.contains(&hung), "{hung} is not of {family:?}");
    if is_stopped {
        send(hung, Signal::STOP);
    }
    let (parent, _) = parents().find(|(_, child)| *child == hung).unwrap();
    send(parent, Signal::KILL);
    // A parent that was a child itself may have been replaced.
    family.extend(self::family(root));
    send(root, Signal::KILL);
    until_exited(&Vec::from_iter(family));
}

fn wait_for(file: &Path, name: &str) {
    let begun = Instant::now();
    while !file.exists() {
        assert!(begun.elapsed() < LONG, "{name}: nothing hangs");
        thread::sleep(Duration::from_millis(10));
    }
}

fn send(pid: u32, signal: Signal) {
    // It may have ended already.
    let _ = kill_process(Pid::from_raw(pid.try_into().unwrap()).unwrap(), signal);
}

/// Returns a process with its descendants.
fn family(root: u32) -> BTreeSet<u32> {
    let mut family = BTreeSet::from([root]);
    loop {
        let before = family.len();
        family.extend(
            parents().filter(|(parent, _)| family.contains(parent)).map(|(_, child)| child).collect::<Vec<_>>(),
        );
        if family.len() == before {
            return family;
        }
    }
}

/// Returns all processes after their parents.
fn parents() -> impl Iterator<Item = (u32, u32)> {
    fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let child = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        Some((stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?, child))
    })
}
