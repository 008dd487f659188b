//! Functions called by name, with serialisable arguments.

use core::{fmt, str::FromStr};

use super::{Registry, SetupError, Unknown};
use crate::{
    callbacks::{CallbackError, PolicyMappingFn},
    config::{Config, ConfigError},
    env::{EnvContext, SubEnv},
    ids::PolicyId,
    policy::Policy,
    prelude::*,
};

/// A function of a sub-environment, in the process that runs it.
pub type EnvFn = Arc<dyn Fn(SubEnv<'_>, &EnvContext, &Config) -> Result<Config, CallbackError> + Send + Sync>;

/// A function of a policy, in the process of its worker.
pub type PolicyFn = Arc<dyn Fn(&PolicyId, &mut dyn Policy, &Config) -> Result<Config, CallbackError> + Send + Sync>;

/// Makes a mapping function from its arguments.
pub type PolicyMappingFactory = Arc<dyn Fn(&Config) -> Result<PolicyMappingFn, CallbackError> + Send + Sync>;

/// A registered function with its arguments.
///
/// As text it is the name, followed by the arguments as JSON, if there are any; so a name must not contain a brace.
///
/// ```
/// use rollmesh_core::{config::Config, worker::NamedFn};
///
/// let league = NamedFn::new("league").with(Config::new().with("opponents", 3)?);
/// assert_eq!(league.to_string(), r#"league {"opponents":3}"#);
/// assert_eq!(league.to_string().parse::<NamedFn>()?, league);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedFn {
    /// Its name in the [`Registry`] of the worker's program.
    pub name: String,
    /// Its arguments.
    pub arguments: Config,
}

impl NamedFn {
    /// Names a function without arguments.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), arguments: Config::new() }
    }

    /// Sets the arguments.
    #[must_use]
    pub fn with(self, arguments: Config) -> Self {
        Self { arguments, ..self }
    }
}

impl fmt::Display for NamedFn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.arguments.is_empty() { f.write_str(&self.name) } else { write!(f, "{} {}", self.name, self.arguments) }
    }
}

impl FromStr for NamedFn {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        match text.find('{').and_then(|brace| text.split_at_checked(brace)) {
            Some((name, arguments)) => Ok(Self { name: name.trim_end().into(), arguments: arguments.parse()? }),
            None => Ok(Self::new(text)),
        }
    }
}

impl Registry {
    /// Registers a function of sub-environments.
    ///
    /// ```
    /// use rollmesh_core::{
    ///     config::Config,
    ///     worker::{NamedFn, Registry, RolloutConfig, RolloutWorker, WorkerPlace},
    /// };
    ///
    /// let registry = Registry::builtin().with_env_fn("place", |_env, context, _arguments| {
    ///     Ok(Config::new().with("vector_index", context.home.vector_index)?)
    /// });
    /// let config = RolloutConfig::new("CartPole-v1").num_envs(2);
    /// let mut worker = RolloutWorker::from_config(config, &registry, WorkerPlace::remote(1, 1))?;
    /// let answers = worker.foreach_env_by_name(&NamedFn::new("place"))?;
    /// assert_eq!(answers[1].to_string(), r#"{"vector_index":1}"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_env_fn(
        mut self,
        name: impl Into<String>,
        ask: impl Fn(SubEnv<'_>, &EnvContext, &Config) -> Result<Config, CallbackError> + Send + Sync + 'static,
    ) -> Self {
        self.env_fns.insert(name.into(), Arc::new(ask));
        self
    }

    /// Registers a function of policies.
    #[must_use]
    pub fn with_policy_fn(
        mut self,
        name: impl Into<String>,
        ask: impl Fn(&PolicyId, &mut dyn Policy, &Config) -> Result<Config, CallbackError> + Send + Sync + 'static,
    ) -> Self {
        self.policy_fns.insert(name.into(), Arc::new(ask));
        self
    }

    /// Registers a mapping function that depends on arguments: the members of a league, for example. It is named together
    /// with these, see [`NamedFn`], and a worker's state contains both.
    #[must_use]
    pub fn with_policy_mapping_factory(
        mut self,
        name: impl Into<String>,
        make: impl Fn(&Config) -> Result<PolicyMappingFn, CallbackError> + Send + Sync + 'static,
    ) -> Self {
        self.policy_mapping_factories.insert(name.into(), Arc::new(make));
        self
    }

    /// Returns a function of sub-environments.
    ///
    /// # Errors
    /// [`Unknown`], which lists the registered names.
    pub fn env_fn(&self, name: &str) -> Result<&EnvFn, Unknown> {
        Unknown::find(&self.env_fns, "environment function", name)
    }

    /// Returns a function of policies.
    ///
    /// # Errors
    /// [`Unknown`], which lists the registered names.
    pub fn policy_fn(&self, name: &str) -> Result<&PolicyFn, Unknown> {
        Unknown::find(&self.policy_fns, "policy function", name)
    }

    /// Returns a mapping function with its arguments.
    ///
    /// # Errors
    /// [`SetupError::Unknown`]; [`SetupError::Callback`] if it takes no arguments but some are given, and if its factory
    /// rejects them.
    pub fn policy_mapping(&self, function: &NamedFn) -> Result<PolicyMappingFn, SetupError> {
        if let Some(make) = self.policy_mapping_factories.get(&function.name) {
            return Ok(make(&function.arguments)?);
        }
        let map = self.policy_mapping_fn(&function.name)?;
        if function.arguments.is_empty() {
            return Ok(map.clone());
        }
        let why = "it takes no arguments; register it with with_policy_mapping_factory";
        Err(CallbackError::new(format!("policy mapping function '{}'", function.name), why).into())
    }
}
