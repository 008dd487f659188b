//! The policy gradient: one step per batch. REINFORCE without a critic, advantage actor-critic with one.
//!
//! Williams: "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992; Mnih et al.:
//! "Asynchronous methods for deep reinforcement learning", 2016, section 4. With advantages `A`, which are returns without a
//! critic, it minimises the mean over rows of
//!
//! ```text
//! - log pi(a|s) A + vf_loss_coeff (V(s) - target)^2 - entropy_coeff H(pi(.|s))
//! ```
//!
//! `lr` is annealed.

use candle_core::Tensor;
use rollmesh_core::config::{Config, ConfigError as SettingsError};
use serde::{Deserialize, Serialize};

use super::{
    AlgorithmConfig, Common, ConfigError, Needs, Objective, Schedule,
    loss::{Loss, actor_critic, squared_error},
    settings::parsed,
};
use crate::{dist::Dist, ops::mean_all, rows::Rows};

/// Settings of one step along the policy gradient per batch, under RLlib's names where it has them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyGradientConfig {
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
    /// Weight of the value loss.
    pub vf_loss_coeff: f64,
    /// Weight of the entropy bonus.
    pub entropy_coeff: f64,
    /// Largest global norm of a gradient; longer ones are scaled down. Unlimited if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_clip: Option<f64>,
    /// `lr` falls linearly over this many env steps; constant if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anneal_over_env_steps: Option<u64>,
    /// What remains of it then, and from then on, as a fraction.
    pub anneal_to: f64,
}

impl PolicyGradientConfig {
    /// REINFORCE (Williams: "Simple statistical gradient-following algorithms for connectionist reinforcement learning",
    /// 1992), with RLlib's settings: discounted returns and no critic.
    #[must_use]
    pub fn pg() -> Self {
        Self {
            gamma: 0.99,
            lambda: 1.0,
            use_gae: false,
            use_critic: false,
            lr: 4e-4,
            adam_epsilon: 1e-8,
            weight_decay: 0.0,
            vf_loss_coeff: 0.5,
            entropy_coeff: 0.0,
            grad_clip: None,
            anneal_over_env_steps: None,
            anneal_to: 0.1,
        }
    }

    /// Advantage actor-critic (Mnih et al.: "Asynchronous methods for deep reinforcement learning", 2016), synchronous.
    /// Losses are means over rows, so that settings do not depend on the size of a batch; hence a larger step and a
    /// smaller limit of the gradient than RLlib's, whose losses are sums.
    #[must_use]
    pub fn a2c() -> Self {
        Self {
            use_gae: true,
            use_critic: true,
            lr: 7e-4,
            adam_epsilon: 1e-5,
            entropy_coeff: 0.01,
            grad_clip: Some(0.5),
            ..Self::pg()
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`ConfigError`] with the first one that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check()
    }
}

impl From<PolicyGradientConfig> for AlgorithmConfig {
    fn from(config: PolicyGradientConfig) -> Self {
        Self::PolicyGradient(config)
    }
}

impl AlgorithmConfig {
    /// REINFORCE, see [`PolicyGradientConfig::pg`], with these settings over the usual ones.
    ///
    /// # Errors
    /// [`SettingsError::BadSettings`] for an unknown name, with all that are known, and [`SettingsError::BadValue`] for a
    /// value out of range.
    pub fn pg(config: &Config) -> Result<Self, SettingsError> {
        parsed(PolicyGradientConfig::pg(), config)
    }

    /// Advantage actor-critic, see [`PolicyGradientConfig::a2c`], with these settings over the usual ones.
    ///
    /// # Errors
    /// As [`pg`](Self::pg).
    pub fn a2c(config: &Config) -> Result<Self, SettingsError> {
        parsed(PolicyGradientConfig::a2c(), config)
    }
}

impl Objective for PolicyGradientConfig {
    fn common(&self) -> Common {
        *self
    }

    fn needs(&self) -> Needs {
        Needs { critic: self.use_critic, old: false, logged: false }
    }

    fn loss(&self, dist: &Dist, values: &Tensor, rows: &Rows, _now: Schedule) -> candle_core::Result<Loss> {
        let policy_loss = mean_all(&(dist.logp(&rows.actions)? * &rows.advantages)?)?.neg()?;
        let vf_loss = rows.critic.as_ref().map(|critic| mean_all(&squared_error(values, critic)?)).transpose()?;
        actor_critic(policy_loss, vf_loss, dist, &self.common())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::loss::test_support::*;

    #[test]
    fn defaults_are_valid() {
        PolicyGradientConfig::pg().validate().unwrap();
        PolicyGradientConfig::a2c().validate().unwrap();
    }

    #[test]
    fn all_parts_of_the_policy_gradient_by_hand() {
        let config = PolicyGradientConfig { vf_loss_coeff: 0.5, entropy_coeff: 0.1, ..PolicyGradientConfig::a2c() };
        let now = Schedule { annealing: 1.0, adaptive: 0.0 };
        let rows = Rows { old: None, ..rows() };
        let loss = config.loss(&dist(&logits()), &column(&[0.5, 3.0]), &rows, now).unwrap();
        let [policy_loss, vf_loss, entropy, kl, clip_fraction] = loss.parts.each_ref().map(scalar);
        close(policy_loss, -(3.0 * 0.8f32.ln() + 0.5f32.ln()) / 2.0);
        close(vf_loss, (0.25 + 1.0) / 2.0);
        close(entropy, mean_entropy());
        assert_eq!((kl, clip_fraction), (0.0, 0.0));
        close(scalar(&loss.total), policy_loss + 0.5 * vf_loss - 0.1 * entropy);
    }
}
