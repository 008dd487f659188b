//! Functions called with the worker.

use super::RolloutWorker;
use crate::{
    callbacks::CallbackError,
    config::Config,
    ids::PolicyId,
    prelude::*,
    worker::{NamedFn, RolloutError},
};

impl RolloutWorker {
    /// Calls a registered function with this worker. Name and arguments may be untrusted.
    ///
    /// # Errors
    /// [`RolloutError::Unknown`], [`RolloutError::Callback`].
    pub fn apply(&mut self, name: &str, arguments: &Config) -> Result<Config, RolloutError> {
        let function = self.parts.registry.worker_fn(name)?.clone();
        Ok(function(self, arguments)?)
    }

    /// Calls a registered function as [`foreach_env_with_context`](Self::foreach_env_with_context) does.
    ///
    /// # Errors
    /// [`RolloutError::Unknown`]; [`RolloutError::Callback`] of the first environment for which it fails. The function has
    /// been called with all of them.
    pub fn foreach_env_by_name(&mut self, function: &NamedFn) -> Result<Vec<Config>, RolloutError> {
        let ask = self.parts.registry.env_fn(&function.name)?.clone();
        all(self.foreach_env_with_context(|env, context| ask(env, context, &function.arguments)))
    }

    /// Calls a registered function as [`for_policy`](Self::for_policy) does.
    ///
    /// # Errors
    /// [`RolloutError::Unknown`], [`RolloutError::PolicyMap`] for an unknown id, [`RolloutError::Callback`].
    pub fn for_policy_by_name(&mut self, id: &PolicyId, function: &NamedFn) -> Result<Config, RolloutError> {
        let ask = self.parts.registry.policy_fn(&function.name)?.clone();
        Ok(self.for_policy(id, |policy| ask(id, policy, &function.arguments))??)
    }

    /// Calls a registered function as [`foreach_policy`](Self::foreach_policy) does.
    ///
    /// # Errors
    /// As [`foreach_env_by_name`](Self::foreach_env_by_name); [`RolloutError::PolicyMap`].
    pub fn foreach_policy_by_name(&mut self, function: &NamedFn) -> Result<Vec<Config>, RolloutError> {
        let ask = self.parts.registry.policy_fn(&function.name)?.clone();
        all(self.foreach_policy(|id, policy| ask(id, policy, &function.arguments))?)
    }

    /// Calls a registered function as [`foreach_policy_to_train`](Self::foreach_policy_to_train) does.
    ///
    /// # Errors
    /// As [`foreach_policy_by_name`](Self::foreach_policy_by_name).
    pub fn foreach_policy_to_train_by_name(&mut self, function: &NamedFn) -> Result<Vec<Config>, RolloutError> {
        let ask = self.parts.registry.policy_fn(&function.name)?.clone();
        all(self.foreach_policy_to_train(|id, policy| ask(id, policy, &function.arguments))?)
    }

    /// Calls a closure with this worker.
    #[doc(alias = "apply")]
    pub fn apply_fn<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> R {
        f(self)
    }

    /// Returns `pong`, which shows the caller that the worker is alive.
    #[must_use]
    pub fn ping(&self) -> &'static str {
        "pong"
    }
}

/// Returns all results, or the first error.
fn all(answers: Vec<Result<Config, CallbackError>>) -> Result<Vec<Config>, RolloutError> {
    Ok(answers.into_iter().collect::<Result<_, _>>()?)
}
