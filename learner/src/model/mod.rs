//! The model in training: the layers of a [`ModelSpec`], under the names and in the shapes of the acting policies'
//! tensors.

mod layers;

use candle_core::{Device, Tensor, Var};
use rollmesh_core::{
    ids::WeightsVersion,
    kernels::Kernels,
    policy::{MASKED_LOGIT, ModelSpec},
    weights::{self, Weights, WeightsError},
};

use self::layers::to_device;
pub(super) use self::layers::{Network, Variables};
use super::{dist::ActionHead, ops::Steps};

/// The inputs of a recurrent model besides observations. The rows stand step by step: the first steps of all sequences,
/// then the second steps, and so on. Sequences are sorted by length, the longest first, so that those that have a step
/// are the first ones, and there are no rows without a step.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    /// The number of sequences that have a first step, a second one, and so on.
    pub(super) steps: Steps,
    /// States before the first steps, `[sequences, states]`: hidden states, then an LSTM's cells.
    pub(super) states: Tensor,
    /// The memory's inputs from the step before each row, `[rows, numbers]`.
    pub(super) previous: Option<Tensor>,
}

impl Memory {
    /// Returns all inputs of a memory: `x` `[rows, inputs]`, and those from the steps before.
    fn seen(&self, x: &Tensor) -> candle_core::Result<Tensor> {
        self.previous.as_ref().map_or_else(|| Ok(x.clone()), |previous| Tensor::cat(&[x, previous], 1))
    }
}

/// An error of creating a model from weights, or weights from a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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

/// A policy and a value network over the outputs of a trunk.
#[derive(Debug)]
pub(super) struct ActorCritic {
    head: ActionHead,
    trunk: Network,
    policy: Network,
    value: Network,
    state_lens: Vec<usize>,
    /// Numbers of the action mask that a train batch's observations begin with.
    mask_len: usize,
    /// All variables that are trained, in a fixed order.
    variables: Vec<(String, Var)>,
}

impl ActorCritic {
    /// Copies the weights of a model that has been checked to a device.
    ///
    /// # Errors
    /// [`ModelError::Weights`] when a tensor is missing, [`ModelError::Layout`] when some are superfluous or the policy's
    /// outputs do not fit the head.
    pub(super) fn new(
        head: ActionHead,
        spec: &ModelSpec,
        weights: &Weights,
        device: &Device,
        kernels: Kernels,
    ) -> Result<Self, ModelError> {
        let mut variables = Variables::new(weights, device, kernels);
        let [trunk, policy, value] =
            [&spec.trunk, &spec.policy, &spec.value].map(|layers| Network::new(&mut variables, layers));
        let (trunk, policy, value) = (trunk?, policy?, value?);
        let (used, tensors) = (variables.taken.len(), weights.tensors().len());
        if used != tensors {
            return Err(ModelError::Layout(format!("{used} of {tensors} tensors have a place")));
        }
        if spec.dist_inputs_len() != head.input_len() {
            let (found, wanted) = (spec.dist_inputs_len(), head.input_len());
            return Err(ModelError::Layout(format!("the policy has {found} outputs, its actions take {wanted}")));
        }
        Ok(Self {
            head,
            trunk,
            policy,
            value,
            state_lens: spec.state_lens(),
            mask_len: spec.mask_len,
            variables: variables.taken,
        })
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

    /// Returns all variables as one vector, from tensors with their names, such as gradients.
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

    /// Splits one vector into tensors under the names of its variables.
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

    /// Returns the parameters of the distributions of actions, `[rows, inputs]`, and values, `[rows]`, of observations
    /// `[rows, obs]` that begin with their action masks, if they have some: actions whose number there is 0 are
    /// excluded. A recurrent model needs the memory.
    ///
    /// # Errors
    /// When the observations have another shape or the device fails.
    pub(super) fn forward(&self, obs: &Tensor, memory: Option<&Memory>) -> candle_core::Result<(Tensor, Tensor)> {
        let (mask, obs) = match self.mask_len {
            0 => (None, obs.clone()),
            len => (Some(obs.narrow(1, 0, len)?.ne(0.0f32)?), obs.narrow(1, len, obs.dim(1)? - len)?.contiguous()?),
        };
        let features = self.trunk.forward(&obs, memory)?;
        let inputs = self.policy.forward(&features, None)?;
        let inputs = match mask {
            None => inputs,
            Some(mask) => mask.where_cond(&inputs, &inputs.zeros_like()?.affine(0.0, MASKED_LOGIT.into())?)?,
        };
        Ok((inputs, self.value.forward(&features, None)?.flatten_all()?))
    }

    /// Returns the inputs of the heads, without gradients, for single steps with observations `[rows, obs]`, and the
    /// states after them, `[rows, states]` as those before. Only a recurrent model has states.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub(super) fn features(
        &self,
        obs: &Tensor,
        before: Option<&Tensor>,
    ) -> candle_core::Result<(Tensor, Option<Tensor>)> {
        self.trunk.infer(obs, before)
    }

    /// Returns the parameters of the distributions of actions, `[rows, inputs]`, without gradients.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn dist_inputs(&self, features: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.policy.infer(features, None)?.0)
    }

    /// Returns the values, `[rows, 1]`, without gradients.
    ///
    /// # Errors
    /// When the device fails.
    pub(super) fn values(&self, features: &Tensor) -> candle_core::Result<Tensor> {
        Ok(self.value.infer(features, None)?.0)
    }

    /// Returns the distributions of the policy's outputs.
    pub(super) fn head(&self) -> &ActionHead {
        &self.head
    }

    /// Numbers of the action mask that a train batch's observations begin with.
    pub(super) fn mask_len(&self) -> usize {
        self.mask_len
    }

    /// Returns the lengths of the states of a recurrent model.
    pub(super) fn state_lens(&self) -> &[usize] {
        &self.state_lens
    }

    /// All variables that are trained, in a fixed order.
    pub(super) fn vars(&self) -> Vec<Var> {
        self.variables.iter().map(|(_, var)| var.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        column::{DType, RowShape},
        env::{EnvSpaces, Moment, RowsMut, RowsRef},
        ids::SlotId,
        kernels::nets::Activation,
        policy::{ActionInput, ActionOutput, ModelConfig, NetPolicy, Policy as _},
        space::Space,
    };

    use super::{
        super::test_support::{discrete, spec_of, weights},
        *,
    };

    fn two_actions() -> ActionHead {
        ActionHead::for_space(&Space::Discrete { n: 2 }).unwrap()
    }

    fn model(weights: &Weights) -> ActorCritic {
        ActorCritic::new(two_actions(), &spec_of(weights), weights, &Device::Cpu, Kernels::PORTABLE).unwrap()
    }

    #[test]
    fn weights_survive_the_round_trip() {
        let weights = weights(4, &[5, 3], 2);
        let model = model(&weights);
        assert_eq!(model.to_weights(weights.version()).unwrap(), weights);
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

    /// The core and the learner are two implementations of one function.
    #[test]
    fn the_acting_policy_computes_the_same() {
        let activations =
            Activation::NAMES.map(|name| format!(r#"{{"fcnet_hiddens": [24], "fcnet_activation": "{name}"}}"#));
        let others = [
            r#"{"fcnet_hiddens": [64, 64]}"#,
            r#"{"fcnet_hiddens": [20], "post_fcnet_hiddens": [8], "vf_share_layers": true}"#,
            r#"{"fcnet_hiddens": [40, 17], "fcnet_use_layernorm": true}"#,
            r#"{"fcnet_hiddens": [12], "conv_filters": [[5, 3, 2], [16, 2, 1]], "weights_initializer": "orthogonal"}"#,
            r#"{"fcnet_hiddens": [12], "conv_filters": [[16, 3, 1]], "conv_activation": "gelu", "vf_share_layers": true}"#,
        ];
        let shape = RowShape::new(&[6, 5, 2]).unwrap();
        let spaces = EnvSpaces { observation: Space::uniform(DType::F32, shape, -9.0, 9.0), ..discrete(60, 2) };
        for model in activations.iter().map(String::as_str).chain(others) {
            let config: ModelConfig = serde_json::from_str(model).unwrap();
            let spec = ModelSpec::for_spaces(&spaces, &config).unwrap();
            let weights = spec.init_weights(5).unwrap();
            let learning = ActorCritic::new(two_actions(), &spec, &weights, &Device::Cpu, Kernels::PORTABLE).unwrap();
            let mut acting = NetPolicy::new(&spaces, &config, weights, 1, Kernels::PORTABLE).unwrap();

            let rows = 100;
            let obs: Vec<f32> = (0..60 * rows).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
            let moments: Vec<Moment> =
                (0..rows as u32).map(|t| Moment { slot: SlotId(0), episode: 0, t, agent: 0 }).collect();
            let (mut actions, mut logp, mut vf_preds) = (vec![0; rows], vec![0.0; rows], vec![0.0; rows]);
            let out = ActionOutput::new(RowsMut::I64(&mut actions), &mut logp, &mut vf_preds);
            acting.compute_actions(ActionInput::new(RowsRef::F32(&obs), &moments), out).unwrap();

            let obs = Tensor::from_vec(obs, (rows, 60), &Device::Cpu).unwrap();
            let taken = Tensor::from_vec(actions.iter().map(|&a| a as u32).collect(), (rows, 1), &Device::Cpu).unwrap();
            let (logits, learners_values) = learning.forward(&obs, None).unwrap();
            let dist = learning.head().dist(&logits).unwrap();
            let learners_logp = dist.logp(&taken).unwrap().to_vec1::<f32>().unwrap();
            let learners_values = learners_values.to_vec1::<f32>().unwrap();
            for row in 0..rows {
                assert!((learners_logp[row] - logp[row]).abs() < 1e-5, "{model} row {row}");
                assert!((learners_values[row] - vf_preds[row]).abs() < 1e-5, "{model} row {row}");
            }
        }
    }

    #[test]
    fn tensors_that_do_not_fit_are_named() {
        let whole = weights(4, &[5, 3], 2);
        let without = |name: &str| whole.tensors().iter().filter(|t| t.name != name).cloned().collect();
        let model = |tensors| {
            let weights = Weights::new(whole.version(), tensors).unwrap();
            ActorCritic::new(two_actions(), &spec_of(&whole), &weights, &Device::Cpu, Kernels::PORTABLE)
                .map(drop)
                .map_err(|error| error.to_string())
        };
        assert_eq!(model(without("policy.1.bias")).unwrap_err(), "the policy wants tensor 'policy.1.bias [3]'");
        assert_eq!(model(without("value.0.weight")).unwrap_err(), "the policy wants tensor 'value.0.weight [4, 5]'");

        let mut narrow: Vec<_> = whole.tensors().to_vec();
        let layer = narrow.iter_mut().find(|tensor| tensor.name == "value.1.weight").unwrap();
        (layer.shape, layer.values) = (vec![4, 3], vec![0.0; 12]);
        assert_eq!(model(narrow).unwrap_err(), "the policy wants tensor 'value.1.weight [5, 3]'");

        let mut extra: Vec<_> = whole.tensors().to_vec();
        extra.push(weights::Tensor { name: "log_std".into(), shape: vec![1], values: vec![0.0] });
        let error = model(extra).unwrap_err();
        assert_eq!(error, "the weights are no policy and value network: 12 of 13 tensors have a place");
    }
}
