//! The program with code of its own, in its command line, its hub and its workers.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use rollmesh_core::{
    config::Config,
    ids::{FragmentNo, LeaseId, PolicyId, SlotId, WeightsVersion},
    kernels::Kernels,
    lease::{Lease, LeasedSlot, SlotSource},
    policy::RandomPolicy,
    run::RunConfig,
    worker::{Advance, NewPolicy, RolloutConfig, RolloutWorkerBuilder, SlotRunner, WorkerPlace, rollout_hash},
};
use serde_json::{Value, json};

#[cfg(target_os = "linux")]
use crate::support::{Process, process};

const SETTINGS: &str = r#"{"length": 6, "wind": 0.1, "longer_by_worker": 3}"#;

fn program(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollmesh-example-own-env"));
    command.args(args).env_remove("ROLLMESH_TOKEN").output().expect("the program runs")
}

/// Runs a command and returns the JSON value that it prints.
fn printed(args: &[&str]) -> Value {
    let output = program(args);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", text(&output.stdout)))
}

#[test]
fn everything_is_listed() {
    let envs = printed(&["envs", "--json"]);
    let find = |name: &str| envs.as_array().unwrap().iter().find(|env| env["name"] == name).unwrap().clone();
    assert_eq!(find("Corridor-v0")["settings"], json!(["length", "wind", "longer_by_worker"]));
    let agents = find("Hunt-v0")["agents"].clone();
    assert_eq!(agents[2]["agent"], "prey");
    let policies = printed(&["policies", "--json"]);
    assert!(policies.as_array().unwrap().contains(&json!({ "name": "steady" })), "{policies}");
}

#[test]
fn the_command_line_makes_the_rows_of_the_library() {
    let args = ["sample", "--json", "--env", "Corridor-v0", "--env-config", SETTINGS, "--env-steps", "2000"];
    let printed = printed(&[&args[..], &["--num-envs", "4", "--seed", "9"]].concat());
    let config = RolloutConfig::new("Corridor-v0").env_config(SETTINGS.parse().unwrap()).num_envs(4).seed(9);
    let hash = rollout_hash(config, 2000, &rollmesh_example_own_env::registry(), Kernels::PORTABLE).unwrap();
    assert_eq!(printed["rollout_hash"], hash.to_string());
}

/// The program is also the process of its sub-environments.
#[test]
#[cfg(unix)]
fn environments_of_ones_own_run_in_processes_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let hash = |settings: Value| {
        let file = directory.path().join("corridor.json");
        fs::write(&file, settings.to_string()).unwrap();
        let args = ["sample", "--json", "--env-config", SETTINGS, "--env-steps", "400", "--config"];
        printed(&[&args[..], &[file.to_str().unwrap()]].concat())["batch_hash"].clone()
    };
    let here = json!({ "env": "Corridor-v0", "num_envs": 2, "seed": 9 });
    let mut there = here.clone();
    (there["remote_worker_envs"], there["remote_env_batch_wait_ms"]) = (true.into(), 60_000.into());
    assert_eq!(hash(there), hash(here));
}

#[test]
fn settings_file_combines_all_kinds_of_user_code() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("hunt.toml");
    fs::write(
        &file,
        r#"
        env = "Hunt-v0"
        env_config = { size = 8, num_hunters = 3 }
        num_envs = 2
        rollout_fragment_length = 50
        policy_mapping_fn = "by_side"
        callbacks = ["count_catches"]
        policies.hunters = { policy = "random" }
        policies.prey = { policy = "steady", config = { action = 1 } }
        "#,
    )
    .unwrap();
    let summary = printed(&["sample", "--json", "--config", file.to_str().unwrap(), "--env-steps", "400"]);
    assert_eq!((&summary["env_steps"], &summary["agent_steps"]), (&json!(400), &json!(1600)));
    assert_eq!(summary["policies"]["hunters"]["agent_steps"], 1200);
    assert_eq!(summary["custom_metrics"]["caught"]["max"], 1.0);
    assert!(summary["episodes"].as_u64() > Some(10), "{summary}");
    let again = printed(&["sample", "--json", "--config", file.to_str().unwrap(), "--env-steps", "400"]);
    assert_eq!(again["batch_hash"], summary["batch_hash"]);
}

/// Two policies, one of which has its own learner, over leases of an environment with several agents.
#[test]
fn policies_and_callbacks_of_ones_own_train_with_one_hash_for_any_workers() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let settings = json!({
        "env": "Hunt-v0", "env_config": { "size": 8, "num_hunters": 3 }, "policy_mapping_fn": "by_side",
        "callbacks": ["count_catches", "log_stages"], "num_slots": 4, "num_envs": 2, "rollout_fragment_length": 30,
        "model_config": { "fcnet_hiddens": [8] }, "stop": { "env_steps": 2400 },
        "policies": { "hunters": {}, "prey": { "policy": "tally" } },
    });
    fs::write(at("hunt.json"), settings.to_string()).unwrap();
    let args = |workers: &str, seed: &str| {
        let args = ["train", "--json", "--no-dashboard", "--config", &at("hunt.json"), "--workers", workers];
        let run_dir = at(&format!("run-{workers}-{seed}"));
        [&args[..], &["--seed", seed, "--run-dir", &run_dir]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let train = |workers: &str, seed: &str| {
        let args = args(workers, seed);
        printed(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let filtered = program(
        &[
            &args("1", "1").iter().map(String::as_str).collect::<Vec<_>>()[..],
            &["--observation-filter", "MeanStdFilter"],
        ]
        .concat(),
    );
    let error = String::from_utf8_lossy(&filtered.stderr).into_owned();
    assert!(error.contains("observation_filter: policy 'prey' takes no statistics among its weights"), "{error}");
    let expected = train("0", "1");
    for workers in ["1", "2", "3"] {
        let summary = train(workers, "1");
        assert_eq!(summary["weights_hash"], expected["weights_hash"], "{workers} workers");
        assert_eq!(summary["policies"], expected["policies"]);
    }
    let other = train("2", "2");
    for policy in ["hunters", "prey"] {
        assert_ne!(other["policies"][policy], expected["policies"][policy], "{policy} of another seed");
    }
    let lines = fs::read_to_string(directory.path().join("run-0-1/metrics.jsonl")).unwrap();
    let last: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!((&last["iteration"], lines.lines().count()), (&json!(20), 20));
    assert!(
        last["policies"]["prey"]["best_action"].is_number() && last["policies"]["hunters"]["kl"].is_number(),
        "{last}"
    );
    let catches = |metrics: &str| {
        let lines = fs::read_to_string(directory.path().join(metrics)).unwrap();
        let of = |line: &str| serde_json::from_str::<Value>(line).unwrap()["custom_metrics"]["caught"].clone();
        lines.lines().map(of).collect::<Vec<_>>()
    };
    let alone = catches("run-0-1/metrics.jsonl");
    assert!(alone[19]["max"] == 1.0 && alone[19]["mean"].as_f64().is_some_and(|mean| mean > 0.0), "{}", alone[19]);
    assert_eq!(catches("run-3-1/metrics.jsonl"), alone, "three workers");
}

#[test]
fn callbacks_are_called_once_per_stage_of_a_run_over_leases() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let settings = json!({
        "env": "Corridor-v0", "callbacks": ["log_stages"], "num_slots": 2, "rollout_fragment_length": 32,
        "stop": { "env_steps": 128 }, "num_workers": 0,
    });
    fs::write(at("corridor.json"), settings.to_string()).unwrap();
    let run = at("run");
    let begun = "worker 0 is set up";
    let is_trained = |line: &String| line.starts_with("trained, ");
    let first = stages(&["train", "--json", "--no-dashboard", "--config", &at("corridor.json"), "--run-dir", &run]);
    assert!(first[0] == begun && first[1..].len() == 2 && first[1..].iter().all(is_trained), "{first:?}");
    let resumed = stages(&["train", "--json", "--no-dashboard", "--resume", &run, "--max-env-steps", "192"]);
    let [set_up, loaded, trained] = &resumed[..] else { panic!("{resumed:?}") };
    assert_eq!((set_up.as_str(), loaded.as_str()), (begun, "checkpoint loaded"));
    assert!(is_trained(trained), "{resumed:?}");
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn callbacks_are_notified_of_a_replacement_worker() {
    let run = tempfile::tempdir().unwrap();
    let run_dir = run.path().join("run").display().to_string();
    let train = ["train", "--no-dashboard", "--env", "Corridor-v0", "--workers", "2", "--callbacks", "log_stages"];
    let mut run = Process::start([&train[..], &["--max-env-steps", "1000000000", "--run-dir", &run_dir]].concat());
    run.line(" joined: ").await;
    run.line(" joined: ").await;
    process::kill(process::children_of(run.pid())[0]);
    run.line("stage: workers [3] replace others").await;
    run.signal(process::Signal::INT);
    run.finish_with(3).await;
}

#[test]
fn functions_are_applied_by_name() {
    let config = RolloutConfig::new("Hunt-v0").env_config(r#"{"num_hunters": 3}"#.parse().unwrap()).num_envs(2);
    let builder = RolloutWorkerBuilder::new(rollmesh_example_own_env::registry());
    let mut worker = builder
        .config(RolloutConfig { policy_mapping_fn: Some("by_side".into()), ..config })
        .policy(PolicyId::new("hunters"), NewPolicy::object(Box::new(RandomPolicy::new(3, 0))))
        .policy(PolicyId::new("prey"), NewPolicy::object(Box::new(RandomPolicy::new(3, 0))))
        .place(WorkerPlace::LOCAL)
        .build()
        .unwrap();
    let answer = worker.apply("hunters", &Config::new().with("factor", 10).unwrap()).unwrap();
    assert_eq!(answer.to_string(), r#"{"hunters":60}"#);
    let error = worker.apply("gatherers", &Config::new()).unwrap_err();
    assert_eq!(error.to_string(), "there is no worker function 'gatherers'; known are: hunters");
}

/// Returns the lines of the callbacks `log_stages`.
fn stages(args: &[&str]) -> Vec<String> {
    let output = program(args);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {text}");
    text.lines().filter_map(|line| line.strip_prefix("stage: ")).map(str::to_owned).collect()
}

#[test]
fn callbacks_are_called_once_per_stage_of_a_run_in_one_process() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    // A hub cannot recompute episodes with `device_rows` for recording, so the run stays in one process.
    let settings = json!({
        "env": "Corridor-v0", "callbacks": ["log_stages"], "rollout_fragment_length": 32, "train_batch_size": 32,
        "num_envs": 1, "num_workers": 0, "monitor_path": at("episodes"),
        "device_rows": true,
    });
    fs::write(at("corridor.json"), settings.to_string()).unwrap();
    let (config, run) = (at("corridor.json"), at("run"));
    let train = ["train", "--json", "--no-dashboard", "--max-env-steps"];
    let [begun, loaded] = ["worker 0 is set up", "checkpoint loaded"];
    // The numbers include means of episodes after the first episode.
    let [one, two] = ["trained, 16 numbers", "trained, 18 numbers"];
    let reported = stages(&[&train[..], &["64", "--config", &config, "--run-dir", &run]].concat());
    assert_eq!(reported, [begun, one, two]);
    let resumed = stages(&[&train[..], &["128", "--resume", &run]].concat());
    assert_eq!(resumed, [begun, loaded, two, two]);
}

#[test]
#[cfg(unix)]
fn callbacks_are_called_once_per_stage_of_a_run_from_files() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let (rows, run) = (at("rows"), at("run"));
    printed(&["sample", "--json", "--env", "Corridor-v0", "--num-envs", "2", "--env-steps", "400", "--output", &rows]);
    let train = ["train", "--json", "--env", "Corridor-v0", "--input", &rows, "--train-batch-size", "400"];
    let settings = ["--hidden", "8", "--evaluation-episodes", "3", "--callbacks", "log_stages", "--run-dir", &run];
    // The evaluating process is notified of evaluations, too.
    let [begun, trained] = ["worker 0 is set up", "trained, 16 numbers"];
    let all = stages(&[&train[..], &settings, &["--max-env-steps", "800"]].concat());
    assert_eq!(all, [begun, trained, trained]);
    let resumed = stages(&["train", "--json", "--resume", &run, "--max-env-steps", "1200"]);
    assert_eq!(resumed, [begun, "checkpoint loaded", trained]);
}

/// Returns the result of a run of one iteration.
fn trained(directory: &Path, workers: &str, num_envs_per_worker: &str, seed: &str, settings: &str) -> Value {
    let run_dir = directory.join(format!("{workers}-{num_envs_per_worker}-{seed}-{}", settings.len()));
    let numbers = ["--workers", workers, "--num-envs-per-worker", num_envs_per_worker, "--seed", seed];
    let usual = ["train", "--json", "--no-dashboard", "--env", "Corridor-v0", "--rollout-fragment-length", "64"];
    let short = ["--max-env-steps", "512", "--hidden", "8", "--env-config", settings];
    let args = [&usual[..], &numbers, &short, &["--run-dir", run_dir.to_str().unwrap()]].concat();
    printed(&args)
}

#[test]
fn workers_in_other_processes_make_the_rows_of_this_one() {
    let directory = tempfile::tempdir().unwrap();
    let summary = trained(directory.path(), "2", "4", "5", SETTINGS);
    assert_eq!(summary["env_steps"], 512);

    let run = RunConfig::new("Corridor-v0")
        .seed(5)
        .slots(8)
        .num_envs(4)
        .fcnet_hiddens(&[8])
        .env_config(SETTINGS.parse().unwrap());
    let mut runner = SlotRunner::new(&run, RolloutWorkerBuilder::new(rollmesh_example_own_env::registry())).unwrap();
    let slots = (0..8).map(|slot| LeasedSlot::new(SlotId(slot), SlotSource::New)).collect();
    let (id, fragment, weights_version) = (LeaseId(0), FragmentNo(0), WeightsVersion(0));
    runner.begin(Lease { id, fragment, weights_version, slots }).unwrap();
    let Advance::Done { fragments, .. } = runner.advance(u32::MAX) else { panic!("the lease is done") };
    let returns: Vec<f64> =
        fragments.iter().flat_map(|fragment| &fragment.episodes).map(|episode| episode.episode_return).collect();
    let mean = returns.iter().sum::<f64>() / returns.len() as f64;
    assert!(!returns.is_empty() && returns.len() <= 100, "{}", returns.len());
    let found = summary["episode_return_mean"].as_f64().unwrap();
    assert!((found - mean).abs() < 1e-12, "{found} {mean}");
}

#[test]
fn settings_reach_workers_in_other_processes() {
    let directory = tempfile::tempdir().unwrap();
    let same = r#"{"length": 6}"#;
    let hash =
        |workers, envs, settings| trained(directory.path(), workers, envs, "1", settings)["weights_hash"].clone();
    // The number of workers changes nothing, unless an environment reads the index of its home.
    let usual = hash("2", "4", same);
    assert_eq!(hash("1", "8", same), usual);
    assert_ne!(hash("2", "4", r#"{"length": 20}"#), usual);
    assert_ne!(hash("2", "4", SETTINGS), hash("1", "8", SETTINGS));
    let wrong = program(&["train", "--no-dashboard", "--env", "Corridor-v0", "--env-config", r#"{"size": 1}"#]);
    assert_eq!(wrong.status.code(), Some(2));
    let error = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(error.contains("there is no setting 'size'; known are: length, wind, longer_by_worker"), "{error}");
}
