//! Workers in the hub's own process: one samples while no other worker can, and one computes actions for the others, if
//! the run needs that and no other worker does it.

use std::mem;

use rollmesh_core::{
    hub::{IN_PROCESS, IN_PROCESS_SERVER, RunLoop},
    protocol::{Role, TokenGrant, TokenId, WorkerState},
    worker::HostSettings,
};
use tokio::{
    sync::watch,
    task::{AbortHandle, spawn_blocking},
};

use super::{
    LOCAL_KIND,
    actor::{Actor, Event},
    random_token,
};
use crate::{
    learner::{DeviceError, DeviceSpec},
    registry::{acting_on, device_of, shown_device},
    runs::{Run, RunEnd},
    worker::{Duty, EndKind, WorkerConfig, WorkerEnd, run},
};

/// A running in-process worker. It is an ordinary peer with a token of its own, whose connection ends when this is
/// dropped; a rollout thread that hangs outlives it.
pub(super) struct InProcessPeers {
    token: TokenId,
    leave: watch::Sender<bool>,
    task: AbortHandle,
}

impl Drop for InProcessPeers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the end of a run whose in-process worker cannot act, although its device was available when the run was
/// checked.
fn cannot_act(error: &str) -> RunEnd {
    RunEnd::Failed(format!("the in-process worker cannot act: {error}"))
}

impl Actor {
    /// Starts the in-process worker if the run has no other able worker. Once there is another one, lets it finish its lease
    /// and leave, so that its slots move.
    pub(super) fn tend_in_process(&mut self) {
        if self.is_rolling_back() {
            // The run that continues needs what the stopped one needed.
            return;
        }
        for (child, is_needed) in
            [(IN_PROCESS, self.needs_in_process()), (IN_PROCESS_SERVER, self.hub.needs_own_server())]
        {
            match self.in_process.get(&child) {
                None if is_needed && !self.hub.is_leaving => self.start_in_process(child),
                Some(worker) if !is_needed => {
                    worker.leave.send_if_modified(|leave| !mem::replace(leave, true));
                }
                // It is working; or it is leaving, and a successor starts after its end.
                _ => {}
            }
        }
    }

    fn needs_in_process(&self) -> bool {
        // A program that listens to workers manages their number itself.
        let run = self.hub.run.as_ref().filter(|run| run.samples_in_process() && self.listener.is_none());
        let is_other = |id: u32| self.hub.peers.get(&id).is_some_and(|peer| peer.child != Some(IN_PROCESS));
        let can_sample = |state| matches!(state, WorkerState::Idle | WorkerState::Sampling);
        run.is_some_and(|run| {
            !run.state.group.workers(self.now()).any(|worker| can_sample(worker.state) && is_other(worker.worker.0))
        })
    }

    /// Returns the device on which an in-process worker acts: that of local workers, or if it acts for others that of
    /// the learner, as far as the run allows devices.
    fn device_in_process(&self, child: u32) -> Result<DeviceSpec, DeviceError> {
        let run = self.hub.run.as_ref();
        if child == IN_PROCESS {
            let of_run = run.and_then(|run| run.worker_terms.spec.as_ref());
            return device_of(of_run.unwrap_or(&self.worker));
        }
        let config = run.map(|run| run.state.config()).filter(|config| config.device_rows);
        config.map_or(Ok(DeviceSpec::Cpu), |config| config.host.device.parse())
    }

    fn start_in_process(&mut self, child: u32) {
        // A hub does not start without randomness. Should it fail now, the next event retries.
        let Ok(token) = random_token() else { return };
        let device = match self.device_in_process(child) {
            Ok(device) => device,
            Err(error) => return self.end_run(cannot_act(&error.to_string())),
        };
        // From here on the worker starts, so that the token is revoked when it ends.
        let grant = TokenGrant { role: Role::Worker, child: Some(child), expires: None };
        let token_id = self.hub.tokens.add(&token, grant);
        let (leave, wish) = watch::channel(false);
        let (registry, kernels) = (self.maker.registry.clone(), self.maker.kernels);
        let env_memory_mb = self.hub.run.as_ref().map(|run| run.config().rollout.remote_env_memory_mb);
        // Takes long on a device.
        let acting = move || {
            let registry = acting_on(&registry, device).map_err(|error| error.to_string())?;
            let device = shown_device(&registry, device, kernels).map_err(|error| error.to_string())?;
            Ok((device, registry))
        };
        let (trust, url) = (self.children.way.trust.clone(), self.children.way.url.clone());
        let config = move |device| WorkerConfig {
            hub: url,
            trust,
            relay: None,
            token,
            token_file: None,
            kind: LOCAL_KIND,
            name: if child == IN_PROCESS { "in-process" } else { "inference" }.into(),
            device,
            kernels,
            host_settings: HostSettings::Taken,
            env_memory_mb,
            duty: if child == IN_PROCESS { Duty::Runs } else { Duty::ActsForOthers },
        };
        let (events, of) = (self.children.events.clone(), self.hub.state().map_or(0, RunLoop::number));
        let speaker = events.clone();
        // Called on the rollout thread, too, which must not block on the hub: messages are dropped when the channel is full.
        let say = move |line: &str| _ = speaker.try_send(Event::InProcessSaid(line.into()));
        let task = tokio::spawn(async move {
            let acting = spawn_blocking(acting).await.unwrap_or_else(|panic| Err(panic.to_string()));
            let (device, registry) = match acting {
                Ok(acting) => acting,
                Err(error) => {
                    let _ = events.send(Event::InProcessUnable { child, run: of, error }).await;
                    return;
                }
            };
            let end = run(config(device), registry, wish, say).await;
            // The hub may have stopped meanwhile.
            let _ = events.send(Event::InProcessEnded { child, end }).await;
        });
        let worker = InProcessPeers { token: token_id, leave, task: task.abort_handle() };
        self.in_process.insert(child, worker);
    }

    /// Ends a run for which an in-process worker cannot act.
    pub(super) fn handle_in_process_unable(&mut self, child: u32, run: u32, error: &str) {
        self.end_in_process(child);
        if self.hub.state().is_some_and(|state| state.number() == run) {
            self.end_run(cannot_act(error));
        }
    }

    pub(super) fn handle_in_process_end(&mut self, child: u32, end: &WorkerEnd) {
        self.end_in_process(child);
        let WorkerEnd { kind, reason } = end;
        match kind {
            EndKind::Refused => self.hub.notice(1, format!("the hub refused the in-process worker: {reason}")),
            EndKind::Failed => self.hub.notice(1, format!("the in-process worker cannot work: {reason}")),
            EndKind::Untrusted | EndKind::Closed | EndKind::NameTaken => {}
        }
    }

    /// Ends an in-process worker's connection. If it is still needed, another one is started.
    pub(super) fn end_in_process(&mut self, child: u32) {
        if let Some(worker) = self.in_process.remove(&child) {
            self.hub.tokens.revoke(worker.token);
        }
    }
}

impl Run {
    /// Returns true while the hub's own process samples whenever no other worker can.
    pub(super) fn samples_in_process(&self) -> bool {
        !self.is_over() && !self.is_local() && self.worker_terms.num_workers == 0 && !self.request.remote_only
    }
}
