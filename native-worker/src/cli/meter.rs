//! The throughput and the cost of a run, from its first batch to its last.

use std::time::{Duration, Instant};

use super::cpu_time::CpuTimes;
use crate::hub::Hub;

/// Measures a run in progress.
pub(super) struct RunMeter {
    start: Instant,
    /// At the first batch, which includes the start of the workers.
    first: Option<Mark>,
    last: Instant,
    before: u64,
    env_steps: u64,
}

struct Mark {
    at: Instant,
    env_steps: u64,
    cpu: CpuTimes,
}

/// The result of a measurement.
pub(super) struct Measured {
    /// During `time`.
    pub(super) env_steps: u64,
    pub(super) time: Duration,
    /// Bytes that workers sent on their sockets, for each env step of the run; `None` without any.
    pub(super) bytes_per_step: Option<f64>,
    /// CPU time of the hub and of the workers in nanoseconds for each env step; `None` if the operating system does not
    /// provide it.
    pub(super) hub_cpu_ns_per_step: Option<f64>,
    pub(super) worker_cpu_ns_per_step: Option<f64>,
}

impl RunMeter {
    /// Starts to measure a run that has made `env_steps` before.
    pub(super) fn new(env_steps: u64) -> Self {
        let start = Instant::now();
        Self { start, first: None, last: start, before: env_steps, env_steps }
    }

    /// Records the run's number of env steps.
    pub(super) async fn at(&mut self, env_steps: u64, hub: &Hub) {
        if env_steps <= self.env_steps {
            return;
        }
        (self.last, self.env_steps) = (Instant::now(), env_steps);
        if self.first.is_none() {
            let cpu = CpuTimes::of(hub.traffic().await.worker_pids);
            self.first = Some(Mark { at: self.last, env_steps, cpu });
        }
    }

    /// Ends the measurement. The workers must still be running.
    pub(super) async fn finish(self, hub: &Hub) -> Measured {
        let traffic = hub.traffic().await;
        let (cpu, made) = (CpuTimes::of(traffic.worker_pids), self.env_steps - self.before);
        let bytes_per_step = (made > 0).then(|| traffic.received_bytes as f64 / made as f64);
        let Some(first) = self.first.filter(|first| first.env_steps < self.env_steps) else {
            let time = self.last.duration_since(self.start);
            let (hub_cpu_ns_per_step, worker_cpu_ns_per_step) = (None, None);
            return Measured { env_steps: made, time, bytes_per_step, hub_cpu_ns_per_step, worker_cpu_ns_per_step };
        };
        let env_steps = self.env_steps - first.env_steps;
        let per_step = |time: Duration| time.as_nanos() as f64 / env_steps as f64;
        Measured {
            env_steps,
            time: self.last.duration_since(first.at),
            bytes_per_step,
            hub_cpu_ns_per_step: cpu.own_since(&first.cpu).map(per_step),
            worker_cpu_ns_per_step: cpu.others_since(&first.cpu).map(per_step),
        }
    }
}
