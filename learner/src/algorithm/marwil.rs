//! Learning from logged actions: MARWIL, and behaviour cloning, which is the same without weights of rows.
//!
//! Wang et al.: "Exponentially weighted imitation learning for batched historical data", 2018; Pomerleau: "ALVINN: An
//! autonomous land vehicle in a neural network", 1989. With `A`, a row's return less the network's value, and `c`, the root of
//! the running mean of `A^2`, of which these rows are a part already, it minimises the mean over rows of
//!
//! ```text
//! - exp(beta A / c) (log pi(a|s) + bc_logstd_coeff mean(log sigma)) + vf_loss_coeff / 2 A^2
//! ```
//!
//! With `beta` 0 all rows weigh the same, and there is no value loss. `lr` is annealed; `c` moves with each step.

use candle_core::Tensor;
use rollmesh_core::{
    config::{Config, ConfigError as SettingsError},
    postprocess::AdvantageConfig,
    run::schema::{Kind, Setting},
};
use serde::{Deserialize, Serialize};

use super::{
    AlgorithmConfig, CommonConfig, ConfigError, Epochs, Needs, Objective, Schedule,
    loss::{ADVANTAGE_EPSILON, Loss, PARTS, VF_LOSS},
    settings::{complete_settings, parsed},
    table::{POSITIVE, row},
};
use crate::{
    dist::Dist,
    ops::{exp, mean_all},
    rows::Rows,
};

/// Settings of learning from logged actions, under RLlib's names where it has them.
///
/// Deserialises complete settings and refuses unknown names; use [`AlgorithmConfig::marwil`] or [`AlgorithmConfig::bc`] to read settings of users.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct MarwilConfig {
    /// Discount factor of the returns that weigh actions.
    pub gamma: f64,
    /// Settings that all algorithms share. The value loss is half the mean squared error.
    #[serde(flatten)]
    pub common: CommonConfig,
    /// The weight of better actions: rows weigh exp(beta A / c) for advantages A and the root c of their mean
    /// square. With 0 all weigh the same, which is behaviour cloning, and no value network is trained.
    pub beta: f64,
    /// Weight of the mean log standard deviation of continuous actions, which keeps them from becoming certain.
    pub bc_logstd_coeff: f64,
    /// The running mean of squared advantages before the first step.
    pub moving_average_sqd_adv_norm_start: f64,
    /// The fraction of it that each step replaces.
    pub moving_average_sqd_adv_norm_update_rate: f64,
    /// Passes over a train batch.
    pub num_epochs: u32,
    /// Rows per gradient step, at most, as of [`PpoConfig`](super::PpoConfig).
    pub minibatch_size: u32,
}

complete_settings!(MarwilConfig);

impl Default for MarwilConfig {
    fn default() -> Self {
        Self::marwil()
    }
}

impl MarwilConfig {
    /// Returns the defaults of monotonic advantage re-weighted imitation learning (Wang et al.: "Exponentially weighted
    /// imitation learning for batched historical data", 2018), with RLlib's settings but for smaller and more steps.
    #[must_use]
    pub fn marwil() -> Self {
        Self {
            gamma: 0.99,
            common: CommonConfig { lr: 1e-3, vf_loss_coeff: 1.0, ..CommonConfig::BASE },
            beta: 1.0,
            bc_logstd_coeff: 0.0,
            moving_average_sqd_adv_norm_start: 100.0,
            moving_average_sqd_adv_norm_update_rate: 1e-8,
            num_epochs: 1,
            minibatch_size: 128,
        }
    }

    /// Returns the defaults of behaviour cloning (Pomerleau: "ALVINN: An autonomous land vehicle in a neural network",
    /// 1989): the likelihood of the logged actions.
    #[must_use]
    pub fn bc() -> Self {
        Self { beta: 0.0, ..Self::marwil() }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`ConfigError`] with the first one that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check()
    }

    /// Returns whether rows are weighted by their advantages.
    #[must_use]
    pub fn weighs_rows(&self) -> bool {
        self.beta > 0.0
    }

    /// Returns the running mean of squared advantages after a step in which it was `found`.
    fn next_mean_square(&self, mean: f64, found: f64) -> f64 {
        mean + self.moving_average_sqd_adv_norm_update_rate * (found - mean)
    }
}

/// The settings that only this algorithm has.
const SETTINGS: &[Setting] = &[
    row("beta", &[Kind::NOT_NEGATIVE], "How much better actions weigh more; 0 for behaviour cloning."),
    row("bc_logstd_coeff", &[Kind::NOT_NEGATIVE], "Weight of the mean log standard deviation of continuous actions."),
    row("moving_average_sqd_adv_norm_start", POSITIVE, "Running mean of squared advantages before the first step."),
    row("moving_average_sqd_adv_norm_update_rate", &[Kind::FRACTION], "Fraction of that mean that each step replaces."),
];

impl From<MarwilConfig> for AlgorithmConfig {
    fn from(config: MarwilConfig) -> Self {
        Self::Marwil(config)
    }
}

impl AlgorithmConfig {
    /// Returns behaviour cloning, see [`MarwilConfig::bc`], with these settings over the usual ones.
    ///
    /// # Errors
    /// As [`pg`](Self::pg).
    pub fn bc(config: &Config) -> Result<Self, SettingsError> {
        parsed(MarwilConfig::bc(), config)
    }

    /// Returns weighted imitation, see [`MarwilConfig::marwil`], with these settings over the usual ones.
    ///
    /// # Errors
    /// As [`pg`](Self::pg).
    pub fn marwil(config: &Config) -> Result<Self, SettingsError> {
        parsed(MarwilConfig::marwil(), config)
    }
}

impl Objective for MarwilConfig {
    fn own_settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn common(&self) -> &CommonConfig {
        &self.common
    }

    /// Selects the returns of whole episodes; where an episode was cut, the value of the next observation stands for
    /// the rest.
    fn advantages(&self) -> AdvantageConfig {
        AdvantageConfig { gamma: self.gamma, lambda: 1.0, use_gae: false, use_critic: self.weighs_rows() }
    }

    fn needs(&self) -> Needs {
        Needs { critic: self.weighs_rows(), old: false, logged: true }
    }

    fn epochs(&self) -> Option<Epochs> {
        Some(Epochs { passes: self.num_epochs, minibatch_size: self.minibatch_size, target_kl: None })
    }

    fn first_adaptive(&self) -> f64 {
        self.moving_average_sqd_adv_norm_start
    }

    fn after_step(&self, mean_square: f64, parts: &[f32; PARTS]) -> f64 {
        if self.weighs_rows() { self.next_mean_square(mean_square, parts[VF_LOSS].into()) } else { mean_square }
    }

    fn is_data_parallel(&self) -> bool {
        // Before a step each rank has only the squared advantages of its own rows, so ranks would weigh rows
        // differently.
        !self.weighs_rows()
    }

    fn loss(&self, dist: &Dist, values: &Tensor, rows: &Rows, now: Schedule) -> candle_core::Result<Loss> {
        let mut logp = dist.logp(&rows.actions)?;
        if self.bc_logstd_coeff > 0.0
            && let Some(log_std) = dist.mean_log_std()?
        {
            logp = (logp + log_std.affine(self.bc_logstd_coeff, 0.0)?)?;
        }
        let none = mean_all(&rows.advantages.zeros_like()?)?;
        let (policy_loss, vf_loss) = match &rows.critic {
            None => (mean_all(&logp)?.neg()?, none.clone()),
            Some(critic) => {
                let advantages = (&critic.value_targets - values)?;
                let square = mean_all(&advantages.sqr()?)?;
                let rate = self.moving_average_sqd_adv_norm_update_rate;
                let norm = square.detach().affine(rate, (1.0 - rate) * now.adaptive)?.sqrt()?;
                let scaled = advantages.detach().broadcast_div(&(norm + ADVANTAGE_EPSILON)?)?;
                (mean_all(&(logp * exp(&scaled.affine(self.beta, 0.0)?)?)?)?.neg()?, square)
            }
        };
        let total = (&policy_loss + vf_loss.affine(0.5 * self.common.vf_loss_coeff, 0.0)?)?;
        let entropy = mean_all(&dist.entropy()?)?;
        let parts = [policy_loss, vf_loss, entropy, none.clone(), none].map(|part| part.detach());
        Ok(Loss { total, parts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{algorithm::loss::test_support::*, rows::Critic};

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

    #[test]
    fn logged_actions_by_hand() {
        let now = Schedule { annealing: 1.0, adaptive: 9.0 };
        // Returns are 3 and 1.
        let critic = Critic { value_targets: column(&[3.0, 1.0]), vf_preds: column(&[0.0, 0.0]) };
        let rows = Rows { old: None, critic: Some(critic), ..rows() };
        let config = MarwilConfig {
            beta: 2.0,
            common: CommonConfig { vf_loss_coeff: 0.5, ..CommonConfig::BASE },
            moving_average_sqd_adv_norm_update_rate: 0.25,
            ..MarwilConfig::marwil()
        };
        let got = config.loss(&dist(&logits()), &column(&[1.0, 2.0]), &rows, now).unwrap();
        let [policy_loss, vf_loss, entropy, kl, clip_fraction] = got.parts.each_ref().map(scalar);
        // Advantages are 2 and -1, their mean square is 2.5, and the running one 9 + (2.5 - 9) / 4.
        let norm = 7.375f32.sqrt();
        let weights = [(2.0 * 2.0 / norm).exp(), (-2.0 / norm).exp()];
        close(policy_loss, -(weights[0] * 0.8f32.ln() + weights[1] * 0.5f32.ln()) / 2.0);
        close(vf_loss, 2.5);
        close(entropy, mean_entropy());
        assert_eq!((kl, clip_fraction), (0.0, 0.0));
        close(scalar(&got.total), policy_loss + 0.5 * 0.5 * vf_loss);

        let rows = Rows { critic: None, ..rows };
        let got = MarwilConfig::bc().loss(&dist(&logits()), &column(&[1.0, 2.0]), &rows, now).unwrap();
        close(scalar(&got.total), -(0.8f32.ln() + 0.5f32.ln()) / 2.0);
    }
}
