//! Recordings, pictures, rows and logs of `sample`.

use serde_json::Value;

use crate::support::{Process, json, process::Signal, until};

#[tokio::test]
async fn episodes_are_recorded_and_logged() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let args = ["sample", "--json", "--num-envs", "2", "--env-steps", "500", "--log-level", "INFO"];
    let end = Process::start(args.iter().copied().chain(["--monitor-path", &at("films"), "--log-dir", &at("logs")]))
        .finish_with(0)
        .await;
    let episodes = json(&end.stdout)["episodes"].as_u64().unwrap();
    let log = std::fs::read_to_string(directory.path().join("logs/worker-0.log")).unwrap();
    assert_eq!(log.lines().count() as u64, episodes);
    assert!(
        directory.path().join("films/stats.jsonl").exists() && directory.path().join("films/episode-0-1.gif").exists()
    );
}

#[tokio::test]
async fn episodes_of_workers_are_recorded_without_trace_in_the_rows() {
    let directory = tempfile::tempdir().unwrap();
    let sample = async |env: &str, more: &[&str]| {
        let flags = ["sample", "--json", "--num-workers", "2", "--num-envs", "8", "--env-steps", "3200", "--env", env];
        let end =
            Process::start(flags.iter().chain(&["--rollout-fragment-length", "50"]).chain(more)).finish_with(0).await;
        json(&end.stdout)["rollout_hash"].clone()
    };
    for env in ["CartPole-v1", "MultiAgentCartPole-v1", "FrozenLake-v1"] {
        let episodes = directory.path().join(env);
        assert_eq!(sample(env, &["--monitor-path", episodes.to_str().unwrap()]).await, sample(env, &[]).await, "{env}");
        let text = std::fs::read_to_string(episodes.join("stats.jsonl")).unwrap();
        let first = json(text.lines().next().unwrap());
        assert_eq!((&first["episode"], &first["complete"]), (&1.into(), &true.into()), "{env}");
        assert_eq!((&first["frames"], &first["file"]), (&first["length"], &"episode-1-1.gif".into()), "{env}");
    }
}

#[tokio::test]
async fn run_without_learner_is_evaluated_with_pictures() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("run");
    let evaluated = ["--evaluation-interval", "2", "--evaluation-episodes", "2", "--evaluation-render"];
    let settings = ["sample", "--json", "--env-steps", "1000000000", "--num-envs", "2", "--hidden", "8", "--run-dir"];
    let run = Process::start([&settings[..], &[run_dir.to_str().unwrap()], &evaluated].concat());
    let evaluations = || {
        let text = std::fs::read_to_string(run_dir.join("metrics.jsonl")).unwrap_or_default();
        text.lines().map(json).filter_map(|line| line.get("evaluation").cloned()).collect::<Vec<Value>>()
    };
    until("two evaluations", || evaluations().len() >= 2).await;
    run.signal(Signal::INT);
    let summary = json(&run.finish_with(3).await.stdout);
    assert_eq!(summary["evaluation"], *evaluations().last().unwrap());
    for evaluation in evaluations() {
        assert_eq!(evaluation["episodes"], 2);
        let gif = std::fs::read(run_dir.join(evaluation["gif"].as_str().unwrap())).unwrap();
        assert!(gif.starts_with(b"GIF89a"));
    }
    let alone = Process::start(["sample", "--evaluation-interval", "1"]).finish_with(2).await;
    assert!(alone.stderr.contains("add --run-dir or --num-workers"), "{}", alone.stderr);
}

#[tokio::test]
async fn written_samples_are_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let args = ["sample", "--json", "--num-envs", "2", "--env-steps", "800"];
    let first = Process::start(args.iter().copied().chain(["--output", &at("rows")])).finish_with(0).await;
    let first = json(&first.stdout);
    let files: Vec<_> = std::fs::read_dir(at("rows")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1);
    let text = std::fs::read_to_string(&files[0]).unwrap();
    assert_eq!((text.lines().count() as u64, &first["env_steps"]), (first["samples"].as_u64().unwrap(), &800.into()));

    let input = at("rows/*.json");
    std::fs::write(at("read.json"), format!(r#"{{"input": {input:?}, "num_envs": 2, "train_batch_size": 400}}"#))
        .unwrap();
    let args = ["sample", "--json", "--env-steps", "800", "--config", &at("read.json")];
    let read = json(&Process::start(args).finish_with(0).await.stdout);
    assert_eq!(read["batch_hash"], first["batch_hash"]);
}

#[tokio::test]
async fn plain_rollouts_are_logged() {
    let directory = tempfile::tempdir().unwrap();
    let log_dir = directory.path().join("logs").display().to_string();
    let args = ["sample", "--json", "--num-envs", "2", "--env-steps", "500", "--log-level", "DEBUG", "--log-dir"];
    let end = Process::start(args.iter().copied().chain([log_dir.as_str()])).finish_with(0).await;
    let log = std::fs::read_to_string(directory.path().join("logs/worker-0.log")).unwrap();
    assert_eq!(log.trim_end(), end.stderr);
    let lines = |level: &str| log.lines().filter(|line| line.starts_with(level)).count() as u64;
    assert_eq!(Some(lines("INFO episode")), json(&end.stdout)["episodes"].as_u64());
    assert_eq!(lines("DEBUG"), 4, "two fragments of two environments");
}
