//! Weights, from where they are learned to where they act.

use std::{collections::BTreeMap, fmt, time::Duration};

use rollmesh_core::{
    episode::GlobalVars,
    ids::{PolicyId, WorkerId},
    weights::Weights,
    worker::{RolloutWorker, WorkerCommand},
};

use super::{ForEachWorker, GroupError, WorkerGroup};
use crate::learner::Learner;

/// Where weights come from.
#[derive(Default)]
#[doc(alias = "from_worker_or_learner_group")]
pub enum WeightsSource<'a> {
    /// The group's local worker.
    #[default]
    Local,
    /// Another worker, for example one that learns.
    Worker(&'a mut RolloutWorker),
    /// The learner of a default policy.
    Learner(&'a Learner),
    /// These.
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

/// What to sync, from where to where.
///
/// Weights hold what it takes to act, and nothing else: there is no `inference_only` to be set.
#[derive(Debug, Default)]
pub struct SyncWeights<'a> {
    /// The policies; none for all.
    pub policies: Option<&'a [PolicyId]>,
    /// Where they come from.
    pub from: WeightsSource<'a>,
    /// Those who get them; none for all that are healthy.
    pub to_worker_indices: Option<&'a [WorkerId]>,
    /// What is known of the run's progress.
    pub global_vars: Option<&'a GlobalVars>,
    /// How long to wait until they act; with 0, as by default, nobody waits: every worker has them before whatever it is
    /// asked next.
    #[doc(alias = "timeout_seconds")]
    pub timeout: Duration,
}

impl<'a> SyncWeights<'a> {
    /// Of these weights, to all.
    #[must_use]
    pub fn from_weights(weights: &'a BTreeMap<PolicyId, Weights>) -> Self {
        Self { from: WeightsSource::Weights(weights), ..Self::default() }
    }
}

impl WorkerGroup {
    /// Lets all healthy workers act with the weights of one source. The local worker gets them, too, if they come from
    /// elsewhere; it hears of global vars in any case.
    ///
    /// # Errors
    /// [`GroupError::NoSource`] without a local worker and without another source; [`GroupError::Local`] for weights that
    /// do not fit. Whoever waits hears [`GroupError::Worker`] of others; else that is a [notice](Self::next_notice).
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
        // For whoever has to begin with them later, where no local worker has them; what is strange to all is no beginning.
        let ids = &self.config.policies;
        let is_known = |id: &PolicyId| ids.contains_key(id) || ids.is_empty() && *id == PolicyId::DEFAULT;
        let known = || weights.iter().filter(|(id, _)| is_known(id)).map(|(id, weights)| (id.clone(), weights.clone()));
        let for_later: Option<BTreeMap<_, _>> = self.local.is_none().then(|| known().collect());
        let is_news = !weights.is_empty();
        let command = WorkerCommand::SetWeights { weights, global_vars: global_vars.cloned(), weights_seq_no: None };
        let options = ForEachWorker {
            remote_worker_ids: to_worker_indices.map(<[WorkerId]>::to_vec),
            timeout: Some(timeout),
            ..ForEachWorker::remote()
        };
        // Where that fails, everybody counts as having the old ones.
        self.samples.newest.0 += u64::from(is_news);
        self.foreach_worker_with(&options, command)?;
        if let Some(weights) = for_later {
            self.synced.note(weights, global_vars);
        }
        let is_synced = |id: &WorkerId| to_worker_indices.is_none_or(|ids| ids.contains(id));
        for (id, member) in self.members.iter_mut().filter(|(id, _)| is_news && is_synced(id)) {
            if self.manager.is_healthy(*id) == Some(true) {
                member.weights = self.samples.newest;
            }
        }
        Ok(())
    }
}
