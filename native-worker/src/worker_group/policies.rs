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
    /// Asks every policy of every worker something, and gives all answers in one list: the local worker's first, then by
    /// worker and policy. A [registered function](rollmesh_core::worker::Registry::with_policy_fn) is asked everywhere; a
    /// closure, see [`in_policy`](super::in_policy), in this process.
    ///
    /// # Errors
    /// As [`foreach_worker`](Self::foreach_worker).
    pub fn foreach_policy<T: PolicyTask>(&mut self, task: T) -> Result<Vec<T::Answer>, GroupError> {
        let answers = self.foreach_worker(task.for_each_policy(false))?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// [`foreach_policy`](Self::foreach_policy) for those policies that are trained.
    ///
    /// # Errors
    /// As there.
    #[doc(alias = "foreach_trainable_policy")]
    pub fn foreach_policy_to_train<T: PolicyTask>(&mut self, task: T) -> Result<Vec<T::Answer>, GroupError> {
        let answers = self.foreach_worker(task.for_each_policy(true))?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Adds a policy of a registered kind to all workers, or to some. Workers that are made later have it, too.
    ///
    /// # Errors
    /// [`GroupError::Worker`] if the id is taken or the kind unknown, whose worker has not changed; as
    /// [`foreach_worker`](Self::foreach_worker).
    pub fn add_policy(
        &mut self,
        options: &ForEachWorker,
        id: PolicyId,
        policy: PolicyConfig,
        state: Option<PolicyState>,
        roles: PolicyRoles,
    ) -> Result<(), GroupError> {
        self.synced.note_changed_policies();
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
        self.synced.note_changed_policies();
        self.foreach_worker_with(options, WorkerCommand::RemovePolicy { id, roles }).map(|_| ())
    }

    /// Whether a policy is trained, on a certain batch or at all. The local worker knows.
    ///
    /// # Errors
    /// [`GroupError::NoLocalWorker`].
    pub fn is_policy_to_train(&mut self, id: &PolicyId, batch: Option<&AnyBatch>) -> Result<bool, GroupError> {
        Ok(self.need_local("is_policy_to_train")?.policies_to_train(batch).contains(id))
    }

    /// Weights of the local worker's policies, of all or of some.
    ///
    /// # Errors
    /// [`GroupError::NoLocalWorker`], [`GroupError::Local`].
    #[doc(alias = "get_weights")]
    pub fn weights(&mut self, policies: Option<&[PolicyId]>) -> Result<BTreeMap<PolicyId, Weights>, GroupError> {
        Ok(self.need_local("weights")?.weights(policies)?)
    }
}
