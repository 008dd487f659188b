//! Damaged files, full disks and other people.

use std::fs;

use rollmesh::checkpoint::{self, PolicyCheckpoint};

use crate::{
    rig::{Rig, undisturbed},
    support::{process::Signal, until},
};

/// A run that was killed and has two checkpoints.
async fn killed(iterations: u64) -> Rig {
    let rig = Rig::new(iterations);
    let process = rig.begin();
    until("two checkpoints", || rig.checkpoints().len() >= 2).await;
    process.signal(Signal::KILL);
    process.finish().await;
    rig
}

#[tokio::test]
async fn a_damaged_checkpoint_gives_way_to_the_one_before() {
    let rig = killed(120).await;
    let newest = rig.checkpoints().pop().unwrap();
    let older = PolicyCheckpoint::load(&rig.checkpoints()[0]).unwrap().iteration;
    fs::write(newest.join("group.bin"), b"").unwrap();
    let end = rig.go_on().finish_with(0).await;
    assert!(end.stderr.contains("group.bin has 0 bytes"), "{}", end.stderr);
    assert!(end.stderr.contains(&format!("going on after iteration {older},")), "{}", end.stderr);
    assert_eq!(rig.outcome(), undisturbed(120).await);
}

#[tokio::test]
async fn a_run_without_a_whole_checkpoint_says_what_to_do_and_can_begin_again() {
    let rig = killed(60).await;
    for checkpoint in rig.checkpoints() {
        fs::remove_file(checkpoint.join("manifest.json")).unwrap();
    }
    let end = rig.go_on().finish_with(2).await;
    assert!(
        end.stderr.contains("no checkpoint in") && end.stderr.contains("to begin from the start"),
        "{}",
        end.stderr
    );
    fs::remove_dir_all(rig.path("checkpoints")).unwrap();
    let end = rig.go_on().finish_with(0).await;
    assert!(end.stderr.contains("the run has no checkpoint yet, it begins from the start"), "{}", end.stderr);
    assert_eq!(rig.outcome(), undisturbed(60).await);
    assert!(rig.regenerated() > 0);
}

#[tokio::test]
async fn a_disk_that_takes_no_checkpoint_harms_neither_the_run_nor_what_was_saved() {
    let rig = killed(100_000).await;
    let newest = rig.checkpoints().pop().unwrap();
    let saved = PolicyCheckpoint::load(&newest).unwrap();
    let number: u64 = newest.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let mut process = rig.go_on();
    until("the run", || rig.iterations() as u64 > saved.iteration).await;
    // From now on there is a file where the checkpoints should be.
    let aside = rig.path("aside");
    until("checkpoints out of the way", || {
        fs::rename(rig.path("checkpoints"), &aside).is_ok() && fs::write(rig.path("checkpoints"), b"").is_ok()
    })
    .await;
    let line = process.line("no checkpoint after iteration").await;
    assert!(line.contains("the run goes on and tries again"), "{line}");
    let then = rig.iterations();
    until("more iterations", || rig.iterations() > then + 20).await;
    let kept = checkpoint::newest(&aside).unwrap().unwrap();
    assert!(kept.damaged.is_empty() && kept.checkpoint.number >= number, "what was saved is whole");
    fs::remove_file(rig.path("checkpoints")).unwrap();
    process.line("is saved: there is room again").await;
    process.signal(Signal::INT);
    process.finish_with(3).await;
    assert_eq!(PolicyCheckpoint::load(rig.dir()).unwrap().iteration, rig.iterations() as u64);
    assert!(rig.outcome().summary["failed_checkpoints"].as_u64() > Some(0));
}

#[tokio::test]
async fn metrics_that_lost_their_end_are_told_and_go_on() {
    let rig = killed(60).await;
    let metrics = rig.text("metrics.jsonl");
    fs::write(rig.path("metrics.jsonl"), &metrics[..metrics.len() / 2]).unwrap();
    let end = rig.go_on().finish_with(0).await;
    assert!(end.stderr.contains("metrics.jsonl lacks lines from before the checkpoint"), "{}", end.stderr);
    assert_eq!(rig.outcome().weights_hash, undisturbed(60).await.weights_hash);
    assert!(rig.outcome().metrics.len() < 60);
}
