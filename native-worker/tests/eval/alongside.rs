//! Runs whose evaluation does not work.

use std::{
    env,
    ffi::OsStr,
    fs,
    num::NonZeroU32,
    os::unix::{fs::symlink, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode, exit},
    thread,
    time::Duration,
};

use rollmesh::{
    Registry,
    checkpoint::PolicyCheckpoint,
    eval::{EvalMakers, EvalWorker},
    hub::Hub,
    kernels::AUTO,
    main_with, native,
    train::{EvaluationConfig, EvaluationCounts, RunConfig, RunEnd, RunRequest},
};
use rollmesh_core::evaluation::{Earlier, EvaluationRequest};
use serde_json::{Value, json};

use super::{contract::result, hub::config, lab::registry};

/// Runs `rollmesh` if this program was started under one of these names: with a lab, or one whose evaluation processes
/// fail.
pub(crate) fn be_another_program() -> Option<ExitCode> {
    let arguments: Vec<_> = env::args_os().collect();
    let (program, command) = (arguments.first()?, arguments.get(1)?);
    match (Path::new(program).file_name().and_then(OsStr::to_str), command.to_str()) {
        (Some("hangs"), Some("eval-engine")) => loop {
            thread::park();
        },
        (Some("crashes"), Some("eval-engine")) => {
            eprintln!("out of luck");
            exit(7);
        }
        (Some("hangs" | "crashes"), _) => {
            panic!("{}", Command::new(env!("CARGO_BIN_EXE_rollmesh")).args(&arguments[1..]).exec());
        }
        (Some("lab"), _) => Some(main_with(registry())),
        _ => None,
    }
}

pub(crate) fn program(dir: &Path, name: &str) -> PathBuf {
    let program = dir.join(name);
    symlink(env::current_exe().unwrap(), &program).unwrap();
    program
}

/// Returns the lines of a run's metrics: of its iterations, and of its evaluations.
fn metrics(run: &Path) -> (Vec<Value>, Vec<Value>) {
    let text = fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    let whole = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    whole.partition(|line| line["evaluation"].is_null())
}

pub(crate) fn evaluation_settings_need_an_interval() {
    // As everywhere, --set overrides other flags.
    let never = ["--evaluation-interval", "1", "--set", "evaluation.interval=0"];
    for (flag, more) in
        [("--evaluation-episodes", &[][..]), ("--evaluation-timeout", &[]), ("--evaluation-episodes", &never)]
    {
        let mut train = Command::new(env!("CARGO_BIN_EXE_rollmesh"));
        let train = train.args(["train", "--env", "CartPole-v1", "--no-dashboard", flag, "5"]).args(more);
        let output = train.output().unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), words.contains("without --evaluation-interval")), (Some(2), true), "{words}");
    }
}

fn run(interval: u64, max_env_steps: u64) -> RunRequest {
    let run = RunConfig::new("CartPole-v1").num_workers(1).num_envs(4).fcnet_hiddens(&[8]).stop_after(max_env_steps);
    let evaluation = EvaluationConfig { interval, ..EvaluationConfig::default() };
    RunConfig { evaluation, ..run.rollout_fragment_length(16) }.into()
}

pub(crate) fn failing_evaluations_do_not_stop_a_run() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let hub = |name| runtime.block_on(Hub::start(config(&program(dir.path(), name)), &Registry::builtin())).unwrap();
    let mut hangs = hub("hangs");
    let mut crashes = hub("crashes");
    runtime.block_on(async {
        let disturbed = hangs.train(run(1, 1_000)).await.unwrap().await.unwrap();
        let plain = hangs.train(run(0, 1_000)).await.unwrap().await.unwrap();
        assert_eq!((&disturbed.end, disturbed.weights_hash), (&RunEnd::Finished, plain.weights_hash));
        let first_notice = loop {
            let notice = hangs.next_notice().await.unwrap();
            if notice.text.contains("evaluation") {
                break notice.text;
            }
        };
        assert!(
            first_notice.starts_with("no evaluation had finished when the run ended, 1 had begun: "),
            "{first_notice}"
        );

        let summary = crashes.train(run(1, u64::MAX)).await.unwrap();
        let first_notice = loop {
            let notice = crashes.next_notice().await.unwrap();
            if notice.text.contains("evaluation") {
                break notice;
            }
        };
        let words = "the evaluation worker cannot begin: its process failed: exit code 7: out of luck";
        assert_eq!((first_notice.level, &*first_notice.text), (1, words));
        let mut status = crashes.status();
        let before = status.current().env_steps;
        status.wait_for(|status| status.env_steps > before + 500).await.unwrap();
        crashes.stop_run().await;
        assert_eq!(summary.await.unwrap().end, RunEnd::Stopped);
        hangs.shutdown().await;
        crashes.shutdown().await;
    });
}

/// Lets the environment itself fail, in its third step.
pub(crate) fn an_environment_that_fails_in_an_evaluation_is_reported_and_the_next_one_arrives() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "lab");
    runtime.block_on(async {
        let mut hub = Hub::start(config(&program), &registry()).await.unwrap();
        for (does, words) in [("hang", "was given up: nothing has moved for 2000 ms"), ("abort", "the lab burns")] {
            let once = dir.path().join(does);
            let settings = json!({ "does": does, "only_in": "eval-engine", "once": once });
            let run_dir = dir.path().join(format!("{does}-run"));
            let (timeout_s, interval) = (NonZeroU32::new(2).unwrap(), 2);
            let mut request = RunRequest {
                run_dir: Some(run_dir.clone()),
                // The evaluation has the lowest priority.
                throttle: Duration::from_millis(20),
                ..run(0, u64::MAX)
            };
            request.config.rollout.env = Some("Lab-v0".into());
            request.config.rollout.env_config = settings.to_string().parse().unwrap();
            request.config.evaluation = EvaluationConfig { interval, timeout_s, ..EvaluationConfig::default() };
            let summary = hub.train(request.clone()).await.unwrap();
            while !hub.next_notice().await.unwrap().text.contains(words) {}
            let iterations_at_notice = metrics(&run_dir).0.len() as u64;
            while metrics(&run_dir).1.is_empty() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            hub.stop_run().await;
            let disturbed = summary.await.unwrap();
            let (iterations, evaluations) = metrics(&run_dir);
            let EvaluationCounts { due, done, skipped, failed } = disturbed.evaluations;
            assert_eq!((due, done), (disturbed.iterations / 2, evaluations.len() as u64), "{does}");
            assert!(failed > 0 && skipped == due - done - failed, "{does}: {skipped} skipped, {failed} failed");
            assert!(once.exists() && iterations.len() as u64 >= iterations_at_notice, "{does}");
            assert_eq!(evaluations[0]["evaluation"]["episode_return_mean"], 5.0);

            request.config.evaluation.interval = 0;
            request.config.stop.env_steps = disturbed.env_steps;
            (request.run_dir, request.throttle) = (None, Duration::ZERO);
            let plain = hub.train(request).await.unwrap().await.unwrap();
            assert_eq!((plain.end, plain.weights_hash), (RunEnd::Finished, disturbed.weights_hash), "{does}");
        }
        hub.shutdown().await;
    });
}

/// Lets the environment fail only when it is drawn: the evaluation has its result, and from then on no pictures.
pub(crate) fn an_environment_whose_render_fails_is_evaluated_without_pictures() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "lab");
    runtime.block_on(async {
        let mut hub = Hub::start(config(&program), &registry()).await.unwrap();
        for (does, words) in
            [("hang", "nothing has moved for 2000 ms"), ("abort", "the lab burns"), ("panic", "a mouse")]
        {
            let settings = json!({ "does": format!("render_{does}"), "only_in": "eval-engine" });
            let run_dir = dir.path().join(format!("{does}-drawn"));
            let throttle = Duration::from_millis(20);
            let mut request = RunRequest { run_dir: Some(run_dir.clone()), throttle, ..run(0, u64::MAX) };
            request.config.rollout.env = Some("Lab-v0".into());
            request.config.rollout.env_config = settings.to_string().parse().unwrap();
            let timeout_s = NonZeroU32::new(if does == "hang" { 2 } else { 60 }).unwrap();
            let evaluation = EvaluationConfig { interval: 2, timeout_s, render: true, ..EvaluationConfig::default() };
            request.config.evaluation = evaluation;
            let summary = hub.train(request).await.unwrap();
            let notice = loop {
                let notice = hub.next_notice().await.unwrap();
                if notice.text.contains("evaluation") {
                    break notice.text;
                }
            };
            assert!(notice.starts_with("evaluations have no more pictures") && notice.contains(words), "{notice}");
            while metrics(&run_dir).1.len() < 2 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            hub.stop_run().await;
            assert_eq!(summary.await.unwrap().end, RunEnd::Stopped);
            for line in metrics(&run_dir).1 {
                let evaluation = &line["evaluation"];
                assert!(evaluation["episode_return_mean"] == 5.0 && evaluation["gif"].is_null(), "{evaluation}");
            }
        }
        hub.shutdown().await;
    });
}

/// Runs a program to its end; returns the object that it prints, and its other output.
fn finished(program: &Path, args: &[&str]) -> (Value, String) {
    let output = Command::new(program).args(args).output().unwrap();
    let words = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{words}");
    (serde_json::from_slice(&output.stdout).unwrap(), words)
}

/// Checks a run from files, which has neither workers nor a hub, and is equally isolated from its evaluations.
pub(crate) fn run_from_files_learns_all_rows_if_evaluations_fail() {
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "lab");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let rollmesh = |args: &[&str]| finished(&program, args);
    let samples = path("samples");
    // Twenty rows a line.
    #[rustfmt::skip]
    rollmesh(&[
        "sample", "--env", "Lab-v0", "--env-steps", "200", "--num-envs", "2", "--rollout-fragment-length", "10", "--output",
        &samples, "--json",
    ]);
    let learn = |does: &str, once: bool, more: &[&str]| {
        let mut settings = json!({ "does": does, "only_in": "eval-engine" });
        if once {
            settings["once"] = path(does).into();
        }
        let settings = settings.to_string();
        let run = path(&format!("{does}-{once}-{}", more.join("-")));
        #[rustfmt::skip]
        let args = [
            "train", "--env", "Lab-v0", "--env-config", &settings, "--input", &samples, "--train-batch-size", "20",
            "--hidden", "8", "--run-dir", &run, "--json",
        ];
        let (summary, words) = rollmesh(&[&args[..], more].concat());
        let warnings = words.lines().map(str::to_owned);
        (summary, warnings.collect::<Vec<_>>(), metrics(run.as_ref()))
    };
    let (plain, warnings, (iterations, evaluations)) =
        learn("nothing", false, &["--max-env-steps", "200", "--evaluation-episodes", "0"]);
    assert_eq!((&plain["env_steps"], iterations.len(), evaluations.len()), (&200.into(), 10, 0));
    assert!(warnings.is_empty() && plain["evaluation"].is_null(), "{warnings:?}");
    #[rustfmt::skip]
    let often = |env_steps, every, timeout| {
        [
            "--max-env-steps", env_steps, "--evaluation-interval", every, "--evaluation-episodes", "2",
            "--evaluation-timeout", timeout,
        ]
    };
    for (does, once, words) in [
        // The run waits for it once, and at its end.
        ("hang", false, "nothing has moved for 2000 ms"),
        ("hang", true, "nothing has moved for 2000 ms"),
        ("abort", false, "the lab burns"),
        ("abort", true, "the lab burns"),
    ] {
        // Only a hung evaluation may reach its timeout, however busy the machine is.
        let timeout = if does == "hang" { "2" } else { "60" };
        let (summary, warnings, (iterations, evaluations)) = learn(does, once, &often("200", "2", timeout));
        assert_eq!((&summary["weights_hash"], iterations.len()), (&plain["weights_hash"], 10), "{does}");
        let (given_up, none_finished): (Vec<_>, Vec<_>) = warnings.iter().partition(|line| line.contains(words));
        assert_eq!((given_up.is_empty(), none_finished.len()), (false, usize::from(!once)), "{warnings:?}");
        assert!(none_finished.iter().all(|line| line.starts_with("no evaluation had finished")), "{warnings:?}");
        match (does, once) {
            (_, false) => assert!(evaluations.is_empty() && summary["evaluation"].is_null(), "{evaluations:?}"),
            (_, true) => {
                let updates: Vec<u64> =
                    evaluations.iter().filter_map(|line| line["evaluation"]["iteration"].as_u64()).collect();
                assert!(updates.ends_with(&[10]) && (does == "hang" || updates == [4, 6, 8, 10]), "{updates:?}");
                assert_eq!(summary["evaluation"], evaluations.last().unwrap()["evaluation"]);
                assert_eq!(
                    (&summary["evaluation"]["episode_return_mean"], &summary["evaluation"]["episodes"]),
                    (&5.0.into(), &2.into())
                );
            }
        }
    }
    // However many would have to wait, the run does not.
    let (summary, warnings, (iterations, _)) = learn("hang", false, &often("2000", "1", "2"));
    assert_eq!((&summary["env_steps"], iterations.len()), (&2000.into(), 100));
    assert!(warnings.len() < 50, "{warnings:?}");
}

pub(crate) fn policy_of_a_wrapped_game_is_evaluated_in_the_wrappers() {
    let dir = tempfile::tempdir().unwrap();
    let program = program(dir.path(), "lab");
    let [samples, run] = ["samples", "run"].map(|name| dir.path().join(name).display().to_string());
    #[rustfmt::skip]
    finished(&program, &[
        "sample", "--env", "ALE/Game-v0", "--env-steps", "16", "--num-envs", "1", "--rollout-fragment-length", "16", "--hidden", "4",
        "--output", &samples, "--json",
    ]);
    #[rustfmt::skip]
    let (learned, words) = finished(&program, &[
        "train", "--env", "ALE/Game-v0", "--input", &samples, "--train-batch-size", "16", "--max-env-steps", "16", "--hidden", "4",
        "--evaluation-episodes", "2", "--run-dir", &run, "--json",
    ]);
    assert!(!words.contains("warning"), "{words}");
    assert_eq!(learned["evaluation"]["episodes"], 2);
    // Up to thirty of its forty frames pass before an episode begins.
    let mean = learned["evaluation"]["episode_return_mean"].as_f64().unwrap();
    assert!((10.0..40.0).contains(&mean), "{mean}");
    let (evaluated, _) = finished(&program, &["evaluate", "--checkpoint", &run, "--episodes", "2", "--json"]);
    assert_eq!(evaluated["episode_return_mean"], mean);
    #[rustfmt::skip]
    let (judged, _) = finished(&program, &[
        "ope", "--input", &samples, "--policy", &run, "--estimator", "is", "--json",
    ]);
    assert!(judged["estimates"].is_object() || judged["estimates"].is_array(), "{judged}");
}

/// Checks that actions of a run without normalised ones are not scaled in its evaluations either: alongside it, and
/// from its directory.
pub(crate) fn evaluation_takes_actions_as_the_run_does() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (program, run_dir) = (program(dir.path(), "lab"), dir.path().join("run"));
    let mut request = RunRequest { run_dir: Some(run_dir.clone()), ..run(1, u64::MAX) };
    // Steps too small for any weight to become another number, so that all evaluations are of the same policy.
    request.config = request.config.policy_config(r#"{"lr": 1e-30}"#.parse().unwrap());
    request.config.rollout.env = Some("Pendulum-v1".into());
    request.config.rollout.normalize_actions = false;
    request.config.evaluation.episodes = 2;
    runtime.block_on(async {
        let hub = Hub::start(config(&program), &registry()).await.unwrap();
        let mut status = hub.status();
        let summary = hub.train(request).await.unwrap();
        while metrics(&run_dir).1.is_empty() {
            status.changed().await.unwrap();
        }
        hub.stop_run().await;
        summary.await.unwrap();
        hub.shutdown().await;
    });
    let alongside = metrics(&run_dir).1[0]["evaluation"]["episode_return_mean"].as_f64();
    let path = run_dir.display().to_string();
    let (later, _) = finished(&program, &["evaluate", "--checkpoint", &path, "--episodes", "2", "--json"]);
    assert_eq!(later["episode_return_mean"].as_f64(), alongside);

    let PolicyCheckpoint { mut run, weights, .. } = PolicyCheckpoint::load(&run_dir).unwrap();
    run.evaluation.num_envs = 2;
    let evaluated = [false, true].map(|normalize_actions| {
        run.rollout.normalize_actions = normalize_actions;
        let makers = EvalMakers::of_run(&run, &native(Registry::builtin()), AUTO).unwrap();
        let mut worker = EvalWorker::in_thread(makers).unwrap();
        let episodes = EvaluationRequest::of_episodes(NonZeroU32::new(2).unwrap(), 200);
        worker.submit_request(Some(&weights), episodes, Earlier::Cancel).unwrap();
        result(&mut worker).episode_return_mean
    });
    assert!(evaluated[0] == alongside && evaluated[1] != alongside, "{evaluated:?}, {alongside:?}");
}
