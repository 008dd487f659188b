//! `rollmesh sample` and `rollmesh envs`: their output, and rows that are always the same.

mod files;

use crate::support::{Process, is_long, json, keys, process::Signal, until};
use serde_json::Value;

/// Of 10,000 steps of 64 CartPoles under networks with two hidden layers of 64, seed 1.
const SHORT_HASH: &str = "10d1fec351b6ad99d6718deb7290f82f";
/// Of a million steps of them.
const LONG_HASH: &str = "8c58c7644eceb7f2e755249567c505a5";

/// Runs `sample` with 64 CartPoles and seed 1.
async fn sample(args: &[&str]) -> Value {
    let all = ["sample", "--json", "--env", "CartPole-v1", "--num-envs", "64", "--seed", "1"];
    let end = Process::start(all.iter().chain(args)).finish_with(0).await;
    assert_eq!(end.stdout.lines().count(), 1, "one object and nothing else");
    json(&end.stdout)
}

#[tokio::test]
async fn the_summary_has_these_keys() {
    let summary = sample(&["--policy", "mlp", "--hidden", "64,64", "--env-steps", "10000"]).await;
    let mut names = keys(&summary);
    names.sort_unstable();
    let expected = [
        "agent_steps",
        "custom_metrics",
        "discarded_env_steps",
        "env_steps",
        "episode_length",
        "episode_return",
        "episode_return_mean",
        "episodes",
        "faulty_episodes",
        "policies",
        "reproducible",
        "rollout_hash",
        "samples",
        "steps_per_s",
    ];
    assert_eq!(names, expected);
    assert!(summary["steps_per_s"].as_f64() > Some(0.0));
    assert!(summary["episodes"].as_u64() > Some(0));
}

#[tokio::test]
async fn every_environment_makes_the_same_number_of_steps() {
    for (asked, made) in [("1", 64), ("64", 64), ("65", 128), ("10000", 10_048)] {
        let summary = sample(&["--policy", "random", "--env-steps", asked]).await;
        assert_eq!(summary["env_steps"], made, "{asked}");
    }
    let none_ended = sample(&["--env-steps", "64"]).await;
    assert_eq!((&none_ended["episodes"], &none_ended["episode_return_mean"]), (&0.into(), &Value::Null));
}

#[tokio::test]
async fn neither_kernels_nor_fragments_show_in_the_hash() {
    for kernels in ["portable", "auto"] {
        for length in ["1", "7", "157", "1000"] {
            let args = ["--env-steps", "10000", "--kernels", kernels, "--rollout-fragment-length", length];
            assert_eq!(sample(&args).await["rollout_hash"], SHORT_HASH, "{kernels} {length}");
        }
    }
}

#[tokio::test]
async fn workers_make_the_rows_of_this_process() {
    for workers in ["1", "2", "3"] {
        let summary = sample(&["--env-steps", "10000", "--num-workers", workers]).await;
        assert_eq!((&summary["rollout_hash"], &summary["env_steps"]), (&SHORT_HASH.into(), &10_048.into()));
        assert!(summary["steps_per_s"].as_f64() > Some(0.0), "its only iteration counts: {summary}");
        let here = sample(&["--env-steps", "10000"]).await;
        for key in ["episodes", "episode_return_mean"] {
            assert_eq!(summary[key], here[key], "{key}: the last fragments are longer than the rows that are wanted");
        }
    }
    let summary = sample(&["--env-steps", "50000", "--num-workers", "1", "--no-hash"]).await;
    assert_eq!(summary["rollout_hash"], Value::Null);
    for key in ["steps_per_s", "bytes_per_step", "hub_cpu_ns_per_step", "worker_cpu_ns_per_step"] {
        assert!(summary[key].as_f64() > Some(0.0), "{key}: {summary}");
    }
    let [here, there] = ["0", "2"].map(|workers| async move {
        sample(&["--env-steps", "640", "--num-workers", workers, "--policy", "random"]).await["rollout_hash"].clone()
    });
    assert_eq!(here.await, there.await);
    for (args, message) in [
        (&["--mode", "async", "--observation-filter", "MeanStdFilter"][..], "for which workers wait: leave --mode"),
        (&["--env", "External-v0"], "clients drive the environments of this process"),
    ] {
        let end = Process::start(["sample", "--num-workers", "2"].iter().chain(args)).finish_with(2).await;
        assert!(end.stderr.contains(message), "{}", end.stderr);
    }
}

/// Checks settings of games, of whole episodes and of a recurrent policy: the samples do not depend on the workers.
#[tokio::test]
async fn workers_sample_what_a_file_says() {
    let directory = tempfile::tempdir().unwrap();
    let settings = [
        ("traffic", TRAFFIC),
        ("grouped", r#"{"env": "MultiAgentTrafficGrid-v0", "num_envs": 3, "rollout_fragment_length": 20, "seed": 3}"#),
        ("whole", r#"{"num_envs": 5, "rollout_fragment_length": 20, "batch_mode": "complete_episodes", "seed": 3}"#),
        ("lstm", r#"{"num_envs": 5, "rollout_fragment_length": 20, "model_config": {"use_lstm": true}, "seed": 3}"#),
    ];
    for (name, settings) in settings {
        let file = directory.path().join(format!("{name}.json"));
        std::fs::write(&file, settings).unwrap();
        let sample = async |workers: &str| {
            let output = directory.path().join(format!("{name}-{workers}"));
            let config = ["--config", file.to_str().unwrap(), "--output", output.to_str().unwrap()];
            let args = ["sample", "--json", "--env-steps", "300", "--num-workers", workers];
            let summary = json(&Process::start(args.iter().chain(&config)).finish_with(0).await.stdout);
            let validate = ["data", "validate", config[3], "--json"];
            let problems = json(&Process::start(validate).finish_with(0).await.stdout);
            assert_eq!(problems["problems"], serde_json::json!({}), "{name}");
            assert_eq!(problems["env_steps"], summary["env_steps"], "{name}");
            summary
        };
        let (one, two) = (sample("1").await, sample("2").await);
        assert!(one["rollout_hash"].is_string() && one["env_steps"].as_u64() >= Some(300), "{name}: {one}");
        for key in ["rollout_hash", "env_steps", "agent_steps", "episodes", "episode_return_mean", "policies"] {
            assert_eq!(one[key], two[key], "{name}: {key}");
        }
        let policies = match name {
            "traffic" => &["car_policy1", "car_policy2", "traffic_light_policy"][..],
            "grouped" => &["car", "light"],
            _ => &["default_policy"],
        };
        assert_eq!(keys(&one["policies"]), policies, "{name}");
    }
}

/// Checks that observations are normalised by the statistics of the iterations before, in slot order.
#[tokio::test]
async fn rows_with_a_filter_do_not_depend_on_workers() {
    let pendulum = ["sample", "--json", "--env", "Pendulum-v1", "--num-envs", "6", "--rollout-fragment-length", "50"];
    let traffic = ["sample", "--json", "--env", "MultiAgentTrafficGrid-v0", "--num-envs", "6"];
    for game in [&pendulum[..], &traffic[..]] {
        let hash = async |workers: &str, filter: &str| {
            // The kernels change no bit, of workers either.
            let kernels = if workers == "2" { "portable" } else { "auto" };
            let flags = ["--env-steps", "1500", "--observation-filter", filter, "--num-workers", workers];
            let flags = [&flags[..], &["--kernels", kernels]].concat();
            let summary = json(&Process::start(game.iter().chain(&flags)).finish_with(0).await.stdout);
            summary["rollout_hash"].as_str().unwrap().to_owned()
        };
        let here = hash("0", "MeanStdFilter").await;
        for workers in ["1", "2"] {
            assert_eq!(hash(workers, "MeanStdFilter").await, here, "{workers} workers");
        }
        assert_ne!(hash("1", "NoFilter").await, here);
    }
}

/// Checks the files, which are those of every run; the policy can be evaluated and sampled with, including its filter.
#[tokio::test]
async fn run_directory_of_sample_is_that_of_every_run() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let filter = ["--observation-filter", "MeanStdFilter"];
    for (workers, flags) in [("0", &[][..]), ("2", &[]), ("0", &filter), ("2", &filter)] {
        let run = path(&format!("{workers}-{}", flags.len()));
        let args = ["--env-steps", "25600", "--num-workers", workers, "--run-dir", &run];
        let summary = sample(&[&args[..], flags].concat()).await;
        let plain = sample(&[&["--env-steps", "25600"], flags].concat()).await;
        assert_eq!(summary["rollout_hash"], plain["rollout_hash"]);
        let read = |name: &str| std::fs::read_to_string(format!("{run}/{name}")).unwrap();
        let lines: Vec<Value> = read("metrics.jsonl").lines().map(json).collect();
        let (iterations, last) = (lines.len(), lines.last().unwrap());
        assert_eq!((iterations, &last["iteration"], &last["env_steps"]), (2, &2.into(), &25_600.into()));
        let ended = json(&read("summary.json"));
        assert_eq!(
            (&ended["end"], &ended["algo"], &ended["env_steps"]),
            (&"finished".into(), &"sample".into(), &25_600.into())
        );
        assert!(read("config.toml").contains("num_slots = 64"));
        let acts = ["sample", "--json", "--checkpoint", &run, "--env-steps", "200", "--num-envs", "2"];
        Process::start(acts).finish_with(0).await;
        let again = ["sample", "--env-steps", "64", "--run-dir", &run];
        let end = Process::start(again).finish_with(2).await;
        assert!(end.stderr.contains("already holds a run; choose another directory"), "{}", end.stderr);
        let evaluate = ["evaluate", "--checkpoint", &run, "--episodes", "3", "--json"];
        let evaluated = json(&Process::start(evaluate).finish_with(0).await.stdout);
        assert_eq!(evaluated["episodes"].as_array().unwrap().len(), 3);
        let listed = Process::start(["runs", &run]).finish_with(0).await;
        assert!(listed.stdout.contains("CartPole-v1 with sample"), "{}", listed.stdout);
    }
}

#[tokio::test]
async fn policies_of_a_checkpoint_act_in_their_game() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run").display().to_string();
    let game = ["--env", "MultiAgentTrafficGrid-v0", "--hidden", "8"];
    let train =
        ["train", "--workers", "0", "--num-envs-per-worker", "2", "--rollout-fragment-length", "20", "--no-dashboard"];
    let train = [&train[..], &["--max-env-steps", "80", "--run-dir", &run], &game[..]].concat();
    Process::start(train).finish_with(0).await;
    let batch_hash = async |more: &[&str]| {
        let args = ["sample", "--json", "--num-envs", "2", "--env-steps", "100"];
        let summary = json(&Process::start(args.iter().chain(more)).finish_with(0).await.stdout);
        assert_eq!(keys(&summary["policies"]), ["car", "light"]);
        summary["batch_hash"].as_str().unwrap().to_owned()
    };
    let learned = batch_hash(&["--checkpoint", &run]).await;
    let weights = format!("{run}/weights.safetensors");
    assert_eq!(batch_hash(&[&game[..], &["--init-weights", &weights]].concat()).await, learned);
    assert_ne!(batch_hash(&game).await, learned, "first weights act otherwise");
}

/// Samples with one agent's checkpoint and its most likely actions, in this process and over workers.
#[tokio::test]
async fn checkpoint_acts_alike_in_this_process_and_over_workers() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run").display().to_string();
    let train = ["train", "--workers", "0", "--hidden", "8", "--max-env-steps", "2000", "--no-dashboard"];
    Process::start(train.into_iter().chain(["--run-dir", &run])).finish_with(0).await;
    let means = async |workers: &str, more: &[&str]| {
        let args = ["sample", "--json", "--num-envs", "4", "--env-steps", "800", "--num-workers", workers];
        let args = [&args[..], &["--checkpoint", &run, "--deterministic"], more].concat();
        let summary = json(&Process::start(args).finish_with(0).await.stdout);
        assert_eq!(summary["env_steps"], 800);
        ["episodes", "episode_return_mean"].map(|key| summary[key].clone())
    };
    let here = means("0", &[]).await;
    assert!(here[0].as_u64() > Some(0));
    assert_eq!(means("2", &[]).await, here);
    assert_ne!(means("2", &["--set", "explore=true", "--seed", "9"]).await, here);
}

/// Samples with a checkpoint whose weights include the filter's statistics.
#[tokio::test]
async fn checkpoint_of_run_with_filter_acts_alike_in_this_process_and_over_workers() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run").display().to_string();
    let train = ["train", "--workers", "0", "--hidden", "8", "--max-env-steps", "2000", "--no-dashboard"];
    let filter = ["--observation-filter", "MeanStdFilter", "--run-dir", &run];
    Process::start(train.into_iter().chain(filter)).finish_with(0).await;
    let mean = async |workers: &str| {
        let args = ["sample", "--json", "--num-envs", "4", "--env-steps", "800", "--num-workers", workers];
        let args = args.iter().chain(&["--checkpoint", &run, "--deterministic"]).copied().collect::<Vec<_>>();
        json(&Process::start(args).finish_with(0).await.stdout)["episode_return_mean"].clone()
    };
    let here = mean("0").await;
    assert!(here.is_number());
    assert_eq!(mean("2").await, here);
}

#[tokio::test]
async fn setting_of_sample_is_given_by_its_path_and_refused_by_name() {
    let hash = async |set: &[&str]| {
        let args = ["sample", "--json", "--num-envs", "2", "--env-steps", "100"];
        json(&Process::start(args.iter().chain(set)).finish_with(0).await.stdout)["batch_hash"].clone()
    };
    let with_memory = hash(&["--set", "model_config.use_lstm=true"]).await;
    assert_ne!(with_memory, hash(&["--set", "model_config.use_lstm=false"]).await);
    let three = Process::start([
        "sample",
        "--json",
        "--env-steps",
        "90",
        "--set",
        "num_envs=3",
        "--set",
        "rollout_fragment_length=10",
    ]);
    assert_eq!(json(&three.finish_with(0).await.stdout)["env_steps"], 90);
    let directory = tempfile::tempdir().unwrap();
    let output = format!("output={}", directory.path().join("rows").display());
    let args = ["sample", "--json", "--num-envs", "2", "--env-steps", "100", "--num-workers", "1", "--set", &output];
    Process::start(args).finish_with(0).await;
    assert!(!text_of(&directory.path().join("rows")).is_empty(), "rows are kept where a setting says so, too");
    let unknown = Process::start(["sample", "--env-steps", "100", "--set", "model_confg.use_lstm=true"]);
    assert!(
        unknown
            .finish_with(2)
            .await
            .stderr
            .contains("--set: model_confg: there is no such setting; did you mean model_config?")
    );
}

#[tokio::test]
async fn run_without_learner_is_shown_and_its_policy_evaluated() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("run").display().to_string();
    let args = ["sample", "--num-envs", "2", "--env-steps", "1000000000000", "--run-dir", &run];
    let mut sampling = Process::start(args);
    let control = sampling.line("control    ROLLMESH_TOKEN=").await;
    let mut words = control.split_whitespace().skip(1);
    let token = words.next().unwrap().split_once('=').unwrap().1.to_owned();
    let way: Vec<String> = words.skip(1).map(str::to_owned).collect();
    until("an iteration", || {
        std::fs::read_to_string(format!("{run}/metrics.jsonl")).is_ok_and(|text| text.contains('\n'))
    })
    .await;
    let status = Process::start_with(way, |command| _ = command.env("ROLLMESH_TOKEN", token)).finish_with(0).await;
    assert!(status.stdout.contains("CartPole-v1 with sample, seed 0"), "{}", status.stdout);
    sampling.signal(Signal::TERM);
    sampling.finish_with(3).await;
    let listed = json(&Process::start(["runs", &run, "--json"]).finish_with(0).await.stdout);
    assert_eq!((&listed[0]["state"], &listed[0]["algo"]), (&"stopped".into(), &"sample".into()));
    Process::start(["evaluate", "--checkpoint", &run, "--episodes", "1"]).finish_with(0).await;
}

#[tokio::test]
async fn workers_from_elsewhere_join_with_the_printed_command() {
    let args = ["sample", "--remote-only", "--num-envs", "4", "--env-steps", "1000", "--seed", "1"];
    let mut sampling = Process::start(args);
    let command = sampling.line("worker     ROLLMESH_TOKEN=").await;
    let mut words = command.split_whitespace().skip(1);
    let token = words.next().unwrap().split_once('=').unwrap().1.to_owned();
    let way: Vec<String> = words.skip(1).map(str::to_owned).collect();
    let _worker = Process::start_with(way, |command| _ = command.env("ROLLMESH_TOKEN", token));
    let end = sampling.finish_with(0).await;
    let here = json(
        &Process::start(["sample", "--json", "--num-envs", "4", "--env-steps", "1000", "--seed", "1"])
            .finish_with(0)
            .await
            .stdout,
    );
    assert!(end.stdout.contains(here["rollout_hash"].as_str().unwrap()), "{}", end.stdout);
}

/// Returns the files in a directory, one after the other.
fn text_of(directory: &std::path::Path) -> String {
    let mut files: Vec<_> = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

#[tokio::test]
async fn samples_of_any_workers_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let kept = async |workers: &str, more: &[&str]| {
        let folder = directory.path().join(workers);
        let output = folder.display().to_string();
        // The last fragments are longer than the rows that are wanted.
        let args = ["--env-steps", "10000", "--num-workers", workers, "--output", &output];
        let summary = sample(&[&args[..], more].concat()).await;
        assert_eq!(summary["env_steps"], 10_048);
        let text = text_of(&folder);
        let validate = ["data", "validate", &output, "--env", "CartPole-v1", "--json"];
        let problems = json(&Process::start(validate).finish_with(0).await.stdout);
        assert_eq!((&problems["env_steps"], &problems["problems"]), (&10_048.into(), &serde_json::json!({})));
        std::fs::remove_dir_all(folder).unwrap();
        (summary, text)
    };
    let (summary, one) = kept("1", &[]).await;
    assert_eq!((&summary["rollout_hash"], one.lines().count()), (&SHORT_HASH.into(), 1));
    assert_eq!(kept("2", &[]).await.1, one);
    // Rows are those of the hash: as many as in it, and in the same episodes.
    let line = json(&one);
    let ends =
        |column: &str| line[column].as_array().unwrap().iter().filter(|flag| flag.as_bool() == Some(true)).count();
    assert_eq!(summary["episodes"], ends("terminateds") + ends("truncateds"));
    let rewards: f64 = line["rewards"].as_array().unwrap().iter().filter_map(Value::as_f64).sum();
    assert_eq!(rewards, 10_048.0);
    // The asynchronous mode has other rows, but each of them once.
    kept("2", &["--mode", "async"]).await;
    let refused = ["sample", "--num-workers", "1", "--output", "/proc/none"];
    assert!(Process::start(refused).finish_with(2).await.stderr.contains("/proc/none"));
}

#[tokio::test]
async fn workers_need_not_wait_for_each_other() {
    for mode in ["async", "deadline"] {
        let args = ["--env-steps", "20000", "--num-workers", "2", "--mode", mode, "--deadline-ms", "20"];
        let summary = sample(&args).await;
        assert_eq!((&summary["env_steps"], &summary["rollout_hash"]), (&20_032.into(), &Value::Null), "{mode}");
        assert!(summary["episode_return_mean"].as_f64() > Some(8.0), "{summary}");
    }
    let alone = Process::start(["sample", "--mode", "async"]).finish_with(2).await;
    assert!(alone.stderr.contains("add --num-workers"), "{}", alone.stderr);
    let odd = ["sample", "--num-workers", "1", "--batch-env-steps", "9"];
    assert!(Process::start(odd).finish_with(2).await.stderr.contains("is for --mode async"));
}

#[tokio::test]
async fn whatever_matters_shows_in_the_hash() {
    let changes: [&[&str]; 4] =
        [&["--seed", "2"], &["--hidden", "64,32"], &["--policy", "random"], &["--num-envs", "32"]];
    for change in changes {
        // The last of several equal flags is not accepted, so the usual ones are left out.
        let usual = [["--num-envs", "64"], ["--seed", "1"], ["--env-steps", "10000"]];
        let usual = usual.iter().filter(|pair| pair[0] != change[0]).flatten();
        let args = ["sample", "--json"].iter().chain(usual).chain(change);
        let end = Process::start(args).finish_with(0).await;
        assert_ne!(json(&end.stdout)["rollout_hash"], SHORT_HASH, "{change:?}");
    }
}

#[tokio::test]
async fn a_million_steps_have_the_known_hash() {
    if !is_long() {
        eprintln!("skipped: takes long without optimisation; set ROLLMESH_LONG=1 to run it");
        return;
    }
    for kernels in ["portable", "auto"] {
        let summary = sample(&["--env-steps", "1000000", "--kernels", kernels]).await;
        assert_eq!((&summary["rollout_hash"], &summary["env_steps"]), (&LONG_HASH.into(), &1_000_000.into()));
    }
}

#[tokio::test]
async fn wrong_usage_ends_with_2() {
    let cases: [(&[&str], &str); 7] = [
        (&["--hung-worker-timeout", "nan"], "it must be finite and at least 0"),
        (&["--hung-worker-timeout", "inf"], "it must be finite and at least 0"),
        (&["--hung-worker-timeout=-1"], "it must be finite and at least 0"),
        (&["--num-workers", "1", "--checkpoint-interval", "5"], "--checkpoint-interval needs a directory"),
        (
            &["--env", "CartPole-v9"],
            "there is no environment 'CartPole-v9'; did you mean CartPole-v1? known are: Acrobot-v1",
        ),
        (&["--num-envs", "0"], "num_envs"),
        (&["--policy", "wise"], "there is no kind of policy 'wise'; known are: a2c, bc, marwil, net, pg, ppo, random"),
    ];
    for (args, message) in cases {
        let end = Process::start(["sample"].iter().chain(args)).finish_with(2).await;
        assert!(end.stderr.contains(message), "{args:?}: {}", end.stderr);
        assert_eq!(end.stdout, "");
    }
}

#[tokio::test]
async fn envs_are_described() {
    let end = Process::start(["envs", "--json"]).finish_with(0).await;
    let envs = json(&end.stdout);
    let cartpole = envs.as_array().unwrap().iter().find(|env| env["name"] == "CartPole-v1").unwrap();
    let expected = serde_json::json!({
        "name": "CartPole-v1",
        "observation_space": "Box([-4.8 -inf -0.41887903 -inf], [4.8 inf 0.41887903 inf], (4,), float32)",
        "action_space": "Discrete(2)",
        "max_episode_steps": 500,
        "reward_threshold": 475.0,
        "settings": [],
    });
    assert_eq!(*cartpole, expected);
    let game = envs.as_array().unwrap().iter().find(|env| env["name"] == "TwoStepGame-v0").unwrap();
    let player = |agent: &str| serde_json::json!({ "agent": agent, "observation_space": "Discrete(3)", "action_space": "Discrete(2)" });
    assert_eq!(game["agents"], serde_json::json!([player("0"), player("1")]));
    let table = Process::start(["envs"]).finish_with(0).await.stdout;
    assert!(table.contains("\n  car_0 … car_9 (25) "), "{table}");
}

/// Settings of a worker with several agents, policies and environments, and the hash of three samples. The same are in
/// web/wasm/tests/same_bits.rs.
const TRAFFIC: &str = r#"{"env": "MultiAgentTrafficGrid-v0", "num_envs": 2, "rollout_fragment_length": 50, "seed": 3,
    "policy_mapping_fn": "traffic",
    "policies": {"car_policy1": {}, "car_policy2": {}, "traffic_light_policy": {"policy": "random"}}}"#;
const TRAFFIC_HASH: &str = "c6fba48d1816566f0de35ed6d9c4c9bf";

#[tokio::test]
async fn several_agents_are_sampled_as_a_file_says() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("traffic.json");
    std::fs::write(&file, TRAFFIC).unwrap();
    let path = file.to_str().unwrap();
    for kernels in ["portable", "auto"] {
        let args = ["sample", "--json", "--config", path, "--env-steps", "300", "--kernels", kernels];
        let summary = json(&Process::start(args).finish_with(0).await.stdout);
        assert_eq!(summary["batch_hash"], TRAFFIC_HASH, "{kernels}");
        assert_eq!((&summary["samples"], &summary["env_steps"]), (&3.into(), &300.into()));
        assert_eq!((&summary["discarded_env_steps"], &summary["faulty_episodes"]), (&0.into(), &0.into()));
        let steps = |id: &str| summary["policies"][id]["agent_steps"].as_u64().unwrap();
        let all = steps("car_policy1") + steps("car_policy2") + steps("traffic_light_policy");
        assert_eq!((summary["agent_steps"].as_u64(), steps("traffic_light_policy")), (Some(all), 300 * 9));
    }
    let text = TRAFFIC.replacen('{', r#"{"remote_worker_envs": true, "remote_env_batch_wait_ms": 60000, "#, 1);
    let remote = directory.path().join("remote.json");
    std::fs::write(&remote, text).unwrap();
    let args = ["sample", "--json", "--config", remote.to_str().unwrap(), "--env-steps", "300"];
    let summary = json(&Process::start(args).finish_with(0).await.stdout);
    assert_eq!(summary["batch_hash"], TRAFFIC_HASH, "environments of other processes make the same rows");
    let args = ["sample", "--json", "--config", path, "--env-steps", "300", "--seed", "4"];
    let other = json(&Process::start(args).finish_with(0).await.stdout);
    assert_ne!(other["batch_hash"], TRAFFIC_HASH, "flags go before the file");
    let args = ["sample", "--json", "--config", path, "--env-steps", "300", "--policy", "random"];
    let random = json(&Process::start(args).finish_with(0).await.stdout);
    assert_eq!(keys(&random["policies"]), ["car_policy1", "car_policy2", "traffic_light_policy"]);
    assert_ne!(random["batch_hash"], TRAFFIC_HASH, "every policy is of the kind that was asked for");
}

#[tokio::test]
async fn settings_that_make_no_sense_end_with_2() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let cases = [
        (file("a.json", r#"{"num_env": 1}"#), "num_env: there is no such setting; did you mean num_envs?"),
        (
            file("b.toml", "rollout_fragment_length = \"much\""),
            "rollout_fragment_length is \"much\"; it must be from 1 to",
        ),
        (file("c.txt", "{}"), "must end in .json or .toml"),
        (file("d.json", r#"{"env_config": {"gravity": 1}}"#), "there is no setting 'gravity'; known are: none"),
        (
            file("p.json", r#"{"policy_config": {"gama": 0.9}}"#),
            "policy_config.gama: there is no such setting; did you mean gamma?",
        ),
        (
            file("q.json", r#"{"policies": {"default_policy": {"config": {"gama": 0.9}}}}"#),
            "policies.default_policy.config.gama: there is no such setting; did you mean gamma?",
        ),
        (file("e.json", r#"{"policy_mapping_fn": "x"}"#), "known are: agent_id, default, traffic"),
        (file("f.json", r#"{"monitor_path": "/proc/films"}"#), "cannot write /proc/films: No such file"),
        (directory.path().join("none.json").display().to_string(), "none.json: No such file"),
    ];
    for (path, message) in &cases {
        let end = Process::start(["sample", "--config", path]).finish_with(2).await;
        assert!(end.stderr.contains(message), "{path}: {}", end.stderr);
    }
}

#[tokio::test]
async fn an_interrupted_rollout_has_a_summary() {
    for more in [&[][..], &["--observation-filter", "MeanStdFilter"]] {
        let args = ["sample", "--json", "--num-envs", "2", "--env-steps", "1000000000000", "--log-level", "INFO"];
        let mut endless = Process::start(args.iter().chain(more));
        endless.line("INFO episode").await;
        endless.signal(Signal::INT);
        let summary = json(&endless.finish_with(3).await.stdout);
        assert!(summary["env_steps"].as_u64() > Some(0), "{summary}");
    }
}
