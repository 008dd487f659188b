//! Environments by name. Only names travel between processes.

use super::{AnyVectorEnv, EnvContext, classic, pixel, toy_text};
use crate::{column::DType, kernels::Kernels, prelude::*, space::Space};

/// Makes a vector environment with one lane per context.
pub type EnvFactory = Arc<dyn Fn(&[EnvContext], Kernels) -> Box<dyn AnyVectorEnv> + Send + Sync>;

/// A registered environment.
#[derive(Clone)]
pub struct EnvSpec {
    /// The name, with its version as in Gymnasium.
    pub name: String,
    /// Steps after which an episode is truncated.
    pub max_episode_steps: Option<u32>,
    /// Mean return over 100 episodes at which the environment counts as solved.
    pub reward_threshold: Option<f64>,
    factory: EnvFactory,
}

/// What the rest of a run must know of an environment's rows.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvSpaces {
    /// Space of the observations.
    pub observation: Space,
    /// Element type of the observations.
    pub observation_type: DType,
    /// Space of the actions.
    pub action: Space,
    /// Element type of the actions.
    pub action_type: DType,
}

impl EnvSpec {
    /// Describes an environment.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        factory: impl Fn(&[EnvContext], Kernels) -> Box<dyn AnyVectorEnv> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), max_episode_steps: None, reward_threshold: None, factory: Arc::new(factory) }
    }

    /// Sets the time limit.
    #[must_use]
    pub fn with_max_episode_steps(mut self, steps: u32) -> Self {
        self.max_episode_steps = Some(steps);
        self
    }

    /// Sets the mean return at which the environment counts as solved.
    #[must_use]
    pub fn with_reward_threshold(mut self, threshold: f64) -> Self {
        self.reward_threshold = Some(threshold);
        self
    }

    /// Makes environments, one lane per context.
    #[must_use]
    pub fn make(&self, contexts: &[EnvContext], kernels: Kernels) -> Box<dyn AnyVectorEnv> {
        (self.factory)(contexts, kernels)
    }

    /// The environment's spaces, asked of a fresh instance.
    #[must_use]
    pub fn spaces(&self) -> EnvSpaces {
        let home = crate::run::HomeIndex { worker_index: 0, vector_index: 0 };
        let env = self.make(&[EnvContext { home }], Kernels::PORTABLE);
        let (observation_type, action_type) = env.dtypes();
        EnvSpaces { observation: env.observation_space(), observation_type, action: env.action_space(), action_type }
    }
}

impl core::fmt::Debug for EnvSpec {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EnvSpec").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A name that nobody has registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no environment '{name}'; known are: {known}")]
pub struct UnknownEnv {
    /// The name that was asked for.
    pub name: String,
    /// The names that exist.
    pub known: String,
}

/// The environments that a program knows, by name.
#[derive(Clone, Debug, Default)]
pub struct EnvRegistry {
    specs: BTreeMap<String, EnvSpec>,
}

impl EnvRegistry {
    /// The environments that come with this crate.
    #[must_use]
    pub fn builtin() -> Self {
        let mut registry = Self::default();
        classic::register(&mut registry);
        toy_text::register(&mut registry);
        pixel::register(&mut registry);
        registry
    }

    /// Adds an environment; one of the same name is replaced.
    pub fn register(&mut self, spec: EnvSpec) {
        self.specs.insert(spec.name.clone(), spec);
    }

    /// Looks an environment up.
    ///
    /// # Errors
    /// [`UnknownEnv`], which lists what there is.
    pub fn spec(&self, name: &str) -> Result<&EnvSpec, UnknownEnv> {
        self.specs.get(name).ok_or_else(|| UnknownEnv {
            name: name.chars().take(64).collect(),
            known: self.specs.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
        })
    }

    /// All environments by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &EnvSpec> {
        self.specs.values()
    }
}
