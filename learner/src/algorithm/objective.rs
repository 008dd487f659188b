//! What an algorithm is for the learner.

use candle_core::{Result, Tensor};
use rollmesh_core::{postprocess::AdvantageConfig, run::schema::Setting};
use serde::Serialize;
use serde_json::Value;

use super::{
    CommonConfig,
    loss::{Loss, PARTS},
    table::{self, in_range},
};
use crate::{dist::Dist, rows::Rows, stats::UpdateStats};

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}, but must be {wanted}")]
pub struct ConfigError {
    /// The setting.
    pub name: &'static str,
    /// What it is.
    pub value: String,
    /// What it may be.
    pub wanted: String,
}

/// What the learner asks an algorithm for. The settings of each algorithm implement it.
pub(crate) trait Objective: AsJson {
    /// Rows of the settings that this algorithm alone has.
    fn own_settings(&self) -> &'static [Setting] {
        &[]
    }

    /// The settings that all algorithms share.
    fn common(&self) -> &CommonConfig;

    /// The advantages, with a critic if one is trained.
    fn advantages(&self) -> AdvantageConfig;

    /// What it needs of a batch.
    fn needs(&self) -> Needs;

    /// Passes over a batch; `None` for one step along the gradient of the whole batch.
    fn epochs(&self) -> Option<Epochs> {
        None
    }

    /// The loss of some rows for the distributions and values `[rows]` of the networks in training.
    fn loss(&self, dist: &Dist, values: &Tensor, rows: &Rows, now: Schedule) -> Result<Loss>;

    /// The number that adapts while the algorithm learns, before the first update; it is part of the learner's state.
    fn first_adaptive(&self) -> f64 {
        0.0
    }

    /// That number after a gradient step with these parts of the loss.
    fn after_step(&self, adaptive: f64, _parts: &[f32; PARTS]) -> f64 {
        adaptive
    }

    /// That number after an update.
    fn after_update(&self, adaptive: f64, _stats: &UpdateStats) -> f64 {
        adaptive
    }

    /// The weight of the KL divergence in the loss.
    fn kl_coeff(&self, _adaptive: f64) -> f64 {
        0.0
    }

    /// Whether ranks can learn together as one learner.
    fn is_data_parallel(&self) -> bool {
        true
    }

    /// Checks every setting.
    fn check(&self) -> std::result::Result<(), ConfigError> {
        in_range(&self.json(), table::SHARED.iter().chain(self.own_settings()))?;
        check_critic(self.advantages())
    }
}

/// Settings as a JSON object, whatever their type.
pub(crate) trait AsJson {
    fn json(&self) -> Value;
}

impl<T: Serialize> AsJson for T {
    fn json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// What an algorithm needs of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Values and their targets.
    pub(crate) critic: bool,
    /// The policy before the update, from which ratios of probabilities start, and normalised advantages.
    pub(crate) old: bool,
    /// The actions are another policy's: of values there are only returns, as advantages, if there are any.
    pub(crate) logged: bool,
}

/// Passes over a batch in minibatches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epochs {
    pub(crate) passes: u32,
    /// Rows, at most.
    pub(crate) minibatch_size: u32,
    /// No pass begins with a mean KL divergence above 1.5 times this.
    pub(crate) target_kl: Option<f64>,
}

/// What changes from step to step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// What remains of the annealed settings, as a fraction, during an update.
    pub(crate) annealing: f64,
    /// The number that adapts: PPO's weight of the KL divergence, MARWIL's mean of squared advantages.
    pub(crate) adaptive: f64,
}

fn check_critic(advantages: AdvantageConfig) -> std::result::Result<(), ConfigError> {
    if advantages.use_gae && !advantages.use_critic {
        let wanted = "false without a critic: set use_critic to true or use_gae to false".into();
        return Err(ConfigError { name: "use_gae", value: "true".into(), wanted });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rollmesh_core::policy::PolicyRegistry;

    use super::{
        super::{AlgorithmConfig, PolicyGradientConfig},
        *,
    };

    #[test]
    fn gae_needs_a_critic() {
        let advantages = AdvantageConfig { use_critic: false, ..PolicyRegistry::A2C_ADVANTAGES };
        let config = PolicyGradientConfig { advantages, ..PolicyGradientConfig::a2c() };
        let wanted = "use_gae is true, but must be false without a critic: set use_critic to true or use_gae to false";
        assert_eq!(AlgorithmConfig::from(config).validate().unwrap_err().to_string(), wanted);
    }
}
