//! Settings of a manager of calls.

use crate::{group::WorkerProfile, time::Micros};

/// Settings of a [`CallManager`](super::CallManager).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallConfig {
    /// Asynchronous calls that a worker may have in flight; what comes on top does not begin.
    #[doc(alias("max_requests_in_flight_per_sampler_worker", "max_remote_requests_in_flight_per_actor"))]
    pub max_in_flight: usize,
    /// Samples that fail in a row until their worker is unhealthy; 0 for never.
    #[doc(alias = "num_consecutive_worker_failures_tolerance")]
    pub max_sample_failures: u32,
    /// How long a worker may take for a call, from the moment on at which the one before it was done. Beyond that it is
    /// unhealthy. None to wait forever.
    #[doc(alias = "sample_timeout_s")]
    pub call_timeout: Option<Micros>,
    /// How long a sample may go without progress until its worker is unhealthy; [`UNHURRIED`](Self::UNHURRIED) times as
    /// long before a worker's first one, while it warms up, and for a [throttled](super::CallManager::set_throttled) one.
    /// None to wait forever.
    pub progress_timeout: Option<Micros>,
}

impl CallConfig {
    /// How many times as long those may take who cannot help it.
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
