//! The output of a run has every sample once, however often it was killed.

use std::{collections::BTreeSet, fs, path::Path};

use super::{
    kills::{killed_at, seed},
    rig::Rig,
};
use crate::support::{is_long, json, process::Signal, until};

/// Returns the lines of an output, in the order of its files.
fn lines(directory: &Path) -> Vec<String> {
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
        .iter()
        .flat_map(|file| fs::read_to_string(file).unwrap().lines().map(String::from).collect::<Vec<_>>())
        .collect()
}

#[tokio::test]
async fn output_has_every_row_once_after_any_kill() {
    let (points, iterations) = if is_long() { (20, 400) } else { (4, 80) };
    let directory = tempfile::tempdir().unwrap();
    let [calm, killed] = ["calm", "killed"].map(|name| directory.path().join(name));
    let rig = |output: &Path| Rig::new(iterations).with_always(&["--output", output.to_str().unwrap()]);
    rig(&calm).begin().finish_with(0).await;
    let mut seen = BTreeSet::new();
    for line in lines(&calm) {
        let batch = json(&line);
        let (episodes, steps) = (batch["eps_id"].as_array().unwrap(), batch["t"].as_array().unwrap());
        for (episode, t) in episodes.iter().zip(steps) {
            assert!(seen.insert((episode.as_u64().unwrap(), t.as_u64().unwrap())), "{episode} {t}");
        }
    }
    assert_eq!(seen.len() as u64, 192 * iterations);

    killed_at(&rig(&killed), points, iterations, &mut seed()).await;
    let (found, calm) = (lines(&killed), lines(&calm));
    assert_eq!(found.len(), calm.len());
    assert!(found == calm, "line {:?} is another one", found.iter().zip(&calm).position(|(a, b)| a != b));
}

#[tokio::test]
async fn removed_or_omitted_output_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    let flags = ["--output", output.to_str().unwrap()];
    let rig = Rig::new(20);
    rig.begin_with(&[&flags[..], &["--checkpoint-interval", "3"]].concat()).finish_with(0).await;
    let all = lines(&output);
    assert_eq!(all.len(), 20);
    let until = async |iterations: u64, flags: &[&str]| {
        let env_steps = (192 * iterations).to_string();
        rig.resume_with(&[flags, &["--max-env-steps", &env_steps]].concat()).finish_with(0).await.stderr
    };
    let stderr = until(25, &[]).await;
    assert!(stderr.contains("the run was begun with --output: without it, no more rows are written"), "{stderr}");
    assert_eq!(lines(&output), all);
    // It continues where it ended, and lacks the rows of the run without it.
    let stderr = until(30, &flags).await;
    assert!(stderr.contains("the output lacks the rows of iterations 21 to 25,"), "{stderr}");
    let more = lines(&output);
    assert_eq!((more.len(), &more[..20]), (25, &all[..]));

    for file in fs::read_dir(&output).unwrap() {
        fs::remove_file(file.unwrap().path()).unwrap();
    }
    let stderr = until(35, &flags).await;
    assert!(stderr.contains("the output lacks rows from before the checkpoint"), "{stderr}");
    assert_eq!(lines(&output).len(), 5);
}

/// A worker of the run's own samples an iteration in three batches. Of one that is interrupted nothing is written.
#[tokio::test]
async fn output_of_run_without_workers_has_every_row_once_after_kills_and_interruptions() {
    let iterations = if is_long() { 400 } else { 80 };
    let directory = tempfile::tempdir().unwrap();
    let [calm, killed, pictures] = ["calm", "killed", "pictures"].map(|name| directory.path().join(name));
    let monitor = format!("monitor_path={}", pictures.display());
    let flags = ["--workers", "0", "--set", "device_rows=true", "--set", &monitor, "--set", "train_batch_size=576"];
    let rig =
        |output: &Path| Rig::remote(3 * iterations).with(&flags).with_always(&["--output", output.to_str().unwrap()]);
    rig(&calm).begin().finish_with(0).await;
    let calm = lines(&calm);
    assert_eq!(calm.len() as u64, 3 * iterations);

    let rig = rig(&killed);
    for _ in 0..if is_long() { 20 } else { 2 } {
        let process = rig.start();
        let target = rig.iterations() + 2;
        until("an iteration", || rig.iterations() >= target).await;
        process.signal(Signal::INT);
        process.finish_with(3).await;
    }
    killed_at(&rig, if is_long() { 20 } else { 2 }, iterations, &mut seed()).await;
    let found = lines(&killed);
    assert_eq!((found.len(), found == calm), (calm.len(), true), "lines, and whether they are the same");
}
