//! Settings one after the other, for those who write them in Rust.

use super::{BatchMode, CountStepsBy, FragmentLength, PolicyConfig, PreprocessorPref, RolloutConfig};
use crate::{config::Config, env::ProcessLimits, ids::PolicyId, prelude::*};

impl RolloutConfig {
    /// The defaults for a registered environment.
    #[must_use]
    pub fn new(env: impl Into<String>) -> Self {
        Self { env: Some(env.into()), ..Self::default() }
    }

    /// Rows as the environment gives them and actions as the policy chooses them: nothing is preprocessed, clipped or
    /// stretched in between. Hashes of rollouts are of those.
    #[must_use]
    pub fn raw(self) -> Self {
        Self { preprocessor_pref: PreprocessorPref::None, clip_actions: false, normalize_actions: false, ..self }
    }

    /// Limits of the processes that environments start for themselves.
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

    /// Whether every fragment is exactly as long as `rollout_fragment_length` says, in env steps.
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

    /// Lets a single policy of a registered kind act for all agents.
    #[must_use]
    pub fn single_policy(self, kind: impl Into<String>) -> Self {
        Self { policies: [(PolicyId::DEFAULT, PolicyConfig::new(kind))].into(), ..self }
    }

    /// Sets the widths of the hidden layers of all policies' models.
    #[must_use]
    pub fn fcnet_hiddens(self, widths: &[u32]) -> Self {
        // A list of numbers is JSON.
        let model_config = self.model_config.clone().with("fcnet_hiddens", widths).unwrap_or_default();
        Self { model_config, ..self }
    }

    /// Settings of a model that are for a game's wrappers and not for the policy.
    const WRAPPER_SETTINGS: [&str; 2] = ["dim", "framestack"];

    /// Settings from which all policies are made: [`shared_policy_config`](Self::shared_policy_config) without those of
    /// games' wrappers.
    #[must_use]
    pub fn network_config(&self) -> Config {
        let model_config = self.model_config.clone().without(&Self::WRAPPER_SETTINGS);
        Self { model_config, ..self.clone() }.shared_policy_config()
    }

    /// Settings that all policies share, those of models among them.
    #[must_use]
    pub fn shared_policy_config(&self) -> Config {
        if self.model_config.is_empty() {
            return self.policy_config.clone();
        }
        // A configuration is a JSON object already.
        let model = Config::new().with("model", self.model_config.clone()).unwrap_or_default();
        self.policy_config.merged(&model)
    }
}
