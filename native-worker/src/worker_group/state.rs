//! The state that new and restored workers start from.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rollmesh_core::{
    episode::GlobalVars,
    filter::FilterKind,
    ids::{PolicyId, WeightsVersion, WorkerId},
    weights::Weights,
    worker::{WorkerAnswer, WorkerCommand},
};

use super::{GroupError, WorkerGroup, setup::raised, task::Request};

/// The state that a group without a local worker has synced: all that it knows about its workers' state once they are
/// lost.
#[derive(Debug, Default)]
pub(super) struct Synced {
    weights: BTreeMap<PolicyId, Weights>,
    global_vars: Option<GlobalVars>,
    /// Policies were added or removed since the workers were set up; the group has no record of that.
    changed_policies: bool,
}

impl Synced {
    /// Records the latest weights and global variables.
    pub(super) fn record(&mut self, weights: BTreeMap<PolicyId, Weights>, global_vars: Option<&GlobalVars>) {
        self.weights.extend(weights);
        self.global_vars = global_vars.or(self.global_vars.as_ref()).cloned();
    }

    pub(super) fn record_changed_policies(&mut self) {
        self.changed_policies = true;
    }
}

/// The state that is sent to a worker.
pub(super) struct GroupState {
    commands: Vec<WorkerCommand>,
    /// True if this is everything that a lost worker had from the group.
    pub(super) is_whole: bool,
    /// Version of its weights.
    weights: WeightsVersion,
}

impl WorkerGroup {
    /// Returns the state for new workers: the local worker's, or that of a healthy worker that is not in `ids`, or else
    /// the one that was last synced.
    pub(super) fn state_for_others(&mut self, ids: &[WorkerId]) -> Result<GroupState, GroupError> {
        if let Some(local) = &mut self.local {
            return Ok(GroupState::of(local.save()?, self.samples.newest));
        }
        let peers: Vec<WorkerId> = self.manager.healthy_worker_ids().filter(|id| !ids.contains(id)).collect();
        let timeout = self.plan.failures.restore_timeout;
        for peer in peers {
            for (worker, result) in self.ask_these(&[peer], Arc::new(WorkerCommand::State.into()), timeout)? {
                match result.map(super::TaskAnswer::answer) {
                    Ok(Some(WorkerAnswer::State(state))) => {
                        let weights = self.members.get(&worker).map(|member| member.weights).unwrap_or_default();
                        return Ok(GroupState::of(state, weights));
                    }
                    Ok(_) => return Err(GroupError::OtherAnswer(worker)),
                    Err(error) => self.notice(format_args!("worker {worker} does not give its state: {error}")),
                }
            }
        }
        Ok(self.last_synced())
    }

    fn last_synced(&self) -> GroupState {
        let Synced { weights, global_vars, changed_policies } = &self.synced;
        let newest = self.samples.newest;
        if weights.is_empty() {
            return GroupState { commands: Vec::new(), is_whole: false, weights: WeightsVersion::default() };
        }
        let (weights, global_vars) = (weights.clone(), global_vars.clone());
        // Only the workers themselves have the filters' statistics.
        let is_whole = !changed_policies && self.config.observation_filter == FilterKind::NoFilter;
        let command = WorkerCommand::SetWeights { weights, global_vars, weights_seq_no: None };
        GroupState { commands: vec![command], is_whole, weights: newest }
    }

    /// Sends a state to a worker.
    pub(super) fn give_state(&mut self, id: WorkerId, state: &GroupState, timeout: Duration) -> Result<(), GroupError> {
        for command in state.commands.clone() {
            let said = self.ask_these(&[id], Request::from(command).into(), timeout)?;
            if said.is_empty() {
                return Err(GroupError::NotJoined { missing: 1, waited: timeout, why: String::new() });
            }
            for (worker, result) in said {
                result.map_err(|error| raised(worker, error))?;
            }
        }
        if let Some(member) = self.members.get_mut(&id) {
            member.weights = state.weights;
        }
        Ok(())
    }
}

impl GroupState {
    fn of(state: Vec<u8>, weights: WeightsVersion) -> Self {
        // Buffered filter deltas in the state belong to the worker that it was taken from.
        let forget = WorkerCommand::Filters { flush_after: true };
        Self { commands: vec![WorkerCommand::SetState(state), forget], is_whole: true, weights }
    }
}
