//! The parts that the losses of a gradient step have in common. All losses are means over rows.

use candle_core::{Result, Tensor};

use super::CommonConfig;
use crate::{dist::Dist, ops::mean_all, ranks::Normal, rows::Critic};

/// Added to the standard deviation of the advantages.
pub(super) const ADVANTAGE_EPSILON: f64 = 1e-8;

/// Scalars of one minibatch.
pub(crate) struct Loss {
    /// The loss that is minimised.
    pub(crate) total: Tensor,
    /// Detached: policy loss, value loss, entropy, KL divergence from the acting policy, clipped fraction; 0 where the
    /// algorithm has none.
    pub(crate) parts: [Tensor; PARTS],
}

/// Number of the parts of a loss, and the indices of some.
pub(crate) const PARTS: usize = 5;
pub(crate) const VF_LOSS: usize = 1;
pub(crate) const KL: usize = 3;
pub(super) const CLIPPED: usize = 4;

/// Returns a policy loss with the error of the values, if there is a critic, and the entropy.
pub(super) fn actor_critic(
    policy_loss: Tensor,
    vf_loss: Option<Tensor>,
    dist: &Dist,
    common: &CommonConfig,
    entropy_coeff: f64,
) -> Result<Loss> {
    let none = policy_loss.zeros_like()?.detach();
    let mut total = policy_loss.clone();
    if let Some(vf_loss) = &vf_loss {
        total = (total + vf_loss.affine(common.vf_loss_coeff, 0.0)?)?;
    }
    let entropy = mean_all(&dist.entropy()?)?;
    if entropy_coeff > 0.0 {
        total = (total - entropy.affine(entropy_coeff, 0.0)?)?;
    }
    let parts = [policy_loss, vf_loss.unwrap_or_else(|| none.clone()), entropy, none.clone(), none];
    Ok(Loss { total, parts: parts.map(|part| part.detach()) })
}

/// Returns the squared errors of the values, `[rows]`.
pub(super) fn squared_error(values: &Tensor, critic: &Critic) -> Result<Tensor> {
    (values - &critic.value_targets)?.sqr()
}

/// Returns the advantages shifted and scaled to mean 0 and standard deviation 1 within the minibatch, of which other
/// ranks may have more rows.
pub(super) fn normalised(advantages: &Tensor, normal: Option<Normal>) -> Result<Tensor> {
    if let Some(Normal { mean, std }) = normal {
        return advantages.affine(1.0, -mean)?.affine(1.0 / (std + ADVANTAGE_EPSILON), 0.0);
    }
    let centred = advantages.broadcast_sub(&mean_all(advantages)?)?;
    let std = mean_all(&centred.sqr()?)?.sqrt()?;
    centred.broadcast_div(&(std + ADVANTAGE_EPSILON)?)
}

/// Rows, distributions and values whose losses are computed by hand.
#[cfg(test)]
pub(super) mod test_support {
    use candle_core::Device;
    use rollmesh_core::space::Space;

    use super::*;
    use crate::{
        dist::ActionHead,
        rows::{Old, Rows},
    };

    pub(in crate::algorithm) fn column(values: &[f32]) -> Tensor {
        Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap()
    }

    pub(in crate::algorithm) fn scalar(tensor: &Tensor) -> f32 {
        tensor.to_scalar().unwrap()
    }

    #[track_caller]
    pub(in crate::algorithm) fn close(got: f32, want: f32) {
        assert!((got - want).abs() < 1e-5, "{got}, not {want}");
    }

    pub(in crate::algorithm) fn matrix(values: &[f32; 4]) -> Tensor {
        Tensor::from_slice(values, (2, 2), &Device::Cpu).unwrap()
    }

    pub(in crate::algorithm) fn dist(logits: &Tensor) -> Dist {
        ActionHead::for_space(&Space::Discrete { n: 2 }).unwrap().dist(logits).unwrap()
    }

    /// Returns two rows; the old policy is uniform over two actions, which are 0 and 1.
    pub(in crate::algorithm) fn rows() -> Rows {
        Rows {
            obs: matrix(&[0.5; 4]),
            actions: Tensor::new(&[[0u32], [1]], &Device::Cpu).unwrap(),
            advantages: column(&[3.0, 1.0]),
            critic: Some(Critic { value_targets: column(&[1.0, 2.0]), vf_preds: column(&[0.0, 0.0]) }),
            old: Some(Old { logp: column(&[0.5f32.ln(); 2]), dist: dist(&matrix(&[1.0; 4])) }),
            previous: None,
            memory: None,
            normal: None,
        }
    }

    /// Returns the logits of probabilities (0.8, 0.2) in the first row and (0.5, 0.5) in the second.
    pub(in crate::algorithm) fn logits() -> Tensor {
        Tensor::new(&[[0.8f32.ln() + 3.0, 0.2f32.ln() + 3.0], [7.0, 7.0]], &Device::Cpu).unwrap()
    }

    pub(in crate::algorithm) fn mean_entropy() -> f32 {
        (2f32.ln() - (0.8f32 * 0.8f32.ln() + 0.2 * 0.2f32.ln())) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::{test_support::*, *};

    #[test]
    fn equal_advantages_say_nothing() {
        for normal in [None, Some(Normal { mean: 5.0, std: 0.0 })] {
            let values: Vec<f32> = normalised(&column(&[5.0; 3]), normal).unwrap().to_vec1().unwrap();
            assert_eq!(values, [0.0; 3]);
        }
    }
}
