//! Settings of a call manager.

use crate::{group::WorkerProfile, time::Micros};

/// Settings of a [`CallManager`](super::CallManager).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallConfig {
    /// Most asynchronous calls that a worker may have in flight; further ones do not start.
    #[doc(alias("max_requests_in_flight_per_sampler_worker", "max_remote_requests_in_flight_per_actor"))]
    pub max_in_flight: usize,
    /// Consecutive failed samples after which a worker becomes unhealthy; 0 disables the limit.
    #[doc(alias = "num_consecutive_worker_failures_tolerance")]
    pub max_sample_failures: u32,
    /// Timeout of a call, counted from the end of the worker's previous call. A worker that exceeds it becomes unhealthy.
    /// `None` disables the timeout.
    #[doc(alias = "sample_timeout_s")]
    pub call_timeout: Option<Micros>,
    /// Time without progress after which a sampling worker becomes unhealthy. It is [`UNHURRIED`](Self::UNHURRIED) times as
    /// long before a worker's first progress, while it warms up, and for a [throttled](super::CallManager::set_throttled)
    /// worker. `None` disables the timeout.
    pub progress_timeout: Option<Micros>,
}

impl CallConfig {
    /// Factor by which `progress_timeout` is longer for workers that are warming up or throttled.
    pub const UNHURRIED: u64 = 10;
}

impl Default for CallConfig {
    fn default() -> Self {
        Self {
            max_in_flight: 2,
            max_sample_failures: 3,
            call_timeout: Some(Micros::from_secs(300)),
            progress_timeout: Some(WorkerProfile::NATIVE.progress_timeout),
        }
    }
}
