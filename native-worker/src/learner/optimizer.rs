//! AdamW over all tensors of a model at once.

use candle_core::{Result, Tensor, Var, backprop::GradStore};
use candle_nn::{AdamW, Optimizer as _, ParamsAdamW};

use super::config::PpoConfig;

/// candle's AdamW on one flat copy of the variables: a dozen operations on one long vector per step instead of a
/// dozen on each of many short ones, and the global norm comes for free.
pub(super) struct Optimizer {
    vars: Vec<Var>,
    flat: Var,
    adam: AdamW,
    grad_clip: Option<f64>,
}

impl Optimizer {
    pub(super) fn new(vars: Vec<Var>, config: &PpoConfig) -> Result<Self> {
        let flat = Var::from_tensor(&concatenated(vars.iter().map(Var::as_tensor))?)?;
        let params = ParamsAdamW {
            lr: config.lr,
            beta1: 0.9,
            beta2: 0.999,
            eps: config.adam_epsilon,
            weight_decay: config.weight_decay,
        };
        let adam = AdamW::new(vec![flat.clone()], params)?;
        Ok(Self { vars, flat, adam, grad_clip: config.grad_clip })
    }

    pub(super) fn set_learning_rate(&mut self, lr: f64) {
        self.adam.set_learning_rate(lr);
    }

    /// Steps down the gradient, clipped to the largest norm. Gives the norm before clipping, or nothing if it is
    /// not finite: then nothing has changed, AdamW's moments included.
    pub(super) fn step(&mut self, mut grads: GradStore) -> Result<Option<f64>> {
        let parts = self.vars.iter().map(|var| grads.remove(var).map_or_else(|| var.zeros_like(), Ok));
        let mut flat = concatenated(parts.collect::<Result<Vec<_>>>()?.iter())?;
        let norm = f64::from(flat.sqr()?.sum_all()?.sqrt()?.to_scalar::<f32>()?);
        if !norm.is_finite() {
            return Ok(None);
        }
        if let Some(limit) = self.grad_clip.filter(|&limit| norm > limit) {
            flat = flat.affine(limit / norm, 0.0)?;
        }
        grads.insert(&self.flat, flat);
        self.adam.step(&grads)?;
        self.publish()?;
        Ok(Some(norm))
    }

    /// Copies the flat variable back into the model's.
    fn publish(&self) -> Result<()> {
        let mut start = 0;
        for var in &self.vars {
            let len = var.elem_count();
            var.set(&self.flat.narrow(0, start, len)?.reshape(var.shape())?)?;
            start += len;
        }
        Ok(())
    }
}

fn concatenated<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> Result<Tensor> {
    Tensor::cat(&tensors.map(Tensor::flatten_all).collect::<Result<Vec<_>>>()?, 0)
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn var(values: &[f32]) -> Var {
        Var::from_slice(values, values.len(), &Device::Cpu).unwrap()
    }

    fn values(var: &Var) -> Vec<f32> {
        var.to_vec1().unwrap()
    }

    /// Gradient (3, 0) and (0, 4): global norm 5.
    fn grads(a: &Var, b: &Var) -> GradStore {
        let a = (a.as_tensor() * &Tensor::new(&[3f32, 0.0], &Device::Cpu).unwrap()).unwrap();
        let b = (b.as_tensor() * &Tensor::new(&[0f32, 4.0], &Device::Cpu).unwrap()).unwrap();
        (a + b).unwrap().sum_all().unwrap().backward().unwrap()
    }

    /// With a huge epsilon AdamW's first step is lr * gradient / epsilon, so that the clipped gradient shows.
    fn first_step(grad_clip: Option<f64>) -> (Vec<f32>, Vec<f32>, f64) {
        let (a, b) = (var(&[0.0, 1.0]), var(&[0.0, 1.0]));
        let config = PpoConfig { lr: 1e6, adam_epsilon: 1e6, grad_clip, ..PpoConfig::default() };
        let mut optimizer = Optimizer::new(vec![a.clone(), b.clone()], &config).unwrap();
        let norm = optimizer.step(grads(&a, &b)).unwrap().unwrap();
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
    fn short_gradients_are_left_alone() {
        for grad_clip in [None, Some(6.0)] {
            let (a, b, norm) = first_step(grad_clip);
            close(&a, [-3.0, 1.0]);
            close(&b, [0.0, -3.0]);
            assert_eq!(norm, 5.0);
        }
    }

    #[test]
    fn a_step_that_is_not_finite_leaves_no_trace() {
        let run = |with_bad_step: bool| {
            let (a, b) = (var(&[0.5, 1.0]), var(&[-0.5, 1.0]));
            let mut optimizer = Optimizer::new(vec![a.clone(), b.clone()], &PpoConfig::default()).unwrap();
            optimizer.step(grads(&a, &b)).unwrap().unwrap();
            if with_bad_step {
                let bad = a.affine(f64::INFINITY, 0.0).unwrap().sum_all().unwrap().backward().unwrap();
                assert_eq!(optimizer.step(bad).unwrap(), None);
            }
            optimizer.step(grads(&a, &b)).unwrap().unwrap();
            (values(&a), values(&b))
        };
        assert_eq!(run(true), run(false));
    }
}
