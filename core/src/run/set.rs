//! Sets settings by a chain of calls, for Rust code.

use super::RunConfig;
use crate::{config::Config, prelude::*};

impl RunConfig {
    /// Returns the defaults for a registered environment, without its preset.
    #[must_use]
    pub fn new(env: impl Into<String>) -> Self {
        let mut config = Self::default();
        config.rollout.env = Some(env.into());
        config
    }

    /// Returns a run without training: its rows are the environment's raw ones, and the policy `net` chooses its actions.
    /// All its slots have one home, so that no environment depends on the number of workers.
    #[must_use]
    pub fn sampling(env: impl Into<String>, num_slots: u32) -> Self {
        let mut config = Self { algorithm: None, num_slots: Some(num_slots), ..Self::new(env) };
        config.rollout = config.rollout.raw().num_envs(num_slots).rollout_fragment_length(200);
        config
    }

    /// Sets the seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.rollout.seed = seed;
        self
    }

    /// Sets the number of local workers.
    #[must_use]
    pub fn num_workers(self, num_workers: u32) -> Self {
        Self { num_workers, ..self }
    }

    /// Sets the number of slots.
    #[must_use]
    pub fn slots(self, num_slots: u32) -> Self {
        Self { num_slots: Some(num_slots), ..self }
    }

    /// Sets how many slots share one home worker.
    #[must_use]
    pub fn num_envs(mut self, num_envs: u32) -> Self {
        self.rollout.num_envs = num_envs;
        self
    }

    /// Sets the env steps of a slot per fragment.
    #[must_use]
    pub fn rollout_fragment_length(mut self, steps: u32) -> Self {
        self.rollout = self.rollout.rollout_fragment_length(steps);
        self
    }

    /// Sets the widths of the hidden layers of all policies' models.
    #[must_use]
    pub fn fcnet_hiddens(mut self, widths: &[u32]) -> Self {
        self.rollout = self.rollout.fcnet_hiddens(widths);
        self
    }

    /// Sets the settings of the environment.
    #[must_use]
    pub fn env_config(mut self, env_config: Config) -> Self {
        self.rollout.env_config = env_config;
        self
    }

    /// Sets the settings of the algorithm.
    #[must_use]
    pub fn policy_config(mut self, policy_config: Config) -> Self {
        self.rollout.policy_config = policy_config;
        self
    }

    /// Sets the number of env steps after which the run ends.
    #[must_use]
    pub fn stop_after(mut self, env_steps: u64) -> Self {
        self.stop.env_steps = env_steps;
        self
    }

    /// Sets the mean return at which the run is solved.
    #[must_use]
    pub fn stop_at_return(mut self, episode_return_mean: f64) -> Self {
        self.stop.episode_return_mean = Some(episode_return_mean);
        self
    }
}
