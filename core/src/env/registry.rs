//! Environments by name. Only names are sent between processes.

use serde::{Deserialize, Serialize};

use super::{AnyVectorEnv, EnvContext, EnvError, MultiAgentEnv, classic, multi_agent, pixel, toy_text};
use crate::{column::DType, config::similar, kernels::Kernels, prelude::*, space::Space};

/// Makes a vector environment with one lane per context.
pub type EnvFactory = Arc<dyn Fn(&[EnvContext], Kernels) -> Result<Box<dyn AnyVectorEnv>, EnvError> + Send + Sync>;

/// Creates descriptions of environments from names that are not registered, such as `gym:CartPole-v1`. `None` for an unknown
/// name.
pub type EnvResolver = Arc<dyn Fn(&str) -> Option<ResolvedEnv> + Send + Sync>;

/// An environment that an [`EnvResolver`] knows by its name.
#[derive(Clone, Debug)]
pub enum ResolvedEnv {
    /// With one agent.
    SingleAgent(EnvSpec),
    /// With several agents.
    MultiAgent(MultiAgentSpec),
}

/// A registered environment.
#[derive(Clone)]
pub struct EnvSpec {
    /// The name, with its version as in Gymnasium.
    pub name: String,
    /// Steps after which an episode is truncated.
    pub max_episode_steps: Option<u32>,
    /// Mean return over 100 episodes at which the environment counts as solved.
    pub reward_threshold: Option<f64>,
    /// Names of all settings that the environment reads; `None` if it has not declared them, and must check them itself.
    pub settings: Option<Vec<String>>,
    factory: EnvFactory,
}

/// Spaces and element types of an environment's rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

impl EnvSpaces {
    /// Creates spaces whose rows have the usual types: that of a box, integers for choices, bytes for booleans, floats for
    /// compound spaces.
    #[must_use]
    pub fn with_usual_types(observation: Space, action: Space) -> Self {
        let usual = |space: &Space| match space {
            Space::Box(space) => space.dtype(),
            Space::MultiBinary { .. } => DType::U8,
            Space::Discrete { .. } | Space::MultiDiscrete { .. } => DType::I64,
            // Parts are joined to floats.
            Space::Tuple(_) | Space::Dict(_) => DType::F32,
        };
        let (observation_type, action_type) = (usual(&observation), usual(&action));
        Self { observation, observation_type, action, action_type }
    }

    /// Returns those of an environment's lanes.
    #[must_use]
    pub fn of(env: &dyn AnyVectorEnv) -> Self {
        let (observation_type, action_type) = env.dtypes();
        Self { observation: env.observation_space(), observation_type, action: env.action_space(), action_type }
    }
}

impl EnvSpec {
    /// Describes an environment whose construction never fails.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        factory: impl Fn(&[EnvContext], Kernels) -> Box<dyn AnyVectorEnv> + Send + Sync + 'static,
    ) -> Self {
        Self::fallible(name, move |contexts, kernels| Ok(factory(contexts, kernels)))
    }

    /// Describes an environment whose construction may fail, for example with some settings.
    #[must_use]
    pub fn fallible(
        name: impl Into<String>,
        factory: impl Fn(&[EnvContext], Kernels) -> Result<Box<dyn AnyVectorEnv>, EnvError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            max_episode_steps: None,
            reward_threshold: None,
            settings: None,
            factory: Arc::new(factory),
        }
    }

    /// Declares which settings the environment reads: others are rejected.
    #[must_use]
    pub fn with_settings(mut self, names: &[&str]) -> Self {
        self.settings = Some(names.iter().map(|name| (*name).into()).collect());
        self
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

    /// Returns the same specification with another factory.
    #[must_use]
    pub(crate) fn made_by(
        &self,
        factory: impl Fn(&[EnvContext], Kernels) -> Result<Box<dyn AnyVectorEnv>, EnvError> + Send + Sync + 'static,
    ) -> Self {
        Self { factory: Arc::new(factory), ..self.clone() }
    }

    /// Makes a vector environment, one lane per context.
    ///
    /// # Errors
    /// [`EnvError::Config`] for undeclared settings; errors of the environment.
    pub fn make(&self, contexts: &[EnvContext], kernels: Kernels) -> Result<Box<dyn AnyVectorEnv>, EnvError> {
        if let Some(settings) = &self.settings {
            let known: Vec<&str> = settings.iter().map(String::as_str).collect();
            contexts.iter().try_for_each(|context| context.config.check_known(&known)).map_err(EnvError::Config)?;
        }
        (self.factory)(contexts, kernels)
    }

    /// Returns the environment's spaces without settings, from a fresh instance.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn spaces(&self) -> Result<EnvSpaces, EnvError> {
        let home = crate::ids::HomeIndex { worker_index: 0, vector_index: 0 };
        self.spaces_in(&EnvContext::new(home))
    }

    /// Returns the environment's spaces in a place and with settings, from a fresh instance.
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn spaces_in(&self, context: &EnvContext) -> Result<EnvSpaces, EnvError> {
        Ok(EnvSpaces::of(self.make(core::slice::from_ref(context), Kernels::PORTABLE)?.as_ref()))
    }
}

impl core::fmt::Debug for EnvSpec {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EnvSpec").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A registered environment with several agents.
#[derive(Clone)]
pub struct MultiAgentSpec {
    /// The name, with its version as in Gymnasium.
    pub name: String,
    /// Steps after which an episode is truncated.
    pub max_episode_steps: Option<u32>,
    factory: MultiAgentFactory,
}

/// Makes an environment with several agents.
pub type MultiAgentFactory = Arc<dyn Fn(&EnvContext) -> Result<Box<dyn MultiAgentEnv>, EnvError> + Send + Sync>;

impl MultiAgentSpec {
    /// Describes an environment.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        factory: impl Fn(&EnvContext) -> Result<Box<dyn MultiAgentEnv>, EnvError> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), max_episode_steps: None, factory: Arc::new(factory) }
    }

    /// Sets the time limit.
    #[must_use]
    pub fn with_max_episode_steps(mut self, steps: u32) -> Self {
        self.max_episode_steps = Some(steps);
        self
    }

    /// Makes one environment.
    ///
    /// # Errors
    /// Errors of the environment, for example [`EnvError::Config`].
    pub fn make(&self, context: &EnvContext) -> Result<Box<dyn MultiAgentEnv>, EnvError> {
        (self.factory)(context)
    }

    /// Returns the spaces of all agents that are known beforehand, from a fresh instance.
    ///
    /// # Errors
    /// As [`make`](Self::make); [`EnvError::Failed`] if agents have different spaces, or none is known beforehand.
    pub fn shared_spaces(&self, context: &EnvContext) -> Result<EnvSpaces, EnvError> {
        let env = self.make(context)?;
        let mut spaces = env.agents().into_iter().filter_map(|agent| env.spaces(&agent));
        let failed = |problem: &str| EnvError::Failed(format!("{} {problem}", self.name));
        let first = spaces.next().ok_or_else(|| failed("knows no agents before an episode, and so no spaces"))?;
        if spaces.any(|other| other != first) {
            return Err(failed("has several agents with different spaces"));
        }
        Ok(first)
    }
}

impl core::fmt::Debug for MultiAgentSpec {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MultiAgentSpec").field("name", &self.name).finish_non_exhaustive()
    }
}

/// An unregistered name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {kind} '{name}';{} known are: {known}", self.hint())]
pub struct Unknown {
    /// The kind of entry, for example `environment`.
    pub kind: &'static str,
    /// The name, or its beginning.
    pub name: String,
    /// The registered names, separated by `, `.
    pub known: String,
}

impl Unknown {
    pub(crate) fn new<'a>(kind: &'static str, name: &str, known: impl IntoIterator<Item = &'a str>) -> Self {
        let known: Vec<&str> = known.into_iter().collect();
        let known = if known.is_empty() { "none".into() } else { known.join(", ") };
        Self { kind, name: name.chars().take(64).collect(), known }
    }

    /// Returns the most similar registered name, as a question, or the `gym:` name, or an empty string.
    fn hint(&self) -> String {
        let near = similar(&self.name, self.known.split(", ").filter(|known| *known != "none"));
        let version = self.name.rsplit_once("-v").map_or("", |(_, version)| version);
        let is_versioned = !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit());
        match near {
            Some(near) => format!(" did you mean {near}?"),
            None if self.kind == "environment" && is_versioned && !self.name.contains(':') => {
                format!(" Gymnasium's would be gym:{};", self.name)
            }
            None => String::new(),
        }
    }

    /// Finds what is registered under a name.
    pub(crate) fn find<'a, T>(
        registered: &'a BTreeMap<String, T>,
        kind: &'static str,
        name: &str,
    ) -> Result<&'a T, Self> {
        registered.get(name).ok_or_else(|| Self::new(kind, name, registered.keys().map(String::as_str)))
    }
}

/// The registered environments, by name.
#[derive(Clone, Default)]
pub struct EnvRegistry {
    specs: BTreeMap<String, EnvSpec>,
    multi_agent: BTreeMap<String, MultiAgentSpec>,
    /// Resolves names that are not registered.
    pub resolver: Option<EnvResolver>,
}

impl core::fmt::Debug for EnvRegistry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EnvRegistry")
            .field("specs", &self.specs)
            .field("multi_agent", &self.multi_agent)
            .finish_non_exhaustive()
    }
}

impl EnvRegistry {
    /// Creates a registry with the environments of this crate.
    #[must_use]
    pub fn builtin() -> Self {
        let mut registry = Self::default();
        classic::register(&mut registry);
        toy_text::register(&mut registry);
        pixel::register(&mut registry);
        multi_agent::register(&mut registry);
        registry
    }

    /// Registers an environment, replacing one of the same name.
    pub fn register(&mut self, spec: EnvSpec) {
        self.specs.insert(spec.name.clone(), spec);
    }

    /// Registers an environment with several agents, replacing one of the same name.
    pub fn register_multi_agent(&mut self, spec: MultiAgentSpec) {
        self.multi_agent.insert(spec.name.clone(), spec);
    }

    /// Returns the environment with several agents of this name, first among the registered ones.
    #[must_use]
    pub fn multi_agent(&self, name: &str) -> Option<MultiAgentSpec> {
        self.multi_agent.get(name).cloned().or_else(|| match self.resolve(name)? {
            ResolvedEnv::MultiAgent(spec) => Some(spec),
            ResolvedEnv::SingleAgent(_) => None,
        })
    }

    /// Iterates over all environments with several agents, by name.
    pub fn iter_multi_agent(&self) -> impl ExactSizeIterator<Item = &MultiAgentSpec> {
        self.multi_agent.values()
    }

    /// Returns the environment with one agent of this name, first among the registered ones.
    ///
    /// # Errors
    /// [`Unknown`], which lists the registered names.
    pub fn spec(&self, name: &str) -> Result<EnvSpec, Unknown> {
        let resolve = || match self.resolve(name)? {
            ResolvedEnv::SingleAgent(spec) => Some(spec),
            ResolvedEnv::MultiAgent(_) => None,
        };
        let found = Unknown::find(&self.specs, "environment", name);
        found.cloned().or_else(|unknown| resolve().ok_or(unknown))
    }

    fn resolve(&self, name: &str) -> Option<ResolvedEnv> {
        self.resolver.as_ref().and_then(|resolver| resolver(name))
    }

    /// Iterates over all environments with one agent, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &EnvSpec> {
        self.specs.values()
    }
}
