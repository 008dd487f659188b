//! Environments: one trait for a single environment, one for vector environments, one type-erased for the samplers.
//!
//! `reset` and `step` write rows into the caller's buffers and allocate nothing. `terminated` and `truncated` are separate.
//! An environment never resets itself: the sampler does, after it has stored the final observation, so a reset row is never
//! recorded as a transition. Time limits belong to the sampler, too, see [`EnvSpec::max_episode_steps`].
//!
//! A custom environment is an [`Env`], registered by name; [`check_env`] checks whether it keeps the contract:
//!
//! ```
//! use rollmesh_core::{
//!     env::{Env, EnvError, EnvSpec, Rng, Step, Vectorized, check_env},
//!     space::Space,
//! };
//!
//! /// A walk along a corridor: one step left or right, a point at the right end.
//! #[derive(Clone, Default)]
//! struct Corridor {
//!     place: u8,
//! }
//!
//! impl Env for Corridor {
//!     type Obs = i64;
//!     type Act = i64;
//!
//!     fn observation_space(&self) -> Space {
//!         Space::Discrete { n: 8 }
//!     }
//!     fn action_space(&self) -> Space {
//!         Space::Discrete { n: 2 }
//!     }
//!     fn reset(&mut self, rng: &mut Rng, obs: &mut [i64]) -> Result<(), EnvError> {
//!         self.place = rng.below(4) as u8;
//!         obs[0] = i64::from(self.place);
//!         Ok(())
//!     }
//!     fn step(&mut self, action: &[i64], _rng: &mut Rng, obs: &mut [i64]) -> Result<Step, EnvError> {
//!         self.place = if action[0] == 1 { self.place + 1 } else { self.place.saturating_sub(1) };
//!         obs[0] = i64::from(self.place);
//!         let arrived = self.place == 7;
//!         Ok(Step { reward: f64::from(u8::from(arrived)), terminated: arrived, truncated: false })
//!     }
//! }
//!
//! let spec = EnvSpec::new("Corridor-v0", |contexts, _kernels| {
//!     Box::new(Vectorized::new(vec![Corridor::default(); contexts.len()]))
//! });
//! check_env(&spec.with_max_episode_steps(100), 3)?;
//! # Ok::<(), rollmesh_core::env::CheckError>(())
//! ```
//!
//! Its open episodes move to other workers by replaying their actions. [`Env::snapshot`] and [`Env::restore`] make that
//! faster, see [`EnvState`].

mod action_log;
mod base;
mod check;
pub mod classic;
mod erased;
mod error_place;
pub mod external;
mod lane;
pub mod multi_agent;
pub mod pixel;
mod registry;
pub mod render;
mod snapshot;
mod state;
mod step_mark;
pub mod toy_text;
mod typed;
mod vectorized;
pub mod wrappers;

pub use crate::column::{RowsMut, RowsRef};
pub use action_log::{ActionLog, Replay};
pub(crate) use base::for_each_sub_env;
pub use base::{
    BaseEnv, EnvActions, EnvMaker, EnvStart, EnvUpdate, EnvUpdates, Health, InProcess, ProcessEnd, Recorded, Reset,
    SubEnv, ValidateEnv,
};
pub use check::{CheckError, CheckOptions, check_env, check_env_all, check_multi_agent_env};
pub use classic::CartPole;
pub use erased::AnyVectorEnv;
pub use external::{ExternalEpisodes, ExternalError};
pub use lane::Lane;
pub use multi_agent::MultiAgentEnv;
pub use registry::{
    EnvFactory, EnvRegistry, EnvResolver, EnvSpaces, EnvSpec, MultiAgentFactory, MultiAgentSpec, ResolvedEnv, Unknown,
};
pub use render::Frame;
pub use snapshot::{SnapshotReader, put_rows};
pub use state::EnvState;
pub use step_mark::StepMark;
pub use typed::Typed;
pub use vectorized::Vectorized;

use serde::{Deserialize, Serialize};

use crate::{
    column::Element,
    config::{Config, ConfigError},
    ids::{AgentId, HomeIndex, SlotId},
    prelude::*,
    rng::Streams,
    space::Space,
};

pub use crate::rng::Rng;

/// The context that an environment is made with: its place, and its settings.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvContext {
    /// Indices of its slot's home, wherever it runs.
    pub home: HomeIndex,
    /// Number of the run's workers, without the local one.
    pub num_workers: u32,
    /// Whether the environment runs in a process of its own.
    pub remote: bool,
    /// Whether its worker replaces a lost one.
    pub recreated_worker: bool,
    /// Limits for processes that the environment starts itself.
    pub limits: ProcessLimits,
    /// The environment's settings.
    #[doc(alias = "env_config")]
    pub config: Config,
}

impl EnvContext {
    /// Creates the context of that place, without settings.
    #[must_use]
    pub fn new(home: HomeIndex) -> Self {
        let limits = ProcessLimits::default();
        Self { home, num_workers: 0, remote: false, recreated_worker: false, limits, config: Config::new() }
    }

    /// Sets the settings.
    #[must_use]
    pub fn with_config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Returns the context of another environment of the same worker.
    #[doc(alias = "copy_with_overrides")]
    #[must_use]
    pub fn with_vector_index(&self, vector_index: u32) -> Self {
        Self { home: HomeIndex { vector_index, ..self.home }, ..self.clone() }
    }
}

/// Limits of the process of an environment: the run's `remote_env_timeout_ms` and `remote_env_memory_mb`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessLimits {
    /// Timeout of a call, in milliseconds.
    pub timeout_ms: u32,
    /// Memory limit in MiB; 0 for none.
    pub memory_mb: u32,
}

impl Default for ProcessLimits {
    fn default() -> Self {
        Self { timeout_ms: 60_000, memory_mb: 4096 }
    }
}

/// The result of a step of a single environment, without the observation.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Reward of the step.
    pub reward: f64,
    /// A terminal state was reached.
    pub terminated: bool,
    /// The environment cut the episode for another reason than a terminal state.
    pub truncated: bool,
}

/// Errors of environments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// No client drives the external environment, for this reason.
    #[error("no client drives the external environment: {0}")]
    Undriven(String),
    /// The action is not in the action space.
    #[error("lane {lane}: action {action} is not in the action space")]
    InvalidAction {
        /// The lane it was meant for.
        lane: usize,
        /// The action.
        action: String,
    },
    /// The environment has other element types.
    #[error("the environment's {what} are {found}, the caller's buffers {wanted}")]
    WrongType {
        /// `observations` or `actions`.
        what: &'static str,
        /// The environment's type.
        found: &'static str,
        /// The buffer's type.
        wanted: &'static str,
    },
    /// There is no such lane.
    #[error("there is no lane {lane}, the environment has {num_envs}")]
    NoSuchLane {
        /// The requested lane.
        lane: usize,
        /// Number of lanes.
        num_envs: usize,
    },
    /// A buffer has another length than the lanes' rows together.
    #[error("{wanted} {what} are needed for the environment's lanes, the buffer has {found}")]
    WrongLength {
        /// The content of the buffer, for example `observation elements`.
        what: &'static str,
        /// Required length.
        wanted: usize,
        /// Actual length.
        found: usize,
    },
    /// The environment returned a number that is infinite or NaN.
    #[error(
        "lane {lane}: the {what} of step {step} of the fragment is {value} as a column holds it; see what the environment \
         computes there"
    )]
    NotFinite {
        /// `observation` or `reward`.
        what: &'static str,
        /// The lane.
        lane: usize,
        /// Number of the lane's steps in the fragment before; 0 for its first observation.
        step: usize,
        /// The number, `NaN`, `inf` or `-inf`.
        value: String,
    },
    /// A step did not write an array; detected in debug builds.
    #[error("lane {lane}: the environment's step does not write all of its {array}; `check_env` finds such mistakes")]
    NotWritten {
        /// `obs` or `rewards`.
        array: &'static str,
        /// The lane.
        lane: usize,
    },
    /// The bytes are not a snapshot of this environment.
    #[error("these {0} bytes are no snapshot of this environment")]
    BadSnapshot(usize),
    /// The replay of an open episode ended in another state.
    #[error(
        "replaying the open episode's {t} steps ended in another state: set replay_mismatch = \"abandon\" to end such episodes; \
         an environment that is not deterministic given the random numbers and the actions returns EnvState::Opaque from \
         `snapshot`, in Python its Gymnasium spec says nondeterministic; one that is may have a snapshot"
    )]
    NotReplayed {
        /// Steps that were replayed.
        t: u32,
    },
    /// The environment's settings are invalid.
    #[error(transparent)]
    Config(ConfigError),
    /// The environment's own failure.
    #[error("the environment failed: {0}")]
    Failed(String),
    /// This machine cannot run the environment, or lacks what it needs.
    #[error("{0}")]
    Unavailable(String),
    /// An observation is invalid.
    #[error("environment {env}, agent {agent}: the observation {reason}")]
    BadObservation {
        /// The sub-environment.
        env: usize,
        /// Its agent.
        agent: AgentId,
        /// The reason.
        reason: String,
    },
    /// A reward, or its sum with earlier ones, is infinite or NaN as a 32-bit float.
    #[error("environment {env}, agent {agent}: the reward is {reward}")]
    BadReward {
        /// The sub-environment.
        env: usize,
        /// Its agent.
        agent: AgentId,
        /// The reward.
        reward: String,
    },
    /// The environment returned an agent without spaces.
    #[error("environment {env} has an agent {agent}, but no spaces for it")]
    UnknownAgent {
        /// The sub-environment.
        env: usize,
        /// The agent.
        agent: AgentId,
    },
    /// An action is unexpected, missing or malformed.
    #[error("environment {env}, agent {agent}: {reason}")]
    BadAction {
        /// The sub-environment.
        env: usize,
        /// The agent.
        agent: AgentId,
        /// The reason.
        reason: String,
    },
    /// A call is out of order.
    #[error("environment {env}: {reason}")]
    OutOfTurn {
        /// The sub-environment.
        env: usize,
        /// The reason, and what to do instead.
        reason: &'static str,
    },
    /// An environment has failed repeatedly and is quarantined, see [`Health`].
    #[error("environment {env} was made anew and failed again, {attempts} times in a row, the last time: {reason}")]
    GivenUp {
        /// The sub-environment.
        env: usize,
        /// Number of consecutive failures.
        attempts: u32,
        /// The last failure.
        reason: String,
    },
    /// All environments are quarantined.
    #[error(
        "all {num_envs} environments have failed again and again and are in quarantine, the last one, {env}, with: {reason}"
    )]
    AllGivenUp {
        /// Number of environments.
        num_envs: usize,
        /// The one that was quarantined last.
        env: usize,
        /// Its last failure.
        reason: String,
    },
    /// The process of an environment ended, or was killed.
    #[error("environment {env}: its process {end}{words}", words = base::last_words(last_words))]
    Process {
        /// The sub-environment.
        env: usize,
        /// Its end.
        end: ProcessEnd,
        /// The last lines of its standard error.
        last_words: String,
    },
    /// One of several lanes failed.
    #[error("lane {lane}: {source}")]
    InLane {
        /// The lane.
        lane: usize,
        /// The lane's error.
        source: Box<Self>,
    },
    /// A step failed while an open episode was replayed.
    #[error("while its open episode was replayed: {source}")]
    InReplay {
        /// The step.
        at: Moment,
        /// Its error.
        source: Box<Self>,
    },
    /// The environments were stopped.
    #[error("the environments were stopped: make new ones")]
    Stopped,
}

/// A single environment.
///
/// Deterministic: all random numbers come from the given [`Rng`].
#[doc(alias = "Gymnasium")]
pub trait Env: Send {
    /// Element type of observations.
    type Obs: Element;
    /// Element type of actions.
    type Act: Element;

    /// Returns the space of the observations.
    fn observation_space(&self) -> Space;

    /// Returns the space of the actions.
    fn action_space(&self) -> Space;

    /// Returns false for an action of the space that [`step`](Self::step) rejects with [`EnvError::InvalidAction`].
    ///
    /// [`Vectorized`] calls it for every environment before it steps any, so that a rejected action moves none. Actions that
    /// are NaN or not in a discrete space are rejected before; numbers beyond the bounds of a box are passed on. An
    /// environment that clips those accepts everything, which is the default.
    fn accepts(&self, _action: &[Self::Act]) -> bool {
        true
    }

    /// Begins an episode and writes its first observation.
    ///
    /// # Errors
    /// [`EnvError::Failed`].
    fn reset(&mut self, rng: &mut Rng, obs: &mut [Self::Obs]) -> Result<(), EnvError>;

    /// Takes one step and writes the observation after it.
    ///
    /// # Errors
    /// [`EnvError::InvalidAction`], [`EnvError::Failed`].
    fn step(&mut self, action: &[Self::Act], rng: &mut Rng, obs: &mut [Self::Obs]) -> Result<Step, EnvError>;

    /// Appends the state from which the rest of the episode follows and returns [`EnvState::Snapshot`], or returns how else
    /// an open episode continues in another instance. The answer is always the same, also before the first reset.
    ///
    /// By default the other instance replays the episode's actions.
    fn snapshot(&self, _out: &mut Vec<u8>) -> EnvState {
        EnvState::Replay
    }

    /// Renders the current state; returns false if the environment has no picture, or cannot render it: see [`Frame::fail`].
    fn render(&self, _frame: &mut Frame) -> bool {
        false
    }

    /// Appends additional information about the latest reset or step as a JSON object; returns false if the environment
    /// never has any. Also called before the first reset. See [`Turn::info`](multi_agent::Turn::info) for its use.
    ///
    /// Environments with infos are not sampled in lockstep. Runs of a hub do not use infos, and do not call it.
    fn info(&self, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Restores a snapshot and writes the observation of that moment. The bytes are untrusted. After an error the
    /// environment is restored or reset before it is stepped again. Called only for environments with
    /// [snapshots](Self::snapshot).
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`].
    fn restore(&mut self, snapshot: &[u8], _obs: &mut [Self::Obs]) -> Result<(), EnvError> {
        Err(EnvError::BadSnapshot(snapshot.len()))
    }
}

/// Many environments of one kind, stepped together: as structure of arrays where that is faster.
pub trait VectorEnv: Send {
    /// Element type of observations.
    type Obs: Element;
    /// Element type of actions.
    type Act: Element;

    /// Returns the number of environments, the lanes.
    fn num_envs(&self) -> usize;

    /// Returns the space of one lane's observations.
    fn observation_space(&self) -> Space;

    /// Returns the space of one lane's actions.
    fn action_space(&self) -> Space;

    /// Begins an episode in one lane and writes its first observation.
    ///
    /// # Errors
    /// [`EnvError::NoSuchLane`], [`EnvError::WrongLength`], [`EnvError::Failed`].
    fn reset_at(&mut self, lane: usize, rng: &mut Rng, obs: &mut [Self::Obs]) -> Result<(), EnvError>;

    /// Takes one step in every lane. `actions` and `obs` have a row per lane. Every element of `obs` and every entry of
    /// `out` must be written: their previous content is arbitrary.
    ///
    /// # Errors
    /// [`EnvError::InvalidAction`] and [`EnvError::WrongLength`], before any lane has moved; [`EnvError::Failed`].
    fn step(
        &mut self,
        actions: &[Self::Act],
        moments: Moments<'_>,
        obs: &mut [Self::Obs],
        out: StepOut<'_>,
    ) -> Result<(), EnvError>;

    /// Renders the current state of a lane; returns false if the environment has no picture or no such lane.
    fn render_at(&self, _lane: usize, _frame: &mut Frame) -> bool {
        false
    }

    /// Does the same as [`Env::info`] for a lane; returns false also if there is no such lane.
    fn info_at(&self, _lane: usize, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Appends the state from which the rest of a lane's episode follows, nothing if there is no such lane, and returns its
    /// kind: a snapshot, or recorded actions. The default is [`EnvState::Opaque`], without any: lanes that are stepped
    /// together cannot be replayed separately, as [`Vectorized`] can.
    fn snapshot_at(&self, _lane: usize, _out: &mut Vec<u8>) -> EnvState {
        EnvState::Opaque
    }

    /// Takes at most `max_steps` of the steps that [`restore_at`](Self::restore_at) with the same snapshot has to replay, so
    /// that a caller can do something else in between. Returns their number: fewer if none is left.
    ///
    /// # Errors
    /// As there.
    fn replay_at(&mut self, _lane: usize, _snapshot: &[u8], _max_steps: u32) -> Result<u32, EnvError> {
        Ok(0)
    }

    /// Returns the step in which a lane that was being replayed has panicked, if that is known.
    fn replayed_at(&self, _lane: usize) -> Option<Moment> {
        None
    }

    /// Restores a lane from a snapshot and writes the observation of that moment. The bytes are untrusted. After an error
    /// the lane is restored or reset before it is stepped again.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`], [`EnvError::NoSuchLane`], [`EnvError::WrongLength`].
    fn restore_at(&mut self, _lane: usize, snapshot: &[u8], _obs: &mut [Self::Obs]) -> Result<(), EnvError> {
        Err(EnvError::BadSnapshot(snapshot.len()))
    }
}

/// Output buffers of a vector step except the observations; one entry per lane.
#[derive(Debug)]
pub struct StepOut<'a> {
    /// Rewards.
    pub rewards: &'a mut [f64],
    /// A terminal state was reached.
    pub terminateds: &'a mut [bool],
    /// The environment cut the episode for another reason than a terminal state.
    pub truncateds: &'a mut [bool],
}

/// A step of a slot: the address of its random numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    /// The slot.
    pub slot: SlotId,
    /// Episode of the slot.
    pub episode: u32,
    /// Step of the episode.
    pub t: u32,
    /// Number of the agent in the episode, in order of appearance.
    pub agent: u16,
}

/// The moments of all lanes, and the random streams of steps.
#[derive(Clone, Copy, Debug)]
pub struct Moments<'a> {
    /// Streams of [`Purpose::EnvStep`](crate::rng::Purpose::EnvStep).
    pub streams: Streams,
    /// One moment per lane.
    pub lanes: &'a [Moment],
    /// The record of each step's beginning, in an environment that steps its lanes sequentially.
    pub mark: Option<&'a StepMark>,
}

impl Moments<'_> {
    /// Returns the random stream of a lane's step.
    ///
    /// # Errors
    /// [`EnvError::NoSuchLane`].
    pub fn rng(&self, lane: usize) -> Result<Rng, EnvError> {
        let num_envs = self.lanes.len();
        let moment = self.lanes.get(lane).ok_or(EnvError::NoSuchLane { lane, num_envs })?;
        Ok(self.rng_at(*moment))
    }

    const fn rng_at(&self, Moment { slot, episode, t, .. }: Moment) -> Rng {
        self.streams.at(slot, episode, t, 0)
    }
}

impl StepOut<'_> {
    /// Checks that there is one entry per lane.
    fn check_len(&self, num_envs: usize) -> Result<(), EnvError> {
        check_len("rewards", num_envs, self.rewards.len())?;
        check_len("terminated flags", num_envs, self.terminateds.len())?;
        check_len("truncated flags", num_envs, self.truncateds.len())
    }
}

fn check_len(what: &'static str, wanted: usize, found: usize) -> Result<(), EnvError> {
    if wanted == found { Ok(()) } else { Err(EnvError::WrongLength { what, wanted, found }) }
}

fn check_obs_len(wanted: usize, found: usize) -> Result<(), EnvError> {
    check_len("observation elements", wanted, found)
}

fn check_actions_len(wanted: usize, found: usize) -> Result<(), EnvError> {
    check_len("action elements", wanted, found)
}
