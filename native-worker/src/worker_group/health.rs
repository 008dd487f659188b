//! Failures of workers: detection, restart and restoring of state.

use std::time::Duration;

use rollmesh_core::{
    callbacks::Callbacks as _,
    calls::{CallConfig, CallError},
    ids::WorkerId,
    time::Micros,
    worker::{RolloutConfig, WorkerCommand},
};

use super::{
    GroupError, WorkerGroup,
    members::{Member, MemberLink},
    state::GroupState,
    task::Request,
};

/// The handling of failures.
///
/// An error inside a call is an answer: it is returned, and its worker stays healthy. A worker becomes unhealthy when it
/// disconnects, when a call exceeds its timeout, when a sample makes no progress, and when its samples fail repeatedly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureSettings {
    /// True if failures of workers are [notices](WorkerGroup::next_notice) instead of errors, as long as one worker is
    /// healthy.
    #[doc(alias = "ignore_env_runner_failures")]
    pub ignore_worker_failures: bool,
    /// True if unhealthy workers are recreated: their processes and threads are restarted and informed that they
    /// replace a lost worker. Otherwise only workers that reconnect by themselves become healthy again.
    #[doc(alias = "restart_failed_env_runners")]
    pub recreate_failed_workers: bool,
    /// Minimum time between the end of a process and its replacement.
    #[doc(alias = "delay_between_worker_restarts_s")]
    pub restart_delay: Duration,
    /// Maximum number of restarts, of each thread or of all processes together.
    #[doc(alias = "max_num_worker_restarts")]
    pub max_worker_restarts: u32,
    /// Number of consecutive failed samples after which a worker is unhealthy; 0 for never.
    #[doc(alias = "num_consecutive_worker_failures_tolerance")]
    pub max_sample_failures: u32,
    /// Maximum number of asynchronous calls in flight per worker.
    #[doc(alias("max_requests_in_flight_per_sampler_worker", "max_requests_in_flight_per_env_runner"))]
    pub max_in_flight: usize,
    /// The time for a call before its worker becomes unhealthy; `None` for no limit.
    pub call_timeout: Option<Duration>,
    /// The time for which a sample may make no progress, which is a round of steps of the worker's environments, before
    /// the worker becomes unhealthy. Ten times as long for a worker that has not finished a round since it was set up,
    /// and in a browser tab, which the browser may throttle; longer by the
    /// [deadline](RolloutConfig::remote_env_timeout_ms) of environments that have one. Waiting for
    /// [external](crate::external) environments counts as progress: for such workers only
    /// [`call_timeout`](Self::call_timeout) applies. `None` for no limit: for environments whose steps take longer, and
    /// readers that wait. The local worker has the same deadline if it samples alone, see [`GroupError::LocalHangs`].
    pub progress_timeout: Option<Duration>,
    /// Timeout of a health probe.
    #[doc(alias = "worker_health_probe_timeout_s")]
    pub health_probe_timeout: Duration,
    /// Timeout for setting workers up and restoring the group's state.
    #[doc(alias = "worker_restore_timeout_s")]
    pub restore_timeout: Duration,
}

impl Default for FailureSettings {
    fn default() -> Self {
        let calls = CallConfig::default();
        Self {
            ignore_worker_failures: false,
            recreate_failed_workers: false,
            restart_delay: Duration::ZERO,
            max_worker_restarts: 1_000,
            max_sample_failures: calls.max_sample_failures,
            max_in_flight: calls.max_in_flight,
            call_timeout: calls.call_timeout.map(Duration::from),
            progress_timeout: calls.progress_timeout.map(Duration::from),
            health_probe_timeout: Duration::from_secs(60),
            restore_timeout: Duration::from_secs(1_800),
        }
    }
}

impl FailureSettings {
    pub(super) fn call_config(&self, config: &RolloutConfig) -> CallConfig {
        // The worker itself monitors remote environments, and reports no progress while it waits for one.
        let own_deadline = match config.remote_worker_envs {
            true => Micros::from_millis(config.remote_env_timeout_ms.into()),
            false => Micros(0),
        };
        CallConfig {
            max_in_flight: self.max_in_flight,
            max_sample_failures: self.max_sample_failures,
            call_timeout: self.call_timeout.map(Micros::from),
            progress_timeout: self.progress_timeout.map(|timeout| Micros::from(timeout) + own_deadline),
        }
    }
}

impl WorkerGroup {
    /// Probes the unhealthy workers and restores those that answer: they are set up again if they have lost their state, and
    /// get the local worker's state, its weights and filters in particular, before they count as healthy. With
    /// [`recreate_failed_workers`](FailureSettings::recreate_failed_workers), processes and threads that do not answer are
    /// ended, and their replacements awaited. Returns the ids of the restored workers.
    ///
    /// # Errors
    /// [`GroupError::Local`] if the local worker's state cannot be saved, [`GroupError::Callback`], [`GroupError::NotSetUp`]
    /// if a [stopper](super::GroupStopper) stops the group. A worker that cannot be restored stays unhealthy, which is a
    /// [notice](Self::next_notice).
    #[doc(alias = "restore_workers")]
    pub fn probe_unhealthy_workers(&mut self) -> Result<Vec<WorkerId>, GroupError> {
        self.take_notifications();
        self.check_stopper()?;
        if self.manager.unhealthy_worker_ids().next().is_none() {
            return Ok(Vec::new());
        }
        let timeout = self.plan.failures.health_probe_timeout;
        if self.plan.failures.recreate_failed_workers {
            self.end_stuck();
            self.wait_until(Some(timeout), |group| {
                let expected = |id: WorkerId| group.members.get(&id).is_some_and(Member::is_expected);
                group.gave_up.is_some() || !group.manager.unhealthy_worker_ids().any(expected)
            })?;
        }
        let ping = Request::from(WorkerCommand::Ping);
        let set = self.manager.probe_unhealthy(ping, Some(timeout.into()), false, self.now());
        let said = self.wait_for_set(set)?.into_iter();
        let is_alive = |result: &Result<_, CallError>| result.as_ref().map_or_else(CallError::is_answer, |_| true);
        let alive: Vec<WorkerId> = said.filter(|(_, result)| is_alive(result)).map(|(worker, _)| worker).collect();
        self.restore(&alive)
    }

    /// Marks a remote worker as healthy or unhealthy; the latter drops its calls.
    ///
    /// # Errors
    /// [`GroupError::ForEach`] for an unknown id, and for marking a disconnected worker as healthy.
    #[doc(alias = "set_actor_state")]
    pub fn set_worker_state(&mut self, worker: WorkerId, healthy: bool) -> Result<(), GroupError> {
        self.take_notifications();
        self.manager.set_worker_state(worker, healthy)?;
        self.pump();
        Ok(())
    }

    /// Waits until this many remote workers are healthy, and sets up and restores those that join: for workers that
    /// connect by themselves. Returns true if that number was reached.
    ///
    /// # Errors
    /// As [`probe_unhealthy_workers`](Self::probe_unhealthy_workers).
    pub fn wait_for_workers(&mut self, number: usize, timeout: Duration) -> Result<bool, GroupError> {
        self.check_stopper()?;
        let healthy = |group: &Self| group.manager.num_healthy_workers();
        let waiting = |group: &Self, id: WorkerId| group.members.get(&id).is_some_and(Member::is_there);
        let came = self.wait_until(Some(timeout), |group| {
            let there = group.manager.unhealthy_worker_ids().filter(|&id| waiting(group, id)).count();
            healthy(group) + there >= number
        })?;
        let here: Vec<WorkerId> = self.manager.unhealthy_worker_ids().filter(|&id| waiting(self, id)).collect();
        if came || !here.is_empty() {
            self.restore(&here)?;
        }
        Ok(healthy(self) >= number)
    }

    /// Sets connected workers up, if they need it, and restores the group's state; then they are healthy. Returns the ids of
    /// those that were restored.
    ///
    /// The state is the local worker's; without one, that of another healthy worker; otherwise the weights that were last
    /// [synced](Self::sync_weights). A worker that has lost more than that, filters in particular, is not restored: it stays
    /// unhealthy, with a notice.
    ///
    /// # Errors
    /// As [`probe_unhealthy_workers`](Self::probe_unhealthy_workers).
    pub fn restore(&mut self, ids: &[WorkerId]) -> Result<Vec<WorkerId>, GroupError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.check_stopper()?;
        let timeout = self.plan.failures.restore_timeout;
        let state = self.state_for_others(ids)?;
        let mut restored = Vec::new();
        for &id in ids {
            match self.bring_back(id, &state, timeout) {
                Ok(()) => restored.push(id),
                Err(error @ GroupError::NotSetUp) => return Err(error),
                Err(error) => self.notice(format_args!("worker {id} could not be brought back: {error}")),
            }
        }
        if !restored.is_empty() {
            self.announce(&restored)?;
        }
        Ok(restored)
    }

    fn bring_back(&mut self, id: WorkerId, state: &GroupState, timeout: Duration) -> Result<(), GroupError> {
        let recreate = self.plan.failures.recreate_failed_workers;
        let Some((is_set_up, has_worked)) = self.members.get(&id).map(|member| (member.is_set_up, member.has_worked))
        else {
            return Ok(());
        };
        if recreate || !is_set_up {
            if has_worked && !state.is_whole {
                return Err(GroupError::NoState);
            }
            self.set_up(&[id], has_worked, timeout)?;
        }
        self.give_state(id, state, timeout)?;
        self.manager.set_worker_state(id, true)?;
        if let Some(member) = self.members.get_mut(&id) {
            // It was only slow.
            member.is_stuck = false;
        }
        self.arrivals += u64::from(!has_worked);
        // Its earlier calls are lost.
        self.samples.forget(id);
        self.filtering.remove(&id);
        self.pump();
        Ok(())
    }

    /// Notifies the callbacks about recreated workers.
    fn announce(&mut self, ids: &[WorkerId]) -> Result<(), GroupError> {
        let place = |id: &WorkerId| self.members.get(id).map(|member| member.place.worker_index);
        let indices: Vec<u32> = ids.iter().filter_map(place).collect();
        if let Some(local) = &mut self.local {
            local.callbacks_mut().on_workers_recreated(&indices)?;
        }
        self.plan.on_workers_recreated.iter().for_each(|hear| hear(ids));
        Ok(())
    }

    /// Ends workers that do not answer, so that their places can be filled again.
    fn end_stuck(&mut self) {
        let unhealthy: Vec<WorkerId> = self.manager.unhealthy_worker_ids().collect();
        for id in unhealthy {
            let most = self.plan.failures.max_worker_restarts;
            let Some(member) = self.members.get_mut(&id).filter(|member| member.is_stuck) else { continue };
            if member.restarts >= most {
                continue;
            }
            member.restarts += 1;
            match &member.link {
                MemberLink::Thread { generation, .. } => {
                    let next = *generation + 1;
                    // The old thread ends when its hung call returns; its answers are ignored.
                    match self.thread_link(id, next) {
                        Ok(link) => {
                            if let Some(member) = self.members.get_mut(&id) {
                                (member.link, member.is_set_up, member.is_stuck) = (link, false, false);
                            }
                            self.manager.handle_joined(id);
                        }
                        Err(error) => self.notice(format_args!("worker {id}: the system gives no thread: {error}")),
                    }
                }
                MemberLink::Seat(seat) => {
                    if let (Some(child), Some(hub)) = (seat.child, &self.hub) {
                        hub.workers.kill(child);
                    }
                }
            }
        }
        self.pump();
    }
}

impl Member {
    /// Returns whether a replacement for this worker is being started.
    fn is_expected(&self) -> bool {
        self.seat().is_some_and(|seat| seat.is_local && (seat.peer.is_none() || self.is_stuck))
    }
}
