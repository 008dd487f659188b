//! Proximal policy optimisation: several epochs of minibatches over a batch, with clipped probability ratios.
//!
//! Schulman, Wolski, Dhariwal, Radford, Klimov: "Proximal policy optimization algorithms", 2017. With the ratio
//! `w = pi(a|s) / pi_old(a|s)` and normalised advantages `A` it minimises the mean over rows of (their equations 7 to 9)
//!
//! ```text
//! - min(w A, clip(w, 1 - clip_param, 1 + clip_param) A)
//! + vf_loss_coeff (V(s) - target)^2 - entropy_coeff H(pi(.|s)) + kl_coeff KL(pi_old(.|s), pi(.|s))
//! ```
//!
//! `lr` and `clip_param` are annealed; `kl_coeff` follows the divergence from update to update (their section 4).

use candle_core::Tensor;
use rollmesh_core::{
    config::{Config, ConfigError as SettingsError},
    policy::PolicyRegistry,
    postprocess::AdvantageConfig,
    run::schema::{Kind, Setting},
};
use serde::{Deserialize, Serialize};

use super::{
    AlgorithmConfig, CommonConfig, ConfigError, Epochs, Needs, Objective, Schedule,
    loss::{CLIPPED, KL, Loss, actor_critic, normalised, squared_error},
    settings::{complete_settings, parsed},
    table::{POSITIVE, row},
};
use crate::{
    dist::Dist,
    ops::{exp, mean_all},
    rows::{Critic, Old, Rows},
    stats::UpdateStats,
};

/// Settings of proximal policy optimisation (Schulman, Wolski, Dhariwal, Radford, Klimov: "Proximal policy optimization
/// algorithms", 2017), under RLlib's names where it has them. The defaults are tuned for classic control on 16 slots.
///
/// Deserialises complete settings and refuses unknown names; use [`AlgorithmConfig::ppo`] to read settings of users.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct PpoConfig {
    /// The advantages that it learns from.
    #[serde(flatten)]
    pub advantages: AdvantageConfig,
    /// Settings that all algorithms share.
    #[serde(flatten)]
    pub common: CommonConfig,
    /// Passes over a train batch.
    pub num_epochs: u32,
    /// Rows per gradient step, at most: a batch is cut into minibatches of equal size, up to one row. Sequences of
    /// recurrent policies stay whole: there minibatches have equally many sequences, up to one.
    pub minibatch_size: u32,
    /// The maximum distance of the probability ratio from 1 that still lowers the loss, at the start if it is annealed.
    pub clip_param: f64,
    /// The maximum distance of a value from the acting value that still lowers the loss; unlimited if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vf_clip_range: Option<f64>,
    /// Weight of the entropy bonus.
    pub entropy_coeff: f64,
    /// The limit of the divergence: no further epoch begins once the mean KL divergence from the acting policy is above
    /// 1.5 times this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_kl: Option<f64>,
    /// Weight of the KL divergence from the acting policy in the loss, at the start.
    pub kl_coeff: f64,
    /// The target of the divergence: after an update `kl_coeff` grows by half if the divergence was above twice this,
    /// and is halved if it was below half of this.
    pub kl_target: f64,
}

complete_settings!(PpoConfig);

impl Default for PpoConfig {
    fn default() -> Self {
        Self {
            advantages: PolicyRegistry::PPO_ADVANTAGES,
            common: CommonConfig {
                lr: 1.5e-3,
                adam_epsilon: 1e-5,
                grad_clip: Some(0.5),
                anneal_over_env_steps: Some(100_000),
                ..CommonConfig::BASE
            },
            num_epochs: 8,
            minibatch_size: 128,
            clip_param: 0.2,
            vf_clip_range: None,
            entropy_coeff: 0.0,
            target_kl: None,
            kl_coeff: 0.0,
            kl_target: 0.01,
        }
    }
}

impl PpoConfig {
    /// Checks every setting.
    ///
    /// # Errors
    /// [`ConfigError`] with the first one that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check()
    }

    /// Returns the weight of the KL divergence after an update in which it was `kl`.
    fn next_kl_coeff(&self, coeff: f64, kl: f64) -> f64 {
        if kl > 2.0 * self.kl_target {
            (coeff * 1.5).min(f64::MAX)
        } else if kl < 0.5 * self.kl_target {
            coeff * 0.5
        } else {
            coeff
        }
    }
}

/// The settings that only this algorithm has.
const SETTINGS: &[Setting] = &[
    row("clip_param", POSITIVE, "How far the probability ratio may move from 1 with profit."),
    row("vf_clip_range", POSITIVE, "How far a value may move from the acting value with profit; 0 for no limit."),
    row("target_kl", POSITIVE, "No epoch begins with a mean KL divergence above 1.5 times this; 0 for no limit."),
    row("kl_coeff", &[Kind::NOT_NEGATIVE], "Weight of the KL divergence in the loss, at the start."),
    row("kl_target", POSITIVE, "KL divergence by which kl_coeff adapts."),
];

impl From<PpoConfig> for AlgorithmConfig {
    fn from(config: PpoConfig) -> Self {
        Self::Ppo(config)
    }
}

impl AlgorithmConfig {
    /// Returns proximal policy optimisation, see [`PpoConfig`], with these settings over the usual ones.
    ///
    /// # Errors
    /// As [`pg`](Self::pg).
    pub fn ppo(config: &Config) -> Result<Self, SettingsError> {
        parsed(PpoConfig::default(), config)
    }
}

impl Objective for PpoConfig {
    fn own_settings(&self) -> &'static [Setting] {
        SETTINGS
    }

    fn common(&self) -> &CommonConfig {
        &self.common
    }

    fn advantages(&self) -> AdvantageConfig {
        self.advantages
    }

    fn needs(&self) -> Needs {
        Needs { critic: self.advantages.use_critic, old: true, logged: false }
    }

    fn epochs(&self) -> Option<Epochs> {
        Some(Epochs { passes: self.num_epochs, minibatch_size: self.minibatch_size, target_kl: self.target_kl })
    }

    fn first_adaptive(&self) -> f64 {
        self.kl_coeff
    }

    fn after_update(&self, kl_coeff: f64, stats: &UpdateStats) -> f64 {
        self.next_kl_coeff(kl_coeff, stats.kl)
    }

    fn kl_coeff(&self, adaptive: f64) -> f64 {
        adaptive
    }

    fn loss(&self, dist: &Dist, values: &Tensor, rows: &Rows, now: Schedule) -> candle_core::Result<Loss> {
        let clip_param = self.clip_param * now.annealing;
        let kl_coeff = now.adaptive;
        let old = rows.old.as_ref().ok_or_else(|| candle_core::Error::msg("PPO needs the policy before the update"))?;
        let ratio = exp(&(dist.logp(&rows.actions)? - &old.logp)?)?;
        let advantages = normalised(&rows.advantages, rows.normal)?;
        let policy_loss = mean_all(&surrogate(&ratio, &advantages, clip_param)?)?.neg()?;
        let kl = divergence(old, dist, kl_coeff > 0.0)?;
        let beyond = ratio.detach().affine(1.0, -1.0)?.abs()?.gt(clip_param)?.to_dtype(ratio.dtype())?;

        let vf_loss = rows.critic.as_ref().map(|critic| value_loss(values, critic, self.vf_clip_range)).transpose()?;
        let mut loss = actor_critic(policy_loss, vf_loss, dist, &self.common, self.entropy_coeff)?;
        if kl_coeff > 0.0 {
            loss.total = (loss.total + kl.affine(kl_coeff, 0.0)?)?;
        }
        (loss.parts[KL], loss.parts[CLIPPED]) = (kl.detach(), mean_all(&beyond)?.detach());
        Ok(loss)
    }
}

/// Returns the mean divergence of the policy in training from the old one. Only a divergence that is part of the loss
/// needs a gradient.
fn divergence(old: &Old, dist: &Dist, has_gradient: bool) -> candle_core::Result<Tensor> {
    mean_all(&if has_gradient { old.dist.kl(dist)? } else { old.dist.kl(&dist.detach()?)? })
}

/// Returns min(ratio A, clip(ratio, 1 - c, 1 + c) A), row by row. The same as min(ratio A, A + c |A|): for A > 0 only
/// the upper end of the clipping range matters, for A < 0 only the lower.
fn surrogate(ratio: &Tensor, advantages: &Tensor, clip_param: f64) -> candle_core::Result<Tensor> {
    let bound = (advantages + advantages.abs()?.affine(clip_param, 0.0)?)?;
    (ratio * advantages)?.minimum(&bound)
}

/// Returns the mean squared error; with a range, of the larger errors of the value and of the value clipped around the
/// acting value.
fn value_loss(values: &Tensor, critic: &Critic, clip_range: Option<f64>) -> candle_core::Result<Tensor> {
    let errors = squared_error(values, critic)?;
    let Some(range) = clip_range else { return mean_all(&errors) };
    let moved = (values - &critic.vf_preds)?.clamp(-range, range)?;
    let clipped = ((&critic.vf_preds + moved)? - &critic.value_targets)?.sqr()?;
    mean_all(&errors.maximum(&clipped)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::loss::test_support::*;

    #[test]
    fn defaults_are_valid() {
        PpoConfig::default().validate().unwrap();
    }

    #[test]
    fn the_bad_setting_is_named() {
        let advantages = AdvantageConfig { gamma: 1.5, ..PolicyRegistry::PPO_ADVANTAGES };
        let config = PpoConfig { advantages, ..PpoConfig::default() };
        assert_eq!(config.validate().unwrap_err().to_string(), "gamma is 1.5, but must be from 0 to 1");
        let common = CommonConfig { lr: f64::NAN, ..PpoConfig::default().common };
        let config = PpoConfig { common, ..PpoConfig::default() };
        assert_eq!(config.validate().unwrap_err().name, "lr");
        let config = PpoConfig { minibatch_size: 0, ..PpoConfig::default() };
        assert_eq!(config.validate().unwrap_err().name, "minibatch_size");
    }

    #[test]
    fn toml_keeps_everything() {
        let common = CommonConfig { grad_clip: None, lr: 3e-4, ..PpoConfig::default().common };
        let config = PpoConfig { common, target_kl: Some(0.25), ..PpoConfig::default() };
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<PpoConfig>(&text).unwrap(), config);
    }

    #[test]
    fn the_weight_of_the_divergence_follows_it() {
        let config = PpoConfig { kl_target: 0.01, ..PpoConfig::default() };
        assert_eq!(
            [0.021, 0.02, 0.005, 0.004].map(|kl| config.next_kl_coeff(0.2, kl)),
            [0.30000000000000004, 0.2, 0.2, 0.1]
        );
    }

    #[test]
    fn all_parts_of_ppo_by_hand() {
        let config = PpoConfig { entropy_coeff: 0.1, vf_clip_range: None, ..PpoConfig::default() };
        let now = Schedule { annealing: 1.0, adaptive: 0.3 };
        let loss = config.loss(&dist(&logits()), &column(&[0.5, 3.0]), &rows(), now).unwrap();
        let [policy_loss, vf_loss, entropy, kl, clip_fraction] = loss.parts.each_ref().map(scalar);

        // Advantages become +1 and -1, ratios are 1.6 (clipped to 1.2) and 1.
        close(policy_loss, -(1.2 - 1.0) / 2.0);
        close(vf_loss, (0.25 + 1.0) / 2.0);
        close(entropy, mean_entropy());
        close(kl, 0.5 * ((0.5f32 / 0.8).ln() + (0.5f32 / 0.2).ln()) / 2.0);
        close(clip_fraction, 0.5);
        close(scalar(&loss.total), policy_loss + 0.5 * vf_loss - 0.1 * entropy + 0.3 * kl);
    }

    #[test]
    fn the_surrogate_is_the_pessimistic_one() {
        for ratio in [0.5f32, 0.8, 0.95, 1.0, 1.1, 1.2, 2.0] {
            for advantage in [-2.0f32, 0.0, 1.5] {
                let got = surrogate(&column(&[ratio]), &column(&[advantage]), 0.2).unwrap();
                let want = (ratio * advantage).min(ratio.clamp(0.8, 1.2) * advantage);
                close(got.to_vec1().unwrap()[0], want);
            }
        }
    }

    #[test]
    fn a_clipped_row_has_no_gradient() {
        let ratio = candle_core::Var::from_slice(&[1.5f32, 1.1, 0.5, 0.5], 4, &candle_core::Device::Cpu).unwrap();
        let objective = surrogate(&ratio, &column(&[1.0, 1.0, -1.0, 1.0]), 0.2).unwrap();
        let grads = objective.sum_all().unwrap().backward().unwrap();
        assert_eq!(grads.get(&ratio).unwrap().to_vec1::<f32>().unwrap(), [0.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn the_clipped_value_loss_takes_the_worse_error() {
        // Values 0.5 and 3 are clipped to 0.3; targets are 1 and 2.
        let loss = value_loss(&column(&[0.5, 3.0]), &rows().critic.unwrap(), Some(0.3)).unwrap();
        close(scalar(&loss), (0.7f32.powi(2) + 1.7f32.powi(2)) / 2.0);
    }
}
