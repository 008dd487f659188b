//! A function for every sub-environment.

use super::{RolloutWorker, Source};
use crate::{
    env::{EnvContext, SubEnv},
    prelude::*,
    sampler::InputReader as _,
};

impl RolloutWorker {
    /// Calls a function with every sub-environment of this process, and gives the answers in the order of their indices.
    /// Environments that cannot be reached one by one are shown [together](SubEnv::Base), with the first context. None
    /// for a worker without any, and for those that step elsewhere than in this worker's own sampler. Sub-environments in
    /// quarantine are not there.
    ///
    /// What a function changes shows from the environment's next step on.
    pub fn foreach_env<R>(&mut self, mut f: impl FnMut(SubEnv<'_>) -> R) -> Vec<R> {
        let mut answers = Vec::new();
        let mut ask = |env: SubEnv<'_>| answers.push(f(env));
        match &mut self.parts.opened.source {
            Source::None => {}
            Source::Lockstep(sampler) => sampler.for_each_env(&mut ask),
            Source::Reader(sampler) => crate::sampler::SamplerInput::for_each_env(sampler.as_mut(), &mut ask),
            Source::Input(reader) => reader.for_each_env(&mut ask),
        }
        answers
    }

    /// [`foreach_env`](Self::foreach_env), and what the environment was told when it was made.
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
