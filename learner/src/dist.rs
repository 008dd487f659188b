//! Distributions of actions on the learner's device: those that [`rollmesh_core::distribution`] draws from, with
//! gradients.

use std::iter::repeat_n;

use candle_core::{D, DType, Result, Tensor};
use rollmesh_core::{
    distribution::{ActionDistribution, Distribution as _},
    policy::PolicyError,
    space::Space,
};

use super::ops::{exp, log_softmax, sum_last};

/// log(2 pi) / 2.
const HALF_LOG_TAU: f64 = 0.918_938_533_204_672_7;

/// The distributions whose parameters the policy's network outputs, see [`ActionDistribution`]: the parts of an action,
/// one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ActionHead(Vec<HeadPart>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeadPart {
    /// One of `n` consecutive integers, of which this is the first.
    Choice { first: i64, n: u32 },
    /// 0 or 1.
    Bit,
    /// This number of floats.
    Floats(usize),
}

impl ActionHead {
    /// Returns the head for a space.
    ///
    /// # Errors
    /// [`PolicyError::Unsupported`] for spaces without distribution.
    pub(super) fn for_space(space: &Space) -> std::result::Result<Self, PolicyError> {
        let of = ActionDistribution::for_space(space).map_err(|_| PolicyError::Unsupported {
            wanted: "actions of a space with a distribution".into(),
            found: space.to_string(),
        })?;
        let mut parts = Vec::new();
        add_parts(&of, &mut parts);
        Ok(Self(parts))
    }

    /// Returns the number of components of an action.
    pub(super) fn action_len(&self) -> usize {
        self.components().count()
    }

    /// Returns the first value and the number of values of each component of an action, or `None` for a float.
    pub(super) fn components(&self) -> impl Iterator<Item = Option<(i64, u32)>> + Clone {
        self.0.iter().flat_map(|part| match *part {
            HeadPart::Choice { first, n } => repeat_n(Some((first, n)), 1),
            HeadPart::Bit => repeat_n(Some((0, 2)), 1),
            HeadPart::Floats(len) => repeat_n(None, len),
        })
    }

    /// Returns the number of outputs that the network must have for a row.
    pub(super) fn input_len(&self) -> usize {
        let len = |part: &HeadPart| match *part {
            HeadPart::Choice { n, .. } => n as usize,
            HeadPart::Bit => 1,
            HeadPart::Floats(len) => len.saturating_mul(2),
        };
        self.0.iter().map(len).sum()
    }

    /// Returns the distributions of rows with these parameters, `[rows, input_len]`.
    pub(super) fn dist(&self, inputs: &Tensor) -> Result<Dist> {
        let mut end = 0;
        let mut next = |len| {
            end += len;
            inputs.narrow(1, end - len, len)
        };
        let part = |part: &HeadPart| match *part {
            HeadPart::Choice { n, .. } => log_softmax(&next(n as usize)?).map(DistPart::Choice),
            HeadPart::Bit => {
                // The logit of a 1 relative to that of a 0, which is 0.
                let logit = next(1)?;
                log_softmax(&Tensor::cat(&[&logit.zeros_like()?, &logit], 1)?).map(DistPart::Choice)
            }
            // Rows are selected of contiguous tensors only.
            HeadPart::Floats(len) => {
                Ok(DistPart::Floats { mean: next(len)?.contiguous()?, log_std: next(len)?.contiguous()? })
            }
        };
        self.0.iter().map(part).collect::<Result<_>>().map(Dist)
    }
}

fn add_parts(of: &ActionDistribution, parts: &mut Vec<HeadPart>) {
    match of {
        ActionDistribution::Categorical(of) => parts.push(HeadPart::Choice { first: 0, n: of.input_len() as u32 }),
        ActionDistribution::MultiCategorical { distribution: of, .. } => {
            let choices = of.low().iter().zip(of.nvec());
            parts.extend(choices.map(|(&first, &n)| HeadPart::Choice { first, n }));
        }
        ActionDistribution::DiagGaussian { distribution: of, .. } => parts.push(HeadPart::Floats(of.action_len())),
        ActionDistribution::Bernoulli(of) => parts.extend(repeat_n(HeadPart::Bit, of.action_len())),
        ActionDistribution::Tuple(of) => of.iter().for_each(|of| add_parts(of, parts)),
        ActionDistribution::Dict(of) => of.values().for_each(|of| add_parts(of, parts)),
    }
}

/// One distribution per row, of independent parts. Its measures are `[rows]`, sums over components.
pub(super) struct Dist(Vec<DistPart>);

enum DistPart {
    /// Log-probabilities of all values of a component, `[rows, values]`.
    Choice(Tensor),
    /// Both `[rows, components]`.
    Floats { mean: Tensor, log_std: Tensor },
}

impl Dist {
    /// Returns the log-probabilities (densities) of actions `[rows, components]`.
    pub(super) fn logp(&self, actions: &Tensor) -> Result<Tensor> {
        let mut end = 0;
        let mut next = |len| {
            end += len;
            actions.narrow(1, end - len, len)
        };
        sum(self.0.iter().map(|part| match part {
            DistPart::Choice(logp_all) => {
                let chosen = next(1)?.to_dtype(DType::U32)?.contiguous()?;
                logp_all.gather(&chosen, D::Minus1)?.squeeze(D::Minus1)
            }
            DistPart::Floats { mean, log_std } => {
                let z = ((next(mean.dim(1)?)? - mean)? * exp(&log_std.neg()?)?)?;
                sum_last(&z.sqr()?.affine(-0.5, -HALF_LOG_TAU)?.sub(log_std)?)
            }
        }))
    }

    /// Returns the entropies in nats.
    pub(super) fn entropy(&self) -> Result<Tensor> {
        sum(self.0.iter().map(|part| match part {
            DistPart::Choice(logp_all) => sum_last(&(exp(logp_all)? * logp_all)?)?.neg(),
            DistPart::Floats { log_std, .. } => sum_last(&log_std.affine(1.0, 0.5 + HALF_LOG_TAU)?),
        }))
    }

    /// Returns the mean log standard deviations over components; `None` for distributions without them.
    pub(super) fn mean_log_std(&self) -> Result<Option<Tensor>> {
        let log_stds = self.0.iter().filter_map(|part| match part {
            DistPart::Choice(_) => None,
            DistPart::Floats { log_std, .. } => Some(log_std),
        });
        let log_stds: Vec<&Tensor> = log_stds.collect();
        if log_stds.is_empty() {
            return Ok(None);
        }
        let log_std = Tensor::cat(&log_stds, 1)?;
        sum_last(&log_std)?.affine(1.0 / log_std.dim(1)?.max(1) as f64, 0.0).map(Some)
    }

    /// Returns the divergence of another distribution of the same kind from this one, in nats.
    pub(super) fn kl(&self, other: &Self) -> Result<Tensor> {
        sum(self.0.iter().zip(&other.0).map(|parts| match parts {
            (DistPart::Choice(logp_all), DistPart::Choice(other)) => sum_last(&(exp(logp_all)? * (logp_all - other)?)?),
            (DistPart::Floats { mean, log_std }, DistPart::Floats { mean: other_mean, log_std: other_log_std }) => {
                let log_ratio = (log_std - other_log_std)?;
                let z = ((mean - other_mean)? * exp(&other_log_std.neg()?)?)?;
                let squares = (exp(&log_ratio.affine(2.0, 0.0)?)? + z.sqr()?)?;
                sum_last(&squares.affine(0.5, -0.5)?.sub(&log_ratio)?)
            }
            _ => candle_core::bail!("distributions of different kinds do not diverge"),
        }))
    }

    /// Returns the same distributions without gradients.
    pub(super) fn detach(&self) -> Result<Self> {
        self.map(|tensor| Ok(tensor.detach()))
    }

    pub(super) fn map(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Self> {
        let part = |part: &DistPart| {
            Ok(match part {
                DistPart::Choice(logp_all) => DistPart::Choice(f(logp_all)?),
                DistPart::Floats { mean, log_std } => DistPart::Floats { mean: f(mean)?, log_std: f(log_std)? },
            })
        };
        self.0.iter().map(part).collect::<Result<_>>().map(Self)
    }
}

fn sum(mut parts: impl Iterator<Item = Result<Tensor>>) -> Result<Tensor> {
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
        distribution::{Bernoulli, DiagGaussian, Distribution, MultiCategorical},
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

    /// The core draws from a distribution that the learner implements a second time.
    #[test]
    fn everything_is_as_the_core_has_it() {
        let core = MultiCategorical::new([2, 4]).unwrap();
        let head = ActionHead::for_space(&Space::MultiDiscrete { nvec: vec![2, 4] }).unwrap();
        let (dist, other) = (head.dist(&row(&INPUTS)).unwrap(), head.dist(&row(&OTHERS)).unwrap());
        close(&dist.logp(&row(&[1u32, 2])).unwrap(), core.logp(&INPUTS, &[1, 2]).unwrap());
        close(&dist.entropy().unwrap(), core.entropy(&INPUTS).unwrap());
        close(&dist.kl(&other).unwrap(), core.kl(&INPUTS, &OTHERS).unwrap());

        let (core, head) = (Bernoulli::new(6).unwrap(), ActionHead(vec![HeadPart::Bit; 6]));
        let (dist, other) = (head.dist(&row(&INPUTS)).unwrap(), head.dist(&row(&OTHERS)).unwrap());
        let action = [1, 0, 0, 1, 1, 0];
        close(&dist.logp(&row(&action.map(u32::from))).unwrap(), core.logp(&INPUTS, &action).unwrap());
        close(&dist.entropy().unwrap(), core.entropy(&INPUTS).unwrap());
        close(&dist.kl(&other).unwrap(), core.kl(&INPUTS, &OTHERS).unwrap());

        let (core, head) = (DiagGaussian::new(3).unwrap(), ActionHead(vec![HeadPart::Floats(3)]));
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
        let choice = |n| HeadPart::Choice { first: 0, n };
        assert_eq!(head(&Space::Discrete { n: 3 }), ActionHead(vec![choice(3)]));
        assert_eq!(head(&Space::MultiDiscrete { nvec: vec![2, 4] }), ActionHead(vec![choice(2), choice(4)]));
        assert_eq!(head(&Space::MultiBinary { n: 2 }), ActionHead(vec![HeadPart::Bit; 2]));
        assert_eq!(head(&Space::vector(&[-1.0, 0.0], &[1.0, 9.0])), ActionHead(vec![HeadPart::Floats(2)]));
        let parts = vec![Space::Discrete { n: 3 }, Space::Tuple(vec![Space::MultiBinary { n: 2 }])];
        assert_eq!(head(&Space::Tuple(parts)), ActionHead(vec![choice(3), HeadPart::Bit, HeadPart::Bit]));
        let endless = Space::uniform(CoreType::I64, RowShape::vector(1), 0.0, f64::INFINITY);
        let error = ActionHead::for_space(&endless).unwrap_err().to_string();
        assert_eq!(error, "the policy takes actions of a space with a distribution, not Box(0, inf, (1,), int64)");
    }
}
