//! The dense layers of an RLlib module, found by the names of its tensors.

use std::collections::BTreeMap;

use rollmesh_core::{
    config::Config,
    env::EnvSpaces,
    filter::FilterKind,
    ids::PolicyId,
    space::Space,
    weights::{Tensor, Weights},
    worker::{PolicyConfig, RolloutConfig},
};
use serde_json::json;

use super::{RllinkConfig, RllinkError, link::Array};

/// Prefixes of the names of the acting layers: those of separate or shared encoders, then those of the head.
const ACTING: [&str; 3] = ["encoder.actor_encoder.net.mlp.", "encoder.encoder.net.mlp.", HEAD];
const HEAD: &str = "pi.net.mlp.";
/// Names of tensors that do not act begin with these: the value network, and constants.
const SILENT: [&str; 3] = ["encoder.critic_encoder.", "vf.", "pi.log_std_clip_param_const"];

/// A dense layer.
struct Dense {
    weight: Array,
    bias: Array,
}

/// The acting layers of a module, first to last.
pub(super) struct Module {
    layers: Vec<Dense>,
}

impl Module {
    /// Finds the layers among the tensors.
    pub(super) fn read(tensors: &[(String, Array)]) -> Result<Self, RllinkError> {
        // By place in the network: the part, and the index within it.
        let mut found: BTreeMap<(usize, u32), [Option<&Array>; 2]> = BTreeMap::new();
        for (name, tensor) in tensors {
            if SILENT.iter().any(|prefix| name.starts_with(prefix)) {
                continue;
            }
            let (place, part) = place(name).ok_or_else(|| RllinkError::NotDense(name.clone()))?;
            found.entry(place).or_default()[part] = Some(tensor);
        }
        if !found.keys().any(|(part, _)| ACTING[*part] == HEAD) {
            return Err(RllinkError::NoHead);
        }
        let layer = |((part, index), [weight, bias]): ((usize, u32), [Option<&Array>; 2])| {
            let lacks = |what| RllinkError::Layer(format!("{}{index}", ACTING[part]), what);
            let weight = weight.filter(|weight| weight.shape.len() == 2).ok_or_else(|| lacks("matrix of weights"))?;
            let bias = bias.filter(|bias| bias.shape == weight.shape[..1]).ok_or_else(|| lacks("vector of biases"))?;
            Ok(Dense { weight: weight.clone(), bias: bias.clone() })
        };
        let layers = found.into_iter().map(layer).collect::<Result<_, RllinkError>>()?;
        Ok(Self { layers })
    }

    /// Returns the settings of a worker whose policy has these layers.
    pub(super) fn rollout(&self, config: &RllinkConfig) -> RolloutConfig {
        let hidden: Vec<u32> = self.layers[..self.layers.len() - 1].iter().map(|layer| layer.weight.shape[0]).collect();
        let model = json!({ "fcnet_hiddens": hidden, "fcnet_activation": config.activation });
        let policy = Config::new().with_at("model", model);
        let policy = PolicyConfig { policy: "net".into(), config: policy, ..PolicyConfig::default() };
        RolloutConfig {
            policies: [(PolicyId::DEFAULT, policy)].into(),
            observation_filter: FilterKind::NoFilter,
            ..config.rollout.clone()
        }
    }

    /// Returns the weights of a policy with the module's layers, and with its own value network.
    pub(super) fn weights_of(&self, own: &Weights) -> Result<Weights, RllinkError> {
        let acting = self.layers.iter().enumerate().flat_map(|(at, Dense { weight, bias })| {
            let (outputs, inputs) = (weight.shape[0], weight.shape[1]);
            // PyTorch has a row for each output, the kernels one for each input.
            let by_input = (0..inputs as usize)
                .flat_map(|input| weight.values.iter().skip(input).step_by(inputs as usize).copied())
                .collect();
            let name = |kind: &str| format!("policy.{at}.{kind}");
            [
                Tensor { name: name("weight"), shape: vec![inputs, outputs], values: by_input },
                Tensor { name: name("bias"), shape: bias.shape.clone(), values: bias.values.clone() },
            ]
        });
        let others = own.tensors().iter().filter(|tensor| !tensor.name.starts_with("policy.")).cloned();
        Ok(Weights::new(own.version(), acting.chain(others).collect())?)
    }
}

/// Returns the place of a layer, and 0 for its weights and 1 for its biases.
fn place(name: &str) -> Option<((usize, u32), usize)> {
    ACTING.iter().enumerate().find_map(|(part, prefix)| {
        let (index, kind) = name.strip_prefix(prefix)?.split_once('.')?;
        let kind = ["weight", "bias"].iter().position(|of| *of == kind)?;
        Some(((part, index.parse().ok()?), kind))
    })
}

/// Returns the reason that the module would see rows of these spaces differently from the worker's policy, if there is
/// one.
pub(super) fn problem_of(spaces: &EnvSpaces) -> Option<&'static str> {
    match (&spaces.observation, &spaces.action) {
        (Space::Box(_), _) if spaces.observation.shape().dims().len() > 1 => Some("observations of several dimensions"),
        (Space::Box(_), Space::Discrete { .. } | Space::Box(_)) => None,
        (Space::Box(_), _) => Some("compound actions"),
        (_, _) => Some("observations that are no Box"),
    }
}
