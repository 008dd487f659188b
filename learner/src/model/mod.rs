//! What the learner trains, under the names and in the shapes of the acting policies' tensors.
//!
//! | model | tensors |
//! |---|---|
//! | two separate perceptrons with tanh | `policy.{i}.weight` `[in, out]`, `policy.{i}.bias` `[out]`, the same for `value` |
//! | LSTM | `encoder.{i}.…` with tanh, also after the last one, if there are any; `lstm.weight_ih` `[in, 4 hidden]`, `lstm.weight_hh` `[hidden, 4 hidden]`, `lstm.bias` `[4 hidden]`, gates in the order input, forget, candidate, output; then `policy` and `value` as above |
//!
//! The last layer of `value` has one output.

mod layers;
mod lstm;

use candle_core::{Device, Tensor, Var};
use rollmesh_core::{
    ids::WeightsVersion,
    kernels::Kernels,
    weights::{self, Weights, WeightsError},
};

pub(super) use self::layers::{Mlp, Variables};
pub(super) use self::lstm::Memory;
use self::{layers::to_device, lstm::Lstm};
use super::dist::ActionHead;

/// Why weights do not make a model, or a model no weights.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A layer is missing or its neighbours do not fit.
    #[error("the weights are no policy and value network: {0}")]
    Layout(String),
    /// The model holds something that cannot be published, or other weights are no replacement for its own.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The device failed.
    #[error("device: {0}")]
    Device(#[from] candle_core::Error),
}

/// A policy and a value network over the same observations.
#[derive(Debug)]
pub(super) struct ActorCritic {
    head: ActionHead,
    lstm: Option<Lstm>,
    policy: Mlp,
    value: Mlp,
    obs_len: usize,
    hidden: Option<usize>,
    /// Everything that is trained, in a fixed order.
    variables: Vec<(String, Var)>,
}

impl ActorCritic {
    /// Copies weights to a device.
    ///
    /// # Errors
    /// [`ModelError::Layout`] when tensors are missing, superfluous or of shapes that do not fit each other or the head.
    pub(super) fn from_weights(
        head: ActionHead,
        weights: &Weights,
        device: &Device,
        kernels: Kernels,
    ) -> Result<Self, ModelError> {
        let mut variables = Variables::new(weights, device, kernels);
        let lstm = variables.has("lstm.weight_ih").then(|| Lstm::new(&mut variables)).transpose()?;
        let hidden = lstm.as_ref().map(Lstm::hidden).transpose()?;
        let policy = Mlp::new(&mut variables, "policy", hidden)?;
        let value = Mlp::new(&mut variables, "value", hidden)?;
        let (used, tensors) = (variables.taken.len(), weights.tensors().len());
        if used != tensors {
            return Err(ModelError::Layout(format!("{used} of {tensors} tensors have a place")));
        }
        if policy.inputs != value.inputs {
            let (policy, value) = (policy.inputs, value.inputs);
            return Err(ModelError::Layout(format!("the policy sees {policy} numbers, the value network {value}")));
        }
        if value.outputs != 1 {
            return Err(ModelError::Layout(format!("the value network has {} outputs", value.outputs)));
        }
        if policy.outputs != head.input_len() || policy.outputs == 0 {
            let (found, wanted) = (policy.outputs, head.input_len());
            return Err(ModelError::Layout(format!("the policy has {found} outputs, its actions take {wanted}")));
        }
        let obs_len = lstm.as_ref().map_or(Ok(policy.inputs), Lstm::inputs)?;
        Ok(Self { head, lstm, policy, value, obs_len, hidden, variables: variables.taken })
    }

    /// Checks that weights have the same names and shapes.
    ///
    /// # Errors
    /// [`ModelError::Weights`].
    pub(super) fn check(&self, weights: &Weights) -> Result<(), ModelError> {
        Ok(self.matching(weights).map(drop)?)
    }

    /// Copies other weights of the same names and shapes to the device.
    ///
    /// # Errors
    /// [`ModelError::Weights`] for weights of another model; the old ones stay.
    pub(super) fn load(&self, weights: &Weights) -> Result<(), ModelError> {
        for (var, tensor) in self.matching(weights)? {
            var.set(&to_device(tensor, var.device())?)?;
        }
        Ok(())
    }

    /// All variables as one vector, from tensors with their names, such as gradients.
    ///
    /// # Errors
    /// [`ModelError::Weights`] for tensors of another model.
    pub(super) fn flat(&self, weights: &Weights) -> Result<Tensor, ModelError> {
        let tensors = self.matching(weights)?.into_iter();
        let parts = tensors.map(|(var, tensor)| Tensor::from_slice(&tensor.values, tensor.values.len(), var.device()));
        Ok(Tensor::cat(&parts.collect::<candle_core::Result<Vec<_>>>()?, 0)?)
    }

    fn matching<'a>(&'a self, weights: &'a Weights) -> Result<Vec<(&'a Var, &'a weights::Tensor)>, WeightsError> {
        let matching = self.variables.iter().map(|(name, var)| {
            let fits = |tensor: &&weights::Tensor| tensor.shape.iter().map(|&dim| dim as usize).eq(var.dims().to_vec());
            let missing = || WeightsError::Missing { wanted: format!("{name} {:?}", var.dims()) };
            Ok((var, weights.tensor(name).filter(fits).ok_or_else(missing)?))
        });
        matching.collect()
    }

    /// Copies the weights from the device.
    ///
    /// # Errors
    /// [`ModelError::Weights`] when a value is not finite.
    pub(super) fn to_weights(&self, version: WeightsVersion) -> Result<Weights, ModelError> {
        let flat = self.variables.iter().map(|(_, var)| Ok(var.flatten_all()?.to_vec1()?));
        self.named(version, flat)
    }

    /// The pieces of one vector under the names of the variables they belong to.
    ///
    /// # Errors
    /// [`ModelError::Weights`] when a value is not finite.
    pub(super) fn unflat(&self, version: WeightsVersion, flat: &Tensor) -> Result<Weights, ModelError> {
        let mut start = 0;
        let pieces = self.variables.iter().map(|(_, var)| {
            let len = var.elem_count();
            let piece = flat.narrow(0, start, len)?.to_vec1()?;
            start += len;
            Ok(piece)
        });
        self.named(version, pieces)
    }

    fn named(
        &self,
        version: WeightsVersion,
        pieces: impl Iterator<Item = Result<Vec<f32>, ModelError>>,
    ) -> Result<Weights, ModelError> {
        let tensors = self.variables.iter().zip(pieces).map(|((name, var), values)| {
            let shape = var.dims().iter().map(|&dim| dim as u32).collect();
            Ok(weights::Tensor { name: name.clone(), shape, values: values? })
        });
        Ok(Weights::new(version, tensors.collect::<Result<_, ModelError>>()?)?)
    }

    /// Parameters of the distributions of actions, `[rows, inputs]`, and values, `[rows]`, of observations `[rows, obs]`.
    /// A recurrent model needs the memory.
    ///
    /// # Errors
    /// When the observations have another shape or the device fails.
    pub(super) fn forward(&self, obs: &Tensor, memory: Option<&Memory>) -> candle_core::Result<(Tensor, Tensor)> {
        let features = match (&self.lstm, memory) {
            (None, _) => obs.clone(),
            (Some(lstm), Some(memory)) => lstm.forward(obs, memory)?,
            (Some(_), None) => candle_core::bail!("a recurrent model needs sequences"),
        };
        Ok((self.policy.forward(&features)?, self.value.forward(&features)?.flatten_all()?))
    }

    /// What the heads see, without gradients, of single steps with observations `[rows, obs]`, and the states after them, `[rows, 2 hidden]` as
    /// those before. Only a recurrent model has states.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub(super) fn features(
        &self,
        obs: &Tensor,
        before: Option<&Tensor>,
    ) -> candle_core::Result<(Tensor, Option<Tensor>)> {
        match (&self.lstm, before) {
            (None, _) => Ok((obs.clone(), None)),
            (Some(lstm), Some(before)) => {
                let (hidden, after) = lstm.step(obs, before)?;
                Ok((hidden, Some(after)))
            }
            (Some(_), None) => candle_core::bail!("a recurrent model needs states"),
        }
    }

    /// Parameters of the distributions of actions, `[rows, inputs]`, without gradients.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn dist_inputs(&self, features: &Tensor) -> candle_core::Result<Tensor> {
        self.policy.infer(features)
    }

    /// Values, `[rows, 1]`, without gradients.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn values(&self, features: &Tensor) -> candle_core::Result<Tensor> {
        self.value.infer(features)
    }

    /// What the policy's outputs mean.
    pub(super) fn head(&self) -> &ActionHead {
        &self.head
    }

    /// Numbers in one observation.
    pub(super) fn obs_len(&self) -> usize {
        self.obs_len
    }

    /// Numbers in a hidden state, and in a cell, of a recurrent model.
    pub(super) fn hidden(&self) -> Option<usize> {
        self.hidden
    }

    /// Everything that is trained, in a fixed order.
    pub(super) fn vars(&self) -> Vec<Var> {
        self.variables.iter().map(|(_, var)| var.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        env::{Moment, RowsMut, RowsRef},
        ids::SlotId,
        kernels::Kernels,
        policy::{ActionInput, ActionOutput, ModelConfig, NetPolicy, Policy as _},
        space::Space,
    };

    use super::{
        super::test_support::{discrete, weights},
        *,
    };

    fn two_actions() -> ActionHead {
        ActionHead::for_space(&Space::Discrete { n: 2 }).unwrap()
    }

    fn model(weights: &Weights) -> ActorCritic {
        ActorCritic::from_weights(two_actions(), weights, &Device::Cpu, Kernels::PORTABLE).unwrap()
    }

    #[test]
    fn weights_survive_the_round_trip() {
        let weights = weights(4, &[5, 3], 2);
        let model = model(&weights);
        assert_eq!(model.to_weights(weights.version()).unwrap(), weights);
        assert_eq!((model.obs_len(), model.hidden()), (4, None));
    }

    #[test]
    fn a_forward_pass_by_hand() {
        let weights = weights(2, &[1], 2);
        let obs = [0.3f32, -0.2];
        let model = model(&weights);
        let (logits, _) = model.forward(&Tensor::from_slice(&obs, (1, 2), &Device::Cpu).unwrap(), None).unwrap();
        let values = |name: &str| weights.tensor(name).unwrap().values.clone();
        let (w0, b0, w1, b1) =
            (values("policy.0.weight"), values("policy.0.bias"), values("policy.1.weight"), values("policy.1.bias"));
        let hidden = (obs[0] * w0[0] + obs[1] * w0[1] + b0[0]).tanh();
        for (action, logit) in logits.to_vec2::<f32>().unwrap()[0].iter().enumerate() {
            assert!((logit - (hidden * w1[action] + b1[action])).abs() < 1e-6);
        }
    }

    /// What acts and what learns are two programs for one function.
    #[test]
    fn the_acting_policy_computes_the_same() {
        let (weights, rows) = (weights(4, &[64, 64], 2), 100);
        let model = model(&weights);
        let config = ModelConfig::of_widths(&[64, 64]);
        let mut acting = NetPolicy::new(&discrete(4, 2), &config, weights, 1, Kernels::PORTABLE).unwrap();

        let obs: Vec<f32> = (0..4 * rows).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let moments: Vec<Moment> =
            (0..rows as u32).map(|t| Moment { slot: SlotId(0), episode: 0, t, agent: 0 }).collect();
        let (mut actions, mut logp, mut vf_preds) = (vec![0; rows], vec![0.0; rows], vec![0.0; rows]);
        let out = ActionOutput::new(RowsMut::I64(&mut actions), &mut logp, &mut vf_preds);
        acting.compute_actions(ActionInput::new(RowsRef::F32(&obs), &moments), out).unwrap();

        let obs = Tensor::from_vec(obs, (rows, 4), &Device::Cpu).unwrap();
        let taken = Tensor::from_vec(actions.iter().map(|&a| a as u32).collect(), (rows, 1), &Device::Cpu).unwrap();
        let (logits, learners_values) = model.forward(&obs, None).unwrap();
        let dist = model.head().dist(&logits).unwrap();
        let learners_logp = dist.logp(&taken).unwrap().to_vec1::<f32>().unwrap();
        let learners_values = learners_values.to_vec1::<f32>().unwrap();
        for row in 0..rows {
            assert!((learners_logp[row] - logp[row]).abs() < 1e-5, "row {row}");
            assert!((learners_values[row] - vf_preds[row]).abs() < 1e-5, "row {row}");
        }
    }

    #[test]
    fn tensors_that_do_not_fit_are_named() {
        let whole = weights(4, &[5, 3], 2);
        let without = |name: &str| whole.tensors().iter().filter(|t| t.name != name).cloned().collect();
        let model = |tensors| {
            let weights = Weights::new(whole.version(), tensors).unwrap();
            ActorCritic::from_weights(two_actions(), &weights, &Device::Cpu, Kernels::PORTABLE)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        let prefix = "the weights are no policy and value network: ";
        assert_eq!(model(without("policy.1.bias")).unwrap_err(), format!("{prefix}'policy.1.bias' is missing"));
        assert_eq!(model(without("value.0.weight")).unwrap_err(), format!("{prefix}'value.0.weight' is missing"));

        let mut narrow: Vec<_> = whole.tensors().to_vec();
        let layer = narrow.iter_mut().find(|tensor| tensor.name == "value.1.weight").unwrap();
        (layer.shape, layer.values) = (vec![4, 3], vec![0.0; 12]);
        let error = model(narrow).unwrap_err();
        assert_eq!(error, format!("{prefix}'value.1.weight' of shape [4, 3] does not fit its neighbours"));

        let mut extra: Vec<_> = whole.tensors().to_vec();
        extra.push(weights::Tensor { name: "log_std".into(), shape: vec![1], values: vec![0.0] });
        assert_eq!(model(extra).unwrap_err(), format!("{prefix}12 of 13 tensors have a place"));
    }
}
