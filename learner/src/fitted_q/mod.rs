//! Fitted Q evaluation: values of a policy's actions, from the steps of another policy.

mod config;
mod scale;
#[cfg(test)]
mod tests;

pub use config::FittedQConfig;

use candle_core::{Device, Tensor, Var};
use rollmesh_core::{
    estimate::{EstimateError, QModel, Transitions},
    ids::SlotId,
    kernels::Kernels,
    policy::{ModelConfig, ModelSpec},
    rng::{Purpose, Streams},
    worker::QModelContext,
};

use self::scale::Scale;
use super::{
    algorithm::{CommonConfig, PolicyGradientConfig},
    error::LearnError,
    model::{Network, Variables},
    ops,
    optimizer::Optimizer,
};

/// Rows whose values are computed at a time.
const ROWS: usize = 4096;
/// Added to the root of Adam's second moment, as PyTorch has it.
const ADAM_EPSILON: f64 = 1e-8;
/// The agent in the address of this stream, so that it differs from those of other shuffles.
const SHUFFLE: u16 = 1;

/// A perceptron that estimates the values of all actions in an observation. It is fitted repeatedly to `r + gamma V'`,
/// where `V'` is the mean over the policy's actions of an older copy's values of the next observation (Le, Voloshin,
/// Yue: "Batch policy learning under constraints", 2019). RLlib's `FQETorchModel`, with tanh instead of ReLU.
///
/// [`new`](Self::new) creates a model that is fitted a little to every batch of a worker; [`of_log`](Self::of_log) fits
/// one to a whole log in one call.
///
/// On a CPU its weights are a function of settings, seed and steps alone, as those of the [learner](super). A truncated
/// episode has a value after its last step; only terminal states have none.
///
/// ```
/// use rollmesh_learner::{FittedQ, FittedQConfig};
/// use rollmesh_core::{estimate::{QModel as _, Transitions}, kernels::Kernels};
///
/// // One observation, one action, a reward of 1, forever.
/// let transitions = Transitions {
///     obs_len: 1,
///     num_actions: 1,
///     obs: vec![1.0; 8],
///     actions: vec![0; 8],
///     rewards: vec![1.0; 8],
///     terminateds: vec![false; 8],
///     new_obs: vec![1.0; 8],
///     new_probs: vec![1.0; 8],
/// };
/// let config = FittedQConfig { n_iters: 400, lr: 0.01, ..FittedQConfig::default() };
/// let mut model = FittedQ::new(1, 1, 0.5, config, 7, Kernels::PORTABLE)?;
/// model.fit(&transitions)?;
/// let mut q = [0.0];
/// model.q_values(&[1.0], &mut q)?;
/// assert!((q[0] - 2.0).abs() < 0.1, "{q:?}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias("FQETorchModel", "FQE"))]
pub struct FittedQ {
    obs_len: usize,
    num_actions: usize,
    q: Network,
    target: Network,
    variables: Vec<Var>,
    target_variables: Vec<Var>,
    optimizer: Optimizer,
    config: FittedQConfig,
    scale: Scale,
    gamma: f64,
    /// The number of passes so far, which addresses the shuffle of the next one.
    seen: u32,
    shuffles: Streams,
}

/// The result of a fit so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fit {
    /// Passes over the steps.
    pub passes: u32,
    /// Mean squared error of the last one.
    pub loss: f64,
}

/// The steps on a device.
struct StepTensors {
    obs: Tensor,
    new_obs: Tensor,
    /// `[rows, 1]`.
    actions: Tensor,
    rewards: Tensor,
    /// The weight of each action's value in the target: the policy's discounted probability; 0 where the episode
    /// terminates.
    shares: Tensor,
}

impl FittedQ {
    /// Creates a model that has learned nothing yet.
    ///
    /// # Errors
    /// [`LearnError::Config`] for settings out of range, [`LearnError::Policy`] for layers without elements.
    pub fn new(
        obs_len: usize,
        num_actions: usize,
        gamma: f64,
        config: FittedQConfig,
        seed: u64,
        kernels: Kernels,
    ) -> Result<Self, LearnError> {
        config.check()?;
        let spec = ModelSpec::new(&ModelConfig::of_widths(&config.fcnet_hiddens), &[obs_len], num_actions)?;
        let weights = spec.init_weights(seed)?;
        let network = || -> Result<_, LearnError> {
            let mut variables = Variables::new(&weights, &Device::Cpu, kernels);
            let network = Network::new(&mut variables, &spec.policy)?;
            Ok((network, variables.taken.into_iter().map(|(_, variable)| variable).collect::<Vec<Var>>()))
        };
        let ((q, variables), (target, target_variables)) = (network()?, network()?);
        let adam = CommonConfig {
            lr: config.lr,
            grad_clip: Some(config.clip_grad_norm),
            adam_epsilon: ADAM_EPSILON,
            weight_decay: 0.0,
            ..PolicyGradientConfig::pg().common
        };
        let optimizer = Optimizer::new(variables.clone(), &adam)?;
        let shuffles = Streams::new(seed, Purpose::Shuffle);
        let scale = Scale::none(obs_len);
        Ok(Self {
            obs_len,
            num_actions,
            q,
            target,
            variables,
            target_variables,
            optimizer,
            config,
            scale,
            gamma,
            seen: 0,
            shuffles,
        })
    }

    /// Fits a model once to a complete log, to convergence: observations and values are scaled by those of the log, and
    /// the learning rate falls to 0 by the last pass. `hear` is called with the progress after every pass.
    ///
    /// # Errors
    /// [`EstimateError::Model`], [`EstimateError::NoSamples`].
    pub fn of_log(
        transitions: &Transitions,
        gamma: f64,
        config: FittedQConfig,
        seed: u64,
        kernels: Kernels,
        hear: impl FnMut(Fit),
    ) -> Result<(Self, Fit), EstimateError> {
        transitions.check()?;
        let (obs_len, num_actions) = (transitions.obs_len, transitions.num_actions);
        let mut model = Self::new(obs_len, num_actions, gamma, config, seed, kernels).map_err(failed)?;
        model.scale = Scale::of(transitions, gamma);
        let (lr, passes) = (model.config.lr, f64::from(model.config.n_iters));
        let fit = model.passes(transitions, |pass| lr * (1.0 - f64::from(pass) / passes), hear)?;
        Ok((model, fit))
    }

    /// Creates the model for the input evaluations `dm` and `dr` of a worker.
    ///
    /// # Errors
    /// [`EstimateError::Model`] for wrong settings.
    pub fn for_context(context: &QModelContext) -> Result<Self, EstimateError> {
        let config = FittedQConfig::default().merged(&context.config).map_err(failed)?;
        Self::new(context.obs_len, context.num_actions, context.gamma, config, context.seed, Kernels::PORTABLE)
            .map_err(failed)
    }

    /// Makes the passes that the settings ask for, with a learning rate for each.
    fn passes(
        &mut self,
        transitions: &Transitions,
        lr: impl Fn(u32) -> f64,
        mut hear: impl FnMut(Fit),
    ) -> Result<Fit, EstimateError> {
        transitions.check()?;
        if transitions.is_empty() {
            return Err(EstimateError::NoSamples);
        }
        if (transitions.obs_len, transitions.num_actions) != (self.obs_len, self.num_actions) {
            let (obs, actions) = (transitions.obs_len, transitions.num_actions);
            let problem =
                format!("it takes {} numbers and {} actions, not {obs} and {actions}", self.obs_len, self.num_actions);
            return Err(EstimateError::Model(problem));
        }
        let rows = self.rows(transitions).map_err(failed)?;
        let mut order: Vec<u32> = (0..transitions.len() as u32).collect();
        let mut fit = Fit::default();
        while fit.passes < self.config.n_iters {
            self.optimizer.set_learning_rate(lr(fit.passes));
            fit = Fit { passes: fit.passes + 1, loss: self.pass(&rows, &mut order)? };
            hear(fit);
            if fit.loss < self.config.min_loss_threshold {
                break;
            }
        }
        Ok(fit)
    }

    fn rows(&self, transitions: &Transitions) -> candle_core::Result<StepTensors> {
        let (n, device) = (transitions.len(), &Device::Cpu);
        let matrix = |values: &[f32], columns| Tensor::from_slice(values, (n, columns), device);
        let steps = transitions.new_probs.chunks(transitions.num_actions.max(1)).zip(&transitions.terminateds);
        let share = |(probs, terminated): (&[f32], &bool)| {
            let discount = if *terminated { 0.0 } else { self.gamma as f32 };
            probs.iter().map(|prob| discount * prob).collect::<Vec<_>>()
        };
        let shares: Vec<f32> = steps.flat_map(share).collect();
        let rewards: Vec<f32> = transitions.rewards.iter().map(|reward| reward / self.scale.value).collect();
        Ok(StepTensors {
            obs: matrix(&self.scale.obs(&transitions.obs), transitions.obs_len)?,
            new_obs: matrix(&self.scale.obs(&transitions.new_obs), transitions.obs_len)?,
            actions: Tensor::from_slice(&transitions.actions, (n, 1), device)?,
            rewards: Tensor::from_slice(&rewards, n, device)?,
            shares: matrix(&shares, transitions.num_actions)?,
        })
    }

    /// Makes one pass over all steps, in an order of its own, and returns the mean squared error of unscaled values.
    fn pass(&mut self, rows: &StepTensors, order: &mut [u32]) -> Result<f64, EstimateError> {
        let targets = self.targets(rows).map_err(failed)?;
        self.shuffles.at(SlotId(0), self.seen, 0, SHUFFLE).shuffle(order);
        let size = self.config.minibatch_size.map_or(order.len(), |size| size as usize);
        let (mut sum, mut minibatches) = (0.0, 0.0);
        for minibatch in order.chunks(size.max(1)) {
            let loss = self.step(rows, &targets, minibatch).map_err(failed)?;
            sum += loss.ok_or_else(|| failed("its values have left the range of numbers; try a smaller lr"))?;
            minibatches += 1.0;
        }
        self.seen = self.seen.wrapping_add(1);
        self.follow().map_err(failed)?;
        Ok(sum / minibatches * f64::from(self.scale.value).powi(2))
    }

    /// Learns from some of the steps, and returns their mean squared error; `None` if the gradient is not finite.
    fn step(&mut self, rows: &StepTensors, targets: &Tensor, minibatch: &[u32]) -> candle_core::Result<Option<f64>> {
        let minibatch = Tensor::new(minibatch, &Device::Cpu)?;
        let q = self.q.forward(&rows.obs.index_select(&minibatch, 0)?, None)?;
        let q = q.gather(&rows.actions.index_select(&minibatch, 0)?, 1)?.squeeze(1)?;
        let loss = ops::mean_all(&(q - targets.index_select(&minibatch, 0)?)?.sqr()?)?;
        let gradient = self.optimizer.gradient(&loss.backward()?)?;
        let Some((gradient, _)) = self.optimizer.clipped(gradient)? else { return Ok(None) };
        self.optimizer.step(&gradient)?;
        Ok(Some(f64::from(loss.to_scalar::<f32>()?)))
    }

    /// Moves the older copy towards the model.
    fn follow(&self) -> candle_core::Result<()> {
        let tau = self.config.polyak_coef;
        for (target, variable) in self.target_variables.iter().zip(&self.variables) {
            target.set(&((variable.as_tensor() * tau)? + (target.as_tensor() * (1.0 - tau))?)?.detach())?;
        }
        Ok(())
    }

    /// Returns the target of each step, from the older copy.
    fn targets(&self, rows: &StepTensors) -> candle_core::Result<Tensor> {
        let n = rows.rewards.dims1()?;
        let piece = |start: usize| {
            let len = ROWS.min(n - start);
            let q = self.target.forward(&rows.new_obs.narrow(0, start, len)?, None)?.detach();
            ops::sum_last(&(q * rows.shares.narrow(0, start, len)?)?)
        };
        let next = (0..n).step_by(ROWS).map(piece).collect::<candle_core::Result<Vec<_>>>()?;
        Tensor::cat(&next, 0)? + &rows.rewards
    }
}

impl QModel for FittedQ {
    fn fit(&mut self, transitions: &Transitions) -> Result<f64, EstimateError> {
        let lr = self.config.lr;
        self.passes(transitions, |_| lr, |_| ()).map(|fit| fit.loss)
    }

    fn q_values(&mut self, obs: &[f32], q: &mut [f32]) -> Result<(), EstimateError> {
        let (inputs, outputs) = (self.obs_len, self.num_actions);
        let rows = q.len() / outputs.max(1);
        if rows.checked_mul(inputs) != Some(obs.len()) || rows * outputs != q.len() {
            let problem = format!("{} numbers are no {rows} observations of {inputs}", obs.len());
            return Err(EstimateError::Model(problem));
        }
        for (obs, q) in obs.chunks(ROWS * inputs).zip(q.chunks_mut(ROWS * outputs)) {
            let obs = self.scale.obs(obs);
            let obs = Tensor::from_slice(&obs, (q.len() / outputs, inputs), &Device::Cpu).map_err(failed)?;
            let values = self
                .q
                .forward(&obs, None)
                .and_then(|values| (values * f64::from(self.scale.value))?.flatten_all()?.to_vec1());
            q.copy_from_slice(&values.map_err(failed)?);
        }
        Ok(())
    }
}

fn failed(error: impl std::fmt::Display) -> EstimateError {
    EstimateError::Model(error.to_string())
}
