//! Policies by name. Only names and settings travel between processes.

use super::{ForwardFactory, ModelDescription, ModelRegistry, NetPolicy, Policy, PolicyError, RandomPolicy};
use crate::{
    config::Config,
    env::{EnvSpaces, Unknown},
    ids::PolicyId,
    kernels::Kernels,
    postprocess::AdvantageConfig,
    prelude::*,
};

/// The parameters from which a policy is made.
#[derive(Clone, Debug)]
pub struct PolicyContext {
    /// The policy's name within the run.
    pub id: PolicyId,
    /// Its spaces: observations as they are after all preprocessing, and actions as it chooses them, see
    /// [`ActionTransform::policy_space`](crate::action::ActionTransform::policy_space).
    pub spaces: EnvSpaces,
    /// Its settings, its own over those of all policies.
    pub config: Config,
    /// The run's seed.
    pub seed: u64,
    /// The kernels in use.
    pub kernels: Kernels,
    /// The factory of its forward pass, if not the kernels. A [`NetPolicy`] uses it.
    pub forward: Option<ForwardFactory>,
    /// Models of the user's own by name, for the setting `custom_model`.
    pub models: ModelRegistry,
    /// Index of its worker, 0 for the local one.
    pub worker_index: u32,
    /// Workers of the run, without the local one.
    pub num_workers: u32,
    /// True if it learns from each train batch as a whole, in one call, and acted for it with the weights that it has then:
    /// a learner may recompute the policy's outputs from before the update instead of reading them.
    pub whole_batches: bool,
}

impl PolicyContext {
    /// Creates the context of the only policy of a local worker, without settings.
    #[must_use]
    pub fn new(spaces: EnvSpaces, seed: u64, kernels: Kernels) -> Self {
        Self {
            id: PolicyId::DEFAULT,
            spaces,
            config: Config::new(),
            seed,
            kernels,
            forward: None,
            models: ModelRegistry::default(),
            worker_index: 0,
            num_workers: 0,
            whole_batches: false,
        }
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
/// assert_eq!(error.to_string(), "there is no kind of policy 'nte'; known are: a2c, net, pg, ppo, random");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PolicySpec {
    /// The name.
    pub name: String,
    make: PolicyFactory,
    /// Makes the acting form of the policy, if it differs.
    acting: Option<PolicyFactory>,
    is_builtin: bool,
}

impl PolicySpec {
    /// Describes a kind of policy.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        make: impl Fn(&PolicyContext) -> Result<Box<dyn Policy>, PolicyError> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), make: Arc::new(make), acting: None, is_builtin: false }
    }

    /// Sets how to make one that acts with the same bits and does not learn, for workers whose weights come from
    /// elsewhere.
    #[must_use]
    pub fn with_acting(
        self,
        make: impl Fn(&PolicyContext) -> Result<Box<dyn Policy>, PolicyError> + Send + Sync + 'static,
    ) -> Self {
        Self { acting: Some(Arc::new(make)), ..self }
    }

    /// Marks an algorithm that comes with rollmesh: its learning form takes the place of its acting one, and gives way to
    /// a user's kind of the same name.
    #[must_use]
    pub fn builtin(self) -> Self {
        Self { is_builtin: true, ..self }
    }

    /// Returns whether it was marked with [`builtin`](Self::builtin).
    #[must_use]
    pub fn is_builtin(&self) -> bool {
        self.is_builtin
    }

    /// Makes one that acts, see [`with_acting`](Self::with_acting).
    ///
    /// # Errors
    /// As [`make`](Self::make).
    pub fn make_acting(&self, context: &PolicyContext) -> Result<Box<dyn Policy>, PolicyError> {
        self.acting.as_ref().unwrap_or(&self.make)(context)
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

/// The kinds of policies that a program knows, by name.
#[derive(Clone, Debug, Default)]
pub struct PolicyRegistry {
    specs: BTreeMap<String, PolicySpec>,
    forward: Option<ForwardFactory>,
    models: ModelRegistry,
}

impl PolicyRegistry {
    /// Advantages of `a2c` unless its settings say otherwise, and of `net`.
    pub const A2C_ADVANTAGES: AdvantageConfig =
        AdvantageConfig { gamma: 0.99, lambda: 1.0, use_gae: true, use_critic: true };
    /// Advantages of `pg` unless its settings say otherwise: discounted returns.
    pub const PG_ADVANTAGES: AdvantageConfig =
        AdvantageConfig { gamma: 0.99, lambda: 1.0, use_gae: false, use_critic: false };
    /// Advantages of `ppo` unless its settings say otherwise.
    pub const PPO_ADVANTAGES: AdvantageConfig =
        AdvantageConfig { gamma: 0.98, lambda: 0.9, use_gae: true, use_critic: true };

    /// The kinds of policies of this project whose settings have a `model` like [`ModelConfig`](super::ModelConfig), in
    /// alphabetical order; those of `bc` and `marwil` come with the learner.
    pub const NETWORKS: [&str; 6] = ["a2c", "bc", "marwil", "net", "pg", "ppo"];

    /// Algorithms whose policies are networks, with the defaults that acting policies and learners share: rows are the same
    /// whichever process postprocesses them.
    const ALGORITHMS: [(&str, AdvantageConfig); 3] =
        [("a2c", Self::A2C_ADVANTAGES), ("pg", Self::PG_ADVANTAGES), ("ppo", Self::PPO_ADVANTAGES)];

    /// Returns the policies that come with this crate, which act and do not learn: `net`, a [`NetPolicy`]; `random`, a
    /// [`RandomPolicy`]; and those of the algorithms `a2c`, `pg` and `ppo`, for workers whose weights come from a
    /// learner elsewhere.
    #[must_use]
    pub fn builtin() -> Self {
        let mut registry = Self::default();
        registry.register(PolicySpec::new("net", |context| Ok(Box::new(NetPolicy::for_context(context)?))));
        for (name, defaults) in Self::ALGORITHMS {
            let acting = move |context: &PolicyContext| Ok(Box::new(NetPolicy::for_algorithm(context, defaults)?) as _);
            registry.register(PolicySpec { is_builtin: true, ..PolicySpec::new(name, acting) });
        }
        registry.register(PolicySpec::new("random", |context| {
            Ok(Box::new(RandomPolicy::for_space(&context.spaces.action, context.seed)?))
        }));
        registry
    }

    /// Adds a kind of policy; one of the same name is replaced.
    pub fn register(&mut self, spec: PolicySpec) {
        self.specs.insert(spec.name.clone(), spec);
    }

    /// Returns a kind of policy.
    ///
    /// # Errors
    /// [`Unknown`], which lists the known kinds.
    pub fn spec(&self, name: &str) -> Result<&PolicySpec, Unknown> {
        Unknown::find(&self.specs, "kind of policy", name)
    }

    /// Returns the same kinds, made to act and not to learn.
    #[must_use]
    pub fn acting(&self) -> Self {
        let acting = |spec: &PolicySpec| match &spec.acting {
            Some(make) => PolicySpec { make: make.clone(), ..spec.clone() },
            None => spec.clone(),
        };
        let specs = self.specs.iter().map(|(name, spec)| (name.clone(), acting(spec))).collect_ordered();
        Self { specs, forward: self.forward.clone(), models: self.models.clone() }
    }

    /// Adds a model, for policies with its name as `custom_model` in their `model`; one of the same name is replaced.
    #[doc(alias = "register_custom_model")]
    pub fn register_model(&mut self, name: impl Into<String>, description: ModelDescription) {
        self.models.register(name, description);
    }

    /// Returns the models of [`register_model`](Self::register_model).
    #[must_use]
    pub fn models(&self) -> &ModelRegistry {
        &self.models
    }

    /// Lets the policies that workers make act by this instead of the kernels: their rows then have other bits, and only runs
    /// with [`device_rows`](crate::run::RunConfig::device_rows) take them.
    pub fn act_with(&mut self, forward: ForwardFactory) {
        self.forward = Some(forward);
    }

    /// Returns the factory of the policies' forward pass, if not the kernels.
    #[must_use]
    pub fn forward(&self) -> Option<&ForwardFactory> {
        self.forward.as_ref()
    }

    /// Iterates over all kinds of policies by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &PolicySpec> {
        self.specs.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        column::{DType, Element, RowShape},
        env::{Moment, RowsRef},
        ids::SlotId,
        policy::{ActionInput, ActionOutput},
        space::Space,
    };

    fn context(action: Space, action_type: DType) -> PolicyContext {
        let observation = Space::Discrete { n: 2 };
        let spaces = EnvSpaces { observation, observation_type: DType::I64, action, action_type };
        PolicyContext::new(spaces, 4, Kernels::PORTABLE)
    }

    #[test]
    fn random_actions_lie_in_every_bounded_space() {
        fn check<T: Element>(space: &Space) {
            let random = PolicyRegistry::builtin().spec("random").unwrap().clone();
            let mut policy = random.make(&context(space.clone(), T::DTYPE)).unwrap();
            let moments: Vec<Moment> = (0..50).map(|t| Moment { slot: SlotId(0), episode: 0, t, agent: 0 }).collect();
            let len = space.shape().elements();
            let (mut actions, mut logp, mut vf_preds) = (vec![T::default(); 50 * len], [9.0; 50], [9.0; 50]);
            let out = ActionOutput::new(T::erase_rows_mut(&mut actions), &mut logp, &mut vf_preds);
            policy.compute_actions(ActionInput::new(RowsRef::I64(&[0; 50]), &moments), out).unwrap();
            assert!(actions.chunks(len).all(|action| space.contains_row(action).unwrap()), "{space}: {actions:?}");
            assert!(actions.chunks(len).any(|action| *action != actions[..len]), "{space}: {actions:?}");
        }
        check::<i64>(&Space::Discrete { n: 3 });
        check::<i64>(&Space::MultiDiscrete { nvec: vec![2, 3] });
        check::<u8>(&Space::MultiBinary { n: 3 });
        check::<f32>(&Space::vector(&[-2.0, 0.0], &[2.0, 1.0]));
        check::<f64>(&Space::uniform(DType::F64, RowShape::SCALAR, -1.0, 1.0));
        check::<i32>(&Space::uniform(DType::I32, RowShape::vector(2), -1.0, 2.0));
    }

    #[test]
    fn custom_policy_kind_has_a_name_and_replaces_others() {
        let mut registry = PolicyRegistry::builtin();
        let needy = PolicySpec::new("needy", |context| {
            let gamma = context.config.get::<f64>("gamma")?;
            gamma.map(|_| Box::new(RandomPolicy::new(2, context.seed)) as _).ok_or(PolicyError::NoLearner)
        });
        registry.register(needy.clone());
        registry.register(PolicySpec { name: "random".into(), ..needy });
        assert!(registry.iter().map(|spec| spec.name.as_str()).eq(["a2c", "needy", "net", "pg", "ppo", "random"]));
        let context = context(Space::Discrete { n: 2 }, DType::I64);
        for name in ["needy", "random"] {
            let spec = registry.spec(name).unwrap();
            assert_eq!(spec.make(&context).err(), Some(PolicyError::NoLearner));
            assert!(spec.make(&context.clone().with_config(r#"{"gamma": 1}"#.parse().unwrap())).is_ok());
        }
    }

    #[test]
    fn unknown_kinds_are_refused_with_the_known_ones() {
        let error = PolicyRegistry::builtin().spec(&"x".repeat(1_000)).unwrap_err();
        assert!(error.name.len() == 64 && error.known == "a2c, net, pg, ppo, random");
    }
}
