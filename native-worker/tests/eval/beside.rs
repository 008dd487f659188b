//! Runs whose evaluation does not work.

use std::{
    env,
    ffi::OsStr,
    os::unix::{fs::symlink, process::CommandExt as _},
    path::Path,
    process::{Command, exit},
    thread,
};

use rollmesh::{
    Registry,
    hub::Hub,
    train::{EvaluationConfig, RunEnd, TrainConfig},
};

use super::hub::config;

/// As a program of one of these names this is `rollmesh`, but for the processes of evaluations.
pub(crate) fn be_a_program_that_fails() {
    let arguments: Vec<_> = env::args_os().collect();
    let (Some(program), Some(command)) = (arguments.first(), arguments.get(1)) else { return };
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
        _ => {}
    }
}

pub(crate) fn who_says_how_to_evaluate_says_how_often() {
    for flag in ["--evaluation-episodes", "--evaluation-timeout"] {
        let mut train = Command::new(env!("CARGO_BIN_EXE_rollmesh"));
        let output = train.args(["train", "--env", "CartPole-v1", "--no-dashboard", flag, "5"]).output().unwrap();
        let words = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), words.contains("without --evaluation-interval")), (Some(2), true), "{words}");
    }
}

fn run(interval: u64, max_env_steps: u64) -> TrainConfig {
    let mut config = TrainConfig {
        num_workers: 1,
        num_envs_per_worker: 4,
        hidden: vec![8],
        max_env_steps,
        evaluation: EvaluationConfig { interval, ..EvaluationConfig::default() },
        ..TrainConfig::new("CartPole-v1")
    };
    config.ppo.rollout_fragment_length = 16;
    config
}

pub(crate) fn no_evaluation_that_goes_wrong_stops_a_run() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let hub = |program: &str| {
        let program = dir.path().join(program);
        symlink(env::current_exe().unwrap(), &program).unwrap();
        runtime.block_on(Hub::start(config(&program), &Registry::builtin())).unwrap()
    };
    let hangs = hub("hangs");
    let mut crashes = hub("crashes");
    runtime.block_on(async {
        let disturbed = hangs.train(run(1, 1_000)).await.unwrap().await.unwrap();
        let plain = hangs.train(run(0, 1_000)).await.unwrap().await.unwrap();
        assert_eq!((&disturbed.end, disturbed.weights_hash), (&RunEnd::Finished, plain.weights_hash));

        let summary = crashes.train(run(1, u64::MAX)).await.unwrap();
        let told = loop {
            let notice = crashes.next_notice().await.unwrap();
            if notice.text.contains("evaluation") {
                break notice;
            }
        };
        let words = "the evaluation worker cannot begin: its process failed: exit code 7: out of luck";
        assert_eq!((told.level, &*told.text), (1, words));
        let mut status = crashes.status();
        let before = status.borrow().env_steps;
        status.wait_for(|status| status.env_steps > before + 500).await.unwrap();
        crashes.stop_run().await;
        assert_eq!(summary.await.unwrap().end, RunEnd::Stopped);
        hangs.shutdown().await;
        crashes.shutdown().await;
    });
}
