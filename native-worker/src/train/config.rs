//! What a run is, completely.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use rollmesh_core::{
    config::Config,
    env::{EnvContext, EnvError, EnvRegistry, EnvSpaces, UnknownEnv},
    filter::FilterKind,
    group::SamplingMode,
    ids::SlotId,
    policy::{MlpPolicySpec, PolicyError},
    run::{RunSpec, SpecError},
    time::Micros,
};
use serde::{Deserialize, Serialize};

use super::EvaluationConfig;
use crate::{
    hub::TOKEN_VARIABLE,
    launch::WorkerSpec,
    learner::{ConfigError, DeviceSpec, PpoConfig},
};

/// The learning algorithms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Algo {
    /// Proximal policy optimisation.
    #[default]
    Ppo,
}

impl Algo {
    /// The name on the command line and in files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ppo => "ppo",
        }
    }
}

/// The most local workers of a hub.
pub const MAX_LOCAL_WORKERS: u32 = 64;

/// Configuration of a training run. What a file leaves out is as in [`TrainConfig::default`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Registered name of the environment.
    pub env: String,
    /// Settings of the environment.
    #[serde(skip_serializing_if = "Config::is_empty")]
    pub env_config: Config,
    /// The algorithm.
    pub algo: Algo,
    /// Seed of everything random.
    pub seed: u64,
    /// Local worker processes; each is home to `num_envs_per_worker` slots.
    pub num_workers: u32,
    /// Slots per home worker.
    pub num_envs_per_worker: u32,
    /// Widths of the hidden layers of the policy and of the value network.
    pub hidden: Vec<u32>,
    /// The run is solved when the mean return of the last 100 finished episodes reaches this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_return: Option<f64>,
    /// The run ends after this many env steps.
    pub max_env_steps: u64,
    /// Iterations between two checkpoints; one is saved every ten seconds in any case, if the run has a directory.
    pub checkpoint_interval: u64,
    /// Seconds after which a local worker that hangs is ended, and another one takes its place; 0 for never. They count
    /// from when its lease has expired.
    pub hung_worker_timeout_s: f64,
    /// Where the learner computes.
    #[serde(with = "device_text")]
    pub device: DeviceSpec,
    /// The least time between two updates, for people who watch; has no influence on the rows.
    #[serde(skip)]
    pub pace: Duration,
    /// Where the run writes its files; nowhere if absent.
    #[serde(skip)]
    pub run_dir: Option<PathBuf>,
    /// Where what is sampled is kept, as RLlib's JSON; nowhere if absent. Rows are written when they are learned from; what is
    /// made again, after a crash or a lie, takes the place of what was there.
    #[serde(skip)]
    pub output: Option<PathBuf>,
    /// Environment variables of the local workers that the run starts, besides those of the hub.
    #[doc(alias = "extra_python_environs_for_worker")]
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_environs: BTreeMap<String, String>,
    /// What each of these local workers needs of the machine; as the hub says, if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub worker: Option<WorkerSpec>,
    /// Which fragments make a batch. In other modes than the synchronous one two runs are not the same.
    #[serde(skip_serializing_if = "SamplingMode::is_synchronous")]
    pub mode: SamplingMode,
    /// What observations go through before the policy sees them. Statistics are those of all observations that were acted
    /// on before the weights were made, and travel with these.
    #[serde(skip_serializing_if = "is_no_filter")]
    pub observation_filter: FilterKind,
    /// Evaluation beside the run. Has no influence on its rows.
    #[serde(skip_serializing_if = "EvaluationConfig::is_off")]
    pub evaluation: EvaluationConfig,
    /// Settings of the algorithm.
    pub ppo: PpoConfig,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // As serde wants it.
fn is_no_filter(filter: &FilterKind) -> bool {
    *filter == FilterKind::NoFilter
}

/// Why a configuration cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum TrainConfigError {
    /// The environment is not registered.
    #[error(transparent)]
    UnknownEnv(#[from] UnknownEnv),
    /// The environment cannot be made.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// A number that must not be zero is.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A batch is too large for a hub's memory.
    #[error("batch_env_steps must be at most {MAX_BATCH_ENV_STEPS}, not {0}")]
    TooLargeBatch(u64),
    /// A time is none.
    #[error("{0} must be a number of seconds, 0 for never")]
    Seconds(&'static str),
    /// The stop return is not a number.
    #[error("the stop return must be a finite number")]
    StopReturn,
    /// No process can have such an environment variable.
    #[error("no worker can have an environment variable {0:?}: it {1}")]
    ExtraEnviron(String, &'static str),
    /// A number is out of its range.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The policy does not fit the environment.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A setting of the algorithm makes no sense.
    #[error(transparent)]
    Ppo(#[from] ConfigError),
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self::new("CartPole-v1")
    }
}

impl TrainConfig {
    /// Two workers with eight environments each, until solved where the environment says when that is.
    #[must_use]
    pub fn new(env: impl Into<String>) -> Self {
        Self {
            env: env.into(),
            env_config: Config::new(),
            algo: Algo::Ppo,
            seed: 0,
            num_workers: 2,
            num_envs_per_worker: 8,
            hidden: vec![64, 64],
            stop_return: None,
            max_env_steps: 1_000_000,
            // Some seconds in small runs, and no more than the ten seconds in large ones.
            checkpoint_interval: 100,
            // Far longer than a step of an environment takes.
            hung_worker_timeout_s: 60.0,
            device: DeviceSpec::Cpu,
            pace: Duration::ZERO,
            run_dir: None,
            output: None,
            extra_environs: BTreeMap::new(),
            worker: None,
            mode: SamplingMode::Synchronous,
            observation_filter: FilterKind::NoFilter,
            evaluation: EvaluationConfig::default(),
            ppo: PpoConfig::default(),
        }
    }

    /// How long a local worker may hang; none for ever.
    pub(super) fn hung_worker_timeout(&self) -> Option<Micros> {
        let seconds = Some(self.hung_worker_timeout_s).filter(|seconds| *seconds > 0.0)?;
        Some(Micros((seconds * 1e6) as u64))
    }

    /// What workers must know of the run.
    #[must_use]
    pub fn spec(&self) -> RunSpec {
        RunSpec {
            env: self.env.clone(),
            seed: self.seed,
            num_slots: self.num_workers.max(1).saturating_mul(self.num_envs_per_worker),
            num_envs_per_worker: self.num_envs_per_worker,
            rollout_fragment_length: self.ppo.rollout_fragment_length,
            hidden: self.hidden.clone(),
            env_config: self.env_config.clone(),
        }
    }

    /// Checks everything that can be checked before the run begins; returns the environment's spaces.
    ///
    /// # Errors
    /// [`TrainConfigError`], which names what is wrong.
    pub fn check(&self, envs: &EnvRegistry) -> Result<EnvSpaces, TrainConfigError> {
        let env = envs.spec(&self.env)?;
        for (name, value) in [("max_env_steps", self.max_env_steps), ("checkpoint_interval", self.checkpoint_interval)]
        {
            if value == 0 {
                return Err(TrainConfigError::Zero(name));
            }
        }
        if self.stop_return.is_some_and(|target| !target.is_finite()) {
            return Err(TrainConfigError::StopReturn);
        }
        if !(self.hung_worker_timeout_s.is_finite() && self.hung_worker_timeout_s >= 0.0) {
            return Err(TrainConfigError::Seconds("hung_worker_timeout_s"));
        }
        if self.num_workers > MAX_LOCAL_WORKERS {
            let (what, max, found) = ("the number of local workers", MAX_LOCAL_WORKERS, self.num_workers);
            return Err(SpecError::OutOfRange { what, max, found }.into());
        }
        self.check_environs()?;
        check_mode(self.mode)?;
        self.ppo.validate()?;
        // The hub knows these advantages alone.
        for (name, is_set) in [("use_gae", self.ppo.use_gae), ("use_critic", self.ppo.use_critic)] {
            if !is_set {
                let wanted = "true: a run computes generalised advantages";
                return Err(ConfigError { name, value: "false".into(), wanted }.into());
            }
        }
        let run = self.spec();
        run.check()?;
        let spaces = env.spaces_in(&EnvContext::of_slot(&run, SlotId(0)))?;
        MlpPolicySpec::for_spaces(&spaces, &self.hidden)?;
        Ok(spaces)
    }
}

/// The largest batch that does not wait for every slot, in env steps. A hub holds it in memory, with what comes for the next one.
pub(super) const MAX_BATCH_ENV_STEPS: u64 = 1 << 24;

/// A batch must have rows, and fit into memory.
pub(super) fn check_mode(mode: SamplingMode) -> Result<(), TrainConfigError> {
    match mode {
        SamplingMode::Asynchronous { batch_env_steps: 0, .. } => Err(TrainConfigError::Zero("batch_env_steps")),
        SamplingMode::Asynchronous { batch_env_steps, .. } if batch_env_steps > MAX_BATCH_ENV_STEPS => {
            Err(TrainConfigError::TooLargeBatch(batch_env_steps))
        }
        _ => Ok(()),
    }
}

impl TrainConfig {
    fn check_environs(&self) -> Result<(), TrainConfigError> {
        for (name, value) in &self.extra_environs {
            let fault = if name.is_empty() || name.contains('=') {
                "needs a name without ="
            } else if name.contains('\0') || value.contains('\0') {
                "must not contain the character 0"
            } else if name == TOKEN_VARIABLE {
                "is where the hub puts the worker's token"
            } else {
                continue;
            };
            return Err(TrainConfigError::ExtraEnviron(name.clone(), fault));
        }
        Ok(())
    }
}

/// Devices as the command line writes them.
mod device_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::learner::DeviceSpec;

    pub(super) fn serialize<S: Serializer>(device: &DeviceSpec, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(device)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DeviceSpec, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}
