//! Acting on a device: the learner's model computes the outputs of acting policies' networks.

use candle_core::{Device, Tensor};
use rollmesh_core::{
    env::EnvSpaces,
    filter::FILTER_PREFIX,
    kernels::Kernels,
    policy::{Forward, ForwardFactory, Input, ModelSpec, Output, PolicyContext, PolicyError},
    weights::Weights,
};

use super::{
    dist::ActionHead,
    model::{ActorCritic, ModelError},
};

/// Returns the factory with which policies act on a device, for
/// [`PolicyRegistry::act_with`](rollmesh_core::policy::PolicyRegistry::act_with).
///
/// The weights stay on the device; for each batch of rows, observations and states go up in one transfer each, and the
/// outputs come down in one. Outputs are within 1e-5 of the kernels' on a CPU, and the last bits of a row may depend on the
/// number of rows on a GPU.
///
/// ```
/// use rollmesh_core::{env::EnvRegistry, kernels::Kernels, policy::{PolicyContext, PolicyRegistry}};
/// use rollmesh_learner::{DeviceSpec, forward_on};
///
/// let mut policies = PolicyRegistry::builtin();
/// policies.act_with(forward_on(DeviceSpec::Cpu.open()?));
/// let spaces = EnvRegistry::builtin().spec("CartPole-v1")?.spaces()?;
/// let forward = policies.forward().cloned();
/// let context = PolicyContext { forward, ..PolicyContext::new(spaces, 7, Kernels::PORTABLE) };
/// let policy = policies.spec("ppo")?.make_acting(&context)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn forward_on(device: Device) -> ForwardFactory {
    ForwardFactory::new(move |PolicyContext { spaces, kernels, .. }, spec, weights| {
        Ok(Box::new(DeviceForward::new(spec, spaces, weights, device.clone(), *kernels)?))
    })
}

/// A model on a device.
#[derive(Debug)]
struct DeviceForward {
    model: ActorCritic,
    device: Device,
}

impl DeviceForward {
    fn new(
        spec: &ModelSpec,
        spaces: &EnvSpaces,
        weights: &Weights,
        device: Device,
        kernels: Kernels,
    ) -> Result<Self, PolicyError> {
        let of_model = weights.tensors().iter().filter(|tensor| !tensor.name.starts_with(FILTER_PREFIX));
        let weights = Weights::new(weights.version(), of_model.cloned().collect())?;
        let head = ActionHead::for_space(&spaces.action)?;
        let model = ActorCritic::new(head, spec, &weights, &device, kernels).map_err(failed)?;
        Ok(Self { model, device })
    }

    /// Returns the outputs of all rows, row-major: distribution inputs if requested, the value, then the state after if
    /// requested.
    fn outputs(&self, input: Input<'_>, rows: usize, wants: Wants) -> candle_core::Result<Vec<f32>> {
        let upload = |values: &[f32]| Tensor::from_slice(values, (rows, values.len() / rows), &self.device);
        let before = (!self.model.state_lens().is_empty()).then(|| upload(input.state)).transpose()?;
        let (features, after) = self.model.features(&upload(input.obs)?, before.as_ref())?;
        let mut parts = Vec::with_capacity(3);
        if wants.dist_inputs {
            parts.push(self.model.dist_inputs(&features)?);
        }
        parts.push(self.model.values(&features)?);
        parts.extend(after.filter(|_| wants.state));
        Tensor::cat(&parts, 1)?.flatten_all()?.to_vec1()
    }
}

/// The outputs that the caller requests.
#[derive(Clone, Copy)]
struct Wants {
    dist_inputs: bool,
    state: bool,
}

impl Forward for DeviceForward {
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        self.model.load(weights).map_err(failed)
    }

    fn forward(&mut self, input: Input<'_>, out: Output<'_>) -> Result<(), PolicyError> {
        let rows = out.values.len();
        if rows == 0 {
            return Ok(());
        }
        let wants = Wants { dist_inputs: !out.dist_inputs.is_empty(), state: !out.state.is_empty() };
        let found = self.outputs(input, rows, wants).map_err(|error| failed(error.into()))?;
        let (inputs, states) = (out.dist_inputs.len() / rows, out.state.len() / rows);
        for (row, found) in found.chunks_exact(inputs + 1 + states).enumerate() {
            out.dist_inputs[row * inputs..][..inputs].copy_from_slice(&found[..inputs]);
            out.values[row] = found[inputs];
            out.state[row * states..][..states].copy_from_slice(&found[inputs + 1..]);
        }
        Ok(())
    }
}

fn failed(error: ModelError) -> PolicyError {
    match error {
        ModelError::Weights(error) => error.into(),
        other => PolicyError::Failed(other.to_string()),
    }
}
