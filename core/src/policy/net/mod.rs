//! The acting policy for every space and model: convolutions, dense layers, and an LSTM if wanted.

mod build;
mod config;
mod custom;
mod encoder;
mod forward;
mod given;
mod head;
mod inputs;
mod layer;
mod mask;
mod model;
mod rows;
mod spec;
#[cfg(test)]
mod tests;

use core::num::NonZeroU32;

pub use config::{AutoFilters, ConvFilter, ConvFilters, Extent, ModelConfig, WeightsInitializer};
pub use custom::{CustomModel, LayerDescription, ModelDescription, ModelRegistry};
pub use encoder::ObsEncoder;
pub(crate) use forward::forward_by_kernels;
pub use forward::{Forward, ForwardFactory, Input, Output};
pub(super) use layer::{Init, TensorSpec};
pub use layer::{LayerKind, LayerSpec, PreviousInputs};
pub use mask::{MASKED_LOGIT, MaskedObs};
pub use spec::ModelSpec;

use self::{forward::KernelForward, given::GivenActions, head::Head, inputs::Inputs, rows::Net};
use super::{
    ActionInput, ActionOutput, Policy, PolicyContext, PolicyError, PolicyRegistry, Postprocessing, PreviousStep,
    TakenActions, normalizer::Normalizer, weights_seed,
};
use crate::{
    batch::state_in,
    column::{DType, RowShape},
    env::{EnvSpaces, RowsRef},
    kernels::Kernels,
    postprocess::AdvantageConfig,
    prelude::*,
    space::Space,
    view::{ViewRequirement, ViewRequirements},
    weights::{Weights, WeightsError},
};

/// A policy with the networks of a [`ModelSpec`], for observations and actions of any space. It acts; learning policies
/// are built on it.
///
/// Actions are drawn from the [`ActionDistribution`](crate::distribution::ActionDistribution) of the space: of a box of
/// floats unbounded ones, see [`action`](crate::action); of tuples and dicts each part independently, joined to one row. If
/// observations have an [action mask](MaskedObs), only actions that it allows are chosen. States are the memory's, hidden
/// ones first, and what it sees of the [previous step](PreviousStep) last; they are zero at the start of an episode.
///
/// Rows do not depend on each other, and sums have one order: results are bit-identical on every target, and from every
/// table of kernels. [Another `Forward`](Self::with_forward), on a GPU for example, gives other bits. If there are
/// [statistics among the weights](crate::filter::FILTER_PREFIX), observations are normalised with them.
///
/// ```
/// use rollmesh_core::{
///     env::{EnvRegistry, Moment, RowsMut, RowsRef},
///     kernels::Kernels,
///     policy::{ActionInput, ActionOutput, ModelConfig, ModelSpec, NetPolicy, Policy},
/// };
///
/// let spaces = EnvRegistry::builtin().spec("Pendulum-v1")?.spaces()?;
/// let model = ModelConfig { use_lstm: true, ..ModelConfig::default() };
/// let weights = ModelSpec::for_spaces(&spaces, &model)?.init_weights(7)?;
/// let mut policy = NetPolicy::new(&spaces, &model, weights, 7, Kernels::PORTABLE)?;
///
/// let (mut action, mut logp, mut value, mut state) = ([0.0], [0.0], [0.0], [0.0; 128]);
/// let mut out = ActionOutput::new(RowsMut::F32(&mut action), &mut logp, &mut value);
/// let before = [0.0; 128];
/// let moments = [Moment::default()];
/// out.state = &mut state;
/// policy.compute_actions(ActionInput { state: &before, ..ActionInput::new(RowsRef::F32(&[1.0, 0.0, 0.5]), &moments) }, out)?;
/// assert_eq!(policy.state_lens(), [64, 64]);
/// assert!(state != before);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct NetPolicy {
    spec: ModelSpec,
    weights: Weights,
    inputs: Inputs,
    net: Net,
    /// The weights are newer than those of the networks.
    is_stale: bool,
    action_type: DType,
    max_seq_len: NonZeroU32,
    state_lens: Vec<usize>,
    previous: Option<PreviousStep>,
    postprocessing: Postprocessing,
}

impl NetPolicy {
    /// Creates a policy with the given weights, for example [`ModelSpec::init_weights`]; `seed` is the run's.
    ///
    /// # Errors
    /// As [`ModelSpec::for_spaces`]; [`PolicyError::Weights`] when the weights do not fit.
    pub fn new(
        spaces: &EnvSpaces,
        config: &ModelConfig,
        weights: Weights,
        seed: u64,
        kernels: Kernels,
    ) -> Result<Self, PolicyError> {
        let spec = ModelSpec::for_spaces(spaces, config)?;
        let (head, state_lens) = (Head::for_space(&spaces.action)?, spec.state_lens());
        let forward = Box::new(KernelForward::new(&spec, &weights, kernels)?);
        Ok(Self {
            inputs: Inputs::new(spaces, Normalizer::new(&weights, spec.obs_len)?)?,
            net: Net::new(forward, head, state_lens.iter().sum(), seed, kernels),
            is_stale: false,
            action_type: spaces.action_type,
            max_seq_len: config.max_seq_len,
            state_lens,
            previous: PreviousStep::of(&spec, &spaces.action)?,
            postprocessing: Postprocessing::None,
            spec,
            weights,
        })
    }

    /// Creates the policy that a context describes, with the settings `model`, `gamma`, `lambda`, `use_gae` and
    /// `use_critic`, and first weights from [`weights_seed`].
    ///
    /// # Errors
    /// As [`new`](Self::new), [`ModelConfig::of`] and [`Postprocessing::advantages`].
    pub fn for_context(context: &PolicyContext) -> Result<Self, PolicyError> {
        Self::in_context(context, PolicyRegistry::A2C_ADVANTAGES, false)
    }

    /// Creates the acting part of an algorithm's policy, with the algorithm's settings, which have these defaults.
    /// Without a critic its values are always 0: the state after the end of a batch counts for nothing.
    ///
    /// # Errors
    /// As [`for_context`](Self::for_context).
    pub fn for_algorithm(context: &PolicyContext, defaults: AdvantageConfig) -> Result<Self, PolicyError> {
        let is_valued = context.config.get("use_critic")?.unwrap_or(defaults.use_critic);
        Self::in_context(context, defaults, !is_valued)
    }

    /// Creates the policy, with the forward pass of the context if it has one.
    fn in_context(
        context: &PolicyContext,
        defaults: AdvantageConfig,
        is_without_values: bool,
    ) -> Result<Self, PolicyError> {
        let PolicyContext { id, spaces, config, seed, kernels, forward, models, .. } = context;
        let model = models.resolved(ModelConfig::of(config)?)?;
        let mut weights = ModelSpec::for_spaces(spaces, &model)?.init_weights(weights_seed(*seed, id))?;
        if is_without_values {
            weights = without_values(&weights)?;
        }
        let mut policy = Self::new(spaces, &model, weights, *seed, *kernels)?;
        if let Some(factory) = forward {
            policy.net.forward = factory.make(context, &policy.spec, &policy.weights)?;
        }
        Ok(policy.with_postprocessing(Postprocessing::advantages(config, defaults)?))
    }

    /// Computes the networks' outputs by `forward` instead of the kernels. It gets the policy's weights before the next rows.
    #[must_use]
    pub fn with_forward(mut self, forward: Box<dyn Forward>) -> Self {
        self.net.forward = forward;
        self.is_stale = true;
        self
    }

    /// Sets the processing of trajectories; none by default.
    #[must_use]
    pub fn with_postprocessing(self, postprocessing: Postprocessing) -> Self {
        Self { postprocessing, ..self }
    }

    /// Returns the shape of the networks.
    #[must_use]
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Returns the encoder, which turns observations into rows of floats.
    #[must_use]
    pub fn encoder(&self) -> &ObsEncoder {
        &self.inputs.encoder
    }

    /// Passes the weights to the networks, if that has not been done yet.
    fn freshen(&mut self) -> Result<(), PolicyError> {
        if self.is_stale {
            self.net.forward.set_weights(&self.weights)?;
            self.is_stale = false;
        }
        Ok(())
    }
}

/// Returns weights with which all values are 0.
fn without_values(weights: &Weights) -> Result<Weights, WeightsError> {
    let tensors = weights.tensors().iter().cloned().map(|mut tensor| {
        // The layers before the last one do not matter.
        if tensor.name.starts_with("value.") {
            tensor.values.fill(0.0);
        }
        tensor
    });
    Weights::new(weights.version(), tensors.collect())
}

impl Policy for NetPolicy {
    fn compute_actions(&mut self, input: ActionInput<'_>, out: ActionOutput<'_>) -> Result<(), PolicyError> {
        let rows = input.moments.len();
        out.check(rows, self.net.head.action_len())?;
        out.check_optional(rows, self.net.state_len, self.net.head.input_len())?;
        self.net.check_state(rows, input.state)?;
        if out.actions.dtype() != self.action_type {
            let found = format!("actions of {}", out.actions.dtype());
            return Err(PolicyError::Unsupported { wanted: format!("actions of {}", self.action_type), found });
        }
        self.freshen()?;
        let (obs, mask) = self.inputs.of(input.obs, rows)?;
        self.net.act(obs, mask, self.previous.as_ref(), input, out)
    }

    fn compute_values(&mut self, obs: RowsRef<'_>, state: &[f32], values: &mut [f32]) -> Result<(), PolicyError> {
        self.net.check_state(values.len(), state)?;
        self.freshen()?;
        let (obs, _) = self.inputs.of(obs, values.len())?;
        self.net.estimate(obs, state, values)
    }

    fn compute_outputs(&mut self, input: Input<'_>, out: Output<'_>) -> Result<(), PolicyError> {
        let (rows, states, inputs) = (out.values.len(), self.net.state_len, self.net.head.input_len());
        let fits = |buffer, found, per_row| PolicyError::check_buffer(buffer, found, rows.saturating_mul(per_row));
        fits("obs", input.obs.len(), self.spec.obs_len)?;
        self.net.check_state(rows, input.state)?;
        // The caller may leave out these.
        if !out.dist_inputs.is_empty() {
            fits("dist_inputs", out.dist_inputs.len(), inputs)?;
        }
        if !out.state.is_empty() {
            fits("state", out.state.len(), states)?;
        }
        self.freshen()?;
        self.net.forward.forward(input, out)
    }

    fn take_actions(&mut self, taken: Option<TakenActions>) -> Result<(), PolicyError> {
        self.net.given = taken.map(GivenActions::new);
        Ok(())
    }

    fn state_lens(&self) -> &[usize] {
        &self.state_lens
    }

    fn previous_step(&self) -> Option<&PreviousStep> {
        self.previous.as_ref()
    }

    fn takes_action_masks(&self) -> bool {
        true
    }

    fn dist_inputs_len(&self) -> usize {
        self.net.head.input_len()
    }

    fn encoded_obs_len(&self) -> usize {
        self.spec.obs_len
    }

    /// Returns the views `state_in_0` and `state_in_1` of a recurrent policy, one row per sequence.
    fn view_requirements(&self) -> ViewRequirements {
        let view = |(index, &len): (usize, &usize)| {
            let shape = RowShape::vector(len as u32);
            let space = Space::uniform(DType::F32, shape, f64::NEG_INFINITY, f64::INFINITY);
            let view = ViewRequirement { space: Some(space), ..ViewRequirement::state_in(index, self.max_seq_len) };
            (state_in(index).as_str().to_owned(), view)
        };
        self.state_lens.iter().enumerate().map(view).collect_ordered()
    }

    fn postprocessing(&self) -> Postprocessing {
        self.postprocessing
    }

    fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Sets the weights. The networks' copy is created for the first rows that act with them, so weights that newer
    /// ones follow immediately need none.
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        model::check(&self.spec, weights)?;
        self.inputs.normalizer.set_weights(weights, self.spec.obs_len)?;
        self.weights = weights.clone();
        self.is_stale = true;
        Ok(())
    }
}
