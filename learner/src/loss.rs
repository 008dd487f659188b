//! The losses of one gradient step: the policy gradient with advantages (Williams, 1992; Mnih et al., 2016) or PPO's
//! clipped surrogate (Schulman, Wolski, Dhariwal, Radford, Klimov: "Proximal policy optimization algorithms", 2017), the
//! error of the values, and the entropy; or the likelihood of logged actions. All are means over rows.

use candle_core::{Result, Tensor};

use super::{
    config::{Algorithm, Common, MarwilConfig},
    dist::Dist,
    ranks::Normal,
    rows::{Critic, Old, Rows},
};

/// Added to the standard deviation of the advantages.
const ADVANTAGE_EPSILON: f64 = 1e-8;

/// Scalars of one minibatch.
pub(super) struct Loss {
    /// What is minimised.
    pub(super) total: Tensor,
    /// Detached: policy loss, value loss, entropy, KL divergence from the acting policy, clipped fraction; 0 where the
    /// algorithm has none.
    pub(super) parts: [Tensor; 5],
}

/// Settings that change from update to update.
#[derive(Clone, Copy, Debug)]
pub(super) struct Schedule {
    pub(super) clip_param: f64,
    pub(super) kl_coeff: f64,
    /// MARWIL's mean of squared advantages before the step.
    pub(super) mean_square: f64,
}

/// The loss of some rows for the distributions and values `[rows]` of the networks in training.
pub(super) fn loss(dist: &Dist, values: &Tensor, rows: &Rows, algorithm: &Algorithm, now: Schedule) -> Result<Loss> {
    if let Algorithm::Marwil(config) = algorithm {
        return imitation_loss(dist, values, rows, config, now);
    }
    let Common { vf_loss_coeff, entropy_coeff, .. } = algorithm.common();
    let vf_clip_range = if let Algorithm::Ppo(config) = algorithm { config.vf_clip_range } else { None };
    let none = rows.advantages.zeros_like()?.mean_all()?;
    let logp = dist.logp(&rows.actions)?;
    let (policy_loss, kl, clipped) = match &rows.old {
        Some(old) => clipped_loss(dist, &logp, old, &normalised(&rows.advantages, rows.normal)?, now)?,
        None => ((logp * &rows.advantages)?.mean_all()?.neg()?, none.clone(), none.clone()),
    };
    let mut total = policy_loss.clone();
    let vf_loss = rows.critic.as_ref().map(|critic| value_loss(values, critic, vf_clip_range)).transpose()?;
    if let Some(vf_loss) = &vf_loss {
        total = (total + vf_loss.affine(vf_loss_coeff, 0.0)?)?;
    }
    let entropy = dist.entropy()?.mean_all()?;
    if entropy_coeff > 0.0 {
        total = (total - entropy.affine(entropy_coeff, 0.0)?)?;
    }
    if now.kl_coeff > 0.0 {
        total = (total + kl.affine(now.kl_coeff, 0.0)?)?;
    }
    let parts = [policy_loss, vf_loss.unwrap_or(none), entropy, kl, clipped].map(|part| part.detach());
    Ok(Loss { total, parts })
}

/// Of logged actions (Wang et al.: "Exponentially weighted imitation learning for batched historical data", 2018): the mean
/// of -log p, each row weighted by exp(beta A / c), where A is its return without the value and c the root of the mean
/// square, the running one, of which these rows are a part already. With beta 0 all weigh the same, and there is no value
/// loss.
fn imitation_loss(dist: &Dist, values: &Tensor, rows: &Rows, config: &MarwilConfig, now: Schedule) -> Result<Loss> {
    let mut logp = dist.logp(&rows.actions)?;
    if config.bc_logstd_coeff > 0.0
        && let Some(log_std) = dist.mean_log_std()?
    {
        logp = (logp + log_std.affine(config.bc_logstd_coeff, 0.0)?)?;
    }
    let none = rows.advantages.zeros_like()?.mean_all()?;
    let (policy_loss, vf_loss) = match &rows.critic {
        None => (logp.mean_all()?.neg()?, none.clone()),
        Some(critic) => {
            let advantages = (&critic.value_targets - values)?;
            let square = advantages.sqr()?.mean_all()?;
            let rate = config.moving_average_sqd_adv_norm_update_rate;
            let norm = square.detach().affine(rate, (1.0 - rate) * now.mean_square)?.sqrt()?;
            let scaled = advantages.detach().broadcast_div(&(norm + ADVANTAGE_EPSILON)?)?;
            ((logp * scaled.affine(config.beta, 0.0)?.exp()?)?.mean_all()?.neg()?, square)
        }
    };
    let total = (&policy_loss + vf_loss.affine(0.5 * config.vf_loss_coeff, 0.0)?)?;
    let entropy = dist.entropy()?.mean_all()?;
    let parts = [policy_loss, vf_loss, entropy, none.clone(), none].map(|part| part.detach());
    Ok(Loss { total, parts })
}

/// PPO's, for normalised advantages: the surrogate, the divergence from the old policy, and the fraction of rows beyond the clipping range.
fn clipped_loss(
    dist: &Dist,
    logp: &Tensor,
    old: &Old,
    advantages: &Tensor,
    now: Schedule,
) -> Result<(Tensor, Tensor, Tensor)> {
    let ratio = (logp - &old.logp)?.exp()?;
    let policy_loss = surrogate(&ratio, advantages, now.clip_param)?.mean_all()?.neg()?;
    // Only a divergence that is part of the loss needs a gradient.
    let kl = if now.kl_coeff > 0.0 { old.dist.kl(dist)? } else { old.dist.kl(&dist.detach()?)? };
    let beyond = ratio.detach().affine(1.0, -1.0)?.abs()?.gt(now.clip_param)?.to_dtype(ratio.dtype())?;
    Ok((policy_loss, kl.mean_all()?, beyond.mean_all()?))
}

/// min(ratio A, clip(ratio, 1 - c, 1 + c) A), row by row. The same as min(ratio A, A + c |A|): for A > 0 only the
/// upper end of the clipping range matters, for A < 0 only the lower.
fn surrogate(ratio: &Tensor, advantages: &Tensor, clip_param: f64) -> Result<Tensor> {
    let bound = (advantages + advantages.abs()?.affine(clip_param, 0.0)?)?;
    (ratio * advantages)?.minimum(&bound)
}

/// Mean squared error; with a range the worse one of the value and the value clipped around the acting value.
fn value_loss(values: &Tensor, critic: &Critic, clip_range: Option<f64>) -> Result<Tensor> {
    let errors = (values - &critic.value_targets)?.sqr()?;
    let Some(range) = clip_range else { return errors.mean_all() };
    let moved = (values - &critic.vf_preds)?.clamp(-range, range)?;
    let clipped = ((&critic.vf_preds + moved)? - &critic.value_targets)?.sqr()?;
    errors.maximum(&clipped)?.mean_all()
}

/// Shifted and scaled to mean 0 and standard deviation 1 within the minibatch, of which there may be more rows elsewhere.
fn normalised(advantages: &Tensor, normal: Option<Normal>) -> Result<Tensor> {
    if let Some(Normal { mean, std }) = normal {
        return advantages.affine(1.0, -mean)?.affine(1.0 / (std + ADVANTAGE_EPSILON), 0.0);
    }
    let centred = advantages.broadcast_sub(&advantages.mean_all()?)?;
    let std = centred.sqr()?.mean_all()?.sqrt()?;
    centred.broadcast_div(&(std + ADVANTAGE_EPSILON)?)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use rollmesh_core::space::Space;

    use super::{
        super::{
            config::{MarwilConfig, PolicyGradientConfig, PpoConfig},
            dist::ActionHead,
        },
        *,
    };

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

    fn matrix(values: &[f32; 4]) -> Tensor {
        Tensor::from_slice(values, (2, 2), &Device::Cpu).unwrap()
    }

    fn dist(logits: &Tensor) -> Dist {
        ActionHead::for_space(&Space::Discrete { n: 2 }).unwrap().dist(logits).unwrap()
    }

    /// Two rows; the old policy is uniform over two actions, which are 0 and 1.
    fn rows() -> Rows {
        Rows {
            obs: matrix(&[0.5; 4]),
            actions: Tensor::new(&[[0u32], [1]], &Device::Cpu).unwrap(),
            advantages: column(&[3.0, 1.0]),
            critic: Some(Critic { value_targets: column(&[1.0, 2.0]), vf_preds: column(&[0.0, 0.0]) }),
            old: Some(Old { logp: column(&[0.5f32.ln(); 2]), dist: dist(&matrix(&[1.0; 4])) }),
            memory: None,
            normal: None,
        }
    }

    /// Logits of probabilities (0.8, 0.2) in the first row and (0.5, 0.5) in the second.
    fn logits() -> Tensor {
        Tensor::new(&[[0.8f32.ln() + 3.0, 0.2f32.ln() + 3.0], [7.0, 7.0]], &Device::Cpu).unwrap()
    }

    fn mean_entropy() -> f32 {
        (2f32.ln() - (0.8f32 * 0.8f32.ln() + 0.2 * 0.2f32.ln())) / 2.0
    }

    #[test]
    fn all_parts_of_ppo_by_hand() {
        let config = PpoConfig { vf_loss_coeff: 0.5, entropy_coeff: 0.1, vf_clip_range: None, ..PpoConfig::default() };
        let now = Schedule { clip_param: 0.2, kl_coeff: 0.3, mean_square: 0.0 };
        let loss = loss(&dist(&logits()), &column(&[0.5, 3.0]), &rows(), &config.into(), now).unwrap();
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
    fn all_parts_of_the_policy_gradient_by_hand() {
        let config = PolicyGradientConfig { vf_loss_coeff: 0.5, entropy_coeff: 0.1, ..PolicyGradientConfig::a2c() };
        let now = Schedule { clip_param: 0.0, kl_coeff: 0.0, mean_square: 0.0 };
        let rows = Rows { old: None, ..rows() };
        let loss = loss(&dist(&logits()), &column(&[0.5, 3.0]), &rows, &config.into(), now).unwrap();
        let [policy_loss, vf_loss, entropy, kl, clip_fraction] = loss.parts.each_ref().map(scalar);
        close(policy_loss, -(3.0 * 0.8f32.ln() + 0.5f32.ln()) / 2.0);
        close(vf_loss, (0.25 + 1.0) / 2.0);
        close(entropy, mean_entropy());
        assert_eq!((kl, clip_fraction), (0.0, 0.0));
        close(scalar(&loss.total), policy_loss + 0.5 * vf_loss - 0.1 * entropy);
    }

    #[test]
    fn logged_actions_by_hand() {
        let now = Schedule { clip_param: 0.0, kl_coeff: 0.0, mean_square: 9.0 };
        // Returns are 3 and 1.
        let critic = Critic { value_targets: column(&[3.0, 1.0]), vf_preds: column(&[0.0, 0.0]) };
        let rows = Rows { old: None, critic: Some(critic), ..rows() };
        let config = MarwilConfig {
            beta: 2.0,
            vf_loss_coeff: 0.5,
            moving_average_sqd_adv_norm_update_rate: 0.25,
            ..MarwilConfig::marwil()
        };
        let got = loss(&dist(&logits()), &column(&[1.0, 2.0]), &rows, &config.into(), now).unwrap();
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
        let got = loss(&dist(&logits()), &column(&[1.0, 2.0]), &rows, &MarwilConfig::bc().into(), now).unwrap();
        close(scalar(&got.total), -(0.8f32.ln() + 0.5f32.ln()) / 2.0);
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
        let loss = value_loss(&column(&[0.5, 3.0]), &rows().critic.unwrap(), Some(0.3)).unwrap();
        close(scalar(&loss), (0.7f32.powi(2) + 1.7f32.powi(2)) / 2.0);
    }

    #[test]
    fn equal_advantages_say_nothing() {
        for normal in [None, Some(Normal { mean: 5.0, std: 0.0 })] {
            let values: Vec<f32> = normalised(&column(&[5.0; 3]), normal).unwrap().to_vec1().unwrap();
            assert_eq!(values, [0.0; 3]);
        }
    }
}
