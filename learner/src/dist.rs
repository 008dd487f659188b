//! Distributions of actions on the learner's device: what [`rollmesh_core::distribution`] draws from, with gradients.

use std::ops::Range;

use candle_core::{D, DType, Tensor};
use rollmesh_core::{
    distribution::{ActionDistribution, Distribution as _, DistributionError, MultiCategorical},
    policy::PolicyError,
    space::Space,
};

use super::ops::{exp, log_softmax, sum_last};

/// log(2 pi) / 2.
const HALF_LOG_TAU: f64 = 0.918_938_533_204_672_7;

/// What the numbers that the policy's network gives are the parameters of, see [`ActionDistribution`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ActionHead {
    /// Vectors of integers, each component one of several.
    Categorical(MultiCategorical),
    /// Vectors of so many choices between 0 and 1.
    Bernoulli(usize),
    /// Vectors of so many floats.
    Gaussian(usize),
    /// The parts of a tuple or a dict, one after the other.
    Joined(Vec<Self>),
}

impl ActionHead {
    /// The head for a space.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for spaces without distribution.
    pub(super) fn for_space(space: &Space) -> Result<Self, PolicyError> {
        let head = ActionDistribution::for_space(space).and_then(Self::of);
        head.map_err(|error| PolicyError::Unsupported {
            wanted: "actions to choose from".into(),
            found: error.to_string(),
        })
    }

    fn of(distribution: ActionDistribution) -> Result<Self, DistributionError> {
        Ok(match distribution {
            ActionDistribution::Categorical(of) => Self::Categorical(MultiCategorical::new([of.input_len() as u32])?),
            ActionDistribution::MultiCategorical { distribution: of, .. } => Self::Categorical(of),
            ActionDistribution::DiagGaussian { distribution: of, .. } => Self::Gaussian(of.action_len()),
            ActionDistribution::Bernoulli(of) => Self::Bernoulli(of.action_len()),
            ActionDistribution::Tuple(parts) => {
                Self::Joined(parts.into_iter().map(Self::of).collect::<Result<_, _>>()?)
            }
            ActionDistribution::Dict(parts) => {
                Self::Joined(parts.into_values().map(Self::of).collect::<Result<_, _>>()?)
            }
        })
    }

    /// Components of an action.
    pub(super) fn action_len(&self) -> usize {
        match self {
            Self::Categorical(of) => of.action_len(),
            Self::Bernoulli(len) | Self::Gaussian(len) => *len,
            Self::Joined(parts) => parts.iter().map(Self::action_len).sum(),
        }
    }

    /// Numbers that the network must give for a row.
    pub(super) fn input_len(&self) -> usize {
        match self {
            Self::Categorical(of) => of.input_len(),
            Self::Bernoulli(len) => *len,
            Self::Gaussian(len) => len.saturating_mul(2),
            Self::Joined(parts) => parts.iter().map(Self::input_len).sum(),
        }
    }

    /// The distributions of rows with these parameters, `[rows, input_len]`.
    pub(super) fn dist(&self, inputs: &Tensor) -> candle_core::Result<Dist> {
        match self {
            Self::Categorical(of) => {
                let mut start = 0;
                let parts = of.nvec().iter().map(|&n| {
                    let logits = inputs.narrow(1, start, n as usize)?;
                    start += n as usize;
                    log_softmax(&logits)
                });
                Ok(Dist::Categorical(parts.collect::<candle_core::Result<_>>()?))
            }
            Self::Bernoulli(len) => {
                // The logit of a 1 beside that of a 0, which is 0.
                let parts = (0..*len).map(|i| {
                    let logit = inputs.narrow(1, i, 1)?;
                    log_softmax(&Tensor::cat(&[&logit.zeros_like()?, &logit], 1)?)
                });
                Ok(Dist::Categorical(parts.collect::<candle_core::Result<_>>()?))
            }
            Self::Gaussian(len) => {
                // Rows are selected of contiguous tensors only.
                let part = |start| inputs.narrow(1, start, *len)?.contiguous();
                Ok(Dist::Gaussian { mean: part(0)?, log_std: part(*len)? })
            }
            Self::Joined(parts) => {
                let (mut start, mut first) = (0, 0);
                let parts = parts.iter().map(|part| {
                    let dist = part.dist(&inputs.narrow(1, start, part.input_len())?)?;
                    let components = first..first + part.action_len();
                    (start, first) = (start + part.input_len(), components.end);
                    Ok((components, dist))
                });
                Ok(Dist::Joined(parts.collect::<candle_core::Result<_>>()?))
            }
        }
    }
}

/// One distribution per row; what is measured of them is `[rows]`, sums over components.
pub(super) enum Dist {
    /// Log-probabilities of all values, `[rows, values]`, by component.
    Categorical(Vec<Tensor>),
    /// Both `[rows, components]`.
    Gaussian { mean: Tensor, log_std: Tensor },
    /// Independent parts, each of these components of the actions.
    Joined(Vec<(Range<usize>, Self)>),
}

impl Dist {
    /// Log-probabilities (densities) of actions `[rows, components]`, u32 or f32; f32 if they have parts.
    pub(super) fn logp(&self, actions: &Tensor) -> candle_core::Result<Tensor> {
        match self {
            Self::Categorical(parts) => sum(parts.iter().enumerate().map(|(i, logp_all)| {
                let chosen = actions.narrow(1, i, 1)?.contiguous()?;
                logp_all.gather(&chosen, D::Minus1)?.squeeze(D::Minus1)
            })),
            Self::Gaussian { mean, log_std } => {
                let z = ((actions - mean)? * exp(&log_std.neg()?)?)?;
                sum_last(&z.sqr()?.affine(-0.5, -HALF_LOG_TAU)?.sub(log_std)?)
            }
            Self::Joined(parts) => sum(parts.iter().map(|(components, part)| {
                let actions = actions.narrow(1, components.start, components.len())?.contiguous()?;
                part.logp(&if matches!(part, Self::Categorical(_)) { actions.to_dtype(DType::U32)? } else { actions })
            })),
        }
    }

    /// Entropies in nats.
    pub(super) fn entropy(&self) -> candle_core::Result<Tensor> {
        match self {
            Self::Categorical(parts) => {
                sum(parts.iter().map(|logp_all| sum_last(&(exp(logp_all)? * logp_all)?)?.neg()))
            }
            Self::Gaussian { log_std, .. } => sum_last(&log_std.affine(1.0, 0.5 + HALF_LOG_TAU)?),
            Self::Joined(parts) => sum(parts.iter().map(|(_, part)| part.entropy())),
        }
    }

    /// Mean log standard deviations over components; none for what has no such.
    pub(super) fn mean_log_std(&self) -> candle_core::Result<Option<Tensor>> {
        let mut log_stds = Vec::new();
        self.add_log_stds(&mut log_stds);
        if log_stds.is_empty() {
            return Ok(None);
        }
        let log_std = Tensor::cat(&log_stds, 1)?;
        sum_last(&log_std)?.affine(1.0 / log_std.dim(1)?.max(1) as f64, 0.0).map(Some)
    }

    fn add_log_stds(&self, log_stds: &mut Vec<Tensor>) {
        match self {
            Self::Categorical(_) => {}
            Self::Gaussian { log_std, .. } => log_stds.push(log_std.clone()),
            Self::Joined(parts) => parts.iter().for_each(|(_, part)| part.add_log_stds(log_stds)),
        }
    }

    /// Divergence of another distribution of the same kind from this one, in nats.
    pub(super) fn kl(&self, other: &Self) -> candle_core::Result<Tensor> {
        match (self, other) {
            (Self::Categorical(parts), Self::Categorical(others)) => sum(parts
                .iter()
                .zip(others)
                .map(|(logp_all, other)| sum_last(&(exp(logp_all)? * (logp_all - other)?)?))),
            (Self::Gaussian { mean, log_std }, Self::Gaussian { mean: other_mean, log_std: other_log_std }) => {
                let log_ratio = (log_std - other_log_std)?;
                let z = ((mean - other_mean)? * exp(&other_log_std.neg()?)?)?;
                let squares = (exp(&log_ratio.affine(2.0, 0.0)?)? + z.sqr()?)?;
                sum_last(&squares.affine(0.5, -0.5)?.sub(&log_ratio)?)
            }
            (Self::Joined(parts), Self::Joined(others)) => {
                sum(parts.iter().zip(others).map(|((_, part), (_, other))| part.kl(other)))
            }
            _ => candle_core::bail!("distributions of different kinds do not diverge"),
        }
    }

    /// The same without gradients.
    pub(super) fn detach(&self) -> candle_core::Result<Self> {
        self.map(|tensor| Ok(tensor.detach()))
    }

    pub(super) fn map(&self, f: impl Fn(&Tensor) -> candle_core::Result<Tensor>) -> candle_core::Result<Self> {
        self.map_by(&f)
    }

    fn map_by(&self, f: &dyn Fn(&Tensor) -> candle_core::Result<Tensor>) -> candle_core::Result<Self> {
        Ok(match self {
            Self::Categorical(parts) => Self::Categorical(parts.iter().map(f).collect::<candle_core::Result<_>>()?),
            Self::Gaussian { mean, log_std } => Self::Gaussian { mean: f(mean)?, log_std: f(log_std)? },
            Self::Joined(parts) => {
                let parts = parts.iter().map(|(components, part)| Ok((components.clone(), part.map_by(f)?)));
                Self::Joined(parts.collect::<candle_core::Result<_>>()?)
            }
        })
    }
}

fn sum(mut parts: impl Iterator<Item = candle_core::Result<Tensor>>) -> candle_core::Result<Tensor> {
    match parts.next() {
        Some(first) => parts.try_fold(first?, |sum, part| sum + part?),
        None => Tensor::zeros(0, DType::F32, &candle_core::Device::Cpu),
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use rollmesh_core::{
        column::{DType as CoreType, RowShape},
        distribution::{Bernoulli, DiagGaussian, Distribution},
        space::Point,
    };

    use super::*;

    const INPUTS: [f32; 6] = [0.3, -1.2, 0.8, 0.1, -0.4, 0.2];
    const OTHERS: [f32; 6] = [-0.5, 0.7, 0.4, 0.3, 0.1, -0.9];

    fn row<T: candle_core::WithDType>(values: &[T]) -> Tensor {
        Tensor::from_slice(values, (1, values.len()), &Device::Cpu).unwrap()
    }

    #[track_caller]
    fn close(got: &Tensor, want: f32) {
        let got = got.to_vec1::<f32>().unwrap();
        assert!(got.len() == 1 && (got[0] - want).abs() < 1e-5, "{got:?}, not {want}");
    }

    /// What draws and what learns are two programs for one distribution.
    #[test]
    fn everything_is_as_the_core_has_it() {
        let core = MultiCategorical::new([2, 4]).unwrap();
        let head = ActionHead::Categorical(core.clone());
        let (dist, other) = (head.dist(&row(&INPUTS)).unwrap(), head.dist(&row(&OTHERS)).unwrap());
        close(&dist.logp(&row(&[1u32, 2])).unwrap(), core.logp(&INPUTS, &[1, 2]).unwrap());
        close(&dist.entropy().unwrap(), core.entropy(&INPUTS).unwrap());
        close(&dist.kl(&other).unwrap(), core.kl(&INPUTS, &OTHERS).unwrap());

        let (core, head) = (Bernoulli::new(6).unwrap(), ActionHead::Bernoulli(6));
        let (dist, other) = (head.dist(&row(&INPUTS)).unwrap(), head.dist(&row(&OTHERS)).unwrap());
        let action = [1, 0, 0, 1, 1, 0];
        close(&dist.logp(&row(&action.map(u32::from))).unwrap(), core.logp(&INPUTS, &action).unwrap());
        close(&dist.entropy().unwrap(), core.entropy(&INPUTS).unwrap());
        close(&dist.kl(&other).unwrap(), core.kl(&INPUTS, &OTHERS).unwrap());

        let (core, head) = (DiagGaussian::new(3).unwrap(), ActionHead::Gaussian(3));
        let (dist, other) = (head.dist(&row(&INPUTS)).unwrap(), head.dist(&row(&OTHERS)).unwrap());
        let action = [0.5, -2.0, 0.9];
        close(&dist.logp(&row(&action)).unwrap(), core.logp(&INPUTS, &action).unwrap());
        close(&dist.entropy().unwrap(), core.entropy(&INPUTS).unwrap());
        close(&dist.kl(&other).unwrap(), core.kl(&INPUTS, &OTHERS).unwrap());
    }

    #[test]
    fn parts_are_as_the_core_has_them() {
        let parts = [Space::vector(&[-1.0], &[1.0]), Space::Discrete { n: 3 }, Space::MultiBinary { n: 1 }];
        let space = Space::Tuple(parts.to_vec());
        let (core, head) = (ActionDistribution::for_space(&space).unwrap(), ActionHead::for_space(&space).unwrap());
        assert_eq!((head.input_len(), head.action_len()), (6, 3));
        let (dist, other) = (head.dist(&row(&INPUTS)).unwrap(), head.dist(&row(&OTHERS)).unwrap());
        let action = Point::Tuple(vec![vec![0.7f32].into(), Point::from(2), Point::U8(vec![1])]);
        close(&dist.logp(&row(&[0.7f32, 2.0, 1.0])).unwrap(), core.logp(&INPUTS, &action).unwrap());
        close(&dist.entropy().unwrap(), core.entropy(&INPUTS).unwrap());
        close(&dist.kl(&other).unwrap(), core.kl(&INPUTS, &OTHERS).unwrap());
        close(&dist.mean_log_std().unwrap().unwrap(), INPUTS[1]);
    }

    #[test]
    fn spaces_have_heads() {
        let head = |space: &Space| ActionHead::for_space(space).unwrap();
        assert_eq!(head(&Space::Discrete { n: 3 }), ActionHead::Categorical(MultiCategorical::new([3]).unwrap()));
        let of = MultiCategorical::new([2, 4]).unwrap();
        assert_eq!(head(&Space::MultiDiscrete { nvec: vec![2, 4] }), ActionHead::Categorical(of));
        assert_eq!(head(&Space::MultiBinary { n: 2 }), ActionHead::Bernoulli(2));
        assert_eq!(head(&Space::vector(&[-1.0, 0.0], &[1.0, 9.0])), ActionHead::Gaussian(2));
        let parts = vec![Space::Discrete { n: 3 }, Space::Tuple(vec![Space::MultiBinary { n: 2 }])];
        let joined = ActionHead::Joined(vec![ActionHead::Bernoulli(2)]);
        assert_eq!(head(&Space::Tuple(parts)), ActionHead::Joined(vec![head(&Space::Discrete { n: 3 }), joined]));
        let endless = Space::uniform(CoreType::I64, RowShape::vector(1), 0.0, f64::INFINITY);
        let error = ActionHead::for_space(&endless).unwrap_err().to_string();
        assert!(error.starts_with("the policy takes actions to choose from, not there is no distribution"), "{error}");
    }
}
