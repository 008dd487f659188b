//! Who is there.

use rollmesh_core::{ids::WorkerId, protocol::Token};

use super::WorkerGroup;

/// The books of what remote workers were asked to sample: each sample is in exactly one place.
///
/// `granted == committed + lost + outstanding` and `committed == consumed + queued + dropped_stale`, after every call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "Ledger")]
pub struct SampleCounters {
    /// Samples that workers were asked for.
    pub granted: u64,
    /// Samples that came.
    pub committed: u64,
    /// Samples that failed, or whose worker was lost or removed before it was done.
    pub lost: u64,
    /// Samples that are being made.
    pub outstanding: u64,
    /// Samples that were handed over.
    pub consumed: u64,
    /// Samples that came and wait to be handed over.
    pub queued: u64,
    /// Samples that came and were not handed over: their weights had become too old.
    pub dropped_stale: u64,
    /// Of those that were handed over: they were not there yet when the batch before was.
    pub carried: u64,
}

impl SampleCounters {
    /// True if no sample is lost silently or counted twice.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.granted == self.committed + self.lost + self.outstanding
            && self.committed == self.consumed + self.queued + self.dropped_stale
    }
}

impl WorkerGroup {
    /// Ids of the remote workers that are healthy, ascending.
    #[must_use]
    pub fn healthy_worker_ids(&self) -> Vec<WorkerId> {
        self.manager.healthy_worker_ids().collect()
    }

    /// Ids of the remote workers, healthy or not, ascending.
    #[doc(alias = "worker_ids")]
    #[must_use]
    pub fn remote_workers(&self) -> Vec<WorkerId> {
        self.members.keys().copied().collect()
    }

    /// Remote workers, healthy or not.
    #[doc(alias = "num_remote_env_runners")]
    #[must_use]
    pub fn num_remote_workers(&self) -> usize {
        self.manager.num_workers()
    }

    /// Remote workers that are healthy.
    #[doc(alias = "num_healthy_remote_env_runners")]
    #[must_use]
    pub fn num_healthy_remote_workers(&self) -> usize {
        self.manager.num_healthy_workers()
    }

    /// Workers that are healthy; the local one, if there is one, always is.
    #[doc(alias = "num_healthy_env_runners")]
    #[must_use]
    pub fn num_healthy_workers(&self) -> usize {
        self.num_healthy_remote_workers() + usize::from(self.local.is_some())
    }

    /// How often an unhealthy remote worker became healthy again.
    #[doc(alias = "num_remote_env_runner_restarts")]
    #[must_use]
    pub fn num_remote_worker_restarts(&self) -> u64 {
        self.manager.num_restarts().saturating_sub(self.arrivals)
    }

    /// What became of samples.
    #[must_use]
    pub fn sample_counters(&self) -> SampleCounters {
        self.samples.counters()
    }

    /// Name of the trial that the group belongs to.
    #[must_use]
    pub fn tune_trial_id(&self) -> Option<&str> {
        self.plan.tune_trial_id.as_deref()
    }

    /// Where workers of other processes come to, once the group has asked for any.
    #[must_use]
    pub fn worker_url(&self) -> Option<String> {
        self.hub.as_ref().map(super::HubThread::url)
    }

    /// What lets them in. A secret.
    #[must_use]
    pub fn worker_token(&self) -> Option<Token> {
        self.hub.as_ref().map(super::HubThread::token)
    }

    /// The fingerprint of the group's certificate, by which they know it (`--tls-fingerprint`); none without encryption.
    #[must_use]
    pub fn worker_fingerprint(&self) -> Option<String> {
        self.hub.as_ref().and_then(super::HubThread::fingerprint)
    }

    /// The local processes, by the system's numbers.
    #[must_use]
    pub fn worker_pids(&self) -> Vec<u32> {
        self.hub.as_ref().map_or_else(Vec::new, super::HubThread::pids)
    }
}
