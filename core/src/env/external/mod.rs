//! Episodes that are driven from outside: by a game, a simulator, a user, who ask for actions instead of being stepped.
//!
//! [`ExternalEpisodes`] stands between drivers and a sampler. It waits for nobody: drivers call and ask again later, and
//! the sampler polls what is there.
//!
//! ```
//! use rollmesh_core::{
//!     column::DType,
//!     env::{
//!         BaseEnv as _, EnvActions, EnvSpaces, News, RowsRef,
//!         external::ExternalEpisodes,
//!         multi_agent::{AgentRows, Outcome},
//!     },
//!     ids::AgentId,
//!     space::Space,
//! };
//!
//! let spaces = EnvSpaces {
//!     observation: Space::Discrete { n: 10 },
//!     observation_type: DType::I64,
//!     action: Space::Discrete { n: 2 },
//!     action_type: DType::I64,
//! };
//! let mut episodes = ExternalEpisodes::new(1, vec![(AgentId::SINGLE, spaces)])?;
//! let row = |value: &i64| AgentRows::single(RowsRef::I64(std::slice::from_ref(value)));
//!
//! // A driver begins, and asks for an action.
//! episodes.start_episode(7, true)?;
//! episodes.request_actions(7, &row(&3))?;
//! let mut actions = AgentRows::new();
//! assert!(!episodes.take_actions(7, &mut actions)?, "nobody has answered yet");
//!
//! // The sampler looks what there is, and answers.
//! let mut news = News::new();
//! episodes.poll(&mut news)?;
//! episodes.send_actions(&[EnvActions { env: 0, actions: row(&1) }])?;
//!
//! // The driver acts, and tells what came of it.
//! assert!(episodes.take_actions(7, &mut actions)?);
//! assert_eq!(actions.row_of::<i64>(&AgentId::SINGLE), Some(&[1][..]));
//! episodes.log_returns(7, &AgentId::SINGLE, Outcome { reward: 0.5, ..Outcome::default() }, None)?;
//! episodes.end_episode(7, &row(&4), false)?;
//! news.clear();
//! episodes.poll(&mut news)?;
//! assert!(news.entries()[0].turn.all_terminated());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod driver;
mod error;
mod lane;
mod line;
mod sampler;
#[cfg(test)]
mod tests;

pub use error::ExternalError;

use self::lane::Lane;
use super::{EnvError, EnvSpaces, base::rules::check_spaces};
use crate::{
    ids::{AgentId, SlotId},
    prelude::*,
};

/// Episodes that drivers begin, go on with and end, and a [`BaseEnv`](super::BaseEnv) for the sampler that chooses the
/// actions. Its lanes are the sub-environments: as many episodes can be open at once.
///
/// **Numbers.** A driver gives its episodes numbers, unique among the open ones. A new episode takes the lowest lane
/// without an open episode, so which rows a lane gets follows from the order in which the drivers speak, not from how
/// fast anybody is.
///
/// **Turns.** What a driver says is a turn of its lane: observations with a request for actions, observations with the
/// actions that were taken, or the end. Returns that are logged between two turns belong to the later one; those of agents
/// that observe nothing then wait for their next observation, or for the end. Turns wait in the lane's queue until the
/// sampler takes them, one at a time, in order. So a driver that only logs may be up to
/// [`MAX_QUEUED_TURNS`](Self::MAX_QUEUED_TURNS) ahead, also over the ends of episodes.
///
/// **Checks.** A turn is taken if it keeps the rules: known agents, observations and actions of their spaces, finite
/// rewards. Else the driver gets an [`ExternalError`], and nothing has happened. Actions of policies are checked as well,
/// that is the sampler's trouble: numbers beyond the bounds of a box are let through, as by other environments.
///
/// **Losses.** An episode that is [abandoned](Self::abandon) is a fault for the sampler, after the turns that had been
/// made before. An episode that the sampler gives up is lost for its driver, who hears of it with the next call.
#[derive(Debug)]
pub struct ExternalEpisodes {
    agents: BTreeMap<AgentId, EnvSpaces>,
    lanes: Vec<Lane>,
    /// The open episodes' lanes.
    open: BTreeMap<u64, usize>,
    /// Lanes without an open episode.
    free: BTreeSet<usize>,
    /// Number of episodes begun: tells those apart that have had the same number.
    begun: u64,
    stopped: bool,
    /// Drivers that wait for a lane, in the order in which they came.
    line: VecDeque<u32>,
}

impl ExternalEpisodes {
    /// The most turns of a lane that wait for the sampler. The news that a driver is gone may come on top.
    pub const MAX_QUEUED_TURNS: usize = 64;

    /// So many lanes, for episodes of these agents; [`AgentId::SINGLE`] where there is only one.
    ///
    /// # Errors
    /// [`EnvError::Failed`] for spaces that make no sense, without lanes or agents, or for too many lanes.
    pub fn new(num_envs: usize, agents: impl IntoIterator<Item = (AgentId, EnvSpaces)>) -> Result<Self, EnvError> {
        let agents: BTreeMap<_, _> = agents.into_iter().collect();
        agents.iter().try_for_each(|(agent, spaces)| check_spaces(agent, spaces))?;
        let most = SlotId::MAX_PER_RUN as usize;
        if agents.is_empty() || !(1..=most).contains(&num_envs) {
            let found = format!("{} agents and {num_envs} lanes", agents.len());
            let wanted = format!("external episodes need an agent, and 1 to {most} lanes");
            return Err(EnvError::Failed(format!("{wanted}, not {found}")));
        }
        Ok(Self {
            agents,
            lanes: (0..num_envs).map(|_| Lane::default()).collect(),
            open: BTreeMap::new(),
            free: (0..num_envs).collect(),
            begun: 0,
            stopped: false,
            line: VecDeque::new(),
        })
    }

    /// The agents and their spaces.
    #[must_use]
    pub fn agent_spaces(&self) -> &BTreeMap<AgentId, EnvSpaces> {
        &self.agents
    }

    /// The open episodes, ascending, with their lanes.
    pub fn open_episodes(&self) -> impl ExactSizeIterator<Item = (u64, usize)> {
        self.open.iter().map(|(id, lane)| (*id, *lane))
    }

    /// Whether an episode of this number is open.
    #[must_use]
    pub fn is_open(&self, id: u64) -> bool {
        self.open.contains_key(&id)
    }

    /// The lane of an open episode.
    ///
    /// # Errors
    /// [`ExternalError`] for an episode that is not open.
    pub fn lane_of(&self, id: u64) -> Result<usize, ExternalError> {
        if self.stopped {
            return Err(ExternalError::Stopped);
        }
        let past =
            || self.lanes.iter().find_map(|lane| lane.remembers(id)).unwrap_or(ExternalError::UnknownEpisode(id));
        self.open.get(&id).copied().ok_or_else(past)
    }

    fn lane_mut(&mut self, id: u64) -> Result<(usize, &mut Lane), ExternalError> {
        let at = self.lane_of(id)?;
        let lane = self.lanes.get_mut(at).ok_or(ExternalError::UnknownEpisode(id))?;
        Ok((at, lane))
    }

    /// The episode is open no longer.
    fn close(&mut self, id: u64, past: ExternalError) {
        let Some(at) = self.open.remove(&id) else { return };
        self.free.insert(at);
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.close(past);
        }
    }
}
