//! Driving episodes of several agents.

mod tasks;

use std::{
    fmt::Display,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::{Context, Poll},
    thread::Builder,
    time::Duration,
};

use rollmesh_core::{
    env::{
        BaseEnv, EnvContext, EnvError, EnvSpaces, ExternalEpisodes,
        multi_agent::{AgentRows, Outcome},
    },
    ids::AgentId,
    kernels::Kernels,
};

use super::{
    ExternalEnvError,
    base_env::Sampled,
    shared::{Driver, Serving, SharedEpisodes},
    wait::block_on,
};
use crate::envs::words;

/// Episodes of several agents that are driven from outside. A handle: clones drive the same environment.
///
/// See the [module](super) for its interplay with a sampler, and [`ExternalEpisodes`] for the rules. Calls for one episode
/// must come from one thread or task at a time; episodes are independent of each other.
///
/// Every waiting operation exists in three forms: one that blocks the thread, with a timeout; one for tasks of any
/// asynchronous runtime, `…_async`; and one that does not wait. Dropping a future does not cancel its request.
///
/// ```
/// use rollmesh::external::{ExternalEnvError, ExternalMultiAgentEnv};
/// use rollmesh_core::{
///     column::DType,
///     env::{
///         EnvSpaces, RowsRef,
///         multi_agent::{AgentRows, Outcome},
///     },
///     ids::{AgentId, PolicyId},
///     policy::RandomPolicy,
///     space::Space,
///     worker::{NewPolicy, RolloutConfig, RolloutWorker},
/// };
///
/// let two = Space::Discrete { n: 2 };
/// let spaces = EnvSpaces { observation: two.clone(), observation_type: DType::I64, action: two, action_type: DType::I64 };
/// let agents = ["cat", "mouse"].map(AgentId::name);
/// let env = ExternalMultiAgentEnv::new(1, agents.clone().map(|agent| (agent, spaces.clone())))?;
/// env.run(move |env| -> Result<(), ExternalEnvError> {
///     let mut obs = AgentRows::new();
///     agents.iter().for_each(|agent| obs.set(agent, RowsRef::I64(&[0])));
///     loop {
///         let episode = env.start_episode(true)?;
///         for _ in 0..5 {
///             let actions = env.actions(episode, &obs)?;
///             let met = actions.row_of::<i64>(&agents[0]) == actions.row_of::<i64>(&agents[1]);
///             let reward = if met { 1.0 } else { -1.0 };
///             env.log_returns(episode, &agents[0], Outcome { reward, ..Outcome::default() }, None)?;
///         }
///         env.end_episode(episode, &obs, false)?;
///     }
/// })?;
///
/// let config = RolloutConfig::default().rollout_fragment_length(20);
/// let random = NewPolicy::object(Box::new(RandomPolicy::new(2, 0)));
/// let builder = RolloutWorker::builder().config(config).policy(PolicyId::DEFAULT, random);
/// let mut worker = builder.base_env_creator(env.creator()).build()?;
/// let batch = worker.sample()?;
/// assert_eq!((batch.env_steps(), batch.agent_steps()), (20, 40));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ExternalMultiAgentEnv {
    pub(super) driver: Driver,
    action_timeout: Duration,
    log_timeout: Duration,
    pub(crate) episode_timeout: Duration,
}

impl ExternalMultiAgentEnv {
    /// A driver's default timeout for actions.
    pub const ACTION_TIMEOUT: Duration = Duration::from_secs(300);

    /// A driver's default timeout for space in the queue of turns.
    pub const LOG_TIMEOUT: Duration = Duration::from_secs(60);

    /// The default of how long a hub's client may be silent about an open episode.
    pub const EPISODE_TIMEOUT: Duration = Duration::from_secs(300);

    /// Creates an environment of these agents with `num_envs` lanes, which is the maximum number of open episodes.
    ///
    /// # Errors
    /// [`ExternalEnvError::Spaces`].
    pub fn new(
        num_envs: usize,
        agents: impl IntoIterator<Item = (AgentId, EnvSpaces)>,
    ) -> Result<Self, ExternalEnvError> {
        let episodes = ExternalEpisodes::new(num_envs, agents).map_err(ExternalEnvError::Spaces)?;
        let driver = Driver::new(Arc::new(SharedEpisodes::new(episodes)));
        Ok(Self {
            driver,
            action_timeout: Self::ACTION_TIMEOUT,
            log_timeout: Self::LOG_TIMEOUT,
            episode_timeout: Self::EPISODE_TIMEOUT,
        })
    }

    /// Sets the timeouts of this handle and its clones: for actions, and for space in the queue of turns.
    #[must_use]
    pub fn with_timeouts(mut self, actions: Duration, log: Duration) -> Self {
        (self.action_timeout, self.log_timeout) = (actions, log);
        self
    }

    /// Sets how long clients of a [hub](crate::hub::HubConfig::external) may be silent about an open episode while it is
    /// their turn. Then it is abandoned, and its lane is free for others. Drivers in this process have no such limit.
    #[must_use]
    pub fn with_episode_timeout(mut self, timeout: Duration) -> Self {
        self.episode_timeout = timeout;
        self
    }

    /// Returns the sampler's side, for [`base_env_creator`](rollmesh_core::worker::RolloutWorkerBuilder::base_env_creator)
    /// or a registry. There can be one at a time: a second worker gets an error. It does not count as a handle.
    ///
    /// The worker has as many sub-environments as there are lanes. Its `num_envs` determines the length of samples: set it
    /// to the number of lanes as well, to get the fragments of all.
    ///
    /// # Errors
    /// The returned function fails with [`EnvError::Failed`] if the environment has a sampler already.
    pub fn creator(
        &self,
    ) -> impl Fn(&[EnvContext], Kernels) -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync + use<> {
        let shared = self.driver.shared().clone();
        move |_, _| Ok(Box::new(Sampled::new(shared.clone())?))
    }

    /// Drives episodes on a thread of its own. When the last such thread ends, by returning, with an error or in a panic,
    /// its episodes are lost, and sampling fails with the reason once all earlier turns are sampled, until another thread
    /// drives. After a stop of the environment the thread's next call returns an error.
    ///
    /// # Errors
    /// [`ExternalEnvError::Thread`].
    #[doc(alias = "Serving thread has stopped")]
    pub fn run<E: Display>(
        &self,
        drive: impl FnOnce(&Self) -> Result<(), E> + Send + 'static,
    ) -> Result<(), ExternalEnvError> {
        let (env, serving) = (self.clone(), Serving::new(self.driver.shared().clone()));
        let thread = Builder::new().name("external-env".into()).spawn(move || {
            serving.end(match catch_unwind(AssertUnwindSafe(|| drive(&env))) {
                Ok(Ok(())) => "the serving thread has stopped".into(),
                Ok(Err(error)) => format!("the serving thread has stopped: {error}"),
                Err(panic) => format!("the serving thread {}", words(panic.as_ref())),
            });
        });
        thread.map(drop).map_err(|error| ExternalEnvError::Thread(error.to_string()))
    }

    /// Begins an episode under an unused number. `training_enabled: false` keeps its rows out of batches.
    ///
    /// # Errors
    /// [`ExternalError::TooManyEpisodes`](rollmesh_core::env::ExternalError::TooManyEpisodes),
    /// [`ExternalError::Stopped`](rollmesh_core::env::ExternalError::Stopped).
    pub fn start_episode(&self, training_enabled: bool) -> Result<u64, ExternalEnvError> {
        let mut state = self.driver.shared().lock();
        let id = state.next_id();
        state.episodes.start_episode(id, training_enabled)?;
        Ok(id)
    }

    /// Works like [`start_episode`](Self::start_episode), under a number chosen by the driver. Returns the episode's
    /// lane.
    ///
    /// # Errors
    /// [`ExternalError::DuplicateEpisode`](rollmesh_core::env::ExternalError::DuplicateEpisode); as there.
    pub fn start_episode_as(&self, id: u64, training_enabled: bool) -> Result<usize, ExternalEnvError> {
        Ok(self.driver.shared().lock().episodes.start_episode(id, training_enabled)?)
    }

    /// Passes the agents' observations, and waits for their actions. Agents whose last observation it is have none.
    ///
    /// After [`ExternalEnvError::Timeout`] the request remains: [`wait_for_actions`](Self::wait_for_actions) continues
    /// waiting.
    ///
    /// # Errors
    /// [`ExternalEnvError`].
    #[doc(alias = "get_action")]
    pub fn actions(&self, id: u64, obs: &AgentRows) -> Result<AgentRows, ExternalEnvError> {
        self.block_until_ready(id, |context| self.poll_request(id, obs, context))?;
        let mut actions = AgentRows::new();
        self.wait_for_actions(id, &mut actions)?;
        Ok(actions)
    }

    /// Waits for the actions of an earlier request.
    ///
    /// # Errors
    /// [`ExternalError::NothingAsked`](rollmesh_core::env::ExternalError::NothingAsked), [`ExternalEnvError::Timeout`].
    pub fn wait_for_actions(&self, id: u64, actions: &mut AgentRows) -> Result<(), ExternalEnvError> {
        let timeout = self.action_timeout;
        block_on(timeout, |context| self.poll_actions(id, actions, context)).unwrap_or(Err(ExternalEnvError::Timeout {
            id,
            what: "chosen actions",
            timeout,
        }))
    }

    /// Logs the agents' observations and their own actions: one for each that acts. Waits only while the [queue of
    /// turns](ExternalEpisodes::MAX_QUEUED_TURNS) is full.
    ///
    /// # Errors
    /// [`ExternalEnvError`].
    #[doc(alias = "log_action")]
    pub fn log_actions(&self, id: u64, obs: &AgentRows, actions: &AgentRows) -> Result<(), ExternalEnvError> {
        self.block_until_ready(id, |context| self.poll_log(id, obs, actions, context))
    }

    /// Logs an agent's reward and outcome since the latest observations, see [`ExternalEpisodes::log_returns`]. Never waits.
    ///
    /// # Errors
    /// [`ExternalEnvError::Episode`].
    pub fn log_returns(
        &self,
        id: u64,
        agent: &AgentId,
        outcome: Outcome,
        info: Option<&[u8]>,
    ) -> Result<(), ExternalEnvError> {
        Ok(self.driver.shared().lock().episodes.log_returns(id, agent, outcome, info)?)
    }

    /// Ends an episode with the agents' last observations, see [`ExternalEpisodes::end_episode`]. Waits like
    /// [`log_actions`](Self::log_actions).
    ///
    /// # Errors
    /// [`ExternalEnvError`].
    pub fn end_episode(&self, id: u64, obs: &AgentRows, truncated: bool) -> Result<(), ExternalEnvError> {
        self.block_until_ready(id, |context| self.poll_end(id, obs, truncated, context))
    }

    /// Abandons an episode, also while other calls wait in it. Turns that were not sampled are lost.
    ///
    /// # Errors
    /// Those of an episode that is not open.
    pub fn abandon(&self, id: u64) -> Result<(), ExternalEnvError> {
        Ok(self.driver.shared().abandon(id)?)
    }

    /// Returns the maximum number of open episodes.
    #[must_use]
    pub fn num_envs(&self) -> usize {
        self.driver.shared().lock().episodes.num_envs()
    }

    /// Returns the spaces of an agent, if it exists.
    #[must_use]
    pub fn spaces(&self, agent: &AgentId) -> Option<EnvSpaces> {
        self.driver.shared().lock().episodes.spaces(agent)
    }

    /// Returns the agents, ascending.
    #[must_use]
    pub fn agents(&self) -> Vec<AgentId> {
        self.driver.shared().lock().episodes.agents()
    }

    /// Returns the open episodes, ascending.
    #[must_use]
    pub fn open_episodes(&self) -> Vec<u64> {
        self.driver.shared().lock().episodes.open_episodes().map(|(id, _)| id).collect()
    }

    /// Stops the environment: drivers get [`ExternalError::Stopped`](rollmesh_core::env::ExternalError::Stopped), also
    /// waiting ones; sampling fails with [`EnvError::Stopped`]. Stopping or dropping the worker does the same. Idempotent.
    pub fn stop(&self) {
        self.driver.shared().stop();
    }

    fn block_until_ready(
        &self,
        id: u64,
        poll: impl FnMut(&mut Context<'_>) -> Poll<Result<(), ExternalEnvError>>,
    ) -> Result<(), ExternalEnvError> {
        let timeout = self.log_timeout;
        let late = ExternalEnvError::Timeout { id, what: "taken the turns before", timeout };
        block_on(timeout, poll).unwrap_or(Err(late))
    }
}
