//! `rollmesh data` and `rollmesh train --input`, as people run them.
#![cfg(all(target_os = "linux", feature = "offline-parquet"))]

mod support;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use support::{Process, json, keys};

fn golden(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/conformance/data").join(name).display().to_string()
}

/// A folder that is gone after the test.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

/// Runs `rollmesh data` and reads the object that it prints.
async fn data(args: &[&str], code: i32) -> Value {
    let end = Process::start(["data"].iter().chain(args).chain(&["--json"])).finish_with(code).await;
    json(&end.stdout)
}

/// The rows of an input as `head` shows them, without the columns that are numbered anew.
async fn rows(input: &str) -> Vec<Value> {
    let end = Process::start(["data", "head", input, "--rows", "100000", "--json"]).finish_with(0).await;
    end.stdout.lines().map(json).collect()
}

async fn sampled(folder: &Folder, name: &str, seed: &str) -> String {
    sampled_in(folder, name, seed, "200").await
}

/// As many steps of three environments at once are in a line.
async fn sampled_in(folder: &Folder, name: &str, seed: &str, fragment: &str) -> String {
    let output = folder.path(name);
    let args = ["sample", "--env-steps", "600", "--num-envs", "3", "--seed", seed, "--output", &output, "--json"];
    Process::start(args.into_iter().chain(["--rollout-fragment-length", fragment])).finish_with(0).await;
    output
}

#[tokio::test]
async fn files_are_inspected_in_every_format() {
    for (name, rows, episodes) in [
        ("pendulum_random_d4rl.hdf5", 1990, 10),
        ("minari_cartpole_hdf5", 812, 30),
        ("minari_cartpole_arrow", 812, 30),
        ("minari_cartpole_parquet", 812, 30),
        ("single_plain.json", 12, 2),
    ] {
        let about = data(&["inspect", &golden(name)], 0).await;
        let policy = &about["policies"]["default_policy"];
        assert_eq!((&about["env_steps"], &policy["episodes"]), (&rows.into(), &episodes.into()), "{name}");
        let counted: u64 =
            policy["histogram"].as_array().unwrap().iter().map(|bin| bin["count"].as_u64().unwrap()).sum();
        assert_eq!(counted, episodes as u64, "{name}");
    }
    let end = Process::start(["data", "inspect", &golden("minari_cartpole_arrow")]).finish_with(0).await;
    assert!(end.stdout.contains("return      27.0667 (from 12 to 81)"), "{}", end.stdout);
    assert!(end.stdout.contains("16 to 24  ████████████████████████████████████████ 11"), "{}", end.stdout);
}

#[tokio::test]
async fn conversions_lose_nothing_or_say_what() {
    let folder = Folder::new();
    let samples = sampled(&folder, "samples", "1").await;
    let (tables, back) = (folder.path("tables"), folder.path("back"));
    let there = data(&["convert", &samples, "--to", "parquet", "--output", &tables], 0).await;
    assert_eq!(there["lost"], json!([]));
    assert_eq!(rows(&tables).await, rows(&samples).await);
    let again = data(&["convert", &tables, "--to", "json", "--output", &back], 0).await;
    assert_eq!(again["outputs"][0]["env_steps"], 600);
    assert_eq!(rows(&back).await, rows(&samples).await);

    let set = folder.path("cartpole/random-v0");
    let minari = data(&["convert", &samples, "--to", "minari", "--env", "CartPole-v1", "--output", &set], 0).await;
    let lost: Vec<&str> = minari["lost"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(lost.contains(&"column 'action_logp'") && lost.contains(&"numbers of episodes: they are numbered from 0"));
    assert!(lost.iter().any(|what| what.ends_with("episodes have no end: their last steps are truncated")), "{lost:?}");
    let metadata = fs::read_to_string(Path::new(&set).join("data/metadata.json")).unwrap();
    assert_eq!(json(&metadata)["dataset_id"], "cartpole/random-v0");
    let about = data(&["inspect", &set], 0).await;
    assert_eq!(about["env_steps"], 600);

    let d4rl = folder.path("d4rl");
    let lost = data(&["convert", &golden("pendulum_random_d4rl.hdf5"), "--to", "json", "--output", &d4rl], 0).await;
    assert_eq!(lost["lost"][0], "10 rows that only gave their observation, as the last ones before a cut");
    let taken = Process::start(["data", "convert", &samples, "--output", &samples]).finish_with(2).await;
    assert!(taken.stderr.contains("is not empty"), "{}", taken.stderr);
}

#[tokio::test]
async fn merging_and_splitting_keep_every_step_of_every_episode() {
    let folder = Folder::new();
    let (a, b) = (sampled(&folder, "a", "1").await, sampled(&folder, "b", "2").await);
    let tables = folder.path("tables");
    data(&["convert", &b, "--to", "parquet", "--output", &tables], 0).await;
    let (all, parts) = (folder.path("all"), folder.path("parts"));
    data(&["merge", &a, &tables, "--output", &all, "--to", "parquet"], 0).await;
    let numbers = |rows: &[Value]| rows.iter().map(|row| row["eps_id"].as_i64().unwrap()).collect::<Vec<_>>();
    let (of_a, of_all) = (numbers(&rows(&a).await), numbers(&rows(&all).await));
    assert_eq!(of_all.len(), 1200);
    let (first, rest) = of_all.split_at(of_a.len());
    assert!(first.iter().all(|id| !rest.contains(id)), "the episodes of the files are told apart");
    assert_eq!(first[0], 0);

    let split = data(&["split", &all, "--fractions", "0.75,0.25", "--output", &parts], 0).await;
    let steps: Vec<u64> = (0..2).map(|part| split["outputs"][part]["env_steps"].as_u64().unwrap()).collect();
    assert!(steps[0] + steps[1] == 1200 && (800..1000).contains(&steps[0]), "{steps:?}");
    let mut of_parts = Vec::new();
    for part in ["part-0", "part-1"] {
        of_parts.push(numbers(&rows(&PathBuf::from(&parts).join(part).display().to_string()).await));
    }
    assert!(of_parts[0].iter().all(|id| !of_parts[1].contains(id)), "episodes stay whole");
}

/// Ids of episodes are the same in every run.
#[tokio::test]
async fn episodes_end_with_their_run_and_not_with_their_file() {
    let folder = Folder::new();
    let (monday, tuesday) =
        (sampled_in(&folder, "monday", "1", "10").await, sampled_in(&folder, "tuesday", "2", "10").await);
    let count = |about: &Value| {
        let episodes = &about["policies"]["default_policy"];
        (episodes["episodes"].as_u64().unwrap(), episodes["unfinished"].as_u64().unwrap())
    };
    let mut apart = (0, 0);
    for run in [&monday, &tuesday] {
        let (episodes, unfinished) = count(&data(&["inspect", run], 0).await);
        apart = (apart.0 + episodes, apart.1 + unfinished);
    }
    assert!(apart.1 > 1, "some are open where the next run begins");
    assert_eq!(count(&data(&["inspect", &monday, &tuesday], 0).await), apart);
    let set = folder.path("cartpole/both-v0");
    data(&["convert", &monday, &tuesday, "--to", "minari", "--env", "CartPole-v1", "--output", &set], 0).await;
    assert_eq!(count(&data(&["inspect", &set], 0).await).0, apart.0 + apart.1, "Minari's all have an end");

    // The same in many files.
    let (pieces, merged, parts) = (folder.path("pieces"), folder.path("merged"), folder.path("parts"));
    data(&["convert", &monday, &tuesday, "--to", "json", "--max-file-size", "1", "--output", &pieces], 0).await;
    assert!(fs::read_dir(&pieces).unwrap().count() > 30);
    assert_eq!(count(&data(&["inspect", &pieces], 0).await), apart);
    data(&["merge", &pieces, "--output", &merged], 0).await;
    let ids = |rows: &[Value]| rows.iter().map(|row| row["eps_id"].as_i64().unwrap()).collect::<BTreeSet<_>>();
    assert_eq!(ids(&rows(&merged).await).len() as u64, apart.0 + apart.1);
    assert_eq!(count(&data(&["inspect", &merged], 0).await), apart);
    data(&["split", &pieces, "--fractions", "0.5,0.5", "--output", &parts], 0).await;
    let mut of_parts = (0, 0);
    for part in ["part-0", "part-1"] {
        let part = PathBuf::from(&parts).join(part).display().to_string();
        let (episodes, unfinished) = count(&data(&["inspect", &part], 0).await);
        of_parts = (of_parts.0 + episodes, of_parts.1 + unfinished);
    }
    assert_eq!(of_parts, apart, "no episode is in both");
}

#[tokio::test]
async fn problems_are_told_with_their_rows() {
    let folder = Folder::new();
    let samples = sampled(&folder, "samples", "1").await;
    assert_eq!(data(&["validate", &samples, "--env", "CartPole-v1"], 0).await["problems"], json!({}));
    let file = fs::read_dir(&samples).unwrap().next().unwrap().unwrap().path();
    let good = fs::read_to_string(&file).unwrap();
    let bad = good.replacen("\"actions\": [", "\"actions\": [7, ", 1);
    let line = r#"{"type": "SampleBatch", "obs": [[1.0], [NaN]], "actions": [0, 1], "rewards": [0.0, 0.0], "eps_id": [999, 999], "t": [0, 2], "terminateds": [true, false]}"#;
    fs::write(&file, format!("{good}{bad}{line}\n")).unwrap();
    let found = data(&["validate", &samples], 1).await["problems"].clone();
    let place = |what: &str| found[what]["places"][0].as_str().unwrap_or_default().to_owned();
    assert!(place("lines that are no batches").contains("line 2"), "{found}");
    assert!(place("rows of 'obs' with numbers that are not finite").ends_with("line 3, row 1"), "{found}");
    assert!(place("steps after the end of their episode").ends_with("line 3, row 1"), "{found}");
    assert!(place("columns that change their type or shape").contains("'obs' is"), "{found}");
    let outside = data(&["validate", &golden("pendulum_random_d4rl.hdf5"), "--env", "CartPole-v1"], 1).await;
    assert!(keys(&outside["problems"]).contains(&"batches with 'obs' outside of the space"), "{outside}");
    let nothing = data(&["validate", &golden("mal_blank.json")], 1).await;
    assert_eq!(nothing["problems"]["files without any batch"]["count"], 1);
}

#[tokio::test]
async fn unknown_names_are_a_mistake_of_usage() {
    for command in [["data", "inspect", "nobody/knows-v3"], ["train", "--input", "nobody/knows-v3"]] {
        let end = Process::start(command).finish_with(2).await;
        assert!(end.stderr.contains("there is no data set 'nobody/knows-v3'"), "{}", end.stderr);
    }
    let end = Process::start(["train", "--algo", "bc"]).finish_with(2).await;
    assert!(end.stderr.contains("name it with --input"), "{}", end.stderr);
}

/// An expert that our own PPO makes, 50 episodes of it, and the clone that learns from nothing else.
#[tokio::test]
async fn a_clone_of_fifty_expert_episodes_reaches_475() {
    let folder = Folder::new();
    let (expert, samples, clone) = (folder.path("expert"), folder.path("samples"), folder.path("clone"));
    let kept = folder.path("kept");
    #[rustfmt::skip]
    let train = [
        "train", "--env", "CartPole-v1", "--seed", "1", "--stop-return", "475", "--max-env-steps", "200000", "--no-dashboard",
        "--run-dir", &expert, "--output", &kept, "--json",
    ];
    let learned = json(&Process::start(train).finish_with(0).await.stdout);
    let kept = data(&["inspect", &kept], 0).await;
    assert_eq!(kept["env_steps"], learned["env_steps"], "all that was sampled is kept");
    #[rustfmt::skip]
    let sample = [
        "sample", "--checkpoint", &expert, "--deterministic", "--num-envs", "50", "--rollout-fragment-length", "500",
        "--env-steps", "25000", "--output", &samples, "--json",
    ];
    let sampled = json(&Process::start(sample).finish_with(0).await.stdout);
    assert!(sampled["episodes"].as_u64() >= Some(50), "{sampled}");
    #[rustfmt::skip]
    let imitate = [
        "train", "--input", &samples, "--algo", "bc", "--stop-return", "475", "--max-env-steps", "500000", "--run-dir", &clone,
        "--json",
    ];
    let cloned = json(&Process::start(imitate).finish_with(0).await.stdout);
    assert!(cloned["evaluation"]["return_mean"].as_f64() >= Some(475.0), "{cloned}");
    assert_eq!(cloned["evaluation"]["episodes"], 20);
    // What it leaves is a policy like any other.
    let args = ["sample", "--checkpoint", &clone, "--deterministic", "--env-steps", "600", "--num-envs", "1", "--json"];
    assert_eq!(json(&Process::start(args).finish_with(0).await.stdout)["env_steps"], 600);
    for file in ["config.toml", "metrics.jsonl", "policy.json", "summary.json", "weights.safetensors"] {
        assert!(Path::new(&clone).join(file).is_file(), "{file}");
    }
    // Its settings are those of `learn`, too.
    let config = Path::new(&clone).join("config.toml").display().to_string();
    let args = ["learn", "--config", &config, "--iterations", "1", "--json"];
    let again = json(&Process::start(args).finish_with(0).await.stdout);
    assert_eq!(again["env_steps"], 25_000);
}
