//! Episodes driven from outside: by a game, a simulator or a user, which request actions instead of being stepped.
//!
//! [`ExternalEpisodes`] connects drivers and a sampler. It never blocks: drivers call and poll for the answer, and the
//! sampler polls for turns.
//!
//! ```
//! use rollmesh_core::{
//!     column::DType,
//!     env::{
//!         BaseEnv as _, EnvActions, EnvSpaces, EnvUpdates, RowsRef,
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
//! assert!(!episodes.take_actions(7, &mut actions)?, "no answer yet");
//!
//! // The sampler polls, and answers.
//! let mut updates = EnvUpdates::new();
//! episodes.poll(&mut updates)?;
//! episodes.send_actions(&[EnvActions { env: 0, actions: row(&1) }])?;
//!
//! // The driver acts, and logs the result.
//! assert!(episodes.take_actions(7, &mut actions)?);
//! assert_eq!(actions.row_of::<i64>(&AgentId::SINGLE), Some(&[1][..]));
//! episodes.log_returns(7, &AgentId::SINGLE, Outcome { reward: 0.5, ..Outcome::default() }, None)?;
//! episodes.end_episode(7, &row(&4), false)?;
//! updates.clear();
//! episodes.poll(&mut updates)?;
//! assert!(updates.entries()[0].turn.all_terminated());
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

use self::lane::DrivenLane;
use super::{EnvError, EnvSpaces, base::rules::check_spaces};
use crate::{
    ids::{AgentId, SlotId},
    prelude::*,
};

/// Episodes that drivers begin, continue and end, as a [`BaseEnv`](super::BaseEnv) for the sampler that computes the
/// actions. Its lanes are the sub-environments: their number limits the open episodes.
///
/// **Numbers.** A driver numbers its episodes, uniquely among the open ones. A new episode takes the lowest lane without an
/// open episode, so the rows of a lane depend on the order of the drivers' calls, not on their timing.
///
/// **Turns.** Each call of a driver completes a turn of its lane: observations with a request for actions, observations with
/// the actions that were taken, or the end. Returns that are logged between two turns belong to the later one; those of
/// agents without an observation then are kept until their next observation, or the end. Turns are queued per lane until the
/// sampler takes them, one at a time, in order. So a driver that only logs may be up to
/// [`MAX_QUEUED_TURNS`](Self::MAX_QUEUED_TURNS) ahead, also across episodes.
///
/// **Checks.** A turn is accepted if it is valid: known agents, observations and actions in their spaces, finite rewards.
/// Else the driver gets an [`ExternalError`], and the call has no effect. Actions of policies are checked as well, with an
/// error for the sampler: as in other environments, numbers beyond the bounds of a box are accepted.
///
/// **Losses.** An [abandoned](Self::abandon) episode is a fault for the sampler, after the turns that were queued before. An
/// episode that the sampler drops is lost for its driver, whose next call returns that error.
#[derive(Debug)]
pub struct ExternalEpisodes {
    agents: BTreeMap<AgentId, EnvSpaces>,
    lanes: Vec<DrivenLane>,
    /// The open episodes' lanes.
    open: BTreeMap<u64, usize>,
    /// Lanes without an open episode.
    free: BTreeSet<usize>,
    /// Number of episodes begun, which distinguishes episodes with the same number.
    begun: u64,
    stopped: bool,
    /// Drivers that wait for a lane, in order of arrival.
    line: VecDeque<u32>,
}

impl ExternalEpisodes {
    /// Most queued turns of a lane. An abandonment may come on top.
    pub const MAX_QUEUED_TURNS: usize = 64;

    /// Creates this many lanes, for episodes of these agents; [`AgentId::SINGLE`] if there is only one.
    ///
    /// # Errors
    /// [`EnvError::Failed`] for invalid spaces, without lanes or agents, or for too many lanes.
    pub fn new(num_envs: usize, agents: impl IntoIterator<Item = (AgentId, EnvSpaces)>) -> Result<Self, EnvError> {
        let agents: BTreeMap<_, _> = agents.into_iter().collect_ordered();
        agents.iter().try_for_each(|(agent, spaces)| check_spaces(agent, spaces))?;
        let most = SlotId::MAX_PER_RUN as usize;
        if agents.is_empty() || !(1..=most).contains(&num_envs) {
            let found = format!("{} agents and {num_envs} lanes", agents.len());
            let wanted = format!("external episodes need an agent, and 1 to {most} lanes");
            return Err(EnvError::Failed(format!("{wanted}, not {found}")));
        }
        Ok(Self {
            agents,
            lanes: (0..num_envs).map(|_| DrivenLane::default()).collect(),
            open: BTreeMap::new(),
            free: (0..num_envs).collect(),
            begun: 0,
            stopped: false,
            line: VecDeque::new(),
        })
    }

    /// Returns the open episodes, ascending, with their lanes.
    pub fn open_episodes(&self) -> impl ExactSizeIterator<Item = (u64, usize)> {
        self.open.iter().map(|(id, lane)| (*id, *lane))
    }

    /// Returns whether an episode of this number is open.
    #[must_use]
    pub fn is_open(&self, id: u64) -> bool {
        self.open.contains_key(&id)
    }

    /// Returns the lane of an open episode.
    ///
    /// # Errors
    /// [`ExternalError`] for an episode that is not open.
    pub fn lane_of(&self, id: u64) -> Result<usize, ExternalError> {
        if self.stopped {
            return Err(ExternalError::Stopped);
        }
        let past =
            || self.lanes.iter().find_map(|lane| lane.closed_reason(id)).unwrap_or(ExternalError::UnknownEpisode(id));
        self.open.get(&id).copied().ok_or_else(past)
    }

    fn lane_mut(&mut self, id: u64) -> Result<(usize, &mut DrivenLane), ExternalError> {
        let at = self.lane_of(id)?;
        let lane = self.lanes.get_mut(at).ok_or(ExternalError::UnknownEpisode(id))?;
        Ok((at, lane))
    }

    /// Closes the episode.
    fn close(&mut self, id: u64, past: ExternalError) {
        let Some(at) = self.open.remove(&id) else { return };
        self.free.insert(at);
        if let Some(lane) = self.lanes.get_mut(at) {
            lane.close(past);
        }
    }
}
