//! The settings of PPO.

use serde::{Deserialize, Serialize};

/// Settings of [`Ppo`](super::Ppo), under RLlib's names where it has them. The defaults are tuned for classic control on 16 slots.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PpoConfig {
    /// Env steps of a slot per update; with the number of slots this makes the size of the train batch.
    pub rollout_fragment_length: u32,
    /// Discount factor.
    pub gamma: f64,
    /// The lambda of generalised advantage estimation.
    pub lambda: f64,
    /// AdamW's learning rate, at the start if it is annealed.
    pub lr: f64,
    /// Added to the root of AdamW's second moment.
    pub adam_epsilon: f64,
    /// AdamW's decoupled weight decay.
    pub weight_decay: f64,
    /// Passes over a train batch.
    pub num_epochs: u32,
    /// Rows per gradient step, at most: a batch is cut into minibatches of equal size, up to one row.
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
    /// `lr` and `clip_param` fall linearly over this many env steps; constant if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anneal_over_env_steps: Option<u64>,
    /// What remains of them then, and from then on, as a fraction.
    pub anneal_to: f64,
}

impl Default for PpoConfig {
    fn default() -> Self {
        Self {
            rollout_fragment_length: 64,
            gamma: 0.98,
            lambda: 0.9,
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
            anneal_over_env_steps: Some(100_000),
            anneal_to: 0.1,
        }
    }
}

/// A setting that makes no sense.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{name} is {value}, but must be {wanted}")]
pub struct ConfigError {
    /// The setting.
    pub name: &'static str,
    /// What it is.
    pub value: f64,
    /// What it may be.
    pub wanted: &'static str,
}

impl PpoConfig {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`ConfigError`] with the first one that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let at_least_1 = |name, value: f64| check(name, value, value >= 1.0, "at least 1");
        let fraction = |name, value: f64| check(name, value, (0.0..=1.0).contains(&value), "from 0 to 1");
        let positive = |name, value: f64| check(name, value, value > 0.0 && value.is_finite(), "greater than 0");
        let not_negative = |name, value: f64| check(name, value, value >= 0.0 && value.is_finite(), "at least 0");

        at_least_1("rollout_fragment_length", self.rollout_fragment_length.into())?;
        at_least_1("num_epochs", self.num_epochs.into())?;
        at_least_1("minibatch_size", self.minibatch_size.into())?;
        fraction("gamma", self.gamma)?;
        fraction("lambda", self.lambda)?;
        positive("lr", self.lr)?;
        positive("adam_epsilon", self.adam_epsilon)?;
        not_negative("weight_decay", self.weight_decay)?;
        positive("clip_param", self.clip_param)?;
        self.vf_clip_range.map_or(Ok(()), |value| positive("vf_clip_range", value))?;
        not_negative("vf_loss_coeff", self.vf_loss_coeff)?;
        not_negative("entropy_coeff", self.entropy_coeff)?;
        self.grad_clip.map_or(Ok(()), |value| positive("grad_clip", value))?;
        self.target_kl.map_or(Ok(()), |value| positive("target_kl", value))?;
        self.anneal_over_env_steps.map_or(Ok(()), |steps| at_least_1("anneal_over_env_steps", steps as f64))?;
        fraction("anneal_to", self.anneal_to)
    }

    /// What remains of the annealed settings after so many env steps, as a fraction.
    pub(super) fn annealing(&self, env_steps: u64) -> f64 {
        let Some(horizon) = self.anneal_over_env_steps else { return 1.0 };
        let progress = (env_steps as f64 / horizon as f64).min(1.0);
        1.0 - progress * (1.0 - self.anneal_to)
    }
}

fn check(name: &'static str, value: f64, holds: bool, wanted: &'static str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError { name, value, wanted }) }
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
    fn annealing_falls_linearly_and_stays() {
        let config = PpoConfig { anneal_over_env_steps: Some(1000), anneal_to: 0.5, ..PpoConfig::default() };
        assert_eq!([0, 500, 1000, 2000].map(|steps| config.annealing(steps)), [1.0, 0.75, 0.5, 0.5]);
        let constant = PpoConfig { anneal_over_env_steps: None, ..config };
        assert_eq!(constant.annealing(2000), 1.0);
    }
}
