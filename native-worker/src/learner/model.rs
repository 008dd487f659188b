//! The policy and the value network that the learner trains: two separate multilayer perceptrons with tanh.
//!
//! Tensors have the names and shapes of the acting policy's: `policy.{i}.weight` `[in, out]`, `policy.{i}.bias` `[out]`,
//! and the same for `value`, whose last layer has one output.

use candle_core::{Device, Tensor, Var};
use rollmesh_core::{
    ids::WeightsVersion,
    weights::{self, Weights, WeightsError},
};

use super::ops;

/// Why weights do not make a model, or a model no weights.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A layer is missing or its neighbours do not fit.
    #[error("the weights are no pair of perceptrons: {0}")]
    Layout(String),
    /// The model holds something that cannot be published.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The device failed.
    #[error("device: {0}")]
    Device(#[from] candle_core::Error),
}

/// Two networks over the same observations.
#[derive(Debug)]
pub struct ActorCritic {
    policy: Mlp,
    value: Mlp,
}

impl ActorCritic {
    /// Copies weights to a device.
    ///
    /// # Errors
    /// [`ModelError::Layout`] when tensors are missing, superfluous or of shapes that do not fit each other.
    pub fn from_weights(weights: &Weights, device: &Device) -> Result<Self, ModelError> {
        let policy = Mlp::from_weights(weights, "policy", device)?;
        let value = Mlp::from_weights(weights, "value", device)?;
        let used = 2 * (policy.layers.len() + value.layers.len());
        if used != weights.tensors().len() {
            return Err(ModelError::Layout(format!("{used} of {} tensors have a place", weights.tensors().len())));
        }
        if policy.inputs != value.inputs {
            let (policy, value) = (policy.inputs, value.inputs);
            return Err(ModelError::Layout(format!("the policy sees {policy} numbers, the value network {value}")));
        }
        if value.outputs != 1 {
            return Err(ModelError::Layout(format!("the value network has {} outputs", value.outputs)));
        }
        Ok(Self { policy, value })
    }

    /// Copies the weights from the device.
    ///
    /// # Errors
    /// [`ModelError::Weights`] when a value is not finite.
    pub fn to_weights(&self, version: WeightsVersion) -> Result<Weights, ModelError> {
        let mut tensors = Vec::new();
        for (network, mlp) in [("policy", &self.policy), ("value", &self.value)] {
            for (i, layer) in mlp.layers.iter().enumerate() {
                tensors.push(tensor(format!("{network}.{i}.weight"), &layer.weight)?);
                tensors.push(tensor(format!("{network}.{i}.bias"), &layer.bias)?);
            }
        }
        Ok(Weights::new(version, tensors)?)
    }

    /// Logits of the actions, `[rows, actions]`, for observations `[rows, obs]`.
    ///
    /// # Errors
    /// When the observations have another shape or the device fails.
    pub fn logits(&self, obs: &Tensor) -> candle_core::Result<Tensor> {
        self.policy.forward(obs)
    }

    /// Values, `[rows]`, of observations `[rows, obs]`.
    ///
    /// # Errors
    /// When the observations have another shape or the device fails.
    pub fn values(&self, obs: &Tensor) -> candle_core::Result<Tensor> {
        self.value.forward(obs)?.flatten_all()
    }

    /// Numbers in one observation.
    pub(super) fn obs_len(&self) -> usize {
        self.policy.inputs
    }

    /// Number of actions.
    pub(super) fn num_actions(&self) -> usize {
        self.policy.outputs
    }

    /// Everything that is trained, in a fixed order.
    pub(super) fn vars(&self) -> Vec<Var> {
        let layers = self.policy.layers.iter().chain(&self.value.layers);
        layers.flat_map(|layer| [layer.weight.clone(), layer.bias.clone()]).collect()
    }
}

/// Linear layers with tanh between them.
#[derive(Debug)]
struct Mlp {
    layers: Vec<Layer>,
    inputs: usize,
    outputs: usize,
}

#[derive(Debug)]
struct Layer {
    weight: Var,
    bias: Var,
}

impl Mlp {
    fn from_weights(weights: &Weights, network: &str, device: &Device) -> Result<Self, ModelError> {
        let mut layers = Vec::new();
        let mut widths: Vec<usize> = Vec::new();
        while let Some(weight) = weights.tensor(&format!("{network}.{}.weight", layers.len())) {
            let bias_name = format!("{network}.{}.bias", layers.len());
            let bias = weights.tensor(&bias_name).ok_or_else(|| missing(&bias_name))?;
            let &[inputs, outputs] = weight.shape.as_slice() else { return Err(misfit(weight)) };
            if widths.last().is_some_and(|&below| below != inputs as usize) {
                return Err(misfit(weight));
            }
            if bias.shape != [outputs] {
                return Err(misfit(bias));
            }
            if widths.is_empty() {
                widths.push(inputs as usize);
            }
            widths.push(outputs as usize);
            layers.push(Layer { weight: var(weight, device)?, bias: var(bias, device)? });
        }
        match widths.as_slice() {
            [inputs, .., outputs] => Ok(Self { inputs: *inputs, outputs: *outputs, layers }),
            _ => Err(missing(&format!("{network}.0.weight"))),
        }
    }

    fn forward(&self, obs: &Tensor) -> candle_core::Result<Tensor> {
        let mut x = obs.clone();
        for (i, layer) in self.layers.iter().enumerate() {
            x = ops::linear(&x, &layer.weight, &layer.bias)?;
            if i + 1 < self.layers.len() {
                x = ops::tanh(&x)?;
            }
        }
        Ok(x)
    }
}

fn var(tensor: &weights::Tensor, device: &Device) -> candle_core::Result<Var> {
    let shape: Vec<usize> = tensor.shape.iter().map(|&dim| dim as usize).collect();
    Var::from_slice(&tensor.values, shape, device)
}

fn tensor(name: String, var: &Var) -> candle_core::Result<weights::Tensor> {
    let shape = var.dims().iter().map(|&dim| dim as u32).collect();
    Ok(weights::Tensor { name, shape, values: var.flatten_all()?.to_vec1()? })
}

fn missing(name: &str) -> ModelError {
    ModelError::Layout(format!("'{name}' is missing"))
}

fn misfit(tensor: &weights::Tensor) -> ModelError {
    ModelError::Layout(format!("'{}' of shape {:?} does not fit its neighbours", tensor.name, tensor.shape))
}

#[cfg(test)]
mod tests {
    use rollmesh_core::{
        env::{Moment, RowsMut, RowsRef},
        ids::SlotId,
        policy::{ActionInput, ActionOutput, MlpPolicy, MlpPolicySpec, Policy as _},
    };

    use super::{
        super::{loss::log_softmax, test_support::weights},
        *,
    };

    #[test]
    fn weights_survive_the_round_trip() {
        let weights = weights(4, &[5, 3], 2);
        let model = ActorCritic::from_weights(&weights, &Device::Cpu).unwrap();
        assert_eq!(model.to_weights(weights.version()).unwrap(), weights);
        assert_eq!((model.obs_len(), model.num_actions()), (4, 2));
    }

    #[test]
    fn a_forward_pass_by_hand() {
        let weights = weights(2, &[1], 2);
        let obs = [0.3f32, -0.2];
        let model = ActorCritic::from_weights(&weights, &Device::Cpu).unwrap();
        let logits = model.logits(&Tensor::from_slice(&obs, (1, 2), &Device::Cpu).unwrap()).unwrap();
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
        let model = ActorCritic::from_weights(&weights, &Device::Cpu).unwrap();
        let spec = MlpPolicySpec { obs_len: 4, num_actions: 2, hidden: vec![64, 64] };
        let mut acting = MlpPolicy::new(spec, weights, 1, crate::kernels::AUTO).unwrap();

        let obs: Vec<f32> = (0..4 * rows).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let moments: Vec<Moment> =
            (0..rows as u32).map(|t| Moment { slot: SlotId(0), episode: 0, t, agent: 0 }).collect();
        let (mut actions, mut logp, mut vf_preds) = (vec![0; rows], vec![0.0; rows], vec![0.0; rows]);
        let out = ActionOutput::new(RowsMut::I64(&mut actions), &mut logp, &mut vf_preds);
        acting.compute_actions(ActionInput::new(RowsRef::F32(&obs), &moments), out).unwrap();

        let obs = Tensor::from_vec(obs, (rows, 4), &Device::Cpu).unwrap();
        let learners_logp = log_softmax(&model.logits(&obs).unwrap()).unwrap().to_vec2::<f32>().unwrap();
        let learners_values = model.values(&obs).unwrap().to_vec1::<f32>().unwrap();
        for row in 0..rows {
            assert!((learners_logp[row][actions[row] as usize] - logp[row]).abs() < 1e-5, "row {row}");
            assert!((learners_values[row] - vf_preds[row]).abs() < 1e-5, "row {row}");
        }
    }

    #[test]
    fn tensors_that_do_not_fit_are_named() {
        let whole = weights(4, &[5, 3], 2);
        let without = |name: &str| whole.tensors().iter().filter(|t| t.name != name).cloned().collect();
        let model = |tensors| {
            let weights = Weights::new(whole.version(), tensors).unwrap();
            ActorCritic::from_weights(&weights, &Device::Cpu).map(drop).map_err(|error| error.to_string())
        };
        let prefix = "the weights are no pair of perceptrons: ";
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
