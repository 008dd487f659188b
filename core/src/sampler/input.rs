//! Interfaces of inputs and outputs.

use super::{Budget, Interrupt, Position, SampleError, episodic::Output};
use crate::{
    batch::AnyBatch,
    callbacks::{Callbacks, ObservationFn, PolicyMappingFn, WorkerInfo},
    config::Config,
    encoding,
    env::SubEnv,
    episode::{Losses, RolloutMetrics},
    ids::PolicyId,
    policy::PolicyMap,
    prelude::*,
    space::Space,
    time::Micros,
};

/// The parts of a worker that it lends to its input.
pub struct SamplerHost<'a> {
    /// Information about the worker.
    pub worker: &'a WorkerInfo,
    /// The policies, with their filters and preprocessors.
    pub policies: &'a mut PolicyMap,
    /// Maps agents to policies.
    pub mapping: &'a PolicyMappingFn,
    /// Rewrites observations first.
    pub observation_fn: Option<&'a ObservationFn>,
    /// The user's callbacks.
    pub callbacks: &'a mut dyn Callbacks,
    /// The caller's clock, for budgets and [`SamplerPerf`](crate::episode::SamplerPerf); always 0 without one.
    pub clock: &'a dyn Fn() -> Micros,
    /// Interrupts the sampler before its batch is complete: it stops before the next step of the environments, with
    /// [`SampleError::Stopped`].
    pub interrupt: Option<&'a Interrupt>,
}

impl SamplerHost<'_> {
    /// Checks whether the sampler was interrupted. Call it before each round of steps.
    ///
    /// # Errors
    /// [`SampleError::Stopped`].
    pub fn check_interrupt(&self) -> Result<(), SampleError> {
        self.interrupt.map_or(Ok(()), Interrupt::check)
    }
}

/// Returns batches one after the other: from environments, files, or any other source.
#[doc(alias = "SamplerInput")]
pub trait InputReader: Send {
    /// Returns the next batch, joined with those that callbacks or environments have added. In `truncate_episodes` mode a
    /// sampler returns the fragment of one environment, or of all of them in lockstep, in `complete_episodes` mode one
    /// episode.
    ///
    /// # Errors
    /// [`SampleError`]; what is in progress is then lost, what is finished is not.
    #[doc(alias = "get_data")]
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError>;

    /// Returns the next batch if it is available within a budget, else `None`; the next call continues, also a call of
    /// [`next`](Self::next). `None` with an [endless](Budget::endless) budget means that nothing can become available. The
    /// default implementation returns whole batches, one per round.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    fn next_within(
        &mut self,
        host: &mut SamplerHost<'_>,
        budget: &mut Budget,
    ) -> Result<Option<AnyBatch>, SampleError> {
        if budget.allows_round(host.clock) { self.next(host).map(Some) } else { Ok(None) }
    }

    /// Returns the metrics of episodes that have ended since the last call, up to the latest batch.
    #[doc(alias = "get_metrics")]
    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        Vec::new()
    }

    /// Returns the losses since the last call.
    fn losses(&mut self) -> Losses {
        Losses::default()
    }

    /// Calls `f` with each of the environments that are stepped for it in this process.
    fn for_each_env(&mut self, _f: &mut dyn FnMut(SubEnv<'_>)) {}

    /// Returns its position between two batches; `None` for one that can only restart. The default implementation encodes
    /// the [resume point](Self::resume_point).
    fn position(&self) -> Option<Position> {
        self.resume_point().position()
    }

    /// Continues at the [position](Self::position) of a reader of the same data, or of a sampler of the same environments,
    /// with the same settings, so that the same batches follow; slots that a sampler does not have are ignored.
    ///
    /// # Errors
    /// [`SampleError::Input`] if it can only restart, for a position of something else, and if the data has changed: then
    /// the position is undefined. A sampler returns [`SampleError::Env`]; it is then unchanged, except that a sample in
    /// progress is lost unless the bytes are damaged.
    fn set_position(&mut self, _position: &Position) -> Result<(), SampleError> {
        Err(SampleError::Input("it can only be read from its beginning".into()))
    }

    /// Returns the point between two batches to which a sampler can [return](Self::resume), also one whose open episodes
    /// cannot be continued.
    fn resume_point(&self) -> ResumePoint {
        ResumePoint::default()
    }

    /// Returns to a [point](Self::resume_point) of the same sampler. Batches that were ready there are ready again.
    ///
    /// # Errors
    /// As [`set_position`](Self::set_position).
    fn resume(&mut self, point: &ResumePoint) -> Result<(), SampleError> {
        self.set_position(&Position::from_bytes(point.encode()))
    }

    /// Releases its resources, and stops environments. A second call does nothing.
    ///
    /// # Errors
    /// [`SampleError`].
    fn stop(&mut self) -> Result<(), SampleError> {
        Ok(())
    }
}

/// A point between two batches of a sampler, to which it can return.
#[derive(Clone, Debug, Default)]
pub struct ResumePoint {
    /// States of the slots. Empty for a sampler that cannot return.
    pub state: Vec<u8>,
    /// Number of open episodes that the state does not continue: after a return their slots begin the next ones. If it is 0,
    /// the same batches follow; `None` for a sampler that cannot return.
    pub lost_episodes: Option<u64>,
    /// Batches and metrics that are ready.
    pub(crate) outputs: VecDeque<Output>,
}

impl ResumePoint {
    /// Returns the state with the outputs that are ready, for [`InputReader::set_position`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        if self.outputs.is_empty() {
            return self.state.clone();
        }
        encoding::encode_after(self.state.clone(), &self.outputs)
    }

    /// Returns it as a position; `None` for a sampler that cannot return.
    #[must_use]
    pub(crate) fn position(&self) -> Option<Position> {
        let point = self.encode();
        (!point.is_empty()).then(|| Position::from_bytes(point))
    }

    /// Reads the outputs that follow a state of `num_envs` environments; `None` for invalid bytes.
    pub(crate) fn read_outputs(bytes: &[u8], num_envs: usize) -> Option<VecDeque<Output>> {
        if bytes.is_empty() {
            return Some(VecDeque::new());
        }
        let outputs: VecDeque<Output> = encoding::decode(bytes)?;
        let fits = |output: &Output| !matches!(output, Output::Batch(env, _) if *env >= num_envs);
        outputs.iter().all(fits).then_some(outputs)
    }

    /// Returns the env steps and the agent steps of the batches that are ready.
    #[must_use]
    pub fn ready_steps(&self) -> (u64, u64) {
        self.outputs.iter().fold((0, 0), |(env_steps, agent_steps), output| match output {
            Output::Batch(_, batch) => (env_steps + batch.env_steps() as u64, agent_steps + batch.agent_steps() as u64),
            Output::Metrics(_) => (env_steps, agent_steps),
        })
    }
}

/// Stores the batches that a worker has sampled.
pub trait OutputWriter: Send {
    /// Writes a batch, which must not be compressed.
    ///
    /// # Errors
    /// [`SampleError::Output`].
    fn write(&mut self, batch: &AnyBatch) -> Result<(), SampleError>;

    /// Flushes and releases its resources. A second call does nothing.
    ///
    /// # Errors
    /// [`SampleError::Output`].
    fn close(&mut self) -> Result<(), SampleError> {
        Ok(())
    }
}

/// Writes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NoopOutput;

impl OutputWriter for NoopOutput {
    fn write(&mut self, _batch: &AnyBatch) -> Result<(), SampleError> {
        Ok(())
    }
}

/// Context in which inputs and outputs are made.
pub struct IoContext {
    /// Directory for outputs that name none.
    pub log_dir: Option<String>,
    /// Settings of input and output.
    #[doc(alias("input_config", "output_config"))]
    pub config: Config,
    /// Information about the worker.
    pub worker: WorkerInfo,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Rows per update, over all workers.
    pub train_batch_size: u32,
    /// Whether the worker clips actions, see [`ActionTransform`](crate::action::ActionTransform).
    pub clip_actions: bool,
    /// Whether the worker's policies act within [-1, 1].
    pub normalize_actions: bool,
    /// The environment's spaces of actions, by policy.
    pub action_spaces: BTreeMap<PolicyId, Space>,
    /// The environment's spaces of observations, by policy.
    pub observation_spaces: BTreeMap<PolicyId, Space>,
    /// The shard to read and the number of shards; `None` for a local worker alongside others, which reads nothing.
    pub shard: Option<(u32, u32)>,
    sampler: Option<Box<dyn InputReader>>,
}

impl IoContext {
    /// Creates a context with the worker's own sampler, if it has environments.
    #[must_use]
    pub fn new(worker: WorkerInfo, config: Config, sampler: Option<Box<dyn InputReader>>) -> Self {
        Self {
            log_dir: None,
            config,
            worker,
            seed: 0,
            train_batch_size: 1,
            clip_actions: false,
            normalize_actions: false,
            action_spaces: BTreeMap::new(),
            observation_spaces: BTreeMap::new(),
            shard: Some((0, 1)),
            sampler,
        }
    }

    /// Takes the worker's own sampler, if it has environments; `None` the second time.
    pub fn default_sampler_input(&mut self) -> Option<Box<dyn InputReader>> {
        self.sampler.take()
    }
}
