//! The resources of the machine that a long run takes.

use std::time::{Duration, Instant};

use super::rig::Rig;
use crate::support::{
    is_long,
    process::{Signal, children_of},
    until,
};

/// The resources of a process.
#[derive(Clone, Copy, Debug)]
struct Sample {
    memory: u64,
    fds: usize,
    threads: usize,
}

fn sample(pid: u32) -> Sample {
    let proc = format!("/proc/{pid}");
    let status = std::fs::read_to_string(format!("{proc}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let count = |what: &str| std::fs::read_dir(format!("{proc}/{what}")).map_or(0, Iterator::count);
    Sample {
        memory: line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10,
        fds: count("fd"),
        threads: count("task"),
    }
}

/// Returns the bytes by which memory may grow from the second third of the time to the last: for the allocator, which
/// needs longer than a few seconds to reach its size.
fn slack() -> u64 {
    if is_long() { 512 << 10 } else { 8 << 20 }
}

/// Checks that hub and worker take as much in the last third of their time as in the second.
pub(crate) async fn long_run_does_not_grow_in_memory_files_or_threads() {
    let time = Duration::from_secs(if is_long() { 600 } else { 9 });
    let rig = Rig::new(2, u64::MAX, 64, &[]);
    let run = rig.start();
    until("an iteration", || rig.iterations() > 0).await;
    let worker = children_of(run.pid())[0];
    let (began, mut samples) = (Instant::now(), Vec::new());
    let mut pause = tokio::time::interval(Duration::from_millis(50));
    while began.elapsed() < time {
        pause.tick().await;
        samples.push([sample(run.pid()), sample(worker)]);
    }
    let iterations = rig.iterations();
    run.signal(Signal::TERM);
    run.finish_with(0).await;
    rig.outcome();
    let third = samples.len() / 3;
    let (before, after) = (&samples[third..2 * third], &samples[2 * third..]);
    for (which, name) in ["hub", "worker"].iter().enumerate() {
        // The minimum counts: temporary resources, such as files of checkpoints, do not.
        let least =
            |part: &[[Sample; 2]], of: fn(&Sample) -> u64| part.iter().map(|both| of(&both[which])).min().unwrap();
        let of: [fn(&Sample) -> u64; 3] = [|s| s.memory, |s| s.fds as u64, |s| s.threads as u64];
        let [before, after] = [before, after].map(|part| of.map(|of| least(part, of)));
        println!(
            "{name} in {iterations} iterations: memory {} then {} KiB, {} then {} files, {} then {} threads",
            before[0] >> 10,
            after[0] >> 10,
            before[1],
            after[1],
            before[2],
            after[2],
        );
        assert!(after[0] <= before[0] + slack(), "memory of the {name} grows");
        assert_eq!(before[1..], after[1..], "files or threads of the {name}");
    }
}
