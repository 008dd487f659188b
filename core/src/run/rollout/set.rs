//! Sets settings by a chain of calls, for Rust code.

use core::iter;

use super::{BatchMode, CountStepsBy, FragmentLength, PolicyConfig, PreprocessorPref, RolloutConfig};
use crate::{config::Config, env::ProcessLimits, ids::PolicyId, prelude::*};

impl RolloutConfig {
    /// Returns the defaults for a registered environment.
    #[must_use]
    pub fn new(env: impl Into<String>) -> Self {
        Self { env: Some(env.into()), ..Self::default() }
    }

    /// Turns off all transforms of observations and actions: no preprocessing, clipping or unsquashing. Hashes of rollouts
    /// are of such rows.
    #[must_use]
    pub fn raw(self) -> Self {
        Self { preprocessor_pref: PreprocessorPref::None, clip_actions: false, normalize_actions: false, ..self }
    }

    /// Returns the limits of the processes that environments start themselves.
    pub(crate) const fn process_limits(&self) -> ProcessLimits {
        ProcessLimits { timeout_ms: self.remote_env_timeout_ms, memory_mb: self.remote_env_memory_mb }
    }

    /// Sets the settings of the environment.
    #[must_use]
    pub fn env_config(self, env_config: Config) -> Self {
        Self { env_config, ..self }
    }

    /// Sets the number of environments.
    #[must_use]
    pub fn num_envs(self, num_envs: u32) -> Self {
        Self { num_envs, ..self }
    }

    /// Sets the steps of each environment per sample.
    #[must_use]
    pub fn rollout_fragment_length(self, steps: u32) -> Self {
        Self { rollout_fragment_length: FragmentLength::Steps(steps), ..self }
    }

    /// Sets whether episodes may be cut.
    #[must_use]
    pub fn batch_mode(self, batch_mode: BatchMode) -> Self {
        Self { batch_mode, ..self }
    }

    /// Returns whether every fragment has exactly `rollout_fragment_length` env steps.
    #[must_use]
    pub fn has_equal_fragments(&self) -> bool {
        self.batch_mode == BatchMode::TruncateEpisodes && self.count_steps_by == CountStepsBy::EnvSteps
    }

    /// Sets the seed.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Adds a policy, or replaces the one of this id.
    #[must_use]
    pub fn policy(mut self, id: PolicyId, policy: PolicyConfig) -> Self {
        self.policies.insert(id, policy);
        self
    }

    /// Uses a single policy of a registered kind for all agents.
    #[must_use]
    pub fn single_policy(self, kind: impl Into<String>) -> Self {
        Self { policies: iter::once((PolicyId::DEFAULT, PolicyConfig::new(kind))).collect_ordered(), ..self }
    }

    /// Sets the widths of the hidden layers of all policies' models.
    #[must_use]
    pub fn fcnet_hiddens(self, widths: &[u32]) -> Self {
        // A list of numbers is valid JSON.
        let model_config = self.model_config.clone().with("fcnet_hiddens", widths).unwrap_or_default();
        Self { model_config, ..self }
    }

    /// Model settings that configure the wrappers of games instead of the policy.
    const WRAPPER_SETTINGS: [&str; 2] = ["dim", "framestack"];

    /// Returns the settings of all policies: [`shared_policy_config`](Self::shared_policy_config) without those of games'
    /// wrappers.
    #[must_use]
    pub fn network_config(&self) -> Config {
        let model_config = self.model_config.clone().without(&Self::WRAPPER_SETTINGS);
        Self { model_config, ..self.clone() }.shared_policy_config()
    }

    /// Returns the settings that all policies share, including those of models.
    #[must_use]
    pub fn shared_policy_config(&self) -> Config {
        if self.model_config.is_empty() {
            return self.policy_config.clone();
        }
        // A configuration is already a JSON object.
        let model = Config::new().with("model", self.model_config.clone()).unwrap_or_default();
        self.policy_config.merged(&model)
    }
}
