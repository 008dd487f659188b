//! Policies to be made.

use crate::{
    config::Config,
    policy::{Policy, PolicySpec, PolicyState},
    prelude::*,
    space::Space,
    worker::PolicyConfig,
};

/// The kind of a policy.
#[derive(Clone, Debug)]
pub enum PolicyClass {
    /// By registered name: such a policy can be made again anywhere.
    Named(String),
    /// By how to make it: only here.
    Spec(PolicySpec),
}

/// A policy to be made, or an object that is one already.
#[derive(Default)]
#[doc(alias = "PolicySpec")]
pub struct NewPolicy {
    /// What kind of policy to make.
    #[doc(alias("policy_class", "policy_cls"))]
    pub class: Option<PolicyClass>,
    /// The policy itself.
    pub policy: Option<Box<dyn Policy>>,
    /// What it observes, before preprocessing; if none, what the environment says of its agents.
    pub observation_space: Option<Space>,
    /// What it does; if none, what the environment says of its agents.
    pub action_space: Option<Space>,
    /// Settings over those that all policies share.
    pub config: Config,
    /// From where it goes on.
    #[doc(alias = "policy_state")]
    pub state: Option<PolicyState>,
}

impl NewPolicy {
    /// A policy of a registered kind.
    #[must_use]
    pub fn named(kind: impl Into<String>) -> Self {
        Self { class: Some(PolicyClass::Named(kind.into())), ..Self::default() }
    }

    /// A policy of a kind of one's own.
    #[must_use]
    pub fn of(spec: PolicySpec) -> Self {
        Self { class: Some(PolicyClass::Spec(spec)), ..Self::default() }
    }

    /// An object that is a policy.
    #[must_use]
    pub fn object(policy: Box<dyn Policy>) -> Self {
        Self { policy: Some(policy), ..Self::default() }
    }

    /// Sets its own settings.
    #[must_use]
    pub fn with_config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Sets what it observes and does.
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
