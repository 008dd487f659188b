//! Describes a run: one description for files, the command line, the run directory, the wire and the page.
//!
//! [`RunConfig`] consists of [`RolloutConfig`], which says how to collect experience, and of the settings of the run: slots,
//! an algorithm, when it stops, how to evaluate and save it. Settings come in layers, where each object overrides the one
//! before: the defaults, a [preset](presets), a file, flags. [`RunConfig::of_settings`] reads them all and names the first
//! invalid setting.
//!
//! ```
//! use rollmesh_core::{ids::SlotId, run::RunConfig};
//!
//! let settings = r#"{"env": "FrozenLake-v1", "env_config": {"map_name": "8x8"}, "num_workers": 2, "num_envs": 8}"#;
//! let run = RunConfig::of_settings(&settings.parse()?)?;
//! assert_eq!(run.num_slots(), 16);
//! // An environment gets the same indices whichever worker runs its slot.
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
pub use parts::{
    EvaluationConfig, HostConfig, Inference, InferenceBatch, InitSpec, ReplayMismatch, SamplingMode, StopConfig,
    WeightsDtype,
};
pub use rollout::{FragmentLength, InputSource, PolicyConfig, PreprocessorPref, RolloutConfig};
pub use worker_spec::{BadAmount, WorkerSpec};

use serde::{Deserialize, Serialize};

use crate::{
    config::Config,
    env::{EnvContext, EnvState},
    ids::{HomeIndex, PolicyId, SlotId},
    prelude::*,
};

/// The description of a run. Two runs with equal descriptions and equal weights have equal rows, whichever workers sample
/// them.
///
/// In a file, its settings are at the same level as those of [`RolloutConfig`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunConfig {
    /// The collection of experience. `num_envs` slots share one home worker.
    #[serde(flatten)]
    pub rollout: RolloutConfig,
    /// Slots of the run, fixed for its lifetime; by default `num_envs` for each worker, and at least for one worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_slots: Option<u32>,
    /// Local worker processes at the start of the run. With 0, the hub's process samples while no suitable worker is
    /// connected.
    pub num_workers: u32,
    /// Registered name of the algorithm, which is also the kind of every policy without its own; none for a run that does
    /// not train. Its settings are the rollout's [`policy_config`](RolloutConfig::policy_config).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algorithm: Option<String>,
    /// `auto` for settings that are known to work for the environment and algorithm, wherever they are not overridden;
    /// `none` for the algorithm's own defaults.
    pub preset: String,
    /// When the run ends.
    pub stop: StopConfig,
    /// The condition that completes a batch. In modes other than the synchronous one, two runs differ.
    pub mode: SamplingMode,
    /// The treatment of an open episode whose replay on another worker ends in another state.
    pub replay_mismatch: ReplayMismatch,
    /// Whether policies may act on devices, whose rows do not have the kernels' bits. Workers that act on one take part in no
    /// other run. The run is then not reproducible, no fragment is made twice, and audits replay actions and compare within a tolerance.
    pub device_rows: bool,
    /// Element type of the weights that workers act with. The learner's own weights always have 32-bit floats.
    #[serde(default)]
    pub weights_dtype: WeightsDtype,
    /// The place where the networks of workers' policies compute.
    pub inference: Inference,
    /// The batching of rows in a worker that acts for others.
    pub inference_batch: InferenceBatch,
    /// The evaluation of its policy, without influence on its rows.
    pub evaluation: EvaluationConfig,
    /// Iterations between two checkpoints; a run with a directory also saves one every ten seconds.
    pub checkpoint_interval: u64,
    /// Seconds without progress, over leases after the expiry of the lease, at which a local worker is killed and replaced, a
    /// remote one is disconnected, and a run that samples by itself ends; 0 for never.
    pub hung_worker_timeout_s: f64,
    /// Settings of the machine that starts the run. They are never read from the wire.
    #[serde(default, skip_serializing_if = "HostConfig::is_default")]
    pub host: HostConfig,
}

impl Default for RunConfig {
    /// Returns a run in which two workers with eight environments each train CartPole-v1 with PPO.
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
            inference: Inference::Local,
            inference_batch: InferenceBatch::default(),
            weights_dtype: WeightsDtype::Float32,
            evaluation: EvaluationConfig::default(),
            // A few seconds in small runs; in large ones the ten seconds decide.
            checkpoint_interval: 100,
            // Much longer than a step of an environment takes.
            hung_worker_timeout_s: 60.0,
            host: HostConfig::default(),
        }
    }
}

impl RunConfig {
    /// Maximum `rollout_fragment_length`, and maximum number of env steps of the episode that completes a fragment.
    pub const MAX_FRAGMENT_LENGTH: u32 = 65_536;
    /// Maximum width of a hidden layer.
    pub const MAX_HIDDEN: u32 = 16_384;
    /// Maximum number of weights between hidden layers: with more no message could hold even these, and memory is allocated for
    /// them before [the message of all weights](crate::hub::RunLoopError::TooLarge) is checked.
    pub const MAX_HIDDEN_WEIGHTS: u64 = 1 << 24;
    /// Maximum number of hidden layers.
    pub const MAX_LAYERS: usize = 32;
    /// Maximum size of an environment's settings in bytes of JSON text.
    pub const MAX_ENV_CONFIG_BYTES: usize = 16_384;

    /// Returns the registered name of the environment; empty if there is none.
    #[must_use]
    pub fn env(&self) -> &str {
        self.rollout.env.as_deref().unwrap_or_default()
    }

    /// Returns a policy of the run: the kind `net` stands for the network that the algorithm trains.
    #[must_use]
    pub fn policy(&self, id: &PolicyId) -> PolicyConfig {
        let mut policy = self.rollout.policies.get(id).cloned().unwrap_or_default();
        if let (Some(algorithm), "net") = (&self.algorithm, policy.policy.as_str()) {
            policy.policy.clone_from(algorithm);
        }
        policy
    }

    /// Returns the settings of the default policy: its own override those that all policies share.
    #[must_use]
    pub fn default_policy_config(&self) -> Config {
        self.rollout.network_config().merged(&self.policy(&PolicyId::DEFAULT).config)
    }

    /// Returns true for a run that trains on rows that it reads instead of samples: it has no slots.
    #[must_use]
    pub fn reads_input(&self) -> bool {
        !self.rollout.input.is_sampler()
    }

    /// Returns the settings of a worker that performs the whole run alone: those of the rollout, with the policies that the
    /// run trains.
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

    /// Returns whether open episodes of such an environment continue wherever their slots move.
    #[must_use]
    pub fn episodes_move(&self, env_state: EnvState) -> bool {
        match env_state {
            EnvState::Snapshot => true,
            EnvState::Replay => self.replay_mismatch == ReplayMismatch::Fail,
            EnvState::Opaque => false,
        }
    }

    /// Returns the number of slots of the run.
    #[must_use]
    pub fn num_slots(&self) -> u32 {
        self.num_slots.unwrap_or_else(|| self.num_workers.max(1).saturating_mul(self.rollout.num_envs))
    }

    /// Returns the slots that each worker can act for in one step: `num_envs`, or its share of explicit `num_slots` among
    /// `num_workers`. With more workers than have that many, slots and not workers are the limit.
    #[must_use]
    pub fn slots_per_worker(&self) -> u32 {
        self.rollout.num_envs.min(self.num_slots() / self.num_workers.max(1)).max(1)
    }

    /// Returns the maximum number of env steps of a slot's fragment: [`fragment_length`](Self::fragment_length) if all
    /// fragments are equal, more if they end with an episode or count agent steps.
    #[must_use]
    pub fn max_fragment_steps(&self) -> u32 {
        let beyond = if self.rollout.has_equal_fragments() { 0 } else { Self::MAX_FRAGMENT_LENGTH };
        self.fragment_length().saturating_add(beyond)
    }

    /// Returns the steps of a slot per fragment, as `count_steps_by` counts them. `"auto"` divides the train batch among all
    /// slots.
    #[must_use]
    pub fn fragment_length(&self) -> u32 {
        let RolloutConfig { rollout_fragment_length, train_batch_size, .. } = self.rollout;
        rollout_fragment_length.resolve(train_batch_size, 1, self.num_slots(), 1)
    }

    /// Returns the sampling mode; an asynchronous mode without a batch size gets one fragment of every slot.
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

    /// Returns the number of home workers of the run: those in its slots' indices, whatever the actual number of workers is.
    #[must_use]
    pub fn num_home_workers(&self) -> u32 {
        self.num_slots().div_ceil(self.rollout.num_envs.max(1))
    }

    /// Returns the indices of a slot's home, whichever worker runs the slot: slot `s` has worker index `s / num_envs + 1`
    /// and vector index `s % num_envs`.
    #[must_use]
    pub fn home(&self, slot: SlotId) -> HomeIndex {
        let per_worker = self.rollout.num_envs.max(1);
        HomeIndex { worker_index: slot.0 / per_worker + 1, vector_index: slot.0 % per_worker }
    }

    /// Returns the context of a slot's environment, whichever worker runs the slot.
    #[must_use]
    pub fn env_context(&self, slot: SlotId) -> EnvContext {
        let context = EnvContext::new(self.home(slot)).with_config(self.rollout.env_config.clone());
        EnvContext { num_workers: self.num_home_workers(), limits: self.rollout.process_limits(), ..context }
    }
}
