//! A policy that acts and learns.

use candle_core::Device;
use rollmesh_core::{
    batch::SampleBatch,
    config::ConfigError,
    env::{EnvSpaces, RowsRef},
    episode::GlobalVars,
    kernels::Kernels,
    policy::{
        ActionInput, ActionOutput, AllReduce, Gradients, LearnInfo, NetPolicy, Policy, PolicyContext, PolicyError,
        PolicyRegistry, PolicySpec, Postprocessing, PreviousStep,
    },
    view::ViewRequirements,
    weights::Weights,
};

use super::{
    algorithm::{ALGORITHMS, AlgorithmConfig, AlgorithmSpec},
    error::LearnError,
    model::ModelError,
    rows::OldPolicy,
    update::Learner,
};

/// One of the core's policies, which acts, and a learner of its weights on the CPU.
///
/// Every learning step gives the acting policy the next version of the weights. PPO's ratios start from the
/// distributions in the batch ([`OldPolicy::Batch`]), so that a worker may also pass its train batch in pieces, several
/// times; then with one pass (`num_sgd_iter`) each. The clock of annealing counts rows learned from, until
/// [`Policy::on_global_var_update`] reports the run's env steps.
pub struct LearningPolicy {
    acting: NetPolicy,
    learner: Learner,
}

impl LearningPolicy {
    /// Creates a policy that learns the weights of its [`ModelSpec`](rollmesh_core::policy::ModelSpec). The seed is the
    /// run's.
    ///
    /// # Errors
    /// [`PolicyError::Config`] for settings out of range, [`PolicyError::Unsupported`] for spaces that are no single arrays,
    /// [`PolicyError::Failed`] for a policy of other spaces.
    pub fn new(
        acting: NetPolicy,
        spaces: &EnvSpaces,
        algorithm: impl Into<AlgorithmConfig>,
        seed: u64,
    ) -> Result<Self, PolicyError> {
        Self::on(Device::Cpu, Kernels::PORTABLE, acting, spaces, algorithm, seed)
    }

    /// Works like [`new`](Self::new), with a learner on a device.
    ///
    /// # Errors
    /// As there.
    pub fn on(
        device: Device,
        kernels: Kernels,
        acting: NetPolicy,
        spaces: &EnvSpaces,
        algorithm: impl Into<AlgorithmConfig>,
        seed: u64,
    ) -> Result<Self, PolicyError> {
        let learner = Learner::new(algorithm, spaces, acting.spec(), seed, acting.weights(), device, kernels)?;
        Ok(Self { acting, learner: learner.with_old_policy(OldPolicy::Batch) })
    }

    /// Creates a policy with the networks that a context asks for, with a learner on a device.
    ///
    /// # Errors
    /// As [`new`](Self::new) and [`NetPolicy::for_algorithm`].
    pub fn for_context(
        context: &PolicyContext,
        algorithm: AlgorithmConfig,
        device: Device,
    ) -> Result<Self, PolicyError> {
        let acting = NetPolicy::for_algorithm(context, algorithm.objective().advantages())?;
        let mut policy = Self::on(device, context.kernels, acting, &context.spaces, algorithm, context.seed)?;
        if context.whole_batches {
            policy.learner = policy.learner.with_old_policy(OldPolicy::Learner);
        }
        Ok(policy)
    }

    /// Returns the learner.
    #[must_use]
    pub fn learner(&self) -> &Learner {
        &self.learner
    }
}

/// Adds the policies that learn: `pg`, `a2c` and `ppo`, and from logged actions `bc` and `marwil`. Policies that the
/// user has registered under these names stay. Their settings are those of [`AlgorithmConfig::pg`] and so on, and
/// `model`, see [`ModelConfig`](rollmesh_core::policy::ModelConfig).
///
/// ```
/// use rollmesh_core::{
///     env::EnvRegistry,
///     kernels::Kernels,
///     policy::{PolicyContext, PolicyRegistry},
/// };
/// use rollmesh_learner::register_learning_policies;
///
/// let mut policies = PolicyRegistry::builtin();
/// register_learning_policies(&mut policies);
/// let spaces = EnvRegistry::builtin().spec("Pendulum-v1")?.spaces()?;
/// let config = r#"{"gamma": 0.95, "lr": 0.001, "model": {"use_lstm": true}}"#.parse()?;
/// let context = PolicyContext::new(spaces, 7, Kernels::PORTABLE).with_config(config);
/// let policy = policies.spec("a2c")?.make(&context)?;
/// assert_eq!(policy.state_lens(), [64, 64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn register_learning_policies(registry: &mut PolicyRegistry) {
    register_learning_policies_on(registry, &Device::Cpu);
}

/// Works like [`register_learning_policies`], with learners on a device.
pub fn register_learning_policies_on(registry: &mut PolicyRegistry, device: &Device) {
    for AlgorithmSpec { name, parse, .. } in ALGORITHMS {
        if registry.spec(name).is_ok_and(|spec| !spec.is_builtin()) {
            continue;
        }
        let (device, acting) = (device.clone(), registry.spec(name).ok().cloned());
        let learning = PolicySpec::new(*name, move |context| {
            Ok(Box::new(LearningPolicy::for_context(context, parse(&context.config)?, device.clone())?))
        });
        registry.register(match acting {
            None => learning.builtin(),
            Some(acting) => learning.builtin().with_acting(move |context| acting.make_acting(context)),
        });
    }
}

impl Policy for LearningPolicy {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        self.acting.compute_actions(input, out)
    }

    fn compute_values(&mut self, obs: RowsRef<'_>, state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        self.acting.compute_values(obs, state, values)
    }

    fn state_lens(&self) -> &[usize] {
        self.acting.state_lens()
    }

    fn previous_step(&self) -> Option<&PreviousStep> {
        self.acting.previous_step()
    }

    fn takes_action_masks(&self) -> bool {
        self.acting.takes_action_masks()
    }

    fn initial_state(&self, state: &mut [f32]) {
        self.acting.initial_state(state);
    }

    fn dist_inputs_len(&self) -> usize {
        self.acting.dist_inputs_len()
    }

    fn encoded_obs_len(&self) -> usize {
        self.acting.encoded_obs_len()
    }

    fn view_requirements(&self) -> ViewRequirements {
        self.acting.view_requirements()
    }

    fn postprocessing(&self) -> Postprocessing {
        match &self.learner.algorithm {
            algorithm if algorithm.takes_plain_rows() => Postprocessing::None,
            algorithm => Postprocessing::Advantages(algorithm.advantages()),
        }
    }

    fn on_global_var_update(&mut self, vars: &GlobalVars) {
        self.learner.set_env_steps(vars.timestep);
    }

    fn learn_on_batch(&mut self, batch: &SampleBatch) -> Result<LearnInfo, PolicyError> {
        let (weights, stats) = self.learner.update(batch)?;
        self.acting.set_weights(&weights)?;
        Ok(stats.learn_info())
    }

    fn compute_gradients(&mut self, batch: &SampleBatch) -> Result<(Gradients, LearnInfo), PolicyError> {
        let (gradients, stats) = self.learner.compute_gradients(batch)?;
        Ok((gradients, stats.learn_info()))
    }

    fn apply_gradients(&mut self, gradients: &Gradients) -> Result<LearnInfo, PolicyError> {
        let (weights, stats) = self.learner.apply_gradients(gradients)?;
        self.acting.set_weights(&weights)?;
        Ok(stats.learn_info())
    }

    fn data_parallel(&self) -> Option<String> {
        let algorithm = &self.learner.algorithm;
        algorithm.objective().is_data_parallel().then(|| format!("{algorithm:?}"))
    }

    fn learn_on_batch_with(
        &mut self,
        batch: &SampleBatch,
        ranks: &mut dyn AllReduce,
    ) -> Result<LearnInfo, PolicyError> {
        let (weights, stats) = self.learner.update_with(batch, ranks)?;
        self.acting.set_weights(&weights)?;
        Ok(stats.learn_info())
    }

    fn compute_gradients_with(
        &mut self,
        batch: &SampleBatch,
        ranks: &mut dyn AllReduce,
    ) -> Result<(Gradients, LearnInfo), PolicyError> {
        let (gradients, stats) = self.learner.compute_gradients_with(batch, ranks)?;
        Ok((gradients, stats.learn_info()))
    }

    fn weights(&self) -> &Weights {
        self.acting.weights()
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.acting.set_weights(weights)?;
        Ok(self.learner.set_weights(weights)?)
    }

    fn extra_state(&self) -> Vec<u8> {
        // Only a device can fail here, and this learner is on the CPU.
        self.learner.state().unwrap_or_default()
    }

    fn extra_state_bytes(&self) -> usize {
        self.learner.state_bytes()
    }

    fn set_extra_state(&mut self, bytes: &[u8]) -> Result<(), PolicyError> {
        Ok(self.learner.set_state(bytes)?)
    }
}

impl From<LearnError> for PolicyError {
    fn from(error: LearnError) -> Self {
        let unsupported = |wanted, found| Self::Unsupported { wanted, found };
        match error {
            LearnError::Policy(error) => error,
            LearnError::AllReduce(error) => error.into(),
            LearnError::Batch(error) => error.into(),
            LearnError::Config(error) => ConfigError::from(error).into(),
            LearnError::Model(ModelError::Weights(error)) => error.into(),
            LearnError::EmptyBatch => unsupported("at least one row to learn from".into(), "an empty batch".into()),
            LearnError::Width { column, found, wanted } => {
                unsupported(format!("{wanted} numbers in a row of '{column}'"), found.to_string())
            }
            LearnError::Action { action, first, last } => {
                unsupported(format!("actions from {first} to {last}"), action.to_string())
            }
            LearnError::Diverged { .. } => Self::Diverged(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}
