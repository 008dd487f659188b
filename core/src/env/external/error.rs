//! What drivers of episodes are told.

use crate::{ids::AgentId, prelude::*};

/// Why a driver's call was refused. Nothing has changed then, and the sampler has heard nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExternalError {
    /// No episode of this number is open, nor was one of late.
    #[error("there is no episode {0}: start it first")]
    UnknownEpisode(u64),
    /// The episode has ended.
    #[error("episode {0} has ended: start a new one")]
    FinishedEpisode(u64),
    /// The sampler has given the episode up, after an error of its own or to begin anew.
    #[error("episode {0} is lost, the sampler had to begin anew: start another episode")]
    LostEpisode(u64),
    /// An episode of this number is open.
    #[error("episode {0} goes on already: end it first, or take another number")]
    DuplicateEpisode(u64),
    /// As many episodes are open as there are lanes.
    #[error("{0} episodes are open, and there are no more lanes: end one first, or make more lanes")]
    TooManyEpisodes(usize),
    /// Actions were asked for that have not been taken.
    #[error("episode {0} waits for actions: take them first")]
    AwaitsActions(u64),
    /// No actions were asked for.
    #[error("episode {0} waits for no actions: ask for some first")]
    NothingAsked(u64),
    /// So many turns of the lane wait for the sampler.
    #[error("episode {id}: {turns} turns wait for the sampler: go on when it has taken some")]
    QueueFull {
        /// The episode.
        id: u64,
        /// Turns that wait.
        turns: usize,
    },
    /// Nobody observes anything.
    #[error("episode {0}: at least one agent must observe something")]
    NoObservation(u64),
    /// Nothing was observed yet, so there is nothing to be rewarded for.
    #[error("episode {0}: returns come after the first observation")]
    EarlyReturns(u64),
    /// There are no spaces for the agent.
    #[error("episode {id}: there is no agent {agent}")]
    UnknownAgent {
        /// The episode.
        id: u64,
        /// The agent.
        agent: AgentId,
    },
    /// The agent's part of the episode has ended.
    #[error("episode {id}: agent {agent} has reached its end and observes nothing more")]
    AgentDone {
        /// The episode.
        id: u64,
        /// The agent.
        agent: AgentId,
    },
    /// The observation breaks the rules.
    #[error("episode {id}, agent {agent}: the observation {reason}")]
    BadObservation {
        /// The episode.
        id: u64,
        /// The agent.
        agent: AgentId,
        /// What is wrong with it.
        reason: String,
    },
    /// The action breaks the rules.
    #[error("episode {id}, agent {agent}: {reason}")]
    BadAction {
        /// The episode.
        id: u64,
        /// The agent.
        agent: AgentId,
        /// What is wrong with it.
        reason: String,
    },
    /// The reward is infinite or not a number, alone or together with those before, as a column holds it.
    #[error("episode {id}, agent {agent}: the reward is {reward}")]
    BadReward {
        /// The episode.
        id: u64,
        /// The agent.
        agent: AgentId,
        /// The reward.
        reward: String,
    },
    /// Nobody samples any more.
    #[error("the environment was stopped")]
    Stopped,
}
