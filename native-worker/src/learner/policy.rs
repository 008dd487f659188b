//! A policy that acts and learns.

use candle_core::Device;
use rollmesh_core::{
    batch::SampleBatch,
    config::ConfigError,
    env::RowsRef,
    episode::GlobalVars,
    policy::{ActionInput, ActionOutput, Gradients, LearnInfo, Policy, PolicyError, Postprocessing},
    view::ViewRequirements,
    weights::Weights,
};

use super::{
    config::Algorithm, dist::ActionHead, error::LearnError, model::ModelError, rows::OldPolicy, update::Learner,
};

/// One of the core's policies, which acts, and a learner of its weights on the CPU.
///
/// Every learning step gives the acting policy the next version of the weights. PPO's ratios start from what a batch says
/// of when its actions were taken ([`OldPolicy::Batch`]), so that a worker may also hand over its train batch in pieces.
/// The clock of annealing counts rows learned from, until [`Policy::on_global_var_update`] tells the run's env steps.
pub struct LearningPolicy {
    acting: Box<dyn Policy>,
    learner: Learner,
}

impl LearningPolicy {
    /// Lets a policy learn. Its weights must have the names and shapes of a model of the learner, and `head` says what the
    /// outputs mean. The seed is the run's.
    ///
    /// # Errors
    /// [`PolicyError::Config`] for settings out of range, [`PolicyError::Failed`] for weights that are no model.
    pub fn new(
        acting: Box<dyn Policy>,
        head: ActionHead,
        algorithm: impl Into<Algorithm>,
        seed: u64,
    ) -> Result<Self, PolicyError> {
        let learner = Learner::new(algorithm, head, seed, acting.weights(), Device::Cpu)?;
        Ok(Self { acting, learner: learner.with_old_policy(OldPolicy::Batch) })
    }

    /// What learns.
    #[must_use]
    pub fn learner(&self) -> &Learner {
        &self.learner
    }
}

impl Policy for LearningPolicy {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        self.acting.compute_actions(input, out)
    }

    fn compute_values(&mut self, obs: RowsRef<'_>, values: &mut [f32]) -> Result<(), PolicyError> {
        self.acting.compute_values(obs, values)
    }

    fn state_lens(&self) -> &[usize] {
        self.acting.state_lens()
    }

    fn initial_state(&self, state: &mut [f32]) {
        self.acting.initial_state(state);
    }

    fn dist_inputs_len(&self) -> usize {
        self.acting.dist_inputs_len()
    }

    fn view_requirements(&self) -> ViewRequirements {
        self.acting.view_requirements()
    }

    fn postprocessing(&self) -> Postprocessing {
        Postprocessing::Advantages(self.learner.algorithm.advantages())
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

    fn weights(&self) -> &Weights {
        self.acting.weights()
    }

    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.acting.set_weights(weights)?;
        Ok(self.learner.set_weights(weights)?)
    }

    fn extra_state(&self) -> Vec<u8> {
        // Only a device can fail to give its numbers, and here there is none.
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
            LearnError::Batch(error) => error.into(),
            LearnError::Config(error) => ConfigError::from(error).into(),
            LearnError::Model(ModelError::Weights(error)) => error.into(),
            LearnError::EmptyBatch => unsupported("at least one row to learn from".into(), "an empty batch".into()),
            LearnError::Width { column, found, wanted } => {
                unsupported(format!("{wanted} numbers in a row of '{column}'"), found.to_string())
            }
            LearnError::Point { point, wanted } => {
                unsupported(format!("observations below {wanted}"), point.to_string())
            }
            LearnError::Action { action, num_actions } => {
                unsupported(format!("actions below {num_actions}"), action.to_string())
            }
            LearnError::Diverged { .. } => Self::Diverged(error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}
