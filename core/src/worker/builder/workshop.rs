//! Creation and re-creation of policies.

use serde::{Deserialize, Serialize};

use super::{NewPolicy, PolicyClass};
use crate::{
    action::ActionTransform,
    column::DType,
    config::Config,
    env::EnvSpaces,
    filter::{Filter, FilterKind},
    ids::PolicyId,
    kernels::Kernels,
    policy::{
        MaskedObs, Policy, PolicyContext, PolicyEntry, PolicyError, PolicyRegistry, PolicySpec, Stash as _, StashError,
    },
    prelude::*,
    preprocess::Preprocessor,
    space::Space,
    worker::{SetupError, WorkerPlace, config::PreprocessorPref},
};

/// Everything about a policy but its state, in a serialisable form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(in crate::worker) struct Recipe {
    /// Registered name of its class; `None` if it was given as an object.
    pub(in crate::worker) kind: Option<String>,
    /// The spaces before preprocessing.
    pub(in crate::worker) spaces: EnvSpaces,
    /// Settings, including those shared by all policies.
    config: Config,
    /// Whether the observations' [action mask](MaskedObs) is preprocessed like any other part, since the policy follows no
    /// masks.
    #[serde(default, skip_serializing_if = "core::ops::Not::not")]
    mask_is_data: bool,
}

impl Recipe {
    /// Returns the recipe as text, by which interchangeable policies are recognised; empty for one given as an object.
    pub(in crate::worker) fn text(&self) -> String {
        self.kind.as_ref().and_then(|_| serde_json::to_string(self).ok()).unwrap_or_default()
    }

    /// Returns whether the policy gets observations with an action mask, which it follows.
    fn has_mask(&self) -> bool {
        !self.mask_is_data && MaskedObs::of(&self.spaces.observation).is_some()
    }

    /// Returns the policy's settings.
    pub(in crate::worker) fn config(&self) -> &Config {
        &self.config
    }

    /// Checks that no filter normalises an action mask.
    pub(in crate::worker) fn check_filter(&self, id: &PolicyId, kind: FilterKind) -> Result<(), SetupError> {
        if kind == FilterKind::NoFilter || !self.has_mask() {
            return Ok(());
        }
        let source = PolicyError::Unsupported {
            wanted: "observations with an action mask as they are: set observation_filter to NoFilter".into(),
            found: format!("those of a {kind}"),
        };
        Err(SetupError::Policy { id: id.clone(), source })
    }
}

/// Creates the policies of a worker, as often as needed.
#[derive(Clone)]
pub(in crate::worker) struct Workshop {
    pub(in crate::worker) kinds: PolicyRegistry,
    pub(in crate::worker) shared: Config,
    pub(in crate::worker) filter: FilterKind,
    pub(in crate::worker) pref: PreprocessorPref,
    pub(in crate::worker) normalize_actions: bool,
    pub(in crate::worker) seed: u64,
    pub(in crate::worker) kernels: Kernels,
    pub(in crate::worker) place: WorkerPlace,
    /// See [`PolicyContext::whole_batches`].
    pub(in crate::worker) whole_batches: bool,
}

impl Workshop {
    /// Creates a policy with filter and preprocessor. `known` are the spaces of the agents that it acts for.
    pub(in crate::worker) fn make(
        &self,
        id: &PolicyId,
        new: NewPolicy,
        known: Option<EnvSpaces>,
    ) -> Result<(PolicyEntry, Recipe), SetupError> {
        let spaces = self.spaces(id, &new, known)?;
        let state = new.state;
        let config = self.shared.merged(&new.config);
        let (entry, recipe) = match (new.class, new.policy) {
            (Some(class), None) => {
                let (kind, spec) = match class {
                    PolicyClass::Spec(spec) => (None, spec),
                    PolicyClass::Named(name) => {
                        let spec = self.kinds.spec(&name);
                        let spec = spec.map_err(|source| SetupError::PolicyKind { id: id.clone(), source })?;
                        (Some(name), spec.clone())
                    }
                };
                self.make_first(id, &spec, Recipe { kind, spaces, config, mask_is_data: false })?
            }
            (None, Some(policy)) => {
                let recipe = Recipe { kind: None, spaces, config, mask_is_data: !policy.takes_action_masks() };
                (self.entry(id, policy, &recipe)?, recipe)
            }
            _ => return Err(SetupError::KindOrObject(id.clone())),
        };
        let Some(state) = state else { return Ok((entry, recipe)) };
        let mut entry = entry;
        let fits = entry.filter.clone().sync(&state.filter);
        fits.map_err(|source| SetupError::Filter { id: id.clone(), source })?;
        let restored = state.encode().and_then(|bytes| entry.restore(&bytes));
        restored.map_err(|source| SetupError::PolicyState { id: id.clone(), source })?;
        Ok((entry, recipe))
    }

    /// Recreates a policy from the text of its recipe, in its initial state.
    pub(in crate::worker) fn remake(&self, id: &PolicyId, text: &str) -> Result<(PolicyEntry, Recipe), SetupError> {
        let lost = || SetupError::Policy {
            id: id.clone(),
            source: PolicyError::Failed(
                "it was an object of another program, and no registered kind recreates it".into(),
            ),
        };
        let recipe: Recipe = serde_json::from_str(text).map_err(|_| lost())?;
        let Some(kind) = &recipe.kind else { return Err(lost()) };
        let spec = self.kinds.spec(kind).map_err(|source| SetupError::PolicyKind { id: id.clone(), source })?;
        Ok((self.made(id, spec.clone(), &recipe)?, recipe))
    }

    /// Creates a policy, and finds out whether it follows action masks: one that does not gets them preprocessed.
    fn make_first(
        &self,
        id: &PolicyId,
        spec: &PolicySpec,
        recipe: Recipe,
    ) -> Result<(PolicyEntry, Recipe), SetupError> {
        let made = self.made(id, spec.clone(), &recipe);
        if !recipe.has_mask() || made.as_ref().is_ok_and(|entry| entry.policy.takes_action_masks()) {
            return Ok((made?, recipe));
        }
        let without = Recipe { mask_is_data: true, ..recipe };
        match (made, self.made(id, spec.clone(), &without)) {
            // A policy that follows masks does not fit this one.
            (Err(error), Ok(entry)) if entry.policy.takes_action_masks() => Err(error),
            (Err(error), Err(_)) => Err(error),
            (_, entry) => Ok((entry?, without)),
        }
    }

    /// Creates a policy that can be recreated.
    fn made(&self, id: &PolicyId, spec: PolicySpec, recipe: &Recipe) -> Result<PolicyEntry, SetupError> {
        let context = self.context(id, recipe)?;
        let maker = move || spec.make(&context);
        let policy = maker().map_err(|source| SetupError::Policy { id: id.clone(), source })?;
        Ok(self.entry(id, policy, recipe)?.with_maker(Arc::new(maker)))
    }

    /// Recreates a policy for a map that evicts policies.
    pub(in crate::worker) fn remake_for_map(&self, id: &PolicyId, text: &str) -> Result<PolicyEntry, StashError> {
        match self.remake(id, text) {
            Ok((entry, _)) => Ok(entry),
            Err(SetupError::Policy { source, .. }) => Err(StashError::Policy(source)),
            Err(other) => Err(StashError::Policy(PolicyError::Failed(other.to_string()))),
        }
    }

    fn context(&self, id: &PolicyId, recipe: &Recipe) -> Result<PolicyContext, SetupError> {
        let (worker_index, num_workers) = (self.place.worker_index, self.place.num_workers);
        let config = recipe.config.clone().with("worker_index", worker_index)?.with("num_workers", num_workers)?;
        Ok(PolicyContext {
            id: id.clone(),
            spaces: self.acting_spaces(id, recipe)?,
            config,
            seed: self.seed,
            kernels: self.kernels,
            forward: self.kinds.forward().cloned(),
            models: self.kinds.models().clone(),
            worker_index,
            num_workers,
            whole_batches: self.whole_batches,
        })
    }

    fn entry(&self, id: &PolicyId, policy: Box<dyn Policy>, recipe: &Recipe) -> Result<PolicyEntry, SetupError> {
        recipe.check_filter(id, self.filter)?;
        let shape = self.acting_spaces(id, recipe)?.observation.shape();
        let filter = Filter::new(self.filter, shape).map_err(|source| SetupError::Filter { id: id.clone(), source })?;
        Ok(PolicyEntry::new(recipe.text(), policy)
            .with_staying(recipe.kind.is_none())
            .with_filter(filter)
            .with_preprocessor(self.preprocessor(id, recipe)?))
    }

    /// Returns the preprocessor of a policy's observations, if they need one.
    fn preprocessor(&self, id: &PolicyId, recipe: &Recipe) -> Result<Option<Preprocessor>, SetupError> {
        // Of observations with an action mask the networks need the parts.
        if self.pref == PreprocessorPref::None || recipe.has_mask() {
            return Ok(None);
        }
        let made = Preprocessor::for_space(&recipe.spaces.observation);
        let made = made.map_err(|source| SetupError::Space { id: id.clone(), source })?;
        Ok(Some(made).filter(|preprocessor| !preprocessor.is_identity()))
    }

    /// Returns the spaces as the policy sees them: observations preprocessed, actions before they are unsquashed.
    pub(in crate::worker) fn acting_spaces(&self, id: &PolicyId, recipe: &Recipe) -> Result<EnvSpaces, SetupError> {
        let spaces = &recipe.spaces;
        let transform = ActionTransform::for_space(&spaces.action, self.normalize_actions, false);
        let action = transform.policy_space(&spaces.action);
        // The element type may be too small for this many integers from 0 on.
        action.validate().map_err(|source| SetupError::Space { id: id.clone(), source })?;
        let mut spaces = EnvSpaces { action, ..spaces.clone() };
        if let Some(preprocessor) = self.preprocessor(id, recipe)? {
            (spaces.observation, spaces.observation_type) = (preprocessor.output_space(), DType::F32);
        }
        Ok(spaces)
    }

    /// Returns the policy's spaces: given ones take precedence over the environment's.
    fn spaces(&self, id: &PolicyId, new: &NewPolicy, known: Option<EnvSpaces>) -> Result<EnvSpaces, SetupError> {
        let given = new.observation_space.as_ref().zip(new.action_space.as_ref());
        let known = match (known, given) {
            (Some(known), _) => known,
            (None, Some((observation, action))) => EnvSpaces::with_usual_types(observation.clone(), action.clone()),
            (None, None) => return Err(SetupError::NoSpaces(id.clone())),
        };
        let check = |space: &Space| space.validate().map_err(|source| SetupError::Space { id: id.clone(), source });
        let mut spaces = known;
        if let Some(observation) = &new.observation_space {
            check(observation)?;
            spaces.observation = observation.clone();
        }
        if let Some(action) = &new.action_space {
            check(action)?;
            spaces.action = action.clone();
        }
        Ok(spaces)
    }
}
