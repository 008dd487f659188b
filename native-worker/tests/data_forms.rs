//! Logged data in the forms of policies and of environments, and invalid files: `rollmesh data`, `train --input` and
//! `ope`, as people run them.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    data::{Folder, golden},
    support::{Process, json, process::Finished},
};

async fn run(args: &[&str], code: i32) -> Finished {
    Process::start(args).finish_with(code).await
}

/// Runs `rollmesh data` and reads the object that it prints.
async fn data(args: &[&str]) -> Value {
    json(&run(&[&["data"], args, &["--json"]].concat(), 0).await.stdout)
}

async fn rows(input: &str) -> Vec<Value> {
    let end = run(&["data", "head", input, "--rows", "100000", "--json"], 0).await;
    end.stdout.lines().map(json).collect()
}

async fn sampled(env: &str, output: &str, more: &[&str]) {
    let few = ["--env-steps", "600", "--num-envs", "2", "--rollout-fragment-length", "50"];
    run(&[&["sample", "--env", env, "--seed", "1", "--output", output], &few[..], more].concat(), 0).await;
}

/// Trains on an input for two updates, and returns the standard error.
async fn learned(env: &str, input: &str, more: &[&str], code: i32) -> String {
    let args =
        ["train", "--env", env, "--input", input, "--train-batch-size", "200", "--max-env-steps", "400", "--json"];
    run(&[&args[..], &["--hidden", "8", "--evaluation-episodes", "0"], more].concat(), code).await.stderr
}

/// Returns the only file of a folder.
fn file_in(folder: &str) -> std::path::PathBuf {
    fs::read_dir(folder).unwrap().next().unwrap().unwrap().path()
}

/// Returns the actions of rows of Pendulum, each with the torque that its observations show; steps at full speed show none.
fn torques(rows: &[Value]) -> Vec<(f64, f64)> {
    let number = |row: &Value, name: &str, i: usize| row[name][i].as_f64().unwrap();
    let torque = |row: &Value| {
        let (before, after) = (number(row, "obs", 2), number(row, "new_obs", 2));
        let torque = ((after - before) / 0.05 - 15.0 * number(row, "obs", 1)) / 3.0;
        (after.abs() < 7.99).then(|| (number(row, "actions", 0), torque))
    };
    rows.iter().filter_map(torque).collect()
}

#[tokio::test]
async fn actions_become_what_the_target_holds() {
    let folder = Folder::new();
    let (logged, set, back) = (folder.path("logged"), folder.path("pendulum/mine-v0"), folder.path("back"));
    sampled("Pendulum-v1", &logged, &[]).await;
    let torques_of = async |input: &str| torques(&rows(input).await);
    // Returns whether the environment took these actions, changed by a function.
    let took = |rows: &[(f64, f64)], change: fn(f64) -> f64| {
        rows.len() > 100 && rows.iter().all(|(action, torque)| (change(*action) - torque).abs() < 1e-3)
    };
    assert!(took(&torques_of(&logged).await, |action| 2.0 * action.clamp(-1.0, 1.0)));

    let to_minari = ["convert", &logged, "--to", "minari", "--output", &set];
    let refused = run(&[&["data"], &to_minari[..]].concat(), 2).await.stderr;
    assert!(refused.contains("name it with --env") && !Path::new(&set).exists(), "{refused}");
    let lost = data(&[&to_minari[..], &["--env", "Pendulum-v1"]].concat()).await["lost"].to_string();
    assert!(lost.contains("the environment took its bounds"), "{lost}");
    assert!(took(&torques_of(&set).await, |action| action));
    assert_eq!(learned("Pendulum-v1", &set, &[], 0).await, "");

    let to_json = ["convert", &set, "--to", "json", "--output"];
    data(&[&to_json[..], &[&back, "--env", "Pendulum-v1"]].concat()).await;
    assert!(took(&torques_of(&back).await, |action| 2.0 * action));
    let unchanged = folder.path("unchanged");
    let lost = data(&[&to_json[..], &[&unchanged]].concat()).await["lost"].to_string();
    assert!(lost.contains("actions_in_input_normalized"), "{lost}");
    assert!(took(&torques_of(&unchanged).await, |action| action));
    // Lines with the environment's actions.
    let again = folder.path("pendulum/again-v0");
    let args = ["--env", "Pendulum-v1", "--actions-in-input-normalized", "false"];
    data(&[&["convert", &unchanged, "--to", "minari", "--output", &again], &args[..]].concat()).await;
    assert!(took(&torques_of(&again).await, |action| action));
    // Actions of policies without normalize_actions may be beyond the bounds, those of Minari may not.
    let clipped = folder.path("pendulum/clipped-v0");
    let lost = data(&[&["convert", &logged, "--to", "minari", "--output", &clipped], &args[..]].concat()).await;
    assert!(lost["lost"].to_string().contains("beyond the environment's bounds"), "{lost}");
    assert_eq!(data(&["validate", &clipped, "--env", "Pendulum-v1"]).await["problems"], json!({}));
}

#[tokio::test]
async fn own_logs_of_continuous_environments_are_valid() {
    let folder = Folder::new();
    let (logged, tables, set) = (folder.path("logged"), folder.path("tables"), folder.path("pendulum/mine-v0"));
    sampled("Pendulum-v1", &logged, &[]).await;
    data(&["merge", &logged, "--to", "parquet", "--output", &tables]).await;
    data(&["convert", &logged, "--to", "minari", "--env", "Pendulum-v1", "--output", &set]).await;
    for input in [&logged, &tables, &set] {
        assert_eq!(data(&["validate", input, "--env", "Pendulum-v1"]).await["problems"], json!({}), "{input}");
    }
}

#[tokio::test]
async fn numbered_observations_are_read_in_the_forms_of_all_producers() {
    let folder = Folder::new();
    let (encoded, own, candidate) = (folder.path("encoded"), folder.path("own"), folder.path("candidate"));
    sampled("FrozenLake-v1", &encoded, &[]).await;
    sampled("FrozenLake-v1", &own, &["--num-workers", "1"]).await;
    let train = ["train", "--env", "FrozenLake-v1", "--hidden", "8", "--workers", "0", "--max-env-steps", "512"];
    run(&[&train[..], &["--run-dir", &candidate, "--no-dashboard", "--json"]].concat(), 0).await;
    let mut obs = Vec::new();
    for input in [&encoded, &own] {
        obs.push(rows(input).await[0]["obs"].is_array());
        assert_eq!(learned("FrozenLake-v1", input, &[], 0).await, "");
        let args = ["ope", "--input", input, "--policy", &candidate, "--estimator", "is,dr", "--refits", "0", "--json"];
        let found = json(&run(&[&args[..], &["--q-model-config", r#"{"n_iters": 2}"#]].concat(), 0).await.stdout);
        assert!(found["estimates"][1]["v_target"].is_f64(), "{found}");
    }
    assert_eq!(obs, [true, false], "the forms differ");
}

#[tokio::test]
async fn mixtures_of_formats_keep_the_columns_that_they_share() {
    let folder = Folder::new();
    let (logged, set) = (folder.path("logged"), folder.path("cartpole/mine-v0"));
    sampled("CartPole-v1", &logged, &[]).await;
    data(&["convert", &logged, "--to", "minari", "--env", "CartPole-v1", "--output", &set]).await;
    let mixture = json!({&logged: 0.5, &set: 0.5}).to_string();
    for algo in ["bc", "marwil"] {
        assert_eq!(learned("CartPole-v1", &mixture, &["--algo", algo], 0).await, "", "{algo}");
    }
}

#[tokio::test]
async fn input_of_another_environment_is_named() {
    let folder = Folder::new();
    let logged = folder.path("acrobots");
    sampled("Acrobot-v1", &logged, &[]).await;
    let error = learned("CartPole-v1", &logged, &[], 1).await;
    assert!(error.contains("acrobots: 'obs' has 6 numbers per row") && error.contains("have 4"), "{error}");
}

#[tokio::test]
async fn environments_with_several_agents_have_the_spaces_that_agents_share() {
    let folder = Folder::new();
    let logged = folder.path("logged");
    sampled("MultiAgentCartPole-v1", &logged, &[]).await;
    assert_eq!(data(&["validate", &logged, "--env", "MultiAgentCartPole-v1"]).await["problems"], json!({}));
    let candidate = folder.path("candidate");
    let train =
        ["train", "--env", "MultiAgentCartPole-v1", "--hidden", "8", "--workers", "0", "--max-env-steps", "256"];
    run(&[&train[..], &["--run-dir", &candidate, "--no-dashboard", "--json"]].concat(), 0).await;
    let found = json(&run(&["ope", "--input", &logged, "--policy", &candidate, "--json"], 0).await.stdout);
    assert!(found["estimates"][0]["v_target"].is_f64(), "{found}");
    let hint = "% of the episodes are without their end and count as whole ones";
    assert!(number_of(&found["unfinished"]) > 0.05 * number_of(&found["episodes"]), "{found}");
    assert!(found["hints"].to_string().contains(hint), "{found}");
}

fn number_of(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[tokio::test]
async fn lines_that_exceed_the_buffer_are_no_corrupt_ones() {
    let folder = Folder::new();
    let (logged, out, empty) = (folder.path("logged"), folder.path("out"), folder.path("empty"));
    sampled("CartPole-v1", &logged, &[]).await;
    let error = run(&["data", "convert", &logged, "--buffer-size", "20000", "--output", &out], 1).await.stderr;
    assert!(error.contains("line 1 has 1250 bytes or more") && error.contains("--buffer-size"), "{error}");
    let path = folder.path("none.json");
    fs::write(&path, "{}\n{\n").unwrap();
    let error = run(&["data", "convert", &path, "--output", &empty], 1).await.stderr;
    assert!(error.contains("none of 2 lines is a batch"), "{error}");
}

#[tokio::test]
async fn merged_lines_lose_no_types() {
    let folder = Folder::new();
    let (logged, all) = (folder.path("logged"), folder.path("all"));
    sampled("CartPole-v1", &logged, &[]).await;
    assert_eq!(data(&["merge", &logged, "--output", &all]).await["lost"], json!([]));
    assert_eq!(rows(&all).await.len(), rows(&logged).await.len());
}

#[tokio::test]
async fn files_are_what_they_hold_whatever_their_names() {
    let folder = Folder::new();
    let logged = folder.path("logged");
    sampled("CartPole-v1", &logged, &[]).await;
    let text = fs::read_to_string(file_in(&logged)).unwrap();
    let lines = text.lines().count();
    for (name, text) in [("a.parquet", text.clone()), ("b.hdf5", text.clone()), ("c.json", format!("\u{feff}{text}"))] {
        let path = folder.path(name);
        fs::write(&path, text).unwrap();
        let about = data(&["inspect", &path]).await;
        assert_eq!((&about["batches"], &about["corrupt_lines"]), (&lines.into(), &0.into()), "{name}");
    }
    let of_lines = folder.path("lines");
    fs::create_dir(&of_lines).unwrap();
    let error = run(&["data", "inspect", &of_lines], 2).await.stderr;
    assert!(error.contains("that end in json, jsonl, zip, parquet, hdf5, h5"), "{error}");
    fs::write(Path::new(&of_lines).join("a.jsonl"), text).unwrap();
    assert_eq!(data(&["inspect", &of_lines]).await["batches"], lines);
    let neither = folder.path("neither.parquet");
    fs::write(&neither, "PAR2 and so on").unwrap();
    let error = run(&["data", "inspect", &neither], 1).await.stderr;
    assert!(error.contains("it is neither Parquet nor HDF5"), "{error}");
}

#[tokio::test]
async fn names_in_files_do_not_control_the_terminal() {
    let folder = Folder::new();
    let path = folder.path("hostile.json");
    let rows = r#"{"obs": [[1.0]], "actions": [0], "rewards": [1.0], "\u001b[2J": [1]}"#;
    let batch = format!(r#"{{"type": "MultiAgentBatch", "count": 1, "policy_batches": {{"p\u001b[31m": {rows}}}}}"#);
    fs::write(&path, batch).unwrap();
    for command in [&["inspect"][..], &["head"], &["validate", "--env", "CartPole-v1"]] {
        let end = Process::start([&["data"], command, &[&path]].concat()).finish().await;
        assert!(!(end.stdout + &end.stderr).contains('\u{1b}'), "{command:?}");
    }
    let end = run(&["data", "head", &path, "--columns", "obs,none"], 2).await;
    assert_eq!(end.stdout, "", "no row before the error");
    assert!(end.stderr.contains("the rows have no 'none'") && !end.stderr.contains('\u{1b}'), "{}", end.stderr);
}

#[tokio::test]
async fn parts_that_miss_their_shares_are_reported() {
    let folder = Folder::new();
    let logged = golden("pendulum_random_d4rl.hdf5");
    let split = async |fractions: &str, part: &str, code: i32| {
        run(&["data", "split", &logged, fractions, "--output", &folder.path(part)], code).await.stderr
    };
    let (negative, sum) = (split("--fractions=-0.5,1.5", "a", 2).await, split("--fractions=0.5,0.6", "b", 2).await);
    assert!(negative.contains("-0.5 is not from 0 to 1"), "{negative}");
    assert!(sum.contains("the sum is 1.1, not 1"), "{sum}");
    let far = split("--fractions=0.97,0.01,0.01,0.01", "c", 0).await;
    assert!(far.contains("note: part-0 has ") && far.contains("not 97 %"), "{far}");
    assert!(!split("--fractions=0.5,0.5", "d", 0).await.contains("note: "));
}

#[tokio::test]
async fn diverged_models_are_reported_without_a_backtrace() {
    let folder = Folder::new();
    let (logged, candidate) = (folder.path("logged"), folder.path("candidate"));
    sampled("CartPole-v1", &logged, &[]).await;
    let train = ["train", "--env", "CartPole-v1", "--hidden", "8", "--workers", "0", "--max-env-steps", "256"];
    run(&[&train[..], &["--run-dir", &candidate, "--no-dashboard", "--json"]].concat(), 0).await;
    let diverging = r#"{"lr": 1e30}"#;
    let args = ["ope", "--input", &logged, "--policy", &candidate, "--estimator", "dm", "--q-model-config", diverging];
    let end = Process::start_with(args, |command| _ = command.env("RUST_BACKTRACE", "1")).finish_with(2).await;
    assert!(end.stderr.trim_end().ends_with("try a smaller lr"), "{}", end.stderr);
}
