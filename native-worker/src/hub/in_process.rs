//! The in-process worker: it samples in the hub's own process while no other worker can.

use std::mem;

use rollmesh_core::{
    hub::IN_PROCESS,
    protocol::{Role, TokenGrant, TokenId, WorkerState},
    worker::HostSettings,
};
use tokio::{sync::watch, task::AbortHandle};

use super::{
    LOCAL_KIND,
    actor::{Actor, Event},
    random_token,
};
use crate::{
    registry::{acting_on, device_of},
    train::{Run, RunEnd},
    worker::{EndKind, WorkerConfig, WorkerEnd, run},
};

/// The running in-process worker. It is an ordinary peer with a token of its own, whose connection ends when this is
/// dropped; a rollout thread that hangs outlives it.
pub(super) struct InProcess {
    token: TokenId,
    leave: watch::Sender<bool>,
    task: AbortHandle,
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Actor {
    /// Starts the in-process worker if the run has no other able worker. Once there is another one, lets it finish its lease
    /// and leave, so that its slots move.
    pub(super) fn tend_in_process(&mut self) {
        let is_needed = self.needs_in_process();
        match &self.in_process {
            None if is_needed && !self.hub.is_leaving => self.start_in_process(),
            Some(worker) if !is_needed => {
                worker.leave.send_if_modified(|leave| !mem::replace(leave, true));
            }
            // It is working; or it is leaving, and a successor starts after its end.
            _ => {}
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

    fn start_in_process(&mut self) {
        // A hub does not start without randomness. Should it fail now, the next event retries.
        let Ok(token) = random_token() else { return };
        let grant = TokenGrant { role: Role::Worker, child: Some(IN_PROCESS), expires: None };
        let token_id = self.hub.tokens.add(&token, grant);
        let (leave, wish) = watch::channel(false);
        let of_run = self.hub.run.as_ref().and_then(|run| run.worker_terms.spec.as_ref());
        let acting = device_of(of_run.unwrap_or(&self.worker));
        let acting = acting.and_then(|device| Ok((device, acting_on(&self.maker.registry, device)?)));
        let (device, registry) = match acting {
            Ok(acting) => acting,
            // The device was there when the run was checked.
            Err(error) => return self.end_run(RunEnd::Failed(format!("the in-process worker cannot act: {error}"))),
        };
        let config = WorkerConfig {
            hub: self.children.way.url.clone(),
            trust: self.children.way.trust.clone(),
            token,
            kind: LOCAL_KIND,
            name: "in-process".into(),
            device: device.to_string(),
            kernels: self.maker.kernels,
            host_settings: HostSettings::Taken,
            evaluating: None,
        };
        let events = self.children.events.clone();
        let speaker = events.clone();
        // Called on the rollout thread, too, which must not block on the hub: messages are dropped when the channel is full.
        let say = move |line: &str| _ = speaker.try_send(Event::InProcessSaid(line.into()));
        let task = tokio::spawn(async move {
            let end = run(config, registry, wish, say).await;
            // The hub may have stopped meanwhile.
            let _ = events.send(Event::InProcessEnded(end)).await;
        });
        self.in_process = Some(InProcess { token: token_id, leave, task: task.abort_handle() });
    }

    pub(super) fn handle_in_process_end(&mut self, end: &WorkerEnd) {
        self.end_in_process();
        let WorkerEnd { kind, reason } = end;
        match kind {
            EndKind::Refused => self.hub.notice(1, format!("the hub refused the in-process worker: {reason}")),
            EndKind::Failed => self.hub.notice(1, format!("the in-process worker cannot work: {reason}")),
            EndKind::Untrusted | EndKind::Closed | EndKind::NameTaken => {}
        }
    }
}

impl Actor {
    /// Ends the in-process worker's connection. If it is still needed, another one is started.
    pub(super) fn end_in_process(&mut self) {
        if let Some(worker) = self.in_process.take() {
            self.hub.tokens.revoke(worker.token);
        }
    }
}

impl Run {
    /// True while the hub's own process samples whenever no other worker can.
    pub(super) fn samples_in_process(&self) -> bool {
        !self.is_over() && !self.is_local() && self.worker_terms.num_workers == 0 && !self.request.remote_only
    }
}
