//! Functions called with every sub-environment.

use super::RolloutWorker;
use crate::{
    env::{EnvContext, SubEnv},
    prelude::*,
};

impl RolloutWorker {
    /// Calls a function with every sub-environment of this process, and returns the results in the order of their indices.
    /// Environments that cannot be reached individually are passed [together](SubEnv::Base), with the first context. Returns
    /// nothing for a worker without environments, and for those not stepped by this worker's own sampler. Quarantined
    /// sub-environments are skipped.
    ///
    /// A change takes effect with the environment's next step.
    pub fn foreach_env<R>(&mut self, mut f: impl FnMut(SubEnv<'_>) -> R) -> Vec<R> {
        let mut answers = Vec::new();
        if let Some(source) = &mut self.parts.opened.source {
            source.reader_mut().for_each_env(&mut |env| answers.push(f(env)));
        }
        answers
    }

    /// Does the same as [`foreach_env`](Self::foreach_env), with the context that each environment was made with.
    pub fn foreach_env_with_context<R>(&mut self, mut f: impl FnMut(SubEnv<'_>, &EnvContext) -> R) -> Vec<R> {
        self.collect_metrics();
        let out: Vec<usize> = self.quarantined.iter().map(|out| out.env).collect();
        let contexts = core::mem::take(&mut self.parts.contexts);
        let mut next = contexts.iter().enumerate().filter(|(env, _)| !out.contains(env)).map(|(_, context)| context);
        let answers = self.foreach_env(|env| next.next().map(|context| f(env, context)));
        self.parts.contexts = contexts;
        answers.into_iter().flatten().collect()
    }
}
