//! Episodes that a run records while it samples.

use std::path::Path;

use serde_json::Value;

use super::{Setup, read, undisturbed};
use crate::support::{Process, json};

/// Returns the lines of statistics in a directory of recordings.
fn recorded(dir: &Path) -> Vec<Value> {
    read(&dir.join("stats.jsonl")).lines().map(json).collect()
}

#[tokio::test]
async fn episodes_of_leases_are_recorded_and_leave_no_trace_in_the_weights() {
    let calm = undisturbed(6_000).await;
    let directory = tempfile::tempdir().unwrap();
    // With no workers, the in-process worker's episodes are recorded in the same way.
    let lines_of = async |workers: u32| {
        let episodes = directory.path().join(workers.to_string());
        let monitor = format!("monitor_path={}", episodes.display());
        let setup = Setup::new(workers, 6, 6_000).with(&["--num-slots", "12", "--set", &monitor]);
        let end = setup.start().finish_with(0).await;
        assert!(!end.stderr.contains("workers cannot join"), "{}", end.stderr);
        assert_eq!(setup.weights_hash(), calm, "{workers} workers");
        (recorded(&episodes), episodes, monitor, setup)
    };
    let (alone, ..) = lines_of(0).await;
    let (lines, episodes, monitor, setup) = lines_of(2).await;
    assert_eq!(alone, lines);
    assert_eq!(lines.iter().map(|line| &line["episode"]).take(2).collect::<Vec<_>>(), [1, 8]);
    for line in &lines {
        assert_eq!((&line["worker"], &line["env"], &line["faulty"]), (&1.into(), &0.into(), &Value::Null), "{line}");
        let picture = std::fs::read(episodes.join(line["file"].as_str().unwrap())).unwrap();
        assert!(picture.starts_with(b"GIF89a"), "{line}");
        if line["complete"] == true {
            assert_eq!(
                (&line["frames"], &line["episode_return"].as_f64()),
                (&line["length"], &line["length"].as_f64())
            );
        }
    }

    // A resumed run continues, and another one does not overwrite the recordings.
    let run_dir = setup.run_dir().display().to_string();
    Process::start(["train", "--resume", &run_dir, "--max-env-steps", "12000"]).finish_with(0).await;
    let more = recorded(&episodes);
    assert_eq!(more[..lines.len()], lines, "what was recorded stays");
    let complete = more.iter().filter(|line| line["complete"] == true).map(|line| line["episode"].as_u64().unwrap());
    let mut numbers: Vec<u64> = complete.collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), more.iter().filter(|line| line["complete"] == true).count(), "each of them once");
    let second = Setup::new(2, 6, 2_000).with(&["--set", &monitor]).start().finish_with(2).await;
    assert!(second.stderr.contains("holds the recordings of another run: name another directory"), "{}", second.stderr);
}

#[tokio::test]
async fn episode_that_is_open_at_the_end_of_a_run_is_recorded_as_far_as_it_was_sampled() {
    for workers in [0, 1] {
        let episodes = tempfile::tempdir().unwrap();
        let monitor = format!("monitor_path={}", episodes.path().display());
        let short = ["--set", "rollout_fragment_length=8", "--set", "train_batch_size=8", "--set", &monitor];
        let setup = Setup::new(workers, 1, 8).with(&short);
        setup.start().finish_with(0).await;
        let lines = recorded(episodes.path());
        assert_eq!((lines.len(), &lines[0]["complete"], &lines[0]["length"]), (1, &false.into(), &Value::Null));
        let gif = std::fs::read(episodes.path().join(lines[0]["file"].as_str().unwrap())).unwrap();
        assert!(gif.starts_with(b"GIF89a"), "{workers} workers");
    }
}
