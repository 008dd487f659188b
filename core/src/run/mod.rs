//! What a run is: one description for files, the command line, the run directory, the wire and the page.
//!
//! [`RunConfig`] is [`RolloutConfig`], how experience is collected, and around it what a run needs: slots, an algorithm,
//! when it stops, how it is evaluated and saved. Settings come in layers, each an object over the one before: the
//! defaults, a [preset](presets), a file, flags. [`RunConfig::of_settings`] reads them all and names what is wrong.
//!
//! ```
//! use rollmesh_core::{ids::SlotId, run::RunConfig};
//!
//! let settings = r#"{"env": "FrozenLake-v1", "env_config": {"map_name": "8x8"}, "num_workers": 2, "num_envs": 8}"#;
//! let run = RunConfig::of_settings(&settings.parse()?)?;
//! assert_eq!(run.num_slots(), 16);
//! // An environment is told the same place wherever its slot runs.
//! let home = run.home(SlotId(9));
//! assert_eq!((home.worker_index, home.vector_index), (2, 1));
//!
//! let error = RunConfig::of_settings(&r#"{"num_worker": 2}"#.parse()?).unwrap_err().to_string();
//! assert_eq!(error, "num_worker: there is no such setting; did you mean num_workers?");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
mod error;
mod parts;
pub mod presets;
mod read;
pub mod rollout;
pub mod schema;
mod set;
#[cfg(test)]
mod tests;
mod wire;
mod worker_spec;

pub use check::MAX_LOCAL_WORKERS;
pub use error::RunConfigError;
pub use parts::{EvaluationConfig, HostConfig, InitSpec, ReplayMismatch, SamplingMode, StopConfig};
pub use rollout::{FragmentLength, InputSource, PolicyConfig, PreprocessorPref, RolloutConfig};
pub use worker_spec::{BadAmount, WorkerSpec};

use serde::{Deserialize, Serialize};

use crate::{
    config::Config,
    env::EnvContext,
    ids::{HomeIndex, PolicyId, SlotId},
    prelude::*,
};

/// The description of a run. Two runs with equal descriptions and equal weights have equal rows, whatever works on them.
///
/// In a file its settings stand beside those of [`RolloutConfig`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// How experience is collected. `num_envs` slots share one home worker.
    #[serde(flatten)]
    pub rollout: RolloutConfig,
    /// Slots of the run, fixed for its life; by default `num_envs` for each worker, at least one worker's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_slots: Option<u32>,
    /// Local worker processes that the run begins with. With 0 the hub's process samples while no able worker is connected.
    pub num_workers: u32,
    /// Registered name of the algorithm, which is the kind of every policy that names none; none for a run that learns
    /// nothing. Its settings are the rollout's [`policy_config`](RolloutConfig::policy_config).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<String>,
    /// `auto` for the settings that are known to work for environment and algorithm, where nothing else is said; `none`
    /// for the algorithm's own defaults.
    pub preset: String,
    /// When the run ends.
    pub stop: StopConfig,
    /// Which fragments make a batch. In other modes than the synchronous one two runs are not the same.
    pub mode: SamplingMode,
    /// What becomes of an open episode whose replay on another worker ends in another state.
    pub replay_mismatch: ReplayMismatch,
    /// Whether policies may act on devices, whose rows do not have the kernels' bits. Workers that act on one take part in no
    /// other run. The run is then not reproducible, and no fragment is audited or made twice.
    pub device_rows: bool,
    /// How its policy is evaluated, without influence on its rows.
    pub evaluation: EvaluationConfig,
    /// Iterations between two checkpoints; one is saved every ten seconds in any case, if the run has a directory.
    pub checkpoint_interval: u64,
    /// Seconds after which a local worker that hangs is ended and replaced; 0 for never. They count from the expiry of its
    /// lease.
    pub hung_worker_timeout_s: f64,
    /// What belongs to the machine that the run is started on. Never taken from the wire.
    #[serde(default, skip_serializing_if = "HostConfig::is_default")]
    pub host: HostConfig,
}

impl Default for RunConfig {
    /// Two workers with eight environments each that learn CartPole-v1 by PPO.
    fn default() -> Self {
        Self {
            rollout: RolloutConfig {
                env: Some("CartPole-v1".into()),
                num_envs: 8,
                rollout_fragment_length: FragmentLength::Steps(64),
                ..RolloutConfig::default()
            },
            num_slots: None,
            num_workers: 2,
            algorithm: Some("ppo".into()),
            preset: "auto".into(),
            stop: StopConfig::default(),
            mode: SamplingMode::Synchronous,
            replay_mismatch: ReplayMismatch::Fail,
            device_rows: false,
            evaluation: EvaluationConfig::default(),
            // Some seconds in small runs, and no more than the ten seconds in large ones.
            checkpoint_interval: 100,
            // Far longer than a step of an environment takes.
            hung_worker_timeout_s: 60.0,
            host: HostConfig::default(),
        }
    }
}

impl RunConfig {
    /// The longest `rollout_fragment_length`, and the most env steps of the episode that completes a fragment.
    pub const MAX_FRAGMENT_LENGTH: u32 = 65_536;
    /// The widest hidden layer.
    pub const MAX_HIDDEN: u32 = 1_024;
    /// The most hidden layers.
    pub const MAX_LAYERS: usize = 32;
    /// The most bytes of an environment's settings, as JSON text.
    pub const MAX_ENV_CONFIG_BYTES: usize = 16_384;

    /// Registered name of the environment; empty if none is named.
    #[must_use]
    pub fn env(&self) -> &str {
        self.rollout.env.as_deref().unwrap_or_default()
    }

    /// A policy of the run: the kind `net` stands for the network that the algorithm trains.
    #[must_use]
    pub fn policy(&self, id: &PolicyId) -> PolicyConfig {
        let mut policy = self.rollout.policies.get(id).cloned().unwrap_or_default();
        if let (Some(algorithm), "net") = (&self.algorithm, policy.policy.as_str()) {
            policy.policy.clone_from(algorithm);
        }
        policy
    }

    /// Settings of the default policy: its own over those that all policies share.
    #[must_use]
    pub fn default_policy_config(&self) -> Config {
        self.rollout.network_config().merged(&self.policy(&PolicyId::DEFAULT).config)
    }

    /// True for a run that learns from rows that it reads, not from those that it samples: it has no slots.
    #[must_use]
    pub fn reads_input(&self) -> bool {
        !self.rollout.input.is_sampler()
    }

    /// Settings of a worker that does all of the run by itself: those of the rollout, with the policies that the run
    /// trains.
    #[must_use]
    pub fn worker_config(&self) -> RolloutConfig {
        let mut config = self.rollout.clone();
        if config.policies.is_empty() {
            config.policies.insert(PolicyId::DEFAULT, PolicyConfig::default());
        }
        for (id, policy) in &mut config.policies {
            *policy = self.policy(id);
        }
        config
    }

    /// Slots of the run.
    #[must_use]
    pub fn num_slots(&self) -> u32 {
        self.num_slots.unwrap_or_else(|| self.num_workers.max(1).saturating_mul(self.rollout.num_envs))
    }

    /// The most env steps of a slot's fragment: [`fragment_length`](Self::fragment_length) if all fragments are equal, more
    /// if they end with an episode or count agent steps.
    #[must_use]
    pub fn max_fragment_steps(&self) -> u32 {
        let beyond = if self.rollout.has_equal_fragments() { 0 } else { Self::MAX_FRAGMENT_LENGTH };
        self.fragment_length().saturating_add(beyond)
    }

    /// Steps of a slot per fragment, as `count_steps_by` says. `"auto"` divides the train batch among all slots.
    #[must_use]
    pub fn fragment_length(&self) -> u32 {
        let RolloutConfig { rollout_fragment_length, train_batch_size, .. } = self.rollout;
        rollout_fragment_length.resolve(train_batch_size, 1, self.num_slots(), 1)
    }

    /// The sampling mode, with a fragment of every slot for asynchronous batches without a size.
    #[must_use]
    pub fn sampling_mode(&self) -> SamplingMode {
        match self.mode {
            SamplingMode::Asynchronous { batch_env_steps: 0, max_staleness } => {
                let batch_env_steps = u64::from(self.num_slots()) * u64::from(self.fragment_length());
                SamplingMode::Asynchronous { batch_env_steps, max_staleness }
            }
            mode => mode,
        }
    }

    /// Home workers of the run: those that its slots' indices speak of, however many work on it.
    #[must_use]
    pub fn num_home_workers(&self) -> u32 {
        self.num_slots().div_ceil(self.rollout.num_envs.max(1))
    }

    /// Indices of a slot's home, wherever the slot runs: slot `s` has worker index `s / num_envs + 1` and vector index
    /// `s % num_envs`.
    #[must_use]
    pub fn home(&self, slot: SlotId) -> HomeIndex {
        let per_worker = self.rollout.num_envs.max(1);
        HomeIndex { worker_index: slot.0 / per_worker + 1, vector_index: slot.0 % per_worker }
    }

    /// What the environment of a slot is told, wherever the slot runs.
    #[must_use]
    pub fn env_context(&self, slot: SlotId) -> EnvContext {
        let context = EnvContext::new(self.home(slot)).with_config(self.rollout.env_config.clone());
        EnvContext { num_workers: self.num_home_workers(), limits: self.rollout.process_limits(), ..context }
    }
}
