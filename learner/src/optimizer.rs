//! AdamW over all tensors of a model in one step.

use candle_core::{Result, Tensor, Var, backprop::GradStore};

use super::{algorithm::CommonConfig, ops::sum_all};

const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;

/// AdamW (Loshchilov and Hutter: "Decoupled weight decay regularization", 2019) on one flat copy of the variables: a
/// dozen operations on one long vector per step instead of a dozen on each of many short ones, and the global norm
/// costs little more.
pub(super) struct Optimizer {
    vars: Vec<Var>,
    flat: Tensor,
    moments: [Tensor; 2],
    steps: u64,
    lr: f64,
    epsilon: f64,
    weight_decay: f64,
    grad_clip: Option<f64>,
}

/// The state of an optimiser besides the variables.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct OptimizerState {
    /// The number of steps taken.
    pub(super) steps: u64,
    /// The first and second moments of all variables, in their order.
    pub(super) moments: [Vec<f32>; 2],
}

impl Optimizer {
    pub(super) fn new(vars: Vec<Var>, config: &CommonConfig) -> Result<Self> {
        let flat = concatenated(vars.iter().map(Var::as_tensor))?;
        let moments = [flat.zeros_like()?, flat.zeros_like()?];
        let CommonConfig { lr, adam_epsilon: epsilon, weight_decay, grad_clip, .. } = *config;
        Ok(Self { vars, flat, moments, steps: 0, lr, epsilon, weight_decay, grad_clip })
    }

    pub(super) fn set_learning_rate(&mut self, lr: f64) {
        self.lr = lr;
    }

    /// Returns the number of trained parameters.
    pub(super) fn len(&self) -> usize {
        self.flat.elem_count()
    }

    /// Concatenates the gradients of the variables.
    pub(super) fn gradient(&self, grads: &GradStore) -> Result<Tensor> {
        let parts =
            self.vars.iter().map(|var| grads.get(var).map_or_else(|| var.zeros_like(), |grad| Ok(grad.clone())));
        concatenated(parts.collect::<Result<Vec<_>>>()?.iter())
    }

    /// Returns a gradient clipped to the maximum norm, and its norm before that; `None` if it is not finite.
    pub(super) fn clipped(&self, mut flat: Tensor) -> Result<Option<(Tensor, f64)>> {
        let Some(norm) = Self::norm(&flat)? else { return Ok(None) };
        if let Some(limit) = self.grad_clip.filter(|&limit| norm > limit) {
            flat = flat.affine(limit / norm, 0.0)?;
        }
        Ok(Some((flat, norm)))
    }

    /// Returns the global norm of a gradient, if it is finite.
    pub(super) fn norm(flat: &Tensor) -> Result<Option<f64>> {
        let norm = f64::from(sum_all(&flat.sqr()?)?.sqrt()?.to_scalar::<f32>()?);
        Ok(Some(norm).filter(|norm| norm.is_finite()))
    }

    /// Takes one step along a gradient.
    pub(super) fn step(&mut self, gradient: &Tensor) -> Result<()> {
        self.steps = self.steps.saturating_add(1);
        let unbiased = [BETA1, BETA2].map(|beta| 1.0 / (1.0 - power(beta, self.steps)));
        let [m, v] = &self.moments;
        let m = ((m * BETA1)? + (gradient * (1.0 - BETA1))?)?;
        let v = ((v * BETA2)? + (gradient.sqr()? * (1.0 - BETA2))?)?;
        let direction = ((&m * unbiased[0])? / ((&v * unbiased[1])?.sqrt()? + self.epsilon)?)?;
        let decayed = (&self.flat * (1.0 - self.lr * self.weight_decay))?;
        self.flat = (decayed - (direction * self.lr)?)?;
        self.moments = [m, v];
        // Back into the model's variables.
        let mut start = 0;
        for var in &self.vars {
            let len = var.elem_count();
            var.set(&self.flat.narrow(0, start, len)?.reshape(var.shape())?)?;
            start += len;
        }
        Ok(())
    }

    /// Returns the moments and the number of steps, for [`set_moments`](Self::set_moments).
    pub(super) fn moments(&self) -> ([Tensor; 2], u64) {
        (self.moments.clone(), self.steps)
    }

    /// Restores earlier moments and steps.
    pub(super) fn set_moments(&mut self, (moments, steps): ([Tensor; 2], u64)) {
        (self.moments, self.steps) = (moments, steps);
    }

    /// Reads the variables again, after they were set from outside.
    pub(super) fn reload(&mut self) -> Result<()> {
        self.flat = concatenated(self.vars.iter().map(Var::as_tensor))?;
        Ok(())
    }

    pub(super) fn state(&self) -> Result<OptimizerState> {
        let [m, v] = &self.moments;
        Ok(OptimizerState { steps: self.steps, moments: [m.to_vec1()?, v.to_vec1()?] })
    }

    /// Resumes from a state with as many moments as there are variables.
    pub(super) fn set_state(&mut self, state: &OptimizerState) -> Result<()> {
        let moment = |values: &Vec<f32>| Tensor::from_slice(values, self.len(), self.flat.device());
        let [m, v] = &state.moments;
        self.moments = [moment(m)?, moment(v)?];
        self.steps = state.steps;
        Ok(())
    }
}

/// Returns `base` to the power of `exponent`. `f64::powi` has no specified rounding.
fn power(base: f64, mut exponent: u64) -> f64 {
    let (mut power, mut square) = (1.0, base);
    while exponent > 0 && square > 0.0 {
        if exponent % 2 == 1 {
            power *= square;
        }
        square *= square;
        exponent /= 2;
    }
    if exponent > 0 { 0.0 } else { power }
}

fn concatenated<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<Tensor> {
    // Detached, since a step must not keep the graphs of all earlier steps.
    Ok(Tensor::cat(&tensors.map(Tensor::flatten_all).collect::<Result<Vec<_>>>()?, 0)?.detach())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::{
        super::algorithm::{PolicyGradientConfig, PpoConfig},
        *,
    };

    fn var(values: &[f32]) -> Var {
        Var::from_slice(values, values.len(), &Device::Cpu).unwrap()
    }

    fn values(var: &Var) -> Vec<f32> {
        var.to_vec1().unwrap()
    }

    /// Returns the gradients (3, 0) and (0, 4), with the global norm 5.
    fn grads(a: &Var, b: &Var) -> GradStore {
        let a = (a.as_tensor() * &Tensor::new(&[3f32, 0.0], &Device::Cpu).unwrap()).unwrap();
        let b = (b.as_tensor() * &Tensor::new(&[0f32, 4.0], &Device::Cpu).unwrap()).unwrap();
        (a + b).unwrap().sum_all().unwrap().backward().unwrap()
    }

    /// Takes a first step with a huge epsilon: it is lr * gradient / epsilon, so it shows the clipped gradient.
    fn first_step(grad_clip: Option<f64>) -> (Vec<f32>, Vec<f32>, f64) {
        let (a, b) = (var(&[0.0, 1.0]), var(&[0.0, 1.0]));
        let config = CommonConfig { lr: 1e6, adam_epsilon: 1e6, grad_clip, ..PpoConfig::default().common };
        let mut optimizer = Optimizer::new(vec![a.clone(), b.clone()], &config).unwrap();
        let gradient = optimizer.gradient(&grads(&a, &b)).unwrap();
        let (gradient, norm) = optimizer.clipped(gradient).unwrap().unwrap();
        optimizer.step(&gradient).unwrap();
        (values(&a), values(&b), norm)
    }

    #[track_caller]
    fn close(got: &[f32], want: [f32; 2]) {
        assert!(got.iter().zip(want).all(|(got, want)| (got - want).abs() < 1e-4), "{got:?}, not {want:?}");
    }

    #[test]
    fn gradients_are_clipped_by_their_global_norm() {
        let (a, b, norm) = first_step(Some(0.5));
        close(&a, [-0.3, 1.0]);
        close(&b, [0.0, 0.6]);
        assert_eq!(norm, 5.0);
    }

    #[test]
    fn gradients_within_the_clip_are_unchanged() {
        for grad_clip in [None, Some(6.0)] {
            let (a, b, norm) = first_step(grad_clip);
            close(&a, [-3.0, 1.0]);
            close(&b, [0.0, -3.0]);
            assert_eq!(norm, 5.0);
        }
    }

    #[test]
    fn a_gradient_that_is_not_finite_is_none() {
        let (a, b) = (var(&[0.5, 1.0]), var(&[-0.5, 1.0]));
        let optimizer = Optimizer::new(vec![a.clone(), b], &PpoConfig::default().common).unwrap();
        let bad = a.affine(f64::INFINITY, 0.0).unwrap().sum_all().unwrap().backward().unwrap();
        assert!(optimizer.clipped(optimizer.gradient(&bad).unwrap()).unwrap().is_none());
    }

    /// The reference is computed here in 64-bit floats.
    #[test]
    fn three_steps_by_the_definition() {
        let config = CommonConfig { weight_decay: 0.1, lr: 0.01, ..PolicyGradientConfig::pg().common };
        let a = var(&[0.5, -1.0]);
        let mut optimizer = Optimizer::new(vec![a.clone()], &config).unwrap();
        let (mut theta, mut m, mut v) = ([0.5, -1.0], [0.0; 2], [0.0f64; 2]);
        for step in 1..=3 {
            let gradient = [0.3 * f64::from(step), -0.7];
            let tensor = Tensor::new(&gradient.map(|g| g as f32), &Device::Cpu).unwrap();
            optimizer.step(&tensor).unwrap();
            for i in 0..2 {
                m[i] = BETA1 * m[i] + (1.0 - BETA1) * gradient[i];
                v[i] = BETA2 * v[i] + (1.0 - BETA2) * gradient[i].powi(2);
                let direction =
                    m[i] / (1.0 - BETA1.powi(step)) / ((v[i] / (1.0 - BETA2.powi(step))).sqrt() + config.adam_epsilon);
                theta[i] -= config.lr * (config.weight_decay * theta[i] + direction);
            }
        }
        close(&values(&a), theta.map(|x| x as f32));
    }

    #[test]
    fn a_restored_state_resumes_bit_identically() {
        let config = PolicyGradientConfig::a2c().common;
        let gradient = |i: f32| Tensor::new(&[0.3 * i, -0.7], &Device::Cpu).unwrap();
        let a = var(&[0.5, -1.0]);
        let mut optimizer = Optimizer::new(vec![a.clone()], &config).unwrap();
        optimizer.step(&gradient(1.0)).unwrap();
        let (state, theta) = (optimizer.state().unwrap(), values(&a));
        optimizer.step(&gradient(2.0)).unwrap();

        let b = var(&theta);
        let mut other = Optimizer::new(vec![b.clone()], &config).unwrap();
        other.set_state(&state).unwrap();
        other.step(&gradient(2.0)).unwrap();
        assert_eq!(values(&a), values(&b));
        assert_eq!(optimizer.state().unwrap(), other.state().unwrap());
    }
}
