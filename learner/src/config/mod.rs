//! Settings of the algorithms, under RLlib's names where it has them.

mod marwil;
mod parse;
mod policy_gradient;
mod ppo;
mod schema;
mod table;

use rollmesh_core::postprocess::AdvantageConfig;

pub use marwil::MarwilConfig;
pub(super) use parse::{for_others, with_zeros};
pub use policy_gradient::PolicyGradientConfig;
pub use ppo::PpoConfig;
pub use schema::run_schema;
pub(super) use table::in_range;

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

/// How to learn, with all settings.
#[derive(Clone, Debug, PartialEq)]
pub enum Algorithm {
    /// One step along the gradient of a whole batch: REINFORCE or advantage actor-critic.
    PolicyGradient(PolicyGradientConfig),
    /// Several passes of clipped steps over a batch.
    Ppo(PpoConfig),
    /// Likelihood of logged actions, weighted by what came of them or not: MARWIL or behaviour cloning.
    Marwil(MarwilConfig),
}

impl From<PolicyGradientConfig> for Algorithm {
    fn from(config: PolicyGradientConfig) -> Self {
        Self::PolicyGradient(config)
    }
}

impl From<PpoConfig> for Algorithm {
    fn from(config: PpoConfig) -> Self {
        Self::Ppo(config)
    }
}

impl From<MarwilConfig> for Algorithm {
    fn from(config: MarwilConfig) -> Self {
        Self::Marwil(config)
    }
}

impl Algorithm {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`ConfigError`] with the first one that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match self {
            Self::PolicyGradient(config) => config.validate(),
            Self::Ppo(config) => config.validate(),
            Self::Marwil(config) => config.validate(),
        }
    }

    /// The advantages that this learns from.
    #[must_use]
    pub fn advantages(&self) -> AdvantageConfig {
        let Common { gamma, lambda, use_gae, use_critic, .. } = self.common();
        // What MARWIL subtracts are the values of the network in training, not those of whoever acted.
        let use_critic = use_critic && !matches!(self, Self::Marwil(_));
        AdvantageConfig { gamma, lambda, use_gae, use_critic }
    }

    /// Whether it takes rows as they are, without advantages or returns.
    #[must_use]
    pub fn takes_plain_rows(&self) -> bool {
        matches!(self, Self::Marwil(config) if !config.weighs_rows())
    }

    /// What adapts from update to update before the first one: PPO's weight of the KL divergence, MARWIL's mean of squared
    /// advantages.
    pub(super) fn first_adaptive(&self) -> f64 {
        match self {
            Self::PolicyGradient(_) => 0.0,
            Self::Ppo(config) => config.kl_coeff,
            Self::Marwil(config) => config.moving_average_sqd_adv_norm_start,
        }
    }

    pub(super) fn common(&self) -> Common {
        match self {
            Self::PolicyGradient(config) => config.common(),
            Self::Ppo(config) => config.common(),
            Self::Marwil(config) => config.common(),
        }
    }
}

/// The settings that all algorithms share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    gamma: f64,
    lambda: f64,
    use_gae: bool,
    pub(super) use_critic: bool,
    pub(super) lr: f64,
    pub(super) adam_epsilon: f64,
    pub(super) weight_decay: f64,
    pub(super) vf_loss_coeff: f64,
    pub(super) entropy_coeff: f64,
    pub(super) grad_clip: Option<f64>,
    anneal_over_env_steps: Option<u64>,
    anneal_to: f64,
}

impl Common {
    fn validate(&self) -> Result<(), ConfigError> {
        if self.use_gae && !self.use_critic {
            let wanted = "false without a critic: set use_critic to true or use_gae to false".into();
            return Err(ConfigError { name: "use_gae", value: "true".into(), wanted });
        }
        Ok(())
    }

    /// What remains of the annealed settings after so many env steps, as a fraction.
    pub(super) fn annealing(&self, env_steps: u64) -> f64 {
        let Some(horizon) = self.anneal_over_env_steps else { return 1.0 };
        let progress = (env_steps as f64 / horizon as f64).min(1.0);
        1.0 - progress * (1.0 - self.anneal_to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annealing_falls_linearly_and_stays() {
        let config = PpoConfig { anneal_over_env_steps: Some(1000), anneal_to: 0.5, ..PpoConfig::default() };
        let constant = PpoConfig { anneal_over_env_steps: None, ..config.clone() }.common();
        let annealed = config.common();
        assert_eq!([0, 500, 1000, 2000].map(|steps| annealed.annealing(steps)), [1.0, 0.75, 0.5, 0.5]);
        assert_eq!(constant.annealing(2000), 1.0);
    }

    #[test]
    fn gae_needs_a_critic() {
        let config = PolicyGradientConfig { use_critic: false, ..PolicyGradientConfig::a2c() };
        let wanted = "use_gae is true, but must be false without a critic: set use_critic to true or use_gae to false";
        assert_eq!(Algorithm::from(config).validate().unwrap_err().to_string(), wanted);
    }
}
