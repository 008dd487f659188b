//! Synchronising observation filters.

use std::{collections::BTreeMap, time::Duration};

use rollmesh_core::{
    calls::ForEach,
    episode::GlobalVars,
    filter::Filter,
    ids::{PolicyId, WorkerId},
    worker::{WorkerAnswer, WorkerCommand},
};

use super::{ForEachWorker, GroupError, Request, WorkerGroup, setup::raised};

/// The settings of a synchronisation of filters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncFilters {
    /// True if the remote workers' statistics are merged.
    pub use_worker_filter_stats: bool,
    /// True if the remote workers get the merged statistics.
    pub update_worker_filter_stats: bool,
    /// Env steps of the run; each remote worker is informed of an equal share.
    pub env_steps_sampled: Option<u64>,
    /// The time to wait for the remote workers' statistics. Late ones are merged the next time.
    #[doc(alias = "sync_filters_on_rollout_workers_timeout_s")]
    pub timeout: Duration,
}

impl Default for SyncFilters {
    /// Returns the default: both directions, within a minute.
    fn default() -> Self {
        Self {
            use_worker_filter_stats: true,
            update_worker_filter_stats: true,
            env_steps_sampled: None,
            timeout: Duration::from_secs(60),
        }
    }
}

impl WorkerGroup {
    /// Merges what the remote workers' filters have observed since the last time into the local worker's, in the order of
    /// ids, and sends the result to all workers. Every observation is counted once: late statistics are merged the next
    /// time. If a worker dies, its observations since the last time are lost; a hub's run avoids that, since its statistics
    /// are those of the committed rows.
    ///
    /// # Errors
    /// Statistics of other workers are merged nevertheless.
    /// [`GroupError::NoSource`] without a local worker; [`GroupError::Worker`], [`GroupError::Filter`].
    #[doc(alias("sync_env_runner_states", "FilterManager"))]
    pub fn sync_filters(&mut self, sync: &SyncFilters) -> Result<(), GroupError> {
        // Its statistics contain its own rows already, so its buffer is flushed.
        let mut merged = match &mut self.local {
            Some(local) => local.filters(true)?,
            None => return Err(GroupError::NoSource("filters")),
        };
        if sync.use_worker_filter_stats {
            let done = self.merge_filters(&mut merged, sync.timeout);
            // The merged statistics exist nowhere else.
            self.need_local("sync_filters")?.sync_filters(&merged)?;
            done?;
        }
        if sync.update_worker_filter_stats {
            let now = ForEachWorker::remote().timeout(Duration::ZERO);
            self.foreach_worker_with(&now, WorkerCommand::SyncFilters(merged))?;
        }
        if let Some(env_steps) = sync.env_steps_sampled {
            let timestep = env_steps / self.num_remote_workers().max(1) as u64;
            let vars = GlobalVars { timestep, ..GlobalVars::default() };
            let now = ForEachWorker::remote().timeout(Duration::ZERO);
            self.foreach_worker_with(&now, WorkerCommand::SetGlobalVars { vars, policies: None })?;
        }
        Ok(())
    }

    fn merge_filters(&mut self, merged: &mut BTreeMap<PolicyId, Filter>, timeout: Duration) -> Result<(), GroupError> {
        self.take_notifications();
        self.check_stopper()?;
        for worker in self.healthy_worker_ids() {
            if !self.filtering.contains_key(&worker) {
                let what = ForEach::new(Request::from(WorkerCommand::Filters { flush_after: true })).workers([worker]);
                let set = self.manager.foreach(what, self.now())?;
                self.filtering.insert(worker, set);
            }
        }
        self.pump();
        let mut done = BTreeMap::new();
        let waited = self.wait_until(Some(timeout), |group| {
            let filtering = std::mem::take(&mut group.filtering);
            for (worker, set) in filtering {
                match group.manager.poll_results(set) {
                    Some(results) => _ = done.insert(worker, results),
                    None => _ = group.filtering.insert(worker, set),
                }
            }
            group.filtering.is_empty()
        });
        let mut failed = None;
        for (worker, result) in done.into_values().flatten().map(|result| (result.worker, result.result)) {
            let merged = match result {
                Ok(answer) => match answer.answer() {
                    Some(WorkerAnswer::Filters(filters)) => merge(merged, worker, &filters),
                    _ => Err(GroupError::OtherAnswer(worker)),
                },
                Err(error) if error.is_answer() && !self.plan.failures.ignore_worker_failures => {
                    Err(raised(worker, error))
                }
                Err(error) => {
                    self.notice(format_args!("worker {worker}: {error}"));
                    Ok(())
                }
            };
            failed = failed.or_else(|| merged.err());
        }
        failed.map_or_else(|| waited.map(|_| ()), Err)
    }
}

fn merge(
    merged: &mut BTreeMap<PolicyId, Filter>,
    worker: WorkerId,
    filters: &BTreeMap<PolicyId, Filter>,
) -> Result<(), GroupError> {
    for (policy, filter) in filters {
        if let Some(own) = merged.get_mut(policy) {
            let merged = own.apply_changes(filter, false);
            merged.map_err(|source| GroupError::Filter { worker, policy: policy.clone(), source })?;
        }
    }
    Ok(())
}
