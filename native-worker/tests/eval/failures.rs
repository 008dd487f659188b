//! Each failure is reported once, and does not affect the next evaluation.

use std::{
    fs,
    num::NonZeroU32,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rollmesh::{
    eval::{EvalMakers, EvalNames, EvalWorker, EvalWorkerError, InitSpec},
    kernels::AUTO,
    native,
    train::RunConfig,
};
use rollmesh_core::{
    env::{EnvContext, EnvMaker, EnvStart, InProcess},
    evaluation::{Evaluator, EvaluatorOptions},
    ids::{HomeIndex, SlotId, WeightsVersion},
    policy::{NetPolicy, Policy as _, PolicyContext},
    weights::Weights,
    worker::RegisteredEnv,
};
use serde_json::json;

use super::{
    contract::{LONG, result},
    lab::{lab, one, registry},
    names::in_other_process,
};

pub(crate) fn hung_engine_is_given_up_once_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    // Long enough for a process to begin, however busy the machine.
    const LIMIT_MS: u64 = 3_000;
    let run = |name: &str| {
        let mut run = lab(json!({ "does": "hang", "once": dir.path().join(name) }));
        run.evaluation.timeout_s = NonZeroU32::new(3).unwrap();
        run
    };
    let makers = EvalMakers::of_run(&run("thread"), &native(registry()), AUTO).unwrap();
    let workers = [
        EvalWorker::in_thread_with(makers, Duration::from_millis(LIMIT_MS)).unwrap(),
        EvalWorker::in_process(&run("process")).unwrap(),
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

pub(crate) fn abandoned_hung_evaluation_delays_no_other() {
    let dir = tempfile::tempdir().unwrap();
    // Longer than the test waits, as that of a process is by default.
    const LIMIT: Duration = Duration::from_secs(600);
    let hangs = lab(json!({ "does": "hang", "once": dir.path().join("once") }));
    let makers = EvalMakers::of_run(&hangs, &native(registry()), AUTO).unwrap();
    let process = lab(json!({ "does": "hang", "once": dir.path().join("again"), "pid": dir.path().join("pid") }));
    let thread = EvalWorker::in_thread_with(makers, LIMIT).unwrap();
    for (mut worker, marker) in [(thread, "once"), (EvalWorker::in_process(&process).unwrap(), "pid")] {
        worker.submit(None, 100, true, true).unwrap();
        while !dir.path().join(marker).exists() {
            assert_eq!(worker.poll(Duration::from_millis(10)), Ok(None));
        }
        let second = worker.submit(None, 100, true, true).unwrap();
        let (about, found) = worker.poll_ticket(LONG).unwrap();
        assert_eq!((about, found.unwrap().reward()), (Some(second), 5.0));
        assert_eq!(worker.poll(Duration::ZERO), Ok(None));
    }
    until_exited(&pids(dir.path()));
}

pub(crate) fn crashed_engine_is_reported_once_and_replaced() {
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

pub(crate) fn weights_are_kept_if_the_process_ends() {
    let dir = tempfile::tempdir().unwrap();
    let registry = registry();
    let RegisteredEnv::SingleAgent(env) = registry.env("Lab-v0").unwrap() else { unreachable!() };
    let context = EnvContext::new(HomeIndex { worker_index: 0, vector_index: 0 });
    let start = EnvStart { slot: SlotId(0), episode: 0, context };
    let env = InProcess::new(EnvMaker::single_agent(&env, AUTO), vec![start], 7).unwrap();
    let spaces = Evaluator::policy_spaces(&env, &EvaluatorOptions::default()).unwrap();
    let policy = NetPolicy::for_context(&PolicyContext::new(spaces, 3, AUTO)).unwrap();
    let weights = policy.weights().with_version(WeightsVersion(9));

    let settings = json!({ "does": "abort", "once": dir.path().join("once") });
    let net = one("Lab-v0", "net").env_config(settings.to_string().parse().unwrap());
    let mut worker = EvalWorker::in_process(&net).unwrap();
    worker.submit(Some(&weights), 100, true, true).unwrap();
    assert!(matches!(worker.poll(LONG), Err(EvalWorkerError::Ended(_))));
    worker.submit(None, 100, true, true).unwrap();
    assert_eq!(result(&mut worker).weights_version, WeightsVersion(9));
    // Those that the policy does not take do not count.
    let none = Weights::new(WeightsVersion(10), Vec::new()).unwrap();
    worker.submit(Some(&none), 100, true, true).unwrap();
    assert!(matches!(worker.poll(LONG), Err(EvalWorkerError::Weights(_))));
    worker.submit(None, 100, true, true).unwrap();
    assert_eq!(result(&mut worker).weights_version, WeightsVersion(9));
}

pub(crate) fn failed_setup_is_reported_at_the_first_poll() {
    let begun_by = |name: &str| {
        let mut run = lab(json!({}));
        run.evaluation.init = Some(InitSpec { name: name.into(), ..InitSpec::default() });
        run
    };
    let cases = [
        (begun_by("fail"), "its init function failed: fail failed: no device"),
        (lab(json!({ "does": "refuse" })), "its environment failed: the environment failed: closed today"),
        (one("Lab-v0", "unknown"), "its policy failed: there is no kind of policy 'unknown'"),
        (begun_by("unknown"), "its init function failed: there is no init function"),
        (RunConfig::new("Nowhere-v0"), "its environment failed: there is no environment 'Nowhere-v0'"),
    ];
    for (run, words) in cases {
        let mut worker = EvalWorker::in_process(&run).unwrap();
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
    let processes = pids(dir.path());
    assert!(processes.len() == 2 && processes.iter().all(|&pid| is_alive(pid)));
    worker.shutdown();
    assert!(!is_alive(processes[0]));
    until_exited(&processes);
    // Nor one whose worker ends without a message.
    in_other_process("abandon", dir.path());
    until_exited(&pids(dir.path()));
    // Nor one of a worker with a name.
    let names = EvalNames::new(dir.path());
    fs::remove_file(dir.path().join("pid")).unwrap();
    let mut worker = names.create("hanging", &lab(json!({ "does": "hang", "pid": dir.path().join("pid") }))).unwrap();
    worker.submit(None, 100, true, true).unwrap();
    while !dir.path().join("pid").exists() {
        assert_eq!(worker.poll(Duration::from_millis(10)), Ok(None));
    }
    let processes = pids(dir.path());
    worker.shutdown();
    assert!(!is_alive(processes[0]));
    until_exited(&processes);
}

pub(crate) fn until_exited(processes: &[u32]) {
    let end = Instant::now() + LONG;
    while processes.iter().any(|&pid| is_alive(pid)) {
        assert!(Instant::now() < end, "one of the processes {processes:?} continues");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Starts a worker, and returns it in the middle of an evaluation that hangs.
pub(crate) fn hanging(dir: &Path) -> EvalWorker {
    let _ = fs::remove_file(dir.join("pid"));
    let mut worker = EvalWorker::in_process(&lab(json!({ "does": "hang", "pid": dir.join("pid") }))).unwrap();
    worker.submit(None, 100, true, true).unwrap();
    while !dir.join("pid").exists() {
        assert_eq!(worker.poll(Duration::from_millis(10)), Ok(None));
    }
    worker
}

pub(crate) fn pids(dir: &Path) -> Vec<u32> {
    let pids = fs::read_to_string(dir.join("pid")).unwrap();
    pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Returns true for a process that has not ended, whether or not it has been reaped.
fn is_alive(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}
