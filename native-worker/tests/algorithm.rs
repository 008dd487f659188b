//! Training runs that a program executes iteration by iteration.

use std::{
    fs,
    num::NonZeroU32,
    process::{Command, Stdio},
    time::Duration,
};

use crate::{learned::Learned, support::Process};
use rollmesh::{
    Registry,
    checkpoint::PolicyCheckpoint,
    hub::{CheckpointNowError, HubConfig},
    train::{Algorithm, AlgorithmError, RunConfig, RunEnd, RunRequest},
    worker_group::{Placement, WorkerGroup},
};
use rollmesh_core::{kernels::Kernels, run::InputSource, sampler::BatchMode, time::Micros, worker::RolloutConfig};
use rollmesh_learner::{InlineRun, InlineWork};
use serde_json::json;

/// Algorithms that learn from the rows that they sample.
const ON_POLICY: [&str; 3] = ["ppo", "a2c", "pg"];

/// Returns a run of five iterations of 64 env steps.
fn config(num_workers: u32) -> RunConfig {
    config_of("ppo", num_workers)
}

fn config_of(algorithm: &str, num_workers: u32) -> RunConfig {
    let config = RunConfig::new("CartPole-v1").num_workers(num_workers).slots(4).num_envs(4).seed(5).stop_after(320);
    let rollout = config.rollout.rollout_fragment_length(16).fcnet_hiddens(&[8]);
    RunConfig { rollout, algorithm: Some(algorithm.into()), ..config }
}

fn all_steps(mut algorithm: Algorithm) -> (u64, String) {
    let mut last = 0;
    while let Some(metrics) = algorithm.step().unwrap() {
        assert_eq!((metrics.iteration, metrics.env_steps), (last + 1, (last + 1) * 64));
        last = metrics.iteration;
    }
    assert!(algorithm.step().unwrap().is_none(), "it stays over");
    let summary = algorithm.stop().unwrap();
    assert_eq!(summary.end, RunEnd::Finished);
    (last, summary.weights_hash.to_string())
}

/// Returns the weights' hash of `rollmesh train` with the same settings.
fn trained(algorithm: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run").display().to_string();
    let args = [
        "train",
        "--algo",
        algorithm,
        "--workers",
        "0",
        "--num-slots",
        "4",
        "--num-envs-per-worker",
        "4",
        "--seed",
        "5",
        "--hidden",
        "8",
        "--rollout-fragment-length",
        "16",
        "--max-env-steps",
        "320",
        "--no-dashboard",
        "--json",
        "--run-dir",
        &run_dir,
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let end = runtime.block_on(async { Process::start(args).finish_with(0).await });
    crate::support::json(&end.stdout)["weights_hash"].as_str().unwrap().to_owned()
}

#[test]
fn steps_in_this_process_and_over_worker_processes_are_the_iterations_of_train() {
    for algorithm in ON_POLICY {
        let trained = trained(algorithm);
        let alone = Algorithm::new(config_of(algorithm, 0), &Registry::builtin()).unwrap();
        assert_eq!(all_steps(alone), (5, trained.clone()), "{algorithm} in this process");
        let hub = HubConfig { worker_program: env!("CARGO_BIN_EXE_rollmesh").into(), ..HubConfig::local().unwrap() };
        let over_workers = Algorithm::on(hub, config_of(algorithm, 2), &Registry::builtin()).unwrap();
        assert_eq!(all_steps(over_workers), (5, trained), "{algorithm} over two workers");
    }
}

#[test]
fn runs_of_every_kind_learn_the_weights_of_every_other_build() {
    for trained in Learned::read().trains {
        let mut algorithm = Algorithm::new(trained.run(), &Registry::builtin()).unwrap();
        while algorithm.step().unwrap().is_some() {}
        let hash = algorithm.stop().unwrap().weights_hash.to_string();
        assert_eq!(hash, trained.weights_hash, "{:?}", trained.config);
    }
}

#[test]
fn policy_of_a_run_in_one_thread_is_that_of_train() {
    let mut run = InlineRun::new(1, config(0), &Registry::builtin(), Kernels::PORTABLE, Micros(0)).unwrap();
    while run.work(16, Micros(0)).unwrap() != InlineWork::Over {}
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("policy.json"), serde_json::to_vec(&run.policy_file()).unwrap()).unwrap();
    let weights = run.state().weights().to_safetensors().unwrap();
    fs::write(directory.path().join("weights.safetensors"), weights).unwrap();

    let run_dir = directory.path().join("run");
    let request = RunRequest { run_dir: Some(run_dir.clone()), ..config(0).into() };
    let mut algorithm = Algorithm::new(request, &Registry::builtin()).unwrap();
    while algorithm.step().unwrap().is_some() {}
    algorithm.stop().unwrap();
    assert_eq!(PolicyCheckpoint::load(&directory).unwrap(), PolicyCheckpoint::load(run_dir).unwrap());
}

#[test]
fn restored_algorithm_resumes_bit_identically() {
    let directory = tempfile::tempdir().unwrap();
    let request = RunRequest { run_dir: Some(directory.path().join("run")), ..config(0).into() };
    let mut algorithm = Algorithm::new(request, &Registry::builtin()).unwrap();
    for _ in 0..2 {
        algorithm.step().unwrap().unwrap();
    }
    let saved = algorithm.save().unwrap().to_owned();
    let policy = algorithm.policy().unwrap();
    assert_eq!((policy.iteration, policy.env_steps), (2, 128));
    let summary = algorithm.stop().unwrap();
    assert_eq!((summary.end, summary.weights_hash), (RunEnd::Stopped, policy.weights_hash()));

    let mut restored = Algorithm::restore(&saved, &Registry::builtin()).unwrap();
    assert_eq!(restored.policy().unwrap().weights_hash(), policy.weights_hash());
    assert_eq!(restored.step().unwrap().unwrap().iteration, 3);
    while restored.step().unwrap().is_some() {}
    let last = restored.policy().unwrap();
    assert_eq!(
        PolicyCheckpoint::load(restored.save().unwrap()).unwrap(),
        last,
        "a run that is over has saved its policies"
    );
    let uninterrupted = all_steps(Algorithm::new(config(0), &Registry::builtin()).unwrap()).1;
    assert_eq!(last.weights_hash().to_string(), uninterrupted);
    assert_eq!(restored.stop().unwrap().weights_hash.to_string(), uninterrupted);
}

#[test]
fn save_reports_that_last_checkpoint_of_finished_run_could_not_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let request = RunRequest { run_dir: Some(run_dir.clone()), ..config(0).into() };
    let mut algorithm = Algorithm::new(request, &Registry::builtin()).unwrap();
    algorithm.step().unwrap().unwrap();
    algorithm.save().unwrap();
    fs::remove_dir_all(run_dir.join("checkpoints")).unwrap();
    fs::write(run_dir.join("checkpoints"), "").unwrap();
    while algorithm.step().unwrap().is_some() {}
    let error = algorithm.save().unwrap_err();
    assert!(matches!(error, AlgorithmError::Checkpoint(CheckpointNowError::Failed(_))), "{error:?}");
    let summary = algorithm.stop().unwrap();
    assert_eq!((summary.end, summary.unsaved), (RunEnd::Finished, Some(error.to_string())));
}

#[test]
fn policies_are_evaluated_between_steps_without_any_trace() {
    let mut algorithm = Algorithm::new(config(0), &Registry::builtin()).unwrap();
    algorithm.step().unwrap().unwrap();
    let found = algorithm.evaluate(NonZeroU32::new(3).unwrap()).unwrap();
    assert_eq!(found.episodes.len(), 3);
    assert!(found.episode_return_mean.is_some_and(|mean| mean > 5.0));
    let undisturbed = all_steps(Algorithm::new(config(0), &Registry::builtin()).unwrap()).1;
    while algorithm.step().unwrap().is_some() {}
    assert_eq!(algorithm.stop().unwrap().weights_hash.to_string(), undisturbed);
}

/// Returns two workers with two environments each, and a local one that learns.
fn group(algorithm: &str, placement: Placement) -> WorkerGroup {
    let config = RolloutConfig::new("CartPole-v1").num_envs(2).rollout_fragment_length(8).seed(5);
    let config = RolloutConfig { train_batch_size: 64, ..config.single_policy(algorithm) };
    WorkerGroup::builder(config).num_workers(2).placement(placement).build().unwrap()
}

fn processes() -> Placement {
    Placement::processes_of(env!("CARGO_BIN_EXE_rollmesh"))
}

#[test]
fn groups_of_threads_and_of_processes_learn_the_same() {
    let over = |algorithm, placement| {
        let run = RunConfig::default().stop_after(320);
        all_steps(Algorithm::over(group(algorithm, placement), run, &Registry::builtin()).unwrap())
    };
    let mut hashes = Vec::new();
    for algorithm in ON_POLICY {
        let (iterations, hash) = over(algorithm, Placement::Threads);
        assert_eq!(over(algorithm, processes()), (iterations, hash.clone()), "{algorithm}");
        assert!(iterations == 5 && !hashes.contains(&hash), "{algorithm}");
        hashes.push(hash);
    }
}

#[test]
fn group_of_workers_that_connect_learns_the_same() {
    for algorithm in ON_POLICY {
        let run = || RunConfig::default().stop_after(320);
        let over = |group| Algorithm::over(group, run(), &Registry::builtin()).unwrap();
        let mut remote = group(algorithm, Placement::Remote);
        let (url, token) = (remote.worker_url().unwrap(), remote.worker_token().unwrap().to_hex());
        let start = || {
            let mut worker = Command::new(env!("CARGO_BIN_EXE_rollmesh"));
            worker.args(["worker", "--hub", &url]).env("ROLLMESH_TOKEN", &token).stderr(Stdio::null()).spawn().unwrap()
        };
        let workers = [start(), start()];
        assert!(remote.wait_for_workers(2, Duration::from_secs(60)).unwrap());
        assert_eq!(all_steps(over(remote)), all_steps(over(group(algorithm, Placement::Threads))), "{algorithm}");
        for mut worker in workers {
            assert!(worker.wait().unwrap().success());
        }
    }
}

#[test]
fn run_over_group_resumes_bit_identically() {
    let directory = tempfile::tempdir().unwrap();
    let run = RunConfig::default().stop_after(320);
    let calm =
        all_steps(Algorithm::over(group("ppo", Placement::Threads), run.clone(), &Registry::builtin()).unwrap()).1;
    let request = RunRequest { run_dir: Some(directory.path().join("run")), ..run.into() };
    let mut algorithm = Algorithm::over(group("ppo", Placement::Threads), request, &Registry::builtin()).unwrap();
    for _ in 0..2 {
        algorithm.step().unwrap().unwrap();
    }
    let saved = algorithm.save().unwrap().to_owned();
    // Two more iterations are lost.
    algorithm.step().unwrap().unwrap();
    drop(algorithm);
    let mut resumed = Algorithm::restore_over(group("ppo", processes()), saved, &Registry::builtin()).unwrap();
    while resumed.step().unwrap().is_some() {}
    assert_eq!(resumed.stop().unwrap().weights_hash.to_string(), calm);
}

/// Checks fragments of whole episodes, which differ in length: episodes of other environments are open between two of them.
#[test]
fn resumed_run_over_group_that_loses_open_episodes_is_not_reproducible() {
    let group = || {
        let config =
            RolloutConfig::new("CartPole-v1").num_envs(2).rollout_fragment_length(8).seed(5).single_policy("pg");
        let config = RolloutConfig { train_batch_size: 64, batch_mode: BatchMode::CompleteEpisodes, ..config };
        WorkerGroup::builder(config).num_workers(2).placement(Placement::Threads).build().unwrap()
    };
    let directory = tempfile::tempdir().unwrap();
    let run = RunConfig::default().stop_after(2_000);
    let request = RunRequest { run_dir: Some(directory.path().join("run")), ..run.into() };
    let mut algorithm = Algorithm::over(group(), request, &Registry::builtin()).unwrap();
    algorithm.step().unwrap().unwrap();
    let saved = algorithm.save().unwrap().to_owned();
    drop(algorithm);
    let mut resumed = Algorithm::restore_over(group(), saved, &Registry::builtin()).unwrap();
    while resumed.step().unwrap().is_some() {}
    let summary = resumed.stop().unwrap();
    assert!(summary.abandoned_episodes > 0 && !summary.reproducible, "{summary:?}");
}

#[test]
fn group_that_cannot_learn_is_refused_by_name() {
    let group = WorkerGroup::builder(RolloutConfig::new("CartPole-v1").single_policy("random")).build().unwrap();
    let mut algorithm = Algorithm::over(group, RunConfig::default(), &Registry::builtin()).unwrap();
    let error = algorithm.step().unwrap_err().to_string();
    assert!(error.contains("random") || error.contains("default_policy"), "{error}");
}

#[test]
fn steps_read_what_was_logged() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("rows").display().to_string();
    let args = ["sample", "--env-steps", "600", "--num-envs", "3", "--output", &output];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { Process::start(args).finish_with(0).await });
    let settings = json!({ "env": "CartPole-v1", "algorithm": "bc", "train_batch_size": 200, "num_workers": 0 });
    let mut run = RunConfig::of_settings(&settings.to_string().parse().unwrap()).unwrap();
    run.rollout.input = InputSource::Files(vec![output]);
    let mut algorithm = Algorithm::new(run, &Registry::builtin()).unwrap();
    let losses: Vec<f64> = (0..3).map(|_| algorithm.step().unwrap().unwrap().stats.policy_loss).collect();
    assert!(losses[2] < losses[0], "{losses:?}");
    algorithm.stop().unwrap();
}

/// Lets two policies learn from files and from a mixture of them, read by this process or by two workers.
#[test]
fn two_policies_learn_from_files_and_mixtures_with_and_without_workers() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let run = |args: &[&str]| runtime.block_on(async { Process::start(args).finish_with(0).await }).stdout;
    let players = ["--env", "RockPaperScissors-v0", "--set", "policy_mapping_fn=agent_id"];
    let policies = |kind: &str| ["0", "1"].map(|id| format!("policies.{id}.policy={kind}"));
    for (name, seed) in [("one", "1"), ("two", "2")] {
        // Its rows have the advantages that MARWIL needs.
        let [first, second] = policies("ppo");
        let sample = ["sample", "--json", "--num-envs", "2", "--env-steps", "400", "--seed", seed];
        let sample = [&sample[..], &["--rollout-fragment-length", "8"]].concat();
        run(&[&sample[..], &players, &["--set", &first, "--set", &second, "--output", &path(name)]].concat());
    }
    let mixture = json!({ path("one"): 0.5, path("two"): 0.5 }).to_string();
    for (kind, input) in ["bc", "marwil"].into_iter().flat_map(|kind| [(kind, path("one")), (kind, mixture.clone())]) {
        for workers in ["0", "2"] {
            let [first, second] = policies(kind);
            let hashes = |rows: &str| {
                let train = ["train", "--json", "--workers", workers, "--input", &input, "--train-batch-size", "40"];
                let ends = ["--max-env-steps", rows, "--evaluation-episodes", "1", "--hidden", "8"];
                let learning = ["--set", &first, "--set", &second, "--run-dir", &path("run")];
                let summary = crate::support::json(&run(&[&train[..], &players, &ends, &learning].concat()));
                assert!(fs::remove_dir_all(path("run")).is_ok() && summary["evaluation"]["episodes"] == 1, "{summary}");
                summary["policies"].clone()
            };
            let (once, later, again) = (hashes("40"), hashes("200"), hashes("200"));
            let about = format!("{kind} over {input} with {workers} workers");
            assert!(["0", "1"].iter().all(|id| later[*id].is_string() && once[*id] != later[*id]), "{about}: {later}");
            assert_eq!(later, again, "{about}");
        }
    }
}

#[test]
fn run_that_cannot_begin_is_refused_by_name() {
    let error = Algorithm::new(RunConfig::new("CartPole-v9").num_workers(0), &Registry::builtin()).err().unwrap();
    assert!(error.to_string().contains("there is no environment 'CartPole-v9'"), "{error}");
    assert!(matches!(error, AlgorithmError::Start(_)));
    let mut algorithm = Algorithm::new(config(0), &Registry::builtin()).unwrap();
    assert!(algorithm.save().unwrap_err().to_string().contains("no run directory"));
    algorithm.stop().unwrap();
}

/// Starts another run of the same hub, after the algorithm's end.
#[test]
fn algorithm_that_is_over_takes_no_part_in_next_run_of_its_hub() {
    let mut algorithm = Algorithm::new(config(0), &Registry::builtin()).unwrap();
    while algorithm.step().unwrap().is_some() {}
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let endless = config(0).seed(6).stop_after(1 << 40);
    let mut summary = runtime.block_on(algorithm.workers().train(endless)).unwrap();
    assert!(algorithm.step().unwrap().is_none());
    assert!(matches!(algorithm.policy(), Err(AlgorithmError::Over)));
    runtime.block_on(async {
        let mut status = algorithm.workers().status();
        // It continues by itself.
        status.wait_for(|status| status.seed == 6 && status.iteration > 3).await.unwrap();
        algorithm.workers().stop_run().await;
        assert_eq!((&mut summary).await.unwrap().end, RunEnd::Stopped);
    });
    assert_eq!(algorithm.stop().unwrap().end, RunEnd::Finished);
}
