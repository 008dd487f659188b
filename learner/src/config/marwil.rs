//! The settings of MARWIL and behaviour cloning, which are one algorithm with and without weights of rows.

use serde::{Deserialize, Serialize};

use super::{Common, ConfigError, in_range, table::SETTINGS};

/// Settings of learning from logged actions, under RLlib's names where it has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MarwilConfig {
    /// Discount factor of the returns that tell good actions from bad ones.
    pub gamma: f64,
    /// How much better actions count for more: rows weigh exp(beta A / c) for advantages A and the root c of their mean
    /// square. With 0 all weigh the same, which is behaviour cloning, and no value network is trained.
    pub beta: f64,
    /// Weight of the mean log standard deviation of continuous actions, which keeps them from becoming certain.
    pub bc_logstd_coeff: f64,
    /// The running mean of squared advantages before the first step.
    pub moving_average_sqd_adv_norm_start: f64,
    /// How much of it each step replaces, as a fraction.
    pub moving_average_sqd_adv_norm_update_rate: f64,
    /// AdamW's learning rate, at the start if it is annealed.
    pub lr: f64,
    /// Added to the root of AdamW's second moment.
    pub adam_epsilon: f64,
    /// AdamW's decoupled weight decay.
    pub weight_decay: f64,
    /// Passes over a train batch.
    #[serde(alias = "num_sgd_iter")]
    pub num_epochs: u32,
    /// Rows per gradient step, at most, as of [`PpoConfig`](super::PpoConfig).
    #[serde(alias = "sgd_minibatch_size")]
    pub minibatch_size: u32,
    /// Weight of the value loss, which is half the mean squared error.
    #[serde(alias = "vf_coeff")]
    pub vf_loss_coeff: f64,
    /// Largest global norm of a gradient; longer ones are scaled down. Unlimited if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grad_clip: Option<f64>,
    /// `lr` falls linearly over this many rows; constant if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub anneal_over_env_steps: Option<u64>,
    /// What remains of it then, and from then on, as a fraction.
    pub anneal_to: f64,
}

impl Default for MarwilConfig {
    fn default() -> Self {
        Self::marwil()
    }
}

impl MarwilConfig {
    /// Monotonic advantage re-weighted imitation learning (Wang et al.: "Exponentially weighted imitation learning for
    /// batched historical data", 2018), with RLlib's settings but for smaller and more steps.
    #[must_use]
    pub fn marwil() -> Self {
        Self {
            gamma: 0.99,
            beta: 1.0,
            bc_logstd_coeff: 0.0,
            moving_average_sqd_adv_norm_start: 100.0,
            moving_average_sqd_adv_norm_update_rate: 1e-8,
            lr: 1e-3,
            adam_epsilon: 1e-8,
            weight_decay: 0.0,
            num_epochs: 1,
            minibatch_size: 128,
            vf_loss_coeff: 1.0,
            grad_clip: None,
            anneal_over_env_steps: None,
            anneal_to: 0.1,
        }
    }

    /// Behaviour cloning (Pomerleau: "ALVINN: An autonomous land vehicle in a neural network", 1989): the likelihood of the
    /// logged actions.
    #[must_use]
    pub fn bc() -> Self {
        Self { beta: 0.0, ..Self::marwil() }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`ConfigError`] with the first one that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        in_range(self, SETTINGS)?;
        self.common().validate()
    }

    /// Whether rows weigh what their advantages are worth.
    #[must_use]
    pub fn weighs_rows(&self) -> bool {
        self.beta > 0.0
    }

    /// The running mean of squared advantages after a step in which it was `found`.
    pub(in super::super) fn next_mean_square(&self, mean: f64, found: f64) -> f64 {
        mean + self.moving_average_sqd_adv_norm_update_rate * (found - mean)
    }

    pub(in super::super) fn common(&self) -> Common {
        Common {
            gamma: self.gamma,
            // Returns of whole episodes; where one was cut, the value of what follows stands for the rest.
            lambda: 1.0,
            use_gae: false,
            use_critic: self.weighs_rows(),
            lr: self.lr,
            adam_epsilon: self.adam_epsilon,
            weight_decay: self.weight_decay,
            vf_loss_coeff: self.vf_loss_coeff,
            entropy_coeff: 0.0,
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
        MarwilConfig::marwil().validate().unwrap();
        MarwilConfig::bc().validate().unwrap();
        let config = MarwilConfig { beta: -1.0, ..MarwilConfig::bc() };
        assert_eq!(config.validate().unwrap_err().to_string(), "beta is -1, but must be at least 0");
    }

    #[test]
    fn the_mean_of_squares_moves_by_its_rate() {
        let config = MarwilConfig { moving_average_sqd_adv_norm_update_rate: 0.25, ..MarwilConfig::marwil() };
        assert_eq!(config.next_mean_square(100.0, 4.0), 76.0);
    }
}
