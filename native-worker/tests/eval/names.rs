//! Workers under names, from several processes.

use std::{
    env, fs,
    io::Write as _,
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, exit},
    thread,
    time::Duration,
};

use rollmesh::eval::{EvalNames, EvalWorkerError};
use serde_json::{Value, json};

use super::{
    contract::{heard, result},
    failures,
    lab::lab,
};

/// Set in processes that are not the tests' own, to their task and their directory.
const VARIABLE: &str = "ROLLMESH_TEST_OTHER_PROCESS";

/// Starts a worker in a program that cannot be one, which starts its own executable.
pub(crate) fn run_program_without_child_process_entry() {
    let job = env::var(VARIABLE).unwrap_or_default();
    let Some(dir) = job.strip_prefix("forget ") else { return };
    let error = EvalNames::new(dir).create("missing", &lab(json!({}))).unwrap_err();
    let errors = fs::OpenOptions::new().create(true).append(true).open(Path::new(dir).join("errors"));
    writeln!(errors.unwrap(), "{error}").unwrap();
    exit(0);
}

pub(crate) fn program_that_forgets_to_be_a_worker_gets_an_error() {
    let dir = tempfile::tempdir().unwrap();
    in_other_process("forget", dir.path());
    let errors = fs::read_to_string(dir.path().join("errors")).unwrap();
    let errors: Vec<&str> = errors.lines().collect();
    // Two processes and no more.
    assert_eq!(errors.len(), 2, "{errors:?}");
    assert!(errors[0].contains("was to be nothing else: call rollmesh::child_process first"), "{errors:?}");
    assert!(errors[1].contains("it does not say that it is a worker"), "{errors:?}");
}

fn port(file: &Path) -> u16 {
    let address: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    address["port"].as_u64().unwrap().try_into().unwrap()
}

pub(crate) fn other_users_files_do_not_block_names() {
    let dir = tempfile::tempdir().unwrap();
    let names = EvalNames::new(dir.path());
    let mut worker = names.create("popular", &lab(json!({}))).unwrap();
    let port = port(&dir.path().join("popular.json"));
    // More than the maximum number of handles, all of them silent.
    let silent: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    let mut again = names.find("popular").unwrap();
    again.submit(None, 3, true, true).unwrap();
    assert_eq!(result(&mut again).env_steps, 3);
    drop(silent);
    worker.shutdown();
}

pub(crate) fn name_belongs_to_the_process_that_lives() {
    let dir = tempfile::tempdir().unwrap();
    let names = EvalNames::new(dir.path());
    // The file of a process that has exited, with a port that another process has by now.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let file = dir.path().join("heir.json");
    let left = json!({ "port": other.local_addr().unwrap().port(), "token": "00".repeat(16), "pid": 1 });
    for lock in [false, true] {
        fs::write(&file, left.to_string()).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        if lock {
            fs::write(dir.path().join("heir.lock"), "").unwrap();
            assert!(names.list().is_empty());
            assert!(matches!(names.find("heir"), Err(EvalWorkerError::UnknownName { .. })));
        }
    }
    // Of several that want it one gets it, and the others find that one.
    let created: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(|| names.create("heir", &lab(json!({}))))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (mut heirs, others): (Vec<_>, Vec<_>) = created.into_iter().partition(Result::is_ok);
    assert!(heirs.len() == 1 && others.iter().all(|other| matches!(other, Err(EvalWorkerError::NameTaken(_)))));
    assert_ne!(port(&file), other.local_addr().unwrap().port());
    // A file that other users can read or write is ignored.
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(names.find("heir"), Err(EvalWorkerError::UnknownName { .. })));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(names.list(), ["heir"]);
    heirs.iter_mut().flatten().for_each(|heir| heir.shutdown());
    assert!(names.list().is_empty());
}

pub(crate) fn worker_whose_parent_disappeared_exits() {
    let dir = tempfile::tempdir().unwrap();
    let worker = EvalNames::new(dir.path()).create("lost", &lab(json!({}))).unwrap();
    let address: Value = serde_json::from_str(&fs::read_to_string(dir.path().join("lost.json")).unwrap()).unwrap();
    let pid = address["pid"].as_u64().unwrap().try_into().unwrap();
    drop(dir);
    drop(worker);
    failures::until_exited(&[pid]);
}

/// Executes a task with a name as another process, and ends.
pub(crate) fn act_as_other_process() {
    let Ok(job) = env::var(VARIABLE) else { return };
    let (what, dir) = job.split_once(' ').unwrap();
    let names = EvalNames::new(dir);
    match what {
        "create" => {
            // It is not shut down.
            std::mem::forget(names.create("lasting", &lab(json!({}))).unwrap());
        }
        "evaluate" => {
            let mut worker = names.find("shared").unwrap();
            // The results of other handles' requests are not returned to this one.
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

pub(crate) fn in_other_process(what: &str, names: &std::path::Path) -> String {
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
    let other: Value = serde_json::from_str(&in_other_process("evaluate", &dir.path().join("names"))).unwrap();
    assert_eq!(other, json!({ "reward": 5.0, "frames": [5, 6, 8, 3] }));
    assert_eq!((result(&mut worker).env_steps, worker.poll(Duration::MAX)), (2, Ok(None)));
    // And so does a second handle of this process, with another reward signal.
    let mut again = names.find("shared").unwrap().with_reward_key("infos/walk/step".parse().unwrap());
    again.submit(None, 3, true, true).unwrap();
    let found = result(&mut again);
    assert_eq!((found.env_steps, found.reward(), worker.poll(Duration::ZERO)), (3, 6.0, Ok(None)));
    worker.submit(None, 3, true, true).unwrap();
    assert_eq!(result(&mut worker).reward(), 3.0);
    again.shutdown();
    again.shutdown();
    assert!(matches!(again.submit(None, 1, true, true), Err(EvalWorkerError::Stopped)));
    // The other handle is notified once.
    assert!(matches!(heard(&mut worker), EvalWorkerError::Io(_)));
    assert_eq!(worker.poll(Duration::ZERO), Ok(None));
    assert!(!file.exists());
}

pub(crate) fn worker_outlives_its_starter() {
    let dir = tempfile::tempdir().unwrap();
    in_other_process("create", dir.path());
    let names = EvalNames::new(dir.path());
    assert_eq!(names.list(), ["lasting"]);
    let mut worker = names.find("lasting").unwrap();
    worker.submit(None, 100, true, true).unwrap();
    assert_eq!(result(&mut worker).reward(), 5.0);
    // A worker that exited without a message is not found.
    let address: Value = serde_json::from_str(&fs::read_to_string(dir.path().join("lasting.json")).unwrap()).unwrap();
    let pid = rustix::process::Pid::from_raw(address["pid"].as_i64().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert!(matches!(heard(&mut worker), EvalWorkerError::Io(_)));
    assert!(matches!(names.find("lasting"), Err(EvalWorkerError::UnknownName { .. })));
    assert!(names.list().is_empty());
}

pub(crate) fn names_are_unique_and_released_when_their_worker_ends() {
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
    // A file with other content names no process.
    fs::write(dir.path().join("two.json"), "{}").unwrap();
    assert!(matches!(names.find("two"), Err(EvalWorkerError::UnknownName { .. })));
}
