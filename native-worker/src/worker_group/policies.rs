//! The policies of all workers.

use std::collections::BTreeMap;

use rollmesh_core::{
    batch::AnyBatch,
    ids::PolicyId,
    policy::PolicyState,
    weights::Weights,
    worker::{PolicyConfig, PolicyRoles, WorkerCommand},
};

use super::{ForEachWorker, GroupError, PolicyTask, WorkerGroup};

impl WorkerGroup {
    /// Calls every policy of every worker, and returns all answers in one list: the local worker's first, then by worker and
    /// policy. A [registered function](rollmesh_core::worker::Registry::with_policy_fn) is called everywhere; a closure, see
    /// [`in_policy`](super::in_policy), in this process only.
    ///
    /// # Errors
    /// As [`foreach_worker`](Self::foreach_worker).
    pub fn foreach_policy<T: PolicyTask>(&mut self, task: T) -> Result<Vec<T::Answer>, GroupError> {
        let answers = self.foreach_worker(task.for_each_policy(false))?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Works like [`foreach_policy`](Self::foreach_policy), for the policies that are trained.
    ///
    /// # Errors
    /// As there.
    #[doc(alias = "foreach_trainable_policy")]
    pub fn foreach_policy_to_train<T: PolicyTask>(&mut self, task: T) -> Result<Vec<T::Answer>, GroupError> {
        let answers = self.foreach_worker(task.for_each_policy(true))?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Adds a policy of a registered kind to all workers, or to some. Workers that are created later have it, too.
    ///
    /// # Errors
    /// [`GroupError::Worker`] if the id is taken or the kind unknown, in which case that worker is unchanged; as
    /// [`foreach_worker`](Self::foreach_worker).
    pub fn add_policy(
        &mut self,
        options: &ForEachWorker,
        id: PolicyId,
        policy: PolicyConfig,
        state: Option<PolicyState>,
        roles: PolicyRoles,
    ) -> Result<(), GroupError> {
        self.synced.record_changed_policies();
        let command = WorkerCommand::AddPolicy { id, policy, state, roles };
        self.foreach_worker_with(options, command).map(|_| ())
    }

    /// Removes a policy from all workers, or from some.
    ///
    /// # Errors
    /// [`GroupError::Worker`] for an unknown id and for the last policy; as [`foreach_worker`](Self::foreach_worker).
    pub fn remove_policy(
        &mut self,
        options: &ForEachWorker,
        id: PolicyId,
        roles: PolicyRoles,
    ) -> Result<(), GroupError> {
        self.synced.record_changed_policies();
        self.foreach_worker_with(options, WorkerCommand::RemovePolicy { id, roles }).map(|_| ())
    }

    /// Returns whether the local worker trains a policy, on a given batch or at all.
    ///
    /// # Errors
    /// [`GroupError::NoLocalWorker`].
    pub fn is_policy_to_train(&mut self, id: &PolicyId, batch: Option<&AnyBatch>) -> Result<bool, GroupError> {
        Ok(self.need_local("is_policy_to_train")?.policies_to_train(batch).contains(id))
    }

    /// Returns the weights of the given policies of the local worker, or of all policies if `None`.
    ///
    /// # Errors
    /// [`GroupError::NoLocalWorker`], [`GroupError::Local`].
    #[doc(alias = "get_weights")]
    pub fn weights(&mut self, policies: Option<&[PolicyId]>) -> Result<BTreeMap<PolicyId, Weights>, GroupError> {
        Ok(self.need_local("weights")?.weights(policies)?)
    }
}
