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
use rollmesh_core::{
    config::{Config, ConfigError as SettingsError},
    policy::PolicyRegistry,
    postprocess::AdvantageConfig,
};
use serde::{Deserialize, Serialize};

use super::{
    AlgorithmConfig, CommonConfig, ConfigError, Needs, Objective, Schedule,
    loss::{Loss, actor_critic, squared_error},
    settings::{complete_settings, parsed},
};
use crate::{dist::Dist, ops::mean_all, rows::Rows};

/// Settings of one step along the policy gradient per batch, under RLlib's names where it has them.
///
/// Deserialises complete settings and refuses unknown names; use [`AlgorithmConfig::pg`] or [`AlgorithmConfig::a2c`] to read settings of users.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct PolicyGradientConfig {
    /// The advantages that it learns from.
    #[serde(flatten)]
    pub advantages: AdvantageConfig,
    /// Settings that all algorithms share.
    #[serde(flatten)]
    pub common: CommonConfig,
    /// Weight of the entropy bonus.
    pub entropy_coeff: f64,
}

complete_settings!(PolicyGradientConfig);

impl PolicyGradientConfig {
    /// Returns the defaults of REINFORCE (Williams: "Simple statistical gradient-following algorithms for connectionist
    /// reinforcement learning", 1992), with RLlib's settings: discounted returns and no critic.
    #[must_use]
    pub fn pg() -> Self {
        Self { advantages: PolicyRegistry::PG_ADVANTAGES, common: CommonConfig::BASE, entropy_coeff: 0.0 }
    }

    /// Returns the defaults of synchronous advantage actor-critic (Mnih et al.: "Asynchronous methods for deep
    /// reinforcement learning", 2016). Losses are means over rows, so that settings do not depend on the size of a
    /// batch; hence a larger step and a smaller limit of the gradient than RLlib's, whose losses are sums.
    #[must_use]
    pub fn a2c() -> Self {
        Self {
            advantages: PolicyRegistry::A2C_ADVANTAGES,
            common: CommonConfig { lr: 7e-4, adam_epsilon: 1e-5, grad_clip: Some(0.5), ..CommonConfig::BASE },
            entropy_coeff: 0.01,
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
    /// Returns REINFORCE, see [`PolicyGradientConfig::pg`], with these settings over the usual ones.
    ///
    /// # Errors
    /// [`SettingsError::Unknown`] for an unknown name, with all that are known, and [`SettingsError::BadValue`] for a
    /// value out of range.
    pub fn pg(config: &Config) -> Result<Self, SettingsError> {
        parsed(PolicyGradientConfig::pg(), config)
    }

    /// Returns advantage actor-critic, see [`PolicyGradientConfig::a2c`], with these settings over the usual ones.
    ///
    /// # Errors
    /// As [`pg`](Self::pg).
    pub fn a2c(config: &Config) -> Result<Self, SettingsError> {
        parsed(PolicyGradientConfig::a2c(), config)
    }
}

impl Objective for PolicyGradientConfig {
    fn common(&self) -> &CommonConfig {
        &self.common
    }

    fn advantages(&self) -> AdvantageConfig {
        self.advantages
    }

    fn needs(&self) -> Needs {
        Needs { critic: self.advantages.use_critic, old: false, logged: false }
    }

    fn loss(&self, dist: &Dist, values: &Tensor, rows: &Rows, _now: Schedule) -> candle_core::Result<Loss> {
        let policy_loss = mean_all(&(dist.logp(&rows.actions)? * &rows.advantages)?)?.neg()?;
        let vf_loss = rows.critic.as_ref().map(|critic| mean_all(&squared_error(values, critic)?)).transpose()?;
        actor_critic(policy_loss, vf_loss, dist, &self.common, self.entropy_coeff)
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
        let config = PolicyGradientConfig { entropy_coeff: 0.1, ..PolicyGradientConfig::a2c() };
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
