//! Sampling, in this order: reading, joining, callbacks, estimating, writing, compressing.

use super::{RolloutWorker, Source};
use crate::{
    batch::{AnyBatch, SampleBatch, SlotFragment},
    callbacks::Callbacks as _,
    column::Granularity,
    ids::PolicyId,
    prelude::*,
    run::{RunConfig, RunConfigError},
    sampler::{BatchMode, Budget, SampleError},
    time::Micros,
    worker::{RolloutError, SetupError, config::Compression},
};

/// Most consecutive batches without rows before a sample fails.
const MAX_EMPTY: u32 = 1_000;

impl RolloutWorker {
    /// Returns the next sample.
    ///
    /// | mode | size |
    /// |---|---|
    /// | `truncate_episodes` | the fragments of all environments: exactly [`steps_per_sample`](Self::steps_per_sample), counted by agent steps at least as many |
    /// | `complete_episodes` | whole episodes, until there are at least as many |
    /// | an input | batches, until there are at least as many |
    ///
    /// Batches are read and joined; then callbacks may [change](crate::callbacks::Callbacks::on_sample_end) the whole; then
    /// the sample is written, estimated, and compressed, as the settings require.
    ///
    /// # Errors
    /// [`RolloutError`]. Batches that were read before the error begin the next sample.
    pub fn sample(&mut self) -> Result<AnyBatch, RolloutError> {
        self.make(&mut Budget::endless())?.ok_or_else(|| SampleError::no_update().into())
    }

    /// Returns the next sample, if it can be completed within a span on the worker's [clock](crate::worker::Clock): for a
    /// page, or any other caller without a thread to spare, that gives the worker a few milliseconds now and then.
    ///
    /// If it returns `None`, everything in progress is kept, and the next call continues it, also a call of
    /// [`sample`](Self::sample). With any spans, the samples are bit-identical to those of [`sample`](Self::sample). So
    /// a sample uses the weights that it began with: [weights](Self::set_weights) and [global
    /// vars](Self::set_global_vars) that are set before it is complete, and updates learned until then, take effect
    /// with the next one. Other changes take effect immediately, as they do between two samples.
    ///
    /// Each call makes at least one round of progress: a step of all environments that are ready, or a batch of an input. It
    /// reads the clock before each further round, so it exceeds the span by at most one round, including the one that
    /// completes the sample, which joins the batch and calls the callbacks. A call ends early when no environment is ready,
    /// which may happen with external ones. On a clock that stands still, which is the case unless a
    /// [clock](crate::worker::RolloutWorkerBuilder::clock) was set, a span of 0 is one round, and any other one takes as
    /// long as [`sample`](Self::sample).
    ///
    /// ```
    /// use rollmesh_core::{
    ///     time::Micros,
    ///     worker::{Registry, RolloutConfig, RolloutWorker, WorkerPlace},
    /// };
    ///
    /// let config = RolloutConfig::new("CartPole-v1").rollout_fragment_length(50).single_policy("random");
    /// let mut worker = RolloutWorker::from_config(config, &Registry::builtin(), WorkerPlace::LOCAL)?;
    /// let mut frames = 1;
    /// let batch = loop {
    ///     match worker.sample_within(Micros(0))? {
    ///         Some(batch) => break batch,
    ///         None => frames += 1, // draw something, hear messages
    ///     }
    /// };
    /// assert_eq!((batch.env_steps(), frames), (50, 50));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`sample`](Self::sample), for what this call did. Batches that were finished before are kept.
    pub fn sample_within(&mut self, span: Micros) -> Result<Option<AnyBatch>, RolloutError> {
        let until = (self.parts.clock)() + span;
        self.make(&mut Budget::until(until))
    }

    /// Continues a sample, with the weights that it began with.
    fn make(&mut self, budget: &mut Budget) -> Result<Option<AnyBatch>, RolloutError> {
        self.check_running()?;
        if let Some(first) = &self.first {
            return Ok(Some(first.clone()));
        }
        self.making.get_or_insert_default();
        let exchanged = self.exchange_weights();
        let made = if exchanged.is_ok() { self.continue_sample(budget) } else { Ok(None) };
        let back = self.exchange_weights();
        let notified = if matches!(made, Ok(None)) { Ok(()) } else { self.end_sample() };
        let ended = exchanged.and(back).and(notified);
        if let (Err(_), Ok(Some(batch))) = (&ended, &made) {
            self.discard(batch.env_steps(), batch.agent_steps());
        }
        ended.and(made)
    }

    fn continue_sample(&mut self, budget: &mut Budget) -> Result<Option<AnyBatch>, RolloutError> {
        let read = self.read(budget);
        self.collect_metrics();
        let Some(batch) = read? else { return Ok(None) };
        let (env_steps, agent_steps) = (batch.env_steps(), batch.agent_steps());
        // Callbacks or the output may fail; then the sample is lost.
        self.finish(batch).map(Some).inspect_err(|_| self.discard(env_steps, agent_steps))
    }

    /// Completes a sample once all its batches are read.
    fn finish(&mut self, mut batch: AnyBatch) -> Result<AnyBatch, RolloutError> {
        self.parts.callbacks.on_sample_end(&self.parts.info, &mut batch)?;
        // A sample that cannot be estimated is not written either, since it is lost.
        let estimates = self.estimates_of(&batch)?;
        self.parts.opened.output.write(&batch)?;
        self.metrics.estimates.extend(estimates);
        self.compress(&mut batch)?;
        if self.parts.config.fake_sampler {
            self.first = Some(batch.clone());
        }
        Ok(batch)
    }

    /// Returns the next [`sample`](Self::sample), and its number of env steps.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub fn sample_with_count(&mut self) -> Result<(AnyBatch, usize), RolloutError> {
        let batch = self.sample()?;
        let count = batch.env_steps();
        Ok((batch, count))
    }

    /// Returns the next `steps` steps of every environment, with cuts and states: the fragments of which
    /// [`sample`](Self::sample) consists if all environments are in lockstep. Makes no unnecessary copies; callbacks and
    /// output are skipped. A sample in progress is completed in this form.
    ///
    /// # Errors
    /// [`RolloutError::NoFragments`] if the environments are not in lockstep, [`RolloutError::Setup`] for too many steps,
    /// [`RolloutError::HasBegun`] if a sample of another length is in progress; else those of [`sample`](Self::sample).
    pub fn sample_fragments(&mut self, steps: u32) -> Result<Vec<SlotFragment>, RolloutError> {
        self.check_running()?;
        if steps == 0 || steps > RunConfig::MAX_FRAGMENT_LENGTH {
            let max = RunConfig::MAX_FRAGMENT_LENGTH;
            return Err(SetupError::from(RunConfigError::range("steps", steps, format!("from 1 to {max}"))).into());
        }
        let Some(Source::Lockstep(sampler)) = &mut self.parts.opened.source else {
            return Err(RolloutError::NoFragments);
        };
        sampler.check_size(steps)?;
        if let Some(begun) = sampler.open_steps().filter(|begun| *begun != steps) {
            return Err(RolloutError::HasBegun { begun, wanted: steps });
        }
        let exchanged = self.exchange_weights();
        let (opened, mut host) = self.parts.lend();
        let fragments = match &mut opened.source {
            Some(Source::Lockstep(sampler)) if exchanged.is_ok() => {
                sampler.fragments(steps, &mut host, &mut Budget::endless())
            }
            _ => Ok(None),
        };
        let (back, notified) = (self.exchange_weights(), self.end_sample());
        let ended = exchanged.and(back).and(notified);
        self.collect_metrics();
        if let (Err(_), Ok(Some(fragments))) = (&ended, &fragments) {
            let rows = fragments.iter().map(|fragment| fragment.rows.len()).sum();
            self.discard(rows, rows);
        }
        ended?;
        fragments?.ok_or(RolloutError::NoFragments)
    }

    /// Returns whether all environments are in lockstep, which is fastest.
    #[must_use]
    pub fn is_lockstep(&self) -> bool {
        matches!(self.parts.opened.source, Some(Source::Lockstep(_)))
    }

    /// Reads until there are enough steps, and joins the batches.
    fn read(&mut self, budget: &mut Budget) -> Result<Option<AnyBatch>, RolloutError> {
        if !self.simulate(budget)? {
            return Ok(None);
        }
        let (wanted, num_envs) = (self.steps_per_sample(), self.parts.config.num_envs as usize);
        let truncates = self.parts.config.batch_mode == BatchMode::TruncateEpisodes;
        // Every environment contributes one fragment; an input may contribute any number of batches.
        let most = if truncates && !self.parts.opened.offline { num_envs } else { usize::MAX };
        let count_by = self.parts.config.count_steps_by;
        let count = |batch: &AnyBatch| count_by.of(batch.env_steps(), batch.agent_steps());
        let mut steps = self.read.iter().map(count).sum::<usize>();
        while steps < wanted && self.read.len() < most {
            let Some(batch) = self.next_batch(budget)? else { return Ok(None) };
            self.parts.mark.beat();
            steps += count(&batch);
            let making = self.making.get_or_insert_default();
            making.empty = if batch.agent_steps() == 0 { making.empty + 1 } else { 0 };
            if making.empty == MAX_EMPTY {
                return Err(RolloutError::EmptyInput(MAX_EMPTY));
            }
            if !self.parts.opened.offline && !self.is_lockstep() {
                self.look_at_size(batch.agent_steps());
            }
            self.read.push(batch);
        }
        let mut batch = match <[AnyBatch; 1]>::try_from(core::mem::take(&mut self.read)) {
            Ok([only]) => only,
            Err(several) if self.parts.opened.offline => AnyBatch::concat_common(&several)?,
            Err(several) => AnyBatch::concat(&several)?,
        };
        if !self.parts.opened.offline {
            self.record_updates(&mut batch);
        }
        Ok(Some(batch))
    }

    fn next_batch(&mut self, budget: &mut Budget) -> Result<Option<AnyBatch>, RolloutError> {
        let (opened, mut host) = self.parts.lend();
        let source = opened.source.as_mut().ok_or(RolloutError::NoInput)?;
        Ok(source.reader_mut().next_within(&mut host, budget)?)
    }

    /// Runs the sampler alongside an input once per sample and discards its batches. Returns false if that did not fit into
    /// the budget.
    fn simulate(&mut self, budget: &mut Budget) -> Result<bool, RolloutError> {
        let making = self.making.get_or_insert_default();
        let (opened, mut host) = self.parts.lend();
        if let (Some(simulation), false) = (&mut opened.simulation, making.simulated) {
            making.simulated = simulation.next_within(&mut host, budget)?.is_some();
            return Ok(making.simulated);
        }
        Ok(true)
    }

    /// Records in a batch how many updates its weights have had.
    fn record_updates(&self, batch: &mut AnyBatch) {
        let counts = &self.global_vars.num_grad_updates_per_policy;
        let apply = |id: &PolicyId, batch: &mut SampleBatch| {
            if let (None, Some(count)) = (batch.num_grad_updates(), counts.get(id)) {
                batch.set_num_grad_updates(Some(*count as f64));
            }
        };
        match batch {
            AnyBatch::Single(batch) => apply(&PolicyId::DEFAULT, batch),
            AnyBatch::Multi(multi) => multi.policy_batches.iter_mut().for_each(|(id, batch)| apply(id, batch)),
        }
    }

    fn compress(&self, batch: &mut AnyBatch) -> Result<(), RolloutError> {
        let granularity = match self.parts.config.compress_observations {
            Compression::None => return Ok(()),
            Compression::Rows => Granularity::Rows,
            Compression::Bulk => Granularity::Bulk,
        };
        match batch {
            AnyBatch::Single(batch) => batch.compress(granularity)?,
            AnyBatch::Multi(batch) => batch.compress(granularity)?,
        }
        Ok(())
    }
}
