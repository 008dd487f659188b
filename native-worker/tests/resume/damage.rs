//! Damaged files, full disks and other users.

use std::fs;

use rollmesh::checkpoint::{self, PolicyCheckpoint};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use super::rig::{Rig, undisturbed};
use crate::support::{Process, json, process::Signal, soon, until};

/// Starts a run, and kills it once it has two checkpoints.
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
    let end = rig.resume().finish_with(0).await;
    assert!(end.stderr.contains("group.bin has 0 bytes"), "{}", end.stderr);
    assert!(end.stderr.contains(&format!("resuming after iteration {older},")), "{}", end.stderr);
    assert_eq!(rig.outcome(), undisturbed(120).await);
}

#[tokio::test]
async fn run_without_a_valid_checkpoint_names_the_fix_and_can_restart() {
    let rig = killed(60).await;
    for checkpoint in rig.checkpoints() {
        fs::remove_file(checkpoint.join("manifest.json")).unwrap();
    }
    let end = rig.resume().finish_with(2).await;
    assert!(
        end.stderr.contains("no checkpoint in") && end.stderr.contains("to begin from the start"),
        "{}",
        end.stderr
    );
    fs::remove_dir_all(rig.path("checkpoints")).unwrap();
    let end = rig.resume().finish_with(0).await;
    assert!(end.stderr.contains("the run has no checkpoint yet, it begins from the start"), "{}", end.stderr);
    assert_eq!(rig.outcome(), undisturbed(60).await);
    assert!(rig.regenerated() > 0);
}

#[tokio::test]
async fn failed_checkpoint_write_changes_neither_the_run_nor_earlier_checkpoints() {
    let rig = killed(100_000).await;
    let newest = rig.checkpoints().pop().unwrap();
    let saved = PolicyCheckpoint::load(&newest).unwrap();
    let number: u64 = newest.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let mut process = rig.resume();
    until("the run", || rig.iterations() as u64 > saved.iteration).await;
    // From now on there is a file where the checkpoints should be.
    let aside = rig.path("aside");
    until("checkpoints out of the way", || {
        fs::rename(rig.path("checkpoints"), &aside).is_ok() && fs::write(rig.path("checkpoints"), b"").is_ok()
    })
    .await;
    let line = process.line("no checkpoint after iteration").await;
    assert!(line.contains("the run continues and tries again"), "{line}");
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
async fn truncated_metrics_are_reported_and_the_run_resumes() {
    let rig = killed(60).await;
    let metrics = rig.text("metrics.jsonl");
    fs::write(rig.path("metrics.jsonl"), &metrics[..metrics.len() / 2]).unwrap();
    let end = rig.resume().finish_with(0).await;
    assert!(end.stderr.contains("metrics.jsonl lacks lines from before the checkpoint"), "{}", end.stderr);
    assert_eq!(rig.outcome().weights_hash, undisturbed(60).await.weights_hash);
    assert!(rig.outcome().metrics.len() < 60);
}

#[tokio::test]
async fn truncated_journal_is_reported() {
    let rig = Rig::new(20).with(&["--mode", "async"]);
    rig.begin().finish_with(0).await;
    let journal = rig.text("journal.jsonl");
    fs::write(rig.path("journal.jsonl"), &journal[..journal.len() / 2]).unwrap();
    let end = rig.resume_with(&["--max-env-steps", &(30 * 192).to_string()]).finish_with(0).await;
    assert!(end.stderr.contains("journal.jsonl lacks lines from before the checkpoint"), "{}", end.stderr);
    assert!(!end.stderr.contains("metrics.jsonl lacks"), "{}", end.stderr);
}

/// Limits the files of a process to the given number of bytes, or removes the limit.
fn limit_files(process: &Process, bytes: Option<u64>) {
    let pid = Pid::from_raw(process.pid() as i32);
    let maximum = getrlimit(Resource::Fsize).maximum;
    prlimit(pid, Resource::Fsize, Rlimit { current: bytes.or(maximum), maximum }).unwrap();
}

/// Waits for lines with these texts, in any order.
async fn lines(process: &mut Process, texts: &[&str]) {
    let mut awaited = texts.to_vec();
    while !awaited.is_empty() {
        let line = soon(awaited[0], process.next_line()).await.unwrap_or_else(|| panic!("no line with {awaited:?}"));
        awaited.retain(|text| !line.contains(text));
    }
}

#[tokio::test]
async fn lines_that_a_full_disk_refuses_are_written_once_there_is_space() {
    let rig = Rig::new(100_000);
    let mut process = rig.begin_on_small_disk();
    let invitation = process.invitation().await;
    until("some iterations", || rig.iterations() > 3).await;
    limit_files(&process, Some(512));
    let waiting =
        ["metrics.jsonl", "the audit log of leases"].map(|file| format!("{file} cannot be written, its lines wait"));
    lines(&mut process, &waiting.each_ref().map(String::as_str)).await;
    let written = rig.iterations() as u64;
    // The run continues meanwhile.
    let hub = format!("ws://{}", invitation.address);
    loop {
        let asked = Process::start_with(["status", "--json", "--hub", &hub], |command| {
            _ = command.env("ROLLMESH_TOKEN", &invitation.operator_token)
        });
        let status = json(&asked.finish_with(0).await.stdout);
        if status["iteration"].as_u64().unwrap() > written + 10 {
            break;
        }
    }
    assert_eq!(rig.iterations() as u64, written);
    limit_files(&process, None);
    let again = ["metrics.jsonl", "the audit log of leases"]
        .map(|file| format!("{file} is written again, nothing of it is lost"));
    lines(&mut process, &again.each_ref().map(String::as_str)).await;
    process.signal(Signal::INT);
    process.finish_with(3).await;

    let found = rig.outcome();
    let calm = undisturbed(found.metrics.len() as u64).await;
    assert_eq!((&found.weights_hash, &found.metrics), (&calm.weights_hash, &calm.metrics));
    assert!(found.summary["lost_lines"].is_null());
    let audit = rig.text("audit.leases.jsonl");
    let leases = audit.lines().map(json).filter(|record| record["event"] == "lease_granted");
    let leases: Vec<u64> = leases.map(|record| record["lease"].as_u64().unwrap()).collect();
    assert!(leases.len() >= found.metrics.len() && leases.windows(2).all(|pair| pair[1] == pair[0] + 1), "{leases:?}");
}

#[tokio::test]
async fn full_disk_changes_no_weights_and_is_reported() {
    let calm = undisturbed(60).await;
    let rig = Rig::new(60);
    let process = rig.begin_on_small_disk();
    // Enough for a checkpoint, but not for all metrics.
    limit_files(&process, Some(16_384));
    let end = process.finish_with(0).await;
    assert!(end.stderr.contains("metrics.jsonl lacks its last lines: there was no room for them"), "{}", end.stderr);
    let found = rig.outcome();
    assert_eq!((&found.weights_hash, found.learned()), (&calm.weights_hash, calm.learned()));
    let written = found.metrics.len();
    assert!((1..60).contains(&written) && found.metrics[..] == calm.metrics[..written], "{written} lines");
    assert_eq!(found.summary["lost_lines"], 60 - written);
    // A resumed run reports it, too.
    let end = rig.resume().finish_with(0).await;
    assert!(end.stderr.contains("metrics.jsonl lacks lines from before the checkpoint"), "{}", end.stderr);
}

#[tokio::test]
async fn a_run_whose_last_files_cannot_be_written_fails_and_names_the_file() {
    for name in ["policy.json", "summary.json"] {
        let rig = Rig::new(20);
        // A directory of that name cannot be replaced by a file.
        fs::create_dir_all(rig.path(name).join("in the way")).unwrap();
        let end = rig.begin().finish_with(1).await;
        assert!(end.stderr.contains(&format!("{name}: ")), "{}", end.stderr);
        assert!(end.stderr.contains("error: the run's last files could not be written"), "{}", end.stderr);
        if name == "policy.json" {
            let dir = rig.dir().display().to_string();
            let runs = json(&Process::start(["runs", &dir, "--json"]).finish_with(0).await.stdout);
            assert_eq!(runs[0]["state"], "failed", "{runs}");
            assert!(runs[0]["error"].as_str().unwrap().contains("policy.json: "), "{runs}");
        }
        // The other files exist, and none is incomplete.
        assert!(rig.path("weights.safetensors").is_file());
        assert_eq!(rig.path("summary.json").is_file(), name != "summary.json");
        let names = fs::read_dir(rig.dir()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(names.filter(|name| name.ends_with(".tmp")).collect::<Vec<_>>(), [""; 0]);
    }
}

#[tokio::test]
async fn a_full_disk_leaves_no_unfinished_weights_behind() {
    let rig = Rig::new(100_000);
    let mut process = rig.begin_on_small_disk();
    until("some iterations", || rig.iterations() > 3).await;
    limit_files(&process, Some(512));
    process.line("metrics.jsonl cannot be written").await;
    process.signal(Signal::INT);
    let end = process.finish_with(1).await;
    assert!(end.stderr.contains("weights.safetensors: "), "{}", end.stderr);
    assert!(!rig.path("weights.safetensors.tmp").exists());
}

#[tokio::test]
async fn a_run_directory_that_cannot_be_written_is_named_as_such() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, b"").unwrap();
    let path = file.join("run");
    let end = Process::start(["train", "--run-dir", path.to_str().unwrap()]).finish_with(2).await;
    let wanted = format!("error: cannot write {}: ", path.display());
    assert!(end.stderr.contains(&wanted) && !end.stderr.contains("audit"), "{}", end.stderr);
}
