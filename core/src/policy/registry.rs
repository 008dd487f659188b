//! Policies by name. Only names and settings travel between processes.

use super::{NetPolicy, Policy, PolicyError, RandomPolicy};
use crate::{config::Config, env::EnvSpaces, ids::PolicyId, kernels::Kernels, prelude::*};

/// What a policy is told when it is made.
#[derive(Clone, Debug)]
pub struct PolicyContext {
    /// The policy's name within the run.
    pub id: PolicyId,
    /// What it is given and what it gives: observations as they are after all preprocessing, and actions as it chooses
    /// them.
    pub spaces: EnvSpaces,
    /// Its settings, its own over those of all policies.
    pub config: Config,
    /// The run's seed.
    pub seed: u64,
    /// The kernels in use.
    pub kernels: Kernels,
    /// Index of its worker, 0 for the local one.
    pub worker_index: u32,
    /// Workers of the run, without the local one.
    pub num_workers: u32,
}

impl PolicyContext {
    /// The only policy of a local worker, without settings.
    #[must_use]
    pub fn new(spaces: EnvSpaces, seed: u64, kernels: Kernels) -> Self {
        Self { id: PolicyId::DEFAULT, spaces, config: Config::new(), seed, kernels, worker_index: 0, num_workers: 0 }
    }

    /// Sets the settings.
    #[must_use]
    pub fn with_config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }
}

/// Makes a policy.
pub type PolicyFactory = Arc<dyn Fn(&PolicyContext) -> Result<Box<dyn Policy>, PolicyError> + Send + Sync>;

/// A registered kind of policy.
///
/// ```
/// use rollmesh_core::{
///     env::EnvRegistry,
///     kernels::Kernels,
///     policy::{PolicyContext, PolicyRegistry},
/// };
///
/// let spaces = EnvRegistry::builtin().spec("Pendulum-v1")?.spaces()?;
/// let config = r#"{"gamma": 0.9, "model": {"fcnet_hiddens": [16], "use_lstm": true}}"#.parse()?;
/// let context = PolicyContext::new(spaces, 7, Kernels::PORTABLE).with_config(config);
/// let policy = PolicyRegistry::builtin().spec("net")?.make(&context)?;
/// assert_eq!((policy.state_lens(), policy.dist_inputs_len()), (&[64, 64][..], 2));
///
/// let error = PolicyRegistry::builtin().spec("nte").unwrap_err();
/// assert_eq!(error.to_string(), "there is no kind of policy 'nte'; known are: net, random");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PolicySpec {
    /// The name.
    pub name: String,
    make: PolicyFactory,
}

impl PolicySpec {
    /// Describes a kind of policy.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        make: impl Fn(&PolicyContext) -> Result<Box<dyn Policy>, PolicyError> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), make: Arc::new(make) }
    }

    /// Makes a policy.
    ///
    /// # Errors
    /// The policy's own, for example [`PolicyError::Config`] or [`PolicyError::Unsupported`].
    pub fn make(&self, context: &PolicyContext) -> Result<Box<dyn Policy>, PolicyError> {
        (self.make)(context)
    }
}

impl core::fmt::Debug for PolicySpec {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PolicySpec").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A name that nobody has registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no kind of policy '{name}'; known are: {known}")]
pub struct UnknownPolicyKind {
    /// The name that was asked for.
    pub name: String,
    /// The names that exist.
    pub known: String,
}

/// The kinds of policies that a program knows, by name.
#[derive(Clone, Debug, Default)]
pub struct PolicyRegistry {
    specs: BTreeMap<String, PolicySpec>,
}

impl PolicyRegistry {
    /// The policies that come with this crate, which act and do not learn: `net`, a [`NetPolicy`], and `random`, a
    /// [`RandomPolicy`].
    #[must_use]
    pub fn builtin() -> Self {
        let mut registry = Self::default();
        registry.register(PolicySpec::new("net", |context| Ok(Box::new(NetPolicy::for_context(context)?))));
        registry.register(PolicySpec::new("random", |context| {
            Ok(Box::new(RandomPolicy::for_space(&context.spaces.action, context.seed)?))
        }));
        registry
    }

    /// Adds a kind of policy; one of the same name is replaced.
    pub fn register(&mut self, spec: PolicySpec) {
        self.specs.insert(spec.name.clone(), spec);
    }

    /// Looks a kind of policy up.
    ///
    /// # Errors
    /// [`UnknownPolicyKind`], which lists what there is.
    pub fn spec(&self, name: &str) -> Result<&PolicySpec, UnknownPolicyKind> {
        self.specs.get(name).ok_or_else(|| UnknownPolicyKind {
            name: name.chars().take(64).collect(),
            known: self.specs.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
        })
    }

    /// All kinds of policies by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &PolicySpec> {
        self.specs.values()
    }
}
