//! Environments with the collector that fits their element types.

use crate::{
    batch::SlotFragment,
    column::DType,
    env::{AnyVectorEnv, EnvContext, EnvError, EnvSpec, Moment},
    ids::{FragmentNo, SlotId, WeightsVersion},
    kernels::Kernels,
    policy::Policy,
    prelude::*,
    sampler::{Collector, DriveError, LaneStart, Lockstep, Need, SlotState, drive},
};

/// Open lanes, one per slot.
pub(super) struct LaneSet {
    env: Box<dyn AnyVectorEnv>,
    collector: Box<dyn Collector>,
}

impl LaneSet {
    pub(super) fn open(
        spec: &EnvSpec,
        contexts: &[EnvContext],
        starts: &[LaneStart],
        seed: u64,
        kernels: Kernels,
    ) -> Result<Self, EnvError> {
        Self::of(spec.make(contexts, kernels)?, starts, seed, spec.max_episode_steps)
    }

    /// Lanes of an environment that is made already.
    pub(super) fn of(
        mut env: Box<dyn AnyVectorEnv>,
        starts: &[LaneStart],
        seed: u64,
        limit: Option<u32>,
    ) -> Result<Self, EnvError> {
        let collector = lockstep(starts, seed, limit, env.as_mut())?;
        Ok(Self { env, collector })
    }

    /// Opens the same environment's lanes anew. After an error the lanes are as they were, but for those that have
    /// begun another episode.
    pub(super) fn reopen(&mut self, starts: &[LaneStart], seed: u64, limit: Option<u32>) -> Result<(), EnvError> {
        self.collector = lockstep(starts, seed, limit, self.env.as_mut())?;
        Ok(())
    }

    /// Where each lane is.
    pub(super) fn moments(&self) -> &[Moment] {
        self.collector.lanes().moments()
    }

    /// The environment of all lanes.
    pub(super) fn env_mut(&mut self) -> &mut dyn AnyVectorEnv {
        self.env.as_mut()
    }

    pub(super) fn begin(&mut self, fragment: FragmentNo, version: WeightsVersion, steps: u32) {
        self.collector.begin(fragment, version, steps);
    }

    /// Goes on for at most `max_steps` steps of all lanes; the fragments if they are ready.
    pub(super) fn advance(
        &mut self,
        policy: &mut dyn Policy,
        max_steps: u32,
    ) -> Result<(u32, Option<Vec<SlotFragment>>), DriveError> {
        let steps = drive(self.collector.as_mut(), self.env.as_mut(), policy, max_steps)?;
        let ready = self.collector.need() == Need::Nothing;
        Ok((steps, ready.then(|| self.collector.take(self.env.as_ref()))))
    }

    /// Env steps of the fragment in the making, of all lanes together.
    pub(super) fn done(&self) -> u64 {
        u64::from(self.collector.done()) * self.len() as u64
    }

    pub(super) fn slots(&self) -> impl ExactSizeIterator<Item = SlotId> {
        self.collector.lanes().moments().iter().map(|moment| moment.slot)
    }

    /// State of a slot between two fragments, if it has a lane here.
    pub(super) fn state(&self, slot: SlotId) -> Option<SlotState> {
        let lane = self.slots().position(|s| s == slot)?;
        Some(self.collector.lanes().state(lane, self.env.as_ref()))
    }

    pub(super) fn len(&self) -> usize {
        self.collector.lanes().len()
    }
}

/// Whether actions of this type can be sampled in lockstep.
pub(super) fn takes_actions(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::I64 | DType::U8)
}

/// The collector for an environment's element types: any observation, and the actions that
/// [`takes_actions`] names.
fn lockstep(
    starts: &[LaneStart],
    seed: u64,
    limit: Option<u32>,
    env: &mut dyn AnyVectorEnv,
) -> Result<Box<dyn Collector>, EnvError> {
    macro_rules! by_type {
        ($($obs:ident($o:ty)),+; $actions:tt) => {
            match env.dtypes().0 {
                $(DType::$obs => by_type!($o; $actions),)+
            }
        };
        ($o:ty; [$($action:ident($a:ty)),+]) => {
            match env.dtypes() {
                $((_, DType::$action) => Ok(Box::new(Lockstep::<$o, $a>::new(starts, seed, limit, env)?)),)+
                (_, action) => Err(EnvError::Failed(format!(
                    "{action} actions cannot be sampled, only those of float32, int64 and uint8"
                ))),
            }
        };
    }
    by_type! {
        F32(f32), F64(f64), I32(i32), I64(i64), U8(u8), Bool(bool);
        [F32(f32), I64(i64), U8(u8)]
    }
}
