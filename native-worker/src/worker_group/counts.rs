//! The group's counters, ids and addresses.

use rollmesh_core::{ids::WorkerId, protocol::Token};

use super::{WorkerGroup, members::Member};

/// The ledger of samples requested from remote workers: each sample is counted in exactly one place.
///
/// `granted == committed + lost + outstanding` and `committed == consumed + queued + dropped_stale`, after every call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "Ledger")]
pub struct SampleCounters {
    /// Samples requested from workers.
    pub granted: u64,
    /// Samples received.
    pub committed: u64,
    /// Samples that failed, or whose worker was lost or removed first.
    pub lost: u64,
    /// Samples in progress.
    pub outstanding: u64,
    /// Samples handed over.
    pub consumed: u64,
    /// Received samples that have not been handed over yet.
    pub queued: u64,
    /// Received samples that were dropped because their weights had become too stale.
    pub dropped_stale: u64,
    /// Samples handed over that missed the batch before.
    pub carried: u64,
}

impl SampleCounters {
    /// Returns whether the ledger balances: no sample is lost silently or counted twice.
    #[must_use]
    pub fn balances(&self) -> bool {
        self.granted == self.committed + self.lost + self.outstanding
            && self.committed == self.consumed + self.queued + self.dropped_stale
    }
}

impl WorkerGroup {
    /// Returns the ids of the healthy remote workers, ascending.
    #[must_use]
    pub fn healthy_worker_ids(&self) -> Vec<WorkerId> {
        self.manager.healthy_worker_ids().collect()
    }

    /// Returns the ids of the remote workers, healthy or not, ascending.
    #[doc(alias = "worker_ids")]
    #[must_use]
    pub fn remote_workers(&self) -> Vec<WorkerId> {
        self.members.keys().copied().collect()
    }

    /// Returns the number of remote workers, healthy or not.
    #[doc(alias = "num_remote_env_runners")]
    #[must_use]
    pub fn num_remote_workers(&self) -> usize {
        self.manager.num_workers()
    }

    /// Returns the number of healthy remote workers.
    #[doc(alias = "num_healthy_remote_env_runners")]
    #[must_use]
    pub fn num_healthy_remote_workers(&self) -> usize {
        self.manager.num_healthy_workers()
    }

    /// Returns the number of healthy workers; the local one, if there is one, always is.
    #[doc(alias = "num_healthy_env_runners")]
    #[must_use]
    pub fn num_healthy_workers(&self) -> usize {
        self.num_healthy_remote_workers() + usize::from(self.local.is_some())
    }

    /// Returns how often an unhealthy remote worker became healthy again.
    #[doc(alias = "num_remote_env_runner_restarts")]
    #[must_use]
    pub fn num_remote_worker_restarts(&self) -> u64 {
        self.manager.num_restarts().saturating_sub(self.arrivals)
    }

    /// Returns the ledger of samples.
    #[must_use]
    pub fn sample_counters(&self) -> SampleCounters {
        self.samples.counters()
    }

    /// Returns the name of the trial that the group belongs to.
    #[must_use]
    pub fn tune_trial_id(&self) -> Option<&str> {
        self.plan.tune_trial_id.as_deref()
    }

    /// Returns the URL that workers of other processes connect to, once the group has requested any.
    #[must_use]
    pub fn worker_url(&self) -> Option<String> {
        self.hub.as_ref().map(|hub| hub.url.clone())
    }

    /// Returns the token that authenticates them. A secret.
    #[must_use]
    pub fn worker_token(&self) -> Option<Token> {
        self.hub.as_ref().map(|hub| hub.token)
    }

    /// Returns the link by which a browser's tab becomes a worker of the group, with the workers' token, a secret; `None` unless
    /// workers of the placement [`Remote`](super::Placement::Remote) were requested, and the group serves a
    /// [page](super::WorkerGroupBuilder::page) or a [dashboard](super::WorkerGroupBuilder::dashboard).
    #[must_use]
    pub fn invite(&self) -> Option<String> {
        let hub = self.hub.as_ref().filter(|_| self.plan.page.is_some() || self.plan.dashboard)?;
        let has_place = self.members.values().filter_map(Member::seat).any(|seat| !seat.is_local);
        has_place.then(|| format!("{}/#join={}", hub.url.replacen("ws", "http", 1), hub.token.to_hex()))
    }

    /// Returns the fingerprint of the group's certificate, by which workers verify it (`--tls-fingerprint`); `None` without
    /// encryption.
    #[must_use]
    pub fn worker_fingerprint(&self) -> Option<String> {
        self.hub.as_ref().and_then(|hub| hub.fingerprint.clone())
    }

    /// Returns the process ids of the local worker processes.
    #[must_use]
    pub fn worker_pids(&self) -> Vec<u32> {
        self.hub.as_ref().map_or_else(Vec::new, |hub| hub.workers.pids())
    }
}
