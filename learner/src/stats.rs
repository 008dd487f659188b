//! The statistics of an update.

use rollmesh_core::policy::{LearnInfo, joined_info};
use serde::{Deserialize, Serialize};

use super::algorithm::{KL, PARTS};

/// The statistics of an update. Losses are means over its gradient steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UpdateStats {
    /// The clipped surrogate loss, or the algorithm's other policy loss.
    pub policy_loss: f64,
    /// Mean squared error of the values.
    pub vf_loss: f64,
    /// Entropy of the policy, in nats.
    pub entropy: f64,
    /// KL divergence of the policy in training from the acting one, in the last epoch, in nats.
    pub kl: f64,
    /// Fraction of the rows whose probability ratio was beyond the clipping range.
    pub clip_fraction: f64,
    /// The fraction of the variance of the value targets that the acting values explain: 1 is all, 0 or less nothing.
    pub explained_variance: f64,
    /// Global norm of the gradient before clipping.
    pub grad_norm: f64,
    /// Largest difference between the log-probability of an action when it was taken and by the learner's own
    /// forward pass with the same weights.
    pub logp_gap: f64,
    /// Learning rate of this update.
    pub learning_rate: f64,
    /// The number of versions by which the rows' weights were behind the learner's, as a mean over rows.
    #[serde(default)]
    pub lag_mean: f64,
    /// The same of the row with the oldest weights.
    #[serde(default)]
    pub lag_max: f64,
    /// Weight of the KL divergence in the loss of this update.
    #[serde(skip)]
    pub kl_coeff: f64,
    /// Gradient steps that were taken.
    #[serde(skip)]
    pub gradient_steps: u32,
    /// Gradient steps that were skipped because loss or gradient were not finite.
    #[serde(skip)]
    pub skipped_steps: u32,
}

impl UpdateStats {
    /// Reads the statistics from a policy's metrics under RLlib's names; 0 for missing ones.
    #[must_use]
    pub fn of_info(info: &LearnInfo) -> Self {
        let number = |name: &str| info.get(name).copied().unwrap_or(0.0);
        Self {
            policy_loss: number("policy_loss"),
            vf_loss: number("vf_loss"),
            entropy: number("entropy"),
            kl: number("kl"),
            clip_fraction: number("clip_fraction"),
            explained_variance: number("vf_explained_var"),
            grad_norm: number("grad_gnorm"),
            logp_gap: number("logp_gap"),
            lag_mean: number("lag_mean"),
            lag_max: number("lag_max"),
            learning_rate: number("cur_lr"),
            kl_coeff: number("cur_kl_coeff"),
            gradient_steps: number("gradient_steps") as u32,
            skipped_steps: number("skipped_steps") as u32,
        }
    }

    /// Returns the statistics of the [joined](joined_info) metrics of several policies.
    #[must_use]
    pub fn mean_of<'a>(infos: impl IntoIterator<Item = &'a LearnInfo>) -> Self {
        Self::of_info(&joined_info(infos))
    }

    /// Returns the statistics under RLlib's names.
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
            ("lag_mean", self.lag_mean),
            ("lag_max", self.lag_max),
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
pub(super) struct GradientSums {
    /// The sums of the parts of the loss, in their order.
    parts: [f64; PARTS],
    grad_norm: f64,
    steps: u32,
    pub(super) skipped: u32,
    /// KL divergence and steps before the epoch at hand.
    before_epoch: (f64, u32),
}

impl GradientSums {
    pub(super) fn begin_epoch(&mut self) {
        self.before_epoch = (self.parts[KL], self.steps);
    }

    pub(super) fn add(&mut self, parts: [f32; PARTS], grad_norm: f64) {
        self.parts.iter_mut().zip(parts).for_each(|(sum, part)| *sum += f64::from(part));
        self.grad_norm += grad_norm;
        self.steps += 1;
    }

    /// Returns the mean KL divergence in this epoch.
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

/// The count and the mean of some numbers, and the sum of their squared distances from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Moments {
    n: f64,
    pub(super) mean: f64,
    squares: f64,
}

impl Moments {
    pub(super) fn of(values: impl ExactSizeIterator<Item = f64> + Clone) -> Self {
        let n = values.len() as f64;
        let mean = values.clone().sum::<f64>() / n.max(1.0);
        Self { n, mean, squares: values.map(|value| (value - mean).powi(2)).sum() }
    }

    /// Returns the moments of all numbers together (Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm
    /// for computing sample variances", 1979).
    pub(super) fn join(parts: impl Iterator<Item = Self>) -> Self {
        let mut parts = parts.filter(|part| part.n != 0.0);
        let first = parts.next().unwrap_or_default();
        parts.fold(first, |a, b| {
            let (n, apart) = (a.n + b.n, b.mean - a.mean);
            let squares = a.squares + b.squares + apart.powi(2) * (a.n * b.n / n);
            Self { n, mean: a.mean + apart * (b.n / n), squares }
        })
    }

    pub(super) fn variance(&self) -> f64 {
        self.squares / self.n.max(1.0)
    }
}

/// Returns 1 - Var(targets - predictions) / Var(targets); 0 for targets without variance.
pub(super) fn explained_variance(targets: Moments, errors: Moments) -> f64 {
    let total = targets.variance();
    if total > 0.0 { 1.0 - errors.variance() / total } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(predictions: &[f32], targets: &[f32]) -> f64 {
        let errors = targets.iter().zip(predictions).map(|(&t, &p)| f64::from(t) - f64::from(p));
        explained_variance(Moments::of(targets.iter().map(|&t| t.into())), Moments::of(errors))
    }

    #[test]
    fn explained_variance_of_good_useless_and_bad_values() {
        let targets = [1.0, 2.0, 3.0];
        assert_eq!(explained(&targets, &targets), 1.0);
        // A constant shift explains just as much.
        assert_eq!(explained(&[11.0, 12.0, 13.0], &targets), 1.0);
        assert_eq!(explained(&[5.0; 3], &targets), 0.0);
        assert_eq!(explained(&[3.0, 2.0, 1.0], &targets), -3.0);
        assert_eq!(explained(&[1.0, 2.0], &[4.0, 4.0]), 0.0);
    }

    #[test]
    fn policies_together_lag_as_far_as_the_one_furthest_behind() {
        let info = |lag, gradient_steps| {
            UpdateStats { lag_mean: lag, lag_max: lag, gradient_steps, ..UpdateStats::default() }.learn_info()
        };
        let both = UpdateStats::mean_of(&[info(1.0, 2), info(4.0, 3)]);
        assert_eq!((both.lag_mean, both.lag_max, both.gradient_steps), (2.5, 4.0, 5));
    }

    #[test]
    fn moments_of_parts_combine_to_those_of_all_rows() {
        let values: Vec<f64> = (0..20).map(|i| 100.0 + f64::from(i * i % 7)).collect();
        let of = |range: std::ops::Range<usize>| Moments::of(values[range].iter().copied());
        let (joined, whole) = (Moments::join([of(0..0), of(0..3), of(3..3), of(3..20)].into_iter()), of(0..20));
        assert_eq!(joined.n, 20.0);
        assert!((joined.mean - whole.mean).abs() < 1e-12 && (joined.variance() - whole.variance()).abs() < 1e-12);
        assert_eq!(Moments::join([of(0..20)].into_iter()), whole, "not a bit changes");
    }
}
