//! The view of a group's remote workers on dashboards.

use std::fmt;

use rollmesh_core::{
    calls::WorkerHealth,
    ids::WorkerId,
    protocol::{WorkerState, message::WorkerRow},
    worker::{CommandError, WorkerAnswer},
};

use super::{WorkerGroup, members::Member, task::TaskAnswer};
use crate::hub::CalledWorkers;

impl WorkerGroup {
    /// Returns the URL of the group's [dashboard](super::WorkerGroupBuilder::dashboard) with an operator's token, a secret; `None`
    /// without a dashboard, and while the group is not set up.
    #[must_use]
    pub fn dashboard_url(&self) -> Option<String> {
        self.hub.as_ref()?.dashboard.as_ref().map(|(url, _)| url.clone())
    }

    fn called(&self) -> Option<&CalledWorkers> {
        self.hub.as_ref()?.dashboard.as_ref().map(|(_, called)| called)
    }

    /// Updates the view of the workers on dashboards.
    pub(super) fn show(&self) {
        let Some(called) = self.called() else { return };
        let rows = self.manager.workers().filter_map(|health| Some(self.members.get(&health.worker)?.row(&health)));
        called.lock().rows = rows.collect();
    }

    /// Shows dashboards a notice of the group, which the user gets as well.
    pub(super) fn show_notice(&self, text: &impl fmt::Display) {
        self.called().into_iter().for_each(|called| called.lock().notices.push(text.to_string()));
    }

    /// Counts the env steps of a sample.
    pub(super) fn count_env_steps(&mut self, worker: WorkerId, answer: &Result<TaskAnswer, CommandError>) {
        if let Ok(TaskAnswer::Answer(WorkerAnswer::Sample(batch))) = answer
            && let Some(member) = self.members.get_mut(&worker)
        {
            member.env_steps += batch.env_steps() as u64;
        }
    }
}

impl Member {
    /// Returns its row on dashboards. The hub knows the kind of one that is connected.
    fn row(&self, health: &WorkerHealth) -> WorkerRow {
        let (state, why) = match health.waiting {
            _ if !self.is_there() => (WorkerState::Unable, "no worker has this place".to_owned()),
            _ if self.is_stuck => (WorkerState::Hung, "it does not answer".to_owned()),
            _ if !health.is_healthy => (WorkerState::Unanswered, "the program has not restored it yet".to_owned()),
            0 => (WorkerState::Idle, "no call is under way".to_owned()),
            1 => (WorkerState::Sampling, "1 call is under way".to_owned()),
            calls => (WorkerState::Sampling, format!("{calls} calls are under way")),
        };
        let peer = self.seat().and_then(|seat| seat.peer);
        let kind = if peer.is_some() { "" } else { self.kind() };
        let worker = health.worker;
        WorkerRow {
            worker: peer.unwrap_or(self.number),
            kind: kind.into(),
            name: format!("worker-{worker}"),
            state: state.to_wire(),
            env_steps: self.env_steps,
            reason: format!("worker {worker} of the group: {why}"),
            ..WorkerRow::default()
        }
    }
}
