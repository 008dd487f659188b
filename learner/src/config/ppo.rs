//! The settings of PPO.

use serde::{Deserialize, Serialize};

use super::{Common, ConfigError, in_range, table::SETTINGS};

/// Settings of proximal policy optimisation (Schulman, Wolski, Dhariwal, Radford, Klimov: "Proximal policy optimization
/// algorithms", 2017), under RLlib's names where it has them. The defaults are tuned for classic control on 16 slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PpoConfig {
    /// Discount factor.
    pub gamma: f64,
    /// The lambda of generalised advantage estimation.
    pub lambda: f64,
    /// Generalised advantage estimation, else discounted returns.
    pub use_gae: bool,
    /// A value network is trained, and its estimates are subtracted from the returns.
    pub use_critic: bool,
    /// AdamW's learning rate, at the start if it is annealed.
    pub lr: f64,
    /// Added to the root of AdamW's second moment.
    pub adam_epsilon: f64,
    /// AdamW's decoupled weight decay.
    pub weight_decay: f64,
    /// Passes over a train batch.
    #[serde(alias = "num_sgd_iter")]
    pub num_epochs: u32,
    /// Rows per gradient step, at most: a batch is cut into minibatches of equal size, up to one row. Sequences of
    /// recurrent policies stay whole: there minibatches have equally many sequences, up to one.
    #[serde(alias = "sgd_minibatch_size")]
    pub minibatch_size: u32,
    /// How far the probability ratio may move from 1 with profit, at the start if it is annealed.
    pub clip_param: f64,
    /// How far a value may move from the acting value with profit; unlimited if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vf_clip_range: Option<f64>,
    /// Weight of the value loss.
    pub vf_loss_coeff: f64,
    /// Weight of the entropy bonus.
    pub entropy_coeff: f64,
    /// Largest global norm of a gradient; longer ones are scaled down. Unlimited if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grad_clip: Option<f64>,
    /// No further epoch begins once the mean KL divergence from the acting policy is above 1.5 times this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_kl: Option<f64>,
    /// Weight of the KL divergence from the acting policy in the loss, at the start.
    pub kl_coeff: f64,
    /// After an update this weight grows by half if the divergence was above twice this, and is halved if it was below
    /// half of this.
    pub kl_target: f64,
    /// `lr` and `clip_param` fall linearly over this many env steps; constant if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anneal_over_env_steps: Option<u64>,
    /// What remains of them then, and from then on, as a fraction.
    pub anneal_to: f64,
}

impl Default for PpoConfig {
    fn default() -> Self {
        Self {
            gamma: 0.98,
            lambda: 0.9,
            use_gae: true,
            use_critic: true,
            lr: 1.5e-3,
            adam_epsilon: 1e-5,
            weight_decay: 0.0,
            num_epochs: 8,
            minibatch_size: 128,
            clip_param: 0.2,
            vf_clip_range: None,
            vf_loss_coeff: 0.5,
            entropy_coeff: 0.0,
            grad_clip: Some(0.5),
            target_kl: None,
            kl_coeff: 0.0,
            kl_target: 0.01,
            anneal_over_env_steps: Some(100_000),
            anneal_to: 0.1,
        }
    }
}

impl PpoConfig {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`ConfigError`] with the first one that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        in_range(self, SETTINGS)?;
        self.common().validate()
    }

    /// The weight of the KL divergence after an update in which it was `kl`.
    pub(in super::super) fn next_kl_coeff(&self, coeff: f64, kl: f64) -> f64 {
        if kl > 2.0 * self.kl_target {
            (coeff * 1.5).min(f64::MAX)
        } else if kl < 0.5 * self.kl_target {
            coeff * 0.5
        } else {
            coeff
        }
    }

    pub(in super::super) fn common(&self) -> Common {
        Common {
            gamma: self.gamma,
            lambda: self.lambda,
            use_gae: self.use_gae,
            use_critic: self.use_critic,
            lr: self.lr,
            adam_epsilon: self.adam_epsilon,
            weight_decay: self.weight_decay,
            vf_loss_coeff: self.vf_loss_coeff,
            entropy_coeff: self.entropy_coeff,
            grad_clip: self.grad_clip,
            anneal_over_env_steps: self.anneal_over_env_steps,
            anneal_to: self.anneal_to,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        PpoConfig::default().validate().unwrap();
    }

    #[test]
    fn the_bad_setting_is_named() {
        let config = PpoConfig { gamma: 1.5, ..PpoConfig::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "gamma is 1.5, but must be from 0 to 1");
        let config = PpoConfig { lr: f64::NAN, ..PpoConfig::default() };
        assert_eq!(config.validate().unwrap_err().name, "lr");
        let config = PpoConfig { minibatch_size: 0, ..PpoConfig::default() };
        assert_eq!(config.validate().unwrap_err().name, "minibatch_size");
    }

    #[test]
    fn toml_keeps_everything_and_fills_in_defaults() {
        let config = PpoConfig { grad_clip: Some(0.25), target_kl: None, lr: 3e-4, ..PpoConfig::default() };
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<PpoConfig>(&text).unwrap(), config);
        assert_eq!(toml::from_str::<PpoConfig>("lr = 3e-4").unwrap().gamma, PpoConfig::default().gamma);
        assert!(toml::from_str::<PpoConfig>("learning_rate = 3e-4").is_err());
    }

    #[test]
    fn the_weight_of_the_divergence_follows_it() {
        let config = PpoConfig { kl_target: 0.01, ..PpoConfig::default() };
        assert_eq!(
            [0.021, 0.02, 0.005, 0.004].map(|kl| config.next_kl_coeff(0.2, kl)),
            [0.30000000000000004, 0.2, 0.2, 0.1]
        );
    }
}
