//! The load of this machine: CPUs, memory and GPUs, as far as the system reports it.

use std::{fs, io, process::Stdio, time::Duration};

use rollmesh_core::{
    protocol::{
        handshake::shortened,
        message::{GpuReport, HostReport},
    },
    worker::HostFacts as _,
};
use tokio::{process::Command, time::timeout};

use crate::shell::NativeHost;

/// Interval between two reports.
pub(crate) const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Time for `nvidia-smi` to answer; if the driver hangs, it never does.
const GPU_DEADLINE: Duration = Duration::from_secs(2);
const GPU_QUERY: [&str; 2] =
    ["--query-gpu=name,utilization.gpu,memory.used,memory.total", "--format=csv,noheader,nounits"];

/// Measures the load of this machine. On Linux only; elsewhere reports have names alone.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// Ticks of the CPUs at the previous report: busy ones, and all.
    before: (u64, u64),
    /// True once the program that asks the GPUs could not be started.
    has_no_gpus: bool,
}

impl Machine {
    /// Returns the names of this machine and of the program alone.
    pub(crate) fn names() -> HostReport {
        HostReport {
            host: shortened(&NativeHost.hostname().unwrap_or_default()),
            version: concat!("rollmesh ", env!("CARGO_PKG_VERSION")).into(),
            cpu_percent: f32::NAN,
            ..HostReport::default()
        }
    }

    /// Returns names, and the load since the previous report.
    pub(crate) async fn report(&mut self) -> HostReport {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let now = cpu_ticks(&read("/proc/stat")).unwrap_or_default();
        let (busy, all) = (now.0.saturating_sub(self.before.0), now.1.saturating_sub(self.before.1));
        self.before = now;
        let memory = read("/proc/meminfo");
        let total = kib_of(&memory, "MemTotal:").unwrap_or(0);
        let free = kib_of(&memory, "MemAvailable:").unwrap_or(total);
        let gpus = if self.has_no_gpus { Vec::new() } else { self.gpus().await };
        HostReport {
            cpus: std::thread::available_parallelism().map_or(0, |cpus| cpus.get() as u32),
            cpu_percent: if all == 0 { f32::NAN } else { (busy as f64 / all as f64 * 100.0) as f32 },
            memory_used: total.saturating_sub(free) << 10,
            memory_total: total << 10,
            process_memory: kib_of(&read("/proc/self/status"), "VmRSS:").unwrap_or(0) << 10,
            gpus,
            ..Self::names()
        }
    }

    async fn gpus(&mut self) -> Vec<GpuReport> {
        let mut query = Command::new("nvidia-smi");
        query.args(GPU_QUERY).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        match timeout(GPU_DEADLINE, query.output()).await {
            Ok(Ok(output)) => read_gpus(&String::from_utf8_lossy(&output.stdout)),
            Ok(Err(error)) => {
                self.has_no_gpus = error.kind() == io::ErrorKind::NotFound;
                Vec::new()
            }
            Err(_) => Vec::new(),
        }
    }
}

/// Returns busy and all ticks of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal.
fn cpu_ticks(stat: &str) -> Option<(u64, u64)> {
    let ticks: Vec<u64> =
        stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().take(8).map_while(|n| n.parse().ok()).collect();
    let all = ticks.iter().sum::<u64>();
    Some((all - ticks.get(3)? - ticks.get(4)?, all))
}

/// Returns a number of KiB in a file of `NAME:   NUMBER kB`.
fn kib_of(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// Reads a line per GPU: name, percent, used and total MiB.
fn read_gpus(csv: &str) -> Vec<GpuReport> {
    let gpu = |line: &str| {
        let [name, percent, used, total] = line.split(", ").collect::<Vec<_>>().try_into().ok()?;
        let bytes = |mib: &str| mib.trim().parse::<u64>().ok().map(|mib| mib << 20);
        // A part of a divided GPU has no load of its own.
        let percent = percent.trim().parse().unwrap_or(f32::NAN);
        Some(GpuReport { name: shortened(name), percent, memory_used: bytes(used)?, memory_total: bytes(total)? })
    };
    csv.lines().filter_map(gpu).take(HostReport::MAX_GPUS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_system_are_read_and_other_texts_are_not() {
        assert_eq!(cpu_ticks("cpu  10 1 20 100 5 1 2 3 0 0\ncpu0 1 2"), Some((37, 142)));
        assert_eq!((cpu_ticks(""), cpu_ticks("cpu  1 2")), (None, None));
        let memory = "MemTotal:       2048 kB\nMemAvailable:   1024 kB";
        assert_eq!((kib_of(memory, "MemAvailable:"), kib_of(memory, "VmRSS:")), (Some(1024), None));
        let gpus = read_gpus("NVIDIA H100, 12, 1024, 81559\nNVIDIA MIG, [N/A], 1, 2\nno devices\n");
        assert_eq!((gpus.len(), gpus[0].percent, gpus[0].memory_used), (2, 12.0, 1 << 30));
        assert!(gpus[1].percent.is_nan());
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn machine_reports_its_memory_and_its_load_since_the_previous_report() {
        let mut machine = Machine { has_no_gpus: true, ..Machine::default() };
        let report = machine.report().await;
        assert!(report.cpus > 0 && report.process_memory > 0 && report.memory_used < report.memory_total);
        assert!((0.0..=100.0).contains(&report.cpu_percent), "{report:?}");
    }
}
