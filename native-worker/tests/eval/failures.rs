//! Whatever goes wrong is told once, and the next evaluation is as if it had not been.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rollmesh::{
    eval::{EvalSpec, EvalWorker, EvalWorkerError, InitSpec},
    native,
};
use serde_json::json;

use super::{
    contract::{LONG, result},
    lab::{lab, registry},
    names::somebody_else,
};

pub(crate) fn what_hangs_is_given_up_once_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    // Long enough for a process to begin, however busy the machine.
    const LIMIT_MS: u64 = 3_000;
    let spec = |name: &str| {
        let settings = json!({ "does": "hang", "once": dir.path().join(name) });
        EvalSpec { timeout_ms: LIMIT_MS, ..lab(settings) }
    };
    let makers = spec("thread").makers(&native(registry())).unwrap();
    let workers = [
        EvalWorker::in_thread_with(makers, Duration::from_millis(LIMIT_MS)).unwrap(),
        EvalWorker::in_process(&spec("process")).unwrap(),
    ];
    let is_given_up = |mut worker: EvalWorker| {
        worker.submit(None, 100, true, true).unwrap();
        let error = worker.poll(LONG).unwrap_err();
        assert_eq!(error, EvalWorkerError::Overdue { doing: "evaluating".into(), limit_ms: LIMIT_MS });
        assert_eq!(worker.poll(Duration::ZERO), Ok(None));
        worker.submit(None, 100, true, true).unwrap();
        assert_eq!(result(&mut worker).reward(), 5.0);
    };
    thread::scope(|scope| workers.into_iter().for_each(|worker| _ = scope.spawn(move || is_given_up(worker))));
}

pub(crate) fn what_crashes_is_told_once_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    for (does, words) in [("abort", "the lab burns"), ("panic", "a mouse")] {
        let settings = json!({ "does": does, "once": dir.path().join(does) });
        let mut worker = EvalWorker::in_process(&lab(settings)).unwrap();
        let ticket = worker.submit(None, 100, true, true).unwrap();
        let (about, outcome) = worker.poll_ticket(LONG).unwrap();
        let error = outcome.unwrap_err();
        assert_eq!((about, matches!(error, EvalWorkerError::Ended(_))), (Some(ticket), does == "abort"));
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(worker.poll(Duration::ZERO), Ok(None));
        worker.submit(None, 100, true, true).unwrap();
        assert_eq!(result(&mut worker).reward(), 5.0);
    }
}

pub(crate) fn what_cannot_begin_says_so_at_the_first_poll() {
    let init = |name: &str| Some(InitSpec { name: name.into(), ..Default::default() });
    let cases = [
        (EvalSpec { init: init("fail"), ..lab(json!({})) }, "its init function failed: fail failed: no device"),
        (lab(json!({ "does": "refuse" })), "its environment failed: the environment failed: closed today"),
        (
            EvalSpec { policy: "nobody".into(), ..lab(json!({})) },
            "its policy failed: there is no kind of policy 'nobody'",
        ),
        (EvalSpec { init: init("nobody"), ..lab(json!({})) }, "its init function failed: there is no init function"),
        (EvalSpec::new("Nowhere-v0"), "its environment failed: there is no environment 'Nowhere-v0'"),
    ];
    for (spec, words) in cases {
        let mut worker = EvalWorker::in_process(&spec).unwrap();
        let error = worker.poll(LONG).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert_eq!(worker.poll(Duration::ZERO), Ok(None));
        // It is tried again, with the same end.
        worker.submit(None, 1, true, true).unwrap();
        assert!(worker.poll(LONG).is_err());
        assert_eq!(worker.poll(Duration::ZERO), Ok(None));
    }
}

pub(crate) fn no_process_outlives_its_worker() {
    let dir = tempfile::tempdir().unwrap();
    let mut worker = hanging(dir.path());
    let engine = pid(dir.path());
    assert!(is_alive(engine));
    worker.shutdown();
    assert!(!is_alive(engine));
    // Nor one whose worker ends without a word.
    somebody_else("abandon", dir.path());
    let engine = pid(dir.path());
    let end = Instant::now() + LONG;
    while is_alive(engine) {
        assert!(Instant::now() < end, "process {engine} goes on");
        thread::sleep(Duration::from_millis(10));
    }
}

/// A worker in the middle of an evaluation that hangs.
pub(crate) fn hanging(dir: &Path) -> EvalWorker {
    let _ = fs::remove_file(dir.join("pid"));
    let mut worker = EvalWorker::in_process(&lab(json!({ "does": "hang", "pid": dir.join("pid") }))).unwrap();
    worker.submit(None, 100, true, true).unwrap();
    while !dir.join("pid").exists() {
        assert_eq!(worker.poll(Duration::from_millis(10)), Ok(None));
    }
    worker
}

fn pid(dir: &Path) -> u32 {
    fs::read_to_string(dir.join("pid")).unwrap().parse().unwrap()
}

/// True for a process that has not ended, whether or not somebody has waited for its end.
fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
