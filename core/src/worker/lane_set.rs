//! Environments with the collector that fits their element types.

use crate::{
    batch::SlotFragment,
    column::{DType, Element},
    env::{AnyVectorEnv, EnvError, EnvState, Moment},
    ids::{FragmentNo, SlotId, WeightsVersion},
    policy::PolicyEntry,
    prelude::*,
    sampler::{Collector, DriveError, LaneStart, Lockstep, Need, SamplerOptions, SlotState, drive_entry},
};

/// Open lanes, one per slot.
pub(super) struct LaneSet {
    env: Box<dyn AnyVectorEnv>,
    collector: Box<dyn Collector>,
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

    /// Reopens the same environment's lanes. After an error the lanes are unchanged, except those that have begun another
    /// episode.
    pub(super) fn reopen(&mut self, starts: &[LaneStart]) -> Result<(), EnvError> {
        self.collector.reopen(starts, self.env.as_mut())
    }

    /// Returns each lane's position.
    pub(super) fn moments(&self) -> &[Moment] {
        self.collector.lanes().moments()
    }

    /// Returns the environment of all lanes.
    pub(super) fn env_mut(&mut self) -> &mut dyn AnyVectorEnv {
        self.env.as_mut()
    }

    pub(super) fn begin(&mut self, fragment: FragmentNo, version: WeightsVersion, steps: u32) {
        self.collector.begin(fragment, version, steps);
    }

    /// Takes at most `max_steps` steps of all lanes; returns the fragments once they are complete.
    pub(super) fn advance(
        &mut self,
        entry: &mut PolicyEntry,
        max_steps: u32,
    ) -> Result<(u32, Option<Vec<SlotFragment>>), DriveError> {
        let steps = drive_entry(self.collector.as_mut(), self.env.as_mut(), entry, max_steps)?;
        Ok((steps, self.take_ready()))
    }

    fn take_ready(&mut self) -> Option<Vec<SlotFragment>> {
        (self.collector.need() == Need::Nothing).then(|| self.collector.take(self.env.as_ref()))
    }

    /// Returns the env steps of the fragment in progress, over all lanes.
    pub(super) fn done(&self) -> u64 {
        u64::from(self.collector.done()) * self.len() as u64
    }

    /// See [`Collector::num_ended`].
    pub(super) fn num_ended(&self) -> usize {
        self.collector.num_ended()
    }

    pub(super) fn slots(&self) -> impl ExactSizeIterator<Item = SlotId> {
        self.collector.lanes().moments().iter().map(|moment| moment.slot)
    }

    /// Returns a lane's state between two fragments.
    pub(super) fn state(&self, lane: usize) -> SlotState {
        self.collector.state(lane, self.env.as_ref())
    }

    /// Returns how open episodes of the environment move.
    pub(super) fn env_state(&self) -> EnvState {
        self.env.snapshot_at(0, &mut Vec::new())
    }

    /// See [`Collector::seen`].
    pub(super) fn seen(&self, lane: usize) -> Vec<f64> {
        self.collector.seen(lane)
    }

    /// See [`Collector::set_seen`].
    pub(super) fn set_seen(&mut self, lane: usize, row: &[f64]) -> bool {
        self.collector.set_seen(lane, row)
    }

    /// Returns the episode and the step of a lane that failed.
    pub(super) fn failed_at(&self, lane: usize) -> (u32, u32) {
        self.collector.failed_at(lane)
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
        Ok(Box::new(Lockstep::<O>::through(starts, options, entry, env)?))
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
