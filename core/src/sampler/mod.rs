//! Samplers: steppable machines that turn environment steps into rows.
//!
//! [`Lockstep`] is for vector environments with one agent per lane; it makes the fragments of slots. As a [`Collector`] it
//! says what it [needs](Need) next, and a driver answers. It owns neither environments nor policies, so inference may run on
//! another thread, on a GPU or across a wire.
//!
//! [`Episodic`] supports everything: several agents, whole episodes, user code at every step, views of several steps,
//! environments that fail or run in other processes. It makes a worker's batches, as its [`InputReader`]. Law: both make
//! identical rows of any environment that both support.
//!
//! ```
//! use rollmesh_core::{
//!     env::{EnvContext, EnvRegistry},
//!     ids::{FragmentNo, HomeIndex, SlotId, WeightsVersion},
//!     kernels::Kernels,
//!     policy::{Policy, PolicyEntry, RandomPolicy},
//!     sampler::{Collector as _, LaneStart, Lockstep, Need, SamplerOptions, drive},
//! };
//!
//! let registry = EnvRegistry::builtin();
//! let home = HomeIndex { worker_index: 1, vector_index: 0 };
//! let mut env = registry.spec("CartPole-v1")?.make(&[EnvContext::new(home)], Kernels::PORTABLE)?;
//! let start = LaneStart { slot: SlotId(0), state: None };
//! let mut policy = PolicyEntry::<dyn Policy>::new("", Box::new(RandomPolicy::new(2, 7)));
//! let options = SamplerOptions { seed: 7, max_episode_steps: Some(500), ..SamplerOptions::default() };
//! let mut collector = Lockstep::<f32>::new(&[start], &options, &policy, env.as_mut())?;
//!
//! collector.begin(FragmentNo(0), WeightsVersion(0), 100);
//! // Ten steps at a time, so that the caller can do other things in between.
//! while collector.need() != Need::Nothing {
//!     drive(&mut collector, env.as_mut(), &mut policy, 10)?;
//! }
//! let fragments = collector.take(env.as_ref())?;
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
pub use drive::drive;
pub use episodic::{Episodic, SampleProgress};
pub(crate) use episodic::{Restarts, agent_env, agent_position};
pub use error::SampleError;
pub use input::{InputReader, IoContext, NoopOutput, OutputWriter, ResumePoint, SamplerHost};
pub use interrupt::Interrupt;
pub use lanes::{LaneStart, Lanes};
pub use layout::{AgentLayout, FragmentLayout};
pub use lockstep::Lockstep;
pub use modes::{BatchMode, CountStepsBy, Horizon, RewardClipping};
pub use options::{RecordColumns, SamplerOptions};
pub use position::Position;
pub use state::{SlotState, StateError};
pub use wants::RecurrentShape;
pub(crate) use weights::{replace_weights, set_weights};

use core::ops::Range;

use crate::{
    batch::SlotFragment,
    env::{AnyVectorEnv, EnvError, RowsRef},
    ids::{FragmentNo, SlotId, WeightsVersion},
    policy::{ActionInput, ActionOutput, Policy, PolicyEntry},
    prelude::*,
};

/// Returns the number of the open episode in a slot's state, and its env steps; `None` for invalid bytes.
#[must_use]
pub fn position_in(state: &[u8], slot: SlotId) -> Option<(u32, u32)> {
    agent_position(state, slot).or_else(|| SlotState::decode(state).ok().map(|state| (state.episode, state.t)))
}

/// Returns the range of the environment's part in a state of this slot; `None` for invalid bytes.
pub(crate) fn env_range(state: &[u8], slot: SlotId) -> Option<Range<usize>> {
    match agent_env(state, slot) {
        // It is the last part.
        Some((_, env)) => Some(state.len().checked_sub(env.len())?..state.len()),
        None => SlotState::env_range(state),
    }
}

/// The next requirement of a collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The latest observations processed by the policy's preprocessor and filter: [`Collector::observe`].
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

/// Collects fragments from a set of lanes, one after the other.
pub trait Collector: Send {
    /// Returns what has to happen next.
    fn need(&self) -> Need;

    /// Returns the steps of the current fragment that every lane has taken.
    fn done(&self) -> u32;

    /// Returns the number of episodes that have ended in the current fragment.
    fn num_ended(&self) -> usize;

    /// Reopens the same environment's lanes. After an error the lanes are unchanged, except those that have begun another
    /// episode.
    ///
    /// # Errors
    /// Errors of the environment, for example for a state that does not fit it; [`EnvError::WrongLength`] for the recurrent
    /// states of another policy.
    fn reopen(&mut self, starts: &[LaneStart], env: &mut dyn AnyVectorEnv) -> Result<(), EnvError>;

    /// Begins the next fragment of every lane: `steps` env steps each.
    fn begin(&mut self, fragment: FragmentNo, weights_version: WeightsVersion, steps: u32);

    /// Sets the initial recurrent states of episodes to those of the policy that acts from now on.
    fn prepare(&mut self, policy: &dyn Policy);

    /// Computes the policy's view of the latest observations.
    ///
    /// # Errors
    /// [`SampleError`]. The fragment is then lost, as after an error of [`step_env`](Self::step_env).
    fn observe(&mut self, entry: &mut PolicyEntry) -> Result<(), SampleError>;

    /// Returns the current observations, and the buffers for their actions.
    fn action_request(&mut self) -> (ActionInput<'_>, ActionOutput<'_>);

    /// Records that the actions are written.
    fn actions_done(&mut self);

    /// Lets the environments take the actions, records the step and resets the lanes whose episode ended.
    ///
    /// # Errors
    /// Errors of the environments. The fragment is then lost; the lanes must be reopened from their last states.
    fn step_env(&mut self, env: &mut dyn AnyVectorEnv) -> Result<(), EnvError>;

    /// Returns the observations at the cuts, and the buffers for their values.
    fn value_request(&mut self) -> ValueRequest<'_>;

    /// Records that the values are written.
    fn values_done(&mut self);

    /// Returns the fragments, one per lane in the lanes' order. `env` provides its states.
    ///
    /// # Errors
    /// [`EnvError::InLane`] if the environment cannot read its state. The fragment is then lost, as after an error of
    /// [`step_env`](Self::step_env).
    fn take(&mut self, env: &dyn AnyVectorEnv) -> Result<Vec<SlotFragment>, EnvError>;

    /// Returns, after an error, the episode of a lane and its step, counted from 0, that failed.
    fn failed_at(&self, lane: usize) -> (u32, u32);

    /// Returns the lanes.
    fn lanes(&self) -> &Lanes;

    /// Returns the policy's view of a lane's latest observation between two fragments; empty if that follows from the lane's
    /// state. With a filter it does not, since the filter has already counted the observation.
    fn seen(&self, lane: usize) -> Vec<f64>;

    /// Sets the policy's view of a lane's first observation, right after the lanes were opened. Returns false for rows of
    /// another length and for numbers that are not finite.
    fn set_seen(&mut self, lane: usize, row: &[f64]) -> bool;

    /// Returns the state of a lane between two fragments. `env` provides its part: after an error what it has appended, since
    /// this state is not compared with those of other machines.
    fn state(&self, lane: usize, env: &dyn AnyVectorEnv) -> SlotState;
}

/// A request for values of observations.
#[derive(Debug)]
pub struct ValueRequest<'a> {
    /// The observations, row-major.
    pub obs: RowsRef<'a>,
    /// The recurrent states before them, as in [`ActionInput::state`].
    pub state: &'a [f32],
    /// Buffer for the values, one per observation.
    pub values: &'a mut [f32],
}
