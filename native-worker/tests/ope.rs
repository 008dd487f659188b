//! `rollmesh ope`, as people run it.

use std::path::Path;

use crate::support::{Process, json, keys};
use rollmesh::checkpoint::PolicyCheckpoint;
use rollmesh_core::{
    env::EnvRegistry,
    policy::{ModelConfig, ModelSpec},
    run::RunConfig,
};
use serde_json::{Value, json};

fn golden(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/conformance/data").join(name).display().to_string()
}

/// Writes the policy of a run before it has learned; returns its folder.
fn policy(folder: &Path, name: &str, seed: u64) -> String {
    let run = RunConfig::new("CartPole-v1").seed(seed).slots(1).num_envs(1).fcnet_hiddens(&[8]);
    let spaces = EnvRegistry::builtin().spec(run.env()).unwrap().spaces().unwrap();
    let model = ModelConfig { fcnet_hiddens: vec![8], ..ModelConfig::default() };
    let weights = ModelSpec::for_spaces(&spaces, &model).unwrap().init_weights(seed).unwrap();
    let folder = folder.join(name);
    std::fs::create_dir(&folder).unwrap();
    PolicyCheckpoint::new("ppo", run, weights).save(&folder).unwrap();
    folder.display().to_string()
}

async fn run(args: &[&str], code: i32) -> (String, String) {
    let end = Process::start(["ope"].iter().chain(args)).finish_with(code).await;
    (end.stdout, end.stderr)
}

async fn sampled(folder: &Path, policy: &str) -> String {
    let output = folder.join("samples").display().to_string();
    let args =
        ["sample", "--checkpoint", policy, "--env-steps", "1200", "--num-envs", "3", "--output", &output, "--json"];
    Process::start(args).finish_with(0).await;
    output
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[tokio::test]
async fn logged_policy_is_worth_its_returns_and_another_one_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let (own, other) = (policy(folder.path(), "own", 1), policy(folder.path(), "other", 2));
    let samples = sampled(folder.path(), &own).await;
    let all = "is,pdis,trajectory_is,wis,cwpdis,dm,dr";
    let passes = r#"{"n_iters": 4}"#;
    let args = ["--input", &samples, "--estimator", all, "--q-model-config", passes, "--json", "--policy"];
    let found = json(&run(&[&args[..], &[&own]].concat(), 0).await.0);
    assert_eq!((&found["env"], &found["rows"], &found["gamma"]), (&json!("CartPole-v1"), &json!(1200), &json!(0.99)));
    let estimates = found["estimates"].as_array().unwrap();
    let names: Vec<&str> = estimates.iter().filter_map(|of| of["estimator"].as_str()).collect();
    assert_eq!(names, ["is", "is", "trajectory_is", "wis", "cwpdis", "dm", "dr"]);
    assert_eq!(
        keys(&estimates[0]),
        ["estimator", "high", "interval_holds", "low", "v_delta", "v_gain", "v_target", "v_target_std"]
    );
    for of in estimates.iter().filter(|of| of["estimator"] != "dm") {
        assert!((number(&of["v_gain"]) - 1.0).abs() < 1e-3, "{of}");
        assert!(number(&of["low"]) < number(&of["v_target"]) && number(&of["v_target"]) < number(&of["high"]), "{of}");
    }
    let episodes = number(&found["episodes"]);
    assert!((number(&found["effective_sample_size"]) - episodes).abs() < 0.01 * episodes);
    assert_eq!((&found["fitted_q"]["passes"], &found["refits"]), (&json!(4), &json!(10)));
    let holds = |found: &Value| {
        let of = |i: usize| found["estimates"][i]["interval_holds"].as_str().unwrap().to_owned();
        [0, 5, 6].map(of)
    };
    assert_eq!(holds(&found), ["episodes", "refits", "refits"]);
    // Every step of CartPole pays 1.
    assert_eq!(found["hints"], json!(["every step pays the same: there wis cannot tell policies apart, take cwpdis"]));
    let given = json(&run(&[&args[..], &[&own, "--refits", "0"]].concat(), 0).await.0);
    assert_eq!(holds(&given), ["episodes", "first_states", "episodes"]);
    assert!(given["hints"][1].as_str().unwrap().contains("--refits 10"), "{given}");
    for i in [5, 6] {
        let [refits, given] = [&found, &given].map(|found| &found["estimates"][i]);
        assert_eq!(refits["v_target"], given["v_target"]);
        assert!(
            number(&refits["high"]) > number(&refits["low"]) && refits["high"] != given["high"],
            "{refits} {given}"
        );
    }

    let other = json(&run(&[&args[..], &[&other]].concat(), 0).await.0);
    assert_eq!(other["v_behavior"], found["v_behavior"]);
    assert_eq!(other["estimates"][0]["v_target"], other["estimates"][1]["v_target"], "two names of one");
    assert_ne!(other["estimates"][0]["v_target"], found["estimates"][0]["v_target"]);
    assert!(number(&other["effective_sample_size"]) < episodes);

    // Rows for themselves: all are worth 1, also to a policy that acts by chance.
    let bandit =
        ["--input", &samples, "--policy", &own, "--estimator", "wis,dr", "--bandit", "--epsilon-greedy", "0.5"];
    let found = json(
        &run(&[&bandit[..], &["--json", "--seed", "7", "--confidence", "0.5", "--refits", "0"]].concat(), 0).await.0,
    );
    assert_eq!((&found["samples"], &found["v_behavior"]), (&json!(1200), &json!(1.0)));
    for of in found["estimates"].as_array().unwrap() {
        assert!((number(&of["v_target"]) - 1.0).abs() < 0.05, "{of}");
    }
}

#[tokio::test]
async fn people_get_a_table_with_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    let own = policy(folder.path(), "own", 1);
    let samples = sampled(folder.path(), &own).await;
    let (table, _) = run(&["--input", &samples, "--policy", &own], 0).await;
    for line in
        ["data        1200 rows in ", "policy      CartPole-v1, 0 steps old", "discount    0.99", "effective   "]
    {
        assert!(table.lines().any(|found| found.starts_with(line)), "{line} in {table}");
    }
    let rows: Vec<&str> = table.lines().skip_while(|line| !line.starts_with("estimator")).collect();
    assert!(rows[0].contains("95 % from") && rows.len() == 7, "{table}");
    assert!(rows[6].contains("wis cannot tell policies apart, take cwpdis"), "{table}");
    for (row, name) in rows[1..].iter().zip(["behavior", "is", "wis", "cwpdis"]) {
        assert!(row.starts_with(name) && row.contains('├') && row.contains('●') && row.contains('┤'), "{row}");
    }
}

#[tokio::test]
async fn inestimable_log_is_reported_with_a_fix() {
    let folder = tempfile::tempdir().unwrap();
    let own = policy(folder.path(), "own", 1);
    let samples = sampled(folder.path(), &own).await;
    let nowhere = folder.path().display().to_string();
    let several = golden("multi_plain.json");
    for (args, what) in [
        (vec!["--input", &samples, "--policy", &nowhere], "holds no policy: give the directory of a run"),
        (vec!["--input", &several, "--policy", &own], "the data are of several policies, "),
        (vec!["--input", &samples, "--policy", &own, "--gamma", "1.5"], "it must be from 0 to 1"),
        (vec!["--input", &samples, "--policy", &own, "--confidence", "95"], "confidence 95 is not between 0 and 1"),
        (vec!["--input", &samples, "--policy", &own, "--refits", "2"], "it must be 0, or from 3 to 1000"),
        (vec!["--input", &samples, "--policy", &own, "--epsilon-greedy", "2"], "epsilon is 2; it must be from 0 to 1"),
        (
            vec!["--input", &samples, "--policy", &own, "--estimator", "dm", "--q-model-config", r#"{"lr": 0}"#],
            "the setting 'lr' is wrong: 0 must be above 0",
        ),
        (vec!["--input", &samples, "--policy", &own, "--estimator", "oracle"], "[possible values: is, trajectory_is,"),
    ] {
        let (_, stderr) = run(&args, 2).await;
        assert!(stderr.contains(what), "{stderr}");
    }
}

fn line(values: &[(&str, &str)]) -> String {
    let mut columns = [
        ("obs", "[[0.1, 0.1, 0.1, 0.1], [0.2, 0.2, 0.2, 0.2]]"),
        ("actions", "[0, 1]"),
        ("rewards", "[1, 1]"),
        ("terminateds", "[false, true]"),
        ("truncateds", "[false, false]"),
        ("action_prob", "[0.5, 0.5]"),
        ("eps_id", "[4, 4]"),
        ("t", "[0, 1]"),
    ];
    for (name, value) in values {
        columns.iter_mut().filter(|(column, _)| column == name).for_each(|column| column.1 = value);
    }
    let columns: Vec<String> = columns.iter().map(|(name, value)| format!("{name:?}: {value}")).collect();
    format!("{{\"type\": \"SampleBatch\", {}}}\n", columns.join(", "))
}

#[tokio::test]
async fn whole_numbers_are_rewards_too_and_errors_name_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let own = policy(folder.path(), "own", 1);
    let lines = folder.path().join("lines.json").display().to_string();
    std::fs::write(&lines, [line(&[]), line(&[("rewards", "[1, 0.5]"), ("eps_id", "[5, 5]")])].concat()).unwrap();
    let args = ["--input", &lines, "--policy", &own, "--gamma", "1", "--json"];
    let found = json(&run(&args, 0).await.0);
    assert_eq!((&found["v_behavior"], &found["episodes"]), (&json!(1.75), &json!(2)));

    for (column, values, what) in [
        ("action_prob", "[0.5, 0.0]", "line 2: 'action_prob' is 0 at row 1; an action that was taken"),
        ("rewards", "[NaN, 1.0]", "line 2: 'rewards' is NaN at row 0"),
        ("actions", "[0, 7]", "line 2: the action at row 1 is not in the policy's action space"),
    ] {
        std::fs::write(&lines, [line(&[]), line(&[(column, values)])].concat()).unwrap();
        let (_, stderr) = run(&args, 2).await;
        assert!(stderr.contains(what), "{stderr}");
    }
    // A model does not use probabilities.
    std::fs::write(&lines, [line(&[]), line(&[("action_prob", "[0.5, 0.0]")])].concat().repeat(4)).unwrap();
    let dm = ["--estimator", "dm", "--q-model-config", r#"{"n_iters": 2}"#];
    assert_eq!(json(&run(&[&args[..], &dm].concat(), 0).await.0)["effective_sample_size"], Value::Null);
}

#[tokio::test]
async fn intervals_that_hang_on_few_episodes_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let own = policy(folder.path(), "own", 1);
    let lines = folder.path().join("lines.json").display().to_string();
    // Of twenty episodes one was very improbable under the policy that acted.
    let write = |odd: &str| {
        let episodes = (0..20).map(|i| {
            let (id, rewards) = (format!("[{i}, {i}]"), format!("[1, 1.{i}]"));
            line(&[("eps_id", &id), ("rewards", &rewards), ("action_prob", if i == 3 { odd } else { "[0.5, 0.5]" })])
        });
        std::fs::write(&lines, episodes.collect::<String>()).unwrap();
    };
    let args = ["--input", &lines, "--policy", &own, "--estimator", "is,cwpdis", "--json"];
    write("[0.5, 0.5]");
    assert_eq!(json(&run(&args, 0).await.0)["hints"], json!([]));
    write("[0.0001, 0.0001]");
    let hints = json(&run(&args, 0).await.0)["hints"].to_string();
    assert!(hints.contains("the interval of is") && hints.contains("few episodes carry everything"), "{hints}");
}

#[tokio::test]
async fn runs_with_the_same_ids_are_distinguished() {
    let folder = tempfile::tempdir().unwrap();
    let own = policy(folder.path(), "own", 1);
    let file = |name: &str, ends: &str, t: &str| {
        let path = folder.path().join(name).display().to_string();
        std::fs::write(&path, line(&[("terminateds", ends), ("t", t)])).unwrap();
        path
    };
    let (monday, later) = (file("a.json", "[false, false]", "[0, 1]"), file("b.json", "[false, true]", "[2, 3]"));
    let tuesday = file("c.json", "[false, true]", "[0, 1]");
    let counts = async |inputs: &[&str]| {
        let args = [&["--policy", own.as_str(), "--json", "--input"], inputs].concat();
        let found = json(&run(&args, 0).await.0);
        ["episodes", "unfinished", "begun_late"].map(|name| found[name].as_u64().unwrap())
    };
    assert_eq!(counts(&[&monday, &later]).await, [1, 0, 0]);
    assert_eq!(counts(&[&monday, &tuesday]).await, [2, 1, 0]);
}

/// Checks data sets without action probabilities, which a model does not need.
#[tokio::test]
#[cfg(feature = "offline-parquet")]
async fn data_without_probabilities_are_for_models_alone() {
    let folder = tempfile::tempdir().unwrap();
    let own = policy(folder.path(), "own", 1);
    let data = golden("minari_cartpole_parquet");
    let (_, stderr) = run(&["--input", &data, "--policy", &own, "--estimator", "dm,is"], 2).await;
    assert!(stderr.contains("the data have neither 'action_prob' nor 'action_logp'"), "{stderr}");
    let passes = r#"{"n_iters": 3}"#;
    let args = ["--input", &data, "--policy", &own, "--estimator", "dm", "--q-model-config", passes, "--json"];
    let found = json(&run(&args, 0).await.0);
    assert_eq!((&found["episodes"], &found["effective_sample_size"]), (&json!(30), &Value::Null));
    assert_eq!(found, json(&run(&args, 0).await.0), "the same seed");
}
