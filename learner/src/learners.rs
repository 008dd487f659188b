//! The policies of a training run, and the user's callbacks around their updates.

use std::collections::{BTreeMap, BTreeSet};

use rollmesh_core::{
    batch::MultiAgentBatch,
    callbacks::{CallbackError, CallbackList, Callbacks as _, WorkerInfo},
    encoding,
    episode::GlobalVars,
    ids::{PolicyId, WeightsVersion},
    policy::{LearnInfo, Policy, PolicyError, Postprocessing},
    weights::Weights,
};

use super::error::LearnError;

/// The name of the env steps of a run, those of the batch included, among [`Results`].
pub const ENV_STEPS: &str = "num_env_steps_sampled";

/// Numbers about an iteration of training, by name.
pub type Results = BTreeMap<String, f64>;

/// The policies of a run, all under one version of the weights.
pub struct Learners {
    policies: BTreeMap<PolicyId, Box<dyn Policy>>,
    /// The policies that learn; all if `None`.
    to_train: Option<BTreeSet<PolicyId>>,
    callbacks: CallbackList,
    worker: WorkerInfo,
}

/// The result of an update.
#[derive(Debug)]
pub struct Learned {
    /// New weights of all policies; their version is one more than before the update.
    pub weights: Weights,
    /// The metrics of each policy that learned.
    pub infos: BTreeMap<PolicyId, LearnInfo>,
    /// The results that callbacks added or changed.
    pub added: Results,
}

/// Passes the results of an iteration to callbacks: `results`, and the metrics of the policies' updates, with the
/// policy's name as a prefix if there are several. Returns the results that callbacks have added or changed.
///
/// # Errors
/// That of the callback that fails.
pub fn report_results(
    callbacks: &mut CallbackList,
    is_single: bool,
    infos: &BTreeMap<PolicyId, LearnInfo>,
    mut results: Results,
) -> Result<Results, CallbackError> {
    for (id, info) in infos {
        let name = |name: &String| if is_single { name.clone() } else { format!("{id}/{name}") };
        results.extend(info.iter().map(|(key, value)| (name(key), *value)));
    }
    let mut extra_results = results.clone();
    callbacks.on_train_result(&mut extra_results)?;
    extra_results.retain(|name, value| results.get(name).map(|known| known.to_bits()) != Some(value.to_bits()));
    Ok(extra_results)
}

impl Learners {
    /// Creates the policies of a run with its callbacks, which are notified of every policy.
    ///
    /// # Errors
    /// [`LearnError::Callback`].
    pub fn new(
        mut policies: BTreeMap<PolicyId, Box<dyn Policy>>,
        to_train: Option<BTreeSet<PolicyId>>,
        mut callbacks: CallbackList,
        worker: WorkerInfo,
    ) -> Result<Self, LearnError> {
        callbacks.on_algorithm_init(&worker)?;
        policies.iter_mut().try_for_each(|(id, policy)| callbacks.on_create_policy(id, policy.as_mut()))?;
        Ok(Self { policies, to_train, callbacks, worker })
    }

    /// Returns the postprocessing of rows of one agent per slot; of several policies each has its own.
    #[must_use]
    pub fn postprocessing_of(policies: &BTreeMap<PolicyId, Box<dyn Policy>>) -> Postprocessing {
        let default = policies.get(&PolicyId::DEFAULT).filter(|_| policies.len() == 1);
        default.map_or(Postprocessing::None, |policy| policy.postprocessing())
    }

    /// Returns the ids of all policies, in order.
    pub fn ids(&self) -> Vec<PolicyId> {
        self.policies.keys().cloned().collect()
    }

    /// Returns the weights of all policies.
    ///
    /// # Errors
    /// [`LearnError::Policy`] if the names of tensors of two policies collide.
    pub fn weights(&self) -> Result<Weights, LearnError> {
        let version = self.version();
        let weights = self.policies.iter().map(|(id, policy)| (id, policy.weights()));
        Weights::of_run(version, weights).map_err(|error| PolicyError::from(error).into())
    }

    /// Resumes from a checkpoint: weights of all policies, and the bytes of [`state`](Self::state), or none.
    ///
    /// # Errors
    /// [`LearnError::Policy`] for weights or a state of other policies, or damaged ones; [`LearnError::Callback`].
    pub fn restore(&mut self, weights: &Weights, state: &[u8]) -> Result<(), LearnError> {
        for (id, weights) in weights.of_policies(&self.ids()).map_err(PolicyError::from)? {
            self.policy_mut(&id)?.set_weights(&weights)?;
        }
        if state.is_empty() {
            return Ok(());
        }
        if let Some(policy) = self.single_mut() {
            policy.set_extra_state(state)?;
        } else {
            let damaged = || PolicyError::Failed("the learners' state is damaged".into());
            let states: BTreeMap<PolicyId, Vec<u8>> = encoding::decode(state).ok_or_else(damaged)?;
            for (id, state) in states {
                self.policy_mut(&id)?.set_extra_state(&state)?;
            }
        }
        Ok(self.callbacks.on_checkpoint_loaded(&self.worker)?)
    }

    /// Returns the policies' state apart from their weights, such as that of optimisers. A default policy alone has no wrapper
    /// around its state.
    pub fn state(&mut self) -> Vec<u8> {
        if let Some(policy) = self.single_mut() {
            return policy.extra_state();
        }
        let states: BTreeMap<&PolicyId, Vec<u8>> =
            self.policies.iter().map(|(id, policy)| (id, policy.extra_state())).collect();
        encoding::encode(&states)
    }

    /// Calls the callbacks' `on_workers_recreated` with the numbers of these local workers, if there are any.
    ///
    /// # Errors
    /// [`LearnError::Callback`].
    pub fn notify_recreated(&mut self, workers: &[u32]) -> Result<(), LearnError> {
        if workers.is_empty() { Ok(()) } else { Ok(self.callbacks.on_workers_recreated(workers)?) }
    }

    /// Lets every policy that is trained learn from its rows. `results` are the metrics that the iteration has before the
    /// update, [`ENV_STEPS`] among them.
    ///
    /// # Errors
    /// [`LearnError::Policy`] if a policy cannot learn from its rows, or has rows and is not one of the run;
    /// [`LearnError::Callback`].
    pub fn learn(&mut self, batch: MultiAgentBatch, results: Results) -> Result<Learned, LearnError> {
        let next = WeightsVersion(self.version().0.saturating_add(1));
        // Schedules follow the run's env steps; a policy by itself counts its rows.
        if let Some(so_far) = results.get(ENV_STEPS) {
            let timestep = (*so_far as u64).saturating_sub(batch.env_steps as u64);
            let vars = GlobalVars { timestep, ..GlobalVars::default() };
            self.policies.values_mut().for_each(|policy| policy.on_global_var_update(&vars));
        }
        let mut infos = BTreeMap::new();
        for (id, mut batch) in batch.policy_batches {
            if batch.is_empty() || self.to_train.as_ref().is_some_and(|trained| !trained.contains(&id)) {
                continue;
            }
            let mut info = LearnInfo::new();
            self.callbacks.on_learn_on_batch(&id, &mut batch, &mut info)?;
            info.extend(self.policy_mut(&id)?.learn_on_batch(&batch)?);
            infos.insert(id, info);
        }
        for policy in self.policies.values_mut() {
            if policy.weights().version() != next {
                let weights = policy.weights().with_version(next);
                policy.set_weights(&weights)?;
            }
        }
        let is_single = self.single_mut().is_some();
        let added = report_results(&mut self.callbacks, is_single, &infos, results)?;
        Ok(Learned { weights: self.weights()?, infos, added })
    }

    fn version(&self) -> WeightsVersion {
        self.policies.values().map(|policy| policy.weights().version()).max().unwrap_or_default()
    }

    /// Returns the default policy, if that is the only one.
    fn single_mut(&mut self) -> Option<&mut Box<dyn Policy>> {
        if self.policies.len() == 1 { self.policies.get_mut(&PolicyId::DEFAULT) } else { None }
    }

    fn policy_mut(&mut self, id: &PolicyId) -> Result<&mut Box<dyn Policy>, LearnError> {
        let unknown = || PolicyError::Failed(format!("the run has no policy '{id}'"));
        Ok(self.policies.get_mut(id).ok_or_else(unknown)?)
    }
}
