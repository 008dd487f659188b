//! Many environments behind one interface, as a sampler sees them: in this process or elsewhere, ready together or not.

mod health;
mod in_process;
mod process;
mod recorded;
mod replay;
pub(super) mod rules;
mod updates;

pub use health::Health;
pub use in_process::{EnvMaker, EnvStart, InProcess};
pub use process::ProcessEnd;
pub(super) use process::last_words;
pub use recorded::Recorded;
pub use updates::{EnvActions, EnvUpdate, EnvUpdates};

use super::{
    AnyVectorEnv, EnvContext, EnvError, EnvSpaces, EnvState, Frame, MultiAgentEnv, StepMark, multi_agent::Turn,
};
use crate::{ids::AgentId, prelude::*};

/// Validates a sub-environment after it was made, and rejects it with an error.
pub type ValidateEnv = Box<dyn FnMut(SubEnv<'_>, &EnvContext) -> Result<(), EnvError> + Send>;

/// Sub-environments behind one asynchronous interface: [poll](Self::poll) for updates, [answer](Self::send_actions) with
/// actions. [`InProcess`] implements it for environments of this process.
///
/// It knows nothing about fragments, policies or time limits. Every episode begins with the updates of a reset: by the first
/// poll, or by [`try_reset`](Self::try_reset).
///
/// Updates contain a reward with every observation but the first ones. Rewards and flags of agents without an observation are
/// kept until their next one: rewards add up, and an agent that has ended is reported then. When the environment ends the
/// episode, all agents get what is left, also those without an observation at that moment; when the caller ends it, on
/// [request](Self::pay_out). The last observation of those is unknown; a caller that needs one uses zeros.
pub trait BaseEnv: Send {
    /// Returns the number of sub-environments.
    fn num_envs(&self) -> usize;

    /// Returns all agents known beforehand, ascending.
    fn agents(&self) -> Vec<AgentId>;

    /// Returns the spaces of an agent; `None` for one that cannot appear.
    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces>;

    /// Collects the updates of all sub-environments that are ready, ascending; at least one, unless they [may be
    /// idle](Self::may_be_idle). The first poll returns their first observations. `updates` must be empty.
    ///
    /// # Errors
    /// Errors of the environments, if a failed sub-environment is not restarted. A tolerated failure is part of the updates:
    /// [`EnvUpdate::fault`]. [`EnvError::AllGivenUp`] if all are quarantined.
    fn poll(&mut self, updates: &mut EnvUpdates) -> Result<(), EnvError>;

    /// Returns true if a poll may return nothing, since events come from outside. It has then waited for a while, so that
    /// its caller does other work and polls again immediately.
    fn may_be_idle(&self) -> bool {
        false
    }

    /// Answers the latest updates: an entry for every sub-environment whose episode continues, possibly without actions.
    ///
    /// # Errors
    /// As [`poll`](Self::poll); [`EnvError::BadAction`], [`EnvError::OutOfTurn`].
    fn send_actions(&mut self, actions: &[EnvActions]) -> Result<(), EnvError>;

    /// Begins the next episode of a sub-environment, whether or not the one before has ended. `turn` must be empty.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    fn try_reset(&mut self, env: usize, turn: &mut Turn) -> Result<Reset, EnvError>;

    /// Adds what agents without an observation are owed to `turn`, the latest updates, since the caller ends an unfinished
    /// episode, as a time limit does. Nothing for environments that owe nothing.
    fn pay_out(&mut self, _env: usize, _turn: &mut Turn) {}

    /// Sets the number of a sub-environment's next episode, if random numbers are addressed by it. Other environments ignore
    /// it.
    fn set_next_episode(&mut self, _env: usize, _episode: u32) {}

    /// Appends the state of a sub-environment's open episode: a snapshot of the environment, or the actions of the episode
    /// so far. Returns false, and appends nothing, if the sub-environment does not wait for actions, is opaque, or fails.
    fn snapshot(&self, _env: usize, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Returns why a [snapshot](Self::snapshot) of this sub-environment fails; `None` if it does not.
    fn snapshot_error(&self, _env: usize) -> Option<EnvError> {
        None
    }

    /// Restores a sub-environment to where its [snapshot](Self::snapshot) was taken, in that episode: it then waits for the
    /// actions of the same agents. The bytes are untrusted. After an error the sub-environment must be reset.
    ///
    /// Replays at most `steps` steps, and subtracts those that it replays. Returns false if more are left: call it again
    /// with the same snapshot.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`]; errors of the environment, whose steps may be replayed.
    fn restore(&mut self, env: usize, _episode: u32, _snapshot: &[u8], _steps: &mut u32) -> Result<bool, EnvError> {
        Err(EnvError::OutOfTurn { env, reason: "it cannot be restored: its kind of environments has no snapshots" })
    }

    /// Replaces a sub-environment by a new one, which must be reset. Lifts a quarantine.
    ///
    /// # Errors
    /// [`EnvError::Failed`] if it cannot be restarted.
    fn try_restart(&mut self, env: usize) -> Result<(), EnvError>;

    /// Returns why a sub-environment is quarantined, if it is: it has failed repeatedly, its last updates had that as their
    /// [fault](EnvUpdate::fault), and there are no others until [`try_restart`](Self::try_restart) lifts the quarantine. The
    /// caller must not reset it before that.
    fn quarantine(&self, _env: usize) -> Option<&str> {
        None
    }

    /// Resets the count of a sub-environment's consecutive failures, which leads to its quarantine.
    fn forgive(&mut self, _env: usize) {}

    /// Returns the env steps that were taken since the last call and will be in no updates, since a reset or a restart came
    /// first. For environments that continue while their caller does something else.
    fn forgotten_steps(&mut self) -> u64 {
        0
    }

    /// Returns a sub-environment that was restarted since the last call, with its context.
    fn take_restarted(&mut self, _env: usize) -> Option<(SubEnv<'_>, EnvContext)> {
        None
    }

    /// Sets where the beginning of each step and reset is recorded, if they are taken in this process.
    fn mark_with(&mut self, _mark: &StepMark) {}

    /// Sets a function that validates every sub-environment made from now on; a rejected one counts as failed.
    fn validate_with(&mut self, _validate: ValidateEnv) {}

    /// Renders a sub-environment; returns false if it has no picture.
    fn try_render(&mut self, _env: usize, _frame: &mut Frame) -> bool {
        false
    }

    /// Returns the sub-environments, if they are in this process.
    #[doc(alias("get_sub_environments", "get_unwrapped"))]
    fn sub_environments(&mut self) -> Vec<SubEnv<'_>> {
        Vec::new()
    }

    /// Releases the environments' resources. A second call does nothing.
    ///
    /// # Errors
    /// [`EnvError::Failed`].
    fn stop(&mut self) -> Result<(), EnvError> {
        Ok(())
    }
}

/// A sub-environment of this process, or all of them if they cannot be reached individually.
pub enum SubEnv<'a> {
    /// A lane of an environment with one agent per lane.
    Lane {
        /// The environment.
        env: &'a mut dyn AnyVectorEnv,
        /// The lane.
        lane: usize,
    },
    /// An environment with several agents.
    MultiAgent(&'a mut dyn MultiAgentEnv),
    /// All environments, if [`BaseEnv::sub_environments`] returns none: those of other processes, for example.
    Base(&'a mut dyn BaseEnv),
}

impl SubEnv<'_> {
    /// Returns how an open episode of it moves; environments of other processes are replayed, as far as is known here.
    pub(crate) fn state(&self) -> EnvState {
        match self {
            Self::Lane { env, .. } => env.state(),
            Self::MultiAgent(env) => env.state(),
            Self::Base(_) => EnvState::Replay,
        }
    }

    /// Reborrows it.
    pub fn lend(&mut self) -> SubEnv<'_> {
        match self {
            Self::Lane { env, lane } => SubEnv::Lane { env: &mut **env, lane: *lane },
            Self::MultiAgent(env) => SubEnv::MultiAgent(&mut **env),
            Self::Base(env) => SubEnv::Base(&mut **env),
        }
    }
}

/// Calls `f` with every sub-environment, or with all together if they cannot be reached individually.
pub(crate) fn for_each_sub_env(env: &mut dyn BaseEnv, f: &mut dyn FnMut(SubEnv<'_>)) {
    let subs = env.sub_environments();
    if subs.is_empty() {
        drop(subs);
        return f(SubEnv::Base(env));
    }
    subs.into_iter().for_each(f);
}

/// Result of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// The episode has begun.
    Done,
    /// Its first observations are part of later updates.
    #[doc(alias = "ASYNC_RESET_RETURN")]
    Later,
    /// The environment begins its episodes itself, and their first observations are part of later updates.
    Unsupported,
}
