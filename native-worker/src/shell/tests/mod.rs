//! Workers with a sampler on a thread, compared with the same ones without.

mod changes;
mod errors;
mod queue;
mod same;

use std::sync::{
    Arc,
    mpsc::{Receiver, Sender, channel},
};

use rollmesh_core::{
    batch::AnyBatch,
    callbacks::{CallbackList, Callbacks, PolicyMappingFn, WorkerInfo},
    episode::RolloutMetrics,
    filter::FilterKind,
    ids::{AgentId, PolicyId},
    policy::{PolicyMap, PolicySpec, RandomPolicy},
    sampler::{Budget, InputReader, SampleError, SamplerHost},
    time::Micros,
    worker::{
        AsyncSampling, NewPolicy, PolicyConfig, RolloutConfig, RolloutError, RolloutWorker, RolloutWorkerBuilder,
        WorkerMetrics, config::InputEvaluation,
    },
};

use super::{AsyncSampler, NativeShell};

/// Returns a worker's settings: two CartPoles with a network policy.
fn cartpoles() -> RolloutConfig {
    RolloutConfig::new("CartPole-v1").num_envs(2).rollout_fragment_length(40).fcnet_hiddens(&[8]).seed(5)
}

/// Returns two games of four agents with two policies.
fn games() -> RolloutConfig {
    let mut config = RolloutConfig::new("MultiAgentCartPole-v1").num_envs(2).rollout_fragment_length(30).seed(6);
    config.policies = ["even", "odd"].map(|id| (PolicyId::new(id), PolicyConfig::default())).into();
    config.fcnet_hiddens(&[8])
}

fn by_parity(id: &AgentId) -> PolicyId {
    PolicyId::new(if matches!(id, AgentId::Index(i) if i % 2 == 1) { "odd" } else { "even" })
}

fn builder(config: RolloutConfig) -> RolloutWorkerBuilder {
    RolloutWorker::builder().config(config).shell(Box::new(NativeShell::default()))
}

fn on_a_thread(config: RolloutConfig) -> RolloutConfig {
    RolloutConfig { sample_async: true, ..config }
}

/// A test bench: a sampler on a thread, and the worker's parts.
struct Bench {
    sampler: Box<dyn InputReader>,
    policies: PolicyMap,
    mapping: PolicyMappingFn,
    callbacks: CallbackList,
}

impl Bench {
    fn new(sampler: impl InputReader + 'static) -> Self {
        let mapping: PolicyMappingFn = Arc::new(|_, _, _, _| PolicyId::DEFAULT);
        let sampling = AsyncSampling {
            sampler: Box::new(sampler),
            policies: PolicyMap::new(),
            callbacks: CallbackList::new(),
            worker: WorkerInfo::default(),
            mapping: mapping.clone(),
            observation_fn: None,
            clock: Arc::new(|| Micros(0)),
            discard_batches: false,
        };
        let moved = AsyncSampler::around(sampling).unwrap();
        Self { sampler: moved.sampler, policies: PolicyMap::new(), mapping, callbacks: moved.callbacks }
    }

    fn data(&mut self) -> Result<AnyBatch, SampleError> {
        self.with(|sampler, host| sampler.next(host))
    }

    /// Returns the next batch within a time, by a clock that does not advance.
    fn data_within(&mut self, span: Micros) -> Result<Option<AnyBatch>, SampleError> {
        self.with(|sampler, host| sampler.next_within(host, &mut Budget::until(span)))
    }

    fn with<R>(&mut self, f: impl FnOnce(&mut dyn InputReader, &mut SamplerHost<'_>) -> R) -> R {
        f(
            self.sampler.as_mut(),
            &mut SamplerHost {
                worker: &WorkerInfo::default(),
                policies: &mut self.policies,
                mapping: &self.mapping,
                observation_fn: None,
                callbacks: &mut self.callbacks,
                clock: &|| Micros(0),
                interrupt: None,
            },
        )
    }
}
