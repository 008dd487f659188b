//! Defines the structured settings of a worker.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{config::Config, estimate::Estimator, prelude::*, space::Space};

/// Steps of each environment per sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FragmentLength {
    /// This number.
    Steps(u32),
    /// The number that gives the train batch, divided evenly among the environments of all workers; written `"auto"`.
    Auto,
}

impl FragmentLength {
    /// Returns the length for one worker.
    ///
    /// Where the train batch cannot be divided evenly, the first workers get one step more.
    #[doc(alias = "get_rollout_fragment_length")]
    #[must_use]
    pub fn resolve(self, train_batch_size: u32, num_workers: u32, num_envs: u32, worker_index: u32) -> u32 {
        let Self::Auto = self else {
            return if let Self::Steps(steps) = self { steps } else { 1 };
        };
        let envs = u64::from(num_envs.max(1));
        let lanes = envs * u64::from(num_workers.max(1));
        let (base, rest) = (u64::from(train_batch_size) / lanes, u64::from(train_batch_size) % lanes);
        let one_more = rest > 0 && u64::from(worker_index) * envs <= rest;
        (base + u64::from(one_more)).clamp(1, u64::from(u32::MAX)) as u32
    }
}

impl Serialize for FragmentLength {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Steps(steps) => serializer.serialize_u32(*steps),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for FragmentLength {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a fragment's length is a number of steps or auto")]
        enum FragmentLengthForm {
            Steps(u32),
            Word(String),
        }
        match FragmentLengthForm::deserialize(deserializer)? {
            FragmentLengthForm::Steps(steps) => Ok(Self::Steps(steps)),
            FragmentLengthForm::Word(word) if word == "auto" => Ok(Self::Auto),
            FragmentLengthForm::Word(word) => Err(serde::de::Error::custom(format!(
                "a fragment's length is a number of steps or \"auto\", not \"{word}\""
            ))),
        }
    }
}

/// Source of batches. A text or a list of texts is matched in this order: the registered name of an input, then files, by
/// path, directory or pattern, or the id of a data set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "an input is a name, a list of files, or an object of probabilities")]
pub enum InputSource {
    /// `"sampler"`, another registered name, or files.
    Name(String),
    /// Files, in order.
    Files(Vec<String>),
    /// A mixture of these, each with its probability.
    Mixture(BTreeMap<String, f64>),
}

impl InputSource {
    /// The worker's own environments.
    pub const SAMPLER: &'static str = "sampler";

    /// Returns whether the worker's own environments are the only source.
    #[must_use]
    pub fn is_sampler(&self) -> bool {
        matches!(self, Self::Name(name) if name == Self::SAMPLER)
    }
}

impl Default for InputSource {
    fn default() -> Self {
        Self::SAMPLER.into()
    }
}

impl From<&str> for InputSource {
    fn from(name: &str) -> Self {
        Self::Name(name.into())
    }
}

impl From<String> for InputSource {
    fn from(name: String) -> Self {
        Self::Name(name)
    }
}

/// The preprocessing of observations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PreprocessorPref {
    /// Atari's games, by their name, are handled as with [`DeepMind`](Self::DeepMind), other environments as with
    /// [`RlLib`](Self::RlLib).
    #[default]
    Auto,
    /// Games with coloured screens are wrapped as for DeepMind's agents, and their rewards are clipped to their sign; other
    /// environments are handled as with [`RlLib`](Self::RlLib).
    DeepMind,
    /// By space: one-hot, flattened, concatenated.
    RlLib,
    /// No preprocessing.
    None,
}

impl PreprocessorPref {
    /// Returns whether an environment of this name is wrapped, if it is a game with a coloured screen.
    #[must_use]
    pub fn wraps(self, env: &str) -> bool {
        // Such as gym:ALE/Pong-v5, gym:ale_py:ALE/Pong-v5 and gym:ale_py:PongNoFrameskip-v4.
        let is_atari = || env.split(':').any(|part| part == "ale_py" || part.starts_with("ALE/"));
        self == Self::DeepMind || self == Self::Auto && is_atari()
    }
}

/// The compression of observations: `false`, `true` or `"bulk"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// Row by row. Written `true`.
    Rows,
    /// A column as a whole. Written `"bulk"`.
    Bulk,
}

impl Serialize for Compression {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::None => serializer.serialize_bool(false),
            Self::Rows => serializer.serialize_bool(true),
            Self::Bulk => serializer.serialize_str("bulk"),
        }
    }
}

impl<'de> Deserialize<'de> for Compression {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "observations are compressed by true, false or bulk")]
        enum CompressionForm {
            Flag(bool),
            Word(String),
        }
        match CompressionForm::deserialize(deserializer)? {
            CompressionForm::Flag(false) => Ok(Self::None),
            CompressionForm::Flag(true) => Ok(Self::Rows),
            CompressionForm::Word(word) if word == "bulk" => Ok(Self::Bulk),
            CompressionForm::Word(word) => Err(serde::de::Error::custom(format!(
                "observations are compressed by true, false or \"bulk\", not \"{word}\""
            ))),
        }
    }
}

/// A method to evaluate a policy on batches from other policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputEvaluation {
    /// By importance sampling, step by step; also called `pdis`.
    #[serde(alias = "pdis")]
    Is,
    /// By weighted importance sampling, step by step.
    Wis,
    /// In the environment: the rows are counted and then dropped.
    Simulation,
    /// By importance sampling of whole trajectories.
    #[serde(rename = "trajectory_is")]
    TrajectoryIs,
    /// By consistent weighted importance sampling, step by step, where ended episodes count.
    Cwpdis,
    /// By a value model.
    Dm,
    /// By a value model with a correction by importance sampling.
    Dr,
}

impl InputEvaluation {
    /// Returns the estimator for logged episodes; none for evaluation in the environment.
    #[must_use]
    pub const fn estimator(self) -> Option<Estimator> {
        match self {
            Self::Is => Some(Estimator::ImportanceSampling),
            Self::Wis => Some(Estimator::WeightedImportanceSampling),
            Self::TrajectoryIs => Some(Estimator::TrajectoryImportanceSampling),
            Self::Cwpdis => Some(Estimator::ConsistentWeightedImportanceSampling),
            Self::Dm => Some(Estimator::DirectMethod),
            Self::Dr => Some(Estimator::DoublyRobust),
            Self::Simulation => None,
        }
    }
}

/// The events to log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum LogLevel {
    /// Failures.
    Error,
    /// Also likely mistakes.
    #[default]
    Warn,
    /// Also normal events.
    Info,
    /// Also every sample.
    Debug,
}

/// A policy of a worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "an object with the settings of a policy")]
pub struct PolicyConfig {
    /// Registered name of the policy's kind.
    #[doc(alias = "policy_class")]
    pub policy: String,
    /// Its observation space, before preprocessing; if none, that of the environment's agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observation_space: Option<Space>,
    /// Its action space; if none, that of the environment's agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action_space: Option<Space>,
    /// Settings that override those that all policies share.
    pub config: Config,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self { policy: "net".into(), observation_space: None, action_space: None, config: Config::new() }
    }
}

impl PolicyConfig {
    /// Creates a policy of this kind, with the common settings.
    #[must_use]
    pub fn new(policy: impl Into<String>) -> Self {
        Self { policy: policy.into(), ..Self::default() }
    }

    /// Sets its observation and action space.
    #[must_use]
    pub fn with_spaces(mut self, observation_space: Space, action_space: Space) -> Self {
        (self.observation_space, self.action_space) = (Some(observation_space), Some(action_space));
        self
    }

    /// Sets its own settings.
    #[must_use]
    pub fn with_config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }
}
