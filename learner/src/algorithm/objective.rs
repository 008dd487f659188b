//! The interface of an algorithm to the learner.

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

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}, but must be {wanted}")]
pub struct ConfigError {
    /// The setting.
    pub name: &'static str,
    /// The value that it has.
    pub value: String,
    /// The values that are allowed.
    pub wanted: String,
}

/// The interface of an algorithm to the learner, which the settings of each algorithm implement.
pub(crate) trait Objective: AsJson {
    /// Returns the rows of the settings that only this algorithm has.
    fn own_settings(&self) -> &'static [Setting] {
        &[]
    }

    /// Returns the settings that all algorithms share.
    fn common(&self) -> &CommonConfig;

    /// Returns the advantages, with a critic if one is trained.
    fn advantages(&self) -> AdvantageConfig;

    /// Returns the parts of a batch that it needs.
    fn needs(&self) -> Needs;

    /// Returns the passes over a batch; `None` for one step along the gradient of the whole batch.
    fn epochs(&self) -> Option<Epochs> {
        None
    }

    /// Returns the loss of some rows for the distributions and values `[rows]` of the networks in training.
    fn loss(&self, dist: &Dist, values: &Tensor, rows: &Rows, now: Schedule) -> Result<Loss>;

    /// Returns the adaptive coefficient before the first update; it is part of the learner's state.
    fn first_adaptive(&self) -> f64 {
        0.0
    }

    /// Returns the adaptive coefficient after a gradient step with these parts of the loss.
    fn after_step(&self, adaptive: f64, _parts: &[f32; PARTS]) -> f64 {
        adaptive
    }

    /// Returns the adaptive coefficient after an update.
    fn after_update(&self, adaptive: f64, _stats: &UpdateStats) -> f64 {
        adaptive
    }

    /// Returns the weight of the KL divergence in the loss.
    fn kl_coeff(&self, _adaptive: f64) -> f64 {
        0.0
    }

    /// Returns whether ranks can learn together as one learner.
    fn is_data_parallel(&self) -> bool {
        true
    }

    /// Checks every setting.
    fn check(&self) -> std::result::Result<(), ConfigError> {
        in_range(&self.json(), table::SHARED.iter().chain(self.own_settings()))?;
        check_critic(self.advantages())
    }
}

/// Conversion of settings of any type to a JSON object.
pub(crate) trait AsJson {
    fn json(&self) -> Value;
}

impl<T: Serialize> AsJson for T {
    fn json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// The parts of a batch that an algorithm needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Values and their targets.
    pub(crate) critic: bool,
    /// The policy before the update, from which ratios of probabilities start, and normalised advantages.
    pub(crate) old: bool,
    /// The actions are another policy's: the batch has no values, and at most returns, as advantages.
    pub(crate) logged: bool,
}

/// Passes over a batch in minibatches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epochs {
    pub(crate) passes: u32,
    /// Rows, at most.
    pub(crate) minibatch_size: u32,
    /// The limit of the mean KL divergence: no pass begins with one above 1.5 times this.
    pub(crate) target_kl: Option<f64>,
}

/// The coefficients that change from step to step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    /// The fraction of the annealed settings during an update.
    pub(crate) annealing: f64,
    /// The adaptive coefficient: PPO's weight of the KL divergence, MARWIL's mean of squared advantages.
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
