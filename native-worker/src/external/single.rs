//! Driving episodes of a single agent.

use std::{fmt::Display, time::Duration};

use rollmesh_core::{
    column::Element,
    env::{
        BaseEnv, EnvContext, EnvError, EnvSpaces,
        multi_agent::{AgentRows, Outcome},
    },
    ids::AgentId,
    kernels::Kernels,
};

use super::{ExternalEnvError, ExternalMultiAgentEnv};

/// Episodes of one agent that are driven from outside: [`ExternalMultiAgentEnv`] without agent names. A handle: clones drive
/// the same environment.
///
/// Observations and actions are rows in the form of the spaces: `[4.0, 2.0]` for a box of two floats, `[3]` for a discrete
/// one. Further methods, in particular those that do not wait, are [there](Self::multi_agent), for [`AgentId::SINGLE`].
///
/// The example in the [module](super) shows a whole loop.
#[derive(Clone)]
pub struct ExternalEnv(ExternalMultiAgentEnv);

impl ExternalEnv {
    /// Creates an environment with `num_envs` lanes, which is the maximum number of open episodes.
    ///
    /// # Errors
    /// [`ExternalEnvError::Spaces`].
    pub fn new(num_envs: usize, spaces: EnvSpaces) -> Result<Self, ExternalEnvError> {
        ExternalMultiAgentEnv::new(num_envs, [(AgentId::SINGLE, spaces)]).map(Self)
    }

    /// Calls [`ExternalMultiAgentEnv::with_timeouts`].
    #[must_use]
    pub fn with_timeouts(self, actions: Duration, log: Duration) -> Self {
        Self(self.0.with_timeouts(actions, log))
    }

    /// Returns the same environment with named agents.
    #[must_use]
    pub fn multi_agent(&self) -> &ExternalMultiAgentEnv {
        &self.0
    }

    /// Calls [`ExternalMultiAgentEnv::creator`].
    ///
    /// # Errors
    /// The returned function fails with [`EnvError::Failed`] if the environment has a sampler already.
    pub fn creator(
        &self,
    ) -> impl Fn(&[EnvContext], Kernels) -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync + use<> {
        self.0.creator()
    }

    /// Calls [`ExternalMultiAgentEnv::run`].
    ///
    /// # Errors
    /// [`ExternalEnvError::Thread`].
    pub fn run<E: Display>(
        &self,
        drive: impl FnOnce(&Self) -> Result<(), E> + Send + 'static,
    ) -> Result<(), ExternalEnvError> {
        self.0.run(|env| drive(&Self(env.clone())))
    }

    /// Begins an episode under an unused number. `training_enabled: false` keeps its rows out of batches.
    ///
    /// # Errors
    /// As [`ExternalMultiAgentEnv::start_episode`].
    pub fn start_episode(&self, training_enabled: bool) -> Result<u64, ExternalEnvError> {
        self.0.start_episode(training_enabled)
    }

    /// Works like [`start_episode`](Self::start_episode), under a number chosen by the driver.
    ///
    /// # Errors
    /// As [`ExternalMultiAgentEnv::start_episode_as`].
    pub fn start_episode_as(&self, id: u64, training_enabled: bool) -> Result<usize, ExternalEnvError> {
        self.0.start_episode_as(id, training_enabled)
    }

    /// Passes the agent's observation, and waits for its action: one row of the action space's element type.
    ///
    /// # Errors
    /// [`ExternalEnvError::WrongType`]; as [`ExternalMultiAgentEnv::actions`].
    #[doc(alias = "get_action")]
    pub fn action<O: Element, A: Element>(&self, id: u64, obs: &[O]) -> Result<Vec<A>, ExternalEnvError> {
        self.check_type::<A>()?;
        let actions = self.0.actions(id, &row(obs))?;
        Ok(actions.row_of(&AgentId::SINGLE).unwrap_or_default().to_vec())
    }

    /// Logs the agent's observation and its own action: it is recorded as given, off-policy.
    ///
    /// # Errors
    /// As [`ExternalMultiAgentEnv::log_actions`].
    pub fn log_action<O: Element, A: Element>(&self, id: u64, obs: &[O], action: &[A]) -> Result<(), ExternalEnvError> {
        self.0.log_actions(id, &row(obs), &row(action))
    }

    /// Logs the agent's reward since its latest observation; rewards add up until the next one, the latest info is kept.
    ///
    /// # Errors
    /// As [`ExternalMultiAgentEnv::log_returns`].
    pub fn log_returns(&self, id: u64, reward: f64, info: Option<&[u8]>) -> Result<(), ExternalEnvError> {
        self.0.log_returns(id, &AgentId::SINGLE, Outcome { reward, ..Outcome::default() }, info)
    }

    /// Ends an episode in a terminal state, with its observation.
    ///
    /// # Errors
    /// As [`ExternalMultiAgentEnv::end_episode`].
    pub fn end_episode<O: Element>(&self, id: u64, obs: &[O]) -> Result<(), ExternalEnvError> {
        self.0.end_episode(id, &row(obs), false)
    }

    /// Truncates an episode, for example at a time limit, with the current observation.
    ///
    /// # Errors
    /// As [`ExternalMultiAgentEnv::end_episode`].
    pub fn truncate_episode<O: Element>(&self, id: u64, obs: &[O]) -> Result<(), ExternalEnvError> {
        self.0.end_episode(id, &row(obs), true)
    }

    /// Calls [`ExternalMultiAgentEnv::abandon`].
    ///
    /// # Errors
    /// As there.
    pub fn abandon(&self, id: u64) -> Result<(), ExternalEnvError> {
        self.0.abandon(id)
    }

    /// Calls [`ExternalMultiAgentEnv::stop`].
    pub fn stop(&self) {
        self.0.stop();
    }

    /// Checks the type before the request: an action that cannot be returned would be lost.
    fn check_type<A: Element>(&self) -> Result<(), ExternalEnvError> {
        match self.0.spaces(&AgentId::SINGLE) {
            Some(spaces) if spaces.action_type != A::DTYPE => {
                Err(ExternalEnvError::WrongType { found: spaces.action_type.name(), wanted: A::DTYPE.name() })
            }
            _ => Ok(()),
        }
    }
}

fn row<T: Element>(values: &[T]) -> AgentRows {
    AgentRows::single(T::erase_rows(values))
}
