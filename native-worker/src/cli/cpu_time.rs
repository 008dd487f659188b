//! CPU time of processes, as counted by the operating system.

use std::{collections::BTreeMap, fs, time::Duration};

/// CPU times of this process and of others at one moment. Empty if the operating system does not provide them.
#[derive(Debug, Default)]
pub(super) struct CpuTimes {
    own: Option<Duration>,
    others: BTreeMap<u32, Duration>,
}

impl CpuTimes {
    /// Returns the current times.
    pub(super) fn of(pids: impl IntoIterator<Item = u32>) -> Self {
        let others = pids.into_iter().filter_map(|pid| Some((pid, cpu_time(&pid.to_string())?)));
        Self { own: cpu_time("self"), others: others.collect() }
    }

    /// Returns the CPU time of this process since then.
    pub(super) fn own_since(&self, then: &Self) -> Option<Duration> {
        Some(self.own?.saturating_sub(then.own?))
    }

    /// Returns the CPU time of the others since then, including those that started meanwhile, but not those that have
    /// exited.
    pub(super) fn others_since(&self, then: &Self) -> Option<Duration> {
        let since =
            |(pid, now): (&u32, &Duration)| now.saturating_sub(then.others.get(pid).copied().unwrap_or_default());
        (!self.others.is_empty()).then(|| self.others.iter().map(since).sum())
    }
}

/// Returns the CPU time of all threads of a process, with nanosecond resolution from Linux's scheduler.
fn cpu_time(process: &str) -> Option<Duration> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let time = |task: fs::DirEntry| -> Option<u64> {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    // A thread may exit meanwhile.
    Some(Duration::from_nanos(tasks.filter_map(|task| time(task.ok()?)).sum()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn used_cpu_time_is_counted() {
        let pid = std::process::id();
        let before = CpuTimes::of([pid]);
        // Busy until the times change, whatever their granularity.
        let mut now = CpuTimes::of([pid]);
        while now.own_since(&before) == Some(Duration::ZERO) || now.others_since(&before) == Some(Duration::ZERO) {
            now = CpuTimes::of([pid]);
        }
        assert!(now.own_since(&before) > Some(Duration::ZERO));
        assert!(now.others_since(&before) > Some(Duration::ZERO));
        assert_eq!(CpuTimes::of([]).others_since(&before), None);
    }
}
