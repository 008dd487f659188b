//! Synchronising weights from the learner to the workers.

use std::{collections::BTreeMap, fmt, time::Duration};

use rollmesh_core::{
    episode::GlobalVars,
    ids::{PolicyId, WorkerId},
    weights::Weights,
    worker::{RolloutWorker, WorkerCommand},
};

use super::{ForEachWorker, GroupError, WorkerGroup};
use crate::learner::Learner;

/// The source of weights.
#[derive(Default)]
#[doc(alias = "from_worker_or_learner_group")]
pub enum WeightsSource<'a> {
    /// The group's local worker.
    #[default]
    Local,
    /// Another worker, for example one that learns.
    Worker(&'a mut RolloutWorker),
    /// The learner of the default policy.
    Learner(&'a Learner),
    /// The given weights.
    Weights(&'a BTreeMap<PolicyId, Weights>),
}

impl fmt::Debug for WeightsSource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "Local",
            Self::Worker(_) => "Worker",
            Self::Learner(_) => "Learner",
            Self::Weights(_) => "Weights",
        })
    }
}

/// The weights to sync, with their source and their targets.
///
/// Weights contain only what is needed to act, so there is no `inference_only` setting.
#[derive(Debug, Default)]
pub struct SyncWeights<'a> {
    /// The policies; `None` for all.
    pub policies: Option<&'a [PolicyId]>,
    /// The source of the weights.
    pub from: WeightsSource<'a>,
    /// The workers that get them; `None` for all healthy ones.
    pub to_worker_indices: Option<&'a [WorkerId]>,
    /// The run's progress.
    pub global_vars: Option<&'a GlobalVars>,
    /// The time to wait until the workers have applied them; 0, the default, does not wait: every worker applies them
    /// before its next call.
    #[doc(alias = "timeout_seconds")]
    pub timeout: Duration,
}

impl<'a> SyncWeights<'a> {
    /// Syncs these weights to all workers.
    #[must_use]
    pub fn from_weights(weights: &'a BTreeMap<PolicyId, Weights>) -> Self {
        Self { from: WeightsSource::Weights(weights), ..Self::default() }
    }
}

impl WorkerGroup {
    /// Sends the weights of one source to all healthy workers. The local worker gets them, too, if they come from elsewhere;
    /// it gets global variables in any case.
    ///
    /// # Errors
    /// [`GroupError::NoSource`] without a local worker and another source; [`GroupError::Local`] for weights that do not
    /// fit. With a timeout, [`GroupError::Worker`] for remote failures; without one they are a [notice](Self::next_notice).
    pub fn sync_weights(&mut self, sync: SyncWeights<'_>) -> Result<(), GroupError> {
        let SyncWeights { policies, from, to_worker_indices, global_vars, timeout } = sync;
        let is_wanted = |id: &PolicyId| policies.is_none_or(|wanted| wanted.contains(id));
        let is_local = matches!(from, WeightsSource::Local);
        let weights = match from {
            WeightsSource::Local => match &mut self.local {
                Some(local) => local.weights(policies)?,
                None => return Err(GroupError::NoSource("weights")),
            },
            WeightsSource::Worker(worker) => worker.weights(policies)?,
            WeightsSource::Learner(learner) => [(PolicyId::DEFAULT, learner.weights().clone())].into(),
            WeightsSource::Weights(weights) => weights.clone(),
        };
        let weights: BTreeMap<_, _> = weights.into_iter().filter(|(id, _)| is_wanted(id)).collect();
        if let Some(local) = &mut self.local {
            if !is_local {
                local.set_weights(&weights, None, None)?;
            }
            if let Some(vars) = global_vars {
                local.set_global_vars(vars, None)?;
            }
        }
        // Kept for workers that start later, if no local worker has them; policies that the configuration does not know are
        // no initial state.
        let ids = &self.config.policies;
        let is_known = |id: &PolicyId| ids.contains_key(id) || ids.is_empty() && *id == PolicyId::DEFAULT;
        let known = || weights.iter().filter(|(id, _)| is_known(id)).map(|(id, weights)| (id.clone(), weights.clone()));
        let for_later: Option<BTreeMap<_, _>> = self.local.is_none().then(|| known().collect());
        let has_changed = !weights.is_empty();
        let command = WorkerCommand::SetWeights { weights, global_vars: global_vars.cloned(), weights_seq_no: None };
        let options = ForEachWorker {
            remote_worker_ids: to_worker_indices.map(<[WorkerId]>::to_vec),
            timeout: Some(timeout),
            ..ForEachWorker::remote()
        };
        // Incremented before sending: if that fails, all workers count as having the old weights.
        self.samples.newest.0 += u64::from(has_changed);
        self.foreach_worker_with(&options, command)?;
        if let Some(weights) = for_later {
            self.synced.record(weights, global_vars);
        }
        let is_synced = |id: &WorkerId| to_worker_indices.is_none_or(|ids| ids.contains(id));
        for (id, member) in self.members.iter_mut().filter(|(id, _)| has_changed && is_synced(id)) {
            if self.manager.is_healthy(*id) == Some(true) {
                member.weights = self.samples.newest;
            }
        }
        Ok(())
    }
}
