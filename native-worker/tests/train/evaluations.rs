//! Evaluations alongside a run, and of its policy.

use serde_json::Value;

use super::{Setup, undisturbed};
use crate::support::{Process, json, process::Signal, until};

fn evaluations(setup: &Setup) -> Vec<Value> {
    let lines = std::fs::read_to_string(setup.run_dir().join("metrics.jsonl")).unwrap_or_default();
    let whole = lines.rfind('\n').map_or("", |end| &lines[..end]);
    whole
        .lines()
        .map(json)
        .filter(|line| !line["evaluation"].is_null())
        .map(|line| line["evaluation"].clone())
        .collect()
}

#[tokio::test]
async fn run_is_evaluated_alongside_itself_and_its_policy_afterwards() {
    let evaluated = ["--evaluation-interval", "3", "--evaluation-episodes", "5"];
    // The statistics of observations are sent with the weights, also there.
    let filtered = ["--observation-filter", "MeanStdFilter"];
    let setup = Setup::new(1, 12, 1_000_000_000).with(&evaluated).with(&filtered);
    let run = setup.start();
    until("two evaluations", || evaluations(&setup).len() >= 2).await;
    run.signal(Signal::INT);
    run.finish_with(3).await;
    for evaluation in evaluations(&setup) {
        assert_eq!(evaluation["iteration"].as_u64().unwrap() % 3, 0);
        assert_eq!((&evaluation["episodes"], &evaluation["unfinished"]), (&5.into(), &0.into()));
        assert!(evaluation["episode_return_mean"].as_f64().unwrap() >= 8.0, "{evaluation}");
    }
    let checkpoint = setup.run_dir().display().to_string();
    let gif = setup.directory.path().join("first.gif").display().to_string();
    let evaluate =
        ["evaluate", "--checkpoint", &checkpoint, "--episodes", "5", "--seed", "3", "--json", "--render", &gif];
    let report = json(&Process::start(evaluate).finish_with(0).await.stdout);
    assert_eq!((report["episodes"].as_array().unwrap().len(), &report["unfinished"]), (5, &0.into()));
    assert_eq!(report["weights_hash"], setup.summary()["weights_hash"]);
    let again = json(&Process::start(evaluate).finish_with(0).await.stdout);
    assert_eq!(again, report);
    assert!(std::fs::read(&gif).unwrap().starts_with(b"GIF89a"));
    for (film, why) in [("first.png", "the name of a film ends in .gif"), ("nowhere/first.gif", "there is no nowhere")]
    {
        let refused = Process::start(["evaluate", "--checkpoint", &checkpoint, "--render", film]).finish_with(2).await;
        assert!(refused.stderr.contains(why) && refused.stdout.is_empty(), "{}", refused.stderr);
    }
    let counts = setup.summary()["evaluations"].clone();
    let count = |name: &str| counts[name].as_u64().unwrap_or_else(|| panic!("no {name} in {counts}"));
    assert_eq!((count("done"), count("failed")), (evaluations(&setup).len() as u64, 0), "{counts}");
    assert_eq!(count("due"), setup.summary()["iterations"].as_u64().unwrap() / 3, "{counts}");
    assert_eq!(count("skipped"), count("due") - count("done"), "{counts}");
    // It has no effect on the run.
    let watched = Setup::new(1, 12, 2_000).with(&evaluated);
    watched.start().finish_with(0).await;
    assert_eq!(watched.weights_hash(), undisturbed(2_000).await);
}

#[tokio::test]
async fn every_kind_of_run_draws_the_first_episode_of_each_evaluation() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let (samples, recorded) = (path("samples"), format!("monitor_path={}", path("recorded")));
    let sample = ["sample", "--env-steps", "400", "--num-envs", "2", "--output", &samples];
    Process::start(sample).finish_with(0).await;
    let kinds: [(u32, &[&str]); 5] = [
        (2, &[]),
        (0, &[]),
        (0, &["--set", &recorded, "--set", "device_rows=true"]),
        (0, &["--algo", "bc", "--input", &samples]),
        (1, &["--algo", "bc", "--input", &samples]),
    ];
    for (workers, flags) in kinds {
        let drawn = ["--evaluation-interval", "2", "--evaluation-episodes", "1", "--evaluation-render"];
        let setup = Setup::new(workers, 12 / workers.max(1), 1_000_000_000).with(&drawn).with(flags);
        let run = setup.start();
        until("two evaluations", || evaluations(&setup).len() >= 2).await;
        run.signal(Signal::INT);
        run.finish_with(3).await;
        for evaluation in evaluations(&setup) {
            let (gif, iteration) = (evaluation["gif"].as_str().unwrap(), &evaluation["iteration"]);
            assert_eq!(gif, format!("gifs/iteration-{iteration}.gif"));
            assert!(std::fs::read(setup.run_dir().join(gif)).unwrap().starts_with(b"GIF89a"), "{flags:?}");
        }
    }
}

/// Evaluates players that have a policy each.
#[tokio::test]
async fn policies_of_a_run_are_evaluated_together_alongside_it_and_afterwards() {
    let settings = "train --no-dashboard --env RockPaperScissors-v0 --workers 0 --num-slots 2 --rollout-fragment-length 20 \
                    --max-env-steps 1000000000 --evaluation-interval 1 --set policy_mapping_fn=agent_id \
                    --set policies.0.policy=ppo --set policies.1.policy=ppo --run-dir";
    let setup = Setup { directory: tempfile::tempdir().unwrap(), args: settings.split(' ').map(Into::into).collect() };
    let run_dir = setup.run_dir().display().to_string();
    let setup = setup.with(&[&run_dir]);
    let run = setup.start();
    until("an evaluation", || !evaluations(&setup).is_empty()).await;
    run.signal(Signal::INT);
    run.finish_with(3).await;
    // The players' rewards sum to zero.
    assert!(evaluations(&setup).iter().all(|evaluation| evaluation["episode_return_mean"] == 0.0));
    let checkpoint = setup.run_dir().display().to_string();
    let evaluate = async |key| {
        let evaluate = ["evaluate", "--checkpoint", &checkpoint, "--episodes", "2", "--json", "--reward-key", key];
        json(&Process::start(evaluate).finish_with(0).await.stdout)
    };
    let [both, one, two] = [evaluate("reward").await, evaluate("reward/0").await, evaluate("reward/1").await];
    assert_eq!(both["weights_hash"], setup.summary()["weights_hash"]);
    assert_eq!((both["episodes"].as_array().unwrap().len(), &both["episode_return_mean"]), (2, &0.0.into()));
    assert_eq!(one["episode_return_mean"].as_f64().unwrap(), -two["episode_return_mean"].as_f64().unwrap());
}

#[tokio::test]
async fn resumed_run_is_evaluated_at_its_saved_iteration() {
    let setup = Setup::new(1, 12, 2_000).with(&["--evaluation-interval", "1", "--evaluation-episodes", "1"]);
    setup.start().finish_with(0).await;
    let last = setup.file("metrics.jsonl").lines().filter_map(|line| json(line)["iteration"].as_u64()).max().unwrap();
    let run_dir = setup.run_dir().display().to_string();
    let run = Process::start(["train", "--resume", &run_dir, "--max-env-steps", "1000000000"]);
    let is_of_then = |evaluation: &Value| evaluation["iteration"] == last;
    until("the evaluation of what was saved", || evaluations(&setup).iter().any(is_of_then)).await;
    run.signal(Signal::INT);
    run.finish_with(3).await;
    assert_eq!(evaluations(&setup).iter().filter(|evaluation| is_of_then(evaluation)).count(), 1);
}
