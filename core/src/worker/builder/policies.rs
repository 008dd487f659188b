//! Policies to create.

use crate::{
    config::Config,
    policy::{Policy, PolicySpec, PolicyState},
    prelude::*,
    space::Space,
    worker::PolicyConfig,
};

/// The class of a policy.
#[derive(Clone, Debug)]
pub enum PolicyClass {
    /// A registered name: such a policy can be recreated in any process of the program.
    Named(String),
    /// A specification: can be recreated only in this process.
    Spec(PolicySpec),
}

/// A policy to create, or an existing policy object.
#[derive(Default)]
#[doc(alias = "PolicySpec")]
pub struct NewPolicy {
    /// The class of the policy.
    #[doc(alias("policy_class", "policy_cls"))]
    pub class: Option<PolicyClass>,
    /// The policy itself.
    pub policy: Option<Box<dyn Policy>>,
    /// Its observation space before preprocessing; `None` for that of its agents in the environment.
    pub observation_space: Option<Space>,
    /// Its action space; `None` for that of its agents in the environment.
    pub action_space: Option<Space>,
    /// Settings that override those shared by all policies.
    pub config: Config,
    /// The state to resume from.
    #[doc(alias = "policy_state")]
    pub state: Option<PolicyState>,
}

impl NewPolicy {
    /// Creates an entry for a policy of a registered class.
    #[must_use]
    pub fn named(kind: impl Into<String>) -> Self {
        Self { class: Some(PolicyClass::Named(kind.into())), ..Self::default() }
    }

    /// Creates an entry for a policy of a class defined by the caller.
    #[must_use]
    pub fn of(spec: PolicySpec) -> Self {
        Self { class: Some(PolicyClass::Spec(spec)), ..Self::default() }
    }

    /// Creates an entry for an existing policy object.
    #[must_use]
    pub fn object(policy: Box<dyn Policy>) -> Self {
        Self { policy: Some(policy), ..Self::default() }
    }

    /// Sets its own settings.
    #[must_use]
    pub fn with_config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Sets its observation and action space.
    #[must_use]
    pub fn with_spaces(self, observation_space: Space, action_space: Space) -> Self {
        Self { observation_space: Some(observation_space), action_space: Some(action_space), ..self }
    }
}

impl From<&PolicyConfig> for NewPolicy {
    fn from(policy: &PolicyConfig) -> Self {
        Self {
            class: Some(PolicyClass::Named(policy.policy.clone())),
            policy: None,
            observation_space: policy.observation_space.clone(),
            action_space: policy.action_space.clone(),
            config: policy.config.clone(),
            state: None,
        }
    }
}
