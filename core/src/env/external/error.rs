//! Errors of drivers of external episodes.

use crate::{ids::AgentId, prelude::*};

/// The reason why a driver's call was rejected. It had no effect, and did not reach the sampler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalError {
    /// No episode of this number is or was recently open.
    #[error("there is no episode {0}: start it first")]
    UnknownEpisode(u64),
    /// The episode has ended.
    #[error("episode {0} has ended: start a new one")]
    FinishedEpisode(u64),
    /// The sampler has dropped the episode, after an error or because it restarted.
    #[error("episode {0} is lost, the sampler had to begin anew: start another episode")]
    LostEpisode(u64),
    /// An episode of this number is open.
    #[error("episode {0} continues already: end it first, or take another number")]
    DuplicateEpisode(u64),
    /// As many episodes are open as there are lanes.
    #[error("{0} episodes are open, and there are no more lanes: end one first, or make more lanes")]
    TooManyEpisodes(usize),
    /// The requested actions have not been taken yet.
    #[error("episode {0} waits for actions: take them first")]
    AwaitsActions(u64),
    /// No actions were requested.
    #[error("episode {0} waits for no actions: ask for some first")]
    NothingAsked(u64),
    /// The lane's queue is full.
    #[error("episode {id}: {turns} turns wait for the sampler: continue when it has taken some")]
    QueueFull {
        /// The episode.
        id: u64,
        /// Number of queued turns.
        turns: usize,
    },
    /// No agent has an observation.
    #[error("episode {0}: at least one agent must observe something")]
    NoObservation(u64),
    /// There was no observation yet, so no action can have results.
    #[error("episode {0}: returns come after the first observation")]
    EarlyReturns(u64),
    /// The agent has no spaces.
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
    /// The observation is invalid.
    #[error("episode {id}, agent {agent}: the observation {reason}")]
    BadObservation {
        /// The episode.
        id: u64,
        /// The agent.
        agent: AgentId,
        /// The reason.
        reason: String,
    },
    /// The action is invalid.
    #[error("episode {id}, agent {agent}: {reason}")]
    BadAction {
        /// The episode.
        id: u64,
        /// The agent.
        agent: AgentId,
        /// The reason.
        reason: String,
    },
    /// The reward, or its sum with earlier ones, is infinite or NaN as a column stores it.
    #[error("episode {id}, agent {agent}: the reward is {reward}")]
    BadReward {
        /// The episode.
        id: u64,
        /// The agent.
        agent: AgentId,
        /// The reward.
        reward: String,
    },
    /// The sampler has stopped.
    #[error("the environment was stopped")]
    Stopped,
}
