//! `rollmesh train`: hub, workers and learner as processes and sockets, as people run it.

mod evaluations;
mod recordings;

use std::{fs, path::Path};

use crate::support::{
    Process, json, keys,
    process::{Signal, children_of, has_ended, kill},
    soon, until,
};
use rollmesh::{
    Registry,
    kernels::{AUTO, KernelChoice},
    train::RunConfig,
};
use rollmesh_core::{group::JournalEntry, run::StopConfig, time::Micros};
use rollmesh_learner::{InlineRun, InlineWork};
use serde_json::Value;

/// Twelve environments, whatever the number of workers, and a small network: an iteration takes milliseconds.
const SMALL: [&str; 8] =
    ["--env", "CartPole-v1", "--hidden", "16,16", "--rollout-fragment-length", "16", "--seed", "1"];

/// Env steps of a run in which there is time for things to happen.
const A_WHILE: u32 = 30_000;

struct Setup {
    directory: tempfile::TempDir,
    args: Vec<String>,
}

impl Setup {
    /// Returns a run that ends after `env_steps`.
    fn new(workers: u32, num_envs_per_worker: u32, env_steps: u32) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut args: Vec<String> = ["train"].into_iter().chain(SMALL).map(String::from).collect();
        let numbers =
            [("--workers", workers), ("--num-envs-per-worker", num_envs_per_worker), ("--max-env-steps", env_steps)];
        args.extend(numbers.iter().flat_map(|(flag, value)| [flag.to_string(), value.to_string()]));
        let setup = Self { directory, args };
        let run_dir = setup.run_dir().display().to_string();
        setup.with(&["--run-dir", &run_dir])
    }

    fn with(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|&arg| arg.to_owned()));
        self
    }

    fn run_dir(&self) -> std::path::PathBuf {
        self.directory.path().join("run")
    }

    fn start(&self) -> Process {
        Process::start(&self.args)
    }

    fn file(&self, name: &str) -> String {
        read(&self.run_dir().join(name))
    }

    fn summary(&self) -> Value {
        json(&self.file("summary.json"))
    }

    fn weights_hash(&self) -> String {
        self.summary()["weights_hash"].as_str().unwrap().to_owned()
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the hash of the weights after `env_steps` of an undisturbed run.
async fn undisturbed(env_steps: u32) -> String {
    let setup = Setup::new(1, 12, env_steps);
    setup.start().finish_with(0).await;
    setup.weights_hash()
}

#[tokio::test]
async fn metrics_are_written_for_tensorboard_and_mlflow_by_setting() {
    let setup = Setup::new(1, 12, 2_000);
    let store = setup.directory.path().join("mlruns");
    let mlflow = format!("host.mlflow={}", store.display());
    let setup = setup.with(&["--set", "host.tensorboard=true", "--set", &mlflow]);
    setup.start().finish_with(0).await;
    let events: Vec<_> = std::fs::read_dir(setup.run_dir().join("tensorboard")).unwrap().collect();
    let events = std::fs::read(events[0].as_ref().unwrap().path()).unwrap();
    assert!(events.windows(11).any(|bytes| bytes == b"steps_per_s"), "{} bytes", events.len());
    let experiment = std::fs::read_dir(&store).unwrap().next().unwrap().unwrap().path();
    let run =
        std::fs::read_dir(&experiment).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.is_dir()).unwrap();
    let iterations = setup.file("metrics.jsonl").lines().count();
    assert_eq!(read(&run.join("metrics/env_steps")).lines().count(), iterations);
    assert!(read(&run.join("meta.yaml")).contains("status: 3\n") && read(&run.join("params/seed")) == "1");
}

#[tokio::test]
async fn report_is_one_file_about_runs() {
    let (first, mut second) = (Setup::new(1, 12, 2_000), Setup::new(1, 12, 2_000));
    let seed = second.args.iter().position(|arg| arg == "--seed").unwrap();
    second.args[seed + 1] = "2".into();
    for setup in [&first, &second] {
        setup.start().finish_with(0).await;
    }
    let file = first.directory.path().join("report.html");
    let dirs = [first.run_dir(), second.run_dir()].map(|dir| dir.display().to_string());
    let output = file.display().to_string();
    Process::start(["report", &dirs[0], &dirs[1], "--output", &output]).finish_with(0).await;
    let report = read(&file);
    assert!(
        report.contains("<title>rollmesh: 2 runs</title>") && report.contains("class=\"band"),
        "one group of seeds"
    );
    assert!(report.contains(&first.weights_hash()) && report.contains(&second.weights_hash()));
    assert!(!report.contains("http") && !report.contains("src="), "it loads nothing else");
    Process::start(["report", &output]).finish_with(2).await;

    // A run that cannot be read is left out, and listed.
    fs::write(second.run_dir().join("config.toml"), "num_envs = 0").unwrap();
    let stderr = Process::start(["report", &dirs[0], &dirs[1], "--output", &output]).finish_with(0).await.stderr;
    assert!(stderr.contains("left out: ") && stderr.contains("num_envs is 0"), "{stderr}");
    let report = read(&file);
    assert!(report.contains("<title>rollmesh: 1 run</title>") && report.contains("Runs that could not be read"));
    Process::start(["report", &dirs[1], "--output", &output]).finish_with(2).await;
}

#[tokio::test]
async fn number_of_workers_does_not_change_the_weights() {
    let one = undisturbed(2_000).await;
    for (workers, num_envs_per_worker) in [(2, 6), (3, 4), (4, 3)] {
        let setup = Setup::new(workers, num_envs_per_worker, 2_000);
        setup.start().finish_with(0).await;
        assert_eq!(setup.weights_hash(), one, "{workers} workers");
    }
    assert_ne!(undisturbed(2_200).await, one, "more steps, other weights");
}

/// The threads that candle's own operations would share: as many as the machine has cores, unless the variable says otherwise.
#[tokio::test]
async fn number_of_threads_does_not_change_the_weights() {
    let usual = undisturbed(2_000).await;
    for threads in ["1", "7"] {
        let setup = Setup::new(1, 12, 2_000);
        let set_up = |command: &mut tokio::process::Command| _ = command.env("RAYON_NUM_THREADS", threads);
        Process::start_with(&setup.args, set_up).finish_with(0).await;
        assert_eq!(setup.weights_hash(), usual, "{threads} threads");
    }
}

/// Trains with a number of workers; returns the summary without the numbers that depend on their speed.
async fn summary_of(env: &str, more: &str, workers: u32) -> Value {
    let directory = tempfile::tempdir().unwrap();
    let settings = format!(
        "train --env {env} --workers {workers} --num-slots 6 --rollout-fragment-length 16 --hidden 16,16 --seed 1 \
         --max-env-steps 480 --no-dashboard --json{more} --run-dir"
    );
    let run_dir = directory.path().join("run").into_os_string();
    let finished = Process::start(settings.split(' ').map(Into::into).chain([run_dir])).finish_with(0).await;
    let mut summary = json(&finished.stdout);
    let all = summary.as_object_mut().unwrap();
    all.remove("wall_s").expect("how long it took");
    // On a busy machine a worker may take over a slot of another one.
    all.remove("moved_slots");
    summary
}

#[tokio::test]
async fn zero_workers_sample_in_process_bit_identically() {
    let in_processes = " --set remote_worker_envs=true";
    let cases = ["CartPole-v1", "Pendulum-v1", "FrozenLake-v1"].map(|env| (env, ""));
    let cases = cases.into_iter().chain(["FrozenLake-v1", "MultiAgentCartPole-v1"].map(|env| (env, in_processes)));
    for (env, more) in cases {
        let in_process = summary_of(env, more, 0).await;
        assert_eq!(in_process["env_steps"], 480, "{in_process}");
        for workers in 1..=3 {
            assert_eq!(summary_of(env, more, workers).await, in_process, "{env}{more} with {workers} workers");
        }
    }
}

#[tokio::test]
async fn remote_only_run_waits_for_a_worker_and_prints_its_command_without_a_dashboard() {
    let setup = Setup::new(0, 12, 2_000).with(&["--remote-only", "--no-dashboard"]);
    let mut run = setup.start();
    let command = run.line("rollmesh worker --hub ws://").await;
    let (before, address) = command.split_once(" rollmesh worker --hub ws://").unwrap();
    let worker = Process::worker(address, before.split_once("ROLLMESH_TOKEN=").unwrap().1);
    let finished = run.finish_with(0).await;
    worker.finish_with(0).await;
    assert!(!finished.stderr.contains("in-process") && !finished.stderr.contains("http://"), "{}", finished.stderr);
    assert_eq!(setup.weights_hash(), undisturbed(2_000).await);

    let contradiction = Setup::new(1, 12, 2_000).with(&["--remote-only"]).start().finish_with(2).await;
    let words = "--remote-only starts no workers: leave --workers out";
    assert!(contradiction.stderr.contains(words), "{}", contradiction.stderr);
}

#[tokio::test]
async fn asynchronous_training_does_not_wait_for_stragglers_and_reports_its_staleness() {
    for mode in [["--mode", "async", "--max-staleness", "1"], ["--mode", "deadline", "--deadline-ms", "20"]] {
        let setup = Setup::new(2, 6, 4_000).with(&mode);
        setup.start().finish_with(0).await;
        let (mut newest, mut queued, mut consumed) = (0, std::collections::VecDeque::new(), 0);
        for line in setup.file("journal.jsonl").lines() {
            let entry = json(line);
            if let Some(began) = entry.get("began") {
                newest = began["weights_version"].as_u64().unwrap();
                queued.retain(|version| newest - version <= 1);
            } else if let Some(committed) = entry.get("committed") {
                queued.push_back(committed["weights_version"].as_u64().unwrap());
            } else {
                let fragments = entry["batch"]["fragments"].as_u64().unwrap();
                consumed += 16 * fragments;
                assert!(queued.drain(..fragments as usize).all(|version| newest - version <= 1), "{mode:?}: {line}");
            }
        }
        assert!(newest > 5, "only {newest} updates");
        assert_eq!(setup.summary()["env_steps"], consumed);
        assert!(setup.file("config.toml").contains("max_staleness = 1"));
        // By the journal every build learns the same weights.
        let config = RunConfig::of_settings(&toml::from_str(&setup.file("config.toml")).unwrap()).unwrap();
        let journal: Vec<JournalEntry> =
            setup.file("journal.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for kernels in KernelChoice::ALL.into_iter().filter_map(|choice| choice.table().ok()) {
            let registry = Registry::builtin();
            let mut again = InlineRun::replaying(1, config.clone(), &registry, kernels, journal.clone()).unwrap();
            while again.work(u32::MAX, Micros(0)).unwrap() != InlineWork::Over {}
            assert_eq!(again.state().weights_hash().to_string(), setup.weights_hash(), "{mode:?} {}", kernels.name);
        }
        // Without another end, the replay ends where the journal does, as after a run that was drained.
        let endless = RunConfig { stop: StopConfig::default(), ..config.clone() };
        for (config, batches) in [(endless, u64::MAX), (config, 3)] {
            let mut taken = 0;
            let is_taken = |entry: &JournalEntry| {
                taken += u64::from(matches!(entry, JournalEntry::Batch { .. }));
                taken <= batches
            };
            let journal: Vec<JournalEntry> = journal.iter().copied().take_while(is_taken).collect();
            let batches = journal.iter().filter(|entry| matches!(entry, JournalEntry::Batch { .. })).count() as u64;
            let mut again = InlineRun::replaying(1, config, &Registry::builtin(), AUTO, journal).unwrap();
            while again.work(u32::MAX, Micros(0)).unwrap() != InlineWork::Over {
                assert!(again.state().iteration() <= batches, "{mode:?}: it continues after the journal's end");
            }
            assert_eq!(again.state().iteration(), batches, "{mode:?}");
        }
    }
}

#[tokio::test]
async fn killed_workers_are_replaced_and_do_not_show_in_the_weights() {
    let setup = Setup::new(2, 6, A_WHILE);
    let mut run = setup.start();
    // Whenever both are connected, one is killed.
    let (mut joined, mut killed) = (0, 0);
    while let Some(line) = soon("a line", run.next_line()).await {
        joined += u32::from(line.contains(" joined: "));
        if joined >= 2 && line.contains(" joined: ") && killed < 3 {
            kill(children_of(run.pid())[killed % 2]);
            killed += 1;
        }
    }
    let end = run.finish_with(0).await;
    assert!(killed >= 2, "{}", end.stderr);
    assert!(end.stderr.contains("another one takes its place"), "{}", end.stderr);
    assert_eq!(setup.weights_hash(), undisturbed(A_WHILE).await);
}

#[tokio::test]
async fn joining_workers_do_the_work_and_change_no_weights() {
    let setup = Setup::new(0, 12, 2_000).with(&["--remote-only"]);
    let mut run = setup.start();
    let invitation = run.invitation().await;
    // One may start when the other has done all the work; then it tries to connect until the test ends.
    let _workers = [(); 2].map(|()| Process::worker(&invitation.address, &invitation.worker_token));
    run.finish_with(0).await;
    assert_eq!(setup.weights_hash(), undisturbed(2_000).await);
}

#[tokio::test]
async fn a_run_directory_holds_what_was_run_and_what_came_of_it() {
    let setup = Setup::new(2, 6, 2_000).with(&["--stop-return", "475"]);
    setup.start().finish_with(3).await;

    let config = RunConfig::of_settings(&toml::from_str(&setup.file("config.toml")).unwrap()).unwrap();
    let rollout = &config.rollout;
    assert_eq!((config.env(), rollout.seed, config.num_workers, rollout.num_envs), ("CartPole-v1", 1, 2, 6));
    assert_eq!(rollout.model_config.get("fcnet_hiddens"), Ok(Some(vec![16, 16])));
    assert_eq!((config.stop.episode_return_mean, config.stop.env_steps), (Some(475.0), 2_000));
    assert_eq!((config.fragment_length(), config.num_slots), (16, Some(12)));

    let metrics: Vec<Value> = setup.file("metrics.jsonl").lines().map(json).collect();
    // 192 steps an iteration: the eleventh is the first to reach 2,000.
    assert_eq!(metrics.len(), 11);
    for (i, line) in metrics.iter().enumerate() {
        assert_eq!((&line["iteration"], &line["env_steps"]), (&(i + 1).into(), &(192 * (i + 1)).into()));
        let names = ["steps_per_s", "wall_s", "policy_loss", "vf_loss", "entropy", "kl", "lag_mean", "lag_max"];
        for name in names.into_iter().chain(["episode_return_mean", "episode_len_mean"]) {
            assert!(line[name].is_f64(), "{name} in {line}");
        }
        assert!(line["steps_per_s"].as_f64() > Some(0.0) && line["entropy"].as_f64() > Some(0.0), "{line}");
    }

    let summary = setup.summary();
    let mut names = keys(&summary);
    names.sort_unstable();
    // The workers' speeds decide whether a slot moves.
    names.retain(|name| *name != "moved_slots");
    let expected =
        ["algo", "end", "env", "env_steps", "episode_return_mean", "iterations", "reproducible", "seed", "solved"];
    assert_eq!(names, [&expected[..], &["wall_s", "weights_hash"]].concat());
    assert_eq!(summary["iterations"], 11);
    assert_eq!((&summary["env"], &summary["algo"]), (&"CartPole-v1".into(), &"ppo".into()));
    assert_eq!((&summary["seed"], &summary["solved"]), (&1.into(), &false.into()));
    assert_eq!(summary["env_steps"], 2_112);
    assert_eq!(summary["episode_return_mean"], metrics[10]["episode_return_mean"]);
    assert_eq!(setup.weights_hash().len(), 32);

    let again = setup.start().finish_with(2).await;
    assert!(again.stderr.contains("already holds a run; choose another directory with --run-dir"), "{}", again.stderr);
    assert_eq!(setup.summary(), summary, "the earlier run's files are as they were");
}

#[tokio::test]
async fn a_run_is_repeated_from_its_configuration() {
    let first = Setup::new(1, 4, 512).with(&["--policy-config", r#"{"lr": 0.02, "num_sgd_iter": 2}"#]);
    first.start().finish_with(0).await;
    let config = RunConfig::of_settings(&toml::from_str(&first.file("config.toml")).unwrap()).unwrap();
    let setting = |name: &str| config.rollout.policy_config.get::<f64>(name).unwrap();
    assert_eq!(["lr", "num_epochs", "gamma"].map(setting), [Some(0.02), Some(2.0), Some(0.98)]);

    let repeat = |args: &[&str]| {
        let run_dir = first.directory.path().join(format!("again-{}", args.len()));
        let config = first.run_dir().join("config.toml").display().to_string();
        let flags = ["--config", &config, "--run-dir", &run_dir.display().to_string()].map(str::to_owned);
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        async move {
            Process::start(["train".to_owned()].into_iter().chain(flags).chain(args)).finish_with(0).await;
            json(&read(&run_dir.join("summary.json")))["weights_hash"].as_str().unwrap().to_owned()
        }
    };
    assert_eq!(repeat(&[]).await, first.summary()["weights_hash"]);
    assert_ne!(
        repeat(&["--policy-config", r#"{"lr": 0.01}"#]).await,
        first.summary()["weights_hash"],
        "flags override"
    );
    // A wrong flag is not the file's fault.
    let config = first.run_dir().join("config.toml").display().to_string();
    let refused = Process::start(["train", "--config", &config, "--set", "seed=abc"]).finish_with(2).await.stderr;
    assert!(refused.starts_with("error: seed is \"abc\""), "{refused}");
    let wrong = first.directory.path().join("wrong.toml");
    std::fs::write(&wrong, "num_envs = 2").unwrap();
    let without_env = ["train", "--config", wrong.to_str().unwrap(), "--env", "CartPole-v1", "--set", "seed=abc"];
    let refused = Process::start(without_env).finish_with(2).await.stderr;
    assert!(refused.starts_with("error: seed is \"abc\""), "{refused}");
    std::fs::write(&wrong, "seed = \"abc\"").unwrap();
    let refused =
        Process::start(["train".as_ref(), "--config".as_ref(), wrong.as_os_str()]).finish_with(2).await.stderr;
    assert!(refused.starts_with(&format!("error: {}: seed is ", wrong.display())), "{refused}");
}

#[tokio::test]
async fn a_stop_return_that_is_reached_ends_the_run_with_0() {
    let setup = Setup::new(2, 6, 100_000).with(&["--stop-return", "9"]);
    setup.start().finish_with(0).await;
    assert_eq!(setup.summary()["solved"], true);
    let metrics: Vec<Value> = setup.file("metrics.jsonl").lines().map(json).collect();
    // Random play returns more than 9 from the first episode on, and 192 steps are fewer than 100 episodes.
    assert!(metrics[0]["episode_return_mean"].as_f64() > Some(9.0) && metrics.len() > 1, "{metrics:?}");
}

#[tokio::test]
async fn json_is_one_object_and_nothing_else() {
    let setup = Setup::new(2, 6, 2_000).with(&["--json"]);
    let end = setup.start().finish_with(0).await;
    assert_eq!(end.stdout.lines().count(), 1);
    assert_eq!(json(&end.stdout), setup.summary());
    assert_eq!(end.stderr, "");
}

#[tokio::test]
async fn wrong_usage_ends_with_2_and_says_what_to_do() {
    let cases: [(&[&str], &str); 17] = [
        (
            &["--env", "CartPole-v9"],
            "there is no environment 'CartPole-v9'; did you mean CartPole-v1? known are: Acrobot-v1",
        ),
        (&["--device", "cuda:0"], "`--features cuda`; use --device cpu otherwise"),
        (&["--worker-device", "cuda:0"], "host.worker.device is cuda:0; it must be cpu, unless device_rows is true"),
        (
            &["--worker-device", "cuda:0", "--set", "device_rows=true"],
            "cuda:0 needs a program built with `--features cuda`",
        ),
        (&["--device", "abacus"], "'abacus' is no device; use cpu, cuda:N or metal"),
        (&["--listen", "0.0.0.0:0"], "listen on 127.0.0.1 and use an SSH tunnel"),
        (&["--listen", "192.0.2.1:80"], "listen on 127.0.0.1 and use an SSH tunnel"),
        (&["--hidden", "0"], "model_config.fcnet_hiddens[0] is 0; it must be from 1 to 16384"),
        (
            &["--hidden", "4096,4097"],
            "model_config.fcnet_hiddens is of 16781312 weights; it must be of at most 16777216, since more do not fit into a message to workers",
        ),
        (&["--max-env-steps", "0"], "stop.env_steps is 0; it must be at least 1"),
        (&["--stop-return", "NaN"], "--stop-return is NaN; it must be a finite number"),
        (
            &["--policy-config", r#"{"learning_rate": 1}"#],
            "policy_config.learning_rate: there is no such setting; known are gamma, ",
        ),
        (&["--policy-config", r#"{"lr": -1}"#], "policy_config.lr: -1 must be above 0"),
        (
            &["--set", "policies.default_policy.x=1"],
            "policies.default_policy.x: there is no such setting; known are policy, ",
        ),
        (&["--set", "policies.default_policy.config.lr=-1"], "policies.default_policy.config.lr: -1 must be above 0"),
        (&["--config", "nowhere.toml"], "nowhere.toml: No such file or directory"),
        (&["--set", "num_worker=3"], "num_worker: there is no such setting; did you mean num_workers?"),
    ];
    for (args, message) in cases {
        let directory = tempfile::tempdir().unwrap();
        let run_dir = directory.path().join("run");
        let run_dir_args = ["train".as_ref(), "--run-dir".as_ref(), run_dir.as_os_str()];
        let all = run_dir_args.into_iter().chain(args.iter().map(AsRef::as_ref));
        let end = Process::start(all).finish_with(2).await;
        assert!(end.stderr.contains(message), "{args:?}: {}", end.stderr);
        assert!(!run_dir.exists(), "{args:?} leaves nothing behind");
    }
}

#[tokio::test]
async fn fragments_that_fit_into_no_upload_end_with_2_and_shorter_ones_train_in_the_same_directory() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let start = |length: &str| {
        let args =
            ["--env", "PixelSeaquest-v0", "--hidden", "4", "--workers", "1", "--num-slots", "1", "--no-dashboard"];
        let length = ["--max-env-steps", "16", "--rollout-fragment-length", length];
        let settings = args.iter().chain(&length).map(AsRef::as_ref);
        Process::start(["train".as_ref(), "--run-dir".as_ref(), run_dir.as_os_str()].into_iter().chain(settings))
    };
    let end = start("60000").finish_with(2).await;
    let advice = "is larger than the 33554432 that a receiver accepts; set `rollout_fragment_length` to at most ";
    assert!(end.stderr.contains(advice), "{}", end.stderr);
    start("16").finish_with(0).await;
}

#[tokio::test]
async fn local_workers_have_the_extra_environment_variables() {
    let limit = ["--set", "remote_env_memory_mb=123", "--no-dashboard"];
    let setup = Setup::new(1, 12, A_WHILE).with(&["--extra-environ", "ROLLMESH_TEST=a=b"]).with(&limit);
    let run = setup.start();
    until("a worker", || !children_of(run.pid()).is_empty()).await;
    let worker = children_of(run.pid())[0];
    let variables = || std::fs::read_to_string(format!("/proc/{worker}/environ")).unwrap_or_default();
    // Between fork and exec it is a copy of its parent.
    until("its variables", || variables().split('\0').any(|variable| variable == "ROLLMESH_TEST=a=b")).await;
    assert!(variables().split('\0').any(|variable| variable == "ROLLMESH_ENV_MEMORY_MB=123"), "{}", variables());
    run.signal(Signal::INT);
    run.finish_with(3).await;
    for (variable, fault) in [("=x", "needs a name"), ("ROLLMESH_TOKEN=x", "the worker's token"), ("x", "NAME=VALUE")] {
        let end = Process::start(["train", "--extra-environ", variable]).finish_with(2).await;
        assert!(end.stderr.contains(fault), "{}", end.stderr);
    }
}

#[tokio::test]
async fn a_busy_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let setup = Setup::new(1, 12, 2_000).with(&["--listen", &address]);
    let end = setup.start().finish_with(2).await;
    assert!(end.stderr.contains(&format!("cannot listen on {address}")), "{}", end.stderr);
    assert!(end.stderr.contains("choose another address with --listen"), "{}", end.stderr);
}

#[tokio::test]
async fn an_interrupted_run_has_a_summary_and_leaves_no_process() {
    for (signal, code) in [(Signal::INT, 3), (Signal::TERM, 0)] {
        let setup = Setup::new(2, 6, 1_000_000_000);
        let mut run = setup.start();
        run.line(" joined: ").await;
        run.line(" joined: ").await;
        let workers = children_of(run.pid());
        assert_eq!(workers.len(), 2);
        run.signal(signal);
        let end = run.finish_with(code).await;
        assert!(end.stdout.contains("weights hash"), "{}", end.stdout);
        assert_eq!(setup.summary()["solved"], false);
        assert!(workers.iter().all(|&worker| has_ended(worker)), "{signal:?}");
    }
}

#[tokio::test]
async fn no_worker_outlives_a_hub_that_is_killed() {
    let mut run = Setup::new(2, 6, 1_000_000_000).start();
    run.line(" joined: ").await;
    run.line(" joined: ").await;
    let workers = children_of(run.pid());
    assert_eq!(workers.len(), 2);
    run.signal(Signal::KILL);
    run.finish().await;
    until("the end of both workers", || workers.iter().all(|&worker| has_ended(worker))).await;
}

/// Checks settings that leases do not support: the run's own process samples.
#[tokio::test]
async fn settings_that_cannot_be_leased_are_sampled_by_the_runs_own_worker() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let (config, episodes, kept) = (at("poles.toml"), at("episodes"), at("kept"));
    let settings = format!(
        r#"
        env = "MultiAgentCartPole-v1"
        env_config = {{ num_agents = 2 }}
        num_workers = 0
        num_envs = 1
        rollout_fragment_length = 64
        train_batch_size = 128
        policy_mapping_fn = "agent_id"
        policies_to_train = ["1"]
        monitor_path = "{episodes}"
        device_rows = true
        policies.0 = {{ policy = "random" }}
        policies.1 = {{ policy = "a2c", config = {{ model = {{ fcnet_hiddens = [8] }} }} }}
    "#
    );
    std::fs::write(&config, settings).unwrap();
    let train = ["train", "--json", "--no-dashboard", "--config", &config];
    let calm = at("calm");
    let more = ["--max-env-steps", "1024", "--run-dir", &calm, "--output", &kept];
    let end = Process::start(train.iter().chain(&more)).finish_with(0).await;
    assert!(end.stderr.contains("only this process samples, workers cannot join: monitor_path"), "{}", end.stderr);
    let summary = json(&end.stdout);
    assert_eq!((&summary["iterations"], &summary["env_steps"]), (&8.into(), &1024.into()));
    assert!(summary["episode_return_mean"].as_f64() > Some(0.0), "{summary}");
    assert_eq!(keys(&summary["policies"]), ["0", "1"]);
    let lines = read(&Path::new(&calm).join("metrics.jsonl"));
    assert!(lines.lines().map(json).all(|line| keys(&line["policies"]) == ["1"]), "one policy learns: {lines}");
    assert!(std::fs::read_dir(&episodes).unwrap().count() > 0, "episodes are recorded");
    let inspect = Process::start(["data", "inspect", &kept, "--json"]).finish_with(0).await;
    assert_eq!(json(&inspect.stdout)["env_steps"], 1024);

    let shown = ["train", "--listen", "127.0.0.1:0", "--config", &config, "--max-env-steps", "128"];
    let end = Process::start(shown.into_iter().chain(["--run-dir", &at("shown")])).finish_with(0).await;
    assert!(end.stderr.contains("dashboard  http://") && !end.stderr.contains("rollmesh worker"), "{}", end.stderr);

    // Interrupted, it keeps what was learned, and continues from there.
    let broken = at("broken");
    let more = ["--max-env-steps", "100000000", "--run-dir", &broken];
    let endless = Process::start(train.iter().chain(&more));
    let metrics = Path::new(&broken).join("metrics.jsonl");
    until("two iterations", || std::fs::read_to_string(&metrics).is_ok_and(|text| text.lines().count() > 2)).await;
    endless.signal(Signal::INT);
    let stopped = json(&endless.finish_with(3).await.stdout);
    let further = stopped["env_steps"].as_u64().unwrap() + 256;
    let args = ["train", "--json", "--no-dashboard", "--resume", &broken, "--max-env-steps", &further.to_string()];
    let on = json(&Process::start(args).finish_with(0).await.stdout);
    assert_eq!(on["env_steps"], further);
}
