//! The forward pass of a policy's networks, by the kernels or by a device that a shell gives.

use core::fmt;

use super::{ModelSpec, model};
pub use crate::kernels::nets::{Input, Output};
use crate::{
    kernels::{Kernels, Networks, nets::NetBuffers},
    policy::{PolicyContext, PolicyError},
    prelude::*,
    weights::Weights,
};

/// Computes the outputs of a [`ModelSpec`]'s networks for rows of observations.
///
/// [`NetPolicy`](super::NetPolicy) does the rest: it encodes and normalises observations before, and draws actions after.
/// The kernels are the default, with one order of sums. An implementation on a device keeps the weights there between
/// calls; its outputs need not have the kernels' bits, nor the same bits for a row in batches of other sizes.
pub trait Forward: fmt::Debug + Send {
    /// Replaces the weights. Their names and shapes are those of the model, and tensors of a filter may be among them.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] if the device fails.
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError>;

    /// Computes the distributions' inputs, the values and the states after the rows, as far as `out` has buffers for them. The
    /// number of rows is that of `out.values`; all lengths have been checked.
    ///
    /// # Errors
    /// [`PolicyError::Failed`] if the device fails.
    fn forward(&mut self, input: Input<'_>, out: Output<'_>) -> Result<(), PolicyError>;
}

type MakeForward = dyn Fn(&PolicyContext, &ModelSpec, &Weights) -> Result<Box<dyn Forward>, PolicyError> + Send + Sync;

/// Makes a [`Forward`] for each policy with networks, from its context, its model and its first weights. See
/// [`PolicyRegistry::act_with`](crate::policy::PolicyRegistry::act_with).
#[derive(Clone)]
pub struct ForwardFactory(Arc<MakeForward>);

impl ForwardFactory {
    /// Wraps a function.
    #[must_use]
    pub fn new(
        make: impl Fn(&PolicyContext, &ModelSpec, &Weights) -> Result<Box<dyn Forward>, PolicyError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(make))
    }

    /// Makes a [`Forward`] for a policy.
    ///
    /// # Errors
    /// The function's own.
    pub fn make(
        &self,
        context: &PolicyContext,
        spec: &ModelSpec,
        weights: &Weights,
    ) -> Result<Box<dyn Forward>, PolicyError> {
        (self.0)(context, spec, weights)
    }
}

impl fmt::Debug for ForwardFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForwardFactory").finish_non_exhaustive()
    }
}

/// Returns the implementation that computes a model's outputs with the kernels.
///
/// # Errors
/// [`PolicyError::Weights`] if some are missing.
pub(crate) fn forward_by_kernels(
    spec: &ModelSpec,
    weights: &Weights,
    kernels: Kernels,
) -> Result<Box<dyn Forward>, PolicyError> {
    Ok(Box::new(KernelForward::new(spec, weights, kernels)?))
}

/// The networks, packed for the kernels, and the kernels' buffers.
#[derive(Debug)]
pub(super) struct KernelForward {
    spec: ModelSpec,
    nets: Networks,
    kernels: Kernels,
    buffers: NetBuffers,
}

impl KernelForward {
    /// Packs the weights of a model that has been checked.
    ///
    /// # Errors
    /// [`PolicyError::Weights`] if some are missing.
    pub(super) fn new(spec: &ModelSpec, weights: &Weights, kernels: Kernels) -> Result<Self, PolicyError> {
        Ok(Self { spec: spec.clone(), nets: model::pack(spec, weights)?, kernels, buffers: NetBuffers::default() })
    }
}

impl Forward for KernelForward {
    fn set_weights(&mut self, weights: &Weights) -> Result<(), PolicyError> {
        Ok(model::repack(&self.spec, &mut self.nets, weights)?)
    }

    fn forward(&mut self, input: Input<'_>, out: Output<'_>) -> Result<(), PolicyError> {
        (self.kernels.forward)(&self.nets, input, &mut self.buffers, out);
        Ok(())
    }
}
