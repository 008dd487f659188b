//! Many environments at once, as a sampler sees them: in this process or elsewhere, ready together or not.

mod health;
mod in_process;
mod news;
mod process;
mod recorded;
mod replay;
pub(super) mod rules;

pub use health::Health;
pub use in_process::{EnvMaker, EnvStart, InProcess};
pub use news::{EnvActions, EnvNews, News};
pub use process::ProcessEnd;
pub(super) use process::last_words;
pub use recorded::Recorded;

use super::{AnyVectorEnv, EnvContext, EnvError, EnvSpaces, EnvState, Frame, MultiAgentEnv, multi_agent::Turn};
use crate::{ids::AgentId, prelude::*};

/// Looks at a sub-environment after it was made, and refuses it with an error.
pub type ValidateEnv = Box<dyn FnMut(SubEnv<'_>, &EnvContext) -> Result<(), EnvError> + Send>;

/// Sub-environments behind one asynchronous interface: ask for [news](Self::poll), [answer](Self::send_actions) with
/// actions. [`InProcess`] is the one for environments of this process.
///
/// It is told nothing about fragments, policies or time limits. Every episode begins with news of a reset: by the first
/// poll, or by [`try_reset`](Self::try_reset).
///
/// News bring a reward with every observation but the first ones. What agents without an observation were given waits
/// for their next one: rewards add up, and an agent that was done is done then. When the episode ends everybody gets
/// what is left, also agents that have no observation at that moment; when its caller ends it, on
/// [request](Self::pay_out). The last observation of those is not known;
/// whoever needs one takes zeros.
pub trait BaseEnv: Send {
    /// Number of sub-environments.
    fn num_envs(&self) -> usize;

    /// Every agent that is known beforehand, ascending.
    fn agents(&self) -> Vec<AgentId>;

    /// Spaces of an agent; none for one that cannot appear.
    fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces>;

    /// Collects the news of all sub-environments that are ready, ascending; at least one, unless they
    /// [may be idle](Self::may_be_idle). The first poll brings their first observations. `news` comes empty.
    ///
    /// # Errors
    /// The environments' own, where a failed sub-environment is not restarted. A failure that is survived is news:
    /// [`EnvNews::fault`]. [`EnvError::AllGivenUp`] where there is none left to wait for.
    fn poll(&mut self, news: &mut News) -> Result<(), EnvError>;

    /// True if a poll may bring nothing: somebody else decides when something happens. It has waited for a while then, so
    /// that its caller looks after other things and polls again at once.
    fn may_be_idle(&self) -> bool {
        false
    }

    /// Answers the latest news: an entry for every sub-environment whose episode goes on, possibly with no action in
    /// it.
    ///
    /// # Errors
    /// As [`poll`](Self::poll); [`EnvError::BadAction`], [`EnvError::OutOfTurn`].
    fn send_actions(&mut self, actions: &[EnvActions]) -> Result<(), EnvError>;

    /// Begins the next episode of a sub-environment, whether or not the one before has ended. `turn` comes empty.
    ///
    /// # Errors
    /// As [`poll`](Self::poll).
    fn try_reset(&mut self, env: usize, turn: &mut Turn) -> Result<Reset, EnvError>;

    /// The caller ends an episode that goes on, as a time limit does: adds what agents without an observation are owed
    /// to `turn`, the latest news. Nothing for environments that owe nothing.
    fn pay_out(&mut self, _env: usize, _turn: &mut Turn) {}

    /// Says which number the next episode of a sub-environment has, where random numbers are addressed by it. Other
    /// environments pass it over.
    fn set_next_episode(&mut self, _env: usize, _episode: u32) {}

    /// Appends what the rest of a sub-environment's open episode depends on: a snapshot of the environment, or the actions
    /// of the episode so far. Returns false, and appends nothing, if the sub-environment does not wait for actions or cannot
    /// be brought back.
    fn snapshot(&self, _env: usize, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Brings a sub-environment back to where its [snapshot](Self::snapshot) was taken, in that episode: it then waits for
    /// the actions of the same agents. The bytes may come from any peer. After an error the sub-environment must be reset.
    ///
    /// Replays at most `steps` steps, and takes those that it replays off. Returns false if more are left: to be called again
    /// with the same snapshot.
    ///
    /// # Errors
    /// [`EnvError::BadSnapshot`]; those of the environment, whose steps may be replayed.
    fn restore(&mut self, env: usize, _episode: u32, _snapshot: &[u8], _steps: &mut u32) -> Result<bool, EnvError> {
        Err(EnvError::OutOfTurn { env, reason: "it cannot be restored: its kind of environments has no snapshots" })
    }

    /// Replaces a sub-environment by a new one, which must be reset. One that was given up gets another chance.
    ///
    /// # Errors
    /// [`EnvError::Failed`] if it cannot be made again.
    fn try_restart(&mut self, env: usize) -> Result<(), EnvError>;

    /// Why a sub-environment is in quarantine, if it is: it has failed again and again, its last news had that as their
    /// [fault](EnvNews::fault), and there are no others until [`try_restart`](Self::try_restart) lifts the quarantine.
    /// Nobody resets it before that.
    fn quarantine(&self, _env: usize) -> Option<&str> {
        None
    }

    /// Env steps that were taken since the last call and will be in no news, since a reset or a restart came first. For
    /// environments that go on while their caller does something else.
    fn forgotten_steps(&mut self) -> u64 {
        0
    }

    /// The sub-environment, if it was made again since somebody asked the last time, and what it was told.
    fn made_again(&mut self, _env: usize) -> Option<(SubEnv<'_>, EnvContext)> {
        None
    }

    /// Lets this look at every sub-environment that is made from now on; one that is refused has failed.
    fn validate_with(&mut self, _validate: ValidateEnv) {}

    /// Draws a sub-environment; false if it has no picture.
    fn try_render(&mut self, _env: usize, _frame: &mut Frame) -> bool {
        false
    }

    /// The sub-environments, if they are in this process.
    #[doc(alias("get_sub_environments", "get_unwrapped"))]
    fn sub_environments(&mut self) -> Vec<SubEnv<'_>> {
        Vec::new()
    }

    /// Releases what the environments hold. Does nothing the second time.
    ///
    /// # Errors
    /// [`EnvError::Failed`].
    fn stop(&mut self) -> Result<(), EnvError> {
        Ok(())
    }
}

/// A sub-environment of this process, or all of them where they cannot be reached one by one.
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
    /// All environments, of which [`BaseEnv::sub_environments`] shows none: those of other processes, for example.
    Base(&'a mut dyn BaseEnv),
}

impl SubEnv<'_> {
    /// How an open episode of it moves; environments of other processes are replayed, as far as is known here.
    pub(crate) fn state(&self) -> EnvState {
        match self {
            Self::Lane { env, lane } => env.snapshot_at(*lane, &mut Vec::new()),
            Self::MultiAgent(env) => env.state(),
            Self::Base(_) => EnvState::Replay,
        }
    }

    /// Lends it on.
    pub fn lend(&mut self) -> SubEnv<'_> {
        match self {
            Self::Lane { env, lane } => SubEnv::Lane { env: &mut **env, lane: *lane },
            Self::MultiAgent(env) => SubEnv::MultiAgent(&mut **env),
            Self::Base(env) => SubEnv::Base(&mut **env),
        }
    }
}

/// Shows every sub-environment to `f`, or all together where they cannot be reached one by one.
pub(crate) fn for_each_sub_env(env: &mut dyn BaseEnv, f: &mut dyn FnMut(SubEnv<'_>)) {
    let subs = env.sub_environments();
    if subs.is_empty() {
        drop(subs);
        return f(SubEnv::Base(env));
    }
    subs.into_iter().for_each(f);
}

/// Whether an episode has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// It has.
    Done,
    /// Its first observations come with later news.
    #[doc(alias = "ASYNC_RESET_RETURN")]
    Later,
    /// The environment begins its episodes by itself, and their first observations come with later news.
    Unsupported,
}
