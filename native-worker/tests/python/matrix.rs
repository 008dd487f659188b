//! Runs whose weights depend neither on their workers nor on kills of their processes.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{
    self, Process,
    process::{Signal, children_of, has_ended, kill, send},
};

/// A run.
pub(crate) struct Run<'a> {
    pub(crate) env: &'a str,
    /// Further arguments.
    pub(crate) more: &'a [&'a str],
    /// The directory of its own modules.
    pub(crate) python_path: &'a str,
    pub(crate) slots: u32,
}

impl Run<'_> {
    pub(crate) fn start(&self, workers: u32, run_dir: &Path) -> Process {
        let (workers, slots, run_dir) = (workers.to_string(), self.slots.to_string(), run_dir.display().to_string());
        let args = ["train", "--env", self.env, "--seed", "1", "--hidden", "8", "--rollout-fragment-length", "16"];
        let more = ["--num-slots", &slots, "--no-dashboard", "--workers", &workers, "--run-dir", &run_dir];
        let set_up = |command: &mut tokio::process::Command| _ = command.env("PYTHONPATH", self.python_path);
        Process::start_with([&args[..], &more, self.more].concat(), set_up)
    }

    /// Checks that no to three workers learn the same weights, as do two of which one is killed, and the other loses a host.
    pub(crate) async fn check(&self, directory: &Path) {
        let dir = |name: &str| -> PathBuf { directory.join(name) };
        let mut hashes = Vec::new();
        for workers in 0..=3 {
            let run_dir = dir(&workers.to_string());
            self.start(workers, &run_dir).finish_with(0).await;
            hashes.push(summary(&run_dir)["weights_hash"].clone());
        }
        let run_dir = dir("killed");
        let process = self.start(2, &run_dir);
        let mut workers: Vec<(u32, Vec<u32>)> = Vec::new();
        support::until("hosts of two workers", || {
            let found = children_of(process.pid()).into_iter().filter(is_worker).map(|pid| (pid, children_of(pid)));
            workers = found.filter(|(_, hosts)| !hosts.is_empty()).collect();
            // The first one is stopped meanwhile: alone it could finish the run.
            workers.iter().for_each(|(pid, _)| send(*pid, if workers.len() < 2 { Signal::STOP } else { Signal::CONT }));
            workers.len() == 2
        })
        .await;
        support::until("some iterations", || iterations(&run_dir) >= 3).await;
        let (orphans, others) = (&workers[0].1, &workers[1].1);
        kill(workers[0].0);
        kill(others[0]);
        process.finish_with(0).await;
        let killed = summary(&run_dir);
        hashes.push(killed["weights_hash"].clone());
        let env = self.env;
        assert!(hashes[0].is_string() && hashes.iter().all(|hash| *hash == hashes[0]), "{env}: {hashes:?}");
        assert_eq!(killed["reproducible"], true, "{killed}");
        // The hosts of a dead worker end with it.
        support::until("the end of its hosts", || orphans.iter().all(|pid| has_ended(*pid))).await;
    }
}

/// Returns whether a child of a run is a worker, and not the host of the hub itself.
fn is_worker(pid: &u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.contains("\0worker\0"))
}

pub(crate) fn summary(run_dir: &Path) -> Value {
    support::json(&std::fs::read_to_string(run_dir.join("summary.json")).unwrap())
}

fn iterations(run_dir: &Path) -> usize {
    std::fs::read_to_string(run_dir.join("metrics.jsonl")).map_or(0, |text| text.lines().count())
}
