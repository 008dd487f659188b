//! Where batches come from and where they go.

use super::{Budget, Interrupt, Position, SampleError};
use crate::{
    batch::AnyBatch,
    callbacks::{Callbacks, ObservationFn, PolicyMappingFn, WorkerInfo},
    config::Config,
    env::SubEnv,
    episode::{Losses, RolloutMetrics},
    ids::PolicyId,
    policy::PolicyMap,
    prelude::*,
    space::Space,
    time::Micros,
};

/// What a worker lends to whoever makes batches for it.
pub struct SamplerHost<'a> {
    /// The worker.
    pub worker: &'a WorkerInfo,
    /// The policies, with their filters and preprocessors.
    pub policies: &'a mut PolicyMap,
    /// Which policy an agent gets.
    pub mapping: &'a PolicyMappingFn,
    /// What observations go through first.
    pub observation_fn: Option<&'a ObservationFn>,
    /// The user's callbacks.
    pub callbacks: &'a mut dyn Callbacks,
    /// The caller's clock, for budgets and [`SamplerPerf`](crate::episode::SamplerPerf); always 0 without one.
    pub clock: &'a dyn Fn() -> Micros,
    /// Set by whoever wants the sampler back before its batch is complete: it gives up before the next step of the
    /// environments, with [`SampleError::Stopped`].
    pub interrupt: Option<&'a Interrupt>,
}

impl SamplerHost<'_> {
    /// Whether the sampler has to give up. To be asked before each round of steps.
    ///
    /// # Errors
    /// [`SampleError::Stopped`].
    pub fn check_interrupt(&self) -> Result<(), SampleError> {
        self.interrupt.map_or(Ok(()), Interrupt::check)
    }
}

/// Gives one batch after the other: from environments, from files, from anywhere.
pub trait InputReader: Send {
    /// The next batch. In `truncate_episodes` mode a sampler gives the fragment of one environment, in
    /// `complete_episodes` mode one episode.
    ///
    /// # Errors
    /// [`SampleError`].
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError>;

    /// The next batch if it can be had within a budget. Else nothing, and the next call goes on there, also one of
    /// [`next`](Self::next). Nothing at all while the budget is [endless](Budget::endless) means that there is nothing to
    /// wait for. A reader that does not write this gives whole batches, one per round.
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

    /// Episodes that have ended since the last call.
    #[doc(alias = "get_metrics")]
    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        Vec::new()
    }

    /// What failures have cost since the last call.
    fn losses(&mut self) -> Losses {
        Losses::default()
    }

    /// The environments that are stepped for it, in this process.
    fn sub_environments(&mut self) -> Vec<SubEnv<'_>> {
        Vec::new()
    }

    /// Shows each of those to `f`, also where they are lanes of one environment and cannot be lent all at once.
    fn for_each_env(&mut self, f: &mut dyn FnMut(SubEnv<'_>)) {
        self.sub_environments().into_iter().for_each(f);
    }

    /// Where it is between two batches. None for one that can only begin again.
    fn position(&self) -> Option<Position> {
        None
    }

    /// Goes on at the [position](Self::position) of a reader of the same, with the same settings: what comes is what came
    /// there. After an error it is anywhere.
    ///
    /// # Errors
    /// [`SampleError::Input`] if it can only begin again, for a position of something else, and if what is read has changed.
    fn set_position(&mut self, _position: &Position) -> Result<(), SampleError> {
        Err(SampleError::Input("it can only be read from its beginning".into()))
    }

    /// Releases what it holds. Does nothing the second time.
    ///
    /// # Errors
    /// [`SampleError`].
    fn stop(&mut self) -> Result<(), SampleError> {
        Ok(())
    }
}

/// An [`InputReader`] that steps environments.
pub trait SamplerInput: Send {
    /// The next batch, see [`InputReader::next`].
    ///
    /// # Errors
    /// [`SampleError`]; what was begun is then lost, what was finished is not.
    #[doc(alias = "get_data")]
    fn data(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError>;

    /// The next batch if it can be had within a budget, see [`InputReader::next_within`]. Whatever the budgets, the
    /// batches are those of [`data`](Self::data).
    ///
    /// # Errors
    /// As [`data`](Self::data).
    fn data_within(
        &mut self,
        host: &mut SamplerHost<'_>,
        budget: &mut Budget,
    ) -> Result<Option<AnyBatch>, SampleError> {
        if budget.allows_round(host.clock) { self.data(host).map(Some) } else { Ok(None) }
    }

    /// Batches that callbacks or environments have added since the last call.
    #[doc(alias = "get_extra_batches")]
    fn extra_batches(&mut self) -> Vec<AnyBatch> {
        Vec::new()
    }

    /// Episodes that have ended since the last call: those before the latest batch.
    #[doc(alias = "get_metrics")]
    fn metrics(&mut self) -> Vec<RolloutMetrics>;

    /// What failures have cost since the last call.
    fn losses(&mut self) -> Losses {
        Losses::default()
    }

    /// The environments, if they are in this process.
    fn sub_environments(&mut self) -> Vec<SubEnv<'_>>;

    /// Shows each of those to `f`, also where they are lanes of one environment and cannot be lent all at once.
    fn for_each_env(&mut self, f: &mut dyn FnMut(SubEnv<'_>)) {
        self.sub_environments().into_iter().for_each(f);
    }

    /// What the rest of its slots' lives depends on, in bytes that only such a sampler reads. Empty where only new
    /// episodes can be begun.
    fn state(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Goes on from [`state`](Self::state), as far as the slots are the same; slots of others are left alone.
    ///
    /// # Errors
    /// [`SampleError::Env`] for bytes that are not such a sampler's, or of another environment. Nothing has changed then.
    fn set_state(&mut self, _state: &[u8]) -> Result<(), SampleError> {
        Ok(())
    }

    /// Stops the environments. Does nothing the second time.
    ///
    /// # Errors
    /// [`SampleError::Env`].
    fn stop(&mut self) -> Result<(), SampleError>;
}

impl<S: SamplerInput + ?Sized> InputReader for Box<S> {
    fn next(&mut self, host: &mut SamplerHost<'_>) -> Result<AnyBatch, SampleError> {
        let data = self.data(host)?;
        with_extra(data, self.extra_batches())
    }

    fn next_within(
        &mut self,
        host: &mut SamplerHost<'_>,
        budget: &mut Budget,
    ) -> Result<Option<AnyBatch>, SampleError> {
        let Some(data) = self.data_within(host, budget)? else { return Ok(None) };
        with_extra(data, self.extra_batches()).map(Some)
    }

    fn metrics(&mut self) -> Vec<RolloutMetrics> {
        SamplerInput::metrics(&mut **self)
    }

    fn losses(&mut self) -> Losses {
        SamplerInput::losses(&mut **self)
    }

    fn sub_environments(&mut self) -> Vec<SubEnv<'_>> {
        SamplerInput::sub_environments(&mut **self)
    }

    fn for_each_env(&mut self, f: &mut dyn FnMut(SubEnv<'_>)) {
        SamplerInput::for_each_env(&mut **self, f);
    }

    /// Its [state](SamplerInput::state): open episodes are continued where that says so.
    fn position(&self) -> Option<Position> {
        let state = self.state();
        (!state.is_empty()).then(|| Position::new(&state))
    }

    fn set_position(&mut self, position: &Position) -> Result<(), SampleError> {
        self.set_state(&position.read::<Vec<u8>>()?)
    }

    fn stop(&mut self) -> Result<(), SampleError> {
        SamplerInput::stop(&mut **self)
    }
}

/// A batch, and those that join it.
fn with_extra(data: AnyBatch, extra: Vec<AnyBatch>) -> Result<AnyBatch, SampleError> {
    if extra.is_empty() {
        return Ok(data);
    }
    let mut batches = vec![data];
    batches.extend(extra);
    Ok(AnyBatch::concat(&batches)?)
}

/// Takes the batches that a worker has sampled, to keep them.
pub trait OutputWriter: Send {
    /// Writes a batch. It is not compressed.
    ///
    /// # Errors
    /// [`SampleError::Output`].
    fn write(&mut self, batch: &AnyBatch) -> Result<(), SampleError>;

    /// Writes what has been held back, and lets go. Does nothing the second time.
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

/// What makers of inputs and outputs are told.
pub struct IoContext {
    /// Directory for outputs that name none.
    pub log_dir: Option<String>,
    /// Settings of input and output.
    #[doc(alias("input_config", "output_config"))]
    pub config: Config,
    /// The worker.
    pub worker: WorkerInfo,
    /// Seed of everything random.
    pub seed: u64,
    /// Rows to learn from at once, for all workers together.
    pub train_batch_size: u32,
    /// Whether the worker clips actions, see [`ActionTransform`](crate::action::ActionTransform).
    pub clip_actions: bool,
    /// Whether the worker's policies act within [-1, 1].
    pub normalize_actions: bool,
    /// The environment's spaces of actions, by policy.
    pub action_spaces: BTreeMap<PolicyId, Space>,
    /// The shard to read and how many there are; none for a local worker beside others, which reads nothing.
    pub shard: Option<(u32, u32)>,
    sampler: Option<Box<dyn SamplerInput>>,
}

impl IoContext {
    /// A context with the worker's own sampler, if it has environments.
    #[must_use]
    pub fn new(worker: WorkerInfo, config: Config, sampler: Option<Box<dyn SamplerInput>>) -> Self {
        Self {
            log_dir: None,
            config,
            worker,
            seed: 0,
            train_batch_size: 1,
            clip_actions: false,
            normalize_actions: false,
            action_spaces: BTreeMap::new(),
            shard: Some((0, 1)),
            sampler,
        }
    }

    /// The worker's own sampler, if it has environments. It is given away: the second time there is none.
    pub fn default_sampler_input(&mut self) -> Option<Box<dyn SamplerInput>> {
        self.sampler.take()
    }
}
