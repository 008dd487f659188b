//! Functions between the layers.

use crate::math;

/// The function applied to the outputs of a layer, under RLlib's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activation {
    /// Hyperbolic tangent.
    #[default]
    Tanh,
    /// `max(0, x)`.
    Relu,
    /// `x sigmoid(x)`, also called swish (Elfwing, Uchibe and Doya: "Sigmoid-weighted linear units", 2017).
    Silu,
    /// `x` times the probability that a normal number is below it (Hendrycks and Gimpel: "Gaussian error linear units",
    /// 2016), as PyTorch has it without approximation.
    Gelu,
    /// `x` above 0, `e^x - 1` below (Clevert, Unterthiner and Hochreiter: "Exponential linear units", 2015).
    Elu,
    /// `x`.
    Linear,
}

impl Activation {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Tanh, Self::Relu, Self::Silu, Self::Gelu, Self::Elu, Self::Linear];
    /// Their names, in the same order.
    pub const NAMES: [&'static str; 6] = ["tanh", "relu", "silu", "gelu", "elu", "linear"];

    /// Returns its name in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Replaces every number by the function's value there. NaN stays NaN.
    #[inline(always)]
    pub fn apply(self, values: &mut [f32]) {
        match self {
            Self::Tanh => each(values, math::tanh),
            Self::Relu => each(values, |x| if x < 0.0 { 0.0 } else { x }),
            Self::Silu => each(values, |x| x * math::sigmoid(x)),
            Self::Gelu => each(values, |x| x * math::normal_cdf(x)),
            Self::Elu => each(values, |x| if x < 0.0 { math::exp(x) - 1.0 } else { x }),
            Self::Linear => {}
        }
    }

    /// Does the same as [`apply`](Self::apply) for whole panels.
    #[inline(always)]
    pub(super) fn apply_panels<const LANES: usize>(self, panels: &mut [[f32; LANES]]) {
        // The match around the loop, not within it.
        macro_rules! each {
            ($($name:ident),*) => {
                match self {
                    $(Self::$name => panels.iter_mut().for_each(|panel| Self::$name.apply(panel)),)*
                }
            };
        }
        each!(Tanh, Relu, Silu, Gelu, Elu, Linear);
    }

    /// Multiplies every gradient by the function's slope at `x`, where its value is `y`.
    #[inline(always)]
    pub fn apply_slope(self, x: &[f32], y: &[f32], grads: &mut [f32]) {
        match self {
            Self::Tanh => slope(y, grads, |y| 1.0 - y * y),
            Self::Relu => slope(y, grads, |y| if y > 0.0 { 1.0 } else { 0.0 }),
            Self::Silu => slope(x, grads, |x| {
                let share = math::sigmoid(x);
                share * (1.0 + x * (1.0 - share))
            }),
            Self::Gelu => slope(x, grads, |x| math::normal_cdf(x) + x * math::normal_density(x)),
            Self::Elu => slope(y, grads, |y| if y > 0.0 { 1.0 } else { y + 1.0 }),
            Self::Linear => {}
        }
    }
}

#[inline(always)]
fn each(values: &mut [f32], f: impl Fn(f32) -> f32) {
    values.iter_mut().for_each(|x| *x = f(*x));
}

#[inline(always)]
fn slope(at: &[f32], grads: &mut [f32], f: impl Fn(f32) -> f32) {
    grads.iter_mut().zip(at).for_each(|(grad, at)| *grad *= f(*at));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_equal_differences_of_values() {
        for activation in Activation::ALL {
            for i in -60..60 {
                let x = i as f32 / 10.0 + 0.03;
                let step = 1e-2f32;
                let mut values = [x - step, x, x + step];
                activation.apply(&mut values);
                let mut grad = [1.0];
                activation.apply_slope(&[x], &[values[1]], &mut grad);
                let difference = (values[2] - values[0]) / (2.0 * step);
                assert!((difference - grad[0]).abs() < 2e-4, "{activation:?}({x}): {} {difference}", grad[0]);
            }
        }
    }

    #[test]
    fn values_are_those_of_the_definitions() {
        let values = |activation: Activation| {
            let mut values = [-2.0, -0.5, 0.0, 0.5, 2.0];
            activation.apply(&mut values);
            values
        };
        // PyTorch's, of functions with these names.
        let expected = [
            [-0.964_027_58, -0.462_117_16, 0.0, 0.462_117_16, 0.964_027_58],
            [0.0, 0.0, 0.0, 0.5, 2.0],
            [-0.238_405_84, -0.188_770_33, 0.0, 0.311_229_67, 1.761_594_2],
            [-0.045_500_26, -0.154_268_77, 0.0, 0.345_731_23, 1.954_499_7],
            [-0.864_664_7, -0.393_469_34, 0.0, 0.5, 2.0],
            [-2.0, -0.5, 0.0, 0.5, 2.0],
        ];
        for (activation, expected) in Activation::ALL.into_iter().zip(expected) {
            for (found, expected) in values(activation).into_iter().zip(expected) {
                assert!((found - expected as f32).abs() < 1e-6, "{activation:?}: {found} {expected}");
            }
            let mut nan = [f32::NAN];
            activation.apply(&mut nan);
            assert!(nan[0].is_nan(), "{activation:?}");
        }
    }
}
