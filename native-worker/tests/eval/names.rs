//! Workers under names, from several processes.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    process::{Command, exit},
    time::Duration,
};

use rollmesh::eval::{EvalNames, EvalWorkerError};
use serde_json::{Value, json};

use super::{
    contract::{LONG, result},
    failures,
    lab::lab,
};

/// Set in processes that are not the tests' own, to what they do and where.
const VARIABLE: &str = "ROLLMESH_TEST_SOMEBODY_ELSE";

/// Does something with a name as another process, and ends.
pub(crate) fn be_somebody_else() {
    let Ok(job) = env::var(VARIABLE) else { return };
    let (what, dir) = job.split_once(' ').unwrap();
    let names = EvalNames::new(dir);
    match what {
        "create" => {
            // Nobody shuts it down.
            std::mem::forget(names.create("lasting", &lab(json!({}))).unwrap());
        }
        "evaluate" => {
            let mut worker = names.find("shared").unwrap();
            // What others have asked for is not for this one.
            assert_eq!(worker.poll(Duration::ZERO), Ok(None));
            worker.submit(None, 100, true, true).unwrap();
            let found = result(&mut worker);
            println!("{}", json!({ "reward": found.reward(), "frames": found.frames.map(|frames| frames.shape()) }));
        }
        "abandon" => {
            std::mem::forget(failures::hanging(std::path::Path::new(dir)));
        }
        _ => unreachable!(),
    }
    exit(0);
}

pub(crate) fn somebody_else(what: &str, names: &std::path::Path) -> String {
    let job = format!("{what} {}", names.display());
    let output = Command::new(env::current_exe().unwrap()).env(VARIABLE, job).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(crate) fn others_find_a_worker_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let names = EvalNames::new(dir.path().join("names"));
    let mut worker = names.create("shared", &lab(json!({}))).unwrap();
    let file = dir.path().join("names/shared.json");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // This one's stays pending while another process asks.
    worker.submit(None, 2, true, true).unwrap();
    let other: Value = serde_json::from_str(&somebody_else("evaluate", &dir.path().join("names"))).unwrap();
    assert_eq!(other, json!({ "reward": 5.0, "frames": [5, 6, 8, 3] }));
    assert_eq!((result(&mut worker).env_steps, worker.poll(Duration::ZERO)), (2, Ok(None)));
    // And so does a second handle of this process.
    let mut again = names.find("shared").unwrap();
    again.submit(None, 3, true, true).unwrap();
    assert_eq!((result(&mut again).env_steps, worker.poll(Duration::ZERO)), (3, Ok(None)));
    again.shutdown();
    again.shutdown();
    assert!(matches!(again.submit(None, 1, true, true), Err(EvalWorkerError::Stopped)));
    // The other handle hears of it once.
    assert!(matches!(worker.poll(LONG), Err(EvalWorkerError::Io(_))));
    assert_eq!(worker.poll(Duration::ZERO), Ok(None));
    assert!(!file.exists());
}

pub(crate) fn a_worker_outlives_who_started_it() {
    let dir = tempfile::tempdir().unwrap();
    somebody_else("create", dir.path());
    let names = EvalNames::new(dir.path());
    assert_eq!(names.list(), ["lasting"]);
    let mut worker = names.find("lasting").unwrap();
    worker.submit(None, 100, true, true).unwrap();
    assert_eq!(result(&mut worker).reward(), 5.0);
    // What is gone without a word is not found.
    let address: Value = serde_json::from_str(&fs::read_to_string(dir.path().join("lasting.json")).unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(address["pid"].as_i64().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert!(worker.poll(LONG).is_err());
    assert!(matches!(names.find("lasting"), Err(EvalWorkerError::UnknownName { .. })));
    assert!(names.list().is_empty());
}

pub(crate) fn names_are_taken_once_and_free_again() {
    let dir = tempfile::tempdir().unwrap();
    let names = EvalNames::new(dir.path());
    let mut worker = names.create("one", &lab(json!({}))).unwrap();
    assert!(matches!(names.create("one", &lab(json!({}))), Err(EvalWorkerError::NameTaken(_))));
    worker.shutdown();
    let mut worker = names.create("one", &lab(json!({}))).unwrap();
    worker.submit(None, 1, true, true).unwrap();
    assert_eq!(result(&mut worker).env_steps, 1);
    worker.shutdown();
    for name in ["", ".", "a/b", "..", "ä", &"x".repeat(65)] {
        assert!(matches!(names.find(name), Err(EvalWorkerError::BadName(_))), "{name}");
        assert!(matches!(names.create(name, &lab(json!({}))), Err(EvalWorkerError::BadName(_))), "{name}");
    }
    // A file that says something else is nobody.
    fs::write(dir.path().join("two.json"), "{}").unwrap();
    assert!(matches!(names.find("two"), Err(EvalWorkerError::UnknownName { .. })));
}
