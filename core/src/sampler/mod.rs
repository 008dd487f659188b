//! Samplers: steppable machines that turn environment steps into rows.
//!
//! [`Lockstep`] is for vector environments with one agent per lane; it makes the fragments that slots hand over. As a [`Collector`] it says what it [needs](Need) next and somebody else, a driver, answers. It owns
//! neither the environments nor the policies, so inference can sit on another thread, on a GPU or across a wire.
//!
//! [`Episodic`] takes everything: several agents, whole episodes, user code at every step, views of several steps,
//! environments that fail or live elsewhere. It makes the batches that a worker hands over, as its
//! [`SamplerInput`]. Law: both make identical rows of any environment that both can take.
//!
//! ```
//! use rollmesh_core::{
//!     env::{EnvContext, EnvRegistry},
//!     ids::{FragmentNo, HomeIndex, SlotId, WeightsVersion},
//!     kernels::Kernels,
//!     policy::RandomPolicy,
//!     sampler::{Collector as _, LaneStart, Lockstep, Need, SamplerOptions, drive},
//! };
//!
//! let registry = EnvRegistry::builtin();
//! let home = HomeIndex { worker_index: 1, vector_index: 0 };
//! let mut env = registry.spec("CartPole-v1")?.make(&[EnvContext::new(home)], Kernels::PORTABLE)?;
//! let start = LaneStart { slot: SlotId(0), state: None };
//! let mut policy = RandomPolicy::new(2, 7);
//! let options = SamplerOptions { seed: 7, max_episode_steps: Some(500), ..SamplerOptions::default() };
//! let mut collector = Lockstep::<f32>::new(&[start], &options, &policy, env.as_mut())?;
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
mod layout;
mod lockstep;
mod modes;
mod options;
mod position;
mod rows;
mod state;
mod wants;
mod weights;

pub use budget::Budget;
pub use drive::{DriveError, drive, drive_entry};
pub use episodic::{Episodic, Progress};
pub(crate) use episodic::{agent_env, agent_position};
pub use error::SampleError;
pub use input::{InputReader, IoContext, NoopOutput, OutputWriter, SamplerHost, SamplerInput};
pub use interrupt::Interrupt;
pub use lanes::{LaneStart, Lanes};
pub use layout::{AgentLayout, FragmentLayout};
pub use lockstep::Lockstep;
pub(crate) use lockstep::preprocessor_of;
pub use modes::{BatchMode, CountStepsBy, Horizon, RewardClipping};
pub use options::{RecordColumns, SamplerOptions};
pub use position::Position;
pub use state::{SlotState, StateError};
pub use wants::RecurrentShape;
pub(crate) use weights::set_weights;

use core::ops::Range;

use crate::{
    batch::SlotFragment,
    env::{AnyVectorEnv, EnvError, RowsRef},
    ids::{FragmentNo, SlotId, WeightsVersion},
    policy::{ActionInput, ActionOutput, Policy, PolicyEntry},
    prelude::*,
};

/// Returns the number of the open episode in a slot's state, and its env steps; `None` for bytes that are no such state.
pub(crate) fn position_in(state: &[u8], slot: SlotId) -> Option<(u32, u32)> {
    agent_position(state, slot).or_else(|| SlotState::decode(state).ok().map(|state| (state.episode, state.t)))
}

/// Where a state of this slot has what its environment is brought back from; `None` for bytes that are no such state.
pub(crate) fn env_range(state: &[u8], slot: SlotId) -> Option<Range<usize>> {
    match agent_env(state, slot) {
        // It is the last part.
        Some((_, env)) => Some(state.len().checked_sub(env.len())?..state.len()),
        None => SlotState::env_range(state),
    }
}

/// What a collector waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A look at the latest observations by the policy's preprocessor and filter: [`Collector::observe`].
    Observations,
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

    /// Opens the same environment's lanes anew. After an error the lanes are as they were, but for those that have begun
    /// another episode.
    ///
    /// # Errors
    /// The environment's own, for example for a state that is not its; [`EnvError::WrongLength`] for the memory of
    /// another policy.
    fn reopen(&mut self, starts: &[LaneStart], env: &mut dyn AnyVectorEnv) -> Result<(), EnvError>;

    /// Begins the next fragment of every lane: `steps` env steps each.
    fn begin(&mut self, fragment: FragmentNo, weights_version: WeightsVersion, steps: u32);

    /// Hears of the policy that acts from now on, for the memory with which episodes begin.
    fn prepare(&mut self, policy: &dyn Policy);

    /// Makes of the latest observations what the policy sees.
    ///
    /// # Errors
    /// [`DriveError`]. The fragment is then lost, as after an error of [`step_env`](Self::step_env).
    fn observe(&mut self, entry: &mut PolicyEntry) -> Result<(), DriveError>;

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
    fn value_request(&mut self) -> ValueRequest<'_>;

    /// The values are written.
    fn values_done(&mut self);

    /// Hands over the fragments, one per lane in the lanes' order. `env` is asked for its states.
    fn take(&mut self, env: &dyn AnyVectorEnv) -> Vec<SlotFragment>;

    /// After an error: the episode of a lane and its step, counted from 0, that failed.
    fn failed_at(&self, lane: usize) -> (u32, u32);

    /// The lanes.
    fn lanes(&self) -> &Lanes;

    /// What the policy sees of a lane's latest observation between two fragments; empty where that follows from the
    /// lane's state. With a filter it does not: the filter has counted the observation.
    fn seen(&self, lane: usize) -> Vec<f64>;

    /// Sets what the policy sees of a lane's first observation, right after the lanes were opened. False for rows of
    /// another length and for numbers that are not finite.
    fn set_seen(&mut self, lane: usize, row: &[f64]) -> bool;

    /// The state of a lane between two fragments. `env` is asked for its part.
    fn state(&self, lane: usize, env: &dyn AnyVectorEnv) -> SlotState;
}

/// Observations whose values are wanted.
#[derive(Debug)]
pub struct ValueRequest<'a> {
    /// The observations, row-major.
    pub obs: RowsRef<'a>,
    /// The recurrent states before them, as in [`ActionInput::state`].
    pub state: &'a [f32],
    /// Where the values go, one per observation.
    pub values: &'a mut [f32],
}
