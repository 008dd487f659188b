//! Setters of the builder.

use super::{Clock, HostFacts, NewPolicy, RolloutWorkerBuilder, SamplerChoice, Shell};
use crate::{
    callbacks::{CallbackError, Callbacks, EpisodeHook, PolicyMappingFn, WorkerInfo},
    env::{
        BaseEnv, Env, EnvContext, EnvError, EnvSpec, MultiAgentEnv, MultiAgentSpec, SubEnv, Vectorized,
        multi_agent::AgentRows,
    },
    episode::Episode,
    estimate::QModel,
    ids::{AgentId, PolicyId},
    kernels::Kernels,
    policy::ForwardFactory,
    prelude::*,
    rng::Rng,
    sampler::{InputReader, IoContext, OutputWriter, SampleError},
    time::Micros,
    worker::{PoliciesToTrain, RegisteredEnv, RolloutConfig, WorkerPlace},
};

impl RolloutWorkerBuilder {
    /// Sets the configuration: everything that can be serialised.
    #[doc(alias = "AlgorithmConfig")]
    pub fn config(self, config: RolloutConfig) -> Self {
        Self { config, ..self }
    }

    /// Sets the worker's place in its run.
    #[doc(alias("worker_index", "num_workers", "recreated_worker", "in_evaluation"))]
    pub fn place(self, place: WorkerPlace) -> Self {
        Self { place, ..self }
    }

    /// Sets the kernels. They have no influence on the rows.
    pub fn kernels(self, kernels: Kernels) -> Self {
        Self { kernels, ..self }
    }

    /// Sets what lets the policies of leases act by another worker, in runs with
    /// [`Inference::Server`](crate::run::Inference::Server), unless they act on a device. Without it they act by themselves.
    pub fn inference(self, forward: ForwardFactory) -> Self {
        Self { inference: Some(forward), ..self }
    }

    /// Sets the clock with which the sampler measures durations. Without one all durations are 0.
    pub fn clock(self, clock: impl Fn() -> Micros + Send + Sync + 'static) -> Self {
        Self { clock: Arc::new(clock) as Clock, ..self }
    }

    /// Sets a factory of single-agent environments, called once per context.
    pub fn env_creator<E>(self, make: impl Fn(&EnvContext) -> Result<E, EnvError> + Send + Sync + 'static) -> Self
    where
        E: Env + 'static,
    {
        self.env_spec(EnvSpec::fallible("", move |contexts, _kernels| {
            let envs = contexts.iter().map(&make).collect::<Result<Vec<E>, EnvError>>()?;
            Ok(Box::new(Vectorized::new(envs)))
        }))
    }

    /// Sets a specification of single-agent environments, with its time limit.
    pub fn env_spec(self, spec: EnvSpec) -> Self {
        Self { env: Some(RegisteredEnv::SingleAgent(spec)), ..self }
    }

    /// Sets a factory of multi-agent environments, called once per context.
    pub fn multi_agent_env_creator(
        self,
        make: impl Fn(&EnvContext) -> Result<Box<dyn MultiAgentEnv>, EnvError> + Send + Sync + 'static,
    ) -> Self {
        self.multi_agent_env_spec(MultiAgentSpec::new("", make))
    }

    /// Sets a specification of multi-agent environments, with its time limit.
    pub fn multi_agent_env_spec(self, spec: MultiAgentSpec) -> Self {
        Self { env: Some(RegisteredEnv::MultiAgent(spec)), ..self }
    }

    /// Sets a factory that makes all environments together, in the user's own shape.
    pub fn base_env_creator(
        self,
        make: impl Fn(&[EnvContext], Kernels) -> Result<Box<dyn BaseEnv>, EnvError> + Send + Sync + 'static,
    ) -> Self {
        Self { env: Some(RegisteredEnv::Base(Arc::new(make))), ..self }
    }

    /// Sets a function that validates every sub-environment after it was made; its error ends the construction.
    pub fn validate_env(
        self,
        validate: impl FnMut(SubEnv<'_>, &EnvContext) -> Result<(), EnvError> + Send + 'static,
    ) -> Self {
        Self { validate_env: Some(Box::new(validate)), ..self }
    }

    /// Adds a policy, by class or as an object. It replaces one with this id in the configuration.
    #[doc(alias("policy_graph", "policies", "default_policy_class"))]
    pub fn policy(mut self, id: PolicyId, policy: NewPolicy) -> Self {
        self.policies.insert(id, policy);
        self
    }

    /// Sets the function that maps agents to policies.
    pub fn policy_mapping_fn(
        self,
        map: impl Fn(&AgentId, &Episode, &WorkerInfo, &mut Rng) -> PolicyId + Send + Sync + 'static,
    ) -> Self {
        Self { policy_mapping_fn: Some(Arc::new(map) as PolicyMappingFn), ..self }
    }

    /// Sets which policies are trained.
    #[doc(alias = "is_policy_to_train")]
    pub fn policies_to_train(self, policies: impl Into<PoliciesToTrain>) -> Self {
        Self { policies_to_train: Some(policies.into()), ..self }
    }

    /// Sets a function that rewrites observations before anything else uses them.
    pub fn observation_fn(
        self,
        rewrite: impl Fn(&mut AgentRows, &mut EpisodeHook<'_>) -> Result<(), CallbackError> + Send + Sync + 'static,
    ) -> Self {
        Self { observation_fn: Some(Arc::new(rewrite)), ..self }
    }

    /// Adds callbacks, after those that the configuration names.
    pub fn callbacks(mut self, callbacks: Box<dyn Callbacks>) -> Self {
        self.callbacks.push(callbacks);
        self
    }

    /// Sets a function that opens the input. It replaces the worker's own sampler, which its context contains.
    pub fn input_creator(
        self,
        open: impl FnOnce(&mut IoContext) -> Result<Box<dyn InputReader>, SampleError> + Send + 'static,
    ) -> Self {
        Self { input: Some(Box::new(open)), ..self }
    }

    /// Sets the default policy's Q-model for the input evaluations `dm` and `dr`, instead of the one that the registry
    /// makes. It is trained on each batch before it estimates.
    pub fn q_model(self, model: Box<dyn QModel>) -> Self {
        Self { q_model: Some(model), ..self }
    }

    /// Sets a function that opens the output.
    pub fn output_creator(
        self,
        open: impl FnOnce(&mut IoContext) -> Result<Box<dyn OutputWriter>, SampleError> + Send + 'static,
    ) -> Self {
        Self { output: Some(Box::new(open)), ..self }
    }

    /// Chooses the sampler; the default choice is best.
    pub fn sampler(self, sampler: SamplerChoice) -> Self {
        Self { sampler, ..self }
    }

    /// Sets the shell: threads, processes and files, which the core lacks.
    pub fn shell(self, shell: Box<dyn Shell>) -> Self {
        Self { shell: Some(shell), ..self }
    }

    /// Sets the source of facts about the machine.
    pub fn host(self, host: Box<dyn HostFacts>) -> Self {
        Self { host: Some(host), ..self }
    }
}
