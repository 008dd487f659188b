//! Environments with the collector that fits their element types.

use crate::{
    batch::SlotFragment,
    column::{DType, Element},
    env::{AnyVectorEnv, EnvError},
    ids::SlotId,
    policy::PolicyEntry,
    prelude::*,
    sampler::{Collector, LaneStart, Lockstep, Need, SampleError, SamplerOptions, drive},
};

/// Open lanes, one per slot.
pub(super) struct LaneSet {
    pub(super) env: Box<dyn AnyVectorEnv>,
    pub(super) collector: Box<dyn Collector>,
}

impl LaneSet {
    /// Creates the lanes of an existing environment, for a policy with its preprocessor and filter.
    pub(super) fn of(
        mut env: Box<dyn AnyVectorEnv>,
        starts: &[LaneStart],
        options: &SamplerOptions,
        entry: &PolicyEntry,
    ) -> Result<Self, EnvError> {
        let collector = lockstep(starts, options, entry, env.as_mut())?;
        Ok(Self { env, collector })
    }

    /// Takes at most `max_steps` steps of all lanes; returns the fragments once they are complete.
    pub(super) fn advance(
        &mut self,
        entry: &mut PolicyEntry,
        max_steps: u32,
    ) -> Result<(u32, Option<Vec<SlotFragment>>), SampleError> {
        let steps = drive(self.collector.as_mut(), self.env.as_mut(), entry, max_steps)?;
        let is_ready = self.collector.need() == Need::Nothing;
        let fragments = is_ready.then(|| self.collector.take(self.env.as_ref())).transpose()?;
        Ok((steps, fragments))
    }

    /// Returns the env steps of the fragment in progress, over all lanes.
    pub(super) fn done(&self) -> u64 {
        u64::from(self.collector.done()) * self.len() as u64
    }

    pub(super) fn slots(&self) -> impl ExactSizeIterator<Item = SlotId> {
        self.collector.lanes().moments().iter().map(|moment| moment.slot)
    }

    pub(super) fn len(&self) -> usize {
        self.collector.lanes().len()
    }
}

/// Returns the collector for the element type of the observations that the policy sees.
fn lockstep(
    starts: &[LaneStart],
    options: &SamplerOptions,
    entry: &PolicyEntry,
    env: &mut dyn AnyVectorEnv,
) -> Result<Box<dyn Collector>, EnvError> {
    fn make<O: Element>(
        starts: &[LaneStart],
        options: &SamplerOptions,
        entry: &PolicyEntry,
        env: &mut dyn AnyVectorEnv,
    ) -> Result<Box<dyn Collector>, EnvError> {
        Ok(Box::new(Lockstep::<O>::new(starts, options, entry, env)?))
    }
    let obs = if entry.preprocessor.is_some() { DType::F32 } else { env.dtypes().0 };
    let make = match obs {
        DType::F32 => make::<f32>,
        DType::F64 => make::<f64>,
        DType::I32 => make::<i32>,
        DType::I64 => make::<i64>,
        DType::U8 => make::<u8>,
        DType::Bool => make::<bool>,
    };
    make(starts, options, entry, env)
}
