//! The settings that all algorithms share.

use serde::{Deserialize, Serialize};

/// Settings of every algorithm: its gradient steps, and how they are annealed. Serialised flat among the algorithm's own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommonConfig {
    /// AdamW's learning rate, at the start if it is annealed.
    pub lr: f64,
    /// Added to the root of AdamW's second moment.
    pub adam_epsilon: f64,
    /// AdamW's decoupled weight decay.
    pub weight_decay: f64,
    /// Weight of the value loss.
    pub vf_loss_coeff: f64,
    /// Largest global norm of a gradient; longer ones are scaled down. Unlimited if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grad_clip: Option<f64>,
    /// `lr`, and PPO's `clip_param`, fall linearly over this many env steps, or rows of logged experience; constant if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anneal_over_env_steps: Option<u64>,
    /// The fraction of `lr` and `clip_param` at the end of annealing and after it.
    pub anneal_to: f64,
}

impl CommonConfig {
    /// The defaults that the algorithms override: RLlib's settings of the policy gradient.
    pub(super) const BASE: Self = Self {
        lr: 4e-4,
        adam_epsilon: 1e-8,
        weight_decay: 0.0,
        vf_loss_coeff: 0.5,
        grad_clip: None,
        anneal_over_env_steps: None,
        anneal_to: 0.1,
    };

    /// Returns the fraction of the annealed settings after `env_steps`.
    pub(crate) fn annealing(&self, env_steps: u64) -> f64 {
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
        let annealed = CommonConfig { anneal_over_env_steps: Some(1000), anneal_to: 0.5, ..CommonConfig::BASE };
        assert_eq!([0, 500, 1000, 2000].map(|steps| annealed.annealing(steps)), [1.0, 0.75, 0.5, 0.5]);
        assert_eq!(CommonConfig::BASE.annealing(2000), 1.0);
    }
}
