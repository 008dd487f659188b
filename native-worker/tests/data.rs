//! `rollmesh data` and `rollmesh train --input`, as people run them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use crate::support::{Process, json, keys, process::Signal, until};
use rollmesh::offline::{
    json::{JsonWriter, JsonWriterOptions},
    open_logged,
};
use rollmesh_core::batch::SampleBatch;
use rollmesh_data::dataset::BatchStream as _;
use serde_json::{Value, json};

pub(crate) fn golden(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/conformance/data").join(name).display().to_string()
}

/// A folder that is removed after the test.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }
}

/// Runs `rollmesh data` and reads the object that it prints.
async fn data(args: &[&str], code: i32) -> Value {
    let end = Process::start(["data"].iter().chain(args).chain(&["--json"])).finish_with(code).await;
    json(&end.stdout)
}

/// Returns the rows of an input as `head` shows them, without the columns that are renumbered.
async fn rows(input: &str) -> Vec<Value> {
    let end = Process::start(["data", "head", input, "--rows", "100000", "--json"]).finish_with(0).await;
    end.stdout.lines().map(json).collect()
}

async fn sampled(folder: &Folder, name: &str, seed: &str) -> String {
    sampled_in(folder, name, seed, "200").await
}

/// Samples into a folder: each line has this many steps of three environments together.
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
async fn printed_reports_show_full_numbers_and_no_empty_sections() {
    let plain = Process::start(["data", "inspect", &golden("single_plain.json")]).finish_with(0).await.stdout;
    assert!(plain.contains("  1000000000000001  "), "ids: {plain}");
    let bars = plain.split_once("episodes by return\n").unwrap().1.lines().count();
    assert!(bars <= 4, "two episodes: {plain}");
    let corrupt =
        Process::start(["data", "inspect", &golden("mal_forbidden_pickle3.json")]).finish_with(0).await.stdout;
    assert!(corrupt.contains("corrupt     1 line, "), "{corrupt}");
    let head = Process::start(["data", "head", &golden("multi_plain.json"), "--rows", "3"]).finish_with(0).await.stdout;
    assert!(head.contains("[-0.589, 1.115") && !head.contains("policy p1"), "{head}");
    let misspelt = ["data", "head", &golden("single_plain.json"), "--columns", "actoins"];
    let refused = Process::start(misspelt).finish_with(2).await.stderr;
    assert!(refused.contains("--columns: the rows have no 'actoins'; they have: "), "{refused}");
}

#[tokio::test]
async fn file_that_takes_too_much_memory_to_read_is_named_with_the_limit() {
    let folder = Folder::new();
    let inputs = ["pendulum_random_d4rl.hdf5", "minari_cartpole_hdf5", "minari_cartpole_parquet"].map(golden);
    for input in &inputs {
        let end = Process::start(["data", "inspect", input, "--memory-limit", "1MiB"]).finish_with(1).await;
        let words =
            "reading it takes more than 1048576 bytes of memory: raise memory_limit (--memory-limit) if you trust";
        assert!(end.stderr.contains(input) && end.stderr.contains(words), "{}", end.stderr);
        let whole = data(&["inspect", input, "--memory-limit", "1GiB"], 0).await;
        assert_eq!(whole, data(&["inspect", input], 0).await);
    }
    let (run, config) = (folder.path("run"), r#"{"memory_limit": 1048576}"#);
    let train = ["train", "--env", "CartPole-v1", "--algo", "bc", "--max-env-steps", "100", "--no-dashboard"];
    let input = ["--input", &inputs[2], "--input-config", config, "--run-dir", &run];
    let end = Process::start(train.into_iter().chain(input)).finish_with(1).await;
    assert!(end.stderr.contains("takes more than 1048576 bytes of memory"), "{}", end.stderr);
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
    assert_eq!((&again["outputs"][0]["env_steps"], &again["lost"]), (&600.into(), &json!([])));
    assert_eq!(rows(&back).await, rows(&samples).await);

    // Lines do not say how many bits numbers have; merging gives them the usual ones.
    let (narrow, wide) = (folder.path("narrow"), folder.path("wide"));
    data(&["merge", &samples, "--to", "parquet", "--output", &narrow], 0).await;
    let end = Process::start(["data", "convert", &narrow, "--to", "json", "--output", &wide]).finish_with(0).await;
    let report: Vec<&str> = end.stderr.lines().collect();
    assert!(report.contains(&"lost: the type of column 'rewards': float32 comes back as float64"), "{report:?}");
    assert!(report.iter().all(|line| line.starts_with("lost: the type of column '")), "no bar, no more: {report:?}");
    assert!(!end.stdout.contains("nothing is lost"), "{}", end.stdout);

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
    for (input, to, what) in [
        (golden("multi_plain.json"), "minari", "minari holds episodes of single agents, "),
        (samples.clone(), "hdf5", "HDF5 is read, but not written: take minari"),
        (samples.clone(), "csv", "json, parquet and minari can be written"),
    ] {
        let args = ["data", "convert", &input, "--to", to, "--output", &folder.path("refused")];
        let end = Process::start(args).finish_with(2).await;
        assert!(end.stderr.contains(what), "{}", end.stderr);
    }
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
    assert!(first.iter().all(|id| !rest.contains(id)), "the episodes of the files are distinguished");
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

/// Checks runs with the same ids of episodes.
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
async fn problems_are_reported_with_their_rows() {
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
    for (input, env) in [(golden("pendulum_random_d4rl.hdf5"), "CartPole-v1"), (samples, "Acrobot-v1")] {
        let outside = data(&["validate", &input, "--env", env], 1).await;
        assert!(keys(&outside["problems"]).contains(&"batches with 'obs' outside of the space"), "{outside}");
    }
    let (good, set) = (sampled(&folder, "good", "1").await, folder.path("set/of-acrobot-v0"));
    let args = ["data", "convert", &good, "--to", "minari", "--env", "Acrobot-v1", "--output", &set];
    let refused = Process::start(args).finish_with(1).await.stderr;
    assert!(refused.contains("'obs': its rows are (4), not those of "), "{refused}");
    let nothing = data(&["validate", &golden("mal_blank.json")], 1).await;
    assert_eq!(nothing["problems"]["files without any batch"]["count"], 1);
}

#[tokio::test]
async fn good_data_have_no_problems() {
    let folder = Folder::new();
    // The ids of two runs are the same, and some of their episodes have no end.
    let monday = sampled_in(&folder, "monday", "1", "10").await;
    let tuesday = sampled_in(&folder, "tuesday", "2", "10").await;
    for format in ["parquet", "json"] {
        let both = folder.path(format);
        data(&["convert", &monday, &tuesday, "--to", format, "--output", &both], 0).await;
        assert_eq!(fs::read_dir(&both).unwrap().count(), 1);
        assert_eq!(data(&["validate", &both], 0).await["problems"], json!({}), "{format}");
    }
    // Policies saw numbers as one-hot vectors.
    let lake = folder.path("lake");
    Process::start(["sample", "--env", "FrozenLake-v1", "--env-steps", "20", "--output", &lake]).finish_with(0).await;
    assert_eq!(data(&["validate", &lake, "--env", "FrozenLake-v1"], 0).await["problems"], json!({}));
    // Two agents that act alternately, in two runs; the one that acts later has the policy that comes first.
    let rows = |agent: u32, ts: [u32; 3], ends: bool| {
        json!({
            "obs": [[0.0], [1.0], [2.0]], "new_obs": [[1.0], [2.0], [3.0]], "actions": [0, 0, 0], "rewards": [0.0, 0.0, 0.0],
            "eps_id": [3, 3, 3], "agent_index": [agent, agent, agent], "t": ts, "terminateds": [false, false, ends],
            "truncateds": [false, false, false],
        })
    };
    let line = |ends: bool| {
        let batches = json!({"a": rows(1, [4, 9, 14], ends), "b": rows(0, [0, 5, 10], ends)});
        json!({"type": "MultiAgentBatch", "count": 15, "policy_batches": batches}).to_string() + "\n"
    };
    let turns = folder.path("turns.json");
    for ends in [true, false] {
        fs::write(&turns, line(ends).repeat(2)).unwrap();
        assert_eq!(data(&["validate", &turns], 0).await["problems"], json!({}), "{ends}");
    }
    // The file does not say whose rows these are.
    let crowd = json!({
        "obs": [[0.0], [1.0], [2.0]], "actions": [0, 0, 0], "rewards": [0.0, 0.0, 0.0], "eps_id": [3, 3, 3], "t": [1, 1, 0],
        "terminateds": [true, false, false],
    });
    let crowd = json!({"type": "MultiAgentBatch", "count": 2, "policy_batches": {"a": crowd}}).to_string();
    fs::write(&turns, crowd + "\n").unwrap();
    assert_eq!(data(&["validate", &turns], 0).await["problems"], json!({}));
    let late = line(true).replace("[0,5,10]", "[20,25,30]");
    fs::write(&turns, line(true) + &late).unwrap();
    let found = data(&["validate", &turns], 1).await["problems"].clone();
    let late = &found["steps after the end of their episode"];
    assert!(late["places"][0].as_str().unwrap().ends_with("line 2, policy b, row 0"), "{found}");
    assert_eq!((keys(&found).len(), &late["count"]), (1, &1.into()), "{found}");
}

/// Writes a file with the lines of another one and more; returns its path.
fn with_lines(folder: &Folder, samples: &str, name: &str, more: &str) -> String {
    let file = fs::read_dir(samples).unwrap().next().unwrap().unwrap().path();
    let path = folder.path(name);
    fs::write(&path, fs::read_to_string(file).unwrap() + more).unwrap();
    path
}

#[tokio::test]
async fn lines_are_passed_over_once() {
    let folder = Folder::new();
    let samples = sampled(&folder, "samples", "1").await;
    let lines = with_lines(&folder, &samples, "lines.json", "no line\n");
    let set = folder.path("cartpole/mine-v0");
    let lost = data(&["convert", &lines, "--to", "minari", "--output", &set], 0).await["lost"].clone();
    let lost: Vec<&str> = lost.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(lost.contains(&"1 corrupt lines (see `rollmesh data validate`)"), "{lost:?}");
}

#[tokio::test]
async fn progress_before_an_input_error_is_saved() {
    let folder = Folder::new();
    let samples = sampled_in(&folder, "samples", "1", "10").await;
    let (lines, run) = (with_lines(&folder, &samples, "lines.json", &"no line\n".repeat(1000)), folder.path("run"));
    #[rustfmt::skip]
    let args = [
        "train", "--input", &lines, "--input-config", r#"{"read_all_files": true}"#, "--train-batch-size", "300",
        "--run-dir", &run, "--json",
    ];
    let end = Process::start(args).finish_with(1).await;
    assert!(end.stderr.contains("in a row"), "{}", end.stderr);
    let summary = json(&fs::read_to_string(Path::new(&run).join("summary.json")).unwrap());
    assert_eq!((&summary["iterations"], &summary["env_steps"]), (&2.into(), &600.into()));
    assert!(summary["error"].as_str().unwrap().contains("in a row"), "{summary}");
    let policy = json(&fs::read_to_string(Path::new(&run).join("policy.json")).unwrap());
    assert_eq!(policy["env_steps"], 600);
    let again = Process::start(args).finish_with(2).await;
    assert!(again.stderr.contains("or resume that run: --resume"), "{}", again.stderr);
    // A resumed reader meets the same lines.
    let resumed = Process::start(["train", "--resume", &run]).finish_with(1).await;
    assert!(
        resumed.stderr.contains("it begins from the start") && resumed.stderr.contains("in a row"),
        "{}",
        resumed.stderr
    );
}

#[tokio::test]
async fn evaluations_of_runs_from_files_are_bounded_and_interrupted() {
    let folder = Folder::new();
    let samples = sampled(&folder, "samples", "1").await;
    let (short, endless) = (folder.path("short"), folder.path("endless"));
    let args = ["train", "--input", &samples, "--train-batch-size", "600", "--max-env-steps", "600", "--json"];
    let bounds = ["--evaluation-episodes", "3", "--evaluation-horizon", "5", "--run-dir", &short];
    let bounded = json(&Process::start(args.iter().chain(&bounds)).finish_with(0).await.stdout);
    assert_eq!(
        (&bounded["evaluation"]["episode_len_mean"], &bounded["evaluation"]["episodes"]),
        (&5.0.into(), &3.into())
    );

    let run = Process::start(args.iter().chain(&["--evaluation-episodes", "1000000000", "--run-dir", &endless]));
    let metrics = Path::new(&endless).join("metrics.jsonl");
    until("the update before it", || fs::read_to_string(&metrics).is_ok_and(|text| text.ends_with('\n'))).await;
    run.signal(Signal::INT);
    let summary = json(&run.finish_with(3).await.stdout);
    assert_eq!((&summary["env_steps"], &summary["evaluation"]), (&600.into(), &Value::Null));
}

#[tokio::test]
async fn marwil_weighs_what_came_of_actions() {
    let folder = Folder::new();
    let samples = sampled_in(&folder, "samples", "1", "10").await;
    let mut hashes = BTreeSet::new();
    for (name, algo, settings) in [
        ("bc", "bc", "{}"),
        ("weighed", "marwil", r#"{"beta": 1.0}"#),
        ("again", "marwil", r#"{"beta": 1.0}"#),
        ("equal", "marwil", r#"{"beta": 0.0}"#),
    ] {
        let run = folder.path(name);
        #[rustfmt::skip]
        let args = [
            "train", "--input", &samples, "--algo", algo, "--policy-config", settings, "--train-batch-size", "600",
            "--input-config", r#"{"read_all_files": true}"#, "--max-env-steps", "1200", "--evaluation-episodes", "1", "--run-dir", &run,
            "--json",
        ];
        let summary = json(&Process::start(args).finish_with(0).await.stdout);
        assert_eq!((&summary["algo"], &summary["iterations"]), (&algo.into(), &2.into()));
        let lines = fs::read_to_string(Path::new(&run).join("metrics.jsonl")).unwrap();
        let mut updates = lines.lines().map(json).filter(|line| line["evaluation"].is_null());
        let has_values = updates.all(|line| line["vf_loss"].as_f64() > Some(0.0));
        assert_eq!(has_values, settings.contains("1.0"), "{lines}");
        hashes.insert(summary["weights_hash"].as_str().unwrap().to_owned());
    }
    assert_eq!(hashes.len(), 2, "without weights it imitates, with the same ones it learns the same");
}

/// Checks mixtures: the rows that a run has learned from have advantages, which samples of behaviour cloning lack.
#[tokio::test]
async fn mixtures_of_files_and_samples_are_learned_from() {
    let folder = Folder::new();
    let (kept, first, second) = (folder.path("kept"), folder.path("first"), folder.path("second"));
    let train = ["train", "--workers", "0", "--env", "CartPole-v1", "--json", "--no-dashboard", "--hidden", "8"];
    let keep = ["--max-env-steps", "1024", "--output", &kept, "--run-dir", &first];
    Process::start(train.iter().chain(&keep)).finish_with(0).await;
    for algo in ["bc", "marwil"] {
        let mixture = json!({ &kept: 0.5, "sampler": 0.5 }).to_string();
        let run = format!("{second}-{algo}");
        let learn = ["--input", &mixture, "--algo", algo, "--train-batch-size", "400", "--evaluation-episodes", "1"];
        let end = ["--max-env-steps", "4000", "--run-dir", &run];
        let all = train.iter().chain(&learn).chain(&end);
        let summary = json(&Process::start(all).finish_with(0).await.stdout);
        assert!(summary["env_steps"].as_u64() >= Some(4000), "{summary}");
        assert!(summary["episode_return_mean"].as_f64() > Some(5.0), "samples are of the policy: {summary}");
    }
}

#[tokio::test]
async fn settings_without_meaning_for_files_are_refused() {
    let folder = Folder::new();
    let samples = sampled(&folder, "samples", "1").await;
    for (args, what) in [
        (["--mode", "async"], "mode: only sampling workers have modes"),
        (["--observation-filter", "MeanStdFilter"], "cannot be used with '--observation-filter"),
        (["--input-config", r#"{"shufle_buffer_size": 3}"#], "'shufle_buffer_size'; known are: shuffle_buffer_size, "),
    ] {
        let end = Process::start(["train", "--input", &samples].iter().chain(&args)).finish_with(2).await;
        assert!(end.stderr.contains(what), "{}", end.stderr);
    }
    let args = ["train", "--input", &samples, "--stop-return", "9", "--evaluation-episodes", "0"];
    let end = Process::start(args).finish_with(2).await;
    assert!(end.stderr.contains("let --evaluation-episodes be more than 0"), "{}", end.stderr);
}

#[tokio::test]
async fn run_from_files_takes_settings_from_file_and_flags() {
    let folder = Folder::new();
    let samples = sampled(&folder, "samples", "1").await;
    let (file, run) = (folder.path("clone.json"), folder.path("run"));
    let settings = json!({
        "input": samples, "train_batch_size": 300, "model_config": {"fcnet_hiddens": [8]}, "stop": {"env_steps": 600},
    });
    fs::write(&file, settings.to_string()).unwrap();
    let by_file = ["train", "--config", &file, "--evaluation-episodes", "0", "--json"];
    let more = ["--set", "policy_config.lr=0.01", "--run-dir", &run];
    let learned = json(&Process::start(by_file.iter().chain(&more)).finish_with(0).await.stdout);
    assert_eq!((&learned["algo"], &learned["env_steps"]), (&"bc".into(), &600.into()));
    // The same by flags alone, and again by what the run has written.
    let (flags, again) = (folder.path("flags"), folder.path("again"));
    #[rustfmt::skip]
    let by_flags = [
        "train", "--input", &samples, "--train-batch-size", "300", "--hidden", "8", "--max-env-steps", "600",
        "--policy-config", r#"{"lr": 0.01}"#, "--evaluation-episodes", "0", "--run-dir", &flags, "--json",
    ];
    let written = Path::new(&run).join("config.toml").display().to_string();
    for args in [&by_flags[..], &["train", "--config", &written, "--run-dir", &again, "--json"]] {
        let same = json(&Process::start(args).finish_with(0).await.stdout);
        assert_eq!(same["weights_hash"], learned["weights_hash"]);
    }
    assert_eq!(fs::read(&written).unwrap(), fs::read(Path::new(&again).join("config.toml")).unwrap());
    // The second worker has none of the lines.
    let text = Process::start(by_file.iter().chain(&["--workers", "2"])).finish_with(1).await.stderr;
    assert!(text.contains("worker 2: the input failed: the input (files: 1) has no batch for worker 2"), "{text}");
    let text = Process::start(["train", "--input", &samples, "--algo", "ppo"]).finish_with(2).await.stderr;
    assert!(text.contains("learn from files with --algo bc or marwil"), "{text}");
}

#[tokio::test]
async fn estimates_and_corrupt_lines_are_reported() {
    let folder = Folder::new();
    let samples = sampled_in(&folder, "samples", "1", "10").await;
    let lines = with_lines(&folder, &samples, "lines.json", "no line\n");
    let config = folder.path("config.json");
    let settings = json!({
        "input": lines, "io_config": {"read_all_files": true}, "input_evaluation": ["is", "wis", "simulation"],
        "rollout_fragment_length": 600, "train_batch_size": 600,
        "policies": {"default_policy": {"policy": "bc", "config": {"model": {"fcnet_hiddens": [8]}}}},
    });
    fs::write(&config, settings.to_string()).unwrap();
    let args = ["sample", "--config", &config, "--env-steps", "1200"];
    let report = json(&Process::start(args.iter().chain(&["--json"])).finish_with(0).await.stdout);
    assert_eq!((&report["corrupt_lines"], &report["blackholed_env_steps"]), (&1.into(), &1200.into()));
    assert!(report["estimates"]["is"]["v_behavior"].as_f64() > Some(1.0), "{report}");
    assert_eq!(report["estimates"]["is"]["episodes"], report["estimates"]["wis"]["episodes"]);
    let text = Process::start(args).finish_with(0).await.stdout;
    assert!(text.contains("\nestimate wis: v_behavior ") && text.contains("1200 env steps, of which none"), "{text}");
    assert!(text.contains("passed over     1 lines"), "{text}");
    let learned = folder.path("learned");
    let args =
        ["train", "--config", &config, "--max-env-steps", "1200", "--evaluation-episodes", "0", "--run-dir", &learned];
    let report = json(&Process::start(args.iter().chain(&["--json"])).finish_with(0).await.stdout);
    assert_eq!((&report["corrupt_lines"], &report["blackholed_env_steps"]), (&1.into(), &1200.into()));
    assert!(report["estimates"]["wis"]["v_target"].is_f64(), "{report}");
    let run = folder.path("run");
    #[rustfmt::skip]
    let args = [
        "train", "--input", &lines, "--input-config", r#"{"read_all_files": true}"#, "--train-batch-size", "600",
        "--max-env-steps", "1200", "--evaluation-episodes", "1", "--run-dir", &run, "--json",
    ];
    assert_eq!(json(&Process::start(args).finish_with(0).await.stdout)["corrupt_lines"], 1);
}

#[tokio::test]
async fn unknown_names_are_a_mistake_of_usage() {
    for command in [["data", "inspect", "missing/set-v3"], ["train", "--input", "missing/set-v3"]] {
        let end = Process::start(command).finish_with(2).await;
        assert!(end.stderr.contains("there is no data set 'missing/set-v3'"), "{}", end.stderr);
    }
    let end = Process::start(["train", "--algo", "bc"]).finish_with(2).await;
    assert!(end.stderr.contains("name it with --input"), "{}", end.stderr);
}

/// Writes the given number of whole episodes of some files, in one batch.
fn first_episodes(samples: &str, episodes: usize, folder: &str) {
    let mut logged = open_logged(&[samples.to_owned()], None).unwrap();
    let mut whole = Vec::new();
    while let Some(batch) = logged.next_batch().unwrap() {
        whole.extend(batch.single().unwrap().split_by_trajectory().unwrap());
    }
    whole.retain(|rows| rows.is_terminated_or_truncated().unwrap());
    let batch = SampleBatch::concat(&whole[..episodes]).unwrap();
    let mut writer = JsonWriter::new(folder, JsonWriterOptions::default()).unwrap();
    writer.append(&batch.into()).unwrap();
}

/// Trains an expert with PPO, and a clone that learns from 50 of its episodes only.
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
    let fifty = folder.path("fifty");
    first_episodes(&samples, 50, &fifty);
    let about = data(&["inspect", &fifty], 0).await;
    let episodes = &about["policies"]["default_policy"];
    assert_eq!((&episodes["episodes"], &episodes["unfinished"]), (&50.into(), &0.into()), "{about}");
    #[rustfmt::skip]
    let imitate = [
        "train", "--input", &fifty, "--algo", "bc", "--stop-return", "475", "--max-env-steps", "500000", "--run-dir", &clone,
        "--json",
    ];
    let cloned = json(&Process::start(imitate).finish_with(0).await.stdout);
    assert!(cloned["evaluation"]["episode_return_mean"].as_f64() >= Some(475.0), "{cloned}");
    assert_eq!(cloned["evaluation"]["episodes"], 20);
    // A learner that begins with the expert's weights reaches the return soon.
    let (weights, second) = (format!("{expert}/weights.safetensors"), folder.path("second"));
    #[rustfmt::skip]
    let begun = [
        "train", "--input", &fifty, "--init-weights", &weights, "--max-env-steps", "2000", "--run-dir", &second, "--json",
    ];
    let begun = json(&Process::start(begun).finish_with(0).await.stdout);
    assert!(begun["evaluation"]["episode_return_mean"].as_f64() >= Some(400.0), "{begun}");
    // The result is a policy like any other, which has the same returns when it is evaluated.
    let evaluated = Process::start(["evaluate", "--checkpoint", &clone, "--json"]).finish_with(0).await;
    let evaluated = json(&evaluated.stdout);
    assert_eq!(evaluated["episode_return_mean"], cloned["evaluation"]["episode_return_mean"]);
    let args = ["sample", "--checkpoint", &clone, "--deterministic", "--env-steps", "600", "--num-envs", "1", "--json"];
    assert_eq!(json(&Process::start(args).finish_with(0).await.stdout)["env_steps"], 600);
    for file in ["config.toml", "metrics.jsonl", "policy.json", "summary.json", "weights.safetensors"] {
        assert!(Path::new(&clone).join(file).is_file(), "{file}");
    }
}

#[tokio::test]
async fn interrupted_conversion_removes_its_output() {
    let folder = tempfile::tempdir().unwrap();
    let [input, output] = ["samples", "tables"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let sample = ["sample", "--num-envs", "16", "--env-steps", "60000", "--output", &input, "--json"];
    Process::start(sample).finish_with(0).await;
    for to in ["parquet", "json"] {
        let process = Process::start(["data", "convert", &input, "--to", to, "--output", &output]);
        until("the output", || std::path::Path::new(&output).exists()).await;
        process.signal(Signal::TERM);
        let end = process.finish_with(3).await;
        assert!(end.stderr.contains("interrupted: what was written is removed"), "{}", end.stderr);
        assert!(!std::path::Path::new(&output).exists());
    }
}
