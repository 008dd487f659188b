//! Samplers: steppable machines that turn environment steps into rows.
//!
//! [`Lockstep`] is for vector environments with one agent per lane and nothing else to heed; it makes the fragments that
//! slots hand over. As a [`Collector`] it says what it [needs](Need) next and somebody else, a driver, answers. It owns
//! neither the environments nor the policies, so inference can sit on another thread, on a GPU or across a wire.
//!
//! [`Episodic`] takes everything: several agents, whole episodes, user code at every step, horizons, policies with
//! memory, environments that fail or live elsewhere. It makes the batches that a worker hands over, as its
//! [`SamplerInput`]. Law: both make identical rows of any environment that both can take.
//!
//! ```
//! use rollmesh_core::{
//!     env::{EnvContext, EnvRegistry},
//!     ids::{FragmentNo, SlotId, WeightsVersion},
//!     kernels::Kernels,
//!     policy::RandomPolicy,
//!     run::HomeIndex,
//!     sampler::{Collector as _, LaneStart, Lockstep, Need, drive},
//! };
//!
//! let registry = EnvRegistry::builtin();
//! let home = HomeIndex { worker_index: 1, vector_index: 0 };
//! let mut env = registry.spec("CartPole-v1")?.make(&[EnvContext::new(home)], Kernels::PORTABLE)?;
//! let start = LaneStart { slot: SlotId(0), state: None };
//! let mut collector = Lockstep::<f32, i64>::new(&[start], 7, Some(500), env.as_mut())?;
//! let mut policy = RandomPolicy::new(2, 7);
//!
//! collector.begin(FragmentNo(0), WeightsVersion(0), 100);
//! // Ten steps at a time, so that there is time for something else in between.
//! while collector.need() != Need::Nothing {
//!     drive(&mut collector, env.as_mut(), &mut policy, 10)?;
//! }
//! let fragments = collector.take(env.as_ref());
//! assert_eq!(fragments[0].rows.len(), 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod budget;
mod drive;
mod episodic;
mod error;
mod input;
mod interrupt;
mod lanes;
mod lockstep;
#[cfg(test)]
mod lockstep_tests;
mod modes;
mod position;
mod state;

pub use budget::Budget;
pub use drive::{DriveError, drive};
pub(crate) use episodic::RowBuffer;
pub use episodic::{Episodic, EpisodicOptions, Progress, RecordColumns};
pub use error::SampleError;
pub use input::{InputReader, IoContext, NoopOutput, OutputWriter, SamplerHost, SamplerInput};
pub use interrupt::Interrupt;
pub use lanes::{LaneStart, Lanes};
pub use lockstep::Lockstep;
pub use modes::{BatchMode, CountStepsBy, Horizon, RewardClipping};
pub use position::Position;
pub use state::{SlotState, StateError};

use crate::{
    batch::SlotFragment,
    env::{AnyVectorEnv, EnvError, RowsRef},
    ids::{FragmentNo, WeightsVersion},
    policy::{ActionInput, ActionOutput},
    prelude::*,
};

/// What a collector waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Actions for the current observations: [`Collector::action_request`], then [`Collector::actions_done`].
    Actions,
    /// A step of the environments: [`Collector::step_env`].
    EnvStep,
    /// Values of the observations at the cuts: [`Collector::value_request`], then [`Collector::values_done`].
    Values,
    /// Nothing: the fragment is ready for [`Collector::take`].
    Nothing,
}

/// Collects one fragment after the other from a set of lanes.
pub trait Collector: Send {
    /// What has to happen next.
    fn need(&self) -> Need;

    /// Steps of the current fragment that every lane has taken.
    fn done(&self) -> u32;

    /// Begins the next fragment of every lane: `steps` env steps each.
    fn begin(&mut self, fragment: FragmentNo, weights_version: WeightsVersion, steps: u32);

    /// The current observations, and where their actions go.
    fn action_request(&mut self) -> (ActionInput<'_>, ActionOutput<'_>);

    /// The actions are written.
    fn actions_done(&mut self);

    /// Lets the environments take the actions, records the step and resets the lanes whose episode ended.
    ///
    /// # Errors
    /// The environments' own. The fragment is then lost; the lanes must be opened again from their last states.
    fn step_env(&mut self, env: &mut dyn AnyVectorEnv) -> Result<(), EnvError>;

    /// The observations at the cuts, and where their values go.
    fn value_request(&mut self) -> (RowsRef<'_>, &mut [f32]);

    /// The values are written.
    fn values_done(&mut self);

    /// Hands over the fragments, one per lane in the lanes' order. `env` is asked for its states.
    fn take(&mut self, env: &dyn AnyVectorEnv) -> Vec<SlotFragment>;

    /// The lanes.
    fn lanes(&self) -> &Lanes;
}
