//! Several runs of a hub: one at a time, in the order in which they were requested.

use std::fs;

use serde_json::{Value, json};

use super::{HubProcess, json as parse};
use crate::support::keys;

/// Returns the settings of a run of a few iterations; an `endless` one runs until it is stopped.
fn settings(seed: u32, endless: bool) -> Vec<String> {
    let env_steps = if endless { u64::MAX } else { 64 };
    let settings = [format!("seed={seed}"), format!("stop.env_steps={env_steps}"), "num_workers=0".into()];
    let settings = settings.into_iter().chain(["num_envs=2".into(), "rollout_fragment_length=16".into()]);
    settings.flat_map(|setting| ["--set".to_owned(), setting]).collect()
}

impl HubProcess {
    async fn start_run_of(&self, settings: &[String], more: &[&str]) -> super::Finished {
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        self.command(&[&["start", "--json"], &settings[..], more].concat()).await
    }

    async fn runs(&self) -> Vec<Value> {
        let Value::Array(runs) = parse(&self.succeed(&["runs", "--json"]).await) else { panic!("no array") };
        runs
    }
}

#[tokio::test]
async fn runs_wait_for_earlier_ones_in_the_queue() {
    let directory = tempfile::tempdir().unwrap();
    let runs_dir = directory.path().display().to_string();
    let hub = HubProcess::start_with(&["--runs-dir", &runs_dir]).await;
    for (seed, place) in [(1, 0), (2, 1), (3, 2)] {
        let started = hub.start_run_of(&settings(seed, seed == 1), &[]).await;
        assert_eq!(started.status.code(), Some(0), "{}", started.stderr);
        assert_eq!(parse(&started.stdout), json!({ "run": seed, "place": place }));
    }
    let runs = hub.runs().await;
    let queue: Vec<_> =
        runs.iter().map(|run| (run["run"].clone(), run["state"].clone(), run["place"].clone())).collect();
    let expected = [(1, "running", Value::Null), (2, "queued", json!(1)), (3, "queued", json!(2))];
    assert_eq!(queue, expected.map(|(run, state, place)| (json!(run), json!(state), place)));
    let names = ["algo", "dir", "env", "env_steps", "episode_return_mean", "error", "place", "run", "seed", "state"];
    let mut found = keys(&runs[0]);
    found.sort_unstable();
    assert_eq!(found, names);

    assert_eq!(hub.succeed(&["stop", "--queued", "2"]).await, "run 2: removed\n");
    let again = hub.command(&["stop", "--queued", "2"]).await;
    assert!(again.stderr.contains("no run 2 waits"), "{}", again.stderr);
    hub.succeed(&["stop"]).await;
    let last = hub.start_run_of(&settings(4, false), &["--wait", "--set", "output=rows"]).await;
    assert_eq!(last.status.code(), Some(0), "{}", last.stderr);
    let line = parse(&last.stdout);
    assert_eq!((&line["run"], &line["state"], &line["env_steps"]), (&json!(4), &json!("finished"), &json!(64)));
    let run_dirs = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let kept: Vec<_> = run_dirs.map(|run_dir| run_dir.join("outputs/rows")).filter(|rows| rows.is_dir()).collect();
    assert_eq!(kept.len(), 1, "an output by name is within the run's directory");
    assert!(fs::read_dir(&kept[0]).unwrap().next().is_some());
    let states: Vec<_> = hub.runs().await.iter().map(|run| (run["run"].clone(), run["state"].clone())).collect();
    assert_eq!(
        states,
        [(1, "stopped"), (3, "finished"), (4, "finished")].map(|(run, state)| (json!(run), json!(state)))
    );

    let listed = super::Process::start(["runs", "--json", &runs_dir]).finish_with(0).await;
    let Value::Array(listed) = parse(&listed.stdout) else { panic!("no array") };
    let mut seeds: Vec<_> = listed.iter().map(|run| (run["seed"].as_u64(), run["state"].as_str())).collect();
    seeds.sort_unstable();
    assert_eq!(seeds, [(Some(1), Some("stopped")), (Some(3), Some("finished")), (Some(4), Some("finished"))]);
    assert_eq!(keys(&listed[0]).len(), names.len());
}

#[tokio::test]
async fn operators_that_start_runs_concurrently_receive_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let hub = HubProcess::start_with(&["--runs-dir", &directory.path().display().to_string()]).await;
    hub.start_run_of(&settings(0, true), &[]).await;
    let start = async |seed| parse(&hub.start_run_of(&settings(seed, false), &[]).await.stdout)["run"].clone();
    let (one, two, three) = tokio::join!(start(1), start(2), start(3));
    let runs = hub.runs().await;
    for (seed, run) in [(1, one), (2, two), (3, three)] {
        let row = runs.iter().find(|row| row["run"] == run).expect("a run with that number");
        assert_eq!(row["seed"], seed, "{runs:?}");
    }
}

#[tokio::test]
async fn hub_that_ends_says_which_runs_have_not_begun() {
    let hub = HubProcess::start().await;
    for seed in [1, 2, 3] {
        assert_eq!(hub.start_run_of(&settings(seed, true), &[]).await.status.code(), Some(0));
    }
    hub.process.signal(crate::support::process::Signal::INT);
    let end = hub.process.finish_with(0).await;
    assert!(end.stderr.contains("the hub ends before these runs have begun: 2, 3"), "{}", end.stderr);
}

#[tokio::test]
async fn start_says_why_a_run_is_refused_and_waits_for_its_end() {
    let hub = HubProcess::start().await;
    let refusals = [
        ("num_envs=0", "num_envs is 0"),
        ("env=CartPole-v9", "there is no environment 'CartPole-v9'"),
        ("host.device=\"cuda:1\"", "host.device belongs to one machine"),
        ("output=../rows", "output is \"../rows\"; it must be at most 64 letters"),
    ];
    for (setting, reason) in refusals {
        let refused = hub.command(&["start", "--set", setting]).await;
        assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(reason), "{}", refused.stderr);
    }
    // Out of reach: the steps are used up first.
    let unsolved = [settings(1, false), vec!["--set".into(), "stop.episode_return_mean=400".into()]].concat();
    assert_eq!(hub.start_run_of(&unsolved, &["--wait"]).await.status.code(), Some(3));
    // One that cannot begin stops none of the others.
    assert_eq!(hub.start_run_of(&settings(2, true), &[]).await.status.code(), Some(0));
    let broken = [settings(3, false), vec!["--set".into(), "policy_mapping_fn=unknown".into()]].concat();
    assert_eq!(hub.start_run_of(&broken, &[]).await.status.code(), Some(0));
    assert_eq!(hub.start_run_of(&settings(4, false), &[]).await.status.code(), Some(0));
    hub.succeed(&["stop"]).await;
    let done = hub.start_run_of(&settings(5, false), &["--wait"]).await;
    assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
    let runs = hub.runs().await;
    let states: Vec<_> = runs.iter().map(|run| run["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["finished", "stopped", "failed", "finished", "finished"]);
    assert!(runs[2]["error"].as_str().unwrap().contains("unknown"), "{}", runs[2]);
}
