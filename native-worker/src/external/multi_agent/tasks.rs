//! Driver operations that do not block a thread.

use std::{
    future::poll_fn,
    task::{Context, Poll},
};

use rollmesh_core::env::{ExternalEpisodes, ExternalError, multi_agent::AgentRows};

use super::{ExternalEnvError, ExternalMultiAgentEnv};

impl ExternalMultiAgentEnv {
    /// Works like [`actions`](Self::actions), in a task. Waits for ever if no worker samples.
    ///
    /// # Errors
    /// [`ExternalEnvError::Episode`].
    pub async fn actions_async(&self, id: u64, obs: &AgentRows) -> Result<AgentRows, ExternalEnvError> {
        poll_fn(|context| self.poll_request(id, obs, context)).await?;
        let mut actions = AgentRows::new();
        self.wait_for_actions_async(id, &mut actions).await?;
        Ok(actions)
    }

    /// Works like [`wait_for_actions`](Self::wait_for_actions), in a task.
    ///
    /// # Errors
    /// [`ExternalEnvError::Episode`].
    pub async fn wait_for_actions_async(&self, id: u64, actions: &mut AgentRows) -> Result<(), ExternalEnvError> {
        poll_fn(|context| self.poll_actions(id, actions, context)).await
    }

    /// Passes the agents' observations and requests their actions, without waiting.
    ///
    /// # Errors
    /// [`ExternalError`], also [`ExternalError::QueueFull`].
    pub fn request_actions(&self, id: u64, obs: &AgentRows) -> Result<(), ExternalEnvError> {
        Ok(self.driver.shared().say(|episodes| episodes.request_actions(id, obs))?)
    }

    /// Takes the requested actions, if they are available.
    ///
    /// # Errors
    /// [`ExternalError::NothingAsked`], or those of an episode that is not open.
    pub fn take_actions(&self, id: u64, actions: &mut AgentRows) -> Result<bool, ExternalEnvError> {
        Ok(self.driver.shared().lock().episodes.take_actions(id, actions)?)
    }

    /// Works like [`take_actions`](Self::take_actions); wakes the task when another poll may succeed.
    pub fn poll_actions(
        &self,
        id: u64,
        actions: &mut AgentRows,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ExternalEnvError>> {
        let mut state = self.driver.shared().lock();
        match state.episodes.take_actions(id, actions) {
            Ok(true) => Poll::Ready(Ok(())),
            Ok(false) => {
                state.wait(id, context);
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }

    /// Works like [`log_actions`](Self::log_actions), in a task.
    ///
    /// # Errors
    /// [`ExternalEnvError::Episode`].
    pub async fn log_actions_async(
        &self,
        id: u64,
        obs: &AgentRows,
        actions: &AgentRows,
    ) -> Result<(), ExternalEnvError> {
        poll_fn(|context| self.poll_log(id, obs, actions, context)).await
    }

    /// Works like [`end_episode`](Self::end_episode), in a task.
    ///
    /// # Errors
    /// [`ExternalEnvError::Episode`].
    pub async fn end_episode_async(&self, id: u64, obs: &AgentRows, truncated: bool) -> Result<(), ExternalEnvError> {
        poll_fn(|context| self.poll_end(id, obs, truncated, context)).await
    }

    pub(super) fn poll_request(
        &self,
        id: u64,
        obs: &AgentRows,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ExternalEnvError>> {
        self.poll_say(id, context, |episodes| episodes.request_actions(id, obs))
    }

    pub(super) fn poll_log(
        &self,
        id: u64,
        obs: &AgentRows,
        actions: &AgentRows,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ExternalEnvError>> {
        self.poll_say(id, context, |episodes| episodes.log_actions(id, obs, actions))
    }

    pub(super) fn poll_end(
        &self,
        id: u64,
        obs: &AgentRows,
        truncated: bool,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ExternalEnvError>> {
        self.poll_say(id, context, |episodes| episodes.end_episode(id, obs, truncated))
    }

    fn poll_say(
        &self,
        id: u64,
        context: &mut Context<'_>,
        say: impl FnOnce(&mut ExternalEpisodes) -> Result<(), ExternalError>,
    ) -> Poll<Result<(), ExternalEnvError>> {
        self.driver.shared().poll_say(id, context, say).map_err(Into::into)
    }
}
