//! What is reported of an update.

use candle_core::{Result, Tensor};
use rollmesh_core::policy::LearnInfo;

use super::loss::Loss;

/// What an update was like. Losses are means over its gradient steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateStats {
    /// Clipped surrogate loss.
    pub policy_loss: f64,
    /// Mean squared error of the values.
    pub vf_loss: f64,
    /// Entropy of the policy, in nats.
    pub entropy: f64,
    /// KL divergence of the policy in training from the acting one, in the last epoch, in nats.
    pub kl: f64,
    /// Fraction of the rows whose probability ratio was beyond the clipping range.
    pub clip_fraction: f64,
    /// How much of the variance of the value targets the acting values explain: 1 is all, 0 or less nothing.
    pub explained_variance: f64,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Largest difference between the log-probability of an action when it was taken and by the learner's own
    /// forward pass with the same weights.
    pub logp_gap: f64,
    /// Learning rate of this update.
    pub learning_rate: f64,
    /// Weight of the KL divergence in the loss of this update.
    pub kl_coeff: f64,
    /// Gradient steps that were taken.
    pub gradient_steps: u32,
    /// Gradient steps that were skipped because loss or gradient were not finite.
    pub skipped_steps: u32,
}

impl UpdateStats {
    /// Under RLlib's names.
    #[must_use]
    pub fn learn_info(&self) -> LearnInfo {
        let numbers = [
            ("policy_loss", self.policy_loss),
            ("vf_loss", self.vf_loss),
            ("entropy", self.entropy),
            ("kl", self.kl),
            ("clip_fraction", self.clip_fraction),
            ("vf_explained_var", self.explained_variance),
            ("grad_gnorm", self.grad_norm),
            ("logp_gap", self.logp_gap),
            ("cur_lr", self.learning_rate),
            ("cur_kl_coeff", self.kl_coeff),
            ("gradient_steps", self.gradient_steps.into()),
            ("skipped_steps", self.skipped_steps.into()),
        ];
        numbers.map(|(name, number)| (name.to_owned(), number)).into()
    }
}

/// Sums over gradient steps.
#[derive(Default)]
pub(super) struct Sums {
    /// Of the parts of the loss, in their order.
    parts: [f64; 5],
    grad_norm: f64,
    steps: u32,
    pub(super) skipped: u32,
    /// KL divergence and steps before the epoch at hand.
    before_epoch: (f64, u32),
}

impl Sums {
    pub(super) fn begin_epoch(&mut self) {
        self.before_epoch = (self.parts[KL], self.steps);
    }

    pub(super) fn add(&mut self, loss: &Loss, grad_norm: f64) -> Result<()> {
        // One transfer from the device for all of them.
        let parts: Vec<f32> = Tensor::stack(&loss.parts, 0)?.to_vec1()?;
        self.parts.iter_mut().zip(parts).for_each(|(sum, part)| *sum += f64::from(part));
        self.grad_norm += grad_norm;
        self.steps += 1;
        Ok(())
    }

    /// Mean KL divergence in this epoch.
    pub(super) fn epoch_kl(&self) -> f64 {
        let (kl, steps) = self.before_epoch;
        (self.parts[KL] - kl) / f64::from((self.steps - steps).max(1))
    }

    pub(super) fn means(&self) -> UpdateStats {
        let steps = f64::from(self.steps.max(1));
        let [policy_loss, vf_loss, entropy, _, clip_fraction] = self.parts.map(|sum| sum / steps);
        UpdateStats {
            policy_loss,
            vf_loss,
            entropy,
            kl: self.epoch_kl(),
            clip_fraction,
            grad_norm: self.grad_norm / steps,
            gradient_steps: self.steps,
            skipped_steps: self.skipped,
            ..UpdateStats::default()
        }
    }
}

/// Index of the KL divergence in the parts of the loss.
const KL: usize = 3;

/// 1 - Var(targets - predictions) / Var(targets); 0 for targets without variance.
pub(super) fn explained_variance(predictions: &[f32], targets: &[f32]) -> f64 {
    let total = variance(targets.iter().map(|&target| f64::from(target)));
    let errors =
        targets.iter().zip(predictions).map(|(&target, &prediction)| f64::from(target) - f64::from(prediction));
    if total > 0.0 { 1.0 - variance(errors) / total } else { 0.0 }
}

fn variance(values: impl ExactSizeIterator<Item = f64> + Clone) -> f64 {
    let n = values.len().max(1) as f64;
    let mean = values.clone().sum::<f64>() / n;
    values.map(|value| (value - mean).powi(2)).sum::<f64>() / n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explained_variance_of_good_useless_and_bad_values() {
        let targets = [1.0, 2.0, 3.0];
        assert_eq!(explained_variance(&targets, &targets), 1.0);
        // A constant shift explains just as much.
        assert_eq!(explained_variance(&[11.0, 12.0, 13.0], &targets), 1.0);
        assert_eq!(explained_variance(&[5.0; 3], &targets), 0.0);
        assert_eq!(explained_variance(&[3.0, 2.0, 1.0], &targets), -3.0);
        assert_eq!(explained_variance(&[1.0, 2.0], &[4.0, 4.0]), 0.0);
    }
}
