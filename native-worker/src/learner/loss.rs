//! PPO's loss for one minibatch (Schulman, Wolski, Dhariwal, Radford, Klimov: "Proximal policy optimization
//! algorithms", 2017), for discrete actions.

use candle_core::{D, Result, Tensor};

use super::{config::PpoConfig, rows::Rows};

/// Added to the standard deviation of the advantages.
const ADVANTAGE_EPSILON: f64 = 1e-8;

/// Scalars of one minibatch.
pub(super) struct Loss {
    /// What is minimised.
    pub(super) total: Tensor,
    /// Detached: policy loss, value loss, entropy, KL divergence from the acting policy, clipped fraction.
    pub(super) parts: [Tensor; 5],
}

/// The loss of a minibatch for the logits `[rows, actions]` and values `[rows]` of the networks in training.
pub(super) fn loss(logits: &Tensor, values: &Tensor, rows: &Rows, config: &PpoConfig, clip_param: f64) -> Result<Loss> {
    let logp_all = log_softmax(logits)?;
    let logp = logp_all.gather(&rows.actions, D::Minus1)?.squeeze(D::Minus1)?;
    let ratio = (logp - &rows.old_logp)?.exp()?;

    let policy_loss = surrogate(&ratio, &normalised(&rows.advantages)?, clip_param)?.mean_all()?.neg()?;
    let vf_loss = value_loss(values, rows, config.vf_clip_range)?;
    let entropy = (logp_all.exp()? * &logp_all)?.sum_all()?.affine(-1.0 / rows.len() as f64, 0.0)?;
    let kl = (&rows.old_probs * (&rows.old_logp_all - logp_all.detach())?)?
        .sum_all()?
        .affine(1.0 / rows.len() as f64, 0.0)?;
    let clipped = ratio.detach().affine(1.0, -1.0)?.abs()?.gt(clip_param)?.to_dtype(logits.dtype())?.mean_all()?;

    let mut total = (&policy_loss + vf_loss.affine(config.vf_loss_coeff, 0.0)?)?;
    if config.entropy_coeff > 0.0 {
        total = (total - entropy.affine(config.entropy_coeff, 0.0)?)?;
    }
    Ok(Loss { total, parts: [policy_loss.detach(), vf_loss.detach(), entropy.detach(), kl, clipped] })
}

/// Logarithms of the probabilities that logits `[rows, actions]` stand for.
pub(super) fn log_softmax(logits: &Tensor) -> Result<Tensor> {
    // The largest logit only keeps the exponentials in range; its gradient would cancel.
    let shifted = logits.broadcast_sub(&logits.detach().max_keepdim(D::Minus1)?)?;
    let log_sum = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    shifted.broadcast_sub(&log_sum)
}

/// min(ratio A, clip(ratio, 1 - c, 1 + c) A), row by row. The same as min(ratio A, A + c |A|): for A > 0 only the
/// upper end of the clipping range matters, for A < 0 only the lower.
fn surrogate(ratio: &Tensor, advantages: &Tensor, clip_param: f64) -> Result<Tensor> {
    let bound = (advantages + advantages.abs()?.affine(clip_param, 0.0)?)?;
    (ratio * advantages)?.minimum(&bound)
}

/// Mean squared error; with a range the worse one of the value and the value clipped around the acting value.
fn value_loss(values: &Tensor, rows: &Rows, clip_range: Option<f64>) -> Result<Tensor> {
    let errors = (values - &rows.value_targets)?.sqr()?;
    let Some(range) = clip_range else { return errors.mean_all() };
    let moved = (values - &rows.vf_preds)?.clamp(-range, range)?;
    let clipped = ((&rows.vf_preds + moved)? - &rows.value_targets)?.sqr()?;
    errors.maximum(&clipped)?.mean_all()
}

/// Shifted and scaled to mean 0 and standard deviation 1 within the minibatch.
fn normalised(advantages: &Tensor) -> Result<Tensor> {
    let centred = advantages.broadcast_sub(&advantages.mean_all()?)?;
    let std = centred.sqr()?.mean_all()?.sqrt()?;
    centred.broadcast_div(&(std + ADVANTAGE_EPSILON)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn column(values: &[f32]) -> Tensor {
        Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap()
    }

    fn scalar(tensor: &Tensor) -> f32 {
        tensor.to_scalar().unwrap()
    }

    #[track_caller]
    fn close(got: f32, want: f32) {
        assert!((got - want).abs() < 1e-5, "{got}, not {want}");
    }

    /// Two rows; the old policy is uniform over two actions, which are 0 and 1.
    fn rows() -> Rows {
        let half = [0.5f32; 4];
        let matrix = |values: &[f32; 4]| Tensor::from_slice(values, (2, 2), &Device::Cpu).unwrap();
        Rows {
            obs: matrix(&half),
            actions: Tensor::new(&[[0u32], [1]], &Device::Cpu).unwrap(),
            advantages: column(&[3.0, 1.0]),
            value_targets: column(&[1.0, 2.0]),
            vf_preds: column(&[0.0, 0.0]),
            old_logp: column(&[0.5f32.ln(); 2]),
            old_logp_all: matrix(&half.map(f32::ln)),
            old_probs: matrix(&half),
        }
    }

    /// Logits of probabilities (0.8, 0.2) in the first row and (0.5, 0.5) in the second.
    fn logits() -> Tensor {
        Tensor::new(&[[0.8f32.ln() + 3.0, 0.2f32.ln() + 3.0], [7.0, 7.0]], &Device::Cpu).unwrap()
    }

    #[test]
    fn all_parts_by_hand() {
        let config = PpoConfig { vf_loss_coeff: 0.5, entropy_coeff: 0.1, vf_clip_range: None, ..PpoConfig::default() };
        let loss = loss(&logits(), &column(&[0.5, 3.0]), &rows(), &config, 0.2).unwrap();
        let [policy_loss, vf_loss, entropy, kl, clip_fraction] = loss.parts.each_ref().map(scalar);

        // Advantages become +1 and -1, ratios are 1.6 (clipped to 1.2) and 1.
        close(policy_loss, -(1.2 - 1.0) / 2.0);
        close(vf_loss, (0.25 + 1.0) / 2.0);
        let entropies = [-(0.8f32 * 0.8f32.ln() + 0.2 * 0.2f32.ln()), 2f32.ln()];
        close(entropy, (entropies[0] + entropies[1]) / 2.0);
        close(kl, 0.5 * ((0.5f32 / 0.8).ln() + (0.5f32 / 0.2).ln()) / 2.0);
        close(clip_fraction, 0.5);
        close(scalar(&loss.total), policy_loss + 0.5 * vf_loss - 0.1 * entropy);
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
        let ratio = candle_core::Var::from_slice(&[1.5f32, 1.1, 0.5, 0.5], 4, &Device::Cpu).unwrap();
        let objective = surrogate(&ratio, &column(&[1.0, 1.0, -1.0, 1.0]), 0.2).unwrap();
        let grads = objective.sum_all().unwrap().backward().unwrap();
        assert_eq!(grads.get(&ratio).unwrap().to_vec1::<f32>().unwrap(), [0.0, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn the_clipped_value_loss_takes_the_worse_error() {
        // Values 0.5 and 3 are clipped to 0.3; targets are 1 and 2.
        let loss = value_loss(&column(&[0.5, 3.0]), &rows(), Some(0.3)).unwrap();
        close(scalar(&loss), (0.7f32.powi(2) + 1.7f32.powi(2)) / 2.0);
    }

    #[test]
    fn equal_advantages_say_nothing() {
        let values: Vec<f32> = normalised(&column(&[5.0, 5.0, 5.0])).unwrap().to_vec1().unwrap();
        assert_eq!(values, [0.0; 3]);
    }

    #[test]
    fn huge_logits_stay_finite() {
        let logp = log_softmax(&Tensor::new(&[[1e4f32, -1e4]], &Device::Cpu).unwrap()).unwrap();
        assert_eq!(logp.to_vec2::<f32>().unwrap(), [[0.0, -2e4]]);
    }
}
